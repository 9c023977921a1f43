"""Datasets that can be read by columns: what tells them, and how their rows are fetched.

There are three ways to fetch many rows at once. `columns_of` knows datasets that are nothing but
arrays: their rows are gathered in C (`_columns.ColumnReader`), and no code of the user's is
involved. `get_examples(indices, key_indices)` gives columns of any making.
``__getitems__(indices)`` gives a list of examples. None of them is used where a subclass has its
own way to make an example.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._collate import collate
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import FieldRule, Padding
from fastiter._fetch.gather import ColumnReader
from fastiter._util.failures import RowCountError

#: What decides about a dataset's examples. A class with ``__fastiter_columns__`` answers for all of
#: these; a subclass that has any of them, and not the method, speaks for itself.
_DECISIVE = frozenset(
    {
        "__fastiter_columns__",
        "__getattribute__",
        "__getitem__",
        "__getitems__",
        "__len__",
        "get_example",
        "get_examples",
        "keys",
        "mode",
    }
)
_INDEXING = frozenset({"__getattribute__", "__getitem__", "__getitems__", "get_example"})


class Column(NamedTuple):
    """One column: an array, or rows of it."""

    array: Any  # whose first axis counts rows; checked by whoever reads it
    rows: npt.NDArray[np.int64] | None = None  # where the dataset's rows are; None: in order

    def at(self, rows: npt.NDArray[np.int64]) -> Column:
        return Column(self.array, rows if self.rows is None else self.rows[rows])


class Columns(NamedTuple):
    """A dataset that is nothing but columns."""

    mode: Any  # tuple, dict, or None: an example is its value in the first column
    keys: tuple[str, ...]
    columns: tuple[Column, ...]
    views: bool  # whether examples share the arrays' memory
    delegates: tuple[tuple[Any, Any], ...] = ()  # (object, what its `dataset` was)

    def at(self, rows: npt.NDArray[np.int64]) -> Columns:
        """The same columns, of a view of these rows."""
        return self._replace(columns=tuple(column.at(rows) for column in self.columns))


def columns_of(dataset: Any) -> Columns | None:
    """The columns of a dataset that says that it is nothing but these, by its method
    ``__fastiter_columns__``; None for any other, and for subclasses and objects with an indexing of
    their own."""
    decisive = _deciding_class(dataset, _DECISIVE)
    find = None if decisive is None else vars(decisive).get("__fastiter_columns__")
    found: Columns | None = None if find is None else find(dataset)
    return found


def _deciding_class(dataset: Any, names: frozenset[str]) -> type | None:
    """The class that defines the first of these names; None if the object itself has one."""
    if not names.isdisjoint(getattr(dataset, "__dict__", ())):
        return None
    for kind in type(dataset).__mro__:
        if not names.isdisjoint(vars(kind)):
            return kind
    return None


class PlainColumns(NamedTuple):
    """A dataset of arrays, and who reads it."""

    reader: ColumnReader
    delegates: tuple[tuple[Any, Any], ...]

    @property
    def is_current(self) -> bool:
        """Whether the dataset still consists of these arrays."""
        return all(delegate.dataset is dataset for delegate, dataset in self.delegates)


def plain_columns(dataset: Any) -> PlainColumns | None:
    """The reader of a dataset of arrays of numbers; None if it is any other."""
    columns = columns_of(dataset)
    if columns is None or not columns.columns:
        return None
    arrays = columns.columns[:1] if columns.mode is None else columns.columns
    if any(type(column.array) is not np.ndarray for column in arrays):
        return None
    return PlainColumns(
        ColumnReader(columns.mode, columns.keys, list(arrays), columns.views), columns.delegates
    )


def rows_getter(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """A function that fetches the examples at a list of indices in one call of the dataset's.

    Returns
    -------
    callable or None
        None if the dataset gives examples one by one only. The function raises `RowCountError` if
        the dataset gives another number of examples; what the dataset raises passes through.
    """
    getitems = getattr(dataset, "__getitems__", None)
    if getitems is not None:
        return lambda indices: _checked_examples(getitems(indices), indices)
    if _has_get_examples(dataset):
        return lambda indices: examples_of(dataset, get_columns(dataset, indices), len(indices))
    return None


def _checked_examples(given: Any, indices: list[int]) -> list[Any]:
    examples = list(given)
    if len(examples) != len(indices):
        raise RowCountError(
            f"dataset.__getitems__ returned {len(examples)} examples for {len(indices)} indices"
        )
    return examples


# ---- get_examples ----------------------------------------------------------------------------


def column_getter(dataset: Any) -> Callable[[list[int]], tuple[Any, ...]] | None:
    """`get_columns` of a dataset that has ``get_examples``; None for any other."""
    if getattr(dataset, "__getitems__", None) is None and _has_get_examples(dataset):
        return lambda indices: get_columns(dataset, indices)
    return None


def _has_get_examples(dataset: Any) -> bool:
    """Whether examples are what ``get_examples`` gives, and nothing else."""
    decisive = _deciding_class(dataset, _INDEXING)
    if decisive is None or not callable(getattr(dataset, "get_examples", None)):
        return False
    if "_examples_come_from_columns" in vars(decisive):
        return True
    # Chainer's own datasets of columns, where Chainer is in use.
    theirs = sys.modules.get("chainer.dataset.tabular.tabular_dataset")
    return theirs is not None and decisive is getattr(theirs, "TabularDataset", None)


def get_columns(dataset: Any, indices: list[int]) -> tuple[Any, ...]:
    """All columns of some rows.

    Raises
    ------
    RowCountError
        If a column has another number of rows.
    """
    columns = tuple(dataset.get_examples(indices, None))
    for column in columns:
        if len(column) != len(indices):
            raise RowCountError(
                f"dataset.get_examples returned a column of {len(column)} rows for "
                f"{len(indices)} indices"
            )
    return columns


def examples_of(dataset: Any, columns: tuple[Any, ...], n_rows: int) -> list[Any]:
    """Examples as the dataset's mode has them, made of columns."""
    mode = dataset.mode
    if mode is None:
        return _values(columns[0], n_rows)
    if not columns:
        rows: list[tuple[Any, ...]] = [()] * n_rows
    else:
        rows = list(zip(*(_values(column, n_rows) for column in columns), strict=True))
    if mode is tuple:
        return rows
    if mode is dict:
        keys = dataset.keys
        return [dict(zip(keys, row, strict=False)) for row in rows]
    return [None] * n_rows


