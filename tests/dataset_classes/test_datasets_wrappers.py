"""Datasets over others: concatenated, transformed, parts, splits."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from fastiter import SerialIterator, datasets
from fastiter.tokens import TokenDataset


class Strict:
    """Counts calls; takes exact Python ints only, as iterators give them."""

    def __init__(self, examples: Any) -> None:
        self.examples = list(examples)
        self.n_calls = 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        assert type(index) is int
        self.n_calls += 1
        return self.examples[index]


class Batched(Strict):
    """Can be asked for several examples at once."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert all(type(index) is int and index >= 0 for index in indices)
        self.n_calls += 1
        return [self.examples[index] for index in indices]


class Short(Batched):
    """Loses an example."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[1:]


def double(x: Any) -> Any:
    return 2 * x


# -- ConcatenatedDataset -------------------------------------------------------------------------


def test_concatenated(any_library):
    dataset = any_library.ConcatenatedDataset([1, 2], [], range(10, 13), np.array([5.0]), [])
    assert len(dataset) == 6
    assert dataset[:] == [dataset[i] for i in range(6)] == [1, 2, 10, 11, 12, 5.0]
    assert dataset[::-2] == [5.0, 11, 2]
    assert dataset[[4, 0]] == dataset[np.array([4, 0])] == [12, 1]
    for nothing in (any_library.ConcatenatedDataset(), any_library.ConcatenatedDataset([], [])):
        assert (len(nothing), nothing[:]) == (0, [])
    for empty, index in ((dataset, -1), (dataset, 6), (nothing, 0)):
        with pytest.raises(IndexError):
            empty[index]


def test_concatenated_does_not_scan():
    class Counting(list):
        n_lengths = 0

        def __len__(self):
            Counting.n_lengths += 1
            return super().__len__()

    dataset = datasets.ConcatenatedDataset(*(Counting([i]) for i in range(100)))
    asked = Counting.n_lengths
    assert [dataset[i] for i in range(100)] == list(range(100))
    assert Counting.n_lengths == asked


def test_index_error_tells_index_and_length():
    with pytest.raises(IndexError, match=r"index 3 .* 3 examples"):
        datasets.ConcatenatedDataset("ab", "c")[3]
    with pytest.raises(IndexError, match=r"index -3 .* 2 examples"):
        datasets.SubDataset("abc", 1, 3)[-3]


# -- TransformDataset ----------------------------------------------------------------------------


def test_transformed(any_library):
    dataset = any_library.TransformDataset([1, 2, 3], double)
    assert len(dataset) == 3
    assert [dataset[0], dataset[-1]] == [2, 6]
    assert dataset[1:] == dataset[[1, 2]] == [4, 6]
    with pytest.raises(IndexError):
        dataset[3]


def test_transform_is_called_once_for_each_fetch():
    calls = []
    dataset = datasets.TransformDataset("abc", calls.append)
    assert calls == []
    dataset[1], dataset[1], dataset[0:2]
    assert calls == ["b", "b", "a", "b"]


# -- SubDataset ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [None, [3, 0, 4, 1, 2], (3, 0, 4, 1, 2), np.array([0] * 5)])
@pytest.mark.parametrize(("start", "finish"), [(0, 5), (1, 4), (2, 2), (5, 5)])
def test_sub_dataset(any_library, start, finish, order):
    examples = "abcde"
    expected = [examples[i] for i in (range(5) if order is None else order)][start:finish]
    below = Strict(examples) if any_library is datasets else examples  # Chainer's gets np.int64
    dataset = any_library.SubDataset(below, start, finish, order)
    assert len(dataset) == len(expected)
    assert dataset[:] == expected
    assert dataset[::-1] == expected[::-1]
    size = len(expected)
    assert [dataset[i] for i in range(-size, size)] == expected * 2
    for index in (size, -size - 1):
        with pytest.raises(IndexError):
            dataset[index]


@pytest.mark.parametrize(
    ("start", "finish", "order"), [(-1, 2, None), (0, 4, None), (0, 3, [0]), (0, 3, range(4))]
)
def test_parts_that_are_none(any_library, start, finish, order):
    with pytest.raises(ValueError):
        any_library.SubDataset("abc", start, finish, order)


def test_part_that_ends_before_it_starts():
    with pytest.raises(ValueError, match="start must be at most 1, not 2"):
        datasets.SubDataset("abc", 2, 1)
    with pytest.raises(TypeError):
        datasets.SubDataset("abc", 0, 1.0)


def test_orders_of_what_the_dataset_understands(any_library):
    keyed = {"x": 1, "y": 2, 0: 3}
    dataset = any_library.SubDataset(keyed, 0, 3, ["y", 0, "x"])
    assert dataset[:] == [2, 3, 1]
    dataset = any_library.SubDataset([1, 2], 0, 2, [-1, -2])
    assert dataset[:] == [2, 1]
    huge = any_library.SubDataset({2**70: 1, 5: 2}, 0, 2, [2**70, 5])
    assert huge[:] == [1, 2]


def test_a_list_as_order_is_kept_as_an_array():
    order = [2, 0, 1]
    first, second = datasets.split_dataset("abc", 1, order)
    assert first._order is second._order
    assert first._order.dtype == np.int64
    kept = np.array([2, 0, 1], np.int16)
    assert datasets.SubDataset("abc", 0, 3, kept)._order is kept


# -- splits --------------------------------------------------------------------------------------


def examples_of(parts: Any) -> Any:
    if isinstance(parts, (list, tuple)):
        return type(parts)([examples_of(part) for part in parts])
    return parts[:]


def test_split_in_two(any_library):
    assert examples_of(any_library.split_dataset("abcde", 2)) == (["a", "b"], ["c", "d", "e"])
    assert examples_of(any_library.split_dataset("abc", np.int8(0))) == ([], ["a", "b", "c"])
    assert examples_of(any_library.split_dataset("abc", 3, [2, 1, 0])) == (["c", "b", "a"], [])


def test_split_in_n(any_library):
    assert examples_of(any_library.split_dataset_n("abcde", 2)) == [["a", "b"], ["c", "d"]]
    assert examples_of(any_library.split_dataset_n("ab", 3)) == [[], [], []]
    assert examples_of(any_library.split_dataset_n("abc", 3, [1, 2, 0])) == [["b"], ["c"], ["a"]]


@pytest.mark.parametrize(("size", "n_folds"), [(1, 1), (5, 1), (5, 5), (6, 3), (7, 2), (20, 6)])
@pytest.mark.parametrize("as_list", [False, True])
def test_folds(any_library, size, n_folds, as_list):
    order = np.random.RandomState(size).permutation(size)
    folds = any_library.get_cross_validation_datasets(
        range(100, 100 + size), n_folds, order.tolist() if as_list else order
    )
    assert len(folds) == n_folds
    everything = set(range(100, 100 + size))
    tested = []
    for train, test in folds:
        assert set(train[:]) | set(test[:]) == everything
        assert len(train) + len(test) == size
        assert len(test) in (size // n_folds, -(-size // n_folds))
        tested += test[:]
    assert sorted(tested) == sorted(everything)
    assert folds[0][1][:] == (100 + order[-len(folds[0][1]) :]).tolist()


def test_random_splits_are_those_of_the_seed(any_library):
    expected = np.random.RandomState(3).permutation(11).tolist()
    first, second = any_library.split_dataset_random(range(11), 4, seed=3)
    assert first[:] + second[:] == expected
    parts = any_library.split_dataset_n_random(range(11), 3, seed=3)
    assert [part[:] for part in parts] == [expected[:3], expected[3:6], expected[6:9]]
    folds = any_library.get_cross_validation_datasets_random(range(11), 3, seed=3)
    assert folds[0][0][:] + folds[0][1][:] == expected


def test_random_splits_without_a_seed_differ(any_library):
    splits = [any_library.split_dataset_random(range(1000), 500)[0][:] for _ in range(2)]
    assert splits[0] != splits[1]


@pytest.mark.parametrize("suffix", ["", "_random"])
def test_the_old_name_of_n_folds(any_library, suffix):
    library, options = (datasets, {"seed": 1}) if suffix else (any_library, {})
    split = getattr(library, "get_cross_validation_datasets" + suffix)
    with pytest.warns(DeprecationWarning, match="n_fold") as caught:
        folds = split("abcd", n_fold=2, **options)
    assert library is not datasets or caught[0].filename == __file__
    assert examples_of(folds) == examples_of(split("abcd", 2, **options))


@pytest.mark.parametrize(
    ("name", "arguments", "error", "match"),
    [
        ("split_dataset", (-1,), ValueError, "split_at must be at least 0"),
        ("split_dataset", (4,), ValueError, "split_at must be at most 3, not 4"),
        ("split_dataset", (1.0,), TypeError, "split_at must be an integer"),
        ("split_dataset", (None,), TypeError, "split_at must be an integer"),
        ("split_dataset_n", (0,), ValueError, "n must be at least 1"),
        ("split_dataset_n_random", (-1,), ValueError, "n must be at least 1"),
        ("split_dataset_n_random", (1.5,), TypeError, "n must be an integer"),
        ("get_cross_validation_datasets", (0,), ValueError, "n_folds must be at least 1"),
        ("get_cross_validation_datasets", (4,), ValueError, "n_folds must be at most 3, not 4"),
        ("get_cross_validation_datasets", (2, [0, 1]), ValueError, "order has 2 indices"),
        ("get_cross_validation_datasets", (), TypeError, "n_folds must be an integer, not None"),
    ],
)
def test_numbers_of_parts_that_are_none(name, arguments, error, match):
    with pytest.raises(error, match=match):
        getattr(datasets, name)("abc", *arguments)


# -- batched access ------------------------------------------------------------------------------


def wrappers(make: Any) -> list[Any]:
    """Each wrapper over datasets that ``make`` makes of examples, and their examples."""
    return [
        (datasets.ConcatenatedDataset(make("abc"), make(""), make("de")), "abcde"),
        (datasets.TransformDataset(make("abc"), double), ["aa", "bb", "cc"]),
        (datasets.SubDataset(make("abcde"), 1, 4), "bcd"),
        (datasets.SubDataset(make("abcd"), 0, 3, [3, 1, 2, 0]), "dbc"),
    ]


@pytest.mark.parametrize("number", range(4))
def test_getitems_is_passed_on(number):
    wrapper, expected = wrappers(Batched)[number]
    indices = [2, 0, 1, 2] if number else [4, 0, 3, 2, 0]
    for each in (wrapper, pickle.loads(pickle.dumps(wrapper))):
        assert each[:] == list(expected)
        assert each.__getitems__(indices) == [expected[i] for i in indices]
        assert each.__getitems__([]) == []
        with pytest.raises(IndexError):
            each.__getitems__([0, 5])


@pytest.mark.parametrize("number", range(4))
def test_getitems_that_is_missing_or_loses_examples_below(number):
    with pytest.raises(AttributeError, match="no __getitems__"):
        wrappers(Strict)[number][0].__getitems__  # noqa: B018
    with pytest.raises(ValueError, match=r"Short\.__getitems__ returned 1 examples for 2 indices"):
        wrappers(Short)[number][0].__getitems__([0, 1])
    with pytest.raises(ValueError, match=r"Short\.__getitems__ returned"):  # not skipped
        next(SerialIterator(wrappers(Short)[number][0], 2, on_error="skip", shuffle=False))


def test_getitems_takes_one_call_for_each_dataset_below():
    first, second = Batched("abc"), Batched("de")
    datasets.ConcatenatedDataset(first, second).__getitems__([4, 0, 3, 2])
    assert (first.n_calls, second.n_calls) == (1, 1)
    part = datasets.SubDataset(first, 0, 3)
    datasets.TransformDataset(part, double).__getitems__([2, 0])
    assert first.n_calls == 2


@pytest.mark.parametrize("number", range(4))
def test_getitems_is_not_there_for_a_subclass_with_examples_of_its_own(number):
    wrapper, expected = wrappers(Batched)[number]
    cls = type(wrapper)

    class Renamed(cls):
        pass

    class OwnExamples(cls):
        def get_example(self, i):
            return [super().get_example(i)]

    class OwnIndexing(cls):
        def __getitem__(self, index):
            return [super().__getitem__(index)]

    def made(other):
        copy = other.__new__(other)
        copy.__dict__.update(wrapper.__dict__)
        return copy

    assert made(Renamed).__getitems__([0]) == [expected[0]]
    for other in (OwnExamples, OwnIndexing):
        assert made(other)[0] == [expected[0]]
        assert not hasattr(made(other), "__getitems__")


class Pairs:
    """Examples of its own for a class that stands behind it."""

    def get_example(self, i):
        return "own", super().get_example(i)


def cached(kind):
    return kind(Batched("abcde"), memory=1 << 20)


def of_arrow(kind):
    return kind(pytest.importorskip("pyarrow").array([1, 2, 3]))


def of_tokens(kind):
    return kind([[1, 2], [3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (datasets.CachedDataset, cached),
        (datasets.ArrowDataset, of_arrow),
        (TokenDataset, of_tokens),
    ],
)
def test_examples_of_a_subclass_are_its_own(kind, make):
    """Also of datasets that have ``__getitems__`` by themselves."""

    class OwnExamples(kind):
        def get_example(self, i):
            return "own", super().get_example(i)

    class OwnIndexing(kind):
        def __getitem__(self, index):
            return "own", super().__getitem__(index)

    class Mixed(Pairs, kind):
        pass

    class Derived(OwnExamples):
        pass

    class Many(OwnExamples):
        def __getitems__(self, indices):
            return [("many", self.get_example(i)[1]) for i in indices]

    plain = make(kind)
    for other in (OwnExamples, OwnIndexing, Mixed, Derived):
        dataset = make(other)
        assert not hasattr(dataset, "__getitems__")
        examples = [x for b in SerialIterator(dataset, 2, repeat=False, shuffle=False) for x in b]
        assert repr(examples) == repr([("own", plain[i]) for i in range(len(plain))])
    examples = next(SerialIterator(make(Many), len(plain), shuffle=False))
    assert repr(examples) == repr([("many", plain[i]) for i in range(len(plain))])


def test_getitems_is_not_asked_for_negative_indices():
    base = Batched("abc")
    dataset = datasets.SubDataset(base, 0, 3, [-1, 0, 1])
    assert dataset.__getitems__([0, 1]) == ["c", "a"]


# -- in every iterator ---------------------------------------------------------------------------


@pytest.mark.parametrize("below", [Strict, Batched])
def test_in_every_iterator(make, below):
    whole = datasets.ConcatenatedDataset(below(range(10)), below(range(10, 30)))
    part, rest = datasets.split_dataset_random(whole, 25, seed=0)
    dataset = datasets.ConcatenatedDataset(rest, datasets.TransformDataset(part, double))
    order = np.random.RandomState(0).permutation(30).tolist()
    expected = order[25:] + [2 * i for i in order[:25]]
    batches = list(make(dataset, 4, shuffle=False, repeat=False))
    assert [example for batch in batches for example in batch] == expected


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: datasets.SubDataset(value, 0, 1), "dataset"),
        (lambda value: datasets.SubDataset("abc", 0, 3, value), "order"),
        (lambda value: datasets.split_dataset(value, 1), "dataset"),
        (lambda value: datasets.split_dataset_random(value, 1), "dataset"),
        (lambda value: datasets.split_dataset_n(value, 1), "dataset"),
        (lambda value: datasets.get_cross_validation_datasets(value, 1), "dataset"),
        (lambda value: datasets.TupleDataset(value), "dataset"),
        (lambda value: datasets.StreamDataset(value, list), "shards"),
        (lambda value: datasets.StreamDataset(["a"], list, lengths=value), "lengths"),
        (lambda value: datasets.TextDataset(__file__, encoding=value), "encoding"),
        (lambda value: datasets.TextDataset(__file__, filter_func=value), "filter_func"),
    ],
)
@pytest.mark.parametrize("value", [5, np.array(5)], ids=["number", "array without an axis"])
def test_an_argument_that_is_no_sequence_or_function_is_named(make, name, value):
    with pytest.raises(TypeError, match=rf"^{name}.* must "):
        make(value)
