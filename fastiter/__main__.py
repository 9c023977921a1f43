"""The command line: ``python -m fastiter demo``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from fastiter._demo import digits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its options; ``sys.argv[1:]`` by default.
    """
    parser = argparse.ArgumentParser(prog="python -m fastiter", description="Tools of fastiter.")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    summary = "train a small classifier on handwritten digits, and compare the iterators"
    demo = commands.add_parser("demo", help=summary, description=summary.capitalize() + ".")
    digits.add_options(demo)
    demo.set_defaults(run=digits.run)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # what a shell reports for a program ended by SIGINT
    return 0


if __name__ == "__main__":
    sys.exit(main())
