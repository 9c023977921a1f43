"""ArrowDataset: values of every type by every iterator, nulls, sources, padding and errors."""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from arrow_cases import ITERATORS, TYPES, check_equal, column_of  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from fastiter import (  # noqa: E402
    MixtureOrderSampler,
    MultiprocessIterator,
    Replacement,
    SerialIterator,
    concat_examples,
)
from fastiter._fetch.arrow_column import ArrowColumn  # noqa: E402
from fastiter._fetch.arrow_types import Layout  # noqa: E402
from fastiter._fetch.gather import ColumnReader  # noqa: E402
from fastiter.datasets import ArrowDataset, ConcatenatedDataset, SubDataset  # noqa: E402

N = 200


def batches(dataset: Any, iterator: Any, batch_size: int = 37, **options: Any) -> list[Any]:
    """One epoch, in order."""
    it = iterator(dataset, batch_size, repeat=False, shuffle=False, **options)
    try:
        return list(it)
    finally:
        it.finalize()


def write(path: Path, table: pa.Table, rows: int = 64, stream: bool = False) -> str:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("null_share", [0.0, 0.2], ids=["without nulls", "with nulls"])
def test_values_are_those_of_to_pylist(name: str, null_share: float) -> None:
    column = column_of(name, N, null_share, seed=0)
    wanted = column.to_pylist()
    dataset = ArrowDataset(pa.table({"x": column}), "x", nulls="none" if null_share else "error")
    order = np.random.default_rng(0).permutation(N).tolist()
    check_equal(dataset.__getitems__(order), [wanted[i] for i in order])
    check_equal([dataset[3], dataset[-1]], [wanted[3], wanted[-1]])
    if null_share:
        masked = ArrowDataset(pa.table({"x": column}), nulls="mask").__getitems__(order)
        assert [row["x_valid"] for row in masked] == [wanted[i] is not None for i in order]
        valid = [(row["x"], i) for row, i in zip(masked, order, strict=True) if row["x_valid"]]
        check_equal([value for value, _ in valid], [wanted[i] for _, i in valid])
        with pytest.raises(ValueError, match=r"'x' of type .* has a null in .*nulls='none'"):
            ArrowDataset(pa.table({"x": column}))


PADDED = (
    *("list", "large_list", "list of bool", "list of dates"),
    *("list of lists", "list of large lists", "list of lists of bool", "list of lists of dates"),
)


@pytest.mark.parametrize("kind", ITERATORS)
def test_every_type_by_every_iterator(kind: str) -> None:
    table = pa.table({name: column_of(name, N, 0.0, seed=1) for name in TYPES})
    wanted = table.to_pylist()
    dataset = ArrowDataset(table, padding=0)
    examples = [example for batch in batches(dataset, ITERATORS[kind]) for example in batch]
    joined = batches(dataset, ITERATORS[kind], converter=concat_examples)
    assert len(examples) == N and list(examples[0]) == list(TYPES) == list(joined[0])
    row = 0
    for batch in joined:
        n = len(batch["int8"])
        for name in TYPES:
            values = [wanted[i][name] for i in range(row, row + n)]
            check_equal([example[name] for example in examples[row : row + n]], values)
            if name in PADDED:
                check_padded(batch[name], values)
            elif not name.startswith("list of"):
                check_equal(list(batch[name]), values)
        row += n
    assert joined[0]["int8"].dtype == np.int8 and joined[0]["float16"].dtype == np.float16
    assert joined[0]["date32"].dtype == np.dtype("datetime64[D]")
    assert joined[0]["timestamp of a zone"].dtype == np.dtype("datetime64[ms]")
    assert type(joined[0]["string"]) is type(joined[0]["struct"]) is list
    assert joined[0]["fixed_size_list in another"].shape == (37, 3, 3)
    days = np.dtype("datetime64[D]")
    assert joined[0]["list of bool"].dtype == joined[0]["list of lists of bool"].dtype == bool
    assert joined[0]["list of dates"].dtype == joined[0]["list of lists of dates"].dtype == days
    assert joined[0]["fixed_size_list of bool"].dtype == bool
    assert joined[0]["fixed_size_list of dates"].dtype == days


def check_padded(matrix: Any, values: list[Any]) -> None:
    """Check an array, filled up with 0, against lists or lists of lists."""
    shape = (len(values), max(map(len, values)))
    if matrix.ndim == 3:
        shape = (*shape, max(len(inner) for value in values for inner in value))
    assert matrix.shape == shape
    wanted = np.zeros(shape, matrix.dtype)
    for row, value in enumerate(values):
        for place, element in enumerate(value):
            if matrix.ndim == 3:
                wanted[row, place, : len(element)] = element
            else:
                wanted[row, place] = element
    np.testing.assert_array_equal(matrix, wanted)


@given(st.data())
def test_random_schemas(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, max_size=4, unique=True))
    n = data.draw(st.integers(1, 40))
    null_share = data.draw(st.sampled_from([0.0, 0.0, 0.3]))
    columns = {name: column_of(name, n, null_share, data.draw(st.integers(0, 9))) for name in names}
    table = pa.table(columns)
    start = data.draw(st.integers(0, n - 1))
    table = table.slice(start, data.draw(st.integers(1, n - start)))
    wanted = table.to_pylist()
    order = data.draw(st.lists(st.integers(0, len(wanted) - 1), min_size=1, max_size=20))
    dataset = ArrowDataset(table, names[::-1], nulls="none")
    found = dataset.__getitems__(order)
    assert all(list(example) == names[::-1] for example in found)
    for name in names:
        check_equal([example[name] for example in found], [wanted[i][name] for i in order])


