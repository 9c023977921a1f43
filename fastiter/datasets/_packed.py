"""Values of Python packed into few arrays, which processes can share.

A list of a million strings is a million objects, each with a reference count that every reader
writes to. A column here is a handful of arrays that reading leaves alone.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastiter._ring.serialization import dumps

_MOST_KINDS = 64  # of values in one column; beyond, they are pickled one by one
_MOST_FIELDS = 64  # of tuples, and lists of unlike items, that are packed field by field
_INT64 = range(-(2**63), 2**63)

Array = np.ndarray[Any, Any]


class Column:
    """``len(column)`` values; ``column[i]`` makes value i, ``0 <= i < len(column)``.

    ``column.part(start, stop)`` makes a list of them.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def part(self, start: int, stop: int) -> list[Any]:
        return [self[i] for i in range(start, stop)]

    def arrays(self) -> list[Array]:
        """All arrays that the column consists of."""
        found: list[Array] = []
        for value in self.__dict__.values():
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, Column):
                    found += part.arrays()
                elif isinstance(part, np.ndarray):
                    found.append(part)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Arrays of foreign byte order go as their bytes in native order, with their dtype: before
        protocol 5 pickles load them in native order."""
        state = self.__dict__.copy()
        for name, value in state.items():
            if isinstance(value, np.ndarray) and not value.dtype.isnative:
                state[name] = _Foreign(value.view(value.dtype.newbyteorder("=")), value.dtype)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            array = value.array.view(value.dtype) if isinstance(value, _Foreign) else value
            # Pickles forget that an array is read-only.
            self.__dict__[name] = _frozen(array) if isinstance(array, np.ndarray) else array


class _Foreign(NamedTuple):
    """An array of another byte order, in a pickle."""

    array: Array  # the same bytes in native order
    dtype: np.dtype[Any]


class Constants(Column):
    """The same value all over, as None; or no value at all."""

    def __init__(self, length: int, value: Any = None) -> None:
        self._length = length
        self._value = value

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        return self._value


class Numbers(Column):
    """Python's numbers of one type: bool, int within int64, float or complex."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._data = _frozen(np.array(values))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Any:
        return self._data.item(i)

    def part(self, start: int, stop: int) -> list[Any]:
        values: list[Any] = self._data[start:stop].tolist()
        return values


class Rows(Column):
    """Arrays of one shape and dtype, or NumPy scalars: the rows of an array."""

    def __init__(self, data: Array) -> None:
        self._data = _frozen(data)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, i: int) -> Any:
        return self._data[i]


class Places(Rows):
    """Arrays without a dimension."""

    def __getitem__(self, i: int) -> Any:
        return self._data[i, ...]


