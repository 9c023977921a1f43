"""Examples of every sort: what arrives is what the serial iterator gives."""

from __future__ import annotations

import contextlib
import datetime
import fractions
import functools
import itertools
import tempfile
from collections import defaultdict

import numpy as np
import pytest
from comparison import same
from drawn import draw_examples
from examples_of import (
    Marked,
    MyArray,
    MyDict,
    MyList,
    MyTuple,
    Named,
    Pair,
    Pickled,
    an_ordered_dict,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from fastiter import MultiprocessIterator, SerialIterator, concat_examples
from fastiter._ring.infer_schema import derive_schema
from fastiter._ring.schema import BARE, NAMED

POINT = np.dtype([("x", "<f4"), ("y", ">i2")])
NESTED = np.dtype([("p", POINT, (2,)), ("t", "M8[s]"), ("s", "S3")])
ALIGNED = np.dtype([("a", "i1"), ("b", "f8")], align=True)

with tempfile.TemporaryFile() as _file:  # the map keeps it
    MAP = np.memmap(_file, "f4", shape=(200, 6))
MAP[:] = np.arange(1200).reshape(200, 6)
MAP.flags.writeable = False


def read_only(array):
    array.flags.writeable = False
    return array


def marked(i):
    pair = Marked(i, 2 * i)
    pair.mark = i
    return pair


def cyclic():
    x = []
    x.append(x)
    return x


ARRAYS = {
    "0-d": lambda i: np.array(i * 1.5),
    "zero-size": lambda i: np.zeros((0, 3)),
    "zero-size in the middle": lambda i: np.zeros((2, 0, 3), "i4"),
    "non-contiguous": lambda i: (np.arange(24).reshape(4, 6) + i)[::2, 1::2],
    "negative strides": lambda i: (np.arange(12) + i)[::-1],
    "negative strides in two axes": lambda i: (np.arange(12).reshape(3, 4) + i)[::-1, ::-2],
    "F-order": lambda i: np.asfortranarray(np.arange(12).reshape(3, 4) + i),
    "broadcast": lambda i: np.broadcast_to(np.array([i, i + 1]), (3, 2)),
    "transposed": lambda i: (np.arange(24.0).reshape(2, 3, 4) + i).transpose(2, 0, 1),
    "read-only": lambda i: read_only(np.arange(3) + i),
    "unaligned": lambda i: np.frombuffer(bytes(range(i % 200, i % 200 + 9)), "u1")[1:].view("<f8"),
    "big-endian": lambda i: (np.arange(3) + i).astype(">i4"),
    "big-endian complex": lambda i: np.array([i, 1j], ">c16"),
    "big-endian longdouble": lambda i: (np.array([i], "g") / 3).astype(">g"),
    "big-endian clongdouble": lambda i: np.array([[i, 1j], [2, i]], "G").astype(">G").T,
    "big-endian, not contiguous": lambda i: (np.arange(24).reshape(4, 6) + i).astype(">f4")[:, ::2],
    "big-endian, now and then reversed": lambda i: np.array([i, 1], ">u2")[:: -1 if i % 8 else 1],
    "big-endian subclass": lambda i: np.array([i, 2], ">i4").view(MyArray),
    "big-endian, masked": lambda i: np.ma.array([i, 2], ">f8", mask=[0, 1], fill_value=7),
    "big-endian str": lambda i: np.array([["a", f"{i}"] * 2], ">U4")[:, ::2],
    "str of no length": lambda i: np.zeros(3, [("a", "U0"), ("b", "i4")])["a"],
    "structured": lambda i: np.array([(i, -i), (i + 1, 0)], POINT),
    "aligned": lambda i: np.array([(i, 0.5 * i)], ALIGNED),
    "nested structure": lambda i: np.array(
        [([(i, 1), (2, 3)], f"2020-01-{i % 28 + 1:02}", b"ab")], NESTED
    ),
    "datetime": lambda i: np.array(["NaT", "2020-02-03T04"], "M8[h]") + np.timedelta64(i, "h"),
    "timedelta": lambda i: np.array([i, "NaT"], "m8[25s]"),
    "datetime without unit": lambda i: np.array(["NaT"], "M8"),
    "float16": lambda i: np.array([i, np.nan, -np.inf, -0.0], "f2"),
    "longdouble": lambda i: np.array([i], "g") / 3,
    "complex": lambda i: np.array([i + 1j, np.nan]),
    "clongdouble": lambda i: np.array([i + 1j], "G") / 3,
    "NaN with a payload": lambda i: np.array([0x7FF8000000000000 + i], "u8").view("f8"),
    "U": lambda i: np.array(["é", f"{i:04}"]),
    "S": lambda i: np.array([b"a\0b", b"%04d" % i]),
    "V": lambda i: np.array([b"abc%d" % (i % 10)], "V4"),
    "bool": lambda i: np.array([i % 2 == 0, True]),
    "masked": lambda i: np.ma.array([i, 2, 3], mask=[0, 1, i % 2], fill_value=7),
    "object": lambda i: np.array([i, None, "x", [1]], object),
    "structured with objects": lambda i: np.array([(i, {1})], [("a", int), ("b", object)]),
    "subclass": lambda i: np.arange(3).view(MyArray),
    "matrix": lambda i: np.array([[i, 1]]).view(np.matrix),
    "recarray": lambda i: np.rec.array([(i, 2.0)], dtype=[("a", int), ("b", float)]),
    "memory map": lambda i: MAP[i],
    "memory map, not contiguous": lambda i: MAP[i : i + 4, ::2],
    "memory map of records": lambda i: MAP[i].view([("a", "f4"), ("b", "f4", (2,))]),
    "char": lambda i: np.char.array([f"a{i:03}", "b"]),
    "31 dimensions": lambda i: np.full((1,) * 31, i),
    "32 dimensions": lambda i: np.full((1,) * 31 + (2,), i),
    "long long": lambda i: np.array([i], "q"),
    "dtype with metadata": lambda i: np.array([i], np.dtype("i4", metadata={"a": 1})),
    "large": lambda i: np.full(100_000, i, "f4"),
    "large, not contiguous": lambda i: np.full((300, 600), i)[:, ::2],
    "memory of another": lambda i: np.frombuffer(bytearray(b"%08d" % i), "u1"),
}
VALUES = {
    "None": lambda i: None,
    "str": lambda i: f"example {i} \udc80\0é",
    "bytes": lambda i: b"%d\0" % i,
    "bytearray": lambda i: bytearray(b"%d" % i),
    "int": lambda i: i,
    "negative int": lambda i: -(1 << 63) + i,
    "huge int": lambda i: (1 << 63) + i if i % 3 else 10**100,
    "int at the limit": lambda i: (1 << 63) - 1 + i % 2,
    "bool": lambda i: i % 2 == 0,
    "bool or int": lambda i: True if i % 2 else i,
    "float": lambda i: -0.0 if i % 2 else float("nan"),
    "complex": lambda i: complex(i, -1),
    "Fraction": lambda i: fractions.Fraction(i, 7),
    "date": lambda i: datetime.date.fromordinal(i + 1),
    "Ellipsis": lambda i: Ellipsis,
    "a type": lambda i: int,
    "set": lambda i: {i, frozenset((i,))},
    "range": lambda i: range(i),
    "float64": lambda i: np.float64(i),
    "float32": lambda i: np.float32(i) / 3,
    "float16": lambda i: np.float16(i),
    "longdouble": lambda i: np.longdouble(i) / 3,
    "complex64": lambda i: np.complex64(i + 1j),
    "int8": lambda i: np.int8(i % 100),
    "uint64": lambda i: np.uint64(2**64 - 1 - i),
    "longlong": lambda i: np.longlong(i),
    "bool_": lambda i: np.bool_(i % 2),
    "str_": lambda i: np.str_(f"a{i}"),
    "bytes_": lambda i: np.bytes_(b"a%d" % i),
    "void": lambda i: np.array([(i, 2)], POINT)[0],
    "datetime64": lambda i: np.datetime64("2020-01-01", "D") + np.timedelta64(i, "D"),
    "datetime64 of changing unit": lambda i: np.datetime64(i, "s" if i % 2 else "ms"),
    "timedelta64": lambda i: np.timedelta64("NaT", "D") if i % 5 == 0 else np.timedelta64(i, "s"),
    "float or float64": lambda i: float(i) if i % 2 else np.float64(i),
    "empty tuple": lambda i: (),
    "empty list": lambda i: [],
    "empty dict": lambda i: {},
    "tuple": lambda i: (np.arange(3) + i, i),
    "one-tuple": lambda i: (i,),
    "list": lambda i: [np.arange(3) + i, f"{i}", 2.5],
    "dict": lambda i: {"x": np.arange(3) + i, "y": i, 3: None},
    "dict with tuples as keys": lambda i: {(1, 2): i, None: 1},
    "dict with True as key": lambda i: {True: i} if i % 2 else {1: i},
    "namedtuple": lambda i: Pair(np.arange(3) + i, i),
    "namedtuple with methods": lambda i: Named(np.arange(3) + i, i),
    "namedtuple with attributes": marked,
    "namedtuple or tuple": lambda i: (Pair if i % 2 else Named)(i, 2 * i),
    "OrderedDict": an_ordered_dict,
    "defaultdict": lambda i: defaultdict(list, a=[i]),
    "dict subclass": lambda i: MyDict(a=np.arange(2), b=i),
    "tuple subclass": lambda i: MyTuple((np.arange(2), i)),
    "list subclass": lambda i: MyList([np.arange(2), i]),
    "nested": lambda i: {"a": [(np.arange(i % 3), {"b": (i, [None, "x"])})], "c": ({},)},
    "tuple of lists": lambda i: ([i] * (i % 4), [np.arange(2)]),
    "many fields": lambda i: tuple(np.arange(3) + i + k for k in range(64)),
    "more than 64 fields": lambda i: tuple(range(i, i + 65)),
    "many keys": lambda i: {f"key {k}": np.arange(2) + i for k in range(100)},
}
CHANGING = {
    "shapes": lambda i: np.arange(i % 7) + i,
    "shapes of two axes": lambda i: np.full((i % 3, 5 - i % 4), i, "f4"),
    "shapes in one of two": lambda i: (np.arange(i % 4), np.arange(3) + i),
    "number of axes": lambda i: np.full((2,) * (i % 3), i),
    "dtype": lambda i: np.arange(3).astype(["i4", "f8", ">i4"][i % 3]),
    "dtype in mid epoch": lambda i: np.arange(3).astype("i4" if i < 20 else "f4") + np.int8(1),
    "array or scalar": lambda i: np.array(i) if i % 2 else np.int64(i),
    "type": lambda i: [i, f"{i}", None, np.arange(i % 3), (i,), {"a": i}][i % 6],
    "type in mid epoch": lambda i: i if i < 20 else f"{i}",
    "keys": lambda i: {"a": i} if i % 2 else {"a": i, "b": i},
    "order of keys": lambda i: {"a": 1, "b": i} if i % 2 else {"b": i, "a": 1},
    "keys in mid epoch": lambda i: {"a" if i < 20 else "b": np.arange(3) + i},
    "length": lambda i: (i,) * (i % 5),
    "length of a list": lambda i: [np.arange(2) + i] * (1 + i % 3),
    "tuple or list": lambda i: (i, 1) if i % 3 else [i, 1],
    "plain or subclass": lambda i: np.arange(3) if i % 4 else np.arange(3).view(MyArray),
    "shapes of memory maps": lambda i: MAP[i : i + i % 7],
    "plain or memory map": lambda i: MAP[i] if i % 4 else MAP[i].view(np.ndarray),
    "memory map in mid epoch": lambda i: MAP[i] if i < 20 else np.arange(6) + i,
    "plain or masked": lambda i: np.arange(3) if i % 4 else np.ma.array([1, 2, 3], mask=[1, 0, 0]),
    "metadata": lambda i: np.array([i], np.dtype("i4", metadata={"a": i}) if i % 2 else "i4"),
    "rare large": lambda i: np.full(200_000 if i % 13 == 0 else 10, i),
    "growing": lambda i: np.full(i * 1000, i),
    "None now and then": lambda i: None if i % 5 == 0 else np.arange(3) + i,
    "size 0 or not": lambda i: np.zeros((i % 2, 3)),
}
ALL = {**ARRAYS, **VALUES, **{f"changing {k}": v for k, v in CHANGING.items()}}
FEW = ["0-d", "F-order", "big-endian", "structured", "datetime", "int", "float16", "str", "tuple"]
FEW += [f"changing {name}" for name in ("shapes", "type", "dtype in mid epoch", "number of axes")]
COUNT = 40


class Made:
    """Makes its examples afresh for each call."""

    def __init__(self, make, size=COUNT):
        self.make, self.size = make, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.make(index)


def iterators(dataset, batch_size=8, **arguments):
    """The process iterator, to be closed, and its judge. One worker writes and reads as many do."""
    arguments = {"n_processes": 1, "shuffle": False, "context": "fork", **arguments}
    ours = MultiprocessIterator(dataset, batch_size, **arguments)
    return ours, SerialIterator(dataset, batch_size, shuffle=False)


def places():
    """Each sort of example in one place, few in all; the rest nightly."""
    for number, name in enumerate(ALL):
        own = ("bare", "tuple")[number % 2]
        for place in ("bare", "tuple", "dict"):
            nightly = place != own and name not in FEW
            yield pytest.param(name, place, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.parametrize(("name", "place"), list(places()))
def test_examples_arrive_as_they_are(name, place):
    make = ALL[name]
    if place == "tuple":
        dataset = Made(lambda i: (np.arange(3.0) + i, make(i), i))
    elif place == "dict":
        dataset = Made(lambda i: {"a": make(i), "b": np.arange(2) + i})
    else:
        dataset = Made(make)
    ours, serial = iterators(dataset)
    with ours:
        for _ in range(12):
            batch, expected = next(ours), next(serial)
            assert type(batch) is list
            for a, b in zip(batch, expected, strict=True):
                same(a, b)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda i: MAP[i], id="map"),
        pytest.param(lambda i: (MAP[i], i), id="map in tuple"),
        pytest.param(ARRAYS["big-endian, not contiguous"], id="big-endian"),
    ],
)
def test_slices_of_large_files_lie_in_columns(make):
    """A dataset that slices a large file is as fast as one of arrays."""
    ours, serial = iterators(Made(make))
    with ours:
        for _ in range(12):
            for a, b in zip(next(ours), next(serial), strict=True):
                same(a, b)
        workers = ours.stats().workers
        assert sum(worker.spills for worker in workers) <= 3 * 8, "the first batches alone"


