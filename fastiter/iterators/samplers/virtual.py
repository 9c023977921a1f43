"""Shuffled orders that are computed, not stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from fastiter.iterators.samplers._seeded import SeededSampler
from fastiter.iterators.samplers.shuffle import OrderSampler

if TYPE_CHECKING:
    from fastiter._order.permutation import VirtualOrder

__all__ = ["VirtualShuffleOrderSampler"]


class VirtualShuffleOrderSampler(SeededSampler, OrderSampler):
    """Shuffles the whole dataset in every epoch without storing an order.

    For datasets so large that an order of 8 bytes per example is a burden: an epoch of 10**12
    examples begins at once and takes no memory, a snapshot is a few integers, and resuming needs no
    time. Above 65,536 examples the orders are pseudo-random, not exactly uniform; see
    `fastiter.random.virtual_permutation`. Chainer's iterators cannot use them, nor load their
    snapshots.

    Parameters
    ----------
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each epoch has another order of the seed.

    Raises
    ------
    TypeError, ValueError
        If ``seed`` is wrong or negative.
    """

    _KIND: ClassVar[int] = 2

    def _draw(self, n_examples: int, number: int) -> VirtualOrder:
        from fastiter._order.permutation import VirtualOrder

        assert self._words is not None
        return VirtualOrder(n_examples, self._words, number)
