"""A part of a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter._util.arguments import checked_int
from fastiter.dataset.mixin import DatasetMixin, _python_int
from fastiter.datasets import _batched

__all__ = ["SubDataset"]


class SubDataset(DatasetMixin):
    """The examples ``order[start:finish]`` of a dataset, or ``start:finish`` without an order.

    Negative indices count from the end, as in a list.

    Parameters
    ----------
    dataset : sequence
        Has ``__len__`` and ``__getitem__``. If it has ``__getitems__``, this one has it too.
    start, finish : int
        The part's first position and the one after its last, ``0 <= start <= finish <=
        len(dataset)``.
    order : sequence of int, optional
        Indices into the dataset, as many as it has examples. Arrays are kept as they are, lists
        and tuples of integers as arrays of their own (8 bytes per example, which worker
        processes can share).

    Raises
    ------
    TypeError
        If ``start`` or ``finish`` is no integer.
    ValueError
        If the part reaches beyond the dataset, or the order has another length.

    Examples
    --------
    >>> part = SubDataset("abcd", 1, 3, order=[3, 2, 1, 0])
    >>> part[:], part[-1]
    (['c', 'b'], 'b')
    """

    def __init__(self, dataset: Any, start: int, finish: int, order: Any = None) -> None:
        size = len(dataset)
        start = checked_int("start", start, minimum=0)
        finish = checked_int("finish", finish, minimum=0)
        if not start <= finish <= size:
            raise ValueError(
                f"start {start} and finish {finish} are no part of a dataset of {size} examples: "
                "0 <= start <= finish <= len(dataset) must hold"
            )
        if order is not None and len(order) != size:
            raise ValueError(
                f"order has {len(order)} indices and the dataset {size} examples: they must be "
                "as many"
            )
        self._dataset = dataset
        self._start = start
        self._finish = finish
        self._order = packed_order(order)

    def __len__(self) -> int:
        return self._finish - self._start

    def get_example(self, i: int) -> Any:
        """Get example ``i`` of the part; IndexError unless ``-len(self) <= i < len(self)``."""
        return self._dataset[self._base_index(i)]

    @property
    def __getitems__(self) -> _batched.Getitems:
        """Get the examples at a list of indices, with one call to the dataset below."""
        if not _batched.offered(self, SubDataset, [self._dataset]):
            raise _batched.refused(self)
        return self._getitems

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

    def _base_index(self, i: int) -> Any:
        size = self._finish - self._start
        if not -size <= i < size:
            raise IndexError(f"index {i} is outside of a dataset of {size} examples")
        position = (self._start if i >= 0 else self._finish) + i
        order = self._order
        if order is None:
            return position
        if type(order) is np.ndarray and order.ndim == 1:
            return order.item(position)
        return _python_int(order[position])

    def _getitems(self, indices: list[int]) -> list[Any]:
        base = [self._base_index(i) for i in indices]
        if all(type(index) is int and index >= 0 for index in base):
            return _batched.fetch(self._dataset, base)
        # What else an order may hold, __getitem__ alone is known to understand.
        return [self._dataset[index] for index in base]


def packed_order(order: Any) -> Any:
    """``order``, as an int64 array where it is a list or tuple of integers."""
    if not isinstance(order, (list, tuple)) or not all(
        isinstance(index, (int, np.integer)) for index in order
    ):
        return order
    try:
        return np.array(order, dtype=np.int64)
    except OverflowError:
        return order
