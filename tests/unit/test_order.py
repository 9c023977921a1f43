"""Shuffled orders: NumPy's, and nothing but NumPy's."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fastiter import OrderSampler, SerialIterator, ShuffleOrderSampler

try:
    import chainer
except ImportError:
    chainer = None


def state_of(random: np.random.RandomState) -> tuple:
    name, key, *rest = random.get_state()
    return name, key.tolist(), *rest


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_equals_the_global_generator(size):
    np.random.seed(3)
    sampler = ShuffleOrderSampler()
    orders = [sampler(np.arange(size), 0) for _ in range(3)]
    after = state_of(np.random.mtrand._rand)
    np.random.seed(3)
    assert all((order == np.random.permutation(size)).all() for order in orders)
    assert state_of(np.random.mtrand._rand) == after


class Rotating:
    """No generator of NumPy's; keeps the array that it gives."""

    def __init__(self) -> None:
        self.order = np.arange(3)

    def permutation(self, n: int) -> np.ndarray:
        self.order[:] = np.roll(self.order, 1)
        return self.order


def test_any_object_with_permutation_will_do():
    random = Rotating()
    sampler = ShuffleOrderSampler(random)
    first = sampler(range(3), 0)
    assert sampler(range(3), 0).tolist() == [1, 2, 0]
    assert first.tolist() == [2, 0, 1]


@pytest.mark.parametrize("wrong", [5.0, "seed", object()])
def test_random_state_is_checked(wrong):
    with pytest.raises(TypeError, match="random_state"):
        ShuffleOrderSampler(wrong)


def test_pickled_sampler_goes_on_with_the_same_orders():
    np.random.seed(11)
    sampler = ShuffleOrderSampler()
    sampler(range(9), 0)
    other = pickle.loads(pickle.dumps(sampler))
    for _ in range(3):
        assert (other(range(9), 0) == sampler(range(9), 0)).all()


class LastFirst(ShuffleOrderSampler):
    """A subclass that uses and changes the order it is given."""

    def __call__(self, current_order: np.ndarray, current_position: int) -> np.ndarray:
        current_order[:] = current_order[::-1].copy()
        return current_order


def test_subclass_gets_an_array_of_its_own():
    iterator = SerialIterator(range(3), 3, order_sampler=LastFirst())
    assert [next(iterator) for _ in range(3)] == [[2, 1, 0], [0, 1, 2], [2, 1, 0]]


def test_order_sampler_is_abstract():
    with pytest.raises(TypeError, match="__call__"):
        OrderSampler()


@pytest.mark.skipif(chainer is None, reason="Chainer does not import here")
def test_equals_chainers():
    theirs = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(2))
    ours = ShuffleOrderSampler(np.random.RandomState(2))
    for _ in range(3):
        assert (ours(np.arange(50), 0) == theirs(np.arange(50), 0)).all()
