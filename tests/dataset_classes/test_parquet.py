"""Parquet files: values, row groups that are decoded once, faults, and orders by block."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="this pyarrow has no Parquet")

from arrow_cases import ITERATORS, TYPES, check_equal, column_of  # noqa: E402

from fastiter import (  # noqa: E402
    BlockShuffleOrderSampler,
    MultiprocessIterator,
    SerialIterator,
    concat_examples,
)
from fastiter._fetch import parquet_files, row_groups  # noqa: E402
from fastiter.datasets import ArrowDataset, SubDataset, TransformDataset  # noqa: E402

N = 3000


def table_of(n: int = N) -> Any:
    return pa.table(
        {
            "n": np.arange(n),
            "ids": [list(range(i % 9)) for i in range(n)],
            "text": [f"row {i}" for i in range(n)],
            "part": [{"a": i} for i in range(n)],
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> Path:
    """A folder of two files, of 12 row groups of up to 300 rows."""
    folder = tmp_path_factory.mktemp("parquet")
    table = table_of()
    pq.write_table(table[:1700], folder / "a.parquet", row_group_size=300)
    pq.write_table(table[1700:], folder / "b.parquet", row_group_size=250)
    return folder


def by_block(dataset: ArrowDataset, window: int = 3, seed: int = 0) -> BlockShuffleOrderSampler:
    return BlockShuffleOrderSampler(seed, dataset.row_group_ends, window)


def check_rows(rows: Any, places: list[int]) -> None:
    for row, i in zip(rows, places, strict=True):
        ids = row["ids"].tolist()
        assert (row["n"], row["text"], row["part"]) == (i, f"row {i}", {"a": i})
        assert [x for x in ids if x >= 0] == list(range(i % 9))


def rows_of(batch: Any) -> list[dict[str, Any]]:
    if isinstance(batch, list):
        return batch
    return [dict(zip(batch, row, strict=True)) for row in zip(*batch.values(), strict=True)]


@pytest.mark.parametrize("null_share", [0.0, 0.2], ids=["without nulls", "with nulls"])
def test_values_are_those_of_to_pylist(null_share: float, tmp_path: Path) -> None:
    """Those of each type that Parquet has."""
    n, order = 60, np.random.default_rng(0).permutation(60).tolist()
    columns = {}
    for name in TYPES:
        column = column_of(name, n, null_share, seed=0)
        try:
            pq.write_table(pa.table({name: column}), tmp_path / "one", row_group_size=7)
            pq.read_table(tmp_path / "one")  # PyArrow 25 fails over lists of one length with nulls
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        columns[name] = column
    assert len(columns) > 30
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=7)
    wanted = pq.read_table(tmp_path / "x.parquet").to_pylist()
    dataset = ArrowDataset(tmp_path / "x.parquet", nulls="none" if null_share else "error")
    found = dataset.__getitems__(order)
    for name in columns:
        check_equal([row[name] for row in found], [wanted[i][name] for i in order])
    if null_share:
        masked = ArrowDataset(tmp_path / "x.parquet", ["int8", "string"], nulls="mask")
        for row, i in zip(masked.__getitems__(order), order, strict=True):
            for name in ("int8", "string"):
                assert row[f"{name}_valid"] == (wanted[i][name] is not None)
                assert row[name] == (wanted[i][name] or type(row[name])())
        message = r"'int8' of type int8 has a null in row \d+"
        with pytest.raises(ValueError, match=message):
            ArrowDataset(tmp_path / "x.parquet", "int8")


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="this pyarrow has no UUIDs")
def test_types_of_files_that_other_libraries_wrote(tmp_path: Path) -> None:
    """Without Arrow's schema a type of Parquet's tells that values are UUIDs."""
    values = [uuid.UUID(int=i) for i in range(3)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"key": pa.array(values, pa.uuid())}), path, store_schema=False)
    assert pq.read_table(path)["key"].to_pylist() == values
    dataset = pickle.loads(pickle.dumps(ArrowDataset(path)))
    assert [row["key"] for row in dataset] == values


@pytest.mark.skipif(not hasattr(pa, "json_"), reason="this pyarrow has no JSON")
def test_json_is_a_text(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array(['{"b": 1}', None, "[]"], pa.json_())})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    for source in (table, tmp_path / "a.parquet"):
        dataset = ArrowDataset(source, nulls="mask")
        batch = next(SerialIterator(dataset, 3, shuffle=False, converter=concat_examples))
        assert batch["a"] == ['{"b": 1}', "", "[]"]
        assert batch["a_valid"].tolist() == [True, False, True]


def test_tensors_whose_axes_are_stored_in_another_order(tmp_path: Path) -> None:
    of = pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0])
    rows = pa.array(np.arange(24).reshape(4, 6).tolist(), pa.list_(pa.int8(), 6))
    table = pa.table({"x": pa.ExtensionArray.from_storage(of, rows)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=3)
    dataset = ArrowDataset(tmp_path / "x.parquet")
    wanted = np.arange(24, dtype=np.int8).reshape(4, 2, 3).transpose(0, 2, 1)
    np.testing.assert_array_equal([row["x"] for row in dataset.__getitems__([0, 1, 2, 3])], wanted)


def test_files_without_rows(tmp_path: Path) -> None:
    """They are a dataset without examples, as tables and Arrow files without rows are."""
    for number, sizes in enumerate(([], [0, 0])):
        with pq.ParquetWriter(tmp_path / f"{number}.parquet", table_of(3).schema) as writer:
            for size in sizes:
                writer.write_table(table_of(3)[:size])
    for dataset in (ArrowDataset(tmp_path), pickle.loads(pickle.dumps(ArrowDataset(tmp_path)))):
        assert len(dataset) == 0
        assert dataset.keys == tuple(table_of(3).column_names)
        with pytest.raises(IndexError):
            dataset[0]
    pq.write_table(table_of(3), tmp_path / "2.parquet")
    check_rows(ArrowDataset(tmp_path).__getitems__([2, 0]), [2, 0])


@pytest.mark.parametrize("converter", [None, concat_examples], ids=["examples", "arrays"])
@pytest.mark.parametrize("kind", ITERATORS)
def test_each_group_is_decoded_once_an_epoch(kind: str, converter: Any, files: Path) -> None:
    dataset = ArrowDataset(files, padding=-1)
    n_groups = len(dataset.row_group_ends)
    it = ITERATORS[kind](
        dataset, 64, order_sampler=by_block(dataset), converter=converter, repeat=False
    )
    for epoch in range(3):
        seen = []
        for batch in it:
            rows = rows_of(batch)
            check_rows(rows, [int(row["n"]) for row in rows])
            seen += [int(row["n"]) for row in rows]
            assert np.count_nonzero(dataset._groups._owners) <= 5
        assert sorted(seen) == list(range(N))
        # A group that two epochs have at their border need not be decoded twice.
        decoded = it.stats().row_groups_decoded
        assert n_groups * (epoch + 1) - 5 * epoch <= decoded <= n_groups * (epoch + 1)
        it.reset()
    it.finalize()
    assert not dataset._groups._owners.any()


@pytest.mark.parametrize("kind", ITERATORS)
def test_more_rows_ahead_than_the_window_has(kind: str, files: Path) -> None:
    """Batches that reach over several windows, of one group each."""
    dataset = ArrowDataset(files, "n")
    order = by_block(dataset, window=1)
    wanted = by_block(dataset, window=1)(np.arange(N), 0)[:]
    it = ITERATORS[kind](dataset, 700, order_sampler=order, converter=concat_examples, repeat=False)
    assert np.concatenate(list(it)).tolist() == wanted.tolist()
    assert it.stats().row_groups_decoded == len(dataset.row_group_ends)
    it.finalize()


def test_decoding_that_kills_a_worker(files: Path, tmp_path: Path, monkeypatch: Any) -> None:
    write = row_groups.RowGroups._write

    def write_or_die(self: Any, group: int, cell: int) -> None:
        if group % 4 == 1:
            try:
                (tmp_path / str(group)).touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        write(self, group, cell)

    monkeypatch.setattr(row_groups.RowGroups, "_write", write_or_die)
    dataset = ArrowDataset(files, ["n", "text"])
    it = MultiprocessIterator(
        dataset,
        64,
        order_sampler=by_block(dataset),
        converter=concat_examples,
        repeat=False,
        n_processes=2,
        context="fork",
    )
    seen = [n for batch in it for n in batch["n"].tolist()]
    assert seen == by_block(dataset)(np.arange(N), 0)[:].tolist()
    stats = it.stats()
    assert stats.deaths == len(list(tmp_path.iterdir())) == 3
    # Of those that the dead worker had read from, no group but its own is decoded again.
    assert stats.row_groups_decoded == len(dataset.row_group_ends)
    it.finalize()


def test_reset_snapshot_and_copies(files: Path) -> None:
    dataset = ArrowDataset(files, ["n"])
    make = functools.partial(
        MultiprocessIterator, dataset, 100, converter=concat_examples, n_processes=2
    )
    it = make(order_sampler=by_block(dataset))
    for _ in range(12):
        next(it)
    state = it.state_dict()
    wanted = [next(it)["n"].tolist() for _ in range(40)]
    again = make(order_sampler=by_block(dataset))
    next(again)
    again.load_state_dict(state)
    assert [next(again)["n"].tolist() for _ in range(40)] == wanted
    it.load_state_dict(state)
    assert [next(it)["n"].tolist() for _ in range(40)] == wanted
    other = copy.copy(again)
    it.finalize()
    again.reset()
    assert sorted(n for _ in range(30) for n in next(again)["n"].tolist()) == list(range(N))
    again.finalize()
    next(other)
    other.finalize()


def test_spawned_workers_share_the_groups(files: Path) -> None:
    dataset = ArrowDataset([files / "a.parquet", files / "b.parquet"], ["n"])
    assert len(pickle.dumps(dataset)) < 2000
    assert pickle.loads(pickle.dumps(dataset))[2999] == {"n": 2999}
    it = MultiprocessIterator(
        dataset,
        100,
        order_sampler=by_block(dataset),
        converter=concat_examples,
        repeat=False,
        n_processes=2,
        context="spawn",
    )
    assert sorted(n for batch in it for n in batch["n"].tolist()) == list(range(N))
    assert it.stats().row_groups_decoded == len(dataset.row_group_ends)
    it.finalize()


def number_after(row: dict[str, Any]) -> int:
    return int(row["n"]) + 1


@pytest.mark.parametrize("kind", ITERATORS)
def test_datasets_over_it(kind: str, files: Path) -> None:
    dataset = ArrowDataset(str(files / "*.parquet"), ["n"])
    changed = TransformDataset(dataset, number_after)
    it = ITERATORS[kind](changed, 64, order_sampler=by_block(dataset), repeat=False)
    assert sorted(itertools.chain.from_iterable(it)) == list(range(1, N + 1))
    assert it.stats().row_groups_decoded == len(dataset.row_group_ends)
    it.finalize()
    part = SubDataset(dataset, 10, 500)
    it = ITERATORS[kind](part, 64, shuffle=False, repeat=False, converter=concat_examples)
    assert [n for batch in it for n in batch["n"].tolist()] == list(range(10, 500))
    it.finalize()


def twice(data: bytes) -> Any:
    return np.frombuffer(data, np.uint8) * np.uint8(2)


@pytest.mark.parametrize("kind", ITERATORS)
def test_decode_runs_for_each_value(kind: str, tmp_path: Path) -> None:
    table = pa.table({"image": [bytes([i % 100] * 4) for i in range(500)]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50)
    dataset = ArrowDataset(tmp_path / "x.parquet", "image", decode={"image": twice})
    it = ITERATORS[kind](dataset, 64, shuffle=False, repeat=False, converter=concat_examples)
    assert np.concatenate(list(it))[:, 3].tolist() == [i % 100 * 2 for i in range(500)]
    assert it.stats().row_groups_decoded == 10
    it.finalize()


#: Among batches of four, some without a list, without an element, and ragged at both depths.
LISTS_OF_LISTS = [
    *([], [], [], [], [[]], [], [[], []], []),
    *([[1, 2], [3]], [[4]], [], [[5, 6, 7], [8], [9]], [[1]], [[2]], [[3]], [[4]]),
]


@pytest.fixture(scope="module")
def lists_of_lists(tmp_path_factory: Any) -> dict[str, Any]:
    """The same rows, of a table whose batches are gathered, and where they are made of examples."""
    rows = {"a": pa.array(LISTS_OF_LISTS, pa.list_(pa.list_(pa.int32())))}
    path = tmp_path_factory.mktemp("lists") / "x.parquet"
    pq.write_table(pa.table(rows), path, row_group_size=3)
    with_bytes = pa.table({**rows, "b": [b"xy"] * len(LISTS_OF_LISTS)})
    return {
        "gathered": ArrowDataset(pa.table(rows)),
        "parquet": ArrowDataset(path),
        "decode": ArrowDataset(with_bytes, decode={"b": len}),
    }


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize("source", ["gathered", "parquet", "decode"])
@pytest.mark.parametrize(
    "options",
    [
        {"padding": 7},
        {"padding": {"a": 7}, "max_length": 2, "pad_to_multiple": 4, "return_lengths": {"a": True}},
    ],
    ids=str,
)
def test_lists_of_lists_are_joined_alike_by_all_iterators(
    kind: str, source: str, options: Any, lists_of_lists: dict[str, Any]
) -> None:
    converter = functools.partial(concat_examples, **options)
    order = {"shuffle": False, "repeat": False, "converter": converter}
    wanted = list(SerialIterator(lists_of_lists["gathered"], 4, **order))
    it = ITERATORS[kind](lists_of_lists[source], 4, **order)
    for batch, gathered in zip(it, wanted, strict=True):
        for name, array in gathered.items():
            assert (batch[name].dtype, batch[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(batch[name], array)
    it.finalize()
    assert wanted[0]["a"].shape[::2] == (4, 0) and wanted[0]["a"].dtype == np.int32


@pytest.mark.parametrize("kind", ITERATORS)
def test_lists_of_lists_of_one_shape_need_no_padding(
    kind: str, lists_of_lists: dict[str, Any]
) -> None:
    for dataset in lists_of_lists.values():
        it = ITERATORS[kind](dataset, 4, shuffle=False, converter=concat_examples)
        assert next(it)["a"].shape == (4, 0, 0)
        with pytest.raises(ValueError, match=r"'a': examples differ in shape: .* set padding"):
            next(it)
        with pytest.raises(
            ValueError, match=r"'a': lists in example 0 \(dataset index 8\) .*; set padding"
        ):
            next(it)
        assert next(it)["a"].tolist() == [[[1]], [[2]], [[3]], [[4]]]
        it.finalize()


def test_no_threads_stay(files: Path) -> None:
    before = set(os.listdir("/proc/self/task")) if Path("/proc/self/task").exists() else set()
    it = SerialIterator(str(files / "a.parquet"), 64, shuffle=False, repeat=False)
    assert sum(len(batch) for batch in it) == 1700
    it.finalize()
    if before:
        assert set(os.listdir("/proc/self/task")) <= before


def test_random_rows_are_warned_of(files: Path) -> None:
    with pytest.warns(UserWarning, match=r"order without blocks.*row_group_ends"):
        it = SerialIterator(ArrowDataset(files), 8, shuffle=True)
    assert len(next(it)) == 8
    it.finalize()


def test_many_threads_of_a_program(files: Path) -> None:
    """Several threads that read one dataset: more groups than there are cells."""
    dataset = ArrowDataset(files, "n")
    dataset._groups.keep_for(1, dataset)
    wrong: list[Any] = []

    def read(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(N)[:200].tolist()
        for start in range(0, 200, 40):
            part = order[start : start + 40]
            if dataset.__getitems__(part) != part:
                wrong.append(part)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_wrong_files(files: Path, tmp_path: Path) -> None:
    data = (files / "a.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match=r"cut.parquet is no complete Parquet file"):
        ArrowDataset(tmp_path / "cut.parquet")
    (tmp_path / "a.arrow").write_bytes(b"ARROW1")
    with pytest.raises(ValueError, match=r"a.arrow is no Parquet file, as others are: name files"):
        ArrowDataset(tmp_path)
    pq.write_table(pa.table({"m": [1]}), tmp_path / "other.parquet")
    with pytest.raises(ValueError, match=r"other.parquet has the columns.*name files of the same"):
        ArrowDataset([files / "a.parquet", tmp_path / "other.parquet"])
    codes = pa.table({"c": pa.array(["a", "b"]).dictionary_encode()})
    pq.write_table(codes, tmp_path / "codes.parquet")
    assert ArrowDataset(tmp_path / "codes.parquet", "c")[1] == "b"
    with pytest.raises(IndexError, match="index 3000 is outside"):
        ArrowDataset(files)[3000]


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_damaged_group_fails_its_rows(kind: str, files: Path, tmp_path: Path) -> None:
    data = bytearray((files / "a.parquet").read_bytes())
    place = pq.read_metadata(files / "a.parquet").row_group(2).column(0).data_page_offset
    data[place : place + 30] = b"\xff" * 30
    (tmp_path / "bad.parquet").write_bytes(data)
    dataset = ArrowDataset(tmp_path / "bad.parquet", "n")
    it = ITERATORS[kind](
        dataset, 100, shuffle=False, repeat=False, on_error="skip", skip_limit=None
    )
    seen = [int(n) for batch in it for n in batch]
    assert seen == [*range(600), *range(900, 1700)]
    it.finalize()


def test_block_orders_of_blocks_that_differ() -> None:
    ends = np.array([3, 10, 11, 20])
    order = BlockShuffleOrderSampler(5, ends, 2)(np.arange(20), 0)
    assert sorted(order[:].tolist()) == list(range(20))
    blocks = np.searchsorted(ends, order[:], side="right").tolist()
    seen = list(dict.fromkeys(blocks))
    half = sum([3, 7, 1, 9][block] for block in seen[:2])
    assert set(blocks[:half]) == set(seen[:2]) and set(blocks[half:]) == set(seen[2:])
    assert all((order[a:b] == order[:][a:b]).all() for a in range(20) for b in range(a, 20, 3))
    assert pickle.loads(pickle.dumps(order)) == order
    assert order != BlockShuffleOrderSampler(5, ends, 1)(np.arange(20), 0)
    assert hash(order) == hash(BlockShuffleOrderSampler(5, ends, 2)(np.arange(20), 0))
    equal = BlockShuffleOrderSampler(5, [4, 8, 12, 14], 3)(np.arange(14), 0)
    assert equal[:].tolist() == BlockShuffleOrderSampler(5, 4, 3)(np.arange(14), 0)[:].tolist()
    with pytest.raises(ValueError, match=r"end at 20, and the dataset has 30.*row_group_ends"):
        BlockShuffleOrderSampler(5, ends, 2)(np.arange(30), 0)
    with pytest.raises(ValueError, match="must ascend"):
        BlockShuffleOrderSampler(5, [3, 3], 2)
    with pytest.raises(TypeError, match="ends of all blocks"):
        BlockShuffleOrderSampler(5, [0.5], 2)


def test_torch_loader(files: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    for workers in (0, 2):
        dataset = ArrowDataset(files, ["n", "ids"], padding=-1)
        loader = DataLoader(dataset, batch_size=64, num_workers=workers)
        rows = [n for batch in loader for n in batch["n"].tolist()]
        assert rows == list(range(N))
        assert dataset._groups.n_decoded == len(dataset.row_group_ends)
    with pytest.warns(UserWarning, match="order without blocks"):
        DataLoader(dataset, shuffle=True)


def test_torch_loader_joins_lists_of_lists(lists_of_lists: dict[str, Any]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from fastiter.torch import DataLoader

    converter = functools.partial(concat_examples, padding=7)
    wanted = [
        batch["a"] for batch in DataLoader(lists_of_lists["gathered"], 4, collate_fn=converter)
    ]
    loader = DataLoader(lists_of_lists["parquet"], 4, num_workers=1, collate_fn=converter)
    for batch, array in zip(loader, wanted, strict=True):
        assert (batch["a"].dtype, batch["a"].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(batch["a"], array)


def test_the_metadata_of_a_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "many.parquet"
    pq.write_table(pa.table({"n": range(1000)}), path, row_group_size=20)
    dataset = ArrowDataset(path)
    n_read = []

    class Counting(pq.ParquetFile):
        def __init__(self, *arguments: Any, metadata: Any = None, **options: Any) -> None:
            n_read.append(metadata is None)
            super().__init__(*arguments, metadata=metadata, **options)

    monkeypatch.setattr(pq, "ParquetFile", Counting)
    with SerialIterator(dataset, 10, repeat=False, shuffle=False) as iterator:
        assert [example["n"] for batch in iterator for example in batch] == list(range(1000))
    assert len(n_read) >= 50 and sum(n_read) <= 1


def test_the_memory_of_row_groups_is_given_back_with_the_dataset(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1, 2], "s": ["x", "y"]}), path)
    before = os.listdir("/proc/self/fd")
    gc.disable()
    try:
        dataset = ArrowDataset(path)
        assert dataset[1]["a"] == 2 and len(os.listdir("/proc/self/fd")) > len(before)
        del dataset
        assert os.listdir("/proc/self/fd") == before
    finally:
        gc.enable()


def test_a_fork_while_another_thread_holds_the_groups(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child, which has not that thread, reads the same groups in threads of its own."""
    dataset = ArrowDataset(files, "n")
    groups = dataset._groups
    inside, go_on = threading.Event(), threading.Event()
    map_group = row_groups.RowGroups._map

    def held(self: row_groups.RowGroups, group: int) -> None:
        inside.set()
        assert go_on.wait(60)
        map_group(self, group)

    monkeypatch.setattr(row_groups.RowGroups, "_map", held)
    thread = threading.Thread(target=dataset.__getitem__, args=(0,))
    thread.start()
    assert inside.wait(60)
    monkeypatch.setattr(row_groups.RowGroups, "_map", map_group)
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            assert groups._lock.acquire(blocking=False)  # before any thread has looked at it
            groups._lock.release()
            found: list[int] = []
            start = threading.Barrier(4)

            def read(first: int) -> None:
                start.wait()
                found.extend(int(dataset[row]) for row in range(first, N, 97 * 4))

            threads = [threading.Thread(target=read, args=(97 * k,)) for k in range(4)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            status = sorted(found) != list(range(0, N, 97))
        os._exit(status)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_iterator_more_costs_the_first_one_no_groups(files: Path) -> None:
    """The cells are those that the iterator with the largest window needs."""
    dataset = ArrowDataset(files, "n")
    groups = dataset._groups
    first = SerialIterator(dataset, 50, order_sampler=by_block(dataset, 8), repeat=False)
    seen = [int(n) for n in next(first)]
    assert groups.n_cells == 10
    with SerialIterator(dataset, 50, shuffle=False) as second:
        next(second)
        assert groups.n_cells == 10
        decoded = groups.n_decoded
    assert (
        groups.n_cells == 10 and np.count_nonzero(groups._owners) == decoded
    )  # nothing is dropped
    third = SerialIterator(dataset, 50, order_sampler=by_block(dataset, 9))
    assert groups.n_cells == 11
    del third
    seen += [int(n) for batch in first for n in batch]
    assert sorted(seen) == list(range(N))
    assert groups.n_decoded <= len(dataset.row_group_ends) + 2
    first.finalize()
    assert not groups._owners.any()
    fourth = SerialIterator(dataset, 50, shuffle=False)
    assert groups.n_cells == 3
    fourth.finalize()


@pytest.mark.filterwarnings("ignore:rows of 30 row groups")
def test_the_file_of_the_cells_grows_with_what_is_decoded(tmp_path: Path) -> None:
    """Groups of very unlike sizes, in cells that are used again, by two processes."""
    rng, sizes = np.random.default_rng(0), [1, 40_000, 3, 200_000, 1000, 400_000, 2, 1, 90_000, 5]
    sizes *= 3
    values = np.concatenate([rng.integers(0, 1 << 60, size) for size in sizes])
    ends = np.cumsum(sizes)
    with pq.ParquetWriter(tmp_path / "x.parquet", pa.schema([("x", pa.int64())])) as writer:
        for end, size in zip(ends, sizes, strict=True):
            writer.write_table(pa.table({"x": values[end - size : end]}))
    dataset = ArrowDataset(tmp_path / "x.parquet", "x")
    cells = dataset._memory[1].fd
    assert os.fstat(cells).st_size == 0
    places = [int(p) for p in np.concatenate([ends - 1, rng.permutation(ends - 1)])]
    with MultiprocessIterator(
        dataset, n_processes=2, context="fork", batch_sampler=lambda epoch: [places]
    ) as iterator:
        for _ in range(3):
            assert [int(x) for x in next(iterator)] == values[places].tolist()
            assert [int(x) for x in dataset.__getitems__(places)] == values[places].tolist()
    # Cells of the largest group, and the parts that they have outgrown.
    assert 0 < os.fstat(cells).st_size < 4 * dataset._groups.n_cells * 8 * max(sizes)
    assert os.fstat(cells).st_blocks == 0


def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    program = """
import os, resource, signal, sys
from fastiter.datasets import ArrowDataset
ArrowDataset(sys.argv[1])
before = os.listdir("/proc/self/fd")
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
dataset = ArrowDataset(sys.argv[1], "n")
for _ in range(3):
    try:
        dataset[0]
    except OSError as error:
        print(error.errno, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, resource.RLIM_INFINITY))
for _ in range(3):
    try:
        ArrowDataset(sys.argv[1])
    except OSError as error:
        print(error.errno, error)
del dataset
print(os.listdir("/proc/self/fd") == before)
"""
    pq.write_table(pa.table({"n": range(10_000)}), tmp_path / "x.parquet", row_group_size=5000)
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x.parquet"], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert len(lines) == 7 and lines[-1] == "True"
    for line in lines[:3]:
        assert line.startswith("27 ") and "row groups" in line and "ulimit -f" in line
    for line in lines[3:6]:
        assert line.startswith("27 ") and "RLIMIT_FSIZE" in line


def test_a_limit_of_the_address_space_is_named(tmp_path: Path) -> None:
    program = """
import re, resource, sys
from pathlib import Path
from fastiter.datasets import ArrowDataset
before = ArrowDataset(sys.argv[1], "n")
before[0]
dataset = ArrowDataset(sys.argv[1], "n")
used = int(re.search(r"VmSize:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_AS, ((used << 10) + (1 << 20), resource.RLIM_INFINITY))
try:
    dataset[0]
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(dataset[0])
"""
    table = pa.table({"n": np.random.default_rng(0).integers(0, 1 << 60, 1_000_000)})
    pq.write_table(table, tmp_path / "x.parquet")
    run = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "x.parquet"], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    error, value = run.stdout.splitlines()
    assert "row groups" in error and "raise RLIMIT_AS (ulimit -v)" in error
    assert int(value) == table["n"][0].as_py()