@pytest.mark.parametrize("kind", ITERATORS)
def test_arguments_of_concat_examples_count_for_lists(kind: str) -> None:
    lists = [list(range(i % 9)) for i in range(N)]
    dataset = ArrowDataset(pa.table({"ids": lists, "name": [str(i) for i in range(N)]}), padding=-1)
    converter = functools.partial(
        concat_examples,
        padding=7,
        pad_to_multiple=8,
        max_length={"ids": 5},
        return_lengths={"ids": True},
    )
    start = 0
    for batch in batches(dataset, ITERATORS[kind], converter=converter):
        part = lists[start : start + 37]
        start += 37
        wanted = [row[:5] + [7] * (8 - len(row[:5])) for row in part]
        assert batch["ids"].tolist() == wanted
        assert batch["ids_lengths"].tolist() == [min(5, len(row)) for row in part]
        assert batch["name"] == [str(i) for i in range(start - 37, min(start, N))]


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_multiple_follows_the_padding_of_the_dataset(kind: str) -> None:
    converter = functools.partial(concat_examples, pad_to_multiple=4)
    table = pa.table({"ids": [[1], [2, 3, 4, 5, 6]]})
    (batch,) = batches(ArrowDataset(table, padding=-1), ITERATORS[kind], converter=converter)
    assert batch["ids"].tolist() == [[1] + [-1] * 7, [2, 3, 4, 5, 6] + [-1] * 3]
    with pytest.raises(ValueError, match="needs padding, of concat_examples or of the dataset"):
        batches(ArrowDataset(table), ITERATORS[kind], converter=converter)


@pytest.mark.parametrize("kind", ITERATORS)
def test_lists_of_different_lengths_need_padding(kind: str) -> None:
    dataset = ArrowDataset(pa.table({"ids": [[1], [2, 3]], "name": ["a", "b"]}))
    with pytest.raises(ValueError, match=r"'ids'.*ArrowDataset\(..., padding=0\)"):
        batches(dataset, ITERATORS[kind], converter=concat_examples)
    equal = ArrowDataset(pa.table({"ids": [[1, 2], [2, 3]]}))
    (batch,) = batches(equal, ITERATORS[kind], converter=concat_examples)
    assert batch["ids"].tolist() == [[1, 2], [2, 3]]


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_text_that_is_none_fails_its_row_alone(kind: str) -> None:
    bad = pa.array([b"a", b"\xff", b"c"]).view(pa.string())
    dataset = ArrowDataset(pa.table({"s": bad, "ids": [[1], [2, 2], [3]]}), padding=0)
    with pytest.raises(UnicodeDecodeError):
        batches(dataset, ITERATORS[kind], converter=concat_examples)
    (batch,) = batches(dataset, ITERATORS[kind], converter=concat_examples, on_error="skip")
    assert batch["s"] == ["a", "c"] and batch["ids"].tolist() == [[1], [3]]
    other = Replacement({"s": "b", "ids": np.array([4, 5])})
    (batch,) = batches(
        dataset, ITERATORS[kind], converter=concat_examples, on_error=lambda *_: other
    )
    assert batch["s"] == ["a", "b", "c"] and batch["ids"].tolist() == [[1, 0], [4, 5], [3, 0]]


@pytest.mark.parametrize("name", TYPES)
def test_a_mask_replaces_nulls_by_zeros_and_what_is_empty(name: str) -> None:
    kind, _ = TYPES[name]
    (row,) = ArrowDataset(pa.table({"x": pa.array([None], kind)}), nulls="mask")
    assert row["x_valid"] == np.False_
    if name in ("struct", "map", "decimal", "time32", "time64", "interval", "list_view"):
        assert row["x"] is None
    elif isinstance(row["x"], (list, str, bytes)):
        assert not row["x"]
    else:
        assert not np.asarray(row["x"]).astype(int).any()


def test_a_mask_tells_where_nulls_were() -> None:
    columns = {
        "n": pa.array([1, None, 3], pa.int16()),
        "s": pa.array(["a", None, "c"]),
        "ids": pa.array([[1, 2], None, [3]]),
        "v": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "day": pa.array([1, None, 3], pa.date32()),
        "code": pa.array(["x", None, "x"]).dictionary_encode(),
        "full": pa.array([1, 2, 3]),
    }
    dataset = ArrowDataset(pa.table(columns), nulls="mask", padding=0)
    (batch,) = batches(dataset, SerialIterator, converter=concat_examples)
    assert dataset.keys == tuple(
        name for column in columns for name in (column, f"{column}_valid") if name != "full_valid"
    )
    assert batch["n"].tolist() == [1, 0, 3] and batch["n"].dtype == np.int16
    assert batch["s"] == ["a", "", "c"] and batch["code"] == ["x", "", "x"]
    assert batch["ids"].tolist() == [[1, 2], [0, 0], [3, 0]]
    assert batch["v"].tolist() == [[1, 2], [0, 0], [3, 4]]
    assert batch["day"].astype(int).tolist() == [1, 0, 3]
    for name in columns:
        assert name == "full" or batch[f"{name}_valid"].tolist() == [True, False, True]


