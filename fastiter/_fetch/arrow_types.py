"""Conversion of Arrow types to arrays, lists of arrays, texts, or objects as pyarrow converts them.

The callers import pyarrow: this module gets its objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch.arrow_column import ArrowColumn

Rows = npt.NDArray[np.int64]

_STRINGS = {
    "string": ("lists", (False,), str),
    "large_string": ("lists", (True,), str),
    "string_view": ("views", (), str),
    "binary": ("lists", (False,), bytes),
    "large_binary": ("lists", (True,), bytes),
    "binary_view": ("views", (), bytes),
}
_MOST_SIZES = 32  # of lists in each other: axes of an array, and room in `ArrowColumn`
_LISTS = {"list": False, "large_list": True}


class Layout(NamedTuple):
    """The layout of a type's rows in the buffers: arguments of `ArrowColumn`."""

    layout: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    wide: tuple[bool, ...] = ()
    text: type | None = None
    inner: tuple[int, ...] = ()
    convert: Callable[[Any], Any] | None = None  #: called with each chunk, which then lies so

    @property
    def is_fixed(self) -> bool:
        """Whether all rows are arrays or numbers of one size."""
        return self.text is None and self.layout in ("fixed", "bits", "days")

    def column(
        self, chunks: list[Any], fill: Any = None, row_groups: Any = None, kind: Any = None
    ) -> ArrowColumn:
        """The column of these chunks, Arrow arrays, or of row groups, of the type of the array
        ``kind``. `fill` is put for nulls."""
        arrays = [chunk.__arrow_c_array__()[1] for chunk in chunks]
        layout, dtype, shape, wide, text, inner, _ = self
        kind = None if kind is None else kind.__arrow_c_array__()[0]
        return ArrowColumn(arrays, layout, dtype, shape, wide, text, fill, inner, row_groups, kind)


#: Layouts of numbers that are stored in less room than NumPy's.
_PACKED = {
    "boolean": Layout("bits", np.dtype(bool)),
    "date32": Layout("days", np.dtype("datetime64[D]")),
}


def _kind(arrow_type: Any) -> str:
    """The name of a type, without parameters."""
    import pyarrow.types as types

    if getattr(arrow_type, "extension_name", "") == "arrow.json":
        arrow_type = arrow_type.storage_type  # its values are the texts
    for name in (*_STRINGS, *_LISTS, "fixed_size_list", "fixed_size_binary", "boolean", "date32"):
        if getattr(types, f"is_{name}", lambda _: False)(arrow_type):
            return name
    return ""


def number_dtype(arrow_type: Any) -> np.dtype[Any] | None:
    """The dtype of numbers, dates and times whose bytes are NumPy's; None for other types.

    Times of a zone are stored in UTC, which NumPy's datetime64 means. Times of a day have no dtype.
    """
    import pyarrow.types as types

    if types.is_integer(arrow_type) or types.is_floating(arrow_type):
        is_unsigned = types.is_unsigned_integer(arrow_type)
        kind = "f" if types.is_floating(arrow_type) else "u" if is_unsigned else "i"
        return np.dtype(f"{kind}{arrow_type.bit_width // 8}")
    if types.is_timestamp(arrow_type):
        return np.dtype(f"datetime64[{arrow_type.unit}]")
    if types.is_duration(arrow_type):
        return np.dtype(f"timedelta64[{arrow_type.unit}]")
    return np.dtype("datetime64[ms]") if types.is_date64(arrow_type) else None


def layout_of(arrow_type: Any) -> Layout | None:
    """The layout of a type; None if pyarrow has to convert its values."""
    kind = _kind(arrow_type)
    dtype = number_dtype(arrow_type)
    if dtype is not None:
        return Layout("fixed", dtype)
    if kind in _PACKED:
        return _PACKED[kind]
    if kind in _STRINGS:
        name, wide, text = _STRINGS[kind]
        return Layout(name, np.dtype(np.uint8), (), wide, text)
    if kind == "fixed_size_binary":
        return Layout("fixed", np.dtype(np.uint8), (arrow_type.byte_width,), (), bytes)
    if kind == "fixed_size_list":
        return _fixed_lists(arrow_type)
    if kind in _LISTS:
        return _lists(arrow_type)
    if is_tensor(arrow_type):
        layout = _fixed_lists(arrow_type.storage_type)
        if layout is not None:
            ordered = range(len(arrow_type.shape))
            places = list(arrow_type.permutation or ordered)
            shape = tuple(arrow_type.shape[place] for place in places)
            convert = layout.convert if places == list(ordered) else permuted
            return layout._replace(shape=shape, convert=convert)
    return None