# ---- files that are damaged, encrypted or written anew ---------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        [f"s{k}" for k in range(100)],
        pa.array([None, 7] * 50, pa.int64()),
        np.arange(5000, 5100),
        np.arange(100, dtype=np.int32),
        [[k] for k in range(100)],
    ],
    ids=["strings", "nulls", "other rows", "int32", "lists"],
)
def test_a_file_that_was_written_anew(other: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(100)}), path, row_group_size=20)
    dataset, opened = ArrowDataset(path, "x"), ArrowDataset(path, "x")
    assert opened[0] == 0
    pickled = pickle.dumps(dataset)
    copied = path.read_bytes()
    pq.write_table(pa.table({"x": other}), path, row_group_size=20)
    message = "x.parquet is another file than when the dataset was made"
    for known in (dataset, opened):
        with pytest.raises(ValueError, match=message):
            known[99]
    with pytest.raises(ValueError, match=message):
        pickle.loads(pickled)
    with (
        MultiprocessIterator(dataset, 20, shuffle=False, n_processes=1, context="spawn") as it,
        pytest.raises(Exception, match=message),
    ):
        next(it)
    path.write_bytes(copied)  # the same file, at another time
    assert pickle.loads(pickled)[99] == 99 and dataset[99] == 99 and opened[99] == 99


