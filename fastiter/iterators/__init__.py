"""Iterators over datasets, and the samplers that give them their order.

Constructors check their arguments at once: TypeError or ValueError names the argument, what was
given, and what is expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastiter._plan.epoch_sampler import Epoch, EpochSampler
from fastiter._plan.state import Skipped
from fastiter.iterators._addresses import Address
from fastiter.iterators._skips import Replacement
from fastiter.iterators.multithread import MultithreadIterator
from fastiter.iterators.samplers.block import BlockShuffleOrderSampler
from fastiter.iterators.samplers.buckets import LengthBucketBatchSampler
from fastiter.iterators.samplers.mixture import MixtureOrderSampler
from fastiter.iterators.samplers.shuffle import OrderSampler, ShuffleOrderSampler
from fastiter.iterators.samplers.virtual import VirtualShuffleOrderSampler
from fastiter.iterators.samplers.weighted import WeightedOrderSampler
from fastiter.iterators.serial import SerialIterator

if TYPE_CHECKING:
    from fastiter.iterators.multiprocess import MultiprocessIterator
else:

    def __getattr__(name):
        # On first use: it brings multiprocessing along, which takes longer than all the rest.
        if name != "MultiprocessIterator":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fastiter.iterators.multiprocess import MultiprocessIterator

        globals()[name] = MultiprocessIterator
        return MultiprocessIterator


__all__ = [
    "Address",
    "BlockShuffleOrderSampler",
    "Epoch",
    "EpochSampler",
    "LengthBucketBatchSampler",
    "MixtureOrderSampler",
    "MultiprocessIterator",
    "MultithreadIterator",
    "OrderSampler",
    "Replacement",
    "SerialIterator",
    "ShuffleOrderSampler",
    "Skipped",
    "VirtualShuffleOrderSampler",
    "WeightedOrderSampler",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
