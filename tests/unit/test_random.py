"""Generators of single examples."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from uniformity import chi_square_z

from fastiter.random import example_rng


def test_same_arguments_same_numbers():
    for seed in (0, 7, 2**100, [1, 2], np.random.SeedSequence(3)):
        one, other = example_rng(seed, 3, 5), example_rng(seed, 3, 5)
        assert isinstance(one, np.random.Generator)
        assert one.random(10).tolist() == other.random(10).tolist()


def test_any_other_argument_other_numbers():
    places = itertools.product((0, 1, 2**32), (0, 1, 2**32), (0, 1, 2**32, 2**64 - 1))
    firsts = {example_rng(*place).integers(0, 2**63) for place in places}
    assert len(firsts) == 3 * 3 * 4


def test_what_a_seed_gives_never_changes():
    assert example_rng(7, 3, 5).integers(0, 1000, 5).tolist() == [109, 561, 279, 476, 944]


def test_numbers_of_neighbours_are_independent():
    n = 15_000
    draws = np.array([example_rng(1, 0, index).integers(0, 20, 3) for index in range(n)])
    for pair in (draws[:-1, 0] * 20 + draws[1:, 0], draws[:, 0] * 20 + draws[:, 2]):
        assert chi_square_z(np.bincount(pair, minlength=400), len(pair) / 400, 399) < 4
    epochs = np.array([example_rng(1, epoch, 9).integers(0, 20) for epoch in range(n)])
    pair = epochs[:-1] * 20 + epochs[1:]
    assert chi_square_z(np.bincount(pair, minlength=400), len(pair) / 400, 399) < 4


def test_pickles():
    rng = example_rng(7, 3, 5)
    rng.random()
    assert pickle.loads(pickle.dumps(rng)).random() == rng.random()


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "index", (0, 0, -1)),
        (ValueError, "epoch", (0, 2**64, 0)),
        (ValueError, "seed", (-1, 0, 0)),
        (TypeError, "float", (0, 0, 1.0)),
        (TypeError, "seed", ("0", 0, 0)),
    ],
)
def test_wrong_arguments(error, match, arguments):
    with pytest.raises(error, match=match):
        example_rng(*arguments)
