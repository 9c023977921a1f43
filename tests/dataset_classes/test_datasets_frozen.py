"""FrozenDataset: any examples, packed into memory that processes share."""

from __future__ import annotations

import datetime
import math
import os
import pickle
from collections import OrderedDict
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastiter import MultiprocessIterator, datasets
from fastiter.datasets import FrozenDataset


class Point(NamedTuple):
    x: int
    y: int


class Text(str):
    """A subclass, which must come back as such."""


def equal(a: Any, b: Any) -> bool:
    """Equal with the same types all the way down; NaN equals NaN, 0.0 does not equal -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return equal(list(a.items()), list(b.items()))
    if isinstance(a, complex):
        return equal([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, float):
        return math.copysign(1, a) == math.copysign(1, b) and (a == b or (a != a and b != b))
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return bool(a == b)


def check(frozen: FrozenDataset, expected: list[Any]) -> None:
    assert len(frozen) == len(expected)
    for i, value in enumerate(expected):
        assert equal(frozen[i], value), (i, frozen[i], value)
    assert equal(frozen[::-1], expected[::-1])


LISTS = {
    "ints": [1, -5, 2**63 - 1, -(2**63)],
    "huge ints": [1, 2**63, -(2**200)],
    "floats": [0.0, -0.0, math.nan, math.inf, 5e-324],
    "bools": [True, False, True],
    "complex": [1j, complex(math.nan, -0.0)],
    "strings": ["", "ab", "\0", "\u3042\U0001f600", "\ud800", "a\r\n"],
    "bytes": [b"", b"\0\xff", b"x" * 1000],
    "nothing": [None, None],
    "mixed": [1, True, 1.0, "1", b"1", None, np.float32(1), [1], (1,), {1: 1}, {True: 1}],
    "numpy numbers": [np.float16(1), np.float16(2)],
    "numpy numbers, mixed": [np.int8(1), np.int16(1), np.bool_(True), np.complex64(1j)],
    "times": [np.datetime64("2020-01-01"), np.datetime64("NaT", "D"), np.datetime64(5, "s")],
    "numpy strings": [np.str_("a"), np.str_("abc"), np.bytes_(b"a\0b")],
    "arrays": [np.arange(6.0).reshape(2, 3), np.ones((2, 3))],
    "arrays of many shapes": [np.zeros((0, 3)), np.ones((2, 3)), np.ones((4, 0))],
    "arrays of many dtypes": [np.ones(2, d) for d in ("f4", ">f4", "i1", "?", "U3", "S2", "M8[s]")],
    "arrays without dimensions": [np.array(1.5), np.array(2.5)],
    "F-order and views": [np.asfortranarray(np.eye(3)), np.eye(6)[::2, ::-2]],
    "big-endian": [np.arange(4, dtype=">i4"), np.arange(4, dtype=">i4")[::-1]],
    "big-endian, of many shapes": [np.arange(4, dtype=">i4")[::2], np.zeros((0,), ">i4")],
    "big-endian without dimensions": [np.array(1.5, ">f4"), np.array(2.5, ">f4")],
    "big-endian, masked": [np.ma.array([1, 2], ">i4", mask=[True, False])],
    "structured": [np.zeros(2, [("a", "i4"), ("b", "f8", 2)])],
    "arrays of objects": [np.array([None, "x"], object)],
    "masked": [np.ma.masked_array([1, 2], [True, False])],
    "pairs": [("a.png", 3), ("b.png", 4)],
    "equal pairs": [(np.ones(2), np.ones(3)), (np.ones(2), np.ones(3))],
    "lists": [[1, 2, 3], [], [4]],
    "boxes": [[1, "a"], [2, "b"]],
    "tuples of many lengths": [(), (1,), ("a", None)],
    "nested": [([("a", [1, [2]])], {"k": (1.5, {"z": b"q"})}), ([], {"k": (2.5, {"z": b""})})],
    "dicts": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}],
    "dicts of many keys": [{"a": 1}, {"b": 1, "a": 2}, {"a": 2, "b": 1}, {}],
    "dicts of equal keys": [{(True, 1): 1}, {(1, True): 2}, {0.0: 3}, {-0.0: 4}, {math.nan: 5}],
    "dicts of other keys": [{np.str_("a"): 1, Point(1, 2): 2}, {np.str_("a"): 3, Point(1, 2): 4}],
    "dicts of all keys": [{str(i): i} for i in range(300)],
    "other objects": [Point(1, 2), Text("a"), Decimal("1.5"), datetime.date(2020, 1, 1), {1, 2}],
    "other dicts": [OrderedDict(a=1), OrderedDict(b=2)],
    "dtypes of all widths": [np.array(["x" * i]) for i in range(1, 100)],
    "classes": [int, len, Path("a")],
    "no examples": [],
    "no fields": [(), ()],
    "a long tuple": [tuple(range(100)), tuple(range(100, 200))],
}


@pytest.mark.parametrize("name", LISTS)
def test_any_examples(name):
    frozen = FrozenDataset(LISTS[name])
    expected = LISTS[name]
    if name == "masked":  # whose comparison has no truth
        assert type(frozen[0]) is np.ma.MaskedArray
        assert frozen[0].mask.tolist() == [True, False]
        return
    if name == "arrays of objects":
        assert frozen[0].tolist() == [None, "x"]
        return
    check(frozen, expected)
    for protocol in (2, 5):
        check(pickle.loads(pickle.dumps(frozen, protocol)), expected)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.builds(np.float32, st.floats(width=32)),
    st.builds(lambda n, d: np.arange(n).astype(d), st.integers(0, 3), st.sampled_from("bfU")),
    st.builds(np.zeros, st.lists(st.integers(0, 2), max_size=2).map(tuple)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(st.lists(values, max_size=8))
def test_whatever_it_is_given_it_gives_back(examples):
    frozen = FrozenDataset(examples)
    check(frozen, examples)
    check(pickle.loads(pickle.dumps(frozen, protocol=5)), examples)


@given(st.lists(st.tuples(st.text(max_size=3), st.integers(), st.lists(st.floats())), min_size=1))
def test_records(examples):
    check(FrozenDataset(examples), examples)


def test_dtypes_that_are_equal_come_back_as_they_were():
    dtypes = [np.dtype("i4", metadata={"unit": unit}) for unit in "ms"]
    dtypes += [np.dtype([("a", "i4")], align=align) for align in (False, True)]
    found = [row.dtype for row in FrozenDataset([np.zeros(2, dtype) for dtype in dtypes])]
    assert [dtype.metadata for dtype in found[:2]] == [{"unit": "m"}, {"unit": "s"}]
    assert [dtype.isalignedstruct for dtype in found[2:]] == [False, True]


def test_indices_are_those_of_a_list():
    frozen = FrozenDataset(["a", "b", "c"])
    assert [frozen[-1], frozen[-3], frozen[np.int8(1)]] == ["c", "a", "b"]
    assert frozen[[2, 0]] == frozen[np.array([2, 0])] == ["c", "a"]
    for index in (3, -4):
        with pytest.raises(IndexError, match=rf"index {index} .* 3 examples"):
            frozen[index]
    with pytest.raises(IndexError):
        FrozenDataset([])[0]


def test_arrays_are_not_copied_and_cannot_be_changed():
    data = np.arange(12.0).reshape(4, 3)
    frozen = FrozenDataset(data)
    assert np.shares_memory(frozen[1], data)
    assert equal(frozen[:], list(data))
    assert data.flags.writeable
    for dataset in (frozen, FrozenDataset([np.ones(3)]), FrozenDataset({"a": data}).get_example):
        row = dataset(0)["a"] if callable(dataset) else dataset[0]
        with pytest.raises(ValueError, match="read-only"):
            row[0] = 1
    restored = pickle.loads(pickle.dumps(frozen))[1]
    with pytest.raises(ValueError, match="read-only"):
        restored[0] = 1
    assert equal(FrozenDataset(np.arange(3))[:], [np.int64(i) for i in range(3)])


def test_arrays_that_are_copied(tmp_path):
    wide = np.arange(12).reshape(4, 3)
    assert FrozenDataset(wide[:, 1])[:] == [1, 4, 7, 10]
    assert FrozenDataset(wide[:, 1]).nbytes == 32
    np.save(tmp_path / "a.npy", wide)
    mapped = FrozenDataset(np.load(tmp_path / "a.npy", mmap_mode="r"))
    assert equal(mapped[:], list(wide))
    objects = np.array([1, "a", None], dtype=object)
    assert FrozenDataset(objects)[:] == [1, "a", None]


def test_dict_of_columns():
    columns = {"x": np.arange(6.0).reshape(3, 2), "name": ["a", "b", None], "n": range(3)}
    frozen = FrozenDataset(columns)
    check(frozen, datasets.DictDataset(**columns)[:])
    assert frozen.nbytes < 300
    with pytest.raises(ValueError, match="'x': 2, 'y': 3"):
        FrozenDataset({"x": [1, 2], "y": [1, 2, 3]})
    with pytest.raises(ValueError, match="no columns"):
        FrozenDataset({})


class Frame:
    """The common methods of pandas and Polars."""

    def __init__(self, **columns: Any) -> None:
        self._columns = columns
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return Series(self._columns[name])


class Series(list):
    def to_numpy(self) -> np.ndarray:
        return np.array(list(self))

    def null_count(self) -> int:
        """As Polars has it."""
        return self.count(None)

    def to_list(self) -> list[Any]:
        return list(self)


def test_frame():
    frame = Frame(a=[1, 2], b=np.array(["x", None], dtype=object))
    check(FrozenDataset(frame), [{"a": np.int64(1), "b": "x"}, {"a": np.int64(2), "b": None}])
    frame.columns = ["a", "a"]
    with pytest.raises(ValueError, match="one name"):
        FrozenDataset(frame)


def test_table_of_arrow():
    arrow = pytest.importorskip("pyarrow", reason="Arrow is not installed")
    table = arrow.table({"a": [1, 2], "b": ["x", None], "c": ["y", "z"]})
    expected = [
        {"a": np.int64(1), "b": "x", "c": "y"},
        {"a": np.int64(2), "b": None, "c": "z"},
    ]
    for data in (table, table.to_batches()[0]):
        check(FrozenDataset(data), expected)


def test_nulls_of_tables_and_frames_are_none():
    arrow = pytest.importorskip("pyarrow", reason="Arrow is not installed")
    columns = {
        "integers": [2**60 + 1, None, 3],
        "floats": [0.5, None, math.inf],
        "codes": arrow.array(["x", "y", None]).dictionary_encode(),
        "lists": [[2**60 + 1, None], [], None],
    }
    table = arrow.table(columns)
    check(FrozenDataset(table), table.to_pylist())
    check(FrozenDataset(table.to_batches()[0]), table.to_pylist())
    check(FrozenDataset(arrow.concat_tables([table, table])), 2 * table.to_pylist())
    check(FrozenDataset(table["integers"]), columns["integers"])
    frame = Frame(integers=[2**60 + 1, None], floats=[0.5, math.inf])
    expected = [
        {"integers": 2**60 + 1, "floats": np.float64(0.5)},
        {"integers": None, "floats": np.float64(math.inf)},
    ]
    check(FrozenDataset(frame), expected)


def test_tensors_of_arrow_have_their_shapes():
    arrow = pytest.importorskip("pyarrow", reason="Arrow is not installed")
    kind = arrow.fixed_shape_tensor(arrow.int8(), (2, 2))
    rows = arrow.array([[1, 2, 3, 4], [5, 6, 7, 8]], arrow.list_(arrow.int8(), 4))
    table = arrow.table({"t": arrow.ExtensionArray.from_storage(kind, rows)})
    tensors = np.arange(1, 9, dtype=np.int8).reshape(2, 2, 2)
    check(FrozenDataset(table), [{"t": tensor} for tensor in tensors])


def test_frame_of_pandas():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [0.5, math.nan, 1.5],
            "s": pandas.Series(["x", None, "z"], dtype=object),
            "t": pandas.to_datetime(["2020-01-01", "2020-01-02", None]),
            "z": pandas.to_datetime(["2020-01-01"] * 3).tz_localize("UTC"),
        },
        index=[7, 5, 3],
    )
    frozen = FrozenDataset(frame)
    expected = [
        {name: frame[name].to_numpy()[i] for name in frame.columns} for i in range(len(frame))
    ]
    check(frozen, expected)
    assert FrozenDataset(frame["i"])[:] == [1, 2, 3]


@pytest.mark.parametrize("dtype", ["Int64", "int64[pyarrow]"])
def test_integers_of_pandas_with_nulls(dtype):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow", reason="Arrow is not installed")
    column = pandas.Series([2**60 + 1, None, 3], dtype=dtype)
    first, null, last = FrozenDataset(pandas.DataFrame({"i": column}))[:]
    assert (first["i"], last["i"]) == (2**60 + 1, 3) and null["i"] is pandas.NA
    check(FrozenDataset(column[::2]), [np.int64(2**60 + 1), np.int64(3)])


@pytest.mark.parametrize("dtype", ["Int64", "UInt8", "Float32", "boolean"])
def test_nullable_columns_of_pandas_without_nulls(dtype):
    """pandas before 2.2 makes arrays of Python's objects of them."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    column = pandas.Series([1, 0, 1], dtype=dtype)
    check(FrozenDataset(column), list(np.array([1, 0, 1], column.dtype.numpy_dtype)))


