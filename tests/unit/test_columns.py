"""Datasets of columns in the iterators: fetched by columns, with the result of their examples."""

from __future__ import annotations

import functools
import itertools
import threading
from types import FrameType
from typing import Any

import numpy as np
import pytest
from comparison import assert_same
from epochs import steps

from fastiter import (
    DatasetMixin,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    concat_examples,
)
from fastiter._collate.collate import collate
from fastiter._collate.columns import collate_columns, examples_of, join_columns
from fastiter._collate.padding import Padding
from fastiter._fetch.gather import ColumnReader
from fastiter.dataset import TabularDataset, tabular
from fastiter.datasets import ArrowDataset, DictDataset, SubDataset, TupleDataset

ROWS = 11
numbers = np.arange(ROWS)
images = np.arange(ROWS * 12, dtype=np.float32).reshape(ROWS, 2, 6)


class Delegated(tabular.DelegateDataset):
    """A class of one's own over columns."""

    def __init__(self) -> None:
        super().__init__(tabular.from_data((("x", images), ("y", numbers))))


class Computed(TabularDataset):
    """Columns that are computed, and a note of what was asked for."""

    keys = ("x", "y")
    mode = tuple

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return ROWS

    def get_examples(self, indices: Any, key_indices: Any) -> Any:
        self.asked.append(indices)
        rows = slice(None) if indices is None else indices
        return images[rows] * 2, numbers[rows].tolist()


def doubled(x: Any, y: Any) -> tuple[Any, Any]:
    return x * 2, y


DATASETS: dict[str, Any] = {
    "tuples": TupleDataset(images, numbers),
    "dicts": DictDataset(x=images, y=numbers),
    "one column": TupleDataset(images),
    "tuples with a list": TupleDataset(images, list(range(ROWS))),
    "halves, bools, bytes": TupleDataset(
        images.astype("f2"), numbers % 2 == 0, images.astype("u1"), numbers.astype("i1")
    ),
    "complex and long": TupleDataset(numbers * 1j, images.astype("g")),
    "every second row": TupleDataset(np.repeat(images, 2, 0)[::2], numbers[::-1]),
    "Fortran order": TupleDataset(np.asfortranarray(images), numbers),
    "transposed": TupleDataset(images.transpose(0, 2, 1), numbers),
    "big-endian": TupleDataset(images.astype(">f4"), numbers.astype(">i8")),
    "empty rows": TupleDataset(images[:, :0], numbers),
    "one value": TupleDataset(np.broadcast_to(images[:1], images.shape), numbers),
    "datetimes": TupleDataset(numbers.astype("M8[s]"), images.astype("m8[ms]")),
    "structures": TupleDataset(np.zeros(ROWS, "i4,f8"), numbers),
    "nested": TupleDataset(TupleDataset(images, numbers), numbers),
    "part": SubDataset(TupleDataset(images, numbers), 1, ROWS),
    "part in an order": SubDataset(DictDataset(x=images, y=numbers), 0, 9, numbers[::-1] % 7),
    "part from the end": SubDataset(TupleDataset(images, numbers), 0, 9, numbers - ROWS),
    "part of a part": SubDataset(SubDataset(TupleDataset(numbers), 0, 9, numbers), 2, 8),
    "part of a list": SubDataset(TupleDataset(list(range(ROWS))), 3, 9),
    "tabular, tuples": tabular.from_data((images, numbers)),
    "tabular, dicts": tabular.from_data({"x": images, "y": numbers}),
    "tabular, bare": tabular.from_data(images),
    "tabular, bare numbers": tabular.from_data(numbers),
    "tabular, bare list": tabular.from_data([int(n) for n in numbers]),
    "tabular with a list": tabular.from_data((images, list(range(ROWS)))),
    "tabular with a function": tabular.from_data((("x", images), ("y", abs))),
    "view": tabular.from_data({"x": images, "y": numbers}).slice[::-1, ("y", "x")],
    "view of a view": tabular.from_data((images, numbers)).slice[[4, 4, 0, -1, 2] * 2].slice[1:],
    "masked rows": tabular.from_data((images, numbers)).slice[numbers % 3 > 0],
    "bare view": tabular.from_data({"x": images, "y": numbers}).slice[2:, "x"],
    "joined": tabular.from_data(("x", images)).slice[::-1].join(tabular.from_data(("y", numbers))),
    "concatenated": tabular.from_data((("x", images), ("y", numbers))).concat(Delegated()),
    "transformed": tabular.from_data((images, numbers)).transform(("x", "y"), doubled),
    "transformed batches": tabular.from_data((images, numbers)).transform_batch(("a",), doubled),
    "converted": tabular.from_data((images, numbers)).with_converter(doubled),
    "delegated": Delegated(),
}


