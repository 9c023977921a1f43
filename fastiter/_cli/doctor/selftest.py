"""The doctor's self-test: two workers deliver a hundred examples, each exactly once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import fastiter
from fastiter._cli.doctor.findings import Finding

_LENGTH, _WORKERS = 100, 2
_TIMEOUT = 30.0  # seconds until a worker counts as hung


def findings() -> Iterator[Finding]:
    """Run the self-test and report how it went; never raises an Exception."""
    dataset = [(np.full(4096, index, np.float32), index) for index in range(_LENGTH)]
    begin = time.perf_counter()
    seen: list[int] = []  # indices of the examples that arrived intact
    first = 0.0
    try:
        iterator: Any = fastiter.MultiprocessIterator(
            dataset, 10, repeat=False, n_processes=_WORKERS, n_prefetch=2, dataset_timeout=_TIMEOUT
        )
        with warnings.catch_warnings(), iterator:
            warnings.simplefilter("error", fastiter.TimeoutWarning)
            for batch in iterator:
                first = first or time.perf_counter() - begin
                seen += [index for row, index in batch if (row == index).all()]
            deaths = iterator.stats().deaths
    except Exception as error:
        yield Finding(
            "failed",
            f"{type(error).__name__}: {error}",
            "problem",
            "until this is fixed, use MultithreadIterator or SerialIterator: they need no worker "
            "processes",
        )
        return
    if sorted(seen) != list(range(_LENGTH)):
        yield Finding(
            "failed",
            f"{len(set(seen))} of {_LENGTH} examples arrived intact, and {len(seen)} in all",
            "problem",
            "please report this with the output of `python -m fastiter doctor --json`",
        )
        return
    yield Finding(
        "passed",
        f"{_WORKERS} workers delivered {_LENGTH} examples exactly once; the first batch came after "
        f"{first:.2f} s, the workers had ended after {time.perf_counter() - begin:.2f} s",
    )
    if deaths:
        yield Finding(
            "deaths",
            f"{deaths} workers died during the self-test and were replaced",
            "note",
            "something on this machine ends processes: see the kernel's log (dmesg)",
        )