DAY = np.datetime64("2020-02-03")
PADDINGS: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "int8": (pa.int8(), [-1, 2.0, True], [300, 1.5, "1"]),
    "uint16": (pa.uint16(), [65535], [-1, 65536, float("nan")]),
    "float32": (pa.float32(), [0.1, 3, float("nan")], [1e300, "?", 1j]),
    "bool": (pa.bool_(), [False, 1], ["?", 2]),
    "time": (pa.timestamp("s"), [DAY], [1.5, "?", DAY + np.timedelta64(500, "ms")]),
}


@pytest.mark.parametrize("name", PADDINGS)
def test_padding_is_a_value_of_the_columns_type(name: str) -> None:
    kind, right, wrong = PADDINGS[name]
    for values in ([[]], []):  # also where nothing is to be filled
        table = pa.table({"c": pa.array(values, pa.list_(kind))})
        for fill in right:
            assert len(ArrowDataset(table, padding={"c": fill})) == len(values)
        for fill in wrong:
            with pytest.raises(ValueError, match=r"padding of column 'c' is .* no value of dtype"):
                ArrowDataset(table, padding={"c": fill})


def test_padding_is_a_value_of_the_column() -> None:
    table = pa.table({"n": [[1], [2, 3]], "x": [[0.5], []], "b": [[True], []]})
    for padding in (1.5, {"n": 1.5}, {"n": "?"}, {"b": 2}):
        with pytest.raises(
            ValueError, match=r"padding of column '[nb]' is .* of dtype (int64|bool)"
        ):
            ArrowDataset(table, padding=padding)
    (batch,) = batches(
        ArrowDataset(table, padding={"n": -1.0, "x": 1.5, "b": True}),
        SerialIterator,
        converter=concat_examples,
    )
    assert batch["n"].tolist() == [[1, -1], [2, 3]] and batch["x"].tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize("n_chunks", [1, 3])
@pytest.mark.parametrize("kind", [pa.string(), pa.int16()])
def test_dictionaries_with_a_null_among_their_values(kind: Any, n_chunks: int) -> None:
    values = ["5", None, "7"] if kind == pa.string() else [5, None, 7]
    encoded = pa.array(values, kind).dictionary_encode(null_encoding="encode")
    assert encoded.dictionary.null_count == 1
    table = pa.table({"c": pa.chunked_array([encoded] * n_chunks)})
    assert ArrowDataset(table, "c", nulls="none")[:] == values * n_chunks
    masked = ArrowDataset(table, nulls="mask")
    assert [row["c_valid"] for row in masked] == [True, False, True] * n_chunks
    zero = "" if kind == pa.string() else 0
    assert [row["c"] for row in masked] == [values[0], zero, values[2]] * n_chunks
    with pytest.raises(ValueError, match=r"'c' of type dictionary<.*> has a null in row 1"):
        ArrowDataset(table)


def test_nulls_count_only_in_rows_of_the_dataset() -> None:
    table = pa.table({"n": [None, 1, 2], "ids": pa.array([[1], [2, None], [3]])})
    assert ArrowDataset(table[1:], "n")[0] == 1
    with pytest.raises(ValueError, match=r"'ids' of type list<.*> has a null in the list of row 1"):
        ArrowDataset(table, ["ids"])
    assert ArrowDataset(table, "ids", nulls="none")[1] == [2, None]
    assert ArrowDataset(table[2:], "ids")[0].tolist() == [3]


def test_lists_of_a_fixed_size_in_each_other_at_any_depth() -> None:
    for depth in (31, 32, 70):
        kind, value = pa.int8(), 5
        for _ in range(depth):
            kind, value = pa.list_(kind, 1), [value]
        found = ArrowDataset(pa.array([value, value], kind))[1]
        assert np.ravel(found).tolist() == [5] if depth < 32 else found == value


def test_lists_of_empty_lists() -> None:
    for kind in (pa.list_(pa.list_(pa.int64())), pa.large_list(pa.list_(pa.int64()))):
        values: list[Any] = [[[], []], [], [[], [], []]]
        dataset = ArrowDataset(pa.array(values, kind))
        check_equal(list(dataset), values)


def test_structs_and_lists_of_intervals_are_values_that_can_be_pickled() -> None:
    interval = pa.MonthDayNano([1, -2, 3])
    values = {
        "struct": pa.array([{"interval": 5, "each": [interval]}, None]),
        "named": pa.array([{"interval": 5}, None]),
        "list": pa.array([[interval, None], []]),
        "map": pa.array([[("k", interval)], None], pa.map_(pa.string(), interval_type())),
        "bare": pa.array([interval, None]),
    }
    table = pa.table(values)
    dataset = ArrowDataset(table, nulls="none")
    found = [dataset[0], dataset[1]]
    assert found == table.to_pylist() == pickle.loads(pickle.dumps(found))


def interval_type() -> pa.DataType:
    return pa.month_day_nano_interval()


