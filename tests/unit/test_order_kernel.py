"""Orders drawn in C against NumPy's own: live, and from golden files of several versions."""

from __future__ import annotations

import csv
import hashlib
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from fastiter._order.permutation import permutation

GOLDEN = sorted(Path(__file__).parents[1].joinpath("data").glob("orders-numpy-*.csv"))
SIZES = [
    *range(70),
    *(127, 128, 129, 255, 256, 257, 258, 511, 512, 513, 514, 1000, 4096, 10_000),
    *(2**16 - 1, 2**16, 2**16 + 1, 2**17 - 1, 2**17 + 300, 1_000_000),
]
BIT_GENERATORS = ["MT19937", "PCG64", "Philox", "SFC64"]


def random_state(bit_generator: str, seed: int) -> np.random.RandomState:
    if bit_generator == "MT19937":
        return np.random.RandomState(seed)
    return np.random.RandomState(getattr(np.random, bit_generator)(seed))


def state_of(state: np.random.RandomState) -> bytes:
    """Everything that decides what comes next, the half-used word included."""
    return pickle.dumps(state.get_state(legacy=False))


@pytest.mark.parametrize("bit_generator", BIT_GENERATORS)
def test_orders_and_states_equal_numpys(bit_generator):
    ours, theirs = random_state(bit_generator, 7), random_state(bit_generator, 7)
    for n in SIZES:  # on and on from one state: it is used in every phase of its buffer
        order, expected = permutation(ours, n), theirs.permutation(n)
        assert order.dtype == expected.dtype
        assert np.array_equal(order, expected), n
        assert state_of(ours) == state_of(theirs), n


def test_a_pending_normal_variate_survives():
    ours, theirs = np.random.RandomState(3), np.random.RandomState(3)
    assert ours.standard_normal() == theirs.standard_normal()  # leaves a second one behind
    assert np.array_equal(permutation(ours, 1000), theirs.permutation(1000))
    assert ours.standard_normal() == theirs.standard_normal()
    assert state_of(ours) == state_of(theirs)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_orders(path):
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            state = random_state(line["bit_generator"], int(line["seed"]))
            order = permutation(state, int(line["n"]))
            assert " ".join(map(str, order[:8])) == line["first"], line
            assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == line["sha256"]
            assert state.randint(0, 2**32, dtype=np.uint32) == int(line["next_word"]), line


def test_golden_files_of_several_versions_are_there():
    assert len(GOLDEN) >= 2


def test_other_objects_are_asked_themselves():
    ours, theirs = np.random.default_rng(5), np.random.default_rng(5)
    assert np.array_equal(permutation(ours, 1000), theirs.permutation(1000))
    assert ours.random() == theirs.random()

    class Backwards(np.random.RandomState):
        def permutation(self, n):
            return np.arange(n)[::-1]

    assert permutation(Backwards(0), 3).tolist() == [2, 1, 0]
    with pytest.raises(AttributeError, match="permutation"):
        permutation(object(), 3)


@pytest.mark.parametrize("n", [np.int32(5), True, -1])
def test_any_whole_number_is_a_length(n):
    assert np.array_equal(
        permutation(np.random.RandomState(0), n), np.random.RandomState(0).permutation(n)
    )


def test_a_length_that_is_no_whole_number_is_a_type_error():
    with pytest.raises(TypeError, match="float"):
        permutation(np.random.RandomState(0), 3.5)


def test_an_impossible_length_is_an_error_and_draws_nothing():
    state = np.random.RandomState(0)
    with pytest.raises((MemoryError, ValueError)):
        permutation(state, 2**62)
    assert np.array_equal(permutation(state, 100), np.random.RandomState(0).permutation(100))


def test_each_order_is_an_array_of_its_own():
    state = np.random.RandomState(0)
    first, second = permutation(state, 10), permutation(state, 10)
    assert first.flags.owndata and first.flags.writeable
    assert not np.shares_memory(first, second)


def test_it_waits_for_the_bit_generators_lock():
    state = np.random.RandomState(0)
    done = threading.Event()

    def draw():
        permutation(state, 10)
        done.set()

    thread = threading.Thread(target=draw)
    with state._bit_generator.lock:
        thread.start()
        assert not done.wait(0.05)
    thread.join(60)
    assert done.is_set()


def test_threads_share_one_state_without_mixing_orders():
    n, rounds = 5000, 20
    state = np.random.RandomState(1)
    expected = np.random.RandomState(1)
    orders = [tuple(expected.permutation(n)) for _ in range(4 * rounds)]
    drawn: list[tuple[int, ...]] = []

    def draw():
        for _ in range(rounds):
            drawn.append(tuple(permutation(state, n)))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(drawn) == sorted(orders)