def _elements(arrow_type: Any) -> tuple[np.dtype[Any] | None, Any]:
    """The dtype of lists' elements, None if they have none, and `Layout.convert` of such lists."""
    packed = _PACKED.get(_kind(arrow_type))
    return (number_dtype(arrow_type), None) if packed is None else (packed.dtype, unpacked)


def _fixed_lists(arrow_type: Any) -> Layout | None:
    """Of lists of a fixed size in each other, with numbers in the innermost ones."""
    sizes = []
    while _kind(arrow_type) == "fixed_size_list":
        sizes.append(arrow_type.list_size)
        arrow_type = arrow_type.value_type
    dtype, convert = _elements(arrow_type)
    if dtype is None or 0 in sizes or len(sizes) >= _MOST_SIZES:
        return None
    return Layout("fixed", dtype, tuple(sizes), inner=tuple(sizes), convert=convert)


def _lists(arrow_type: Any) -> Layout | None:
    """Of lists, or lists of lists, of numbers."""
    wide = []
    while _kind(arrow_type) in _LISTS:
        wide.append(_LISTS[_kind(arrow_type)])
        arrow_type = arrow_type.value_type
    dtype, convert = _elements(arrow_type)
    if dtype is None or len(wide) > 2:
        return None
    is_read = dtype.kind == "b" and len(wide) == 1  # as it is: `ArrowColumn` takes these bits
    return Layout("lists", dtype, wide=tuple(wide), convert=None if is_read else convert)


# ---- objects ---------------------------------------------------------------------------------


class ObjectColumn:
    """A column whose values pyarrow converts, one by one. ``fill`` replaces None."""

    def __init__(
        self, chunked: Any, fill: Any = None, rows: ArrayRows | None = None, has_none: bool = False
    ) -> None:
        self._chunked = chunked
        self._fill = fill
        self._rows = rows
        #: whether rows are arrays, of lengths of their own
        self.is_array = rows is not None and not has_none
        self.dtype = None if rows is None else rows.dtype
        self.row_groups = getattr(chunked, "row_groups", None)
        self._has_intervals = "month_day_nano_interval" in str(chunked.type)

    def __len__(self) -> int:
        return len(self._chunked)

    def values(self, rows: Rows) -> list[Any]:
        values = [self._chunked[row].as_py() for row in rows.tolist()]
        if self._has_intervals:
            values = [_without_intervals(value) for value in values]
        if self._rows is not None:
            values = [None if value is None else self._rows.array(value) for value in values]
        return values if self._fill is None else [self._fill if v is None else v for v in values]


