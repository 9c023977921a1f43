"""fastiter: batches from worker processes, written once into shared memory."""

from __future__ import annotations

from fastiter.dataset import DatasetMixin, Iterator
from fastiter.errors import DatasetError, TimeoutWarning, WorkerDiedError
from fastiter.iterators import (
    MultithreadIterator,
    OrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
)

__version__ = "0.1.0"

__all__ = [
    "DatasetError",
    "DatasetMixin",
    "Iterator",
    "MultithreadIterator",
    "OrderSampler",
    "SerialIterator",
    "ShuffleOrderSampler",
    "TimeoutWarning",
    "WorkerDiedError",
]
