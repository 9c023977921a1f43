"""Rows that hang for ever at their first touch, one in a hundred: the waits of ``next()``.

``on_timeout='retry'`` has other workers fetch them. Each call is an epoch, and its duration is the
99th percentile of the waits, in units of ``dataset_timeout``: from 1 on a row that hangs shows, and
more than that is what ending and replacing a worker adds, and rows that hang one after the other.
"""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Measured, WrongResult

NAME = "hanging"
TITLE = "p99 of next(), in units of dataset_timeout, where 1 % of the rows hang once"

_HASH = 2654435761  # spreads the rows that hang


class Hanging:
    """Its own indices."""

    def __init__(self, rows: int, folder: str) -> None:
        self._rows, self._folder = rows, folder

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> int:
        if i * _HASH % 2**32 < 2**32 // 100:
            try:
                os.close(os.open(f"{self._folder}/{i}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return i
            threading.Event().wait()
        return i


class HangingCalls(Hanging):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[i] for i in indices]


def _epoch(
    kind: type[Hanging], batch_size: int, workers: int, batches: int, seconds: float
) -> Callable[[Any], Measured]:
    from fastiter import MultiprocessIterator

    def run(_: Any) -> Measured:
        waits, found = [], []
        with (
            tempfile.TemporaryDirectory() as folder,
            MultiprocessIterator(
                kind(batch_size * batches, folder),
                batch_size,
                repeat=False,
                shuffle=False,
                n_processes=workers,
                context="fork",
                dataset_timeout=seconds,
                on_timeout="retry",
            ) as iterator,
        ):
            found += next(iterator)  # with the start
            for _ in range(batches - 1):
                begin = time.perf_counter()
                found += next(iterator)
                waits.append((time.perf_counter() - begin) / seconds)
        if found != list(range(batch_size * batches)):
            raise WrongResult("the epoch is not the dataset")
        return Measured(float(np.quantile(waits, 0.99)), None, {"longest": max(waits)})

    logging.getLogger("fastiter").setLevel("ERROR")
    return run


def cases(quick: bool) -> Iterator[Case]:
    configurations = [
        (Hanging, 32, 4, 100, 1.4),
        (Hanging, 128, 2, 50, 2.5),
        (HangingCalls, 32, 4, 100, 3.3),
    ]
    for kind, batch_size, workers, batches, most in configurations[: 1 if quick else None]:
        how = "by __getitems__, " if kind is HangingCalls else ""
        epoch = kind, batch_size, workers, 12 if quick else batches, 0.1 if quick else 0.5
        yield Case(
            name=f"{how}batches of {batch_size}, {workers} workers",
            sources=lambda: [None],
            candidates={"fastiter": functools.partial(_epoch, *epoch)},
            check=lambda result, source: None,
            items=1,
            item="wait",
            goals=[AtMost("seconds", most)],
        )