@pytest.mark.parametrize(
    ("kind", "container"), [(Pair, NAMED), (Named, NAMED), (Marked, BARE), (Pickled, BARE)]
)
def test_named_tuples_have_columns_if_they_are_but_their_items(kind, container):
    assert derive_schema([kind(np.arange(3), 1)], 8).container == container


@pytest.mark.parametrize("name", ["dict", "changing shapes", "changing type", "nested", "masked"])
def test_held_beyond_the_slots(name):
    """Copied batches, and those of before the schema, are as right as the rest."""
    ours, serial = iterators(Made(ALL[name]), 4)
    with ours:
        held = [next(ours) for _ in range(60)]
    for batch in held:
        for a, b in zip(batch, next(serial), strict=True):
            same(a, b)


@pytest.mark.parametrize("name", ["object", "list", "changing shapes", "bare"])
def test_arrays_of_one_example_are_its_own(name):
    """Aliases within an example arrive as equal values; no two examples share memory."""

    def aliased(i):
        a = np.arange(3) + i
        return {"object": {"x": (a, [a])}, "list": [a, a], "bare": (a, a)}.get(name, (a, a[:2]))

    ours, serial = iterators(Made(aliased), 4)
    with ours:
        for _ in range(6):
            batch, expected = next(ours), next(serial)
            for a, b in zip(batch, expected, strict=True):
                same(a, b)
            arrays = [array for example in batch for array in arrays_in(example)[:1]]
            for a, b in itertools.combinations(arrays, 2):
                assert not np.shares_memory(a, b)