def test_other_datasets_are_frozen_too():
    dataset = datasets.TupleDataset(["a", "b"], np.arange(2))
    check(FrozenDataset(dataset), [("a", np.int64(0)), ("b", np.int64(1))])


def test_what_is_no_data():
    for data in (5, "abc", b"abc", iter([1]), np.array(1), {1, 2}, {"a": "abc"}):
        with pytest.raises(TypeError):
            FrozenDataset(data)
    with pytest.raises(TypeError, match=r"function.* can be neither packed nor pickled"):
        FrozenDataset([1, lambda: None])


def test_it_is_small():
    examples = [(f"images/{i:06}.png", i) for i in range(10_000)]
    frozen = FrozenDataset(examples)
    assert frozen.nbytes <= 10_000 * (17 + 8 + 8) + 16
    buffers: list[pickle.PickleBuffer] = []
    image = pickle.dumps(frozen, protocol=5, buffer_callback=buffers.append)
    assert len(image) < 3000
    assert sum(buffer.raw().nbytes for buffer in buffers) == frozen.nbytes


def test_in_every_iterator(make):
    examples = [(f"{i}", np.full(i % 3, i), {"n": i}) for i in range(40)]
    iterator = make(FrozenDataset(examples), 7, shuffle=False, repeat=False)
    assert equal([example for batch in iterator for example in batch], examples)


