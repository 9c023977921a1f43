"""The fields of an example that is stored outside of a ring, for `SlotRows`, which copies them into
the columns of a slot without the object.

Each array is the offset of its bytes and its dimensions, all int64; each number its bytes, up to a
multiple of 8.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fastiter._clib import status
from fastiter._ring.infer_schema import derive_schema
from fastiter._ring.schema import (
    ARRAY,
    BARE,
    BOOL,
    DICT,
    FLOAT,
    INT,
    OBJECT,
    RAGGED,
    TEXT,
    TREE,
    Schema,
)
from fastiter._ring.serialization import Packed
from fastiter._util import array_subtypes

MOST_BYTES = 960  # of the fields of an example; more are not looked for
_UNIT = 64


def signature_of(schema: Schema | None) -> int:
    """A number which those schemas have in common that the fields of the same examples may fit, if
    their shapes do; 0 if examples have to be objects."""
    if schema is None or schema.container == TREE:
        return 0
    parts: list[Any] = []
    size = 0
    specs: tuple[Any, ...] = schema.specs
    for number, (kind, dtype, shape) in enumerate(specs):
        subtype = schema.subtypes.get(number, array_subtypes.NONE)
        if kind in (OBJECT, TEXT) or subtype == array_subtypes.MEMMAP:
            return 0
        if dtype is not None and (dtype.kind == "V" or not dtype.itemsize):
            return 0
        is_array = kind in (ARRAY, RAGGED)
        ndim = len(shape) if kind == ARRAY else shape
        parts.append((is_array or kind, None if dtype is None else dtype.str, ndim, subtype))
        size += 8 * (1 + ndim) if is_array else 8 if dtype is None else -(-dtype.itemsize // 8) * 8
    if size > MOST_BYTES:
        return 0
    own: Any = schema.type
    named = None if own is None else f"{own.__module__}.{own.__qualname__}"
    text = repr((schema.container, schema.keys, named, parts)).encode()
    return status.checksum(text, 0, len(text), 0) or 1


def fields_of(example: Any, packed: Packed) -> tuple[int, bytes]:
    """The signature and the fields of an example that is packed right behind them; 0 and no bytes
    if only the object will do."""
    schema = derive_schema([example], 1)
    signature = signature_of(schema)
    if not signature:
        return 0, b""
    values = [example]
    if schema.container != BARE:
        values = list(example.values()) if schema.container == DICT else list(example)
    parts: list[bytes] = []
    places: list[tuple[int, int]] = []  # of an offset among the parts, and the offset
    for value, (kind, _, shape) in zip(values, schema.specs, strict=True):
        if kind == ARRAY:
            array = np.asarray(array_subtypes.unwrap([value])[0])
            offset = packed.offset_of(array) if array.size else 0
            if offset < 0:
                return 0, b""
            places.append((len(parts), offset))
            parts.append(b"")
            parts.append(np.array(shape, np.int64).tobytes())
        else:
            number: Any = {INT: np.int64, FLOAT: np.float64, BOOL: np.bool_}.get(kind)
            data = np.asarray(value, number).tobytes()
            parts.append(data + bytes(-len(data) % 8))
    size = 8 * len(places) + sum(map(len, parts))
    size += -size % _UNIT
    for place, offset in places:
        parts[place] = np.int64(size + offset).tobytes()
    return signature, b"".join(parts).ljust(size, b"\0")
