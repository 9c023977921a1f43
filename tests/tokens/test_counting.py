"""Epochs whose rows are counted as they are read."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from fastiter import (
    MultiprocessIterator,
    SerialIterator,
    VirtualShuffleOrderSampler,
    concat_examples,
)
from fastiter._order.permutation import VirtualOrder, seed_words
from fastiter.tokens import TokenDataset

N, WINDOW, LENGTH = 2000, 50, 32
LENGTHS = np.random.default_rng(0).integers(0, 50, N)
TOKENS = np.arange(LENGTHS.sum()) % 5000
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])


def dataset(offsets=OFFSETS, **options):
    given = {"packing": "bfd", "seed": 1, "window": WINDOW, "fields": ("input_ids",), **options}
    return TokenDataset(TOKENS, LENGTH, documents=offsets, **given)


def damaged():
    """Two documents lead out of the stream. Both come late in the first epoch."""
    order = VirtualOrder(N, seed_words(1), 0)[0:N]
    place = np.argsort(order)
    late = int(np.minimum(place[:-1], place[1:]).argmax())
    offsets = OFFSETS.copy()
    offsets[late + 1] = len(TOKENS) + 1
    return dataset(offsets)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(SerialIterator, {}), (MultiprocessIterator, {"n_processes": 1, "context": "fork"})],
)
def test_a_window_is_looked_at_when_its_rows_come(kind, options):
    """So a fault in a late one stops neither the start nor what comes before it, nor states."""
    with kind(damaged(), 4, converter=concat_examples, repeat=False, **options) as iterator:
        expected = SerialIterator(dataset(), 4, converter=concat_examples)
        before = 0.0
        for _ in range(50):
            np.testing.assert_array_equal(next(iterator)["input_ids"], next(expected)["input_ids"])
            assert iterator.previous_epoch_detail == before < iterator.epoch_detail < 1
            before = iterator.epoch_detail
        iterator.load_state_dict(iterator.state_dict())
        iterator.seek(iterator.step - 25)
        assert iterator.batch_at(7).indices.tolist() == [28, 29, 30, 31]
        with pytest.raises(ValueError, match="lead out of"):
            for _ in iterator:
                before = iterator.epoch_detail
        assert before > 0.8
        with pytest.raises(ValueError, match="lead out of"):
            len(iterator)


@pytest.mark.parametrize("options", [{}, {"repeat": False}, {"drop_last": True}])
@pytest.mark.parametrize(("num_ranks", "batch_size"), [(1, 5), (3, 64), (2, 2000)])
@pytest.mark.parametrize("sampler", [None, VirtualShuffleOrderSampler])
def test_batches_are_those_of_an_epoch_that_was_counted(options, num_ranks, batch_size, sampler):
    """Also of steps longer than windows and than epochs, up to the end, and from any state on."""
    if batch_size == 2000 and "drop_last" in options:
        return

    def made():
        order = None if sampler is None else sampler(3)
        given = {"order_sampler": order, "num_ranks": num_ranks, "rank": num_ranks - 1, **options}
        return SerialIterator(dataset(), batch_size, converter=concat_examples, **given)

    counted, iterator = made(), made()
    n_steps = 60 if batch_size == 5 else 3 * len(counted)
    for step in range(n_steps if counted.repeat else len(counted)):
        assert len(counted)
        np.testing.assert_array_equal(next(iterator)["input_ids"], next(counted)["input_ids"])
        for name in ("epoch", "is_new_epoch", "epoch_detail", "current_position"):
            assert getattr(iterator, name) == getattr(counted, name), (step, name)
        assert iterator.state_dict() == counted.state_dict()
        if step % 7 == 3:
            state, sought = iterator.state_dict(), iterator.step
            iterator = [copy.copy(iterator), pickle.loads(pickle.dumps(iterator)), made()][step % 3]
            iterator.load_state_dict(state) if step % 2 else iterator.seek(sought)
    assert len(iterator) == len(counted)
    if not counted.repeat:
        for each in (iterator, counted):
            with pytest.raises(StopIteration):
                next(each)
            each.reset()
        np.testing.assert_array_equal(next(iterator)["input_ids"], next(counted)["input_ids"])


def test_an_empty_epoch_and_one_without_a_full_batch_are_refused():
    empty = TokenDataset([[], []], LENGTH, packing="bfd", seed=0)
    with pytest.raises(ValueError, match="dataset is empty"):
        SerialIterator(empty, 4)
    few = TokenDataset([[1, 2]], LENGTH, packing="bfd", seed=0)
    with pytest.raises(ValueError, match="has no batch"):
        SerialIterator(few, 4, drop_last=True)