def test_a_file_that_was_written_anew_among_many(tmp_path: Path) -> None:
    """Of which not all metadata is kept."""
    for k in range(40):
        pq.write_table(pa.table({"x": np.arange(20)}), tmp_path / f"{k:02}.parquet")
    with SerialIterator(ArrowDataset(tmp_path, "x"), 20, shuffle=False) as iterator:
        next(iterator)
        pq.write_table(pa.table({"x": [f"s{k}" for k in range(20)]}), tmp_path / "00.parquet")
        for _ in range(39):
            next(iterator)
        with pytest.raises(ValueError, match=r"00.parquet is another file"):
            next(iterator)


def test_a_file_that_is_cut_after_its_dataset_was_made_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": np.arange(100)}), path)
    dataset = ArrowDataset(path, "x")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"x.parquet is no complete Parquet file"):
        dataset[99]


def encrypted(path: Path, has_open_footer: bool) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Client(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def wrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64encode(key)

        def unwrap_key(self, key: bytes, _: str) -> bytes:
            return base64.b64decode(key)

    configuration = encryption.EncryptionConfiguration(
        footer_key="k", column_keys={"c": ["secret"]}, plaintext_footer=has_open_footer
    )
    properties = encryption.CryptoFactory(lambda _: Client()).file_encryption_properties(
        encryption.KmsConnectionConfig(), configuration
    )
    table = pa.table({"x": range(100), "secret": range(100)})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)


