"""Mixtures and batches of like lengths through the iterators: states, ranks, varying sizes."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

from fastiter import (
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    SerialIterator,
    concat_examples,
)
from fastiter.datasets import ConcatenatedDataset

LENGTHS = np.random.default_rng(3).lognormal(2, 1, 300).clip(1, 60).astype(np.int32)


class Sequences:
    """Each example is its index, as often as it is long."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        return np.full(LENGTHS[i], i + 1)


def buckets():
    return LengthBucketBatchSampler(LENGTHS, batch_size=24, max_tokens=200, seed=4)


def test_buckets_in_every_iterator_go_on_exactly_from_any_state(make, save, load):
    """Padded, over ends of epochs; the batches are those that the sampler plans."""
    padded = functools.partial(concat_examples, padding=0)
    reference = SerialIterator(range(300), batch_sampler=buckets())
    iterator = make(Sequences(), None, batch_sampler=buckets(), converter=padded)
    expected = [next(reference) for _ in range(70)]
    assert reference.epoch >= 2
    states = {}
    for step, rows in enumerate(expected):
        if step in (0, 1, 17, 40):
            states[step] = save(iterator), json.loads(json.dumps(iterator.state_dict()))
        batch = next(iterator)
        assert (batch[:, 0] - 1).tolist() == rows
        assert batch.shape == (len(rows), LENGTHS[rows].max()) and batch.size <= 200
        for row, index in zip(batch, rows, strict=True):
            assert (row != 0).sum() == LENGTHS[index]
    for step, (stored, state) in states.items():
        resumed = make(Sequences(), None, batch_sampler=buckets(), converter=padded)
        load(resumed, stored)
        following = [(next(resumed)[:, 0] - 1).tolist() for _ in range(12)]
        resumed.load_state_dict(state)
        following += [(next(resumed)[:, 0] - 1).tolist() for _ in range(12)]
        assert following == 2 * expected[step : step + 12]


def test_ranks_share_a_mixture_and_go_on_as_one_with_a_longer_schedule():
    dataset = ConcatenatedDataset(range(70), range(70, 100))

    def iterators(num_ranks, batch_size, schedule):
        return [
            SerialIterator(
                dataset,
                batch_size,
                order_sampler=MixtureOrderSampler([70, 30], [3, 1], 0, stop=96, schedule=schedule),
                rank=rank,
                num_ranks=num_ranks,
            )
            for rank in range(num_ranks)
        ]

    whole = iterators(1, 96, [(150, [1, 1])])[0]
    stream = list(itertools.chain.from_iterable(next(whole) for _ in range(4)))
    parts = iterators(3, 4, None)
    seen = [row for _ in range(10) for part in parts for row in next(part)]
    assert seen == stream[:120]
    parts[0].load_state_dict(parts[2].state_dict())
    others = iterators(2, 6, [(150, [1, 1])])
    for other in others:
        other.load_state_dict(parts[0].state_dict())
    seen = [row for _ in range(15) for other in others for row in next(other)]
    assert seen == stream[120:300]


class Counting(LengthBucketBatchSampler):
    """Counts how often it has planned an epoch."""

    n_plans = 0

    def _plan_batches(self, *arguments):
        self.n_plans += 1
        return super()._plan_batches(*arguments)


def test_epochs_before_a_far_step_are_planned_once():
    sampler = Counting(LENGTHS, max_tokens=200, seed=4)
    iterator = SerialIterator(range(300), batch_sampler=sampler, rank=1, num_ranks=2)
    steps = len(iterator)
    iterator.batch_at(9 * steps)
    n_plans = sampler.n_plans
    places = [9 * steps + k % 7 for k in range(50)]
    addresses = [iterator.batch_at(step).indices.tolist() for step in places]
    assert sampler.n_plans <= n_plans + 1  # those steps may be in two epochs
    other = SerialIterator(range(300), batch_sampler=buckets_of_tokens(), rank=1, num_ranks=2)
    delivered = [next(other) for _ in range(9 * steps + 7)]
    assert addresses == [delivered[step] for step in places]


