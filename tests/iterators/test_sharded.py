"""Shares of one global order, each for a process of a distributed program."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fastiter import (
    OrderSampler,
    SerialIterator,
    ShardedOrderSampler,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    random,
)

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "SLURM": ("SLURM_PROCID", "SLURM_NTASKS"),
}
SIZES = [(n, size) for n in (1, 2, 5, 12, 13, 100) for size in (1, 2, 3, 5, 12)]


def seeded():
    return ShuffleOrderSampler(7)


def virtual():
    return VirtualShuffleOrderSampler(7)


def of_a_state():
    return ShuffleOrderSampler(np.random.RandomState(7))


def shares(make_sampler, n, size, tail, number=0):
    """Of each rank, the share of the order of that number."""
    given = []
    for rank in range(size):
        sampler = ShardedOrderSampler(make_sampler(), rank, size, tail)
        order = sampler(np.arange(n), 0)
        for _ in range(number):
            order = sampler(order, 0)
        given.append(order[:].tolist())
    return given


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("n", "size"), SIZES)
@pytest.mark.parametrize("make_sampler", [seeded, virtual, of_a_state])
def test_shares_make_up_the_global_order(make_sampler, n, size, number):
    (whole,) = shares(make_sampler, n, 1, "pad", number)
    assert sorted(whole) == list(range(n))
    padded = shares(make_sampler, n, size, "pad", number)
    assert {len(share) for share in padded} == {-(-n // size)}
    endless = itertools.chain.from_iterable(itertools.repeat(whole))
    assert list(itertools.chain(*padded)) == list(itertools.islice(endless, -(-n // size) * size))
    if n >= size:
        dropped = shares(make_sampler, n, size, "drop", number)
        assert {len(share) for share in dropped} == {n // size}
        assert list(itertools.chain(*dropped)) == whole[: n // size * size]
        uneven = shares(make_sampler, n, size, "uneven", number)
        assert max(map(len, uneven)) - min(map(len, uneven)) <= 1
        assert list(itertools.chain(*uneven)) == whole


def test_a_share_is_part_of_the_seeds_order():
    (first, second) = shares(seeded, 100, 2, "pad")
    assert first + second == random.permutation(100, 7).tolist()


@pytest.mark.parametrize("make_sampler", [seeded, virtual])
@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_all_processes_make_the_same_number_of_batches(make, make_sampler, tail):
    iterators = [
        make(range(29), 4, order_sampler=ShardedOrderSampler(make_sampler(), rank, 3, tail))
        for rank in range(3)
    ]
    assert len({len(iterator) for iterator in iterators}) == 1
    for _ in range(3):
        seen = []
        while True:
            batches = [next(iterator) for iterator in iterators]
            seen += batches
            ends = {iterator.is_new_epoch for iterator in iterators}
            assert len(ends) == 1
            if ends == {True}:
                break
    assert len({iterator.current_position for iterator in iterators}) == 1


@pytest.mark.parametrize("tail", ["drop", "uneven"])
def test_a_share_of_nothing_is_refused(tail):
    with pytest.raises(ValueError, match=f"rank 3 of 4.*{tail}"):
        SerialIterator(range(3), 1, order_sampler=ShardedOrderSampler(seeded(), 3, 4, tail))


# -- which process this is -------------------------------------------------------------------------


@pytest.fixture
def _no_launcher(monkeypatch):
    for name in itertools.chain(*LAUNCHERS.values()):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.usefixtures("_no_launcher")
def test_the_environment_tells_rank_and_size(monkeypatch, launcher):
    rank, size = LAUNCHERS[launcher]
    monkeypatch.setenv(rank, "2")
    monkeypatch.setenv(size, "5")
    sampler = ShardedOrderSampler(seeded())
    assert (sampler.rank, sampler.size, sampler.tail) == (2, 5, "pad")
    given = ShardedOrderSampler(seeded(), rank=0, size=1)  # arguments come first
    assert (given.rank, given.size) == (0, 1)


@pytest.mark.usefixtures("_no_launcher")
def test_torchrun_within_a_slurm_job(monkeypatch):
    for name, value in [("RANK", "3"), ("WORLD_SIZE", "8"), ("SLURM_PROCID", "0")]:
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_NTASKS", "1")
    assert ShardedOrderSampler(seeded()).rank == 3


@pytest.mark.usefixtures("_no_launcher")
def test_without_a_launcher_rank_and_size_are_needed():
    with pytest.raises(ValueError, match=r"WORLD_SIZE \(torchrun\).*SLURM.*pass rank and size"):
        ShardedOrderSampler(seeded())


@pytest.mark.parametrize(("rank", "size"), [("x", "2"), ("0", None), (None, "2"), ("-1", "2")])
@pytest.mark.usefixtures("_no_launcher")
def test_an_environment_that_makes_no_sense(monkeypatch, rank, size):
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE"):
        ShardedOrderSampler(seeded())


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (ValueError, "below size", (2, 2)),
        (ValueError, "rank", (-1, 2)),
        (ValueError, "size", (0, 0)),
        (TypeError, "rank", (0.5, 2)),
        (ValueError, "both", (0, None)),
        (ValueError, "both", (None, 2)),
        (ValueError, "tail", (0, 2, "wrap")),
        (ValueError, "tail", (0, 2, None)),
    ],
)
def test_wrong_arguments(error, match, arguments):
    with pytest.raises(error, match=match):
        ShardedOrderSampler(seeded(), *arguments)


# -- one order for all -----------------------------------------------------------------------------


def test_what_cannot_be_the_same_in_all_processes_is_refused():
    for sampler in (ShuffleOrderSampler(), ShuffleOrderSampler(np.random.mtrand._rand)):
        with pytest.raises(ValueError, match=r"ShuffleOrderSampler\(0\)"):
            ShardedOrderSampler(sampler, 0, 2)
    for wrong in (None, 5, [1, 2]):
        with pytest.raises(TypeError, match="sampler"):
            ShardedOrderSampler(wrong, 0, 2)
    with pytest.raises(TypeError, match="global"):
        ShardedOrderSampler(ShardedOrderSampler(seeded(), 0, 2), 0, 2)


def test_fingerprints_tell_different_orders():
    one = ShardedOrderSampler(seeded(), 0, 2).fingerprint()
    assert one == ShardedOrderSampler(seeded(), 1, 2).fingerprint()
    others = [
        ShardedOrderSampler(ShuffleOrderSampler(8), 0, 2),
        ShardedOrderSampler(virtual(), 0, 2),
        ShardedOrderSampler(seeded(), 0, 3),
        ShardedOrderSampler(seeded(), 0, 2, "drop"),
    ]
    assert len({one, *(sampler.fingerprint() for sampler in others)}) == 5
    with pytest.raises(ValueError, match="seed"):
        ShardedOrderSampler(of_a_state(), 0, 2).fingerprint()


class Halves(OrderSampler):
    """Notes what it is asked; gives the order that it is asked with, backwards."""

    def __init__(self):
        self.asked = []

    def __call__(self, current_order, current_position):
        self.asked.append((current_order.tolist(), current_position))
        return current_order[::-1]


def test_a_sampler_that_is_called_sees_global_orders_and_positions():
    sampler = Halves()
    iterator = SerialIterator(range(7), 3, order_sampler=ShardedOrderSampler(sampler, 1, 2))
    batches = [next(iterator) for _ in range(3)]
    up, down = list(range(7)), list(range(7))[::-1]
    assert batches == [[2, 1, 0], [6, 4, 5], [6, 0, 2]]
    assert sampler.asked == [(up, 0), (down, 7), (up, 6)]
    iterator.reset()
    assert sampler.asked[-1] == (up, 0)


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_sampler", [seeded, virtual])
def test_a_snapshot_of_rank_0_serves_all(make_sampler, save, load):
    def make(rank, size=3, tail="pad"):
        sampler = ShardedOrderSampler(make_sampler(), rank, size, tail)
        return SerialIterator(range(50), 4, order_sampler=sampler)

    iterators = [make(rank) for rank in range(3)]
    for _ in range(7):
        list(map(next, iterators))
    stored = save(iterators[0])
    expected = [[next(iterator) for _ in range(20)] for iterator in iterators]
    for rank in range(3):
        resumed = make(rank)
        load(resumed, stored)
        assert [next(resumed) for _ in range(20)] == expected[rank]
    for size, tail in [(2, "pad"), (3, "drop")]:
        with pytest.raises(ValueError, match="3 processes"):
            load(make(0, size, tail), stored)


def test_at_the_start_of_an_epoch_the_number_of_processes_can_change(save, load):
    def make(rank, size):
        sampler = ShardedOrderSampler(seeded(), rank, size)
        return SerialIterator(range(48), 4, order_sampler=sampler)

    iterator = make(0, 3)
    while not iterator.is_new_epoch:
        next(iterator)
    stored = save(iterator)
    seen = []
    for rank in range(4):
        resumed = make(rank, 4)
        load(resumed, stored)
        assert resumed.epoch == 1
        seen += [next(resumed) for _ in range(3)]
    order = ShuffleOrderSampler(7)._draw(48, 1)
    assert list(itertools.chain(*seen)) == order.tolist()


def test_size_has_another_name():
    sampler = ShardedOrderSampler(seeded(), 1, num_ranks=3)
    assert (sampler.rank, sampler.size) == (1, 3)
    with pytest.raises(ValueError, match="leave one of them out"):
        ShardedOrderSampler(seeded(), 1, 3, num_ranks=3)
