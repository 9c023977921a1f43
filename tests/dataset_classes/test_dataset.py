"""DatasetMixin and the Iterator interface."""

from __future__ import annotations

import numpy as np
import pytest

import fastiter
from fastiter import DatasetMixin, Iterator
from fastiter.datasets import ConcatenatedDataset, NpyDataset, SubDataset, TextDataset


class Squares(DatasetMixin):
    def __len__(self):
        return 6

    def get_example(self, i):
        assert type(i) is int
        if not -6 <= i < 6:
            raise IndexError(f"no example {i}")
        return i * i


@pytest.mark.parametrize("start", [None, 1, 3, -2, 9])
@pytest.mark.parametrize("step", [None, 2, -1, -2])
def test_slices_are_those_of_a_list(start, step):
    assert Squares()[start:4:step] == [0, 1, 4, 9, 16, 25][start:4:step]


def test_integers_lists_and_arrays():
    dataset = Squares()
    assert dataset[3] == dataset[np.int32(3)] == 9
    assert dataset[-2] == 4
    assert dataset[[4, 0]] == dataset[np.array([4, 0])] == [16, 0]
    assert dataset[np.empty(0, dtype=int)] == []


def test_bools_are_integers_and_masks_no_indices(tmp_path):
    (tmp_path / "lines").write_text("a\nb\n")
    np.save(tmp_path / "rows.npy", np.arange(2))
    datasets = Squares(), TextDataset(tmp_path / "lines"), NpyDataset(tmp_path / "rows.npy")
    for dataset in (*datasets, SubDataset([3, 4], 0, 2), ConcatenatedDataset([3], [4])):
        assert dataset[True] == dataset[1]
        assert dataset[[True, False]] == [dataset[1], dataset[0]]
        for mask in (np.True_, np.array([True, False])):
            with pytest.raises(TypeError, match="flatnonzero"):
                dataset[mask]
    with pytest.raises(TypeError):
        datasets[2][1.5]


@pytest.mark.parametrize("index", ["1", None, (0, 1), 1.0])
def test_what_is_no_integer_is_named_by_its_type(index):
    for dataset in (SubDataset([3, 4], 0, 2), ConcatenatedDataset([3], [4])):
        with pytest.raises(TypeError, match=f"'{type(index).__name__}' object cannot be interp"):
            dataset[index]


@pytest.mark.parametrize("index", [6, -7, [0, 6]])
def test_wrong_index_is_an_index_error(index):
    with pytest.raises(IndexError):
        Squares()[index]


def test_mixin_leaves_length_and_examples_to_the_subclass():
    with pytest.raises(NotImplementedError):
        len(DatasetMixin())
    with pytest.raises(NotImplementedError):
        DatasetMixin()[0]


class Countdown(Iterator):
    def __init__(self, n):
        self.n = n
        self.n_finalized = 0

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n

    def finalize(self):
        self.n_finalized += 1


def test_iterator_protocol():
    iterator = Countdown(3)
    assert iter(iterator) is iterator
    with iterator as entered:
        assert entered is iterator
        assert iterator.next() == 2
        assert list(iterator) == [1, 0]
    assert iterator.n_finalized == 1
    assert iterator.serialize({}.__setitem__) is None


def test_dropped_iterator_is_finalized():
    finalized = []

    class Noting(Iterator):
        def finalize(self):
            finalized.append(True)

    del_me = Noting()
    del del_me
    assert finalized == [True]


def test_base_iterator_gives_nothing():
    with pytest.raises(NotImplementedError):
        next(Iterator())


def test_public_names():
    for module in (fastiter, fastiter.iterators):
        assert set(module.__all__) <= set(dir(module))
        for name in module.__all__:
            own = {"cache": "CachedDataset"}.get(name, name)
            assert getattr(module, name).__name__ == own
        with pytest.raises(AttributeError, match="no_such_name"):
            module.no_such_name  # noqa: B018
    elsewhere = {"WorkerTraceback", *fastiter.dataset.download.__all__}
    for module in (fastiter.dataset, fastiter.iterators, fastiter.errors):
        assert set(module.__all__) - elsewhere <= set(fastiter.__all__)
