"""``python -m bench``: fastiter beside its peers, in one run. See bench/README.md."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import pkgutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import bench.jobs
from bench.harness import builds, compare, micro_measure, render, report
from bench.harness.interpreters import FAMILIES, parse_interpreters, probe
from bench.harness.rows import Row
from bench.harness.workloads import WORKLOADS
from bench.jobs import pipelines

ROOT = str(Path(__file__).resolve().parent.parent)
PEERS = tuple(family for family in FAMILIES if family != "fastiter")


LOADER_JOBS = (
    "cache",
    "consumer",
    "hanging",
    "images",
    "import",
    "python",
    "slow",
    "startup",
)  # not about one kernel


def micro_jobs() -> dict[str, ModuleType]:
    """The modules of `bench.jobs` that are jobs of micro-benchmarks, by name."""
    modules = [
        importlib.import_module(f"bench.jobs.{info.name}")
        for info in pkgutil.iter_modules(bench.jobs.__path__)
    ]
    return {module.NAME: module for module in modules if hasattr(module, "cases")}


def _arguments(jobs: dict[str, ModuleType]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    known = (*jobs, "kernels", "pipelines", *WORKLOADS)
    parser.add_argument(
        "jobs",
        nargs="*",
        metavar="JOB",
        help=f"of {', '.join(known)}; kernels: all before it but {', '.join(LOADER_JOBS)}; "
        "default all",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few cases and candidates, short rounds: to see that it runs",
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="cases whose name matches, as in '*float32*'"
    )
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="comma-separated, of " + ", ".join(PEERS) + "; 'none' for fastiter alone",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="FAMILY=PATH",
        help="the interpreter that has this library, e.g. chainer=/opt/py310/bin/python",
    )
    parser.add_argument("--rounds", type=int, help="default 5, with --quick 3")
    parser.add_argument(
        "--seconds", type=float, help="of one timed slice; the default depends on the job"
    )
    parser.add_argument("--json", metavar="FILE", help="write every figure to FILE")
    parser.add_argument("--list", action="store_true", help="print jobs and cases, and end")
    arguments = parser.parse_args()
    for name in arguments.jobs:
        if name not in known:
            parser.error(f"job {name!r}: expected some of {', '.join(known)}")
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


class Run:
    """One run: what was asked for, under which interpreters, and what came out."""

    def __init__(self, arguments: argparse.Namespace, jobs: dict[str, ModuleType]) -> None:
        chosen = arguments.jobs or [*jobs, "pipelines"]
        if "kernels" in chosen:
            chosen = [*chosen, *(name for name in jobs if name not in LOADER_JOBS)]
        pattern = arguments.only or "*"
        workloads = [name for name in WORKLOADS if name in chosen]
        if "pipelines" in chosen and not workloads:
            workloads = list(pipelines.QUICK_WORKLOADS if arguments.quick else WORKLOADS)
        self.workloads = [name for name in workloads if fnmatch.fnmatch(name, pattern)]
        self.cases = {
            name: (job, [c for c in job.cases(arguments.quick) if fnmatch.fnmatch(c.name, pattern)])
            for name, job in jobs.items()
            if name in chosen
        }
        self.results: dict[str, dict[str, Any]] = {}
        self.wrong = False
        self._arguments = arguments

    def probe(self) -> None:
        """Finds out which libraries there are (seconds).

        `interpreters` has one per chosen family, `twins` fastiter under those of peers that use
        another one than fastiter does.
        """
        arguments, paths = self._arguments, self._arguments.python
        families = ("fastiter", *arguments.peers)
        with ThreadPoolExecutor() as pool:
            probes = pool.map(lambda family: probe(family, paths[family], ROOT), families)
            self.interpreters = dict(zip(families, probes, strict=True))
        self.twins = {
            peer: probe("fastiter", paths[peer], ROOT)
            for peer in arguments.peers
            if self.interpreters[peer].reason is None and paths[peer] != paths["fastiter"]
        }

    def _pace(self, module: Any) -> tuple[int, float]:
        """Rounds, and seconds of a slice."""
        given, rounds, seconds = self._arguments, module.ROUNDS, module.SECONDS
        if given.quick:
            rounds, seconds = module.QUICK_ROUNDS, module.QUICK_SECONDS
        return given.rounds or rounds, given.seconds or seconds

    def micro(self) -> None:
        arguments = self._arguments
        rounds, seconds = self._pace(micro_measure)
        is_fixed = arguments.rounds is not None
        settings = micro_measure.MicroSettings(rounds, is_fixed, seconds, ROOT, arguments.quick)
        for name, (module, cases) in self.cases.items():
            results = {}
            with closing(micro_measure.Job(module, settings)) as job:
                for case in cases:
                    rows = micro_measure.rows_of(case, self.interpreters, self.twins)
                    label = f"{name}, {case.name}"
                    job.measure(case, rows, lambda text, label=label: _say(f"{label}: {text}"))
                    results[case.name] = report.micro_json(case, rows)
                    self._show(report.micro_table(name, case, rows), rows)
            self.results[name] = {
                "title": module.TITLE,
                "rounds": settings.rounds,
                "seconds": settings.seconds,
                "cases": results,
            }

    def pipelines(self) -> None:
        settings = pipelines.Settings(*self._pace(pipelines), ROOT)
        results = {}
        for name in self.workloads:
            rows = pipelines.rows_of(
                name, self.interpreters, self.twins, main_only=self._arguments.quick
            )
            pipelines.measure(name, rows, settings, lambda text, name=name: _say(f"{name}: {text}"))
            results[name] = report.pipeline_json(name, rows)
            self._show(report.pipeline_table(name, rows), rows)
        if results:
            self.results["pipelines"] = {
                "title": "from dataset to checked batch",
                "rounds": settings.rounds,
                "seconds": settings.seconds,
                "cases": results,
            }

    def _show(self, table: str, rows: list[Row]) -> None:
        _say("")
        print("\n" + table, flush=True)
        self.wrong = self.wrong or any(row.status == "WRONG" for row in rows)


def main() -> int:
    for tool in (compare, render):
        if sys.argv[1:2] == [tool.__name__.rpartition(".")[2]]:
            return tool.main(sys.argv[2:])
    jobs = micro_jobs()
    if sys.argv[1:2] == ["builds"]:
        return builds.main(sys.argv[2:], jobs, LOADER_JOBS)
    arguments = _arguments(jobs)
    run = Run(arguments, jobs)
    if arguments.list:
        for name, (module, cases) in run.cases.items():
            print(f"{name}: {module.TITLE}")
            print("".join(f"  {case.name}\n" for case in cases), end="")
        for name in run.workloads:
            print(f"{name}: {WORKLOADS[name].title}")
        return 0
    begin = time.monotonic()
    facts = report.machine()
    run.probe()
    print(report.describe(facts, run.interpreters), flush=True)
    run.micro()
    run.pipelines()
    took = time.monotonic() - begin
    print(f"\n{took:.0f} s in all")
    if arguments.json:
        settings = {"quick": arguments.quick, "took": took}
        report.write_json(arguments.json, facts, run.interpreters, settings, run.results)
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
