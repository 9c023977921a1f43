"""fastiter's samplers in loaders of torch: their states in other loaders."""

from __future__ import annotations

import itertools
import os
import pickle
import random

import pytest
from support.transports import by_json

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from orders_of import (  # noqa: E402
    BATCHES,
    ORDERS,
    N,
    batches_of,
    data,
    epoch_of,
    flat,
    loader_of,
    values,
)

from fastiter import ShuffleOrderSampler  # noqa: E402
from fastiter.torch import Batches, DataLoader, Order  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")


@pytest.mark.parametrize("kind", [*ORDERS, "buckets", "tokens", "function"])
def test_resumed_with_other_workers_batch_sizes_and_ranks(kind):
    """The batches of all ranks and those that are left: each example once, in the same order."""
    generator = random.Random(0)
    cases = list(itertools.product((1, 2, 3), (0,), (1, 2, 3), (2, 4, 7), (0,)))
    with_workers = [(2, 2, 1, 7, 0), (1, 0, 2, 3, 2)]
    for before, workers, after, size, other_workers in with_workers + generator.sample(cases, 12):
        count = generator.randint(0, 3)
        first, states = [], []
        for rank in range(before):
            loader = loader_of(
                kind, num_workers=workers, rank=rank, num_replicas=before, tail="mask"
            )
            loader.set_epoch(1)
            iterator = iter(loader)
            first.append([values(next(iterator)) for _ in range(count)])
            states.append(by_json(loader.state_dict()))
        assert all(state == states[0] for state in states)
        assert len(pickle.dumps(states[0])) < 2000
        rest, following = [], []
        for rank in range(after):
            loader = loader_of(
                kind, size, num_workers=other_workers, rank=rank, num_replicas=after, tail="mask"
            )
            loader.load_state_dict(states[0])
            again = by_json(loader.state_dict())
            found = []
            for batch in loader:
                found.append(
                    [x for x, v in zip(values(batch), loader.valid.tolist(), strict=True) if v]
                )
            rest.append(found)
            following.append(flat(epoch_of(loader)))
            loader.load_state_dict(again)
            assert values(next(iter(loader)))[: len(found[0])] == found[0]
        everything = flat(flat(zip(*first, strict=True)))
        left = flat(batch for step in itertools.zip_longest(*rest, fillvalue=()) for batch in step)
        order = Batches if kind in BATCHES else Order
        make = {**ORDERS, **BATCHES}[kind]
        owner = order(make(), N)
        owner.set_epoch(1)
        expected = list(owner) if order is Order else flat(owner)
        if kind in ("buckets", "tokens"):
            assert sorted(everything + left) == sorted(expected)
        else:
            assert everything + left == expected
            alone = loader_of(kind, size, rank=0, num_replicas=after, tail="mask")
            alone.set_epoch(2)
            assert flat(epoch_of(alone)) == following[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_at_the_ends_of_an_epoch(workers):
    epochs = [epoch_of(loader) for loader in [loader_of("shuffle")] * 3]

    def resumed(state):
        loader = loader_of("shuffle", num_workers=2 - workers)
        loader.load_state_dict(by_json(state))
        assert by_json(loader.state_dict()) == by_json(state)
        return [epoch_of(loader), epoch_of(loader)]

    loader = loader_of("shuffle", num_workers=workers)
    assert resumed(loader.state_dict()) == epochs[:2]
    iterator = iter(loader)
    assert resumed(loader.state_dict()) == epochs[:2]
    for batch in iterator:
        if values(batch) == epochs[0][-1]:
            break
    assert resumed(loader.state_dict()) == [[], epochs[1]]
    assert list(iterator) == []
    assert resumed(loader.state_dict()) == epochs[1:]
    del iterator
    assert resumed(loader.state_dict()) == epochs[1:]


def test_state_of_an_order():
    order = Order(ShuffleOrderSampler(3), N)
    first, second = list(order), list(order)
    order.set_epoch(0)
    iterator = iter(order)
    for count in range(N + 1):
        other = Order(ShuffleOrderSampler(3), data(), batch_size=5)
        other.load_state_dict(by_json(order.state_dict()))
        assert other.epoch == 0
        assert by_json(other.state_dict()) == by_json(order.state_dict())
        assert list(other) == first[count:]
        assert list(other) == second
        next(iterator, None)
    other.load_state_dict(by_json(order.state_dict()))
    assert list(other) == second


def test_state_of_an_order_of_several_ranks():
    orders = [
        Order(ShuffleOrderSampler(3), N, batch_size=4, rank=r, num_replicas=2) for r in (0, 1)
    ]
    iterators = [iter(order) for order in orders]
    first = [[next(iterator) for _ in range(8)] for iterator in iterators]
    state = orders[0].state_dict()
    assert state == orders[1].state_dict()
    alone = Order(ShuffleOrderSampler(3), N)
    whole = list(alone)
    alone.load_state_dict(by_json(state))
    delivered = first[0][:4] + first[1][:4] + first[0][4:] + first[1][4:]
    assert delivered + list(alone) == whole
    next(iterators[0])
    with pytest.raises(ValueError, match="1 of 4 rows"):
        orders[0].state_dict()


def test_state_of_batches():
    batches = Batches(batches_of, N)
    expected = list(batches)
    batches.set_epoch(0)
    iterator = iter(batches)
    next(iterator)
    other = Batches(batches_of, data())
    other.load_state_dict(by_json(batches.state_dict()))
    assert list(other) == expected[1:]


def edited(state, count):
    """As Accelerate lowers the counts of batches that were prefetched."""
    return {**state, "_sampler_iter_yielded": count, "_num_yielded": count}


class Remembering(list):
    def state_dict(self):
        return {"length": len(self)}

    def load_state_dict(self, state):
        assert state == self.state_dict()


def test_edited_counts():
    loader = loader_of("shuffle")
    batches = epoch_of(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = by_json(loader.state_dict())
    for size in (4, 7):
        other = loader_of("shuffle", size)
        other.load_state_dict(edited(state, 4))
        assert flat(epoch_of(other)) == flat(batches[4:])
    other.load_state_dict(state)
    next(iter(other))  # of batch_size=7, after 6 batches of 4
    recut = by_json(other.state_dict())
    other.load_state_dict(edited(recut, 6))
    assert flat(epoch_of(other)) == flat(batches[6:])
    with pytest.raises(ValueError, match="counts 5 batches"):
        other.load_state_dict(edited(recut, 5))
    missing = {**state, "_order": {**state["_order"], "missing": {"delivered": 2}}}
    with pytest.raises(ValueError, match="cannot go back to batch 5"):
        other.load_state_dict(edited(missing, 5))
    loader = DataLoader(Remembering(range(N)), 4, sampler=ShuffleOrderSampler(3))
    next(iter(loader))
    with pytest.raises(ValueError, match=r"counts 0 batches, but 1 .* has a state of its own"):
        loader.load_state_dict(edited(loader.state_dict(), 0))


def test_refused_states():
    loader = loader_of("shuffle")
    next(iter(loader))
    state = loader.state_dict()
    others = {
        "the seed differs": DataLoader(data(), 4, sampler=ShuffleOrderSampler(4)),
        "another kind": loader_of("weighted"),
        "sampler": DataLoader(data(), 4, shuffle=True),
        "52": loader_of("shuffle", n=N - 1),
        "strict=False": loader_of("shuffle", n=N + 3),
        "generator": loader_of("shuffle", generator=torch.Generator()),
    }
    for text, other in others.items():
        with pytest.raises(ValueError, match=text):
            other.load_state_dict(state)
            next(iter(other))


def test_a_grown_dataset():
    loader = loader_of("shuffle")
    batches = epoch_of(loader)
    loader.set_epoch(0)
    next(iter(loader))
    grown = loader_of("shuffle", n=N + 5)
    grown.load_state_dict(loader.state_dict(), strict=False)
    again = by_json(grown.state_dict())
    assert epoch_of(grown) == batches[1:]
    rows = flat(epoch_of(grown))
    assert sorted(rows) == list(range(N + 5))
    grown.load_state_dict(again, strict=False)
    assert epoch_of(grown) == batches[1:]


class Held(torch_data.Dataset):
    """Waits before one of its examples for a byte in a pipe."""

    def __init__(self, held):
        self.held, self.ends = held, os.pipe()

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index == self.held:
            assert os.read(self.ends[0], 1)
        return index


def test_missing_batches_of_all_ranks():
    """Those that others have overtaken come first, then the rest in new cuts."""
    arguments = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
    whole = list(Order(ShuffleOrderSampler(3), N))
    first, states = [], []
    for rank in (0, 1):
        held = Held(whole[4 * rank + 1])
        ranks = {"rank": rank, "num_replicas": 2}
        loader = DataLoader(held, 4, sampler=ShuffleOrderSampler(3), **arguments, **ranks)
        iterator = iter(loader)
        first += flat(values(next(iterator)) for _ in range(2))
        states.append(by_json(loader.state_dict()))
        os.write(held.ends[1], bytes(9))
        del iterator
    assert not {*first} & {*whole[:8]}
    # States saved after a load, before the next iterator or with it, tell of all ranks.
    for saved in (states, *rest_of(states, first, 4, 1), *rest_of(states, first, 3, 2)):
        for size, n_ranks in ((4, 3), (1, 4)):
            rest_of(saved, first, size, n_ranks)
    loader = DataLoader(range(N), 3, sampler=ShuffleOrderSampler(3), rank=0, num_replicas=2)
    with pytest.raises(ValueError, match="states of all ranks"):
        loader.load_state_dict(states[0])
    before = loader.state_dict()
    for other in ({**states[1], "_snapshot": None}, None, {}):
        with pytest.raises(ValueError, match="not the state of a DataLoader"):
            loader.load_state_dict([states[0], other])
    assert loader.state_dict() == before


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("n", range(4))
def test_a_state_while_missing_batches_come_and_after(workers, n):
    loader = loader_of("shuffle")
    batches = epoch_of(loader)
    loader.set_epoch(0)
    next(iter(loader))
    state = by_json(loader.state_dict())
    state["_order"]["missing"] = {"delivered": 0b10}  # the batch after the next one
    loader = loader_of("shuffle", num_workers=workers)
    loader.load_state_dict(state)
    iterator = iter(loader)
    found = [values(next(iterator)) for _ in range(n)]
    other = loader_of("shuffle")
    other.load_state_dict(by_json(loader.state_dict()))
    assert found + epoch_of(other) == [batches[1], *batches[3:]]


def test_the_state_at_the_end_tells_of_the_next_epoch():
    loader = DataLoader(range(200), 2, sampler=ShuffleOrderSampler(3), num_workers=1)
    iterator = iter(loader)
    for _ in range(30):
        next(iterator)
    loader.load_state_dict(by_json(loader.state_dict()))
    assert len(list(loader)) == 70
    record = loader.state_dict()["_snapshot"]["_main_snapshot"]["_order"]
    assert (record["epoch"], record["position"], record["step"]) == (1, 0, 100)


def test_states_of_ranks_that_differ():
    """Batches that one rank alone has had are left out; nothing else may differ."""

    def saved(rank, n_batches, epoch=0):
        ranks = {"rank": rank, "num_replicas": 2}
        loader = DataLoader(range(N), 4, sampler=ShuffleOrderSampler(3), **ranks)
        loader.set_epoch(epoch)
        iterator = iter(loader)
        first = flat(values(next(iterator)) for _ in range(n_batches))
        return by_json(loader.state_dict()), first

    for counts in ((1, 2), (2, 1), (0, 2)):
        states, first = zip(*itertools.starmap(saved, enumerate(counts)), strict=True)
        for size, n_ranks in ((4, 2), (3, 1)):
            rest_of([*states], flat(first), size, n_ranks)
    loader = loader_of("shuffle", 4)
    for refused, text in (
        ([], "empty list"),
        ([saved(0, 2)[0], saved(1, 2, 1)[0]], "of one epoch, not of {0, 1}"),
        ([saved(0, 2)[0], saved(1, 1)[0], saved(1, 2)[0]], "all 2 ranks"),
    ):
        with pytest.raises(ValueError, match=text):
            loader.load_state_dict(refused)


def test_missing_batches_need_a_batch_size():
    """Those of one row do not, with torch's samplers too."""
    for size, sampler in itertools.product((1, 3), (ShuffleOrderSampler(3), None)):
        held = Held(next(iter(Order(ShuffleOrderSampler(3), N))) if sampler else 0)
        arguments = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
        saving = DataLoader(held, size, sampler=sampler, **arguments)
        iterator = iter(saving)
        first, state = values(next(iterator)), saving.state_dict()
        os.write(held.ends[1], bytes(9))
        loader = DataLoader(range(N), None, sampler=sampler)
        if size == 1:
            loader.load_state_dict(state)
            assert sorted(first + list(loader)) == list(range(N))
            continue
        before = loader.state_dict()
        with pytest.raises(ValueError, match="batches of 3 are missing"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
        assert len(list(loader)) == N


def rest_of(states, first, size, n_ranks):
    """Check that the batches after the first ones complete an epoch. The states of all ranks, saved
    when these were loaded, and with the next iterator."""
    found, saved = [], ([], [])
    for rank in range(n_ranks):
        ranks = {"rank": rank, "num_replicas": n_ranks, "tail": "mask"}
        loader = DataLoader(range(N), size, sampler=ShuffleOrderSampler(3), **ranks)
        loader.load_state_dict(states)
        saved[0].append(by_json(loader.state_dict()))
        iterator = iter(loader)
        saved[1].append(by_json(loader.state_dict()))
        for batch in iterator:
            found += [x for x, v in zip(values(batch), loader.valid.tolist(), strict=True) if v]
    assert sorted(first + found) == list(range(N))
    return saved
