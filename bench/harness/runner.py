"""One candidate on one workload, in a process of its own.

``python -m bench.harness.runner CANDIDATE WORKLOAD [MEMCPY]``; the candidate ``limit`` needs the
compiled program MEMCPY.

It makes the dataset, then obeys these requests (`serve`):

``{"do": "open", "seconds": s}``
    opens the loader, compares a few batches in full and warms up;
``{"do": "run", "seconds": s, "min_batches": n}``
    a timed slice;
``{"do": "consume", "seconds": s}``
    an untimed slice, for the benchmark to look at the memory of all processes meanwhile;
``{"do": "close"}``
    closes the loader, and answers how long that took.

Between requests no batch is taken: the loader's workers fill their prefetch depth and then
sleep.
"""

from __future__ import annotations

import importlib
import sys
import time
from contextlib import AbstractContextManager
from typing import Any

from bench.harness.candidates import CANDIDATES, Candidate
from bench.harness.interpreters import MODULES
from bench.harness.limit import Limit
from bench.harness.procs import own_cpu_seconds
from bench.harness.serve import serve
from bench.harness.verify import Verifier
from bench.harness.workloads import N_PREFETCH, WORKLOADS, Workload

FULL_CHECKS = 3
WARM_UP_SHARE = 0.25


class Slices:
    """The loader of one candidate, consumed in slices of time."""

    def __init__(self, candidate: Candidate, workload: Workload) -> None:
        self._workload = workload
        self._dataset = workload.make()
        self._verifier = Verifier(self._dataset, workload.batch_size, workload.padding)
        for module in filter(None, (MODULES[candidate.family][0], candidate.imports)):
            importlib.import_module(module)
        # Batches that a slice begins with: those prefetched, one in the hands of each worker.
        self._warm_up = N_PREFETCH + workload.n_workers + 2 if candidate.prefetches else 1
        self._loader: AbstractContextManager[Any] = candidate.open(workload, self._dataset)

    def open(self, seconds: float) -> dict[str, Any]:
        """Starts the loader, checks its first batches in full, goes on for an epoch or `seconds`.

        In that epoch forked workers copy what they touch of the parent's memory, and pools grow to
        their size.
        """
        begin = time.perf_counter()
        self._batches = self._loader.__enter__()
        batch = next(self._batches)
        first_batch = time.perf_counter() - begin
        self._verifier.check_fully(batch)
        for _ in range(FULL_CHECKS - 1):
            self._verifier.check_fully(next(self._batches))
        end = time.perf_counter() + seconds
        while self._verifier.epochs == 0 and time.perf_counter() < end:
            self._verifier.check(next(self._batches))
        return {"first_batch_s": first_batch}

    def run(self, seconds: float, min_batches: int) -> dict[str, Any]:
        """A warm-up, then a timed slice of at least `seconds` and `min_batches`.

        The warm-up uses up what was prefetched while others ran.
        """
        check, batches = self._verifier.check, self._batches
        warm = time.perf_counter() + WARM_UP_SHARE * seconds
        n = 0
        while n < self._warm_up or time.perf_counter() < warm:
            check(next(batches))
            n += 1
        cpu = own_cpu_seconds()
        n = 0
        begin = time.perf_counter()
        end = begin + seconds
        now = begin
        while now < end or n < min_batches:
            check(next(batches))
            n += 1
            now = time.perf_counter()
        cpu = own_cpu_seconds() - cpu
        self._verifier.check_fully(next(batches))
        examples = n * self._workload.batch_size
        return {
            "rate": examples / (now - begin),
            "cpu_us_per_example": 1e6 * cpu / examples,
            "cores": cpu / (now - begin),
            "epochs": self._verifier.epochs,
        }

    def consume(self, seconds: float) -> dict[str, Any]:
        """Batches for `seconds`, not timed, while the benchmark looks at the memory."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._verifier.check(next(self._batches))
        return {}

    def close(self) -> dict[str, Any]:
        """Closes the loader; how long that took (s)."""
        begin = time.perf_counter()
        self._loader.__exit__(None, None, None)
        return {"close_s": time.perf_counter() - begin}


class LimitSlices:
    """The machine's limit, with a candidate's requests."""

    def __init__(self, workload: Workload, memcpy_program: str) -> None:
        dataset = workload.make()
        verifier = Verifier(dataset, workload.batch_size, workload.padding)
        self._limit = Limit(workload, dataset, verifier, memcpy_program)

    def open(self, seconds: float) -> dict[str, Any]:
        return {}

    def run(self, seconds: float, min_batches: int) -> dict[str, Any]:
        rates = self._limit.run(seconds)
        return {"rate": rates.pop("limit"), "parts": rates}

    def consume(self, seconds: float) -> dict[str, Any]:
        return {}

    def close(self) -> dict[str, Any]:
        return {}


def main(arguments: list[str]) -> int:
    name, workload = arguments[0], WORKLOADS[arguments[1]]
    if name == "limit":
        return serve(lambda: LimitSlices(workload, arguments[2]))
    return serve(lambda: Slices(CANDIDATES[name], workload))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