def test_tensors_of_a_fixed_shape() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    np.testing.assert_array_equal(np.stack(ArrowDataset(array)[:]), values)
    (batch,) = batches(ArrowDataset(array[1:]), SerialIterator, converter=concat_examples)
    np.testing.assert_array_equal(batch, values[1:])


@pytest.mark.parametrize("kind", [pa.bool_(), pa.date32()], ids=str)
@pytest.mark.parametrize("order", [None, (1, 0)])
def test_tensors_of_bits_and_of_days(kind: pa.DataType, order: tuple[int, ...] | None) -> None:
    tensors = pa.fixed_shape_tensor(kind, [2, 3], permutation=order and list(order))
    flat = pa.array([[i % 2, 0, 1, 0, 1, 1] for i in range(5)], pa.list_(pa.int32(), 6))
    array = pa.ExtensionArray.from_storage(tensors, flat.cast(tensors.storage_type))[1:]
    dtype = np.dtype(bool if kind == pa.bool_() else "datetime64[D]")
    wanted = [np.reshape(row, (2, 3)).astype(dtype) for row in flat.to_pylist()[1:]]
    wanted = [row.transpose(order or (0, 1)) for row in wanted]
    (batch,) = batches(ArrowDataset(array), SerialIterator, converter=concat_examples)
    assert batch.dtype == dtype
    np.testing.assert_array_equal(batch, wanted)
    array = pa.ExtensionArray.from_storage(tensors, pa.array([None], tensors.storage_type))
    masked = ArrowDataset(pa.table({"t": array}), nulls="mask")[0]["t"]
    assert masked.shape == wanted[0].shape and not masked.astype(int).any()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
def test_tensors_of_a_fixed_shape_with_axes_in_any_order_and_nulls(order: tuple[int, ...]) -> None:
    kind = pa.fixed_shape_tensor(pa.int32(), [2, 3, 4], permutation=list(order))
    flat = [None if i == 1 else list(range(24 * i, 24 * i + 24)) for i in range(3)]
    array = pa.ExtensionArray.from_storage(kind, pa.array(flat, kind.storage_type))
    wanted = [np.reshape(v, (2, 3, 4)).transpose(order) for v in flat if v is not None]
    whole = pa.chunked_array([array[:1], array[2:]])
    if order == (1, 0, 2):  # of others pyarrow's strides overlap
        np.testing.assert_array_equal(whole.chunk(1).to_numpy_ndarray()[0], wanted[1])
    np.testing.assert_array_equal(np.stack(ArrowDataset(whole)[:]), wanted)
    (batch,) = batches(ArrowDataset(whole), SerialIterator, converter=concat_examples)
    np.testing.assert_array_equal(batch, wanted)
    assert batch.dtype == np.int32
    found = ArrowDataset(array, nulls="none")[:]
    assert found[1] is None and found[0].dtype == np.int32
    np.testing.assert_array_equal([found[0], found[2]], wanted)
    masked = ArrowDataset(pa.table({"t": array}), nulls="mask")[1]["t"]
    assert masked.shape == wanted[0].shape and not masked.any()


@pytest.mark.parametrize("kind", ITERATORS)
def test_decode_runs_for_each_value(kind: str) -> None:
    rows = [bytes([i, i + 1]) for i in range(N)]
    dataset = ArrowDataset(
        pa.table({"image": rows, "label": range(N)}), decode={"image": to_pixels}
    )
    joined = batches(dataset, ITERATORS[kind], converter=concat_examples)
    assert joined[0]["image"].shape == (37, 2)
    pixels = np.concatenate([batch["image"] for batch in joined])
    assert pixels.tolist() == [list(row) for row in rows] and pixels.dtype == np.uint8
    assert np.concatenate([batch["label"] for batch in joined]).tolist() == list(range(N))


def to_pixels(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
def test_files_are_mapped_and_pickles_hold_paths(tmp_path: Path, stream: bool) -> None:
    table = pa.table({"n": range(30_000), "ids": [list(range(i % 5)) for i in range(30_000)]})
    for number in range(2):
        write(tmp_path / f"{number}.arrow", table, rows=7000, stream=stream)
    dataset = ArrowDataset(tmp_path / "*.arrow", padding=0)
    before = pa.total_allocated_bytes()
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 2000 and len(copy) == 60_000
    assert pa.total_allocated_bytes() - before < 50_000  # of 1.4 MB
    assert copy[30_004]["ids"].tolist() == [0, 1, 2, 3] and copy[-1]["n"] == 29_999
    spawned = functools.partial(MultiprocessIterator, n_processes=1, context="spawn")
    joined = batches(dataset, spawned, 10_000, converter=concat_examples)
    assert np.concatenate([batch["n"] for batch in joined]).tolist() == [*range(30_000)] * 2
    (one,) = batches(str(tmp_path / "0.arrow"), SerialIterator, 30_000)
    assert len(one) == 30_000 and one[7]["n"] == 7


def test_parts_of_a_dataset_are_gathered_too() -> None:
    dataset = ArrowDataset(pa.table({"ids": [list(range(i % 5)) for i in range(50)]}), padding=9)
    part = SubDataset(dataset, 2, 5, order=list(range(49, -1, -1)))
    (batch,) = batches(part, SerialIterator, converter=concat_examples)
    assert batch["ids"].tolist() == [[0, 1], [0, 9], [9, 9]]


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"padding": {"nosuch": 0}}, KeyError),
        ({"padding": {"ids": "a"}}, ValueError),
        ({"max_length": {"n": 4}}, ValueError),
    ],
    ids=["no field", "no number", "no list"],
)
def test_options_that_suit_no_column_are_refused(kind: str, options: Any, error: Any) -> None:
    dataset = ArrowDataset(pa.table({"ids": [[1], [2, 3]], "n": [4, 5]}), padding=0)
    with pytest.raises(error, match=r"nosuch|'ids'|'n'"):
        batches(dataset, ITERATORS[kind], converter=functools.partial(concat_examples, **options))


