"""Examples packed into memory that processes share."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets._packed import Column, Dicts, pack, pack_array

__all__ = ["FrozenDataset"]


class FrozenDataset(DatasetMixin):
    """Examples packed once into a few arrays, which all worker processes share.

    A list or dict of Python objects is copied bit by bit into each worker, even if that was
    forked: whoever reads an object writes its reference count, and with it copies its page.
    Here, memory stays the same however many workers read. Drop the original to save its memory.

    Examples are equal to the original ones and of the same types, and made anew each time. str,
    bytes, None, Python's and NumPy's numbers, arrays, and tuples, lists and dicts of them, nested
    at will, are packed; anything else is pickled one by one, which is slower to read.
    Arrays are read-only views of the packed memory: copy one to change it.

    Parameters
    ----------
    data : sequence, array, dict or frame
        - a list, or anything else with ``__len__`` and ``__getitem__``: its examples;
        - an array: its rows;
        - a dict of sequences of one length: dicts, as `DictDataset` gives them;
        - a frame (of pandas, Polars or alike, with ``columns``) or a table of Arrow: its rows, as
          dicts.

        A contiguous array is not copied: it must not be changed from then on.

    Raises
    ------
    TypeError
        If it is none of these, or a value can be neither packed nor pickled.
    ValueError
        If columns differ in length, two have one name, or there is none.

    Examples
    --------
    >>> dataset = FrozenDataset([("a.png", 3), ("b.png", 5)])
    >>> dataset[1], dataset[-2:]
    (('b.png', 5), [('a.png', 3), ('b.png', 5)])
    """

    def __init__(self, data: Any) -> None:
        self._column = _column_of(data)

    def __len__(self) -> int:
        return len(self._column)

    def get_example(self, i: int) -> Any:
        """Make example ``i``; negative indices count from the end, IndexError beyond them."""
        size = len(self._column)
        if not -size <= i < size:
            raise IndexError(f"index {i} is outside of a dataset of {size} examples")
        return self._column[operator.index(i) % size]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed memory."""
        return sum(array.nbytes for array in self._column.arrays())


def _column_of(data: Any) -> Column:
    if isinstance(data, np.ndarray):
        if data.ndim == 0:
            raise TypeError("data is an array without dimensions, which has no rows")
        return pack_array(data)
    if isinstance(data, Mapping):
        return _dicts(list(data), list(data.values()))
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        names = list(getattr(data, "column_names", data.columns))  # Arrow's columns are arrays
        if len(set(names)) != len(names):
            raise ValueError(f"the frame has several columns of one name: {names}")
        return _dicts(names, [data[name] for name in names])
    return _packed(data)


def _dicts(keys: list[Any], columns: list[Any]) -> Column:
    if not keys:
        raise ValueError("data has no columns: give at least one")
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        each = ", ".join(f"{key!r}: {n}" for key, n in zip(keys, lengths, strict=True))
        raise ValueError(f"columns must be equally long, but their lengths are {each}")
    return Dicts(tuple(keys), [_packed(column) for column in columns], lengths[0])


def _packed(values: Any) -> Column:
    if hasattr(values, "to_numpy"):  # a column of a frame
        values = values.to_numpy()
    if isinstance(values, np.ndarray):
        return pack_array(values)
    if isinstance(values, (str, bytes)) or not (
        hasattr(values, "__len__") and hasattr(values, "__getitem__")
    ):
        raise TypeError(
            "data must be a sequence of examples, an array, a dict of columns or a frame, not "
            f"{type(values).__qualname__}"
        )
    if not isinstance(values, list):
        values = [values[i] for i in range(len(values))]
    return pack(values)