def _values(column: Any, n_rows: int) -> list[Any]:
    if isinstance(column, (list, tuple, np.ndarray)):
        return list(column)
    return [column[row] for row in range(n_rows)]


def collate_columns(
    dataset: Any,
    columns: tuple[Any, ...],
    n_rows: int,
    padding: Padding,
    copy: bool,
    *,
    own: bool = False,
    indices: Indices | None = None,
) -> Any:
    """What `collate.collate` gives for the examples that `examples_of` makes, without making them
    where the columns are arrays. `own`: nobody else has the columns. `indices`: of the rows in the
    dataset, for messages."""
    mode, given = dataset.mode, padding.padding
    fills: Sequence[Any]
    if not padding.only_fills:
        pass
    elif mode is tuple and columns:
        fills = given if isinstance(given, tuple) else (given,) * len(columns)
        if len(fills) >= len(columns):
            return tuple(
                _joined(*pair, own, name, indices)
                for name, pair in enumerate(zip(columns, fills, strict=False))
            )
    elif mode is dict and not isinstance(given, dict):
        keys = dataset.keys
        if len(keys) == len(columns):
            return {
                key: _joined(column, given, own, key, indices)
                for key, column in zip(keys, columns, strict=True)
            }
    elif mode is None and columns and _is_joined(columns[0], given):
        return _joined(columns[0], given, own, None, indices)
    examples = examples_of(dataset, columns, n_rows)
    return collate.collate(examples, padding, copy=copy, indices=indices)


def _joined(column: Any, fill: Any, own: bool, name: Any, indices: Indices | None) -> Any:
    """One column as an array of its own."""
    if _is_joined(column, fill):
        return column if own else column.copy()
    values = _values(column, len(column))
    return collate.join_field(values, FieldRule(fill), name, indices=indices)[0]


def _is_joined(column: Any, fill: Any) -> bool:
    """Whether joining the values of a column gives it as it is."""
    return (
        type(column) is np.ndarray
        and column.dtype.kind in "biufc"
        and column.dtype.isnative
        and column.dtype.metadata is None
        and suits(column.dtype, fill)
    )


def suits(dtype: np.dtype[Any], fill: Any) -> bool:
    """Whether a fill value is one that NumPy casts to ``dtype``."""
    return fill is None or collate.is_fill(fill, np.empty((), dtype))
