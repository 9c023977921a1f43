"""The command line: ``python -m fastiter batch``, ``demo``, ``doctor``, ``profile``, ``run``,
``tokens``."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import sys
from collections.abc import Sequence

from fastiter import __version__

# Each command's module has `add_options(parser)` and `run(options)`. Only the requested one is
# imported.
_COMMANDS = {
    "batch": (
        "fastiter._cli.batch",
        "print the examples that the batch of a step had, from a saved state",
    ),
    "demo": (
        "fastiter._cli.demo.digits",
        "train a small classifier on handwritten digits, and resume a snapshot",
    ),
    "doctor": (
        "fastiter._cli.doctor.doctor",
        "report what this machine offers a data loader, with advice",
    ),
    "profile": (
        "fastiter._cli.profile.profile",
        "measure a dataset, by itself and with the iterators, and find the best settings",
    ),
    "run": (
        "fastiter._cli.run",
        "run a program of torch with fastiter's workers, unedited, and report on its loaders",
    ),
    "tokens": (
        "fastiter._cli.tokens",
        "count documents and tokens, and measure how well they pack into rows",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its options; ``sys.argv[1:]`` by default.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m fastiter", description="Tools of fastiter.")
    parser.add_argument("--version", action="version", version=f"fastiter {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, (module, summary) in _COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary.capitalize() + ".", allow_abbrev=False
        )
        if name in arguments[:1]:
            tool = importlib.import_module(module)
            tool.add_options(command)
            command.set_defaults(run=tool.run)
    options = parser.parse_args(arguments)
    if getattr(options, "is_program", False):  # what it raises, the interpreter is to see
        return int(options.run(options))
    try:
        if not hasattr(options, "run"):
            parser.print_help()
            return 2
        status = options.run(options) or 0
        print(end="", flush=True)  # also without a stream
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # what a shell reports for a program ended by SIGINT
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # likewise by SIGPIPE
    return status


if __name__ == "__main__":
    if sys.stderr is not None and sys.argv[1:2] != ["run"]:  # which leaves it to the program
        faulthandler.enable()  # prints the stack of a dataset that crashes, in workers too
    sys.exit(main())
