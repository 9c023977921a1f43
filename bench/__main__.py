"""``python -m bench``: fastiter beside its peers, in one run. See bench/README.md."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from bench import pipelines, report
from bench.interpreters import FAMILIES, Interpreter, parse_interpreters, probe
from bench.workloads import WORKLOADS

ROOT = str(Path(__file__).resolve().parent.parent)
PEERS = tuple(family for family in FAMILIES if family != "fastiter")
ROUNDS, SECONDS = 5, 0.5
QUICK_ROUNDS, QUICK_SECONDS = 3, 0.2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    jobs = parser.add_subparsers(dest="job", required=True)
    job = jobs.add_parser("pipelines", help="whole pipelines, from dataset to checked batch")
    job.add_argument(
        "workloads", nargs="*", metavar="W", help=f"of {' '.join(WORKLOADS)}; default all"
    )
    job.add_argument(
        "--quick", action="store_true", help="short slices, three rounds, main candidates only"
    )
    job.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="comma-separated, of " + ", ".join(PEERS) + "; 'none' for fastiter alone",
    )
    job.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="FAMILY=PATH",
        help="the interpreter that has this library, e.g. chainer=/opt/py310/bin/python",
    )
    job.add_argument("--rounds", type=int, help=f"default {ROUNDS}, with --quick {QUICK_ROUNDS}")
    job.add_argument(
        "--seconds",
        type=float,
        help=f"of one slice; default {SECONDS}, with --quick {QUICK_SECONDS}",
    )
    job.add_argument("--json", metavar="FILE", help="write every figure to FILE")
    arguments = parser.parse_args()
    arguments.workloads = arguments.workloads or list(WORKLOADS)
    for name in arguments.workloads:
        if name not in WORKLOADS:
            parser.error(f"workload {name!r}: expected one of {' '.join(WORKLOADS)}")
    arguments.peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    for peer in arguments.peers:
        if peer not in PEERS:
            parser.error(f"--peers {peer!r}: expected some of {', '.join(PEERS)}, or none")
    try:
        arguments.python = parse_interpreters(arguments.python)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def _say(text: str) -> None:
    """Progress, on one line of the terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _interpreters(
    arguments: argparse.Namespace,
) -> tuple[dict[str, Interpreter], dict[str, Interpreter]]:
    """The interpreter of each chosen family, and fastiter under those of peers that use another."""
    paths = arguments.python
    chosen = {
        family: probe(family, paths[family], ROOT) for family in ("fastiter", *arguments.peers)
    }
    twins = {
        peer: probe("fastiter", paths[peer], ROOT)
        for peer in arguments.peers
        if chosen[peer].reason is None and paths[peer] != paths["fastiter"]
    }
    return chosen, twins


def main() -> int:
    arguments = _arguments()
    settings = pipelines.Settings(
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        seconds=arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS),
        root=ROOT,
    )
    facts = report.machine()
    interpreters, twins = _interpreters(arguments)
    print(report.describe(facts, interpreters), flush=True)
    begin = time.monotonic()
    results = {}
    for name in arguments.workloads:
        rows = pipelines.rows_of(interpreters, twins, main_only=arguments.quick)
        pipelines.measure(name, rows, settings, lambda text, name=name: _say(f"{name}: {text}"))
        results[name] = rows
        _say("")
        print("\n" + report.table(name, rows), flush=True)
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    if arguments.json:
        report.write_json(
            arguments.json, facts, {"rounds": settings.rounds, "seconds": settings.seconds}, results
        )
    wrong = any(row.status == "WRONG" for rows in results.values() for row in rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