def buckets_of_tokens():
    return LengthBucketBatchSampler(LENGTHS, max_tokens=200, seed=4)


# -- states of batch samplers whose epochs differ --------------------------------------------------


def bucketed(lengths: Any, **arguments: Any) -> SerialIterator:
    sampler = LengthBucketBatchSampler(lengths, seed=4, **arguments)
    return SerialIterator(range(len(lengths)), batch_sampler=sampler)


def varying(epoch: int) -> list[Any]:
    order = np.random.RandomState(epoch).permutation(100)
    return np.array_split(order[: 60 + 7 * epoch % 40], 9)


@pytest.mark.parametrize(
    "make",
    [
        lambda: bucketed(np.arange(1, 101) % 50 + 1, max_tokens=200, drop_last=True),
        lambda: SerialIterator(range(100), batch_sampler=varying),
    ],
    ids=["drop_last", "function"],
)
def test_a_state_loads_whatever_number_of_rows_its_epoch_has(make: Any) -> None:
    iterator, sizes = make(), set()
    for _ in range(60):
        next(iterator)
        sizes.add(iterator._epoch_size)
        resumed = make()
        resumed.load_state_dict(iterator.state_dict())
        assert next(resumed) == next(copy.copy(iterator))
    assert len(sizes) > 1


def test_each_epoch_has_the_only_full_batch() -> None:
    lengths = np.array([5, 5, 23, 10, 19])  # of which the four longest fill a batch, or none
    iterator = bucketed(lengths, batch_size=9, max_tokens=100, drop_last=True)
    assert {len(next(iterator)) for _ in range(50)} <= {4, 5}
    assert iterator.epoch == 50


def test_what_is_left_may_be_too_little_for_a_batch_of_other_limits() -> None:
    first = bucketed(np.ones(10, int), batch_size=4, drop_last=True)
    next(first)
    second = bucketed(np.ones(10, int), batch_size=7, drop_last=True)
    second.load_state_dict(first.state_dict())
    assert (second.epoch, second.current_position) == (0, 4)
    batch = next(second)
    assert len(batch) == 7 and (second.epoch, second.is_new_epoch) == (2, True)


@pytest.mark.parametrize("n_before", [5, 7])  # at the start of an epoch, and within
def test_addresses_after_the_limits_have_changed(n_before: int) -> None:
    lengths = np.arange(20)
    first = bucketed(lengths, batch_size=4)
    for _ in range(n_before):
        next(first)
    second = bucketed(lengths, batch_size=3)
    second.load_state_dict(first.state_dict())
    with pytest.raises(LookupError):
        second.batch_at(n_before - 1)
    for n_more in (2, 9):  # in that epoch, and in a later one
        for _ in range(n_more):
            next(second)
        resumed = bucketed(lengths, batch_size=3)
        resumed.load_state_dict(second.state_dict())
        for iterator in (second, resumed):
            start, following = iterator.step, copy.copy(iterator)
            told = [iterator.batch_at(start + k).indices.tolist() for k in range(30)]
            assert told == [next(following) for _ in range(30)]
    second.seek(n_before)
    assert next(second) == second.batch_at(n_before).indices.tolist()


@pytest.mark.parametrize(
    "cutting",
    [
        (0, 1, (None, 5)),  # less than the longest example: never ended
        (0, 1, (None, 0)),
        (0, 1, (None, -5)),
        (0, 1, (None, 1 << 70)),
        (0, 1, (None, float("nan"))),
        (0, 1, ("x", 40)),
        (0, 1, (40,)),
        (0, 0, (None, 40)),  # a division by zero
        (-3, 1, (None, 40)),
    ],
)
def test_a_state_whose_cuts_are_damaged_is_refused(cutting):
    def iterator():
        sampler = LengthBucketBatchSampler(np.arange(1, 31), max_tokens=40, seed=0)
        return SerialIterator(list(range(30)), batch_sampler=sampler)

    saved = iterator()
    for _ in range(3):
        next(saved)
    state = saved.state_dict()
    state["cut"]["cuttings"] = [cutting]
    with pytest.raises(ValueError, match=r"damaged|cannot be read"):
        iterator().load_state_dict(state)
