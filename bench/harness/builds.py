"""``python -m bench builds BEFORE AFTER``: two installed versions of fastiter, measured in turns.

BEFORE and AFTER are interpreters, each of an environment where one version is installed, from its
wheel and beside the same NumPy. Every case runs in one process per version; their slices take turns
in an order that changes with each round, so that a change of the machine's speed meets both. A
pipeline is measured with new processes for each run: where the allocator of a process happens to
have its memory decides about up to 30 % of some rows, for as long as it lives. Printed are, per
row, both medians and the ratio after / before; then, per job, the geometric mean of the ratios and
the lowest one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import geometric_mean, median
from types import ModuleType

import bench
from bench.harness import micro_measure
from bench.harness.candidates import CANDIDATES
from bench.harness.interpreters import Interpreter, probe
from bench.harness.rows import Row
from bench.harness.workloads import WORKLOADS
from bench.jobs import pipelines

ROUNDS = 9
RUNS = 3
VERSIONS = ("before", "after")


def _pairs(names: list[str], interpreters: dict[str, Interpreter]) -> list[Row]:
    return [
        Row(f"{name}@{version}", "", "fastiter", interpreters[version])
        for name in names
        for version in VERSIONS
    ]


class Comparison:
    """Measures jobs under both interpreters, and prints and keeps the ratios."""

    def __init__(
        self, interpreters: dict[str, Interpreter], root: str, rounds: int, runs: int
    ) -> None:
        self._interpreters = interpreters
        self._root = root
        self._rounds = rounds
        self._runs = runs
        self.failed = False

    def pipelines(self, workloads: list[str]) -> None:
        settings = pipelines.Settings(self._rounds, pipelines.SECONDS, self._root)
        ratios = []
        for workload in workloads:
            known = WORKLOADS[workload].only or CANDIDATES
            names = [name for name in known if name.startswith("fastiter.")]
            runs = [_pairs(names, self._interpreters) for _ in range(self._runs)]
            for rows in runs:
                pipelines.measure(workload, rows, settings, lambda text: None)
            ratios += self._show(workload, runs)
        self._conclude("pipelines", ratios)

    def micro(self, name: str, job: ModuleType, quick: bool) -> None:
        settings = micro_measure.MicroSettings(
            self._rounds, False, micro_measure.SECONDS, self._root, quick
        )
        ratios = []
        with closing(micro_measure.Job(job, settings)) as measurement:
            for case in job.cases(quick):
                ours = [name for name in case.candidates if name.partition(".")[0] == "fastiter"]
                rows = _pairs(ours, self._interpreters)
                measurement.measure(case, rows, lambda text: None)
                ratios += self._show(f"{name}, {case.name}", [rows])
        self._conclude(name, ratios)

    def _show(self, case: str, runs: list[list[Row]]) -> list[float]:
        """Print the medians of a case's rows, of which each run has as many."""
        ratios = []
        rows = list(zip(*runs, strict=True))
        for before, after in zip(rows[::2], rows[1::2], strict=True):
            label = f"{case}, {before[0].name.partition('@')[0]}"
            broken = [row for row in (*before, *after) if not row.ok]
            for row in broken:
                self.failed = self.failed or row.status != "skipped"  # torch may be missing
                print(f"{label}: {row.name.partition('@')[2]}: {row.status}: {row.reason}")
            if not broken:
                rates = [median(row.rate for row in version) for version in (before, after)]
                ratios.append(rates[1] / rates[0])
                print(
                    f"{ratios[-1]:6.3f}  {rates[0]:14,.0f}  {rates[1]:14,.0f}  {label}", flush=True
                )
        return ratios

    def _conclude(self, job: str, ratios: list[float]) -> None:
        if ratios:
            mean, lowest = geometric_mean(ratios), min(ratios)
            print(f"== {job}: geometric mean {mean:.3f}, lowest {lowest:.3f}, {len(ratios)} rows\n")


def main(arguments: list[str], jobs: dict[str, ModuleType], loader_jobs: tuple[str, ...]) -> int:
    """1 if a row failed under one of the versions; ``kernels`` leaves `loader_jobs` out."""
    known = (*jobs, "kernels", "pipelines", *WORKLOADS)
    parser = argparse.ArgumentParser(
        prog="python -m bench builds", description="two installed versions of fastiter, in turns"
    )
    parser.add_argument("before", metavar="BEFORE", help="the interpreter with the version before")
    parser.add_argument("after", metavar="AFTER", help="the interpreter with the version after")
    parser.add_argument(
        "jobs", nargs="*", metavar="JOB", help=f"of {', '.join(known)}; default all"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"of pipelines; default {RUNS}")
    parser.add_argument("--quick", action="store_true", help="the few cases of each job")
    parsed = parser.parse_args(arguments)
    for name in parsed.jobs:
        if name not in known:
            parser.error(f"job {name!r}: expected some of {', '.join(known)}")
    chosen = parsed.jobs or [*jobs, "pipelines"]
    with tempfile.TemporaryDirectory() as root:
        # A folder without the sources of fastiter, which would hide what is installed.
        source = Path(bench.__file__).resolve().parent
        shutil.copytree(source, Path(root, "bench"), ignore=shutil.ignore_patterns("results"))
        paths = zip(VERSIONS, (parsed.before, parsed.after), strict=True)
        interpreters = {version: probe("fastiter", path, root) for version, path in paths}
        for version, interpreter in interpreters.items():
            if interpreter.reason is not None:
                parser.error(f"{version}: {interpreter.path}: {interpreter.reason}")
            print(f"{version}: fastiter {interpreter.version}, {interpreter.label}")
        print(" ratio          before           after  row (items per second)")
        comparison = Comparison(interpreters, root, parsed.rounds, parsed.runs)
        for name, job in jobs.items():
            if name in chosen or ("kernels" in chosen and name not in loader_jobs):
                comparison.micro(name, job, parsed.quick)
        workloads = list(WORKLOADS) if "pipelines" in chosen else []
        workloads = workloads or [name for name in WORKLOADS if name in chosen]
        if workloads:
            comparison.pipelines(workloads)
    return int(comparison.failed)