def arrays_in(x):
    if isinstance(x, np.ndarray):
        return [x]
    if isinstance(x, dict):
        x = list(x.values())
    return [a for part in x for a in arrays_in(part)] if isinstance(x, (list, tuple)) else []


def test_an_alias_within_one_packed_object_stays_one():
    def aliased(i):
        a = [i]
        return {"deep": [a, a], "cycle": cyclic()}

    ours, _ = iterators(Made(aliased), 4)
    with ours:
        for _ in range(4):
            for example in next(ours):
                assert example["deep"][0] is example["deep"][1]
                assert example["cycle"][0] is example["cycle"]


# -- concat_examples, afterwards and as the converter -------------------------------------------


def outcome(function, *args):
    """The outcome of a call: a result or a type of error."""
    with np.errstate(all="ignore"):
        try:
            return function(*args), None
        except Exception as error:
            return None, error


CONVERTERS = {
    "plain": concat_examples,
    "padded": functools.partial(concat_examples, padding=0),
    "padded with 1": functools.partial(concat_examples, padding=1),
    "padded by field": functools.partial(concat_examples, padding=(0, 1, 2)),
    "padded with too few": functools.partial(concat_examples, padding=(0, 1)),
    "padded by key": functools.partial(concat_examples, padding={"a": 0, "b": 1}),
    "padded with a word": functools.partial(concat_examples, padding="x"),
}


