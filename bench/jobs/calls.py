"""Datasets that fetch many rows in one call, whose call has a fixed cost: a query, a table.

Two workers, batches of 64, as many in advance as is each library's default. What is timed are 16
batches in a row.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult

NAME = "calls"
TITLE = "16 batches of a dataset whose calls have a fixed cost"

BATCH_SIZE = 64
BATCHES = 16
ROWS = 4096
EPOCH = 1 << 18


class Calls:
    """Rows of float32[64] with their index; a call takes `call` seconds and `row` for each row.

    Parameters
    ----------
    waits : bool
        Whether it sleeps, as for a network, or computes.
    """

    def __init__(self, call: float, row: float, waits: bool) -> None:
        self._call, self._row, self._waits = call, row, waits
        self._rows = np.random.default_rng(9).random((ROWS, 64), dtype=np.float32)

    def __len__(self) -> int:
        return EPOCH

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: list[int]) -> list[tuple[np.ndarray, int]]:
        seconds = self._call + self._row * len(indices)
        if self._waits:
            time.sleep(seconds)
        else:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
        return [(self._rows[i % ROWS], i) for i in indices]


def _several(batches: Iterator[Any]) -> Any:
    return lambda _: [next(batches) for _ in range(BATCHES)]


@contextlib.contextmanager
def _fastiter(iterator: str, dataset: Calls, **options: int) -> Iterator[Any]:
    import fastiter

    kind = getattr(fastiter, iterator)
    batches = kind(
        dataset, BATCH_SIZE, shuffle=False, converter=fastiter.concat_examples, **options
    )
    try:
        yield _several(batches)
    finally:
        batches.finalize()


def _loop(dataset: Calls) -> Any:
    """The loop of the main process without workers."""

    def batches() -> Iterator[Any]:
        for start in itertools.cycle(range(0, EPOCH, BATCH_SIZE)):
            rows, indices = zip(
                *dataset.__getitems__([*range(start, start + BATCH_SIZE)]), strict=True
            )
            yield np.stack(rows), np.array(indices)

    return _several(batches())


@contextlib.contextmanager
def _torch(dataset: Calls) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    loader = DataLoader(
        dataset,
        BATCH_SIZE,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    with contextlib.closing(batch for _ in itertools.count() for batch in loader) as batches:
        yield _several(batches)


def _check(result: Any, source: Any) -> None:
    for rows, indices in result:
        first = int(indices[0])
        if len(rows) != BATCH_SIZE or list(indices) != list(range(first, first + BATCH_SIZE)):
            raise WrongResult(f"the batch holds the indices {indices}")


def _case(title: str, call: float, row: float, waits: bool) -> Case:
    bind = functools.partial
    dataset = Calls(call, row, waits)
    return Case(
        name=title,
        sources=lambda: [None],
        candidates={
            "fastiter": bind(_fastiter, "MultiprocessIterator", dataset, n_processes=2),
            "fastiter.thread": bind(_fastiter, "MultithreadIterator", dataset, n_threads=2),
            "numpy.loop": bind(_loop, dataset),
            "torch": bind(_torch, dataset),
        },
        check=_check,
        items=BATCHES * BATCH_SIZE,
        item="example",
        goals=[Goal("numpy.loop", 1.8), Goal("torch", 1)],
        processes=True,
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _case("2 ms a call, waiting", 0.002, 0, waits=True)
    if not quick:
        yield _case("2 ms a call, computing", 0.002, 0, waits=False)
        yield _case("200 us a call and 15 us a row, computing", 0.0002, 0.000015, waits=False)
