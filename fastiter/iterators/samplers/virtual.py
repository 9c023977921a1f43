"""Shuffled orders that are computed, not stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from fastiter._plan.epoch_sampler import Epoch, EpochSampler, Seed, words_of
from fastiter.iterators.samplers.shuffle import OrderSampler

__all__ = ["VirtualShuffleOrderSampler"]


class VirtualShuffleOrderSampler(EpochSampler, OrderSampler):
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
    """

    kind: ClassVar[int] = 2
    permutes = True

    def __init__(self, seed: Seed) -> None:
        self.seed = words_of(seed)

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        from fastiter._order.permutation import VirtualOrder

        assert self.seed is not None
        return Epoch(VirtualOrder(n_examples, self.seed, number))
