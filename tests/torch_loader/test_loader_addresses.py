"""`DataLoader.batch_at`: the examples of any batch, known without fetching them."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import TensorDataset  # noqa: E402

from fastiter import (  # noqa: E402
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    SerialIterator,
    ShuffleOrderSampler,
)
from fastiter.datasets import StreamDataset  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

N = 53
LENGTHS = np.random.RandomState(0).randint(1, 40, N)
DATA = TensorDataset(torch.arange(N))
ORDERS = {
    "shuffle": lambda: {"sampler": ShuffleOrderSampler(3)},
    "mixture": lambda: {"sampler": MixtureOrderSampler([20, 33], [1, 2], 3)},
    "buckets": lambda: {
        "batch_sampler": LengthBucketBatchSampler(LENGTHS, batch_size=5, seed=3),
    },
}


def loader_of(kind, batch_size=4, **arguments):
    order = ORDERS[kind]()
    if "sampler" in order:
        arguments = {"batch_size": batch_size, **arguments}
    return DataLoader(DATA, **order, **arguments)


def addresses(loader, n, **arguments):
    return [loader.batch_at(number, **arguments).indices.tolist() for number in range(n)]


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_those_that_come(kind, workers):
    loader = loader_of(kind, num_workers=workers)
    for epoch in range(2):
        expected = addresses(loader, len(loader))  # of the next epoch
        for number, (rows,) in enumerate(loader):
            address = loader.batch_at(number)
            assert address.indices.tolist() == rows.tolist() == expected[number]
            assert (address.step, address.rank) == (number, 0)
            assert set(address.epochs.tolist()) == {epoch}
            # All others of this epoch, too, whatever was prefetched.
            assert addresses(loader, len(loader)) == expected
    loader.set_epoch(0)
    assert addresses(loader, len(loader)) == [rows.tolist() for (rows,) in loader]


@pytest.mark.parametrize("kind", ORDERS)
def test_addresses_of_all_ranks(kind):
    loaders = [loader_of(kind, rank=rank, num_replicas=3) for rank in range(3)]
    for rank in range(3):
        expected = [rows.tolist() for (rows,) in loaders[rank]]
        loaders[rank].set_epoch(0)
        for loader in (loaders[rank], loaders[0]):
            loader.set_epoch(0)
            assert addresses(loader, len(loader), rank=rank) == expected


def test_seeds_are_those_of_the_iterators():
    loader = loader_of("shuffle", seed_examples=True)
    with SerialIterator(
        DATA, 4, repeat=False, order_sampler=ShuffleOrderSampler(3), seed_examples=True
    ) as iterator:
        for number in (0, 5, 13):
            ours, theirs = loader.batch_at(number), iterator.batch_at(number)
            assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_state_with_other_cuts(workers):
    former = loader_of("shuffle", batch_size=4)
    iterator = iter(former)
    for _ in range(3):
        next(iterator)
    loader = loader_of("shuffle", batch_size=8, num_workers=workers)
    loader.load_state_dict(former.state_dict())
    first = loader.state_dict()["_sampler_iter_yielded"]
    known = loader.batch_at(first).indices.tolist()
    batches = []
    for number, (rows,) in enumerate(loader, first):
        assert loader.batch_at(number).indices.tolist() == rows.tolist()
        batches += [rows.tolist()]
    assert known == batches[0] and len(batches) == 6
    loader = loader_of("shuffle", batch_size=8)
    loader.load_state_dict(former.state_dict())
    with pytest.raises(LookupError, match="batch_size"):
        loader.batch_at(first - 1)
    with pytest.raises(LookupError, match=f"none of number {first + 6}"):
        loader.batch_at(first + 6)


def test_a_dropped_batch_has_no_address():
    loader = loader_of("shuffle", batch_size=10, drop_last=True)
    assert len(addresses(loader, 5)) == len(loader) == 5
    with pytest.raises(LookupError, match="epoch 0 has 5 batches, none of number 5"):
        loader.batch_at(5)


def test_what_has_no_addresses():
    for loader in (
        DataLoader(DATA, 4, shuffle=True),
        DataLoader(StreamDataset(["a", "b"], list), 4),
    ):
        with pytest.raises(LookupError, match="a sampler of fastiter's"):
            loader.batch_at(0)
    loader = loader_of("shuffle")
    with pytest.raises(ValueError, match="number must be at least 0"):
        loader.batch_at(-1)
    with pytest.raises(ValueError, match="rank must be below num_replicas=1, not 1"):
        loader.batch_at(0, rank=1)
