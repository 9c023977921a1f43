"""Samplers of fastiter, in loaders of torch and in the iterators that these are compared to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter import (  # noqa: E402
    BlockShuffleOrderSampler,
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    WeightedOrderSampler,
)
from fastiter.iterators import Epoch, EpochSampler  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

N = 53
LENGTHS = np.random.RandomState(0).randint(1, 40, N)


class Growing(EpochSampler):
    """Epochs of different lengths."""

    varies = True

    def epoch(self, number, n_examples, cuttings=()):
        generator = np.random.default_rng([*self.seed, number])
        return Epoch(generator.integers(0, n_examples, 29 + 5 * number))

    def arguments(self):
        return ()


def batches_of(epoch):
    """A pure function that gives an epoch's batches."""
    order = np.random.RandomState(epoch).permutation(N)
    return np.split(order, [4, 9, 10, 20, 27, 33, 40])


ORDERS = {
    "shuffle": lambda: ShuffleOrderSampler(3),
    "virtual": lambda: VirtualShuffleOrderSampler(3),
    "block": lambda: BlockShuffleOrderSampler(3, block_size=4, window=2),
    "weighted": lambda: WeightedOrderSampler(np.arange(1, N + 1), 3, n_samples=47),
    "mixture": lambda: MixtureOrderSampler([20, 33], [1, 2], 3),
    "user's": lambda: Growing(3),
}
BATCHES = {
    "buckets": lambda: LengthBucketBatchSampler(LENGTHS, batch_size=5, seed=3),
    "tokens": lambda: LengthBucketBatchSampler(LENGTHS, max_tokens=160, seed=3),
    "function": lambda: batches_of,
}
KINDS = [*ORDERS, *BATCHES]


def data(n=N):
    return torch_data.TensorDataset(torch.arange(n))


def loader_of(kind, batch_size=4, kind_of_loader=DataLoader, n=N, **arguments):
    if kind in ORDERS:
        return kind_of_loader(data(n), batch_size, sampler=ORDERS[kind](), **arguments)
    arguments.pop("drop_last", None)
    return kind_of_loader(data(n), batch_sampler=BATCHES[kind](), **arguments)


def iterator_of(kind, batch_size=4, **arguments):
    """The oracle."""
    if kind in ORDERS:
        arguments |= {"batch_size": batch_size, "order_sampler": ORDERS[kind]()}
    else:
        arguments.pop("drop_last", None)
        arguments["batch_sampler"] = BATCHES[kind]()
    return SerialIterator(range(N), repeat=False, **arguments)


def values(batch):
    batch = batch[0] if isinstance(batch, (list, tuple)) else batch
    return torch.as_tensor(batch).reshape(-1).tolist()


def epoch_of(loader):
    return [values(batch) for batch in loader]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))
