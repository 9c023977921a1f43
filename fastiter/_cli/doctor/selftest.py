"""The doctor's self-test: two workers deliver a hundred examples, each exactly once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastiter
from fastiter._cli.doctor.findings import Finding

_LENGTH, _WORKERS, _BATCH = 100, 2, 10
_SECONDS = 30.0  # until it counts as hung
_SECTION = "Self-test"


class Numbers:
    """A hundred rows of 4,096 float32, each full of its index, which comes with it."""

    def __len__(self) -> int:
        return _LENGTH

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int]:
        return np.full(4096, index, np.float32), index


def findings() -> Iterator[Finding]:
    """Run it, and tell how it went; never raises an Exception."""
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", fastiter.TimeoutWarning)
            seen, first, restarts = _run(start)
    except Exception as error:
        yield Finding(
            _SECTION,
            "failed",
            f"{type(error).__name__}: {error}",
            "problem",
            "until that is mended, MultithreadIterator and SerialIterator work without processes",
        )
        return
    if sorted(seen) != list(range(_LENGTH)):
        yield Finding(
            _SECTION,
            "failed",
            f"of {_LENGTH} examples, {len(set(seen))} came, some of them damaged or repeated",
            "problem",
            "please report this with the output of `python -m fastiter doctor --json`",
        )
        return
    yield Finding(
        _SECTION,
        "passed",
        f"{_WORKERS} workers delivered {_LENGTH} examples exactly once; the first batch came after "
        f"{first:.2f} s, the workers had ended after {time.perf_counter() - start:.2f} s",
    )
    if restarts:
        yield Finding(
            _SECTION,
            "deaths",
            f"{restarts} workers died meanwhile and were replaced",
            "note",
            "something ends processes here: look into the kernel's log (dmesg)",
        )


def _run(start: float) -> tuple[list[int], float, int]:
    """Indices of the examples that came undamaged, seconds until the first, workers replaced."""
    seen: list[int] = []
    first = 0.0
    iterator: Any = fastiter.MultiprocessIterator(
        Numbers(),
        _BATCH,
        repeat=False,
        n_processes=_WORKERS,
        n_prefetch=2,
        dataset_timeout=_SECONDS,
    )
    with iterator:
        for batch in iterator:
            first = first or time.perf_counter() - start
            seen += [index for row, index in batch if (row == index).all()]
        restarts: int = iterator._pool.restarts
    return seen, first, restarts