class Examples:
    """The examples of another dataset, one at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def outcome(iterator: Any) -> Any:
    try:
        return next(iterator)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
@pytest.mark.parametrize("name", DATASETS)
def test_columns_give_what_examples_give(kind, name):
    dataset = DATASETS[name]
    for converter in (
        None,
        concat_examples,
        functools.partial(concat_examples, padding=7, copy=True),
        functools.partial(concat_examples, padding=(7, "no number")),
        functools.partial(concat_examples, padding={"x": 7}),
    ):
        by_columns, by_examples = (
            kind(data, 4, shuffle=False, repeat=False, converter=converter)
            for data in (dataset, Examples(dataset))
        )
        with by_columns, by_examples:
            for _ in range(4):
                assert_same(outcome(by_columns), outcome(by_examples))


@pytest.mark.parametrize("converter", [None, concat_examples])
@pytest.mark.parametrize(
    "name", ["tuples", "halves, bools, bytes", "big-endian", "view", "bare view", "transformed"]
)
def test_processes_give_what_examples_give(name, converter):
    dataset = DATASETS[name]
    expected = SerialIterator(Examples(dataset), 4, shuffle=False, converter=converter)
    with MultiprocessIterator(
        dataset, 4, shuffle=False, n_processes=2, converter=converter, context="fork"
    ) as iterator:
        for _ in range(9):  # the first batches tell the schema
            assert_same(next(iterator), next(expected))


@pytest.mark.parametrize("name", ["tuples", "tabular, dicts", "transformed"])
def test_seed_gives_the_same_batches_everywhere(make_any, name):
    def values(example: Any) -> list[Any]:
        parts = example.values() if isinstance(example, dict) else example
        return [np.asarray(part).tolist() for part in parts]

    dataset = DATASETS[name]
    np.random.seed(3)
    iterator = make_any(dataset, 4)
    random = np.random.RandomState(3)
    orders = (random.permutation(ROWS) for _ in itertools.count())
    for step in itertools.islice(steps(orders, 4, True), 7):
        batch = next(iterator)
        assert type(batch) is list
        assert [values(e) for e in batch] == [values(dataset[i]) for i in step.indices]
        assert (iterator.epoch, iterator.current_position) == (step.epoch, step.position)


def test_snapshot_continues_with_the_same_columns(make, make_source, save, load):
    dataset = DATASETS["tuples"]
    np.random.seed(5)
    source = make_source(dataset, 4)
    for _ in range(2):
        next(source)
    stored = save(source)
    rest = [int(number) for _, number in next(source)][: ROWS - 8]  # of the epoch
    iterator = make(dataset, 4)
    load(iterator, stored)
    batch = next(iterator)
    assert [int(number) for _, number in batch][: len(rest)] == rest
    assert all(np.array_equal(image, images[number]) for image, number in batch)
    converting = make(dataset, 4, converter=concat_examples)
    load(converting, stored)
    assert next(converting)[1][: len(rest)].tolist() == rest


# ---- who speaks for a dataset ------------------------------------------------------------------


class TupleWithItsOwnIndexing(TupleDataset):
    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(index)[1] * 10


class PartWithItsOwnIndexing(SubDataset):
    def get_example(self, i: int) -> Any:
        return i * 10


class TupleWithBatches(TupleDataset):
    def __getitems__(self, indices: list[int]) -> Any:
        return [index * 10 for index in indices]


class TabularWithItsOwnExamples(Delegated):
    def get_example(self, i: int) -> Any:
        return i * 10


class TabularWithItsOwnIndexing(Delegated):
    def __getitem__(self, index: Any) -> Any:
        return index * 10


class TabularWithItsOwnColumns(Delegated):
    mode = None

    def get_examples(self, indices: Any, key_indices: Any) -> Any:
        return ([index * 10 for index in indices],)


class Mixed(DatasetMixin):
    def get_example(self, i: int) -> Any:
        return i * 10


class TabularBehindAMixin(Mixed, Delegated):
    pass


def tabular_with_an_attribute() -> Any:
    dataset = Delegated()
    dataset.get_example = lambda i: i * 10
    return dataset


@pytest.mark.parametrize(
    "make_dataset",
    [
        lambda: TupleWithItsOwnIndexing(images, numbers),
        lambda: TupleWithBatches(images, numbers),
        lambda: PartWithItsOwnIndexing(TupleDataset(images, numbers), 0, ROWS),
        TabularWithItsOwnExamples,
        TabularWithItsOwnIndexing,
        TabularWithItsOwnColumns,
        TabularBehindAMixin,
        tabular_with_an_attribute,
    ],
)
def test_own_ways_to_examples_are_taken(make, make_dataset):
    tens = [[0, 10, 20, 30], [40, 50, 60, 70], [80, 90, 100]]
    assert list(make(make_dataset(), 4, shuffle=False, repeat=False)) == tens
    arrays = make(make_dataset(), 4, shuffle=False, repeat=False, converter=concat_examples)
    assert [array.tolist() for array in arrays] == tens


def test_view_of_a_class_with_its_own_columns_asks_it(make):
    dataset = TabularWithItsOwnColumns().slice[1:4]
    arrays = make(dataset, 3, shuffle=False, converter=concat_examples)
    assert [next(arrays).tolist() for _ in range(4)] == [[10, 20, 30]] * 4


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_delegate_may_change_its_dataset(kind, converter):
    dataset = Delegated()
    with kind(dataset, 2, shuffle=False, converter=converter) as iterator:
        next(iterator)
        dataset.dataset = tabular.from_data((images, numbers + 100))
        next(iterator)  # threads may have fetched it before
        batch = next(iterator)
        arrays = concat_examples(batch) if converter is None else batch
        assert arrays[1].tolist() == [104, 105]


def lists(first: int) -> ArrowDataset:
    pyarrow = pytest.importorskip("pyarrow")
    return ArrowDataset(pyarrow.array([[first + i] * (1 + i % 2) for i in range(ROWS)]))


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
def test_delegate_may_change_its_dataset_of_lists(kind):
    dataset = tabular.DelegateDataset(lists(0))
    converter = functools.partial(concat_examples, padding=0)
    with kind(dataset, 2, shuffle=False, converter=converter) as iterator:
        next(iterator)
        dataset.dataset = lists(100)
        next(iterator)  # threads may have fetched it before
        assert next(iterator).tolist() == [[104, 0], [105, 105]]


def test_threads_leave_the_filters_of_warnings_alone():
    """They are the program's, whose own warnings would be errors meanwhile."""
    callers = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_globals.get("__name__") == "warnings":
            callers.append(frame.f_code.co_name)

    converter, former = functools.partial(concat_examples, padding=0), threading.gettrace()
    threading.settrace(trace)
    try:
        with MultithreadIterator(lists(0), 2, repeat=False, converter=converter) as iterator:
            assert sum(map(len, iterator)) == ROWS
    finally:
        threading.settrace(former)
    assert not callers


