"""Rows whose delays have a heavy tail: the longest waits of ``next()``, with ``hedge`` and without.

A row sleeps for a Pareto-distributed time (shape 1.5, median 2 ms), a function of its index and of
how often it was fetched before, so that all runs see the same delays. Each call is an epoch, and
its duration is the mean of the longest 1 % of the waits, of which there are ``SLOW_WAITS`` (200). A
few hundred of such a tail vary by a factor of 2: goals are for 20,000.
"""

from __future__ import annotations

import functools
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
        draw = np.random.default_rng((i, int(self.fetches[i]))).random()
        time.sleep(_MEDIAN * (2 * (1 - draw)) ** (-1 / _SHAPE))
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


def cases(quick: bool) -> Iterator[Case]:
    configurations = [(4, 1, 2.5), (4, 4, 2.5), (8, 1, 2.5), (8, 4, 2.5), (3, 1, 2.0)]
    for workers, n_prefetch, gain in configurations[: 1 if quick else None]:
        epoch = functools.partial(_epoch, workers, n_prefetch, 10 if quick else _WAITS)
        yield Case(
            name=f"batches of 32, {workers} workers, n_prefetch={n_prefetch}",
            sources=lambda: [None],
            candidates={
                "fastiter": functools.partial(epoch, 0.05),
                "without": functools.partial(epoch, None),
            },
            check=lambda result, source: None,
            items=1,
            item="wait",
            goals=[Goal("without", gain), AtMost("fetches", 1.05)],
        )
