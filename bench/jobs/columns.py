"""Data in memory as columns: the next batch of a TupleDataset, beside plain indexing of its arrays.

The data of the pipelines W1 and W2, as arrays: 1,024 images, and 102,400 rows of 16 floats, each
with its index. A call makes one batch, as the loop of a training would get it: indices, images and
numbers of one batch after the other, in order or shuffled.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult
from bench.harness.workloads import Images, ReadyTuples

NAME = "columns"
TITLE = "one batch of a dataset of arrays"

BATCH_SIZES = {"images": 64, "rows": 256}


@functools.cache
def _columns(data: str) -> tuple[np.ndarray, np.ndarray]:
    if data == "images":
        dataset = Images()
        rows = np.stack([dataset[i][0] for i in range(dataset.distinct)])
    else:
        rows = np.stack([row for row, _ in map(ReadyTuples().__getitem__, range(102_400))])
    return rows, np.arange(len(rows))


def _fastiter(iterator: str, tabular: bool, data: str, shuffle: bool) -> Callable[[Any], Any]:
    import fastiter
    from fastiter.dataset.tabular import from_data
    from fastiter.datasets import TupleDataset

    columns = _columns(data)
    dataset = from_data(columns) if tabular else TupleDataset(*columns)
    batches = getattr(fastiter, iterator)(
        dataset, BATCH_SIZES[data], shuffle=shuffle, converter=fastiter.concat_examples
    )
    return lambda _: next(batches)


def _indices(data: str, shuffle: bool) -> Iterator[np.ndarray]:
    """Those of one batch after the other; a shuffled order is drawn once."""
    size, step = len(_columns(data)[0]), BATCH_SIZES[data]
    order = np.random.RandomState(0).permutation(size) if shuffle else np.arange(size)
    return itertools.cycle([order[start : start + step] for start in range(0, size, step)])


def _indexing(data: str, shuffle: bool) -> Callable[[Any], Any]:
    rows, numbers = _columns(data)
    batches = _indices(data, shuffle)

    def run(_: Any) -> Any:
        indices = next(batches)
        return rows[indices], numbers[indices]

    return run


def _take(data: str, shuffle: bool) -> Callable[[Any], Any]:
    rows, numbers = _columns(data)
    batches = _indices(data, shuffle)

    def run(_: Any) -> Any:
        indices = next(batches)
        return rows.take(indices, axis=0), numbers.take(indices)

    return run


def _loop(data: str, shuffle: bool) -> Callable[[Any], Any]:
    """The fastest way by examples: they are ready, in a list."""
    examples = list(zip(_columns(data)[0], range(len(_columns(data)[0])), strict=True))
    batches = _indices(data, shuffle)

    def run(_: Any) -> Any:
        rows, numbers = zip(*[examples[i] for i in next(batches)], strict=True)
        return np.stack(rows), np.array(numbers)

    return run


def _check(data: str, result: Any, source: Any) -> None:
    rows, numbers = result
    due, _ = _columns(data)
    if len(numbers) != BATCH_SIZES[data] or len(set(numbers.tolist())) != len(numbers):
        raise WrongResult(f"the batch holds the indices {numbers}")
    if rows.dtype != due.dtype or not np.array_equal(rows, due[numbers]):
        raise WrongResult("the rows are not those of the indices beside them")


def _case(data: str, shuffle: bool) -> Case:
    bind = functools.partial
    goals = [Goal("numpy.indexing", 1)]
    if data == "rows":
        goals.append(Goal("numpy.stack", 10))
    return Case(
        name=f"{BATCH_SIZES[data]} {data}, {'shuffled' if shuffle else 'in order'}",
        sources=lambda: [None],
        candidates={
            "fastiter": bind(_fastiter, "SerialIterator", False, data, shuffle),
            "fastiter.tabular": bind(_fastiter, "SerialIterator", True, data, shuffle),
            "fastiter.thread": bind(_fastiter, "MultithreadIterator", False, data, shuffle),
            "numpy.indexing": bind(_indexing, data, shuffle),
            "numpy.take": bind(_take, data, shuffle),
            "numpy.stack": bind(_loop, data, shuffle),
        },
        check=bind(_check, data),
        items=BATCH_SIZES[data],
        item="example",
        nbytes=BATCH_SIZES[data] * (150_528 if data == "images" else 64),
        goals=goals,
    )


def cases(quick: bool) -> Iterator[Case]:
    yield _case("rows", shuffle=False)
    if not quick:
        yield _case("rows", shuffle=True)
        yield _case("images", shuffle=False)
        yield _case("images", shuffle=True)