class Blobs(Column):
    """Runs of bytes, one after another: bytes."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._ends = _ends([len(value) for value in values])
        self._data = _frozen(np.frombuffer(b"".join(values), np.uint8))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> Any:
        return self._blob(i).tobytes()

    def _blob(self, i: int) -> Array:
        return self._data[self._ends.item(i) : self._ends.item(i + 1)]


class Strings(Blobs):
    """Strings, as UTF-8."""

    def __init__(self, values: Sequence[str]) -> None:
        super().__init__([value.encode("utf-8", "surrogatepass") for value in values])

    def __getitem__(self, i: int) -> str:
        return str(self._blob(i).data, "utf-8", "surrogatepass")


class Pickles(Blobs):
    """Any other objects, each as a pickle."""

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__([dumps(value, 5, None) for value in values])

    def __getitem__(self, i: int) -> Any:
        return pickle.loads(self._blob(i).data)


class Ragged(Column):
    """Arrays of one dtype and number of dimensions, but different shapes."""

    def __init__(self, values: Sequence[Array]) -> None:
        self._shapes = _frozen(np.array([value.shape for value in values], np.int64))
        self._ends = _ends([value.size for value in values])
        self._data = np.empty(self._ends[-1], values[0].dtype)
        for i, value in enumerate(values):
            self._data[self._ends[i] : self._ends[i + 1]] = value.ravel()
        _frozen(self._data)

    def __len__(self) -> int:
        return len(self._shapes)

    def __getitem__(self, i: int) -> Array:
        flat = self._data[self._ends.item(i) : self._ends.item(i + 1)]
        return flat.reshape(self._shapes[i].tolist())


class Runs(Column):
    """Tuples or lists of any length: their items, one after another."""

    def __init__(self, kind: type, values: Sequence[Any], items: Column) -> None:
        self._kind = kind
        self._ends = _ends([len(value) for value in values])
        self._items = items

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> Any:
        items = self._items.part(self._ends.item(i), self._ends.item(i + 1))
        return items if self._kind is list else tuple(items)


class Records(Column):
    """Tuples or lists of one length: a column for each place."""

    def __init__(self, kind: type, values: Sequence[Any]) -> None:
        self._kind = kind
        self._length = len(values)
        self._fields = [pack([value[j] for value in values]) for j in range(len(values[0]))]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> Any:
        return self._kind([field[i] for field in self._fields])


class Dicts(Column):
    """Dicts of one sequence of keys: a column for each of them."""

    def __init__(self, keys: tuple[Any, ...], fields: list[Column], length: int) -> None:
        self._keys = keys
        self._fields = fields
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, i: int) -> dict[Any, Any]:
        return {key: field[i] for key, field in zip(self._keys, self._fields, strict=True)}


class Mixed(Column):
    """Values of several kinds: for each, which column it is in, and where."""

    def __init__(self, numbers: Array, places: Array, columns: list[Column]) -> None:
        self._numbers = _frozen(numbers)
        self._places = _frozen(places)
        self._columns = columns

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, i: int) -> Any:
        return self._columns[self._numbers.item(i)][self._places.item(i)]


def pack(values: Sequence[Any]) -> Column:
    """Pack values of any kinds.

    Raises
    ------
    TypeError
        If a value can neither be packed nor pickled.
    """
    groups: dict[Any, list[Any]] = {}
    kinds = [_kind(value) for value in values]
    for kind, value in zip(kinds, values, strict=True):
        groups.setdefault(kind, []).append(value)
    if not groups:
        return Constants(0)
    if len(groups) == 1:
        return _column(kinds[0], values)
    if len(groups) > _MOST_KINDS:
        return _pickled(values)
    order = {kind: number for number, kind in enumerate(groups)}
    numbers = np.array([order[kind] for kind in kinds], np.uint8)
    places = np.empty(len(kinds), np.int64)
    for number, group in enumerate(groups.values()):
        places[numbers == number] = np.arange(len(group))
    return Mixed(numbers, places, [_column(kind, group) for kind, group in groups.items()])


def pack_array(data: Array) -> Column:
    """The rows of an array, which is not copied if they are contiguous and no objects."""
    if type(data) not in (np.ndarray, np.memmap) or data.dtype.hasobject:
        return pack(list(data))
    data = data.view(np.ndarray)
    return Rows(data if data.flags.c_contiguous else data.copy())


def _kind(value: Any) -> Any:
    """What values must have in common to be packed into one column; hashable."""
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
    """Equal for keys of the same value and types; hashable. Keys can be equal and differ, as 1 and
    True, or 0.0 and -0.0."""
    kind = type(key)
    if kind in (str, int, bool, bytes, type(None)):
        return kind, key
    if kind in (float, complex):
        return kind, repr(key)
    if kind is tuple:
        return kind, tuple([_key_kind(item) for item in key])
    if isinstance(key, np.generic):
        return kind, key.dtype.str, key.tobytes()
    return kind, id(key)


def _dtype_key(dtype: np.dtype[Any]) -> Any:
    # Equal dtypes can differ in alignment and metadata, which must come back as they were.
    return dtype, dtype.str, dtype.isalignedstruct, repr(dtype.metadata)


def _column(kind: Any, values: Sequence[Any]) -> Column:
    """Pack values that are all of one kind."""
    if kind in _PLAIN:
        return _PLAIN[kind](values)
    if kind in (tuple, list):
        return _sequences(kind, values)
    if kind[0] is dict:
        columns: list[list[Any]] = [[] for _ in kind[1]]
        for value in values:
            for column, item in zip(columns, value.values(), strict=True):
                column.append(item)
        return Dicts(tuple(values[0]), [pack(column) for column in columns], len(values))
    if kind[0] is not np.ndarray:
        return Rows(np.array(values, dtype=kind[1][0]))
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        return Ragged(values)
    data = np.empty((len(values), *values[0].shape), values[0].dtype)
    for row, value in enumerate(values):
        data[row] = value
    return Rows(data) if values[0].ndim else Places(data)


def _sequences(kind: type, values: Sequence[Any]) -> Column:
    items = [item for value in values for item in value]
    length = len(values[0])
    if (
        0 < length <= _MOST_FIELDS
        and all(len(value) == length for value in values)
        and (kind is tuple or len({_kind(item) for item in items}) > 1)
    ):
        return Records(kind, values)
    return Runs(kind, values, pack(items))


def _pickled(values: Sequence[Any]) -> Column:
    try:
        return Pickles(values)
    except Exception as error:
        for value in values:
            try:
                pickle.dumps(value)
            except Exception:
                raise TypeError(
                    f"a value of type {type(value).__qualname__} can neither be packed nor "
                    f"pickled: {error}"
                ) from error
        raise


def _frozen(data: Array) -> Array:
    data.flags.writeable = False
    return data


def _ends(sizes: list[int]) -> Array:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return _frozen(ends)


_PLAIN: dict[type, Callable[[Sequence[Any]], Column]] = {
    str: Strings,
    bytes: Blobs,
    bool: Numbers,
    int: Numbers,
    float: Numbers,
    complex: Numbers,
    type(None): lambda values: Constants(len(values)),
    object: _pickled,
}
