"""Iterators over datasets, and the samplers that give them their order.

Constructors check their arguments at once: TypeError or ValueError names the argument, what was
given, and what is expected.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from fastiter._plan.epoch_sampler import Epoch, EpochSampler
from fastiter._plan.state import Skipped
from fastiter.iterators._addresses import Address
from fastiter.iterators._skips import Replacement
from fastiter.iterators.samplers.block import BlockShuffleOrderSampler
from fastiter.iterators.samplers.buckets import LengthBucketBatchSampler
from fastiter.iterators.samplers.mixture import MixtureOrderSampler
from fastiter.iterators.samplers.shuffle import OrderSampler, ShuffleOrderSampler
from fastiter.iterators.samplers.virtual import VirtualShuffleOrderSampler
from fastiter.iterators.samplers.weighted import WeightedOrderSampler
from fastiter.iterators.serial import SerialIterator

if TYPE_CHECKING:
    from fastiter.iterators.multiprocess import MultiprocessIterator
    from fastiter.iterators.multithread import MultithreadIterator
else:
    # On first use: multiprocessing takes longer than all the rest, threads need logging.
    _LATE = {"MultiprocessIterator": "multiprocess", "MultithreadIterator": "multithread"}

    def __getattr__(name):
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_LATE[name]}"), name)
        return globals().setdefault(name, found)


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
