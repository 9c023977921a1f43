"""Datasets that write rows into the batch themselves: __fastiter_into__."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import signal

import numpy as np
import pytest

import fastiter
from fastiter import MultiprocessIterator, SerialIterator
from fastiter.datasets import SubDataset

N = 40
FORK = multiprocessing.get_context("fork")


class Pairs:
    """Two arrays and a number; `calls` counts examples that were written in place. `answer` makes
    the result of the arrays."""

    def __init__(self, answer=None):
        self.answer, self.calls = answer, FORK.Value("i", 0)
        self.kept = []

    def __len__(self):
        return N

    def __getitem__(self, i):
        return np.full((30, 30), i, np.float32), i, np.full((30, 30), -i, np.float32)

    def __fastiter_into__(self, i, out):
        with self.calls:
            self.calls.value += 1
        a, b = out
        assert type(i) is int and a.shape == b.shape == (30, 30) and "float32" in str(a.dtype)
        a[:], b[:] = i, -i
        return (a, i, b) if self.answer is None else self.answer(self, i, a, b)


def swapped(dataset, i, a, b):
    a[:], b[:] = -i, i
    return b, i, a


def others(dataset, i, a, b):
    a[:] = b[:] = 99
    return dataset[i]


def one_replaced_by_a_view(dataset, i, a, b):
    a[:], b[:] = 99, i
    return b[::-1], i, np.negative(b[:, ::-1])


def turned(dataset, i, a, b):
    return a.T, i, b.T


def of_one(dataset, i, a, b):
    return a, i, np.negative(a)


def half_done(dataset, i, a, b):
    if i % 7 == 3:
        a[:5] = 99
        raise ValueError("half done")
    return a, i, b


def misfits(dataset, i, a, b):
    return (a, i, b) if i % 20 else (a[:3], i, b)


def of_two_dtypes(dataset, i, a, b):
    return (a, i, b) if i % 20 else (a.astype(np.int32), i, b)


def kept(dataset, i, a, b):
    dataset.kept.append(b[1:])
    return a, i, b


def dies_once(dataset, i, a, b):
    a[:5] = 99
    with dataset.calls:
        dies = dataset.calls.value in (4, 20, 40)
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    a[:5] = i
    return a, i, b


def is_right(example):
    a, i, b = example
    return len(a) in (3, 30) and (a == i).all() and (b == -i).all() and a.shape[1] == 30


def epochs_of(dataset, epochs=4, **arguments):
    """Examples by their labels, in the order in which they came."""
    with MultiprocessIterator(
        dataset, 5, n_processes=2, shuffle=True, context="fork", **arguments
    ) as iterator:
        examples = []
        while iterator.epoch < epochs:
            batch = next(iterator)
            assert all(map(is_right, batch))
            examples += [label for _, label, _ in batch]
    return examples


ANSWERS = [None, swapped, others, one_replaced_by_a_view, turned, of_one, misfits, of_two_dtypes]


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_are_those_of_getitem(answer):
    dataset = Pairs(answer)
    assert len(epochs_of(dataset)) == 4 * N
    assert dataset.calls.value >= 10  # after the first batches; misfits change the columns


@pytest.mark.parametrize("many", [False, True])
def test_below_views(many):
    class Many(Pairs):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

        __getitem__ = Pairs.__getitem__
        __fastiter_into__ = Pairs.__fastiter_into__

    for view in (
        lambda dataset: SubDataset(dataset, 10, 30),
        lambda dataset: SubDataset(dataset, 0, N, order=np.arange(N)[::-1]),
        lambda dataset: SubDataset(SubDataset(dataset, 5, 35), 5, 25, order=list(range(-30, 0))),
    ):
        dataset = (Many if many else Pairs)()
        part = view(dataset)
        labels = epochs_of(part, 6)
        assert sorted(set(labels)) == sorted(label for _, label, _ in part)
        assert dataset.calls.value >= len(part)


def test_below_a_subset_of_torch():
    utils = pytest.importorskip("torch.utils.data")
    dataset = Pairs()
    assert set(epochs_of(utils.Subset(dataset, range(0, N, 2)), 6)) == {*range(0, N, 2)}
    assert dataset.calls.value >= N


@pytest.mark.parametrize("answer", [None, swapped, others, turned])
def test_in_a_loader(answer):
    torch = pytest.importorskip("torch")
    from fastiter.torch import DataLoader

    class Tensors(Pairs):
        def __getitem__(self, i):
            a, i, b = super().__getitem__(i)
            return torch.from_numpy(a), i, torch.from_numpy(b)

        def __fastiter_into__(self, i, out):
            assert all(type(each) is torch.Tensor for each in out)
            return super().__fastiter_into__(i, out)

    dataset = Tensors(answer)
    workers = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, 2, **workers)
    for _ in range(3):
        for a, labels, b in loader:
            assert (a == labels[:, None, None]).all() and (b == -labels[:, None, None]).all()
    assert dataset.calls.value >= N


def test_with_on_error():
    with MultiprocessIterator(
        Pairs(half_done), 5, n_processes=2, context="fork", on_error="skip", skip_limit=0.5
    ) as iterator:
        examples = []
        while iterator.epoch < 3:
            batch = next(iterator)
            assert all(map(is_right, batch))
            examples += batch
    # The first batches are made by __getitem__, which does not fail.
    assert len(examples) < 3 * N and all(label % 7 != 3 for _, label, _ in examples[N:])


def test_a_worker_that_dies_leaves_the_row_unfinished():
    dataset = Pairs(dies_once)
    assert sorted(epochs_of(dataset, 3)) == sorted(3 * [*range(N)])


def test_an_array_that_is_kept_ends_it(tmp_path):
    dataset = Pairs(kept)
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("fastiter").addHandler(handler)
    try:
        epochs_of(dataset)
    finally:
        logging.getLogger("fastiter").removeHandler(handler)
        handler.close()
    assert 1 <= dataset.calls.value <= 2  # of each worker the first one
    assert "Pairs.__fastiter_into__ keeps an array" in (tmp_path / "log").read_text()


class Doubled(Pairs):
    """Has its own way to make an example, so that the inherited one does not count."""

    def __getitem__(self, i):
        a, i, b = super().__getitem__(i)
        return a, i, b


class Cropped:
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return N

    @functools.lru_cache  # noqa: B019  # it keeps what it gets
    def __getitem__(self, i):
        return self.dataset[i]


@pytest.mark.parametrize(
    "arguments",
    [{"hedge": 0.1}, {"seed_examples": True}, {"on_timeout": "retry", "dataset_timeout": 60}],
)
def test_getitem_is_called_where_rows_may_not_be_written(arguments):
    dataset = Pairs()
    assert len(epochs_of(dataset, 3, **arguments)) == 3 * N
    assert dataset.calls.value == 0


def test_getitem_of_other_code_is_called():
    for make in (Doubled, lambda: Cropped(Pairs())):
        dataset = make()
        epochs_of(dataset)
        assert getattr(dataset, "dataset", dataset).calls.value == 0
    dataset = Pairs()
    for _ in range(2 * N):
        next(SerialIterator(dataset, 5))
    assert dataset.calls.value == 0


class Uneven(Pairs):
    def __getitem__(self, i):
        return np.full((30 - i % 2, 30), i, np.float32), i, np.full((30, 30), -i, np.float32)

    def __fastiter_into__(self, i, out):
        raise AssertionError("no column has one shape for all rows")


def test_ragged_columns_are_made_of_examples():
    with MultiprocessIterator(Uneven(), 8, n_processes=2, shuffle=True, context="fork") as iterator:
        while iterator.epoch < 4:
            assert all((a == i).all() and (b == -i).all() for a, i, b in next(iterator))


def test_example_rng_is_that_of_the_example():
    class Noisy(Pairs):
        def __getitem__(self, i):
            a = fastiter.random.example_rng().random((30, 30)).astype(np.float32)
            return a, i, a

        def __fastiter_into__(self, i, out):
            with self.calls:
                self.calls.value += 1
            out[0][:] = out[1][:] = fastiter.random.example_rng().random((30, 30))
            return out[0], i, out[1]

    dataset = Noisy()
    order = fastiter.ShuffleOrderSampler(7)
    serial = SerialIterator(Noisy(), 5, order_sampler=fastiter.ShuffleOrderSampler(7))
    with MultiprocessIterator(
        dataset, 5, n_processes=2, order_sampler=order, context="fork"
    ) as iterator:
        for _ in range(20):
            for left, right in zip(next(iterator), next(serial), strict=True):
                assert left[1] == right[1] and (left[0] == right[0]).all()
    assert dataset.calls.value > 0
