"""Mixtures of sources: shares at every prefix, passes, epochs, schedules."""

from __future__ import annotations

import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import example, given
from hypothesis import strategies as st
from uniformity import chi_square_z

from fastiter import MixtureOrderSampler, SerialIterator
from fastiter._order import sampling


def drawn(sampler, number):
    """The sources of an epoch, and the indices in them."""
    sizes = sampler._source_sizes
    order = sampler.epoch(number, sum(sizes)).order[:]
    offsets = np.cumsum([0, *sizes])
    sources = np.searchsorted(offsets, order, side="right") - 1
    return sources, order - offsets[sources]


def shares_of(weights):
    exact = [Fraction(repr(w)) if isinstance(w, float) else Fraction(w) for w in weights]
    return [w / sum(exact) for w in exact]


def furthest(sources, due):
    """Distance of counts of sources from due ones: (n, sources) array of Fractions or floats."""
    counts = np.cumsum(sources[:, None] == np.arange(due.shape[1]), axis=0)
    return abs(counts - due).max()


WEIGHTS = st.lists(
    st.integers(0, 9) | st.floats(1e-3, 1e3) | st.sampled_from([0.1, 0.3, 1e-9]),
    min_size=1,
    max_size=6,
).filter(any)


# -- shares ----------------------------------------------------------------------------------------


@given(WEIGHTS, st.integers(1, 60), st.data())
@example([0.1, 0.2, 0.7], 10, None)
def test_counts_are_within_1_of_the_shares_at_every_prefix_of_each_epoch(weights, n, data):
    sizes = [7] * len(weights)
    if data is not None:
        sizes = [data.draw(st.integers(1, 30)) for _ in weights]
    sampler = MixtureOrderSampler(sizes, weights, 0, stop=n)
    shares = np.array(shares_of(weights), dtype=object)
    due = np.arange(1, n + 1)[:, None] * shares
    total = np.zeros(len(sizes), dtype=object)
    for number in range(8):
        sources, _ = drawn(sampler, number)
        assert len(sources) == n
        assert furthest(sources, due) < 1
        total += np.bincount(sources, minlength=len(sizes)) - n * shares
        assert abs(total).max() < 2  # what an epoch leaves over is made good in the next ones


