"""Draws by weights: what they are made of, and whether the weights are kept."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from uniformity import chi_square_z

from fastiter import WeightedOrderSampler
from fastiter._order import permutation

WORDS = permutation.seed_words(20263)


def skewed(n):
    return np.random.default_rng(1).gamma(0.5, size=n) + 1e-3


# -- with replacement ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 50, 1000])
def test_draws_with_replacement_follow_the_weights(n):
    weights = skewed(n)
    draws = permutation.AliasTable(weights).draw(WORDS, 0, 2_000_000)
    counts = np.bincount(draws, minlength=n)
    if n == 2:
        expected = 2e6 * weights[0] / weights.sum()
        assert abs(counts[0] - expected) < 4 * expected**0.5
        return
    assert chi_square_z(counts, 2e6 * weights / weights.sum(), n - 1) < 4
    # And the test sees weights that are a few per cent off.
    assert chi_square_z(counts, 2e6 * weights**1.02 / (weights**1.02).sum(), n - 1) > 8


def test_draws_with_replacement_are_independent_of_each_other():
    weights = np.arange(1.0, 31.0)
    draws = permutation.AliasTable(weights).draw(WORDS, 1, 2_000_000)
    share = weights / weights.sum()
    for lag in (1, 8, 64):
        counts = np.bincount(draws[lag:] * 30 + draws[:-lag], minlength=900).reshape(30, 30)
        assert chi_square_z(counts, np.outer(share, share) * (2e6 - lag), 899) < 4


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 129, 1000])
def test_fewer_draws_are_the_first_of_more(count):
    table = permutation.AliasTable(skewed(20))
    draws = table.draw(WORDS, 5, count)
    assert draws.dtype == np.int64 and len(draws) == count
    assert np.array_equal(draws, table.draw(WORDS, 5, 2000)[:count])


@given(st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=40))
def test_a_table_of_any_weights_draws_what_is_there(weights):
    draws = permutation.AliasTable(np.array(weights)).draw(WORDS, 0, 100)
    assert 0 <= draws.min() <= draws.max() < len(weights)
    # An item of next to no weight is next to never drawn.
    assert (np.array(weights)[draws] / max(weights) > 1e-12).all()


# -- without replacement ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000, 50_000])
def test_fewer_draws_without_replacement_are_the_first_of_all(n):
    race = permutation.Race(skewed(n))
    order = race.draw(WORDS, 3, n)
    assert sorted(order.tolist()) == list(range(n))
    for count in {0, 1, 2 * n // 3, n // 100 + 1, n // 2 + 1}:
        count = min(count, n)
        assert np.array_equal(race.draw(WORDS, 3, count), order[:count])


@pytest.mark.parametrize("others", [1e-3, 1e3])
def test_weights_that_a_sample_tells_little_about(others):
    """The sample is every tenth; the estimate of when k have arrived is far off, to either side."""
    weights = np.where(np.arange(40_000) % 10 == 0, 1, others)
    race = permutation.Race(weights)
    assert np.array_equal(race.draw(WORDS, 0, 3000), race.draw(WORDS, 0, 40_000)[:3000])


def test_draws_without_replacement_follow_the_weights():
    weights = np.array([5.0, 1.0, 2.0, 0.5, 3.0, 1.5, 0.25])
    n, rounds = len(weights), 60_000
    race = permutation.Race(weights)
    orders = np.stack([race.draw(WORDS, k, 3) for k in range(rounds)])
    chances = {}
    for i, j, k in itertools.permutations(range(n), 3):
        left = weights.sum() - weights[i]
        chances[i, j, k] = (
            weights[i] / weights.sum() * weights[j] / left * weights[k] / (left - weights[j])
        )
    counts = np.bincount(orders @ [n * n, n, 1], minlength=n**3)
    cells = [(i * n + j) * n + k for i, j, k in chances]
    expected = rounds * np.array(list(chances.values()))
    kept = expected > 5
    assert kept.sum() > 100
    assert chi_square_z(counts[cells][kept], expected[kept], int(kept.sum()) - 1) < 4
    assert counts.sum() == counts[cells].sum()


def test_first_draw_of_many_follows_the_weights():
    weights = skewed(200)
    race = permutation.Race(weights)
    firsts = np.array([race.draw(WORDS, k, 1)[0] for k in range(20_000)])
    expected = 20_000 * weights / weights.sum()
    kept = expected > 5
    counts = np.bincount(firsts, minlength=200)
    assert chi_square_z(counts[kept], expected[kept], int(kept.sum()) - 1) < 4
    wrong = 20_000 * weights**1.3 / (weights**1.2).sum()
    assert chi_square_z(counts[kept], wrong[kept], int(kept.sum()) - 1) > 8


# -- what a seed gives, and what is refused --------------------------------------------------------


def test_what_a_seed_gives_never_changes():
    weights = np.arange(1.0, 101.0)
    replaced = WeightedOrderSampler(weights, 7, n_samples=8)
    assert replaced(range(100), 0).tolist() == [90, 88, 93, 85, 91, 44, 75, 44]
    drawn = WeightedOrderSampler(weights, 7, n_samples=8, replacement=False)
    assert drawn(range(100), 0).tolist() == [57, 39, 19, 50, 69, 65, 43, 55]


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.inf, math.nan, -math.inf, -0.0])
@pytest.mark.parametrize("replacement", [True, False])
def test_weights_that_are_no_weights_are_refused(wrong, replacement):
    with pytest.raises(ValueError, match=r"weights\[2\] is"):
        WeightedOrderSampler([1, 2, wrong, 3], 0, replacement=replacement)


@pytest.mark.parametrize(
    ("error", "message", "weights", "arguments"),
    [
        (ValueError, "shape", [], {}),
        (ValueError, "shape", [[1, 2]], {}),
        (ValueError, "shape", 3.0, {}),
        (TypeError, "weights", ["a"], {}),
        (ValueError, "shape", None, {}),
        (ValueError, "n_samples", [1, 2], {"n_samples": 0}),
        (ValueError, "n_samples", [1, 2], {"n_samples": 3, "replacement": False}),
        (ValueError, "1e\\+290", [1e-300, 1], {"replacement": False}),
        (TypeError, "replacement", [1, 2], {"replacement": None}),
        (TypeError, "seed", [1, 2], {"seed": "x"}),
        (ValueError, "seed", [1, 2], {"seed": -1}),
    ],
)
def test_wrong_arguments(error, message, weights, arguments):
    with pytest.raises(error, match=message):
        WeightedOrderSampler(weights, **{"seed": 0, **arguments})


def test_weights_are_copied():
    weights = np.ones(5)
    sampler = WeightedOrderSampler(weights, 0, n_samples=50)
    weights[:4] = 0
    assert set(sampler(range(5), 0).tolist()) == set(range(5))
