"""The candidates of one library in a job of micro-benchmarks, in a process of their own.

``python -m bench.micro_runner JOB QUICK`` (``QUICK`` is 0 or 1) obeys one JSON line per request
from stdin and answers each by one on what was its stdout:

``{"do": "open", "case": name, "candidates": [name, ...]}``
    makes the sources, opens the candidates and checks their results; answers ``{"refused": {name:
    [kind, reason]}}`` for those that gave none or a wrong one;
``{"do": "run", "candidate": name, "seconds": s}``
    a timed slice;
``{"do": "memory", "candidate": name, "seconds": s}``
    the same, not timed, and how far memory grew meanwhile;
``{"do": "close"}``
    checks each candidate once more and closes the case; answers as ``open`` does.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from bench.micro import Case, Measured, Prepared, WrongResult
from bench.procs import own_cpu_seconds, process_tree, pss_bytes

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
        self._given: dict[str, Sequence[Any]] = {}
        self._turns: dict[str, Iterator[Any]] = {}
        self._runs: dict[str, Callable[[Any], Any]] = {}
        self._seconds: dict[str, float] = {}  # that the latest checked call took
        return {"refused": self._refusing(candidates, self._open_one)}

    def _open_one(self, name: str) -> None:
        run = self._case.candidates[name]()
        if isinstance(run, AbstractContextManager):
            run = self._stack.enter_context(run)
        given = self._sources
        if isinstance(run, Prepared):
            given = [run.prepare(source) for source in self._sources]
            run = run.run
        self._runs[name] = run
        self._given[name] = given
        self._turns[name] = itertools.cycle(given)
        for number in range(min(CHECKED, len(given))):
            self._check(name, number)

    def _check(self, name: str, number: int) -> None:
        begin = time.perf_counter()
        result, source = self._runs[name](self._given[name][number]), self._sources[number]
        self._seconds[name] = time.perf_counter() - begin
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

    def _refusing(self, names: list[str], act: Callable[[str], None]) -> dict[str, list[str]]:
        """Does `act` for each name; the kind and reason of those that raised."""
        refused = {}
        for name in names:
            try:
                act(name)
            except WrongResult as error:
                refused[name] = ["WRONG", str(error)]
            except ImportError as error:
                refused[name] = ["skipped", f"{type(error).__name__}: {error}"]
            except Exception as error:
                traceback.print_exc()
                refused[name] = ["FAILED", f"{type(error).__name__}: {error}"]
            else:
                continue
            self._runs.pop(name, None)
        return refused

    def run(self, candidate: str, seconds: float) -> dict[str, Any]:
        """A slice: warm-up, then samples for about `seconds`, one call at least."""
        run, turns = self._runs[candidate], self._turns[candidate]
        gc.collect()
        gc.disable()
        try:
            bundle = 1
            if self._seconds[candidate] < seconds:  # else the check was warm-up enough
                bundle = self._warm_up(run, turns, WARM_UP_SHARE * seconds)
            cpu = own_cpu_seconds()
            samples, figures, elapsed = _sample(run, turns, bundle, seconds)
            cpu = own_cpu_seconds() - cpu
        finally:
            gc.enable()
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
            **figures,
        }

    def _warm_up(self, run: Callable[[Any], Any], turns: Iterator[Any], seconds: float) -> int:
        """Calls `run` for `seconds`, but once at least; how many calls make one sample."""
        calls, shortest = 0, float("inf")
        begin = now = time.perf_counter()
        while not calls or now - begin < seconds:
            result = run(next(turns))
            before, now = now, time.perf_counter()
            calls += 1
            shortest = min(shortest, now - before)
        if isinstance(result, Measured):
            return 1
        return max(1, int(BUNDLE / max(shortest, 1e-9)))

    def memory(self, candidate: str, seconds: float) -> dict[str, Any]:
        """By how many bytes memory stood higher at its peak than before the slice.

        The kernel's own high-water mark, so that no peak is missed between two looks; processes
        of the candidate come as they stand afterwards.
        """
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        run, turns = self._runs[candidate], self._turns[candidate]
        end = time.perf_counter() + seconds
        once = True
        while once or time.perf_counter() < end:
            run(next(turns))
            once = False
        added = _status("VmHWM") - before
        children = process_tree(os.getpid())[1:]
        return {"pss_added": added + pss_bytes(children)}

    def close(self) -> dict[str, Any]:
        """The last check of each candidate; then all are closed."""
        refused = self._refusing(list(self._runs), lambda name: self._check(name, 0))
        self._stack.close()
        for kept in (self._runs, self._given, self._turns):
            kept.clear()
        self._sources = ()
        gc.collect()
        return {"refused": refused}


def _status(key: str) -> int:
    """A line of this process' /proc status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return 1024 * int(line.split()[1])
    raise LookupError(f"/proc/self/status has no {key}")


def _sample(
    run: Callable[[Any], Any], turns: Iterator[Any], bundle: int, seconds: float
) -> tuple[list[float], dict[str, float], float]:
    """Seconds per call of each sample, the last call's other figures, and the seconds in all."""
    clock = time.perf_counter
    samples: list[float] = []
    result = None
    begin = now = clock()
    while not samples or (now - begin < seconds and len(samples) < SAMPLES):
        if bundle == 1:
            source = next(turns)
            before = clock()
            result = run(source)
            now = clock()
        else:
            before = clock()
            for source in itertools.islice(turns, bundle):
                result = run(source)
            now = clock()
        measured = isinstance(result, Measured)
        samples.append(result.seconds if measured else (now - before) / bundle)
    figures = dict(result.figures) if isinstance(result, Measured) else {}
    return samples, figures, now - begin


def main(arguments: list[str]) -> int:
    # What a library prints goes to stderr; workers inherit the answers' pipe as another descriptor.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")

    job = importlib.import_module(f"bench.{arguments[0]}")
    slices = Slices({case.name: case for case in job.cases(arguments[1] == "1")})
    answer(ok=True)
    try:
        for line in sys.stdin:
            request = json.loads(line)
            answer(ok=True, **getattr(slices, request.pop("do"))(**request))
    except Exception as error:
        traceback.print_exc()
        answer(ok=False, kind="FAILED", reason=f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