def mixed(kind: str, *datasets: Any, **options: Any) -> Any:
    """The first batch of datasets in equal shares."""
    sampler = MixtureOrderSampler([len(d) for d in datasets], [1] * len(datasets), seed=0)
    joined = ConcatenatedDataset(*datasets)
    it = ITERATORS[kind](
        joined, 4, order_sampler=sampler, **{"converter": concat_examples, **options}
    )
    batch = next(it)
    it.finalize()
    return batch


def source(**options: Any) -> ArrowDataset:
    rows = {"ids": [[5], [6, 7]], "s": ["a", "b"], "deep": [[[1], [2, 3]], []]}
    return ArrowDataset(pa.table(rows), **options)


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_mixture_has_the_padding_and_the_lists_of_its_sources(kind: str) -> None:
    by_converter = functools.partial(concat_examples, padding=-1)
    for padding, converter in (-1, concat_examples), (None, by_converter):
        made = [source(padding=padding) for _ in range(2)]
        batch = mixed(kind, *made, converter=converter)
        assert sorted(batch["ids"].tolist()) == [[5, -1], [5, -1], [6, 7], [6, 7]]
        assert type(batch["s"]) is list and sorted(batch["s"]) == ["a", "a", "b", "b"]
        assert batch["deep"].shape == (4, 2, 2)
    joined = ConcatenatedDataset(*made)
    for part in SubDataset(joined, 1, 3), ConcatenatedDataset(SubDataset(joined, 1, 2), joined):
        batch, *_ = batches(part, ITERATORS[kind], 2, converter=by_converter)
        assert batch["ids"].tolist() == [[6, 7], [5, -1]] and batch["s"] == ["b", "a"]


def test_a_mixture_of_sources_that_are_padded_in_different_ways_is_refused() -> None:
    with pytest.raises(ValueError, match="pad 'ids' by 0 and by -1: give them one padding"):
        ConcatenatedDataset(source(padding=0), source(padding=-1))
    ConcatenatedDataset(source(padding=0), source())
    floats = pa.array([[1.0], [2.0, 3.0]])
    both = [ArrowDataset(floats, padding=padding) for padding in (np.nan, float("nan"))]
    (batch,) = batches(ConcatenatedDataset(*both), SerialIterator, 4, converter=concat_examples)
    assert np.isnan(batch).sum() == 2


def test_a_mixture_with_a_column_with_nulls_has_its_values_in_a_list() -> None:
    tables = [pa.table({"x": values}) for values in ([1, None], [3, 4])]
    both = [ArrowDataset(table, nulls="none") for table in tables]
    (batch,) = batches(ConcatenatedDataset(*both), SerialIterator, converter=concat_examples)
    assert batch["x"] == [1, None, 3, 4]
    (batch,) = batches(
        ConcatenatedDataset(both[1], [{"x": 5}]), SerialIterator, converter=concat_examples
    )
    assert batch["x"].tolist() == [3, 4, 5]


