"""Infers the schema of a dataset from its first examples."""

from __future__ import annotations

import copyreg
import pickle
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fastiter._ring.schema import (
    ARRAY,
    BARE,
    BOOL,
    COPYABLE,
    DICT,
    FLOAT,
    INT,
    LIST,
    MOST_FIELDS,
    NAMED,
    OBJECT,
    RAGGED,
    SCALAR,
    TEXT,
    TREE,
    TUPLE,
    Schema,
    dtype_traits,
)
from fastiter._util import array_subtypes

# Kind, dtype, and shape or number of dimensions. A field only ever becomes more general:
# ARRAY, RAGGED, OBJECT.
Spec = tuple[int, Any, Any]

_MOST_NDIM = 31  # a batch has one more, and NumPy 1 allows 32

_OBJECT: Spec = (OBJECT, None, None)
_CONTAINERS: dict[type[Any], int] = {tuple: TUPLE, list: LIST, dict: DICT}


def _field_of(values: Sequence[Any]) -> Spec:
    """(kind, dtype, shape or ndim) that fits all values."""
    first = values[0]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        return _OBJECT
    if kind is np.ndarray:
        dtype, ndim = first.dtype, first.ndim
        if ndim > _MOST_NDIM or any(
            v.dtype != dtype or v.ndim != ndim or not dtype_traits(v.dtype) & COPYABLE
            for v in values
        ):
            return _OBJECT
        if all(value.shape == first.shape for value in values):
            return ARRAY, dtype, first.shape
        return RAGGED, dtype, ndim
    if kind is int and all(-(1 << 63) <= value < 1 << 63 for value in values):
        return INT, None, None
    if kind in (float, bool):
        return FLOAT if kind is float else BOOL, None, None
    if isinstance(first, np.generic):
        dtype = first.dtype
        if (
            dtype_traits(dtype) & COPYABLE
            and dtype.kind in "biufcmM"
            and dtype.type is kind
            and all(value.dtype == dtype for value in values)
        ):
            return SCALAR, dtype, None
    return _OBJECT


def _is_named_tuple(kind: type) -> bool:
    """Whether this is a named tuple whose objects are their items and nothing else.

    True of what collections.namedtuple and typing.NamedTuple make, and of slotted subclasses, if
    other processes can import the type.
    """
    return (
        issubclass(kind, tuple)
        and isinstance(getattr(kind, "_fields", None), tuple)
        and type(kind) is type
        and kind.__dictoffset__ == 0
        and kind.__basicsize__ == tuple.__basicsize__
        and kind not in copyreg.dispatch_table
        and all(getattr(kind, name, None) is getattr(object, name, None) for name in _OWN_PICKLES)
        and _is_importable(kind)
    )


# A class that defines one of these has its objects pickled and copied in a way of its own.
_OWN_PICKLES = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")


def _is_importable(kind: type) -> bool:
    try:
        return pickle.loads(pickle.dumps(kind)) is kind
    except Exception:
        return False


def derive_schema(examples: Sequence[Any], rows: int) -> Schema:
    container, keys, columns = _parts_of(examples)
    if len(columns) > MOST_FIELDS:
        container, keys, columns = BARE, None, [examples]
    specs, subtypes = _specs_of(columns)
    return Schema(container, keys, specs, rows, subtypes)


def derive_tree(examples: Sequence[Any], rows: int) -> Schema | None:
    """The schema of examples of containers in containers that fits all of `examples`, with a field
    for each leaf; None if their containers differ, or a leaf is no array, number or text."""
    columns: list[Sequence[Any]] = []
    tree = _tree_of(examples, columns)
    if len(columns) > MOST_FIELDS:
        return None
    specs, subtypes = _specs_of(columns, has_texts=True)
    if _OBJECT in specs:
        return None
    return Schema(BARE if tree is None else TREE, tree, specs, rows, subtypes)


def _tree_of(values: Sequence[Any], columns: list[Sequence[Any]]) -> Any:
    """The node of the containers in one place of all examples, whose leaves go to `columns`; None
    if they are no such containers, but leaves themselves."""
    container, keys, parts = _parts_of(values)
    if container == BARE:
        columns.append(values)
        return None
    return container, keys, tuple(_tree_of(part, columns) for part in parts)


