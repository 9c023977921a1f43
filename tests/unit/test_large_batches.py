"""Batches that no cache holds: they are written past the caches, and must be the same."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import numpy as np
import pytest

import fastiter
from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator
from fastiter.dataset import concat_examples

ROWS, BATCH, N_PREFETCH = 32, 16, 4
# Odd, so that rows begin at every offset in a cache line. Five such batches are 80 MB.
NBYTES = 1_000_003


@functools.cache
def _row(i: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, NBYTES, dtype=np.uint8)


class Rows:
    """Makes its rows on demand, so that each lies elsewhere."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return _row(i).copy(), i


def _columns() -> fastiter.datasets.TupleDataset:
    return fastiter.datasets.TupleDataset(np.stack([_row(i) for i in range(ROWS)]), np.arange(ROWS))


ITERATORS: dict[str, tuple[Any, dict[str, Any]]] = {
    "serial": (SerialIterator, {}),
    "thread": (MultithreadIterator, {"n_threads": 2, "n_prefetch": N_PREFETCH}),
    "process": (MultiprocessIterator, {"n_processes": 2, "n_prefetch": N_PREFETCH}),
}


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize(
    ("converter", "dataset"),
    [
        pytest.param(concat_examples, Rows, id="examples, converted"),
        pytest.param(None, _columns, id="columns, list"),
        pytest.param(None, Rows, id="examples, list", marks=pytest.mark.stress),
        pytest.param(concat_examples, _columns, id="columns, converted", marks=pytest.mark.stress),
    ],
)
def test_content_of_batches_that_no_cache_holds(dataset, converter, kind) -> None:
    iterator, arguments = ITERATORS[kind]
    with contextlib.closing(
        iterator(dataset(), BATCH, repeat=True, shuffle=False, converter=converter, **arguments)
    ) as batches:
        for number in range(2 * ROWS // BATCH):
            batch = next(batches)
            images, indices = batch if converter else zip(*batch, strict=True)
            expected = [(number * BATCH + row) % ROWS for row in range(BATCH)]
            assert [int(i) for i in indices] == expected
            for image, i in zip(images, expected, strict=True):
                assert image.dtype == np.uint8
                np.testing.assert_array_equal(image, _row(i))


def test_a_stack_that_no_cache_holds() -> None:
    arrays = [_row(i % 4) for i in range(40)]
    stacked = concat_examples(arrays)
    np.testing.assert_array_equal(stacked, np.stack(arrays))


@pytest.mark.parametrize(
    "dtype",
    ["u1", "f4", *(pytest.param(dtype, marks=pytest.mark.stress) for dtype in ("c16", "S3"))],
)
def test_padding_that_no_cache_holds(dtype: str) -> None:
    """Lengths are odd, so that data and fill begin at many offsets in a cache line."""
    width = 4_000_003 // np.dtype(dtype).itemsize
    lengths = [width - 20_011 * i % width for i in range(16)]
    arrays = [np.resize((_row(i)[:999] % 10).astype(dtype), n) for i, n in enumerate(lengths)]
    padded = concat_examples(arrays, padding=7)
    expected = np.full((len(arrays), width), 7, dtype)
    for row, array in zip(expected, arrays, strict=True):
        row[: len(array)] = array
    np.testing.assert_array_equal(padded, expected)
