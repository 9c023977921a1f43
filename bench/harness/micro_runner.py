"""The candidates of one library in a job of micro-benchmarks, in a process of their own.

``python -m bench.harness.micro_runner JOB QUICK`` (``QUICK`` is 0 or 1) obeys these requests
(`serve`):

``{"do": "open", "case": name, "candidates": [name, ...]}``
    makes the sources, opens the candidates and checks their results; answers ``{"refused": {name:
    [kind, reason]}}`` for those that gave none or a wrong one, and for the others ``{"facts":
    {name: {"call_s": seconds, "pss_added": bytes}}}``;
``{"do": "run", "candidate": name, "seconds": s, "last": bool}``
    a timed slice; after the last one its last result is checked; ``{"refused": [kind, reason]}`` as
    with ``open``;
``{"do": "close"}``
    closes the case.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from bench.harness.micro import Case, Measured, Prepared, WrongResult
from bench.harness.procs import Watcher, own_cpu_seconds
from bench.harness.serve import serve

BUNDLE = 20e-6  # seconds that a sample lasts at least
CHECKED = 3  # sources on which a candidate is checked before the timing
WARM_UP_SHARE = 0.25
SAMPLES = 100_000  # of a slice, at most


class Slices:
    """The candidates of one case, asked by name."""

    def __init__(self, cases: dict[str, Case]) -> None:
        self._cases = cases
        self._stack = ExitStack()

    def open(self, case: str, candidates: list[str]) -> dict[str, Any]:
        """Makes the sources and opens what can be opened and gives right results."""
        self._case = self._cases[case]
        self._sources: Sequence[Any] = self._case.sources()
        self._turns: dict[str, Iterator[tuple[Any, Any]]] = {}
        self._runs: dict[str, Callable[[Any], Any]] = {}
        self._facts: dict[str, dict[str, float]] = {}
        if self._case.processes:
            self._watcher = Watcher()
            self._stack.callback(self._watcher.close)
        refused = {}
        for name in candidates:
            try:
                self._open_one(name)
            except Exception as error:
                self._runs.pop(name, None)
                refused[name] = _refusal(error)
        return {"refused": refused, "facts": self._facts}

    def _open_one(self, name: str) -> None:
        run = self._case.candidates[name]()
        if isinstance(run, AbstractContextManager):
            run = self._stack.enter_context(run)
        given = self._sources
        if isinstance(run, Prepared):
            given = [run.prepare(source) for source in self._sources]
            run = run.run
        self._runs[name] = run
        self._turns[name] = itertools.cycle(zip(given, self._sources, strict=True))
        facts = self._facts[name] = {"call_s": 0.0, "pss_added": 0.0}
        for part, source in list(zip(given, self._sources, strict=True))[:CHECKED]:
            gc.collect()
            with self._watching() as peak:
                begin = time.perf_counter()
                result = run(part)
                facts["call_s"] = time.perf_counter() - begin
            facts["pss_added"] = max(facts["pss_added"], peak[0])
            self._check(name, result, source)
            del result

    def _watching(self) -> AbstractContextManager[list[int]]:
        return self._watcher.watching() if self._case.processes else _high_water()

    def _check(self, name: str, result: Any, source: Any) -> None:
        if isinstance(result, Measured):
            result = result.result
        if name.partition(".")[0] == "limit":
            return
        try:
            self._case.check(result, source)
        except WrongResult:
            raise
        except Exception as error:  # of a result that is not even of the right kind
            raise WrongResult(f"the check raised {type(error).__name__}: {error}") from error

    def run(self, candidate: str, seconds: float, last: bool) -> dict[str, Any]:
        """`_slice`, or ``{"refused": [kind, reason]}`` if it raised."""
        try:
            return self._slice(candidate, seconds, last)
        except Exception as error:
            self._runs.pop(candidate)
            return {"refused": _refusal(error)}

    def _slice(self, candidate: str, seconds: float, last: bool) -> dict[str, Any]:
        """A slice: warm-up, then samples for about `seconds`, one call at least."""
        run, turns = self._runs[candidate], self._turns[candidate]
        gc.collect()
        gc.disable()
        try:
            bundle = 1
            if self._facts[candidate]["call_s"] < seconds:  # else the checks were warm-up enough
                bundle = self._warm_up(run, turns, WARM_UP_SHARE * seconds)
            cpu = own_cpu_seconds()
            samples, result, source, elapsed = _sample(run, turns, bundle, seconds)
            cpu = own_cpu_seconds() - cpu
        finally:
            gc.enable()
        if last:
            self._check(candidate, result, source)
        samples.sort()
        items = self._case.items
        middle = samples[len(samples) // 2]
        calls = bundle * len(samples)
        return {
            "rate": items / middle,
            "seconds": middle,
            "p95": samples[min(len(samples) - 1, int(0.95 * len(samples)))],
            "cpu_us_per_example": 1e6 * cpu / (calls * items),
            "cores": cpu / elapsed,
            "calls": calls,
            **(result.figures if isinstance(result, Measured) else {}),
        }

    def _warm_up(self, run: Callable[[Any], Any], turns: Iterator[Any], seconds: float) -> int:
        """Calls `run` for `seconds`, but once at least; how many calls make one sample."""
        calls, shortest = 0, float("inf")
        begin = now = time.perf_counter()
        while not calls or now - begin < seconds:
            result = run(next(turns)[0])
            before, now = now, time.perf_counter()
            calls += 1
            shortest = min(shortest, now - before)
        if isinstance(result, Measured):
            return 1
        return max(1, int(BUNDLE / max(shortest, 1e-9)))

    def close(self) -> dict[str, Any]:
        """Closes all candidates and drops the sources."""
        self._stack.close()
        self._runs.clear()
        self._turns.clear()
        self._sources = ()
        gc.collect()
        return {}


def _refusal(error: Exception) -> list[str]:
    """Kind and reason of a candidate's failure."""
    if isinstance(error, WrongResult):
        return ["WRONG", str(error)]
    if isinstance(error, ImportError):
        return ["skipped", f"{type(error).__name__}: {error}"]
    traceback.print_exception(error)
    return ["FAILED", f"{type(error).__name__}: {error}"]


@contextlib.contextmanager
def _high_water() -> Iterator[list[int]]:
    """As `Watcher.watching`, of this process alone, and exact: what the kernel remembers."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    peak: list[int] = []
    yield peak
    peak.append(max(0, _status("VmHWM") - before))


def _status(key: str) -> int:
    """A line of this process' /proc status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {key}")


def _sample(
    run: Callable[[Any], Any], turns: Iterator[tuple[Any, Any]], bundle: int, seconds: float
) -> tuple[list[float], Any, Any, float]:
    """Seconds per call of each sample, the last result and its source, and the seconds in all."""
    clock = time.perf_counter
    samples: list[float] = []
    result = source = None
    begin = now = clock()
    while not samples or (now - begin < seconds and len(samples) < SAMPLES):
        if bundle == 1:
            given, source = next(turns)
            before = clock()
            result = run(given)
            now = clock()
        else:
            before = clock()
            for given, source in itertools.islice(turns, bundle):  # noqa: B007
                result = run(given)
            now = clock()
        measured = isinstance(result, Measured)
        samples.append(result.seconds if measured else (now - before) / bundle)
    return samples, result, source, now - begin


def main(arguments: list[str]) -> int:
    job = importlib.import_module(f"bench.jobs.{arguments[0]}")
    return serve(lambda: Slices({case.name: case for case in job.cases(arguments[1] == "1")}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
