"""Examples that cost nothing but Python code: two threads, two processes, and one thread alone.

A batch is an epoch's part of 32 examples, each some 300 us of interpreted arithmetic, which holds
the GIL where there is one. Goals are for free-threaded Python, where threads take the place of
processes; elsewhere the figures show why they do not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from bench.harness.micro import Case, Goal, WrongResult

NAME = "python"
TITLE = "examples of pure Python code, by 2 threads, by 2 processes, and serially"

BATCH = 32
_STEPS = 4_000  # of the arithmetic; about 300 us


def _transform(number: int) -> int:
    for _ in range(_STEPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


class Computed:
    """What the arithmetic makes of each index."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> int:
        return _transform(i)


Open = Callable[[Computed], AbstractContextManager[Iterator[list[int]]]]


def _serial(dataset: Computed) -> Any:
    from fastiter import SerialIterator

    return SerialIterator(dataset, BATCH, shuffle=False)


def _threads(dataset: Computed) -> Any:
    from fastiter import MultithreadIterator

    return MultithreadIterator(dataset, BATCH, shuffle=False, n_threads=2)


def _processes(dataset: Computed) -> Any:
    from fastiter import MultiprocessIterator

    return MultiprocessIterator(dataset, BATCH, shuffle=False, n_processes=2, context="fork")


@contextmanager
def _batches(open_: Open) -> Iterator[Callable[[Any], list[int]]]:
    """Each call takes the next batch. Its first example says which one it is."""
    dataset = Computed(64 * BATCH)
    with open_(dataset) as iterator:
        yield lambda _: next(iterator)


@functools.cache
def _expected() -> dict[int, list[int]]:
    batches = [[_transform(i) for i in range(k, k + BATCH)] for k in range(0, 64 * BATCH, BATCH)]
    return {batch[0]: batch for batch in batches}


def _check(result: list[int], source: Any) -> None:
    if result != _expected().get(result[0]):
        raise WrongResult("the batch is none of the dataset's")


def cases(quick: bool) -> Iterator[Case]:
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    goals = [Goal("fastiter.serial", 1.8), Goal("fastiter.processes", 0.9)]
    yield Case(
        name=f"batches of {BATCH}, {'with a' if has_gil else 'without a'} GIL",
        sources=lambda: [None],
        candidates={
            "fastiter": functools.partial(_batches, _threads),
            "fastiter.processes": functools.partial(_batches, _processes),
            "fastiter.serial": functools.partial(_batches, _serial),
        },
        check=_check,
        items=BATCH,
        item="example",
        goals=[] if has_gil else goals,
        processes=True,
    )