# ---- get_examples --------------------------------------------------------------------------------


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_get_examples_is_asked_once_for_a_batch(converter):
    dataset = Computed()
    iterator = SerialIterator(dataset, 4, shuffle=False, converter=converter)
    next(iterator)
    next(iterator)
    assert dataset.asked == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(type(index) is int for index in dataset.asked[0])


def test_error_in_a_worker_names_the_row_that_has_it():
    iterator = MultiprocessIterator(Wrong(), 11, shuffle=False, n_processes=1)
    with iterator, pytest.raises(LookupError) as caught:
        next(iterator)
    assert "dataset index 5," in str(caught.value.__cause__)


class Wrong(Computed):
    """Has no columns for one index, and one that is too short for another."""

    def get_examples(self, indices: Any, key_indices: Any) -> Any:
        if 5 in indices:
            raise LookupError("no row 5")
        x, y = super().get_examples(indices, key_indices)
        return (x, y[:-1]) if 8 in indices else (x, y)


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_errors_of_get_examples_belong_to_their_batches(make, converter):
    iterator = make(Wrong(), 2, shuffle=False, converter=converter)
    first, second, third, fourth, fifth = (outcome(iterator) for _ in range(5))
    assert third == (LookupError, "no row 5")
    assert issubclass(fifth[0], ValueError)
    assert "get_examples returned a column of" in fifth[1]
    for numbers_due, batch in (([0, 1], first), ([2, 3], second), ([6, 7], fourth)):
        arrays = concat_examples(batch) if converter is None else batch
        assert arrays[1].tolist() == numbers_due


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
def test_examples_of_arrays_are_views_and_those_of_columns_copies(kind):
    data = images.copy()
    for dataset, shares in ((TupleDataset(data), True), (tabular.from_data((data,)), False)):
        with kind(dataset, 2, shuffle=False) as iterator:
            (example,) = next(iterator)[0]
        assert np.shares_memory(example, data) is shares
        assert example.flags.writeable


class Sharing(Computed):
    """Gives its own memory away."""

    mode = None

    def get_examples(self, indices: Any, key_indices: Any) -> Any:
        return (images[indices[0] : indices[-1] + 1],)