@pytest.mark.parametrize("n_sources", [2, 7, 60, 1000])
def test_counts_stay_within_1_for_many_examples_and_epochs(n_sources):
    weights = np.random.default_rng(n_sources).gamma(0.5, size=n_sources) + 1e-3
    n = 10_000
    sampler = MixtureOrderSampler([50] * n_sources, weights.tolist(), 0, stop=n)
    shares = weights / weights.sum()
    total = np.zeros(n_sources)
    for number in range(5):
        sources, _ = drawn(sampler, number)
        for k in (1, n // 3, n - 1, n):
            counts = np.bincount(sources[:k], minlength=n_sources)
            assert abs(counts - k * shares).max() < 1
        total += counts - n * shares
    assert abs(total).max() < 2


def test_rare_sources_come_as_often_as_they_should_over_epochs():
    sampler = MixtureOrderSampler([9, 9, 9], [0.98, 0.0125, 0.0075], 0, stop=20)
    counts = sum(np.bincount(drawn(sampler, number)[0], minlength=3) for number in range(400))
    assert counts.tolist() == [7840, 100, 60]


def slow_edf(weights, n):
    """By the definition, in exact numbers: the released draw with the earliest deadline."""
    shares, counts, order = shares_of(weights), [0] * len(weights), []
    for slot in range(1, n + 1):
        released = [i for i, share in enumerate(shares) if slot * share > counts[i]]
        order.append(min(released, key=lambda i: (-(-(counts[i] + 1) // shares[i]), i)))
        counts[order[-1]] += 1
    return order


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_the_order_of_sources_is_that_of_earliest_deadlines(weights):
    n = 2 * sum(weights)  # all shares are whole there
    sampler = MixtureOrderSampler([5] * len(weights), weights, 3, stop=n)
    assert drawn(sampler, 0)[0].tolist() == drawn(sampler, 3)[0].tolist() == slow_edf(weights, n)


# -- passes ----------------------------------------------------------------------------------------


@draw_examples(40)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data())
def test_a_source_goes_on_and_each_of_its_passes_is_a_permutation(sizes, data):
    weights = [data.draw(st.integers(1, 5)) for _ in sizes]
    n = data.draw(st.integers(1, 100))
    sampler = MixtureOrderSampler(sizes, weights, data.draw(st.integers(0, 3)), stop=n)
    epochs = [drawn(sampler, number) for number in range(10)]
    for i, size in enumerate(sizes):
        indices = np.concatenate([places[sources == i] for sources, places in epochs])
        passes = [indices[k : k + size] for k in range(0, len(indices) - size + 1, size)]
        for one in passes:
            assert sorted(one.tolist()) == list(range(size))
        if size > 10:
            assert len({str(one) for one in passes}) == len(passes)


def test_first_draws_of_sources_and_passes_are_uniform_and_independent():
    firsts = []
    for seed in range(3000):
        sources, places = drawn(MixtureOrderSampler([5, 5], [1, 1], seed, stop=20), 0)
        a, b = places[sources == 0], places[sources == 1]
        firsts.append((a[0], b[0], a[5]))
    a, b, again = np.array(firsts).T
    for other in (b, again):
        assert chi_square_z(np.bincount(a * 5 + other, minlength=25), 3000 / 25, 24) < 4


#: Made once: what a seed gives may never change.
GOLDEN = [128, 125, 73, 147, 126, 121, 1, 118, 112, 703573]


def test_what_a_seed_gives_never_changes():
    sampler = MixtureOrderSampler([100, 50, 10**6], [0.2, 0.7, 0.1], 5, stop=1000)
    assert sampler.epoch(7, 1_000_150).order[500:510].tolist() == GOLDEN


# -- epochs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "weights", "stop", "expected"),
    [
        ([100, 1000], [0.5, 0.5], "first", 200),
        ([100, 1000], [0.5, 0.5], "all", 2000),
        ([3, 7], [0.3, 0.7], "first", 10),
        ([3, 7], [0.3, 0.7], "all", 10),
        ([1, 2], [1 / 3, 2 / 3], "all", 3),
        ([100, 1000, 10], [1, 0, 3], "first", 13),
        ([100, 1000], [0.5, 0.5], 7, 7),
        ([5], [0.1], "first", 5),
    ],
)
def test_epochs_end_where_they_are_said_to(sizes, weights, stop, expected):
    sampler = MixtureOrderSampler(sizes, weights, 0, stop=stop)
    iterator = SerialIterator(range(sum(sizes)), 1, order_sampler=sampler)
    assert len(iterator) == expected
    sources, places = drawn(sampler, 0)
    for i, size in enumerate(sizes):
        n = len(set(places[sources == i].tolist()))
        assert stop != "first" or n == (sources == i).sum()
        assert stop != "all" or n == size


def test_sizes_as_weights_are_a_shuffle_in_even_shares():
    sizes = [13, 50, 111]
    for stop in ("first", "all"):
        sampler = MixtureOrderSampler(sizes, sizes, 0, stop=stop)
        for number in range(3):
            assert sorted(sampler.epoch(number, 174).order[:].tolist()) == list(range(174))


# -- access ----------------------------------------------------------------------------------------


@draw_examples(30)
@given(st.data())
def test_any_slice_of_any_epoch_is_that_of_the_whole(data):
    sampler = MixtureOrderSampler(
        [20, 3000], [0.1, 0.9], 1, stop=10_000, schedule=[(12_345, [0.5, 0.5])]
    )
    number = data.draw(st.integers(0, 3))
    order, whole = sampler.epoch(number, 3020).order, sampler.epoch(number, 3020).order[:]
    for _ in range(5):
        start = data.draw(st.integers(0, 10_000))
        stop = data.draw(st.integers(start, min(start + 9000, 10_000)))
        part = order[start:stop]
        assert part.dtype == np.int64 and np.array_equal(part, whole[start:stop])
    again = pickle.loads(pickle.dumps(order))
    assert again == order and hash(again) == hash(order)
    assert again != sampler.epoch(number + 1, 3020).order
    assert np.array_equal(again[9000:], whole[9000:])


def test_far_epochs_are_found_without_those_before():
    """Also back and forth."""
    sampler = MixtureOrderSampler([50] * 3, [0.5, 0.3, 0.2], 0, stop=13)
    expected = [sampler.epoch(number, 150).order[:].tolist() for number in range(40)]
    other = MixtureOrderSampler([50] * 3, [0.5, 0.3, 0.2], 0, stop=13)
    for number in (39, 0, 20, 19, 39):
        assert other.epoch(number, 150).order[:].tolist() == expected[number]


def test_epochs_of_whole_shares_are_passed_over_at_once():
    schedule = [(45, [1, 1]), (400, [3, 2]), (407, [1, 4]), (500, [7, 3])]
    sampler = MixtureOrderSampler([50, 60], [2, 3], 0, stop=10, schedule=schedule)
    expected = [sampler.epoch(number, 110).order[:].tolist() for number in range(80)]
    for number in (79, 3, 5, 4, 40, 41, 50, 45, 51):
        other = MixtureOrderSampler([50, 60], [2, 3], 0, stop=10, schedule=schedule)
        assert other.epoch(number, 110).order[:].tolist() == expected[number]
    far = sampler.epoch(10**12, 110).order[:]
    counts = np.bincount(far >= 50, minlength=2)
    assert counts.tolist() == [7, 3]


# -- schedules -------------------------------------------------------------------------------------


def due_by(points, n, n_sources):
    """The due counts after each of n examples."""
    due = np.zeros((n, n_sources))
    for example_number, weights in points:
        due[example_number:] = np.array(weights, dtype=float) / sum(weights)
    return np.cumsum(due, axis=0)


@draw_examples(60)
@given(st.integers(1, 6), st.data())
def test_a_schedule_changes_the_shares_from_its_examples_on(n_sources, data):
    weights = st.lists(st.integers(0, 9), min_size=n_sources, max_size=n_sources).filter(any)
    examples = sorted(data.draw(st.sets(st.integers(0, 120), max_size=5)))
    schedule = [(k, data.draw(weights)) for k in examples]
    first = data.draw(weights)
    sampler = MixtureOrderSampler([9] * n_sources, first, 0, stop=40, schedule=schedule)
    points = [(0, first), *schedule]
    shares = due_by(points, 160, n_sources)
    for number in range(4):
        sources, _ = drawn(sampler, number)
        before = shares[40 * number - 1] if number else 0
        away = furthest(sources, shares[40 * number : 40 * number + 40] - before)
        off = any(0 in weights for _, weights in points)
        assert away < (1 + 1e-9 if n_sources <= 3 and not off else 2.5)
        for k, source in enumerate(sources):
            now = [weights for at, weights in points if at <= 40 * number + k][-1]
            assert now[source] > 0


def test_points_that_are_added_later_change_nothing_before_them():
    def iterator(schedule):
        sampler = MixtureOrderSampler([30, 70], [1, 1], 0, stop=50, schedule=schedule)
        return SerialIterator(range(100), 10, order_sampler=sampler)

    old = iterator([(60, [3, 1])])
    for _ in range(12):
        next(old)
    state = json.loads(json.dumps(old.state_dict()))
    assert len(json.dumps(state)) <= 512
    expected = [next(old) for _ in range(20)]
    new = iterator([(60, [3, 1]), (145, [0, 1])])
    new.load_state_dict(state)
    seen = [next(new) for _ in range(20)]
    assert seen[:2] == expected[:2] and seen[2][:5] == expected[2][:5]
    assert all(index >= 30 for index in [*seen[2][5:], *np.ravel(seen[3:])])
    for other in ([(60, [3, 1]), (119, [1, 2])], [(60, [2, 1])], None):
        with pytest.raises(ValueError, match="other arguments"):
            iterator(other).load_state_dict(state)
    iterator([(60, [3, 1]), (120, [1, 2])]).load_state_dict(state)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        (([], []), ValueError, "1 to 65535 sources"),
        (([0, 1], [1, 1]), ValueError, "sizes"),
        (([1, 1], [1]), ValueError, "2 sizes, but 1 weights"),
        (([1, 1], [1, -1]), ValueError, "not negative"),
        (([1, 1], [0, 0]), ValueError, "not all zero"),
        (([1, 1], [1, float("nan")]), ValueError, "finite"),
        (([1, 1], ["a", 1]), TypeError, "sequence of numbers"),
        (([1, 1], 1), TypeError, "sequence of numbers"),
        (([1, 1], [1, 0], {"stop": "all"}), ValueError, "never gone through"),
        (([1, 1], [1, 1], {"stop": "last"}), ValueError, "'first', 'all'"),
        (([1, 1], [1, 1], {"stop": 1.5}), ValueError, "'first', 'all'"),
        (([1, 1], [1, 1], {"stop": 0}), ValueError, "stop"),
        (([2**60, 1], [1, 1], {"stop": "all"}), ValueError, "set stop"),
        (([1, 1], [1, 1], {"schedule": [3]}), TypeError, "schedule"),
        (([1, 1], [1, 1], {"schedule": [(-1, [1, 1])]}), ValueError, "ascend"),
        (([1, 1], [1, 1], {"schedule": [(5, [1, 1]), (5, [1, 2])]}), ValueError, "after 5"),
        (([1, 1], [1, 1], {"schedule": [(5, [1])]}), ValueError, "weights of schedule"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, match):
    sizes, weights, *options = arguments
    with pytest.raises(error, match=match):
        MixtureOrderSampler(sizes, weights, 0, **(options[0] if options else {}))


def test_a_dataset_of_another_length_is_refused():
    with pytest.raises(ValueError, match="20 examples, but the dataset has 21"):
        SerialIterator(range(21), 1, order_sampler=MixtureOrderSampler([10, 10], [1, 1], 0))


def test_weights_that_no_small_total_holds_exactly():
    weights = [3.141592653589793, 2.718281828459045e-7, 1.4142135623730951e7, 1e-300]
    sampler = MixtureOrderSampler([10] * 4, weights, 0, stop=5000)
    assert sampler._mixture.points[0][1].total == sampling.TOTAL_MAX
    due = np.arange(1, 5001)[:, None] * np.array(weights) / sum(weights)
    assert furthest(drawn(sampler, 0)[0], due) < 1 + 1e-6


def test_threads_may_share_an_order():
    sampler = MixtureOrderSampler([90_000] * 5, [5, 4, 3, 2, 0.123], 0, stop=60_001)
    expected = sampler.epoch(1, 450_000).order[:]
    for _ in range(5):
        order = pickle.loads(pickle.dumps(sampler)).epoch(1, 450_000).order
        with ThreadPoolExecutor(4) as pool:
            starts = range(0, 60_000, 1500)
            pieces = [slice(k, k + 1500) for k in [*starts, *starts]]
            parts = list(pool.map(order.__getitem__, pieces))
        joined = np.concatenate([*parts[: len(starts)], order[60_000:]])
        assert np.array_equal(joined, expected)
