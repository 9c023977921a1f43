"""Joins the columns that a dataset's ``get_examples`` gives, without making examples of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastiter._collate import collate, numpy_fallback
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import FieldRule, Padding
from fastiter._ring.schema import is_plain_number


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
    """Return what `collate.collate` returns for the examples that `examples_of` makes.

    Columns that are arrays of plain numbers are used as they are, and not copied if they are the
    caller's ``own``. ``indices`` of the rows in the dataset are for messages.
    """
    mode = dataset.mode
    names: Sequence[Any] = ()
    if padding.only_fills and columns:
        if mode is tuple:
            names = range(len(columns))
        elif mode is dict and len(dataset.keys) == len(columns):
            names = dataset.keys
        elif mode is None and _is_batch_of(columns[0], padding.padding):
            names = [None]
    if not names:
        examples = examples_of(dataset, columns, n_rows)
        return collate.collate(examples, padding, copy=copy, indices=indices)
    rules = padding.for_fields(mode, names)
    arrays = [
        _join(column, rule, own, name, indices)
        for name, column, rule in zip(names, columns, rules, strict=False)
    ]
    if mode is None:
        return arrays[0]
    return tuple(arrays) if mode is tuple else dict(zip(names, arrays, strict=True))


def _join(column: Any, rule: FieldRule, own: bool, name: Any, indices: Indices | None) -> Any:
    """One column as an array of its own."""
    if _is_batch_of(column, rule.fill):
        return column if own else column.copy()
    values = _values(column, len(column))
    return collate.join_field(values, rule, name, indices=indices)[0]


def _is_batch_of(column: Any, fill: Any) -> bool:
    """Whether joining the values of a column gives the column itself."""
    return (
        type(column) is np.ndarray
        and is_plain_number(column.dtype)
        and numpy_fallback.fill_casts(fill, column.dtype)
    )


def join_parts(parts: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """Join the parts of each column; None if not all parts are arrays that join without examples.

    Arrays in another byte order do not: padding keeps it, and joining does not.
    """
    if any(len(part) != len(parts[0]) for part in parts):
        return None
    for columns in zip(*parts, strict=True):
        column = columns[0]
        if any(
            type(other) is not np.ndarray
            or other.dtype != column.dtype
            or other.shape[1:] != column.shape[1:]
            for other in columns
        ) or not is_plain_number(column.dtype):
            return None
    return tuple(map(np.concatenate, zip(*parts, strict=True)))