def test_under_every_start_method(make_started):
    examples = [(f"{i}" * 3000, np.full(i % 3, i)) for i in range(40)]
    iterator = make_started(FrozenDataset(examples), 7, shuffle=False, repeat=False)
    assert equal([example for batch in iterator for example in batch], examples)


# -- memory --------------------------------------------------------------------------------------


class Reading:
    """Reads a hundred examples; tells their number, and at times this worker's private memory."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset) // 100

    def __getitem__(self, i: int) -> Any:
        n_characters = 0
        for example in range(100 * i, 100 * i + 100):
            name, _ = self.dataset[example]
            n_characters += len(name)
        return n_characters, os.getpid(), private_bytes() if i % 20 == 0 else 0


def private_bytes() -> int:
    """Private_Dirty of this process: what it has written to since the fork."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    line = next(line for line in rollup.splitlines() if line.startswith("Private_Dirty:"))
    return int(line.split()[1]) << 10


def growth(dataset: Any) -> int:
    """Bytes by which the private memory of a forked worker grows in an epoch, of the most."""
    with MultiprocessIterator(
        Reading(dataset), 50, repeat=False, shuffle=False, n_processes=2, context="fork"
    ) as iterator:
        n_characters = 0
        seen: dict[int, list[int]] = {}
        for batch in iterator:
            for n, pid, private in batch:
                n_characters += n
                if private:
                    seen.setdefault(pid, []).append(private)
    assert n_characters == 64 * len(dataset)
    return max(max(sizes) - sizes[0] for sizes in seen.values())


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the kernel tells nothing")
def test_private_memory_of_workers_stays_flat():
    examples = [(f"images/{i:06}.png {'x' * 46}", i) for i in range(200_000)]
    frozen = FrozenDataset(examples)
    plain = growth(examples)
    del examples
    # Tuples and strings of the list are about 40 MB, which the two workers copy between them.
    assert plain > 10 << 20
    assert growth(frozen) < 3 << 20
