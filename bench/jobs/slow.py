"""Rows whose delays have a heavy tail: the longest waits of ``next()``, with ``hedge`` and without.

A row sleeps for a Pareto-distributed time (shape 1.5, median 2 ms), a function of its index and of
how often it was fetched before, so that all runs see the same delays. Each call is an epoch, and
its duration is the mean of the longest 1 % of the waits, of which there are ``SLOW_WAITS`` (200). A
few hundred of such a tail vary by a factor of 2: goals are for 20,000.

Where nothing is slow, calls are batches of cheap rows: what it costs to be ready for slow ones.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Measured, WrongResult

NAME = "slow"
TITLE = "longest 1 % of the waits for rows with a heavy tail, with hedge=0.05 and without"

_WAITS = int(os.environ.get("SLOW_WAITS", "200"))
_MEDIAN = 0.002
_SHAPE = 1.5


def _draw(i: int, fetch: int) -> float:
    """Above 0 and at most 1, by the finalizer of SplitMix64."""
    z = (i * 16 + fetch) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return ((z ^ z >> 31) + 1) / 2**64


class Delayed:
    """Its own indices."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        # Shared with forked workers. Two fetches of a row begin some milliseconds apart.
        self.fetches = np.frombuffer(mmap.mmap(-1, rows), np.uint8)

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> int:
        self.fetches[i] += 1
        time.sleep(_MEDIAN * (2 * _draw(i, int(self.fetches[i]))) ** (-1 / _SHAPE))
        return i


def _epoch(workers: int, n_prefetch: int, waits: int, hedge: float | None) -> Callable[..., Any]:
    from fastiter import MultiprocessIterator

    def run(_: Any) -> Measured:
        dataset, batch_size = Delayed(32 * (waits + 1)), 32
        found, durations = [], []
        with MultiprocessIterator(
            dataset,
            batch_size,
            repeat=False,
            shuffle=False,
            n_processes=workers,
            n_prefetch=n_prefetch,
            context="fork",
            hedge=hedge,
        ) as iterator:
            found += next(iterator)  # with the start
            start = time.perf_counter()
            for _ in range(waits):
                begin = time.perf_counter()
                found += next(iterator)
                durations.append(time.perf_counter() - begin)
            total = time.perf_counter() - start
        if found != list(range(len(dataset))):
            raise WrongResult("the epoch is not the dataset")
        longest = np.sort(durations)[-max(1, waits // 100) :]
        fetches = float(dataset.fetches.sum(dtype=np.int64)) / len(dataset)
        return Measured(float(longest.mean()), None, {"fetches": fetches, "total": total})

    return run


class Cheap:
    """Rows of an array."""

    def __init__(self, row: tuple[int, ...]) -> None:
        self.array = np.arange(4096 * math.prod(row), dtype=np.float32).reshape(4096, *row)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> np.ndarray:
        return self.array[i]


class CheapCalls(Cheap):
    def __getitems__(self, indices: list[int]) -> list[np.ndarray]:
        return [self.array[i] for i in indices]


@contextlib.contextmanager
def _cheap_batches(dataset: Cheap, **arguments: Any) -> Iterator[Callable[[Any], Any]]:
    from fastiter import MultiprocessIterator

    with MultiprocessIterator(
        dataset, 64, shuffle=False, n_processes=2, context="fork", **arguments
    ) as iterator:
        yield lambda _: next(iterator)


def _nothing_slow() -> Iterator[Case]:
    for name, dataset in {
        "numbers": Cheap(()),
        "rows of 16": Cheap((16,)),
        "images": Cheap((3, 32, 32)),
        "rows of 16 by __getitems__": CheapCalls((16,)),
    }.items():
        yield Case(
            name=f"nothing slow, batches of 64 {name}",
            sources=lambda: [None],
            candidates={
                "fastiter": functools.partial(_cheap_batches, dataset, hedge=0.05),
                "fastiter.retry": functools.partial(_cheap_batches, dataset, on_timeout="retry"),
                "fastiter.without": functools.partial(_cheap_batches, dataset),
            },
            check=lambda result, source: None,
            items=64,
            item="example",
            goals=[Goal("fastiter.without", 0.95)],
            processes=True,
        )


def cases(quick: bool) -> Iterator[Case]:
    yield from _nothing_slow()
    configurations = [(4, 1, 2.5), (4, 4, 2.5), (8, 1, 2.5), (8, 4, 2.5), (3, 1, 2.0)]
    for workers, n_prefetch, gain in configurations[: 1 if quick else None]:
        epoch = functools.partial(_epoch, workers, n_prefetch, 10 if quick else _WAITS)
        yield Case(
            name=f"batches of 32, {workers} workers, n_prefetch={n_prefetch}",
            sources=lambda: [None],
            candidates={
                "fastiter": functools.partial(epoch, 0.05),
                "fastiter.without": functools.partial(epoch, None),
            },
            check=lambda result, source: None,
            items=1,
            item="wait",
            goals=[Goal("fastiter.without", gain), AtMost("fetches", 1.05)],
        )
