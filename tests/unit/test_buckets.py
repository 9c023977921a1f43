"""Batches of like lengths: limits, costs of ranks, what is left out, chance."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from uniformity import chi_square_z

from fastiter._plan.epoch_sampler import Cutting
from fastiter.iterators import LengthBucketBatchSampler


def log_normal(n, seed=0):
    lengths = np.random.default_rng(seed).lognormal(5, 1, n)
    return np.clip(lengths, 1, 8192).astype(np.int32)


def planned(sampler, number=0, num_ranks=1, rows=None):
    cutting = Cutting(0, num_ranks, sampler.limits())
    order, cuts = sampler._plan_batches(rows, len(sampler._lengths), number, cutting)
    return order[:], cuts


def costs(sampler, order, cuts):
    longest = np.maximum.reduceat(sampler._lengths[order].astype(np.int64), cuts[:-1])
    return longest * np.diff(cuts)


@st.composite
def samplers(draw, **options):
    lengths = np.array(draw(st.lists(st.integers(0, 60), min_size=1, max_size=200)))
    batch_size = draw(st.none() | st.integers(1, 20))
    most = max(1, lengths.max())
    budget = st.integers(most, 8 * most)
    max_tokens = draw(budget if batch_size is None else st.none() | budget)
    dtype = draw(st.sampled_from([np.int8, np.uint16, np.int32, np.uint32, np.int64, np.uint64]))
    return LengthBucketBatchSampler(
        lengths.astype(dtype),
        batch_size=batch_size,
        max_tokens=max_tokens,
        seed=draw(st.integers(0, 3)),
        window=draw(st.none() | st.integers(1, 200)),
        **options,
    )


@draw_examples(300)
@given(samplers(), st.integers(1, 7), st.integers(0, 3), st.data())
def test_every_row_comes_once_within_both_limits_and_all_ranks_have_as_many(
    sampler, num_ranks, number, data
):
    n = len(sampler._lengths)
    rows = data.draw(st.none() | st.sets(st.integers(0, n - 1)))
    if rows is not None:
        rows = np.array(sorted(rows), dtype=np.int64)
    order, cuts = planned(sampler, number, num_ranks, rows)
    expected = list(range(n)) if rows is None else rows.tolist()
    assert sorted(order.tolist()) == expected
    assert cuts.dtype == np.int64 and cuts[0] == 0 and cuts[-1] == len(order)
    if not expected:
        return
    sizes = np.diff(cuts)
    assert sizes.min() > 0 and sizes.max() <= (sampler._batch_size or n)
    if sampler._max_tokens is not None:
        assert costs(sampler, order, cuts).max() <= sampler._max_tokens
    # Only batches of single rows cannot be made more.
    rest = len(sizes) % num_ranks
    assert rest == 0 or sizes[-rest:].max() == 1
    if rows is None and (count := sampler.n_batches(None, n, num_ranks)) is not None:
        assert count == len(sizes)


@draw_examples(200)
@given(st.data(), st.integers(1, 4), st.integers(0, 3))
def test_drop_last_leaves_out_less_than_a_step(data, num_ranks, number):
    try:
        sampler = data.draw(samplers(drop_last=True))
        order, cuts = planned(sampler, number, num_ranks)
    except ValueError as error:
        assert "do not fill" in str(error)
        return
    n, sizes = len(sampler._lengths), np.diff(cuts)
    assert len(set(order.tolist())) == len(order) and len(sizes) % num_ranks == 0
    if sampler._max_tokens is None:
        assert set(sizes) == {sampler._batch_size}
        assert n - len(order) < num_ranks * sampler._batch_size
        assert len(sizes) == sampler.n_batches(None, n, num_ranks)
    else:
        cost = costs(sampler, order, cuts)
        assert cost.max() <= sampler._max_tokens


@pytest.mark.parametrize("num_ranks", [2, 8])
@pytest.mark.parametrize("limits", [(32, None), (None, 16384), (64, 16384)])
@pytest.mark.parametrize("n", [20_000, 200_000])
def test_ranks_have_like_costs_in_each_step(limits, num_ranks, n):
    batch_size, max_tokens = limits
    lengths = log_normal(n)
    sampler = LengthBucketBatchSampler(
        lengths, batch_size=batch_size, max_tokens=max_tokens, seed=1
    )
    order, cuts = planned(sampler, 3, num_ranks)
    cost = costs(sampler, order, cuts).reshape(-1, num_ranks)
    assert (cost.max(1) / cost.mean(1) <= 1.1).mean() >= 0.95
    assert cost.sum() < 1.1 * lengths.sum()  # little of it is padding
    # No rank has the long batches, no part of the epoch has.
    assert abs(cost.mean(0) / cost.mean() - 1).max() < 0.02
    ranked = cost.mean(1).argsort().argsort()
    assert abs(np.corrcoef(ranked, np.arange(len(ranked)))[0, 1]) < 4 / len(ranked) ** 0.5


def test_the_last_step_is_shared_out_evenly():
    sampler = LengthBucketBatchSampler(np.full(1000, 7), batch_size=10, seed=0)
    order, cuts = planned(sampler, 0, 8)
    assert sorted(np.diff(cuts)) == [5] * 8 + [10] * 96
    steps = np.diff(cuts).reshape(-1, 8)
    assert (steps == steps[:, :1]).all() and len(order) == 1000


def test_rows_of_one_length_are_together_by_chance():
    """All of one length: the batches are a uniformly random partition."""
    together = np.zeros((6, 6))
    for number in range(3000):
        sampler = LengthBucketBatchSampler([3] * 6, batch_size=2, seed=5)
        order, _ = planned(sampler, number)
        for pair in order.reshape(3, 2):
            together[tuple(sorted(pair))] += 1
    counts = together[np.triu_indices(6, 1)]
    assert chi_square_z(counts, 3000 * 3 / 15, 9) < 4


def test_what_is_dropped_and_where_batches_come_is_chance():
    lengths = np.arange(1, 11)
    sampler = LengthBucketBatchSampler(lengths, batch_size=4, seed=9, drop_last=True)
    kept, firsts = np.zeros(10), np.zeros(2)
    for number in range(2000):
        order, _ = planned(sampler, number)
        kept += np.bincount(order, minlength=10)
        firsts[int(order[:4].mean() > order[4:].mean())] += 1
    assert abs(kept / 2000 - 0.8).max() < 4 * (0.16 / 2000) ** 0.5
    assert abs(firsts[0] - 1000) < 4 * 500**0.5


def test_epochs_and_seeds_have_other_batches():
    lengths = log_normal(5000)
    seen = set()
    for seed in range(3):
        sampler = LengthBucketBatchSampler(lengths, batch_size=16, seed=seed, window=500)
        for number in range(3):
            order, cuts = planned(sampler, number)
            batches = {frozenset(part.tolist()) for part in np.split(order, cuts[1:-1])}
            assert not batches & seen
            seen |= batches


#: Made once: what a seed gives may never change.
GOLDEN = [141, 257, 789, 288, 820, 319, 350, 851, 913]


def test_what_a_seed_gives_never_changes():
    lengths, keys = np.arange(1000) * 7919 % 501, set()
    for dtype in (np.int16, np.uint64):
        sampler = LengthBucketBatchSampler(
            lengths.astype(dtype), max_tokens=2000, seed=3, window=300
        )
        order, cuts = planned(sampler, 2, 4)
        assert [len(cuts), *order[500:508].tolist()] == GOLDEN
        keys.add(sampler.record(1, 1000, None, lambda: (0, 0)).key)
    assert len(keys) == 1


@pytest.mark.parametrize(
    "size, n_ranks, window",
    [(4, 1, 1 << 14), (100, 1, 1 << 14), (79, 2, 128 * 158), (157, 1, 128 * 157)],
)
def test_the_window_of_no_argument_never_changes(size, n_ranks, window):
    lengths = log_normal(40_000)
    one, other = (
        planned(
            LengthBucketBatchSampler(lengths, batch_size=size, seed=3, window=given), 0, n_ranks
        )
        for given in (None, window)
    )
    assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def test_a_cutting_that_changes_plans_the_rest_anew():
    """As often as it does; what comes is the same each time, and all of it once."""
    sampler = LengthBucketBatchSampler(log_normal(3000), max_tokens=9000, seed=1)
    cuttings = [Cutting(0, 3, (None, 9000))]
    _, cuts = sampler.epoch(5, 3000, cuttings)
    for num_ranks, limits in ((2, (None, 9000)), (5, (40, 20_000))):
        start = int(cuts[np.searchsorted(cuts, 900 * len(cuttings))])
        cuttings.append(Cutting(start, num_ranks, limits))
        order, cuts = sampler.epoch(5, 3000, cuttings)
        assert start in cuts and sorted(order[:].tolist()) == list(range(3000))
        again = pickle.loads(pickle.dumps(sampler)).epoch(5, 3000, cuttings)
        assert np.array_equal(order[:], again[0][:]) and np.array_equal(cuts, again[1])
    sizes = np.diff(cuts[np.searchsorted(cuts, start) :])
    assert sizes.max() <= 40 and len(sizes) % 5 == 0


@pytest.mark.parametrize(
    ("lengths", "options", "error", "match"),
    [
        ([1, 2], {}, ValueError, "nothing limits a batch"),
        ([1, 9, 2], {"max_tokens": 8}, ValueError, r"lengths\[1\] is 9, which max_tokens=8"),
        ([1, 2], {"batch_size": 3, "drop_last": True}, ValueError, "2 examples do not fill"),
        ([1, 2], {"max_tokens": 9, "drop_last": True}, ValueError, "2 examples do not fill"),
        ([1, 2], {"batch_size": 0}, ValueError, "batch_size"),
        ([1, 2], {"batch_size": 1, "window": 0}, ValueError, "window"),
        ([1, 2], {"batch_size": 1, "drop_last": "no"}, TypeError, "drop_last"),
        ([1, -2], {"batch_size": 1}, ValueError, r"lengths\[1\] is -2"),
        ([2**32], {"batch_size": 1}, ValueError, "4294967295"),
        ([], {"batch_size": 1}, TypeError, "integers"),
        (np.zeros(0, int), {"batch_size": 1}, ValueError, "1 to"),
        ([1.5], {"batch_size": 1}, TypeError, "integers"),
        ([[1]], {"batch_size": 1}, TypeError, "one-dimensional"),
    ],
)
def test_wrong_arguments_are_refused(lengths, options, error, match):
    with pytest.raises(error, match=match):
        LengthBucketBatchSampler(lengths, seed=0, **options)


def test_full_batches_are_kept_with_drop_last():
    for options in ({"batch_size": 2}, {"max_tokens": 4}, {"max_tokens": 5, "batch_size": 4}):
        sampler = LengthBucketBatchSampler([2, 2], seed=0, drop_last=True, **options)
        assert len(planned(sampler)[0]) == 2


def test_too_few_for_all_ranks_with_drop_last_is_said_where_the_ranks_are_known():
    sampler = LengthBucketBatchSampler([1] * 10, batch_size=4, seed=0, drop_last=True)
    with pytest.raises(ValueError, match="a batch for each of 3 ranks"):
        planned(sampler, num_ranks=3)


def test_it_gives_batches_not_orders():
    sampler = LengthBucketBatchSampler([1] * 10, batch_size=4, seed=0)
    with pytest.raises(TypeError, match="pass it as batch_sampler="):
        sampler(np.arange(10), 0)
    with pytest.raises(ValueError, match="10 lengths for a dataset of 11"):
        sampler._plan_batches(None, 11, 0, Cutting(0, 1, sampler.limits()))