def _without_intervals(value: Any) -> Any:
    """A value with tuples for pyarrow's intervals of months, days and nanoseconds, which cannot be
    pickled."""
    if isinstance(value, dict):
        return {name: _without_intervals(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_without_intervals(each) for each in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value


class DictionaryColumn:
    """A column of codes, and their values, which all rows share."""

    def __init__(self, codes: ArrowColumn, values: list[Any]) -> None:
        self._codes = codes
        self._values = values

    def __len__(self) -> int:
        return len(self._codes)

    def values(self, rows: Rows) -> list[Any]:
        codes = self._codes.take(rows)
        if len(codes) and not 0 <= codes.min() <= codes.max() < len(self._values):
            raise ValueError(
                f"a dictionary of {len(self._values)} values has codes from {codes.min()} to "
                f"{codes.max()}: the data is damaged"
            )
        return [self._values[code] for code in codes.tolist()]


class OptionalColumn:
    """A column of arrays of one shape, with None for nulls."""

    def __init__(self, column: ArrowColumn, valid: ArrowColumn) -> None:
        self._column, self._valid = column, valid
        self.row_groups = column.row_groups

    def __len__(self) -> int:
        return len(self._column)

    def values(self, rows: Rows) -> list[Any]:
        found = zip(self._column.take(rows), self._valid.take(rows), strict=True)
        return [value if is_there else None for value, is_there in found]


# ---- arrays ----------------------------------------------------------------------------------


class ArrayRows(NamedTuple):
    """Rows that are arrays, of Hugging Face's Array2D to Array5D: their shape and dtype."""

    shape: tuple[int | None, ...]  #: the first may be None, of any length
    dtype: np.dtype[Any]

    @property
    def layout(self) -> Layout | None:
        """Layout of `flattened` rows; None if their lengths differ."""
        if None in self.shape or 0 in self.shape:
            return None
        size = math.prod(n for n in self.shape if n is not None)
        return Layout("fixed", self.dtype, self.shape, inner=(size,))  # type: ignore[arg-type]

    def array(self, value: Any) -> Any:
        """A row, of lists in lists."""
        return np.array(value, self.dtype).reshape(-1, *self.shape[1:])


def is_tensor(arrow_type: Any) -> bool:
    """Whether it is Arrow's type of tensors of one shape."""
    return bool(getattr(arrow_type, "extension_name", "") == "arrow.fixed_shape_tensor")


def array_rows(field: Any) -> ArrayRows | None:
    """The arrays that the rows of a field are; None of other types than Array2D to Array5D. Where
    `datasets` is not imported, the type stands in the field's metadata."""
    import json

    kind, metadata = field.type, field.metadata or {}
    name = getattr(kind, "extension_name", metadata.get(b"ARROW:extension:name", b"").decode())
    if not (name.startswith("datasets.features.features.Array") and name.endswith("ExtensionType")):
        return None
    if hasattr(kind, "storage_type"):
        shape, kind = kind.shape, kind.storage_type
    else:
        shape = json.loads(metadata[b"ARROW:extension:metadata"])[0]
    while _kind(kind) in _LISTS:
        kind = kind.value_type
    dtype, _ = _elements(kind)
    return None if dtype is None else ArrayRows(tuple(shape), dtype)


_BLOCK = 1 << 20  # offsets that are looked at together


def check_shape(array: Any, shape: tuple[int, ...]) -> bool:
    """Whether all lists in lists, of rows that are not null, have the lengths of a shape."""
    elements = getattr(array, "storage", array).drop_null()
    for length in shape:
        offsets = elements.offsets
        for start in range(0, len(elements), _BLOCK):
            if (np.diff(offsets.slice(start, _BLOCK + 1).to_numpy()) != length).any():
                return False
        elements = elements.flatten()
    return True


def flattened(shape: tuple[int, ...], array: Any) -> Any:
    """Rows of lists in lists, which have all the lengths of a shape, as lists of a fixed size."""
    import pyarrow as pa

    storage = getattr(array, "storage", array)
    elements = storage.drop_null() if storage.null_count else storage
    for _ in shape:
        elements = elements.flatten()
    elements, size = unpacked(elements), math.prod(shape)
    if not storage.null_count:
        return pa.FixedSizeListArray.from_arrays(elements, size)
    return _spread(elements.to_numpy().reshape(-1, size), is_valid(array), elements.type)


def permuted(array: Any) -> Any:
    """Tensors whose axes are stored in another order, as lists of a fixed size."""
    kind = array.type
    storage = unpacked(array).drop_null()
    rows = storage.flatten().to_numpy().reshape(-1, *kind.shape)
    rows = rows.transpose(0, *(1 + place for place in kind.permutation))
    rows = np.ascontiguousarray(rows).reshape(len(storage), math.prod(kind.shape))
    return _spread(rows, is_valid(array), storage.type.value_type)


def unpacked(array: Any) -> Any:
    """Lists or tensors with bytes for bits and int64 for days, so that they lie as NumPy's."""
    import pyarrow as pa

    array = getattr(array, "storage", array)
    kind = _kind(array.type)
    if kind == "boolean":
        return array.cast(pa.uint8())
    if kind == "date32":
        return array.cast(pa.int32()).cast(pa.int64())
    if not kind:
        return array
    child, size = unpacked(array.values), getattr(array.type, "list_size", -1)
    made = pa.large_list(child.type) if kind == "large_list" else pa.list_(child.type, size)
    buffers = array.buffers()[: made.num_buffers]
    return pa.Array.from_buffers(made, len(array), buffers, offset=array.offset, children=[child])


def _spread(rows: npt.NDArray[Any], valid: Any, kind: Any) -> Any:
    """Lists of a fixed size: the rows where it is valid, else null."""
    import pyarrow as pa

    places = valid.to_numpy(zero_copy_only=False)
    every = np.zeros((len(places), rows.shape[1]), rows.dtype)
    every[places] = rows
    given = pa.array(every.ravel(), kind)
    return pa.FixedSizeListArray.from_arrays(given, rows.shape[1], mask=pa.array(~places))


# ---- nulls -----------------------------------------------------------------------------------


def null_elements(array: Any) -> npt.NDArray[np.bool_] | None:
    """For each row of an Arrow array whether a list in it, at any depth, has a null element; None
    if no list has one. Values that pyarrow converts are not checked."""
    import pyarrow.compute as compute

    storage = getattr(array, "storage", array)
    if _kind(storage.type) not in (*_LISTS, "fixed_size_list"):
        return None
    elements = storage.flatten()
    deeper = null_elements(elements)
    if elements.null_count == 0 and deeper is None:
        return None
    is_null = compute.is_null(elements).to_numpy(zero_copy_only=False)
    is_null = is_null if deeper is None else is_null | deeper
    found: npt.NDArray[np.bool_] = np.zeros(len(array), dtype=bool)
    found[compute.list_parent_indices(storage).to_numpy()[is_null]] = True
    return found


#: how the column lies that tells where another is not null
VALID = Layout("bits", np.dtype(bool))


def is_valid(array: Any) -> Any:
    """A mask of the values of an Arrow array that are not null."""
    return array.is_valid()


def has_nulls(array: Any) -> bool:
    """Whether an Arrow array has nulls, or lists in it have."""
    storage = getattr(array, "storage", array)
    is_list = _kind(storage.type) in (*_LISTS, "fixed_size_list")
    return bool(storage.null_count or (is_list and has_nulls(storage.values)))


def check_padding(name: str, fill: Any, dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless a column's dtype has a value."""
    try:
        given = np.asarray(fill)
        if dtype.kind in "mM":
            cast = np.array(fill, dtype)
            is_exact = given.dtype.kind in "iuU" or (cast == given) | np.isnat(cast)
            fits = given.dtype.kind not in "bfc" and bool(np.all(is_exact))
        else:
            fits = given.dtype.kind in "biuf" and _converts(given, dtype)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits:
        raise ValueError(
            f"padding of column {name!r} is {fill!r:.80}, which is no value of dtype {dtype}"
        )


def _converts(given: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether numbers are the same in another dtype; floats may be rounded, not to infinity."""
    with np.errstate(all="ignore"):
        cast = given.astype(dtype)
    rounds = (dtype.kind == "f") & (np.isfinite(cast) | ~np.isfinite(given))
    return bool(np.all((cast == given) | rounds))


def zero_of(arrow_type: Any) -> Any:
    """Value in the place of a null that is no number, if a field marks valid rows."""
    import pyarrow.types as types

    kind = _kind(arrow_type.value_type if types.is_dictionary(arrow_type) else arrow_type)
    if kind in _STRINGS:
        return _STRINGS[kind][2]()
    return [] if kind in _LISTS else None


def first_row(chunks: list[Any], rows: Rows | None, find: Callable[[Any], Any]) -> int | None:
    """The first of ``rows`` (None: of all) for which ``find(chunk)``, a bool array or None, is
    true."""
    start = 0
    flags: npt.NDArray[np.bool_] | None = None
    length = sum(map(len, chunks))
    for chunk in chunks:
        found = find(chunk)
        if found is not None and found.any():
            if rows is None:
                return start + int(found.argmax())
            if flags is None:
                flags = np.zeros(length, dtype=bool)
            flags[start : start + len(chunk)] = found
        start += len(chunk)
    if flags is None or rows is None:
        return None
    exposed = flags[rows]
    return int(exposed.argmax()) if exposed.any() else None


def null_rows(array: Any) -> npt.NDArray[np.bool_] | None:
    """For each row of an Arrow array whether it is null; None if none is."""
    if array.null_count == 0 and (_kind(array.type) or number_dtype(array.type) is not None):
        return None
    flags: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return flags