@pytest.mark.parametrize("kind", ITERATORS)
def test_each_batch_of_a_mixture_has_such_values_in_a_list(kind: str) -> None:
    """Those without a null, too, after the first batches have shown the columns."""
    values = [*range(19), None, *range(20)]
    both = [ArrowDataset(pa.table({"x": values}), nulls="none") for _ in range(2)]
    joined = ConcatenatedDataset(*both)
    found = batches(joined, ITERATORS[kind], 4, converter=concat_examples)
    assert [batch["x"] for batch in found] == [(values * 2)[i : i + 4] for i in range(0, 80, 4)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mixture_in_the_loader_of_torch(workers: int) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    both = ConcatenatedDataset(source(padding=-1), source(padding=-1))
    (batch,) = DataLoader(both, 4, num_workers=workers)
    assert batch["s"] == ["a", "b", "a", "b"]
    assert torch.equal(batch["ids"], torch.tensor([[5, -1], [6, 7]] * 2))
    for converter in (concat_examples, functools.partial(concat_examples, max_length=2)):
        (batch,) = DataLoader(both, 4, num_workers=workers, collate_fn=converter)
        assert batch["s"] == ["a", "b", "a", "b"]
        assert batch["ids"].tolist() == [[5, -1], [6, 7]] * 2
        assert batch["deep"].shape == (4, 2, 2)


def test_a_source_of_another_library() -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.table({"a": [1, 2]}).__arrow_c_stream__(requested_schema)

    assert ArrowDataset(Stream())[1] == {"a": 2}
    assert ArrowDataset(pa.record_batch({"a": [1, 2]}))[0] == {"a": 1}
    batches = pa.table({"a": [1, 2]}).to_batches()
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    read = ArrowDataset(reader)  # which can be read once
    assert list(pickle.loads(pickle.dumps(read))) == list(read) == [{"a": 1}, {"a": 2}]
    assert ArrowDataset(pa.chunked_array([[1, 2], [3]]))[2] == 3


def test_wrong_arguments(tmp_path: Path) -> None:
    table = pa.table({"a": [1], "ids": [[1]]})
    with pytest.raises(KeyError, match="no column 'b' among"):
        ArrowDataset(table, ["b"])
    with pytest.raises(KeyError, match="padding names 'b'"):
        ArrowDataset(table, padding={"b": 0})
    with pytest.raises(ValueError, match=r"column 'a'.*no lists"):
        ArrowDataset(table, padding={"a": 0})
    for argument in ("padding", "decode"):  # of a column that is not read
        with pytest.raises(KeyError, match=f"{argument} names 'ids'"):
            ArrowDataset(table, "a", **{argument: {"ids": len}})
    clash = pa.table({"a": [1, None], "a_valid": [5, 6]})
    with pytest.raises(ValueError, match="a field 'a_valid', but there is a column of that name"):
        ArrowDataset(clash, nulls="mask")
    assert ArrowDataset(clash, ["a"], nulls="mask")[1] == {"a": 0, "a_valid": False}
    with pytest.raises(ValueError, match="nulls must be one of"):
        ArrowDataset(table, nulls="drop")
    for columns in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="at least one column, and each once"):
            ArrowDataset(table, columns)
    with pytest.raises(TypeError, match="decode of column 'a' must be callable, not 5"):
        ArrowDataset(table, decode={"a": 5})
    with pytest.raises(FileNotFoundError, match="no file"):
        ArrowDataset(tmp_path / "none.arrow")
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        ArrowDataset(bytes(tmp_path / "none.arrow"))
    with pytest.raises(TypeError, match="not int"):
        ArrowDataset(3)
    (tmp_path / "text.arrow").write_text("some text")
    with pytest.raises(ValueError, match="neither a Parquet file nor a file of"):
        ArrowDataset(tmp_path / "text.arrow")
    values = list(range(1000, 1300))
    lists = pa.table({"ids": pa.array([values[i : i + 3] for i in range(0, 300, 3)])})
    written = Path(write(tmp_path / "lists.arrow", lists, 1000)).read_bytes()
    offsets = np.arange(0, 303, 3, dtype=np.int32).tobytes()
    assert written.count(offsets) == 1
    damaged = written.replace(offsets, offsets[:-4] + b"\x00\x80\x00\x00")
    (tmp_path / "lists.arrow").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"lists\.arrow is neither .*, or it is damaged: Column 0"):
        ArrowDataset(tmp_path / "lists.arrow")
    (tmp_path / "x.parquet").write_bytes(b"PAR1....PAR1")
    with pytest.raises(ValueError, match="no complete Parquet file"):
        ArrowDataset(tmp_path / "x.parquet")
    with pytest.raises(IndexError, match="index 1 is outside"):
        ArrowDataset(table)[1]
    with pytest.raises(ValueError, match="the source has no columns"):
        ArrowDataset(table.select([]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"FEA1" + bytes(60), r"Feather file of version 1.*pyarrow\.feather\.read_table"),
        (b"x,label\n1,2\n", r"begins with the text b'x,labe'.*pyarrow\.csv\.read_csv"),
        (b"", "neither a Parquet file nor a file of the Arrow IPC format"),
    ],
)
def test_files_of_other_formats(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        ArrowDataset(tmp_path / "x.feather")


# -- folders and patterns --------------------------------------------------------------------------


def test_hidden_files_of_a_folder_are_no_data(tmp_path: Path) -> None:
    names = ["b/part-1", "part-0", "_temporary/0/part-0", ".ipynb_checkpoints/part-0", ".part-0"]
    for number, name in enumerate([*names, "_part-0"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / f"{name}.arrow", pa.table({"x": [number]}))
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [row["x"] for row in ArrowDataset(tmp_path)] == [0, 1]
    assert ArrowDataset(tmp_path / "_part-0.arrow")[0]["x"] == 5  # by its name


def test_folders_whose_names_are_values_are_told(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"k={name}").mkdir()
        write(tmp_path / f"k={name}" / "0.arrow", pa.table({"x": [1]}))
    with pytest.raises(ValueError, match=r"is partitioned: the values of column 'k' .*'k=a'"):
        ArrowDataset(tmp_path)
    assert len(ArrowDataset(tmp_path / "**" / "*.arrow")) == 2
    assert len(ArrowDataset(tmp_path / "k=a")) == 1


def test_a_file_is_named_once(tmp_path: Path) -> None:
    write(tmp_path / "0.arrow", pa.table({"x": [1]}))
    for twice in ([tmp_path / "*.arrow", tmp_path / "0.arrow"], [tmp_path, tmp_path / "0.arrow"]):
        with pytest.raises(ValueError, match=r"0\.arrow is named twice"):
            ArrowDataset(twice)


def test_files_of_unlike_columns_are_told(tmp_path: Path) -> None:
    write(tmp_path / "0.arrow", pa.table({"a": [1], "b": [2]}))
    write(tmp_path / "1.arrow", pa.table({"a": [1]}))
    with pytest.raises(
        ValueError, match=r"1\.arrow has the columns 'a: int64', and .*0\.arrow has"
    ):
        ArrowDataset(tmp_path)


# -- files that are damaged, or written anew -------------------------------------------------------

BAD_OFFSETS = np.array([0, 1 << 30, 4], np.int32)
DAMAGED: dict[str, Any] = {
    "list_view": lambda: pa.ListViewArray.from_arrays(
        pa.array([0, 1 << 30], pa.int32()), pa.array([1, 5], pa.int32()), pa.array([1, 2])
    ),
    "list of strings": lambda: pa.ListArray.from_buffers(
        pa.list_(pa.string()),
        2,
        [None, pa.py_buffer(np.array([0, 1 << 29, 2], np.int32))],
        children=[pa.array(["a", "b"])],
    ),
    "list with nulls": lambda: pa.ListArray.from_buffers(
        pa.list_(pa.int64()),
        3,
        [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([0, 1 << 29, 1 << 29, 2], np.int32))],
        children=[pa.array([1, 2])],
    ),
    "struct": lambda: pa.StructArray.from_arrays([DAMAGED["string"]()], ["a"]),
    "string": lambda: pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(BAD_OFFSETS), pa.py_buffer(b"abcd")]
    ),
    "code beyond": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, 77], pa.int32()), pa.array(["a", "b"]), safe=False
    ),
    "code below": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, -1], pa.int32()), pa.array(["a", "b"]), safe=False
    ),
    "code of numbers": lambda: pa.DictionaryArray.from_arrays(
        pa.array([0, -1], pa.int32()), pa.array([5, 6]), safe=False
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_ends_in_an_error(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"c": DAMAGED[name]()}))
    code = (
        "from fastiter.datasets import ArrowDataset\n"
        "for nulls in ('mask', 'none'):\n"
        f"    try: rows = ArrowDataset({path!r}, nulls=nulls); print([rows[i] for i in range(2)])\n"
        "    except ValueError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert ["damaged" in line for line in run.stdout.splitlines()] == [True, True]


@pytest.mark.parametrize("name", ["code beyond", "code below"])
def test_a_code_without_a_value_is_told(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"dictionary of 2 values has codes .*: the data is damaged"
    ):
        ArrowDataset(DAMAGED[name](), columns=None)[1]


REWRITTEN: dict[str, Any] = {
    "nulls": pa.array([None, 7] * 50, pa.int64()),
    "other rows": pa.array(range(5000, 5100)),
    "another type": pa.array(range(100), pa.int32()),
    "strings": pa.array([f"s{k}" for k in range(100)]),
    "fewer": pa.array(range(10)),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_file_that_was_written_anew_is_not_taken_for_the_former(
    name: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "x.arrow", pa.table({"x": range(100)}))
    dataset = ArrowDataset(path, "x")
    stored = pickle.dumps(dataset)
    assert len(pickle.loads(stored)) == 100
    write(tmp_path / "new.arrow", pa.table({"x": REWRITTEN[name]}))
    (tmp_path / "new.arrow").replace(path)
    with pytest.raises(
        ValueError, match=r"x\.arrow is another file than when the dataset was made"
    ):
        pickle.loads(stored)


def test_the_columns_of_a_file_count_besides_its_size_and_time(tmp_path: Path) -> None:
    path = Path(write(tmp_path / "x.arrow", pa.table({"x": range(100)})))
    dataset = ArrowDataset(path, "x")
    stored, before = pickle.dumps(dataset), path.stat()
    path.write_bytes(path.read_bytes().replace(b"x\0\0\0", b"y\0\0\0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(ValueError, match=r"columns are \[\('y', 'int64'\)\], and were \[\('x'"):
        pickle.loads(stored)


def test_a_row_group_of_another_type_is_no_chunk() -> None:
    class Pages:
        ends = np.array([3])

    column = Layout("fixed", np.dtype(np.int64)).column([], None, Pages(), pa.array([], pa.int64()))
    column.set_chunk(0, pa.array([1, 2, 3]).__arrow_c_array__())
    assert column.take(np.array([2, 0])).tolist() == [3, 1]
    for other in (pa.array(["a", "b", "c"]), pa.array([1, 2, 3], pa.int32()), pa.array([1, 2])):
        with pytest.raises(ValueError, match="a row group"):
            column.set_chunk(0, other.__arrow_c_array__())
    assert column.take(np.array([1])).tolist() == [2]


@pytest.mark.parametrize("n_rows", [1, 500, 700])  # few of them, and more than lie on the stack
def test_columns_of_like_and_unlike_chunks(n_rows: int) -> None:
    """Facts found about the rows of a column are used for columns like it alone."""
    rng = np.random.default_rng(n_rows)
    values = np.arange(1000)
    cuts = {"a": [0, 10, 400, 1000], "b": [0, 10, 401, 1000], "c": [0, 1000]}

    def column(name: str, length: int = 1000) -> ArrowColumn:
        ends = [min(end, length) for end in cuts[name]]
        parts = [pa.array(values[first:end]) for first, end in itertools.pairwise(ends)]
        arrays = [part.__arrow_c_array__()[1] for part in parts]
        return ArrowColumn(arrays, "fixed", np.dtype(np.int64))

    table, other = rng.permutation(1000), rng.permutation(1000)
    rows_of = {"none": None, "table": table, "other": other}
    found = {"none": values, "table": table, "other": other}
    kinds = [(name, rows) for name in cuts for rows in rows_of]
    chosen = [kinds[k] for k in rng.integers(0, len(kinds), 40)]
    columns = [(column(name), rows_of[rows]) for name, rows in chosen]
    reader = ColumnReader(tuple, (), columns, False)
    indices = rng.integers(0, 1000, n_rows)
    for (_, rows), gathered in zip(chosen, reader.gather(indices), strict=True):
        np.testing.assert_array_equal(gathered, found[rows][indices])
    # A column that is shorter than those before it lacks a row.
    indices[-1] = 999
    whole, short = (column("c"), None), (column("c", 999), None)
    assert ColumnReader(tuple, (), [whole, whole], False).gather(indices) is not None
    assert ColumnReader(tuple, (), [whole, short], False).gather(indices) is None


@pytest.mark.parametrize("loader", ["iterator", "torch"])
def test_a_str_as_dataset_is_a_path(loader: str, tmp_path: Path) -> None:
    """A folder, or a file of any name: not a sequence of letters."""
    kind: Any = SerialIterator
    if loader == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
        from fastiter.torch import DataLoader as kind
    write(tmp_path / "a.arrow", pa.table({"a": [1, 2]}), 10)
    assert [row["a"] for row in kind(str(tmp_path), 2).dataset] == [1, 2]
    (tmp_path / "a.arrow").rename(tmp_path / "nosuffix")
    assert len(kind(str(tmp_path / "nosuffix"), 2).dataset) == 2
    with pytest.raises(FileNotFoundError, match=r"has no file whose name ends with \.arrow, .*pq"):
        kind(str(tmp_path), 2)
    with pytest.raises(FileNotFoundError, match=r"no file or folder 'gone'.* path of a Parquet or"):
        kind("gone", 2)


def test_no_memory_of_its_own(tmp_path: Path) -> None:
    """Memory of a mapped file that a process has read stays shared with all others."""
    rows = 40_000
    offsets = np.arange(0, rows * 100 + 1, 100, dtype=np.int32)
    ids = pa.ListArray.from_arrays(offsets, np.zeros(rows * 100, np.int64))
    table = pa.table({"ids": ids})
    dataset = ArrowDataset(write(tmp_path / "large.arrow", table), padding=0)
    del table, ids
    it = SerialIterator(dataset, 64, repeat=False, converter=concat_examples)
    before = private_dirty()
    for _ in it:
        pass
    assert private_dirty() - before < 5 << 20  # of 32 MB
    it.finalize()


def private_dirty() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Private_Dirty")).split()[1]) * 1024


def test_a_worker_that_dies_loses_no_list() -> None:
    lists = [[i] * (i % 9) for i in range(4000)]
    dataset = ArrowDataset(pa.table({"ids": lists, "n": range(4000)}), padding=-1)
    it = MultiprocessIterator(
        dataset, 10, repeat=False, shuffle=False, n_processes=2, converter=concat_examples
    )
    seen: list[int] = []
    for number, batch in enumerate(it):
        if number == 5:
            workers = it.stats().workers
            os.kill(workers[0].pid, signal.SIGKILL)
        if number == 60:  # before the caller gathers
            os.kill(workers[1].pid, signal.SIGKILL)
        seen += batch["n"].tolist()
        check_padded(batch["ids"] + 1, [[x + 1 for x in lists[i]] for i in batch["n"].tolist()])
    assert it.stats().deaths >= 1
    it.finalize()
    assert seen == list(range(4000))


@pytest.mark.parametrize("iterator", ITERATORS)
def test_a_frame_is_a_table(iterator: Any) -> None:
    """By the places of its rows, whatever its index; NaN is a value."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    rows = {"x": [1.5, np.nan, 2.5, 4.0], "n": [1, 2, 3, 7], "s": ["a", "b", "c", "d"]}
    frame = pandas.DataFrame(rows)
    for part in (frame[frame.n > 1], frame.iloc[1:].set_index("n", drop=False)):
        (examples,) = batches(part, ITERATORS[iterator], 3)
        assert [list(example) for example in examples] == [list(rows)] * 3
        check_equal([example["s"] for example in examples], rows["s"][1:])
        (batch,) = batches(part, ITERATORS[iterator], 3, converter=concat_examples)
        np.testing.assert_array_equal(batch["x"], rows["x"][1:])
        assert batch["n"].tolist() == [2, 3, 7]
    with pytest.raises(TypeError, match=r"^source is a Series, no table: pass its to_frame"):
        ArrowDataset(frame[frame.columns[0]])


class FrameOfAnyLibrary:
    """The common methods of pandas, Polars and others."""

    columns = ("x",)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return pa.table({"x": [3, 4]}).__arrow_c_stream__(requested_schema)


def test_a_frame_of_another_library_is_a_table() -> None:
    (batch,) = batches(FrameOfAnyLibrary(), SerialIterator, 2, converter=concat_examples)
    assert batch["x"].tolist() == [3, 4]
