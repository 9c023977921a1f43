"""Orders that are computed: the same by every instruction set, bijections, and well mixed."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from uniformity import chi_square_z, lag_z, pair_z, place_z

from fastiter import random
from fastiter._order import permutation
from fastiter._order.permutation import VirtualOrder

WORDS = permutation.seed_words(20262)
ROUNDS = permutation.ROUNDS


def whole(n, words=WORDS, rounds=ROUNDS):
    return permutation.whole_by(n, words, rounds)


def many_words(count):
    words = np.random.default_rng(5).integers(0, 2**64, (count, 2), dtype=np.uint64)
    return [(int(first), int(second)) for first, second in words]


# -- what it is ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "n", [4, 5, 7, 8, 9, 31, 32, 33, 60, 64, 65, 1000, 4095, 4096, 4097, 65_537, 300_001]
)
def test_every_index_comes_once(n):
    assert np.array_equal(np.sort(whole(n)), np.arange(n))


#: Made once: what a seed gives may never change.
GOLDEN = {
    65_537: [62049, 21148, 8516, 31679],
    10**7: [8806538, 64532, 3591411, 9867865],
    10**12: [57791843275, 710664197553, 44591315640, 5379613705],
    2**62: [1138301786830286511, 1900284629931090866, 2928337118535598432, 749279378581787373],
}


@pytest.mark.parametrize("n", GOLDEN)
def test_what_a_seed_gives_never_changes(n):
    order = VirtualOrder(n, permutation.seed_words(7), 3)
    assert order[n // 2 : n // 2 + 4].tolist() == GOLDEN[n]


def test_streams_and_seeds_give_other_orders():
    orders = [
        VirtualOrder(10**6, permutation.seed_words(seed), k) for seed in range(3) for k in range(3)
    ]
    parts = {tuple(order[:20].tolist()) for order in orders}
    assert len(parts) == 9


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, 65_536])
def test_up_to_65536_it_is_the_fast_shuffle(n):
    assert np.array_equal(random.virtual_permutation(n, 9), random.permutation(n, 9))


@pytest.mark.parametrize("n", [1000, 65_537, 200_000])
def test_parts_are_parts_of_the_whole(n):
    order = random.virtual_permutation(n, 9)
    for start, count in [
        (0, 0),
        (0, 1),
        (n - 1, 1),
        (n, 0),
        (17, 8),
        (17, 9),
        (17, 131),
        (300, 700),
    ]:
        part = random.virtual_permutation(n, 9, start, count)
        assert np.array_equal(part, order[start : start + count])
        assert part.dtype == np.int64 and part.flags.owndata and part.flags.writeable
    virtual = VirtualOrder(n, permutation.seed_words(9), 0)
    assert [virtual[i] for i in (0, 5, n - 1, -1, -n)] == order[[0, 5, n - 1, -1, -n]].tolist()
    assert np.array_equal(virtual[-10:], order[-10:])
    assert np.array_equal(virtual[n - 3 : n + 50], order[n - 3 :])
    assert virtual[7:3].size == 0
    assert len(virtual) == virtual.index_bound == n


def test_it_takes_no_memory():
    random.virtual_permutation(10**12, 0, 5, 10)  # what is imported and kept by the first call
    tracemalloc.start()
    try:
        random.virtual_permutation(10**12, 1, 10**11, 256)
        assert tracemalloc.get_traced_memory()[1] < 20_000
    finally:
        tracemalloc.stop()


def test_pickles_and_compares_by_its_arguments():
    order = VirtualOrder(10**12, WORDS, 3)
    assert len(pickle.dumps(order)) < 200
    other = pickle.loads(pickle.dumps(order))
    assert other == order and hash(other) == hash(order)
    assert np.array_equal(other[:50], order[:50])
    assert order != VirtualOrder(10**12, WORDS, 4)
    assert order != 5


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, "n must", (-1, 0)),
        (ValueError, "n must", (2**62 + 1, 0)),
        (TypeError, "n must be an integer", (2.5, 0)),
        (ValueError, "seed", (10, -1)),
        (TypeError, "seed", (10, "0")),
        (ValueError, "start must be at least 0, not -1", (10, 0, -1)),
        (ValueError, "count must be at least 0, not -1", (10, 0, 0, -1)),
        (ValueError, "10 indices", (10, 0, 5, 6)),
        (ValueError, "start is 11", (10, 0, 11)),
        (TypeError, "count must be an integer", (10, 0, 0, 1.5)),
    ],
)
def test_wrong_arguments(error, message, arguments):
    with pytest.raises(error, match=message):
        random.virtual_permutation(*arguments)


def test_wrong_places():
    order = VirtualOrder(10**6, WORDS, 0)
    with pytest.raises(IndexError, match="1000000"):
        order[10**6]
    with pytest.raises(ValueError, match="step"):
        order[::2]


# -- how well it mixes -----------------------------------------------------------------------------

PAIRS = [(0, 1), (0, 8), (1, 9), (5, 40), (30, 31), (3, -1)]


def worst_pair(n, count, rounds):
    orders = np.stack([whole(n, words, rounds=rounds) for words in many_words(count)])
    return max(pair_z(orders, i, j % n) for i, j in PAIRS)


@pytest.mark.parametrize(("n", "count"), [(60, 60_000), (64, 60_000), (200, 60_000)])
def test_any_two_places_are_independent(n, count):
    assert worst_pair(n, count, ROUNDS) < 4


@pytest.mark.parametrize(("n", "count"), [(60, 30_000), (64, 30_000), (200, 60_000)])
def test_two_places_tell_four_half_rounds(n, count):
    assert worst_pair(n, count, 4) > 8


def test_every_place_gets_every_value_alike():
    orders = np.stack([whole(100, words) for words in many_words(40_000)])
    assert abs(place_z(orders)) < 4
    weak = np.stack([whole(100, words, rounds=2) for words in many_words(40_000)])
    assert place_z(weak) > 8


def neighbour_z(rounds, n=10_007, count=400):
    counts = np.zeros(n, dtype=np.int64)
    for words in many_words(count):
        order = whole(n, words, rounds=rounds)
        counts += np.bincount((order[1:] - order[:-1]) % n, minlength=n)
    assert counts[0] == 0
    return chi_square_z(counts[1:], float(count), n - 2)


def test_neighbours_differ_by_anything():
    assert neighbour_z(ROUNDS) < 4
    assert neighbour_z(4) > 8


LAGS = [1, 2, 16, 100, 250, 256, 512, 1000]


@pytest.mark.parametrize("n", [10_007, 60_000, 65_536, 100_000, 1_281_167])
def test_no_correlation_along_the_order(n):
    count = 2 if n > 10**6 else 20
    orders = [whole(n, words) for words in many_words(count)]
    assert max(abs(lag_z(order, lag)) for order in orders for lag in LAGS) < 5
    weak = [whole(n, words, rounds=2) for words in many_words(count)]
    assert max(abs(lag_z(order, lag)) for order in weak for lag in LAGS) > 6


@pytest.mark.parametrize("n", [10_007, 65_536, 300_000])
def test_runs_and_fixed_points_are_as_many_as_by_chance(n):
    for words in many_words(20):
        order = whole(n, words)
        descents = int((order[1:] < order[:-1]).sum())
        assert abs(descents - (n - 1) / 2) < 5 * (n / 12) ** 0.5
        assert (order == np.arange(n)).sum() <= 10  # Poisson of mean 1
