"""``n_prefetch='auto'`` with threads: batches never change, and the depth follows the figures."""

from __future__ import annotations

import copy
import pickle
import time

import numpy as np
import pytest
from inside import lookahead_of, tuner_of

import fastiter
from fastiter import MultithreadIterator
from fastiter._clib import status
from fastiter._stats.autotune import Tuner
from fastiter._util.units import nbytes_of


class Bursts:
    """Every 32nd example takes as long as 32 steps of a loop."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(0.05 if index % 32 == 0 else 0)
        return np.full(index % 7 + 1, index)


def values(batch):
    return [example.tolist() for example in batch]


def by_hand(iterator):
    """The test itself changes the depth from here on."""
    tuner_of(iterator)._due = 1 << 62


def test_batches_are_those_of_a_fixed_depth():
    """The depth changes during the epochs; also over a snapshot."""
    dataset = [np.full(i % 5, i) for i in range(96)]
    sampler = {"order_sampler": fastiter.ShuffleOrderSampler(3)}
    with MultithreadIterator(dataset, 10, n_threads=1, **sampler) as iterator:
        expected = [values(next(iterator)) for _ in range(60)]
    sampler = {"order_sampler": fastiter.ShuffleOrderSampler(3)}
    with MultithreadIterator(dataset, 10, n_threads=3, n_prefetch="auto", **sampler) as iterator:
        assert iterator.n_prefetch == iterator.stats().n_prefetch == 2
        by_hand(iterator)
        found = []
        for depth in (2, 9, 1, 16, 4, 2):
            lookahead_of(iterator).n_prefetch = depth
            assert iterator.n_prefetch == iterator.stats().n_prefetch == depth
            found += [values(next(iterator)) for _ in range(8)]
        state = iterator.state_dict()
    assert found == expected[:48]
    with MultithreadIterator(dataset, 10, n_prefetch="auto", **sampler) as iterator:
        iterator.load_state_dict(state)
        assert [values(next(iterator)) for _ in range(12)] == expected[48:]


@pytest.mark.slow
def test_more_prefetch_for_bursts():
    with MultithreadIterator(Bursts(), 4, shuffle=False, n_prefetch="auto") as iterator:
        while iterator.n_prefetch == 2:
            next(iterator)
            time.sleep(0.012)
        change = iterator.stats().changes[0]
        assert change.startswith("n_prefetch from 2 to 4 after ")
        assert change in str(iterator.stats()) and iterator.n_threads == 1


@pytest.mark.parametrize("converter", [None, fastiter.concat_examples, lambda batch, device: batch])
def test_what_a_batch_takes_is_measured(converter):
    dataset = [np.zeros(1 << 17, np.uint8) for _ in range(8)]
    with MultithreadIterator(dataset, 8, n_prefetch="auto", converter=converter) as iterator:
        next(iterator)
        assert lookahead_of(iterator).bytes_each("n_prefetch") == 1 << 20


def test_memory_is_a_limit(monkeypatch):
    """A tuner takes one half of it."""
    tuner, lookahead = Tuner({"n_prefetch": 16}), lookahead_of(MultithreadIterator([0], 1))
    lookahead.batch_bytes = 1 << 20
    for room, allowed in [(0, 4), (2, 5), (6, 7), (100, 8)]:
        monkeypatch.setattr(status, "memory_available", lambda room=room: room << 20)
        assert tuner._allowed(lookahead, "n_prefetch", 4, 16) == allowed
    assert tuner._allowed(lookahead, "n_threads", 2, 9) == 2


def test_what_a_batch_takes_is_added_up():
    array, number = np.zeros(100, np.uint8), 5
    for batch, expected in [
        ([], 0),
        ([(array, array)] * 3, 600),
        ({"a": array, "b": (array, array)}, 300),
        ([number] * 4, 32),
    ]:
        assert nbytes_of(batch) == expected


def test_copies_begin_anew():
    with MultithreadIterator(Bursts(), 4, n_prefetch="auto") as iterator:
        next(iterator)
        lookahead_of(iterator).n_prefetch = 7
        for other in (copy.copy(iterator), pickle.loads(pickle.dumps(iterator))):
            assert other.n_prefetch == 2 and other.stats().changes == ()


def test_wrong_values():
    with pytest.raises(ValueError, match="n_prefetch must be an integer or 'auto', not 'much'"):
        MultithreadIterator([1], 1, n_prefetch="much")
    with pytest.raises(TypeError, match=r"n_prefetch must be an integer, not 1\.5"):
        MultithreadIterator([1], 1, n_prefetch=1.5)
