"""A program whose iterators are scribbled over: `python scribbled.py DIRECTORY COUNT [torch]`.

Forks a child per number below COUNT, each with an iterator of its own. Child `n` writes its pid
and the arena's geometry to `n.ready`, goes through batches until there is a file `n.stop`, then
through some more, and writes to `n.result` what it has seen.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from inside import ring_of

from fastiter import (
    DatasetError,
    MultiprocessIterator,
    OverwrittenError,
    TimeoutWarning,
    WorkerDiedError,
)

BATCH = 8
SIZE = 64
#: Batches under way when the scribbling ends may still be corrupt.
SETTLING = 50
AFTERWARDS = 10
#: Seconds that any call may take: several rounds of repair, and workers that start.
BOUND = 15

#: Errors in which overwritten shared memory may end.
ERRORS = (OverwrittenError, WorkerDiedError, DatasetError, MemoryError, TimeoutWarning)


class Mixed:
    """Columns, ragged arrays, and packed objects; a few are slow."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index % 5 == 0:
            time.sleep(0.0005)
        return np.full(6, index, np.float32), index, np.arange(index % 4), f"text {index}"


class Plain:
    """Columns only."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        if index % 5 == 0:
            time.sleep(0.0005)
        return np.full(6, index, np.float32), index


def join(batch: Any, device: Any) -> Any:
    """A converter whose result travels packed."""
    return {"x": np.stack([example[0] for example in batch]), "n": [e[1] for e in batch]}


def is_right_batch(batch: Any, first: int) -> bool:
    """Whether it holds examples first, first + 1, ... in order."""
    indices = [(first + row) % SIZE for row in range(BATCH)]
    if isinstance(batch, dict):
        columns = np.stack([np.full(6, index, np.float32) for index in indices])
        return batch["n"] == indices and np.array_equal(batch["x"], columns)
    if len(batch) != BATCH:
        return False
    for index, example in zip(indices, batch, strict=True):
        if not (example[0] == index).all() or example[0].shape != (6,) or example[1] != index:
            return False
        if len(example) > 2:
            ragged, text = example[2:]
            if text != f"text {index}" or ragged.tolist() != list(range(index % 4)):
                return False
    return True


def make_iterator(number: int) -> Any:
    return MultiprocessIterator(
        Mixed() if number % 2 else Plain(),
        BATCH,
        shuffle=False,
        n_processes=2,
        n_prefetch=2,
        converter=join if number % 3 == 0 else None,
        context="fork",
    )


def watch(iterator: Any, directory: Path, number: int) -> dict[str, Any]:
    """Goes through batches while a scribbler overwrites memory, and tells what came of it."""
    is_right = getattr(iterator, "is_right", is_right_batch)
    next(iterator)
    first = BATCH
    geometry = ring_of(iterator).arena.geometry
    place = directory / f"{number}.ready"
    place.with_suffix(".part").write_text(json.dumps([os.getpid(), geometry]))
    place.with_suffix(".part").rename(place)
    seen: Counter[str] = Counter()
    texts: dict[str, str] = {}
    slowest = 0.0
    stopped = None
    batches = 0
    while stopped is None or batches < stopped + SETTLING + AFTERWARDS:
        if stopped is None and (directory / f"{number}.stop").exists():
            stopped = batches
        start = time.monotonic()
        try:
            kind = "right" if is_right(next(iterator), first) else "wrong"
        except ERRORS as error:
            kind = type(error).__name__
            texts[kind] = str(error)[:300]
        except Exception as error:
            kind = f"unexpected {type(error).__name__}"
            texts[kind] = traceback.format_exc()[-3000:]
        slowest = max(slowest, time.monotonic() - start)
        first = iterator.current_position  # an error may or may not have used up its batch
        if stopped is not None and batches >= stopped + SETTLING:
            kind = f"{kind} afterwards"
        seen[kind] += 1
        batches += 1
    start = time.monotonic()
    iterator.finalize()
    return {
        "seen": dict(seen),
        "texts": texts,
        "slowest": slowest,
        "finalize": time.monotonic() - start,
    }


def main() -> None:
    directory, count = Path(sys.argv[1]), int(sys.argv[2])
    warnings.simplefilter("error", TimeoutWarning)
    make = make_iterator
    if sys.argv[3:] == ["torch"]:
        make = importlib.import_module("scribbled_torch").Loader
    pids = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            try:
                result = watch(make(number), directory, number)
                (directory / f"{number}.result").write_text(json.dumps(result))
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        pids.append(pid)
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
