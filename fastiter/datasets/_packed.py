"""Python values packed into a few arrays, which processes can share.

A list of a million strings is a million objects, each with a reference count that every reader
changes. A column is a few arrays, which readers do not change.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastiter._ring.serialization import dumps

_MAX_KINDS = 64  # of values in one column; with more, each value is pickled
_MAX_FIELDS = 64  # of tuples, and of lists of unlike items, that have a column for each field
_INT64 = range(-(2**63), 2**63)

Array = np.ndarray[Any, Any]


class Column:
    """A sequence of values: ``column[i]`` makes value i, ``0 <= i < len(column)``."""

    _length: int

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError

    def values(self, start: int, stop: int) -> list[Any]:
        """Make the values from `start` to `stop`."""
        return [self[i] for i in range(start, stop)]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, in which arrays of foreign byte order are in native order.

        Pickle protocols before 5 load them in native order, without their dtype.
        """
        state = self.__dict__.copy()
        for name, value in state.items():
            if isinstance(value, np.ndarray) and not value.dtype.isnative:
                state[name] = _Foreign(value.view(value.dtype.newbyteorder("=")), value.dtype)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            array = value.array.view(value.dtype) if isinstance(value, _Foreign) else value
            # A pickle does not hold that an array is read-only.
            self.__dict__[name] = _frozen(array) if isinstance(array, np.ndarray) else array


class _Foreign(NamedTuple):
    """An array of foreign byte order in a pickle."""

    array: Array  # the same bytes in native order
    dtype: np.dtype[Any]


class Nones(Column):
    """None many times, or no value at all."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __getitem__(self, i: int) -> Any:
        return None


class Rows(Column):
    """Arrays of one shape and dtype, or NumPy scalars: the rows of an array."""

    def __init__(self, data: Array) -> None:
        self._data = _frozen(data)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Any:
        return self._data[i]


class Places(Rows):
    """Arrays without dimensions."""

    def __getitem__(self, i: int) -> Any:
        return self._data[i, ...]


class Numbers(Rows):
    """Python numbers of one type: bool, int within int64, float or complex."""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__(np.array(values))

    def __getitem__(self, i: int) -> Any:
        return self._data.item(i)

    def values(self, start: int, stop: int) -> list[Any]:
        return list(self._data[start:stop].tolist())


class _Spans(Column):
    """Values of different lengths: value i lies in `_data` between two of the offsets `_ends`."""

    _data: Array

    def __init__(self, sizes: list[int]) -> None:
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        self._ends = _frozen(ends)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def _span(self, i: int) -> Array:
        return self._data[self._ends.item(i) : self._ends.item(i + 1)]


class Blobs(_Spans):
    """Values of type bytes."""

    def __init__(self, values: Sequence[bytes]) -> None:
        super().__init__([len(value) for value in values])
        self._data = _frozen(np.frombuffer(b"".join(values), np.uint8))

    def __getitem__(self, i: int) -> Any:
        return self._span(i).tobytes()


class Strings(Blobs):
    """Strings, as UTF-8."""

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__([value.encode("utf-8", "surrogatepass") for value in values])

    def __getitem__(self, i: int) -> str:
        return str(self._span(i).data, "utf-8", "surrogatepass")


class Pickles(Blobs):
    """Any other objects, each as a pickle."""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__([_pickle(value) for value in values])

    def __getitem__(self, i: int) -> Any:
        return pickle.loads(self._span(i).data)


class Ragged(_Spans):
    """Arrays of one dtype and number of dimensions, but different shapes."""

    def __init__(self, values: Sequence[Array]) -> None:
        super().__init__([value.size for value in values])
        self._shapes = _frozen(np.array([value.shape for value in values], np.int64))
        data = np.empty(self._ends[-1], values[0].dtype)
        self._data = _frozen(np.concatenate([value.ravel() for value in values], out=data))

    def __getitem__(self, i: int) -> Array:
        return self._span(i).reshape(self._shapes[i].tolist())


class Runs(_Spans):
    """Tuples or lists of different lengths: one column of all their items."""

    def __init__(self, kind: type, values: Sequence[Any], items: Column) -> None:
        super().__init__([len(value) for value in values])
        self._kind = kind
        self._items = items

    def __getitem__(self, i: int) -> Any:
        items = self._items.values(self._ends.item(i), self._ends.item(i + 1))
        return items if self._kind is list else tuple(items)


class Records(Column):
    """Tuples or lists of one length, or dicts with the same keys in the same order: a column for
    each field."""

    def __init__(
        self, kind: type, fields: list[Column], length: int, keys: tuple[Any, ...] = ()
    ) -> None:
        self._kind = kind
        self._fields = fields
        self._length = length
        self._keys = keys

    def __getitem__(self, i: int) -> Any:
        if self._kind is dict:
            return {key: field[i] for key, field in zip(self._keys, self._fields, strict=True)}
        return self._kind([field[i] for field in self._fields])


class Mixed(Column):
    """Values of several kinds: the column of each value, and its place there."""

    def __init__(self, numbers: Array, places: Array, columns: list[Column]) -> None:
        self._numbers = _frozen(numbers)
        self._places = _frozen(places)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> Any:
        return self._columns[self._numbers.item(i)][self._places.item(i)]


def pack(values: Sequence[Any]) -> Column:
    """Pack values of any kinds; TypeError if one can be neither packed nor pickled."""
    groups: dict[Any, list[Any]] = {}
    kinds = [_kind(value) for value in values]
    for kind, value in zip(kinds, values, strict=True):
        groups.setdefault(kind, []).append(value)
    if not groups:
        return Nones(0)
    if len(groups) == 1:
        return _column(kinds[0], values)
    if len(groups) > _MAX_KINDS:
        return Pickles(values)
    order = {kind: number for number, kind in enumerate(groups)}
    numbers = np.array([order[kind] for kind in kinds], np.uint8)
    places = np.empty(len(kinds), np.int64)
    for number, group in enumerate(groups.values()):
        places[numbers == number] = np.arange(len(group))
    return Mixed(numbers, places, [_column(kind, group) for kind, group in groups.items()])


def pack_array(data: Array) -> Column:
    """Pack the rows of an array, without a copy if it is contiguous and holds no objects."""
    if type(data) not in (np.ndarray, np.memmap) or data.dtype.hasobject:
        return pack(list(data))
    return Rows(np.ascontiguousarray(data.view(np.ndarray)))


def _kind(value: Any) -> Any:
    """Return a hashable key that values of one column have in common."""
    kind = type(value)
    if kind is int:
        return int if value in _INT64 else object
    if kind in (str, float, bool, bytes, complex, type(None), tuple, list):
        return kind
    if kind is dict:
        return dict, tuple([_key_kind(key) for key in value])
    if kind is np.ndarray and not value.dtype.hasobject:
        return np.ndarray, _dtype_key(value.dtype), value.ndim
    if isinstance(value, (np.bool_, np.number, np.datetime64, np.timedelta64)):
        return (kind, _dtype_key(value.dtype)) if kind is value.dtype.type else object
    return object


def _key_kind(key: Any) -> Any:
    """Return a hashable key of a dict's key, which equal keys may not share: 1 and True differ."""
    kind = type(key)
    return kind, key if kind in (str, int, bool, bytes, type(None)) else id(key)


