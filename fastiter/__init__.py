"""fastiter: batches from worker processes, written once into shared memory."""

from __future__ import annotations

from fastiter.dataset import DatasetMixin, Iterator
from fastiter.errors import DatasetError, TimeoutWarning, WorkerDiedError
from fastiter.iterators import OrderSampler, SerialIterator, ShuffleOrderSampler

__version__ = "0.1.0"

__all__ = [
    "DatasetError",
    "DatasetMixin",
    "Iterator",
    "OrderSampler",
    "SerialIterator",
    "ShuffleOrderSampler",
    "TimeoutWarning",
    "WorkerDiedError",
]