def cases():
    """Each sort of example with one of the common converters, few with every other one besides; the
    rest nightly."""
    for number, name in enumerate(ALL):
        common = ("plain", "padded")[number % 2]
        for turn, how in enumerate(CONVERTERS):
            nightly = how != common and (name not in FEW or (turn + FEW.index(name)) % 2 == 1)
            yield pytest.param(name, how, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "how"), list(cases()))
def test_converted_as_afterwards(name, how):
    make, convert = ALL[name], CONVERTERS[how]
    if how in ("padded by field", "padded with too few"):
        dataset = Made(lambda i: (np.arange(3.0) + i, make(i), i))
    elif how == "padded by key":
        dataset = Made(lambda i: {"a": make(i), "b": np.arange(2) + i})
    else:
        dataset = Made(make)
    ours, serial = iterators(dataset, converter=convert)
    ways = [(ours, next)]
    if name in FEW:
        ways.append((iterators(dataset)[0], lambda lists: convert(next(lists))))
    with contextlib.ExitStack() as stack:
        for iterator, _ in ways:
            stack.enter_context(iterator)
        for number in range(7):
            expected, wanted_error = outcome(convert, next(serial))
            for iterator, take in ways:
                result, error = outcome(take, iterator)
                assert type(error) is type(wanted_error), (number, error, wanted_error)
                if error is None:
                    same(result, expected)


