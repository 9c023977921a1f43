"""Columns of every Arrow type, and what a value of ours has to be compared with."""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator

ITERATORS: dict[str, Any] = {
    "serial": SerialIterator,
    "threads": functools.partial(MultithreadIterator, n_threads=3),
    "processes": functools.partial(MultiprocessIterator, n_processes=2),
}
START = datetime.datetime(2020, 2, 28, 12)


def _small(draw: random.Random) -> int:
    return draw.randrange(100)


def _bool(draw: random.Random) -> bool:
    return draw.random() < 0.5


def _text(draw: random.Random) -> str:
    return "".join(draw.choices("aä€🙂", k=draw.randrange(30)))


def _bytes(draw: random.Random) -> bytes:
    return draw.randbytes(draw.randrange(30))


def _day(draw: random.Random) -> datetime.date:
    return START.date() + datetime.timedelta(days=draw.randrange(-30000, 9))


def _moment(draw: random.Random) -> datetime.datetime:
    return START + datetime.timedelta(milliseconds=draw.randrange(10**9))


def _list_of(make: Callable[[random.Random], Any], most: int = 7) -> Callable[[random.Random], Any]:
    return lambda draw: [make(draw) for _ in range(draw.randrange(most))]


def _three(make: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return lambda draw: [make(draw) for _ in range(3)]


_NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
]
#: Name, type and how a value is drawn.
TYPES: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    **{str(kind): (kind, _small) for kind in _NUMBERS},
    "float16": (pa.float16(), lambda draw: np.float16(draw.randrange(9) / 4)),
    "float32": (pa.float32(), lambda draw: draw.randrange(99) / 8),
    "float64": (pa.float64(), random.Random.random),
    "bool": (pa.bool_(), _bool),
    "timestamp": (pa.timestamp("us"), _moment),
    "timestamp of a zone": (pa.timestamp("ms", tz="Europe/Paris"), _moment),
    "duration": (pa.duration("s"), lambda draw: datetime.timedelta(seconds=_small(draw))),
    "date32": (pa.date32(), _day),
    "date64": (pa.date64(), _day),
    "time32": (pa.time32("s"), lambda draw: _moment(draw).time().replace(microsecond=0)),
    "time64": (pa.time64("us"), lambda draw: _moment(draw).time()),
    "string": (pa.string(), _text),
    "large_string": (pa.large_string(), _text),
    "string_view": (pa.string_view(), _text),
    "binary": (pa.binary(), _bytes),
    "large_binary": (pa.large_binary(), _bytes),
    "binary_view": (pa.binary_view(), _bytes),
    "fixed_size_binary": (pa.binary(5), lambda draw: draw.randbytes(5)),
    "fixed_size_list": (pa.list_(pa.float32(), 3), _three(lambda draw: _small(draw) / 4)),
    "fixed_size_list in another": (pa.list_(pa.list_(pa.int16(), 3), 3), _three(_three(_small))),
    "fixed_size_list of bool": (pa.list_(pa.bool_(), 3), _three(_bool)),
    "fixed_size_list of dates": (pa.list_(pa.list_(pa.date32(), 3), 3), _three(_three(_day))),
    "list": (pa.list_(pa.int32()), _list_of(_small)),
    "large_list": (pa.large_list(pa.float64()), _list_of(random.Random.random)),
    "list of bool": (pa.list_(pa.bool_()), _list_of(_bool, 20)),
    "list of dates": (pa.list_(pa.date32()), _list_of(_day)),
    "list of durations": (
        pa.list_(pa.duration("ms")),
        _list_of(lambda draw: datetime.timedelta(seconds=_small(draw))),
    ),
    "list of lists": (pa.list_(pa.list_(pa.int64())), _list_of(_list_of(_small))),
    "list of large lists": (pa.list_(pa.large_list(pa.uint8())), _list_of(_list_of(_small))),
    "list of lists of bool": (pa.large_list(pa.list_(pa.bool_())), _list_of(_list_of(_bool))),
    "list of lists of dates": (pa.list_(pa.large_list(pa.date32())), _list_of(_list_of(_day))),
    "list of strings": (pa.list_(pa.string()), _list_of(_text)),
    "list of three levels": (
        pa.list_(pa.list_(pa.list_(pa.int8()))),
        _list_of(_list_of(_list_of(_small))),
    ),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), lambda draw: draw.choice("abcä")),
    "dictionary of numbers": (pa.dictionary(pa.int32(), pa.int64()), _small),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        lambda draw: {"a": _small(draw), "b": _text(draw)},
    ),
    "map": (pa.map_(pa.string(), pa.int32()), lambda draw: [(_text(draw), _small(draw))]),
    "decimal": (pa.decimal128(10, 2), lambda draw: decimal.Decimal(_small(draw))),
    "list_view": (pa.list_view(pa.int32()), _list_of(_small)),
    "interval": (
        pa.month_day_nano_interval(),
        lambda draw: pa.MonthDayNano([_small(draw), _small(draw), _small(draw)]),
    ),
}


def column_of(name: str, n: int, null_share: float, seed: int) -> pa.ChunkedArray:
    """A column of ``n`` rows: chunks of any length, each with an offset."""
    kind, make = TYPES[name]
    draw = random.Random(f"{name} {seed}")

    def value() -> Any:
        return None if draw.random() < null_share else make(draw)

    array = pa.array([value() for _ in range(n + 3)], kind)[3:]
    cuts = sorted([0, n, *(draw.randrange(n + 1) for _ in range(4))])
    chunks = [array[start:stop] for start, stop in itertools.pairwise(cuts)]
    return pa.chunked_array(chunks, kind)


def plain(value: Any) -> Any:
    """A value as pyarrow would give it: of Python's types."""
    if isinstance(value, np.ndarray):
        return [plain(element) for element in value]
    if isinstance(value, list):
        return [plain(element) for element in value]
    return value.item() if isinstance(value, np.generic) else value


def in_utc(value: Any) -> Any:
    """A time of a zone as `numpy.datetime64` has it."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value


def check_equal(got: list[Any], wanted: list[Any]) -> None:
    """Check values against those of ``to_pylist()``."""
    assert [in_utc(plain(value)) for value in got] == [in_utc(value) for value in wanted]
