"""Examples that cost nothing but Python code: by two threads, by two processes, and serially.

Each example is some 300 us of interpreted arithmetic, which holds the GIL where there is one. A
call is an epoch, and its duration is that of a batch after the first one. Goals are for
free-threaded Python, where threads take the place of processes; elsewhere the figures show why
they do not.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.harness.micro import Case, Goal, Measured, WrongResult

NAME = "python"
TITLE = "examples of pure Python code, by 2 threads, by 2 processes, and serially"

BATCH = 32
_STEPS = 4_000  # of the arithmetic; about 300 us


def _transform(number: int) -> int:
    for _ in range(_STEPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


class Computed:
    """Results of the arithmetic, by index."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> int:
        return _transform(i)


def _serial(dataset: Computed) -> Any:
    from fastiter import SerialIterator

    return SerialIterator(dataset, BATCH, repeat=False, shuffle=False)


def _threads(dataset: Computed) -> Any:
    from fastiter import MultithreadIterator

    return MultithreadIterator(dataset, BATCH, repeat=False, shuffle=False, n_threads=2)


def _processes(dataset: Computed) -> Any:
    from fastiter import MultiprocessIterator

    return MultiprocessIterator(
        dataset, BATCH, repeat=False, shuffle=False, n_processes=2, context="fork"
    )


def _epoch(open_: Callable[[Computed], Any], batches: int) -> Callable[[], Callable[..., Measured]]:
    def run(_: Any) -> Measured:
        dataset = Computed(BATCH * (batches + 1))
        with open_(dataset) as iterator:
            found = list(next(iterator))  # with the start of the workers
            begin = time.perf_counter()
            for batch in iterator:
                found += batch
            return Measured((time.perf_counter() - begin) / batches, found)

    return lambda: run


@functools.cache
def _expected(rows: int) -> list[int]:
    return [_transform(i) for i in range(rows)]


def _check(result: list[int], source: Any) -> None:
    if result != _expected(len(result)):
        raise WrongResult("the epoch is not the dataset")


def cases(quick: bool) -> Iterator[Case]:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    goals = [Goal("fastiter.serial", 1.8), Goal("fastiter.processes", 0.9)]
    batches = 4 if quick else 100
    yield Case(
        name=f"batches of {BATCH}, {'with a' if has_gil else 'without a'} GIL",
        sources=lambda: [None],
        candidates={
            "fastiter": _epoch(_threads, batches),
            "fastiter.processes": _epoch(_processes, batches),
            "fastiter.serial": _epoch(_serial, batches),
        },
        check=_check,
        items=BATCH,
        item="example",
        goals=[] if has_gil else goals,
        processes=True,
    )
