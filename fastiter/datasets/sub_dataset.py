"""A part of a dataset."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter._util.arguments import checked_int
from fastiter.dataset.mixin import _python_int, row_at
from fastiter.datasets._batched import BatchedWrapper, fetch
from fastiter.datasets._parts import fixed_length

__all__ = ["SubDataset"]


class SubDataset(BatchedWrapper):
    """The examples ``order[start:finish]`` of a dataset, or ``start:finish`` without an order.

    Negative indices count from the end, as in a list.

    Parameters
    ----------
    dataset : sequence
        Object with ``__len__`` and ``__getitem__``; ``__getitems__`` is used if there is one.
    start, finish : int
        First position of the part, and the position after its last, ``0 <= start <= finish <=
        len(dataset)``; else TypeError or ValueError.
    order : sequence of int, optional
        Indices into the dataset, one for each of its examples. An array is kept as it is; a list
        or tuple of integers becomes an array, which worker processes can share (8 bytes per
        example).

    Examples
    --------
    >>> part = SubDataset("abcd", 1, 3, order=[3, 2, 1, 0])
    >>> part[:], part[-1]
    (['c', 'b'], 'b')
    """

    def __init__(self, dataset: Any, start: int, finish: int, order: Any = None) -> None:
        size = fixed_length(dataset)
        self._dataset = dataset
        self._finish = checked_int("finish", finish, minimum=0, maximum=size)
        self._start = checked_int("start", start, minimum=0, maximum=self._finish)
        self._order = checked_order(order, size)

    def __len__(self) -> int:
        return self._finish - self._start

    def get_example(self, i: int) -> Any:
        """Get example ``i`` of the part; IndexError unless ``-len(self) <= i < len(self)``."""
        return self._dataset[self._base_index(i)]

    def __fastiter_columns__(self) -> Columns | None:
        columns, order = columns_of(self._dataset), self._order
        if columns is None:
            return None
        if order is None:
            return columns.at(np.arange(self._start, self._finish, dtype=np.int64))
        if not isinstance(order, np.ndarray) or order.dtype != np.int64:
            return None
        rows = order[self._start : self._finish]
        is_plain = rows.size > 0 and rows.min() >= 0 and rows.max() < len(self._dataset)
        return columns.at(rows) if is_plain else None

    def __fastiter_view__(self) -> tuple[Any, Any] | None:
        if (order := self._order) is None:
            return self._dataset, range(self._start, self._finish)
        if type(order) is not np.ndarray or order.ndim != 1 or order.dtype.kind not in "iu":
            return None
        return self._dataset, order[self._start : self._finish]

    def _base_index(self, i: int) -> Any:
        position = self._start + row_at(i, self._finish - self._start)
        if (order := self._order) is None:
            return position
        if type(order) is np.ndarray and order.ndim == 1:
            return order.item(position)
        return _python_int(order[position])

    def _getitems(self, indices: list[int]) -> list[Any]:
        base = [self._base_index(i) for i in indices]
        if all(type(index) is int and index >= 0 for index in base):
            return fetch(self._dataset, base)
        # An order may hold anything that __getitem__ accepts; __getitems__ accepts integers only.
        return [self._dataset[index] for index in base]


def checked_order(order: Any, size: int) -> Any:
    """Return an order, as an int64 array if it is a list or tuple of integers."""
    if order is not None and not getattr(order, "ndim", hasattr(order, "__len__")):
        raise TypeError(f"order must be a sequence of {size} indices or None, not {order!r:.80}")
    if order is not None and len(order) != size:
        raise ValueError(f"order has {len(order)} indices, expected len(dataset) = {size}")
    if isinstance(order, (list, tuple)) and all(isinstance(i, (int, np.integer)) for i in order):
        with contextlib.suppress(OverflowError):
            return np.array(order, dtype=np.int64)
    return order
