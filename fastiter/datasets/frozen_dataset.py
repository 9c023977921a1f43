"""Examples packed into memory that processes share."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np

from fastiter._util.loaded import loaded
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._packed import Column, Records, pack, pack_array
from fastiter.datasets._parts import common_length
from fastiter.datasets.arrow_dataset import ArrowDataset

__all__ = ["FrozenDataset"]


class FrozenDataset(DatasetMixin):
    """Examples packed once into a few arrays, which all worker processes share.

    A forked worker shares the objects of a list or dict with its parent only until it reads them:
    reading an object changes its reference count, which copies its memory page. The arrays of this
    dataset stay shared. Delete the original to save its memory.

    Each fetch makes a new example, equal to the original and of the same types. Packed are str,
    bytes, None, numbers of Python and NumPy, arrays, and nested tuples, lists and dicts of them;
    any other object is pickled, which is slower to read. Arrays are read-only views of the packed
    memory: copy one to change it.

    Parameters
    ----------
    data : sequence, array, dict or frame
        - a list, or any object with ``__len__`` and ``__getitem__``: its examples;
        - an array: its rows;
        - a dict of sequences of one length: dicts, like those of `DictDataset`;
        - a frame (of pandas, Polars or another library, with ``columns``) or an Arrow table: its
          rows, as dicts. Nulls of Polars and Arrow are None.

        A contiguous array is not copied, and must not be changed afterwards.

    Raises
    ------
    TypeError, ValueError
        If ``data`` is of another kind, or a value can be neither packed nor pickled; or if there is
        no column, columns differ in length, or two columns have one name.

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
        """Make example ``i``; IndexError unless ``-len(self) <= i < len(self)``."""
        return self._column[row_at(i, len(self._column))]

    @property
    def nbytes(self) -> int:
        """Size of the packed memory in bytes."""
        arrays: list[pickle.PickleBuffer] = []
        pickle.dumps(self._column, 5, buffer_callback=arrays.append)
        return sum(array.raw().nbytes for array in arrays)


def _column_of(data: Any) -> Column:
    if isinstance(data, Mapping):
        return _dicts(list(data), list(data.values()))
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        names = list(getattr(data, "column_names", data.columns))  # Arrow's columns are arrays
        if len(set(names)) != len(names):
            raise ValueError(f"data has several columns of one name: {names!r:.200}")
        return _dicts(names, [data[name] for name in names])
    return _packed(data)


def _dicts(keys: list[Any], columns: list[Any]) -> Column:
    if not keys:
        raise ValueError("data has no columns: give at least one")
    length = common_length(zip(keys, map(len, columns), strict=True), "columns")
    return Records(dict, [_packed(column) for column in columns], length, tuple(keys))


def _packed(values: Any) -> Column:
    if hasattr(values, "to_numpy"):
        values = _of_frame(values)
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise TypeError("data is an array without dimensions, which has no rows")
        return pack_array(values)
    is_sequence = hasattr(values, "__len__") and hasattr(values, "__getitem__")
    if not is_sequence or isinstance(values, (str, bytes)):
        raise TypeError(
            "data must be a sequence of examples, an array, a dict of columns or a frame, not "
            f"{type(values).__qualname__}"
        )
    return pack([values[i] for i in range(len(values))] if not isinstance(values, list) else values)


def _of_frame(column: Any) -> Any:
    """The values of a column of a frame or table, None, or pandas' NA, where it has nulls: NumPy
    would have floats for integers and nulls, and wrong values for those of a dictionary."""
    if isinstance(column, (loaded("pyarrow", "Array"), loaded("pyarrow", "ChunkedArray"))):
        from pyarrow import BaseExtensionType, types

        kind = column.type
        is_nested = types.is_nested(kind) or isinstance(kind, BaseExtensionType)
        if column.null_count or is_nested or types.is_dictionary(kind):
            return ArrowDataset(column, nulls="none").__getitems__(list(range(len(column))))
        return column.to_numpy(zero_copy_only=False)
    if callable(count := getattr(column, "null_count", None)) and count():  # of Polars
        return column.to_list()
    if getattr(column, "hasnans", False) and not isinstance(column.dtype, np.dtype):  # of pandas
        return column.to_numpy(object)
    dtype = getattr(getattr(column, "dtype", None), "numpy_dtype", np.dtype(object))
    # pandas before 2.2 would choose object.
    return column.to_numpy(dtype) if dtype.kind in "biuf" else column.to_numpy()
