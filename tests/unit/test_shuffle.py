"""The fast shuffle: its orders never change, and are the same however made."""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fastiter import random
from fastiter._order import permutation

WORDS = permutation.seed_words(20261)
GOLDEN = Path(__file__).parents[1] / "data" / "shuffles.csv"


# ---- always the same ------------------------------------------------------------------------


def test_golden_orders():
    with GOLDEN.open(newline="") as file:
        for line in csv.DictReader(file):
            words = permutation.seed_words([int(number) for number in line["seed"].split()])
            order = permutation.fast_permutation(int(line["n"]), words, int(line["stream"]))
            assert " ".join(map(str, order[:8])) == line["first"], line
            assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == line["sha256"]


def test_threads_do_not_change_an_order():
    n = 1_200_000
    order = random.permutation(n, 3, threads=1)
    assert np.array_equal(np.sort(order), np.arange(n))
    for threads in (2, 7, 1000, None):
        assert np.array_equal(random.permutation(n, 3, threads=threads), order)


# ---- seeds ----------------------------------------------------------------------------------

SEEDS = [0, 1, 2**32 - 1, 2**32, 2**64 - 1, 2**64, 2**200 + 7, [0], [1, 2, 3], (2**40, 0, 5)]


@pytest.mark.parametrize("seed", [*SEEDS, list(range(20)), np.uint64(7), np.arange(3)], ids=str)
def test_seeds_are_those_of_numpys_seed_sequence(seed):
    sequence = np.random.SeedSequence(seed)
    expected = tuple(map(int, sequence.generate_state(2, np.uint64)))
    assert permutation.seed_words(seed) == permutation.seed_words(sequence) == expected
    order = random.permutation(20, seed)
    assert np.array_equal(order, random.permutation(20, sequence))


def test_spawned_seeds_streams_and_lengths_give_orders_of_their_own():
    first, second = np.random.SeedSequence(1).spawn(2)
    streams = [permutation.fast_permutation(100, WORDS, stream) for stream in (0, 1, 2**64 - 1)]
    orders = [*streams, random.permutation(100, first), random.permutation(100, second)]
    orders.append(random.permutation(101, 20261)[np.argsort(random.permutation(101, 20261))])
    assert len({order.tobytes() for order in orders}) == len(orders)
    # The places of the same values under the next length: related draws would correlate.
    n = 10_000
    one, other = np.argsort(random.permutation(n, 1)), np.argsort(random.permutation(n + 1, 1))
    assert abs(np.corrcoef(one, other[:n])[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        ({1, 2}, TypeError, "not set"),
        ({1: 2}, TypeError, "not dict"),
        ({1: 2}.keys(), TypeError, "not dict_keys"),
        (None, TypeError, "NoneType"),
        (1.5, TypeError, "float"),
        ("1", TypeError, "str"),
        ([1.5], TypeError, "holds a float: 1.5"),
        (-1, ValueError, "negative.*-1"),
        ([3, -2], ValueError, "negative.*-2"),
        ([], ValueError, "empty"),
    ],
)
def test_wrong_seeds(seed, error, message):
    with pytest.raises(error, match=f"seed must .*{message}"):
        random.permutation(5, seed)


# ---- arguments ------------------------------------------------------------------------------


def test_an_output_array_is_filled_and_returned():
    out = np.full(1000, -1)
    assert random.permutation(1000, 5, out=out) is out
    assert np.array_equal(out, random.permutation(1000, 5))
    part = np.full(12, -1)
    random.permutation(10, 5, out=part[1:11])
    assert part[0] == part[11] == -1
    assert np.array_equal(part[1:11], random.permutation(10, 5))


def read_only(n: int) -> np.ndarray:
    array = np.zeros(n, np.int64)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": -1}, ValueError, "at least 0.*-1"),
        ({"n": 2**32}, ValueError, "4294967296.*at most 4294967295"),
        ({"n": 5.0}, TypeError, "float"),
        ({"threads": 0}, ValueError, "threads must be at least 1.*0"),
        ({"threads": 1.0}, TypeError, "float"),
        ({"out": [0] * 5}, TypeError, "array, not list"),
        ({"out": np.zeros(5, np.int32)}, ValueError, r"int64 of shape \(5,\), but is int32"),
        ({"out": np.zeros(5, ">i8")}, ValueError, "int64"),
        ({"out": np.zeros(6, np.int64)}, ValueError, r"shape \(6,\)"),
        ({"out": np.zeros((5, 1), np.int64)}, ValueError, r"shape \(5, 1\)"),
        ({"out": np.zeros(10, np.int64)[::2]}, ValueError, "contiguous"),
        ({"out": read_only(5)}, ValueError, "writeable"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        random.permutation(**{"n": 5, "seed": 0, **arguments})
