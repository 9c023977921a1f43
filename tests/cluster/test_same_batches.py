"""Batches from a cluster are those of the other iterators."""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np
import pytest

import fastiter
from fastiter.datasets import TupleDataset
from fastiter.random import example_rng

ray_package = pytest.importorskip("fastiter.ray", reason="Ray is not installed")
RayIterator = ray_package.RayIterator

N = 203


class Pair(NamedTuple):
    image: np.ndarray
    label: int


class Augmented:
    """Images with noise of their own, texts, and lists of a length that varies."""

    def __init__(self, n=N):
        self.numbers = np.arange(n)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, i):
        rng = example_rng()
        noise = rng.random((4, 3), dtype=np.float32)
        ragged = np.full(int(rng.integers(1, 9)), i, np.int64)
        return {"image": self.numbers[i] + noise, "text": f"row {i}", "ragged": ragged, "n": i}


class Kinds(Augmented):
    """Examples of other kinds: of a named tuple, with packed objects, and some that fit nothing."""

    def __getitem__(self, i):
        if i % 10 == 3:
            return [i, {"odd": np.arange(i)}]
        return Pair(np.full(5, i), i)


class Objects(Augmented):
    def __getitem__(self, i):
        return np.float32(i), {"of": np.arange(i % 5), "set": {i}}


class Together(Augmented):
    def __getitem__(self, i):
        return self.numbers[i] * np.ones(3), str(i)

    def __getitems__(self, indices):
        return [self[i] for i in indices]


def shuffled(seed=5):
    return fastiter.ShuffleOrderSampler(seed)


def same(a, b):
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            same(x, y)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and a.shape == b.shape
        assert a.flags.writeable == b.flags.writeable
        np.testing.assert_array_equal(a, b)
    else:
        assert type(a) is type(b)
        assert a == b


def compare(one, other, count):
    with one as a, other as b:
        for _ in range(count):
            same(next(a), next(b))


def test_the_first_thousand_batches(cluster):
    made = {"order_sampler": shuffled(), "batch_size": 16}
    with fastiter.MultiprocessIterator(Augmented(), n_processes=2, **copy.deepcopy(made)) as local:
        remote = RayIterator(
            Augmented(), n_workers=2, address=cluster.address, **copy.deepcopy(made)
        )
        with remote, fastiter.SerialIterator(Augmented(), **copy.deepcopy(made)) as serial:
            for _ in range(1000):
                batch = next(serial)
                same(batch, next(remote))
                same(batch, next(local))


@pytest.mark.parametrize("kind", [Kinds, Objects, Together])
def test_examples_of_every_kind(cluster, kind):
    compare(
        RayIterator(kind(), 16, order_sampler=shuffled(), n_workers=2, address=cluster.address),
        fastiter.SerialIterator(kind(), 16, order_sampler=shuffled()),
        60,
    )


def test_a_cache_in_a_file(cluster, tmp_path):
    class Numbers:
        def __len__(self):
            return N

        def __getitem__(self, i):
            return np.full(3, i)

    with fastiter.cache(Numbers(), path=tmp_path / "cache", key=1) as cached:
        compare(
            RayIterator(cached, 16, order_sampler=shuffled(), n_workers=2, address=cluster.address),
            fastiter.SerialIterator(Numbers(), 16, order_sampler=shuffled()),
            30,
        )
        assert cached.stats().rows == N
    remote = RayIterator(fastiter.cache(Numbers()), 16, address=cluster.address)
    with remote, pytest.raises(TypeError, match="path="):
        next(remote)


def test_columns_padded(cluster):
    made = {"converter": fastiter.concat_examples, "batch_size": 16}
    arrays = TupleDataset(np.arange(N * 6.0).reshape(N, 6), np.arange(N, dtype=np.int32))
    compare(
        RayIterator(arrays, order_sampler=shuffled(), address=cluster.address, **made),
        fastiter.SerialIterator(arrays, order_sampler=shuffled(), **made),
        40,
    )


def test_seeds_of_examples(cluster):
    made = {"batch_size": 16, "seed_examples": True}
    compare(
        RayIterator(
            Drawing(), order_sampler=shuffled(), n_workers=2, address=cluster.address, **made
        ),
        fastiter.SerialIterator(Drawing(), order_sampler=shuffled(), **made),
        30,
    )


