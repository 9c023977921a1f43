"""What Arrow types become: arrays, lists of arrays, texts, or objects as pyarrow converts them.

pyarrow is imported by those who call: what is given here are its objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch.arrow_column import ArrowColumn

Rows = npt.NDArray[np.int64]
Values = Callable[[Rows], list[Any]]

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


class Options(NamedTuple):
    """How the columns of one dataset are read."""

    dictionaries: str = "values"
    strings: str = "str"


class Layout(NamedTuple):
    """How rows of a type lie in the buffers: arguments of `ArrowColumn`."""

    layout: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    wide: tuple[bool, ...] = ()
    text: type | None = None
    inner: tuple[int, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether all rows are arrays or numbers of one size."""
        return self.text is None and self.layout in ("fixed", "bits", "days")

    def column(self, chunks: list[Any], fill: Any = None, pages: Any = None) -> ArrowColumn:
        """The column of these chunks, Arrow arrays, or of pages. `fill` is put for nulls."""
        arrays = [chunk.__arrow_c_array__()[1] for chunk in chunks]
        layout, dtype, shape, wide, text, inner = self
        return ArrowColumn(arrays, layout, dtype, shape, wide, text, fill, inner, pages)


def _kind(arrow_type: Any) -> str:
    """The name of a type, without parameters."""
    import pyarrow.types as types

    for name in (*_STRINGS, *_LISTS, "fixed_size_list", "fixed_size_binary", "boolean", "date32"):
        if getattr(types, f"is_{name}", _never)(arrow_type):
            return name
    return ""


def _never(arrow_type: Any) -> bool:
    return False


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


def layout_of(arrow_type: Any, options: Options) -> Layout | None:
    """The layout of a type; None if pyarrow has to convert its values."""
    kind = _kind(arrow_type)
    dtype = number_dtype(arrow_type)
    if dtype is not None:
        return Layout("fixed", dtype)
    if kind == "boolean":
        return Layout("bits", np.dtype(bool))
    if kind == "date32":
        return Layout("days", np.dtype("datetime64[D]"))
    if kind in _STRINGS:
        name, wide, text = _STRINGS[kind]
        as_text = None if options.strings == "padded" else text
        return Layout(name, np.dtype(np.uint8), (), wide, as_text)
    if kind == "fixed_size_binary":
        shape = (arrow_type.byte_width,)
        as_text = None if options.strings == "padded" else bytes
        return Layout("fixed", np.dtype(np.uint8), shape, (), as_text)
    if kind == "fixed_size_list":
        return _fixed_lists(arrow_type)
    if kind in _LISTS:
        return _lists(arrow_type)
    if getattr(arrow_type, "extension_name", "") == "arrow.fixed_shape_tensor":
        layout = _fixed_lists(arrow_type.storage_type)
        if layout is not None and list(arrow_type.permutation or []) == sorted(
            arrow_type.permutation or []
        ):
            return layout._replace(shape=tuple(arrow_type.shape))
    return None


def _fixed_lists(arrow_type: Any) -> Layout | None:
    """Of lists of a fixed size in each other, with numbers in the innermost ones."""
    sizes = []
    while _kind(arrow_type) == "fixed_size_list":
        sizes.append(arrow_type.list_size)
        arrow_type = arrow_type.value_type
    dtype = number_dtype(arrow_type)
    if dtype is None or 0 in sizes or len(sizes) >= _MOST_SIZES:
        return None
    return Layout("fixed", dtype, tuple(sizes), inner=tuple(sizes))


def _lists(arrow_type: Any) -> Layout | None:
    """Of lists, or lists of lists, of numbers."""
    wide = []
    while _kind(arrow_type) in _LISTS:
        wide.append(_LISTS[_kind(arrow_type)])
        arrow_type = arrow_type.value_type
    dtype = number_dtype(arrow_type)
    if dtype is None and len(wide) == 1 and _kind(arrow_type) == "boolean":
        dtype = np.dtype(bool)
    if dtype is None or len(wide) > 2:
        return None
    return Layout("lists", dtype, wide=tuple(wide))


# ---- objects ---------------------------------------------------------------------------------


class ObjectColumn:
    """A column whose values pyarrow converts, one by one. ``fill`` takes the place of None."""

    def __init__(self, chunked: Any, fill: Any = None) -> None:
        self._chunked = chunked
        self._fill = fill
        self.pages = getattr(chunked, "pages", None)
        self._has_intervals = "month_day_nano_interval" in str(chunked.type)

    def __len__(self) -> int:
        return len(self._chunked)

    def values(self, rows: Rows) -> list[Any]:
        values = [self._chunked[row].as_py() for row in rows.tolist()]
        if self._has_intervals:
            values = [_without_intervals(value) for value in values]
        return values if self._fill is None else [self._fill if v is None else v for v in values]


def _without_intervals(value: Any) -> Any:
    """A value with tuples for those of pyarrow of months, days and nanoseconds, which cannot be
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
        return [self._values[code] for code in self._codes.take(rows).tolist()]


# ---- nulls -----------------------------------------------------------------------------------


def null_elements(array: Any) -> npt.NDArray[np.bool_] | None:
    """For each row of an Arrow array whether a list in it, at any depth, has a null element; None
    if no list has one. What pyarrow converts is not looked into."""
    import pyarrow.compute as compute

    storage = getattr(array, "storage", array)
    if _kind(storage.type) not in (*_LISTS, "fixed_size_list"):
        return None
    elements = storage.flatten()
    deeper = null_elements(elements)
    if elements.null_count == 0 and deeper is None:
        return None
    is_null = compute.is_null(elements).to_numpy(zero_copy_only=False)
    if deeper is not None:
        is_null = is_null | deeper
    found: npt.NDArray[np.bool_] = np.zeros(len(array), dtype=bool)
    found[compute.list_parent_indices(storage).to_numpy()[is_null]] = True
    return found


#: how the column lies that tells where another is not null
VALID = Layout("bits", np.dtype(bool))


def is_valid(array: Any) -> Any:
    """Where an Arrow array is not null."""
    import pyarrow.compute as compute

    return compute.is_valid(array)


def zero_of(arrow_type: Any) -> Any:
    """What stands in the place of a null that is no number, where a field tells what is valid."""
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
    import pyarrow.compute as compute

    if array.null_count == 0 and (_kind(array.type) or number_dtype(array.type) is not None):
        return None
    flags: npt.NDArray[np.bool_] = compute.is_null(array).to_numpy(zero_copy_only=False)
    return flags