def _parts_of(values: Sequence[Any]) -> tuple[int, Any, list[Sequence[Any]]]:
    """The container that all values are, its keys or type, and their items, place by place. Without
    such a container: BARE, and the values themselves."""
    first = values[0]
    kind: type[Any] = type(first)
    container = _CONTAINERS.get(kind, NAMED if _is_named_tuple(kind) else BARE)
    keys: Any = kind if container == NAMED else None
    if (
        container == BARE
        or not first
        or any(type(value) is not kind or len(value) != len(first) for value in values)
    ):
        return BARE, None, [values]
    names: Iterable[Any] = range(len(first))
    if container == DICT:
        names = keys = tuple(first)
        if any(type(key) not in (str, int) for key in keys) or any(
            tuple(value) != keys for value in values
        ):
            return BARE, None, [values]
    return container, keys, [[value[name] for value in values] for name in names]


def _specs_of(
    columns: Iterable[Sequence[Any]], has_texts: bool = False
) -> tuple[list[Spec], dict[int, int]]:
    """The spec of each field, and the subtypes of `Schema`. With `has_texts`, a field of texts and
    bytes is one of these."""
    specs: list[Spec] = []
    subtypes = {}
    for number, values in enumerate(columns):
        if has_texts and all(type(value) in (str, bytes) for value in values):
            specs.append((TEXT, None, None))
            continue
        arrays, subtype = array_subtypes.arrays_of(values)
        specs.append(_field_of(arrays))
        if subtype != array_subtypes.NONE and specs[-1] != _OBJECT:
            subtypes[number] = subtype
    return specs, subtypes


def _merge_fields(a: Spec, b: Spec) -> Spec:
    if a == b:
        return a
    if a[0] in (ARRAY, RAGGED) and b[0] in (ARRAY, RAGGED) and a[1] == b[1]:
        ndims = [spec[2] if spec[0] == RAGGED else len(spec[2]) for spec in (a, b)]
        if ndims[0] == ndims[1] > 0:
            return RAGGED, a[1], ndims[0]
    return _OBJECT


def merge_schemas(a: Schema, b: Schema) -> Schema:
    """The narrowest schema that fits what either of two schemas fits.

    It never becomes narrower again, so a dataset changes its schema a few times at most.
    """
    kinds = [(schema.container, schema.type, schema.keys, len(schema.specs)) for schema in (a, b)]
    if kinds[0] != kinds[1]:
        return Schema(BARE, None, [_OBJECT], max(a.rows, b.rows))
    specs = list(map(_merge_fields, a.specs, b.specs))
    for number, _ in a.subtypes.items() ^ b.subtypes.items():  # tensors here, arrays there
        specs[number] = _OBJECT
    subtypes = {n: subtype for n, subtype in a.subtypes.items() if specs[n] != _OBJECT}
    return Schema(a.container, a.type or a.keys, specs, max(a.rows, b.rows), subtypes)


def are_many(n_irregular: int, n_rows: int) -> bool:
    """Whether the rows that fit no column are enough of a batch to change the columns."""
    return 8 * n_irregular >= n_rows


def room_for(n_rows: int, most: int) -> int:
    """Rows of columns for batches of up to ``most`` examples, of which one has ``n_rows``."""
    return min(1 << (n_rows - 1).bit_length(), most)


class ColumnLearner:
    """Learns the columns of later batches from the rows that do not fit those of now.

    Batches have `rows` at most, which may be far more than any has: columns have room for those
    that came. They change `n_most` times. Of two threads that learn at once, what one has learnt
    may be lost until its next batch.
    """

    def __init__(self, rows: int, n_most: int = sys.maxsize) -> None:
        self._rows, self._n_left = rows, n_most
        self.schema: Schema | None = None  # of later batches

    def learn(self, used: Schema | None, n_rows: int, irregular: Sequence[Any]) -> Schema | None:
        """Learn from the examples of a batch that did not fit its columns `used`; return the new
        columns, or None if they stay the same."""
        known = self.schema
        is_larger = known is not None and n_rows > known.rows
        # A batch that was begun before what has been learnt since tells nothing.
        if (used is not known and not is_larger) or not self._n_left:
            return None
        if not are_many(len(irregular), n_rows):
            return None
        schema = derive_schema(irregular, room_for(n_rows, self._rows))
        if known is not None:
            schema = merge_schemas(known, schema)
            if schema.parts == known.parts:
                return None
        self.use(schema)
        return schema

    def use(self, schema: Schema | None) -> None:
        """Use these columns from now on: they are known without examples."""
        self.schema, self._n_left = schema, self._n_left - 1