class Drawing(Augmented):
    def __getitem__(self, i):
        return i, np.random.random(3)


@pytest.mark.parametrize("first", ["remote", "serial"])
def test_a_state_goes_on_elsewhere(cluster, first):
    def remote():
        return RayIterator(
            Augmented(), 16, order_sampler=shuffled(), n_workers=2, address=cluster.address
        )

    def serial():
        return fastiter.SerialIterator(Augmented(), 16, order_sampler=shuffled())

    begins, goes_on = (remote, serial) if first == "remote" else (serial, remote)
    with begins() as begun:
        for _ in range(19):  # amid the second epoch
            next(begun)
        state = begun.state_dict()
        with goes_on() as other:
            other.load_state_dict(state)
            for _ in range(30):
                same(next(begun), next(other))


def test_a_reset_in_mid_epoch(cluster):
    with RayIterator(Augmented(), 16, shuffle=False, address=cluster.address) as remote:
        first = next(remote)
        next(remote)
        remote.reset()
        with fastiter.SerialIterator(Augmented(), 16, shuffle=False) as serial:
            assert next(remote)[3]["n"] == first[3]["n"] == next(serial)[3]["n"]


def test_local_workers_beside(cluster):
    compare(
        RayIterator(Augmented(), 16, order_sampler=shuffled(), n_local=2, address=cluster.address),
        fastiter.SerialIterator(Augmented(), 16, order_sampler=shuffled()),
        200,
    )


def test_a_dataset_larger_than_a_store_is_refused(cluster):
    huge = TupleDataset(np.zeros((1, 100 << 20), np.uint8))
    remote = RayIterator(huge, 1, address=cluster.address)
    with remote, pytest.raises(MemoryError, match="object store"):
        next(remote)


class Extremes(Augmented):
    """Rows of no elements, and of 3 MB."""

    def __getitem__(self, i):
        rng = example_rng()
        size = int(rng.integers(0, 4)) * (i % 10 == 1) << 18
        return np.full((size, 3), i, np.float32), np.zeros((0, 5)), "x" * (i % 3)


@pytest.mark.parametrize(
    "made",
    [
        {"batch_size": 16, "drop_last": True, "repeat": False, "shuffle": False},
        {"batch_size": 16, "repeat": False, "rank": 1, "num_ranks": 3, "shuffle": False},
        {"batch_size": 16, "rank": 2, "num_ranks": 3, "tail": "drop", "order_sampler": shuffled()},
        {"batch_sampler": lambda epoch: [[i] * (1 + i % 7) for i in range(50)]},
        {"batch_size": 500, "order_sampler": shuffled()},
        {"batch_size": 1, "order_sampler": shuffled(), "repeat": False},
    ],
    ids=lambda made: ",".join(made),
)
@pytest.mark.parametrize("kind", [Augmented, Extremes])
def test_arguments_of_other_iterators(cluster, made, kind):
    remote = RayIterator(kind(), n_workers=2, address=cluster.address, **copy.deepcopy(made))
    with remote, fastiter.SerialIterator(kind(), **copy.deepcopy(made)) as other:
        ended = False
        for _ in range(10 if made.get("batch_size") == 500 else 60):
            expected, found = next(other, None), next(remote, None)
            same(expected, found)
            ended = ended or found is None
        assert ended == ("repeat" in made and made["batch_size"] > 1)


def test_batches_as_they_are_complete(cluster):
    made = {"batch_size": 16, "order_sampler": shuffled(), "repeat": False}
    with RayIterator(
        Augmented(), n_workers=2, in_order=False, address=cluster.address, **copy.deepcopy(made)
    ) as remote:
        begun = [next(remote) for _ in range(5)]
        state = remote.state_dict()
    with fastiter.MultiprocessIterator(
        Augmented(), n_processes=1, in_order=False, **copy.deepcopy(made)
    ) as local:
        local.load_state_dict(state)
        rest = [*local]
    with fastiter.SerialIterator(Augmented(), **copy.deepcopy(made)) as serial:
        expected = [*serial]
    assert len(begun) + len(rest) == len(expected)
    for one, other in zip(
        sorted([*begun, *rest], key=lambda batch: batch[0]["n"]),
        sorted(expected, key=lambda batch: batch[0]["n"]),
        strict=True,
    ):
        same(one, other)