def test_encrypted_columns_are_refused_and_others_read(tmp_path: Path) -> None:
    encrypted(tmp_path / "columns.parquet", True)
    assert ArrowDataset(tmp_path / "columns.parquet", "x")[99] == 99
    for columns in ("secret", None):
        with pytest.raises(
            ValueError, match=r"'secret' of row group 0 of .*columns.parquet cannot"
        ):
            ArrowDataset(tmp_path / "columns.parquet", columns)
    encrypted(tmp_path / "all.parquet", False)
    with pytest.raises(ValueError, match=r"all.parquet is encrypted"):
        ArrowDataset(tmp_path / "all.parquet", "x")


def test_damaged_metadata_end_no_process(tmp_path: Path) -> None:
    program = """
import random, struct, sys
from fastiter.datasets import ArrowDataset
path = sys.argv[1]
data = open(path, "rb").read()
(length,) = struct.unpack("<I", data[-8:-4])
rng, seen = random.Random(2), {"read": 0, "refused": 0}
for k in range(300):
    damaged = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        damaged[rng.randrange(len(data) - 8 - length, len(data) - 8)] = rng.randrange(256)
    open(f"{path}-{k}", "wb").write(damaged)
    try:
        dataset = ArrowDataset(f"{path}-{k}", padding=0)
    except ValueError as error:
        assert f"{path}-{k}" in str(error) or "has a null in" in str(error), error
        seen["refused"] += 1
        continue
    try:
        dataset.__getitems__(list(range(0, len(dataset), 7)))
        seen["read"] += 1
    except (OSError, ValueError):
        seen["refused"] += 1
print(seen)
"""
    table = pa.table(
        {
            "x": np.arange(300),
            "s": [f"r{i}" for i in range(300)],
            "l": [[i] * (i % 3) for i in range(300)],
        }
    )
    pq.write_table(table, tmp_path / "x", row_group_size=50)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, tmp_path / "x"],
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "'read': 0" not in run.stdout and "'refused': 0" not in run.stdout


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("statistics", [True, False, ["a"]])
def test_nulls_are_counted_as_pyarrow_counts_them(
    version: str, statistics: Any, tmp_path: Path
) -> None:
    n = 90
    table = pa.table(
        {
            "a": pa.array([None if i % 7 == 0 else i for i in range(n)]),
            "b": [f"{i}" * 300 for i in range(n)],
            "c.d": [{"e": i, "f": None if 30 < i < 50 else [i]} for i in range(n)],
            "g": [[None] if i == 80 else [[i]] for i in range(n)],
        }
    )
    pq.write_table(
        table, tmp_path / "x", row_group_size=10, version=version, write_statistics=statistics
    )
    without_nulls = parquet_files.without_nulls(str(tmp_path / "x"))
    metadata = pq.read_metadata(tmp_path / "x")
    for group in range(metadata.num_row_groups):
        wanted: dict[str, int] = {}
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            name = next(n for n in table.column_names if column.path_in_schema.startswith(n))
            known = column.statistics is not None and column.statistics.has_null_count
            more = column.statistics.null_count if known else -1
            before = wanted.get(name, 0)
            wanted[name] = -1 if -1 in (before, more) else before + more
        assert without_nulls[group] == {name for name, count in wanted.items() if count == 0}
