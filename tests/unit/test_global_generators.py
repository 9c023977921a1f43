"""The global generators of `random` and NumPy, set to a state of ours."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from fastiter._order.global_generators import find_numpy, find_python, seed_generators

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    states = random.getstate(), np.random.get_state()
    generator = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(generator)
    random.setstate(states[0])
    np.random.set_state(states[1])


def mixed(z: int) -> int:
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def words(start: int) -> list[int]:
    pairs = [mixed(start + k * GOLDEN & MASK) for k in range(1, 313)]
    found = [half for pair in pairs for half in (pair & 0xFFFFFFFF, pair >> 32)]
    return [found[0] | 1 << 31, *found[1:]]


def expected(*numbers: int) -> tuple[random.Random, np.random.RandomState, int]:
    """The generators in these states, and the seed, by the definition."""
    low, high = numbers[0], 0
    for number in numbers[1:]:
        low = mixed(low ^ mixed(number + GOLDEN & MASK))
        high = mixed(high ^ mixed(number - GOLDEN & MASK))
    python, legacy = random.Random(), np.random.RandomState()
    python.setstate((3, (*words(low), 624), None))
    legacy.set_state(("MT19937", words(high), 624))
    return python, legacy, mixed(low ^ high) >> 1


def check(*numbers: int) -> None:
    python, legacy, third = expected(*numbers)
    random.gauss(0, 1), np.random.normal()  # each keeps a second number
    assert seed_generators(*numbers) == third
    for _ in range(700):
        assert random.random() == python.random()
        assert np.random.rand() == legacy.rand()
    assert random.gauss(0, 1) == python.gauss(0, 1)
    assert np.random.normal() == legacy.normal()


@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (MASK, 1, 2, 3), (2**62 + 1, 0, 70_000, 255)])
def test_the_states_are_those_of_the_definition(numbers):
    check(*numbers)


def test_the_words_are_found_where_they_lie():
    """If not, all is right, but slow."""
    assert find_python()
    assert find_numpy()


class MT19937(np.random.MT19937):
    """Of which nothing is known."""


def test_generators_that_are_not_known():
    for generator in (np.random.MT19937(5), MT19937(6), np.random.MT19937(7)):
        np.random.set_bit_generator(generator)
        assert find_numpy() is (type(generator) is np.random.MT19937)
        check(1, 2, 3, 4)