# -- random mixtures ------------------------------------------------------------------------------

leaves = st.sampled_from([*ARRAYS.values(), *VALUES.values(), *CHANGING.values()])
trees = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(lambda p: lambda i: tuple(f(i) for f in p)),
        st.lists(parts, max_size=3).map(lambda p: lambda i: [f(i) for f in p]),
        st.lists(parts, max_size=3).map(
            lambda p: lambda i: {f"{k}": f(i) for k, f in enumerate(p)}
        ),
        st.tuples(parts, parts, st.integers(2, 9)).map(
            lambda p: lambda i: p[0](i) if i % p[2] else p[1](i)
        ),
    ),
    max_leaves=6,
)


@draw_examples(40, suppress_health_check=list(HealthCheck))
@given(make=trees, batch_size=st.integers(1, 12), n_prefetch=st.integers(1, 3))
def test_random_mixtures(make, batch_size, n_prefetch):
    ours, serial = iterators(Made(make), batch_size, n_processes=2, n_prefetch=n_prefetch)
    with ours:
        for _ in range(8):
            for a, b in zip(next(ours), next(serial), strict=True):
                same(a, b)


@pytest.mark.stress
@draw_examples(1000, suppress_health_check=list(HealthCheck))
@given(make=trees, batch_size=st.integers(1, 12), n_prefetch=st.integers(1, 3))
def test_many_random_mixtures(make, batch_size, n_prefetch):
    test_random_mixtures.hypothesis.inner_test(make, batch_size, n_prefetch)