def _dtype_key(dtype: np.dtype[Any]) -> Any:
    # Equal dtypes can differ in alignment and metadata, which examples must keep.
    return dtype, dtype.str, dtype.isalignedstruct, repr(dtype.metadata)


def _column(kind: Any, values: Sequence[Any]) -> Column:
    if kind in _PLAIN:
        return _PLAIN[kind](values)
    if kind in (tuple, list):
        items = [item for value in values for item in value]
        lengths = {len(value) for value in values}
        is_record = len(lengths) == 1 and 0 < len(values[0]) <= _MAX_FIELDS
        if is_record and (kind is tuple or len({_kind(item) for item in items}) > 1):
            return Records(kind, [pack(field) for field in zip(*values, strict=True)], len(values))
        return Runs(kind, values, pack(items))
    if kind[0] is dict:
        fields = [pack(field) for field in zip(*map(dict.values, values), strict=True)]
        return Records(dict, fields, len(values), tuple(values[0]))
    if kind[0] is not np.ndarray:
        return Rows(np.array(values, dtype=kind[1][0]))
    shape = values[0].shape
    if any(value.shape != shape for value in values):
        return Ragged(values)
    data = np.stack(values, out=np.empty((len(values), *shape), values[0].dtype))
    return Rows(data) if shape else Places(data)


def _pickle(value: Any) -> bytes:
    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(
            f"a value of type {type(value).__qualname__} can be neither packed nor pickled: {error}"
        ) from error


def _frozen(data: Array) -> Array:
    data.flags.writeable = False
    return data


_PLAIN: dict[type, Callable[[Sequence[Any]], Column]] = {
    str: Strings,
    bytes: Blobs,
    bool: Numbers,
    int: Numbers,
    float: Numbers,
    complex: Numbers,
    type(None): lambda values: Nones(len(values)),
    object: Pickles,
}
