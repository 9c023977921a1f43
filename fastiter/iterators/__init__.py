"""Iterators over datasets, and the samplers that give them their order."""

from __future__ import annotations

from fastiter.iterators.multiprocess import MultiprocessIterator
from fastiter.iterators.multithread import MultithreadIterator
from fastiter.iterators.order import OrderSampler, ShuffleOrderSampler
from fastiter.iterators.serial import SerialIterator

__all__ = [
    "MultiprocessIterator",
    "MultithreadIterator",
    "OrderSampler",
    "SerialIterator",
    "ShuffleOrderSampler",
]
