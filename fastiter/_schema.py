"""What the examples of a dataset have in common, found out from the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastiter._rows import (
    ARRAY,
    BARE,
    BOOL,
    DICT,
    FLOAT,
    INT,
    LIST,
    OBJECT,
    RAGGED,
    SCALAR,
    TUPLE,
    Schema,
)

# Kind, dtype, and shape or number of dimensions. A field only ever becomes more general:
# ARRAY, RAGGED, OBJECT.
Spec = tuple[int, Any, Any]

_MOST_FIELDS = 64
_MOST_NDIM = 31  # a batch has one more, and NumPy 1 allows 32


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """True if bytes of this dtype may be copied and mean the same elsewhere."""
    return (
        type(dtype).__module__.startswith("numpy")
        and dtype.num in range(24)
        and not dtype.hasobject
        and not dtype.metadata
    )


def _field_of(values: Sequence[Any]) -> Spec:
    """(kind, dtype, shape or ndim) that fits all values."""
    first = values[0]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        return OBJECT, None, None
    if kind is np.ndarray:
        dtype, ndim = first.dtype, first.ndim
        if (
            ndim > _MOST_NDIM
            or not _is_plain(dtype)
            or any(v.dtype != dtype or v.ndim != ndim or not _is_plain(v.dtype) for v in values)
        ):
            return OBJECT, None, None
        if all(value.shape == first.shape for value in values):
            return ARRAY, dtype, first.shape
        return RAGGED, dtype, ndim
    if kind is int:
        fits = all(-(1 << 63) <= value < 1 << 63 for value in values)
        return (INT, None, None) if fits else (OBJECT, None, None)
    if kind is float:
        return FLOAT, None, None
    if kind is bool:
        return BOOL, None, None
    if isinstance(first, np.generic):
        dtype = first.dtype
        if (
            _is_plain(dtype)
            and dtype.kind in "biufcmM"
            and dtype.type is kind
            and all(value.dtype == dtype for value in values)
        ):
            return SCALAR, dtype, None
    return OBJECT, None, None


def derive_schema(examples: Sequence[Any], rows: int) -> Schema:
    """The schema that fits all of `examples`."""
    first = examples[0]
    kind = type(first)
    whole = Schema(BARE, None, [(OBJECT, None, None)], rows)
    if kind not in (tuple, list, dict):
        return Schema(BARE, None, [_field_of(examples)], rows)
    size = len(first)
    if not 0 < size <= _MOST_FIELDS or any(
        type(example) is not kind or len(example) != size for example in examples
    ):
        return whole
    if kind is dict:
        keys = tuple(first)
        if any(type(key) not in (str, int) for key in keys) or any(
            tuple(example) != keys for example in examples
        ):
            return whole
        fields = [[example[key] for example in examples] for key in keys]
        return Schema(DICT, keys, map(_field_of, fields), rows)
    container = TUPLE if kind is tuple else LIST
    return Schema(container, None, map(_field_of, zip(*examples, strict=True)), rows)


def _merge_fields(a: Spec, b: Spec) -> Spec:
    if a == b:
        return a
    if a[0] in (ARRAY, RAGGED) and b[0] in (ARRAY, RAGGED) and a[1] == b[1]:
        ndims = [spec[2] if spec[0] == RAGGED else len(spec[2]) for spec in (a, b)]
        if ndims[0] == ndims[1] > 0:
            return RAGGED, a[1], ndims[0]
    return OBJECT, None, None


def merge_schemas(a: Schema, b: Schema) -> Schema:
    """The narrowest schema that fits what either fits. It never moves back, so a dataset
    changes its schema a few times at most."""
    if a.container != b.container or a.keys != b.keys or len(a.specs) != len(b.specs):
        return Schema(BARE, None, [(OBJECT, None, None)], a.rows)
    return Schema(a.container, a.keys, map(_merge_fields, a.specs, b.specs), a.rows)