@pytest.mark.parametrize("dataset", [TupleDataset(images), tabular.from_data(images), Sharing()])
def test_batches_never_share_the_datasets_memory(make, dataset):
    batch = next(make(dataset, 3, shuffle=False, converter=concat_examples))
    array = batch[0] if isinstance(batch, tuple) else batch
    assert not np.shares_memory(array, images)
    assert array.tolist() == images[:3].tolist()


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_array_that_shrinks_is_an_index_error_of_its_batch(converter):
    shrinking = np.arange(8)
    iterator = SerialIterator(TupleDataset(shrinking), 2, shuffle=False, converter=converter)
    next(iterator)
    shrinking.resize(4, refcheck=False)
    next(iterator)
    for index in (4, 6):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds"):
            next(iterator)
    assert iterator.current_position == 0
    next(iterator)


# ---- the reader itself ---------------------------------------------------------------------------


def reader_of(*arrays: Any, rows: Any = None, views: bool = True) -> ColumnReader:
    keys = tuple("abc"[: len(arrays)])
    return ColumnReader(tuple, keys, [(array, rows) for array in arrays], views)


@pytest.mark.parametrize("n", [0, 1, 3, 600])
@pytest.mark.parametrize("shape", [(), (1,), (16,), (5, 7), (90, 9)])
@pytest.mark.parametrize("dtype", ["u1", "f4", "c16"])
def test_gather_is_numpys_indexing(n, shape, dtype):
    random = np.random.default_rng(n)
    array = random.integers(0, 200, (40, *shape)).astype(dtype)
    rows = random.integers(0, 40, n)
    places = random.integers(0, 40, 40)
    for source in (array, array[::-1], np.repeat(array, 2, 0)[::2]):
        gathered, again = reader_of(source, source).gather(rows)
        for result in (gathered, again):
            assert result.flags.c_contiguous
            assert result.flags.writeable and not np.shares_memory(result, array)
            assert result.dtype == array.dtype
            np.testing.assert_array_equal(result, source[rows])
        (translated,) = reader_of(source, rows=places).gather(rows)
        np.testing.assert_array_equal(translated, source[places[rows]])


def test_part_by_part():
    reader = reader_of(images, numbers)
    outputs = reader.outputs(5)
    assert reader.gather_part(outputs, 0, np.array([3, 1]))
    assert reader.gather_part(outputs, 2, np.array([0, 10, 10]))
    assert_same(reader.batch(outputs), reader.gather(np.array([3, 1, 0, 10, 10])))


@pytest.mark.parametrize("rows", [[11], [0, -1], [1 << 62], [-(1 << 63)]])
def test_rows_out_of_range_are_not_gathered(rows):
    indices = np.array(rows, dtype=np.int64)
    reader = reader_of(images, numbers)
    assert reader.gather(indices) is None
    assert reader.examples(indices) is None
    assert not reader.gather_part(reader.outputs(len(rows)), 0, indices)
    table = reader_of(images, rows=np.array([3, 40, -1]))
    assert table.gather(np.array([0]))[0].tolist() == [images[3].tolist()]
    assert table.gather(np.array([1])) is None
    assert table.gather(np.array([2])) is None
    assert table.gather(np.array([3])) is None


def test_array_of_another_shape_or_dtype_since_is_not_gathered():
    array = np.arange(24.0).reshape(6, 4)
    reader = reader_of(array)
    outputs = reader.outputs(2)
    array.shape = (3, 8)
    assert not reader.gather_part(outputs, 0, np.array([0, 1]))
    assert reader.gather(np.array([2]))[0].shape == (1, 8)
    array.dtype = ">f8"
    assert reader.outputs(2) is None


@pytest.mark.parametrize(
    "indices", [[0], np.zeros(1, "i4"), np.zeros((1, 1), int), np.arange(4)[::2]]
)
def test_indices_of_another_kind_are_refused(indices):
    with pytest.raises(TypeError, match="int64"):
        reader_of(images).gather(indices)


@pytest.mark.parametrize("padding", [None, 0], ids=str)
@pytest.mark.parametrize("dtype", ["f4", ">i4", np.dtype("i4", metadata={"unit": "m"})], ids=str)
def test_joined_parts_of_columns_have_the_dtypes_of_their_joined_examples(dtype, padding):
    dataset = Computed()
    parts = [(np.arange(12).reshape(4, 3).astype(dtype), np.arange(4)) for _ in range(2)]
    examples = [example for part in parts for example in examples_of(dataset, part, 4)]
    rule = Padding(padding)
    columns = join_columns(parts)
    if columns is not None:
        made = collate_columns(dataset, columns, 8, rule, False, own=True)
        for array, expected in zip(made, collate(examples, rule), strict=True):
            assert (array.dtype, array.tolist()) == (expected.dtype, expected.tolist())
            assert array.dtype.metadata == expected.dtype.metadata
