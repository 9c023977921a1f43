"""Joins the columns that a dataset's ``get_examples`` gives, without making examples of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastiter._collate import collate, numpy_fallback
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import FieldRule, Padding, fields_of
from fastiter._ring.schema import ARRAY, is_plain_number


def examples_of(dataset: Any, columns: tuple[Any, ...], n_rows: int) -> list[Any]:
    """Examples as the dataset's mode has them, made of columns."""
    mode = dataset.mode
    if mode is None:
        return _values(columns[0], n_rows)
    values = [_values(column, n_rows) for column in columns]
    rows = list(zip(*values, strict=True)) if columns else [()] * n_rows
    return [dict(zip(dataset.keys, row, strict=False)) for row in rows] if mode is dict else rows


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
    return collate.batch_of(mode, names, [(array, None) for array in arrays])


def _join(column: Any, rule: FieldRule, own: bool, name: Any, indices: Indices | None) -> Any:
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


# ---- columns whose kinds are known ----------------------------------------------------------


def rules_for(
    padding: Padding,
    container: int,
    keys: Sequence[Any] | None,
    specs: Sequence[Any],
    dtypes: Sequence[Any],
) -> list[FieldRule] | None:
    """Rules for the columns of a batch, which are described as in a `Schema`, with fill values of
    their dtypes, 0-d arrays; None if concat_examples makes something else of them, or NumPy warns
    of a fill value's cast."""
    try:
        rules = padding.for_fields(*fields_of(container, keys, len(specs)))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return [_rule(*field) for field in zip(specs, dtypes, rules, strict=True)]
    except (IndexError, KeyError, *numpy_fallback.CAST_ERRORS):  # no padding, or no cast
        return None


def _rule(spec: Any, dtype: Any, rule: FieldRule) -> FieldRule:
    """Raises where columns are not what concat_examples makes of this field."""
    if rule.as_list:
        return rule
    kind, _, shape = spec
    # Of a number: None. Of lists: their number of dimensions.
    ndim = shape if type(shape) is int else len(shape or ())
    fill = None
    if rule.fill is not None:
        fill = numpy_fallback.cast_fill(rule.fill, np.dtype(dtype), ndim)
    if ndim == 0:
        if rule.named is not None:
            raise ValueError(f"{rule.named} is set for a field without an axis")
        return FieldRule(fill)
    is_left = type(rule.fill) is numpy_fallback.OnLeft  # compiled code pads on the right
    if is_left or (kind == ARRAY and not rule.takes_whole(shape[0])):
        raise ValueError("the column is of another length, or padded on the left")
    return rule._replace(fill=fill)


def join_columns(parts: list[tuple[Any, ...]]) -> tuple[Any, ...] | None:
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
