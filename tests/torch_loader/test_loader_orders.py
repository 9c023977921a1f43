"""fastiter's samplers in loaders of torch: the orders of the iterators, and their states."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import signal

import numpy as np
import pytest
from support.transports import by_json

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
from fastiter.errors import SkipLimitError  # noqa: E402
from fastiter.iterators import Epoch, EpochSampler  # noqa: E402
from fastiter.tokens import TokenDataset  # noqa: E402
from fastiter.torch import Batches, DataLoader, Order  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

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


# ---- the law -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_are_those_of_the_iterators(kind):
    for n_ranks, tail, drop_last in itertools.product(
        (1, 2, 3), ("pad", "mask", "drop"), (False, True)
    ):
        for rank in range(n_ranks):
            loader = loader_of(
                kind, rank=rank, num_replicas=n_ranks, tail=tail, drop_last=drop_last
            )
            iterator = iterator_of(
                kind, rank=rank, num_ranks=n_ranks, tail=tail, drop_last=drop_last
            )
            for _ in range(3):
                n_batches = len(loader)
                expected, found = [], []
                for batch in iterator:
                    expected.append((list(batch), iterator.valid.tolist()))
                for batch in loader:
                    assert loader.valid.dtype == torch.bool
                    found.append((values(batch), loader.valid.tolist()))
                assert found == expected
                assert n_batches == len(found)


@pytest.mark.parametrize("kind", KINDS)
def test_second_epoch_is_that_of_a_repeating_iterator(kind):
    loader, size = loader_of(kind), 1
    given = {"order_sampler": ORDERS[kind]()} if kind in ORDERS else None
    if given is None:
        given = {"batch_sampler": BATCHES[kind]()}
        size = None
    iterator = SerialIterator(range(N), size, **given)
    for _ in range(2):
        rows = flat(epoch_of(loader))
        found = []
        while len(found) < len(rows):
            found += next(iterator)
        assert found == rows


@pytest.mark.parametrize("kind", ["shuffle", "virtual", "user's", "tokens", "function"])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers(kind, persistent):
    arguments = {"rank": 1, "num_replicas": 2, "tail": "mask"}
    loader = loader_of(kind, num_workers=2, persistent_workers=persistent, **arguments)
    alone = loader_of(kind, **arguments)
    for _ in range(2):
        expected = [(values(batch), alone.valid.tolist(), alone.indices) for batch in alone]
        found = [(values(batch), loader.valid.tolist(), loader.indices) for batch in loader]
        assert found == expected
        assert [rows for rows, _, _ in found] == [indices for _, _, indices in found]


def test_single_examples():
    loader = DataLoader(range(9), None, sampler=ShuffleOrderSampler(1), rank=1, num_replicas=2)
    iterator = SerialIterator(
        range(9), 1, repeat=False, order_sampler=ShuffleOrderSampler(1), rank=1, num_ranks=2
    )
    assert [[row] for row in loader] == [list(batch) for batch in iterator]
    assert len(loader) == 5


def test_second_loop_of_an_iterator_has_the_next_order():
    sampler = ShuffleOrderSampler(5)
    endless = SerialIterator(range(8), 4, order_sampler=ShuffleOrderSampler(5))
    iterator = SerialIterator(range(8), 4, repeat=False, order_sampler=sampler)
    for _ in range(3):
        assert list(iterator) == [next(endless), next(endless)]


def test_functions_are_asked_for_their_epochs_only():
    asked = []

    def batches(epoch):
        asked.append(epoch)
        assert epoch < 2
        return [[0, 1], [2]]

    loader = DataLoader(range(3), batch_sampler=batches)
    assert [epoch_of(loader), epoch_of(loader)] == [[[0, 1], [2]]] * 2
    assert sorted(set(asked)) == [0, 1]
    iterator = SerialIterator(range(3), repeat=False, batch_sampler=batches)
    assert [list(iterator), list(iterator)] == [[[0, 1], [2]]] * 2


# ---- other loaders -------------------------------------------------------------------------------


def sampled(kind, n_ranks, rank, drop_last, tail="pad"):
    """Arguments of any loader of torch."""
    ranks = {"rank": rank, "num_replicas": n_ranks, "tail": tail}
    if kind in BATCHES:
        return {"batch_sampler": Batches(BATCHES[kind](), data(), **ranks)}
    given = {"batch_size": 4, "drop_last": drop_last}
    return {"sampler": Order(ORDERS[kind](), N, **given, **ranks), **given}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_ranks", [1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_other_loaders_give_the_same(kind, n_ranks, drop_last):
    kinds = [torch_data.DataLoader, DataLoader]
    with_states = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    rank = n_ranks - 1
    ours = loader_of(kind, drop_last=drop_last, rank=rank, num_replicas=n_ranks)
    expected = [epoch_of(ours) for _ in range(2)]
    for make in [*kinds, with_states]:
        loader = make(data(), **sampled(kind, n_ranks, rank, drop_last))
        for batches in expected:
            assert len(loader) == len(batches)
            assert epoch_of(loader) == batches


@pytest.mark.parametrize("kind", ["shuffle", "virtual", "tokens"])
@pytest.mark.parametrize("workers", [0, 2])
def test_state_in_torchdatas_loader(kind, workers):
    make = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def new():
        return make(data(), **sampled(kind, 2, 1, False), num_workers=workers)

    whole = new()
    batches = [epoch_of(whole), epoch_of(whole)]
    loader = new()
    epoch_of(loader)
    iterator = iter(loader)
    first = [values(next(iterator)) for _ in range(3)]
    state = loader.state_dict()
    resumed = new()
    resumed.load_state_dict(state)
    assert first + epoch_of(resumed) == batches[1]


def test_bare_samplers_are_no_iterables():
    with pytest.raises(TypeError, match="not iterable"):
        list(torch_data.DataLoader(data(), 4, sampler=ShuffleOrderSampler(0)))


# ---- numbers of epochs ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_without_a_batch_skip_no_epoch(workers):
    expected = loader_of("shuffle")
    loader = loader_of("shuffle", num_workers=workers)
    iter(loader)
    iter(loader)
    assert [epoch_of(loader), epoch_of(loader)] == [epoch_of(expected), epoch_of(expected)]
    order = loader.sampler
    iter(order)
    assert list(order) == flat(epoch_of(expected))


@pytest.mark.parametrize("kind", ["shuffle", "function"])
def test_set_epoch(kind):
    loader, other = loader_of(kind), loader_of(kind)
    epochs = [epoch_of(loader) for _ in range(4)]
    owner = loader.sampler if kind == "shuffle" else loader.batch_sampler
    loader.set_epoch(2)
    assert owner.epoch == 2
    assert [epoch_of(loader), epoch_of(loader)] == epochs[2:]
    owner.set_epoch(1)
    iterator = iter(loader)
    assert values(next(iterator)) == epochs[1][0]
    state = loader.state_dict()
    for epoch, expected in ((1, epochs[1][1:]), (2, epochs[2]), (0, epochs[0])):
        other.load_state_dict(state)
        other.set_epoch(epoch)
        assert epoch_of(other) == expected
        assert epoch_of(other) == epochs[epoch + 1]
    with pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(-1)


def test_other_loaders_have_no_set_epoch():
    assert not hasattr(DataLoader(data(), 4), "set_epoch")
    assert DataLoader(data(), 4).valid is None


# ---- states --------------------------------------------------------------------------------------


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


# ---- random numbers ------------------------------------------------------------------------------


class Drawing(torch_data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, torch.randint(1 << 30, ()).item()


def test_no_global_random_number_is_drawn():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    for workers in (0, 2):
        loader = loader_of("shuffle", num_workers=workers)
        epoch_of(loader)
        iterator = iter(loader)
        next(iterator)
        loader.load_state_dict(loader.state_dict())
        epoch_of(loader)
        assert torch.equal(torch.get_rng_state(), state)


def drawn(rank=0, **arguments):
    ranks = {"rank": rank, "num_replicas": 2}
    loader = DataLoader(Drawing(), 4, sampler=ShuffleOrderSampler(3), **ranks, **arguments)
    return [[batch[1].tolist() for batch in loader] for _ in range(2)]


def test_seeds_of_workers_follow_from_the_sampler():
    torch.manual_seed(1)
    first = drawn(num_workers=2)
    torch.manual_seed(2)
    assert drawn(num_workers=2) == first
    assert drawn(1, num_workers=2) != first
    assert first[0] != first[1]


def test_a_generator_gives_the_seeds_of_workers():
    seeded = drawn(num_workers=1, generator=torch.Generator().manual_seed(1))
    assert drawn(num_workers=1, generator=torch.Generator().manual_seed(1)) == seeded
    assert drawn(num_workers=1, generator=torch.Generator().manual_seed(2)) != seeded


def seeded_rows(batch_size, workers, n_ranks, n_epochs=2):
    found = [{} for _ in range(n_epochs)]
    for rank in range(n_ranks):
        ranks = {"rank": rank, "num_replicas": n_ranks}
        loader = DataLoader(
            Drawing(),
            batch_size,
            sampler=ShuffleOrderSampler(3),
            seed_examples=True,
            num_workers=workers,
            **ranks,
        )
        for epoch in found:
            for indices, numbers in loader:
                epoch.update(zip(indices.tolist(), numbers.tolist(), strict=True))
    return found


def test_seeded_examples_depend_on_the_epoch_and_the_index_alone():
    """As in the iterators, whatever the workers, the batch size and the ranks."""
    iterator = SerialIterator(
        Drawing(), 1, order_sampler=ShuffleOrderSampler(3), seed_examples=True
    )
    expected = [dict(next(iterator)[0] for _ in range(N)) for _ in range(2)]
    for arguments in ((4, 0, 1), (5, 2, 1), (1, 0, 1), (3, 0, 2), (3, 2, 3)):
        found = seeded_rows(*arguments)
        # Rows that fill an epoch up are repetitions, with seeds of their own.
        same = [
            sum(epoch[k] == one[k] for k in range(N))
            for epoch, one in zip(found, expected, strict=True)
        ]
        assert min(same) >= N - arguments[0] * arguments[2], arguments


# ---- with other features ------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_iterators_that_live_at_a_time(workers):
    alone = loader_of("shuffle")
    epochs = [epoch_of(alone) for _ in range(3)]
    loader = loader_of("shuffle", num_workers=workers)
    first, second = iter(loader), iter(loader)
    begun = values(next(first))
    assert [values(batch) for batch in second] == epochs[1]
    assert [begun, *map(values, first)] == epochs[0]
    state = loader.state_dict()
    loader.load_state_dict(state)
    iter(loader)
    iter(loader)
    assert epoch_of(loader) == epochs[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_other_epochs(workers):
    """Packed documents, whose rows are others in each epoch."""
    generator = np.random.RandomState(0)
    documents = [generator.randint(1, 99, generator.randint(3, 80)) for _ in range(200)]

    def dataset():
        return TokenDataset(documents, 64, packing="bfd", window=40, seed=3)

    ranks = {"order_sampler": ShuffleOrderSampler(5), "rank": 1, "num_ranks": 2}
    iterator = SerialIterator(dataset(), 4, repeat=False, **ranks)
    ranks = {"sampler": ShuffleOrderSampler(5), "rank": 1, "num_replicas": 2}
    loader = DataLoader(dataset(), 4, num_workers=workers, **ranks)
    for _ in range(2):
        expected = [
            ([row["input_ids"].tolist() for row in batch], iterator.address.indices.tolist())
            for batch in iterator
        ]
        assert len(loader) == len(expected)
        found = [(batch["input_ids"].tolist(), loader.indices) for batch in loader]
        assert found == expected


class Failing(torch_data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        if index % 10 == 3:
            raise ValueError(index)
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_examples_that_are_skipped_are_left_out_of_valid(workers, capfd):
    arguments = {"on_error": "skip", "skip_limit": 0.5, "tail": "mask", "num_workers": workers}
    found = []
    for rank in (0, 1):
        ranks = {"rank": rank, "num_replicas": 2}
        loader = DataLoader(Failing(), 4, sampler=ShuffleOrderSampler(0), **arguments, **ranks)
        for batch in loader:
            assert loader.indices == batch.tolist()
            found += batch[loader.valid].tolist()
    assert sorted(found) == [index for index in range(N) if index % 10 != 3]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("n_allowed", range(1, 6))
def test_a_share_that_may_be_skipped_is_that_of_the_iterators(drop_last, n_ranks, n_allowed):
    """Of the whole epoch, of all ranks."""
    arguments = {"on_error": "skip", "skip_limit": n_allowed / N, "drop_last": drop_last}
    for rank in range(n_ranks):
        given = {"sampler": ShuffleOrderSampler(0), "num_replicas": n_ranks}
        loader = DataLoader(Failing(), 7, rank=rank, **given, **arguments)
        given = {"order_sampler": ShuffleOrderSampler(0), "num_ranks": n_ranks, "repeat": False}
        iterator = SerialIterator(Failing(), 7, rank=rank, **given, **arguments)
        ends = []
        for batches in (loader, iterator):
            try:
                ends.append(sum(len(batch) for batch in batches))
            except SkipLimitError:
                ends.append(None)
        assert ends[0] == ends[1]


class Counting(torch_data.Dataset):
    """A dataset with a state."""

    def __init__(self):
        self.count = 0

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.count += 1
        return index, self.count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [1, 2])
def test_datasets_with_a_state(workers, every):
    arguments = {"num_workers": workers, "snapshot_every_n_steps": every}

    def make(size):
        return DataLoader(Counting(), size, sampler=ShuffleOrderSampler(0), **arguments)

    loader = make(4)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = by_json(loader.state_dict())
    rest = [[part.tolist() for part in batch] for batch in iterator]
    resumed = make(4)
    resumed.load_state_dict(state)
    assert [[part.tolist() for part in batch] for batch in resumed] == rest
    resumed = make(5)
    if workers and every == 2:
        with pytest.raises(ValueError, match="batch_size = 4, not 5"):
            resumed.load_state_dict(state)
        return
    resumed.load_state_dict(state)
    assert flat(batch[0].tolist() for batch in resumed) == flat(batch[0] for batch in rest)


class Interrupt(KeyboardInterrupt):
    pass


# An interrupt may come between the opening of a file of /proc, and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_interrupts_lose_no_batch_and_no_epoch(workers):
    expected = epoch_of(loader_of("shuffle", 2))

    def interrupt(number, frame):
        raise Interrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    generator = random.Random(0)
    try:
        for _ in range(8):
            loader = loader_of("shuffle", 2, num_workers=workers)
            iterator, found, batch = iter(loader), [], None
            signal.setitimer(signal.ITIMER_REAL, generator.random() * 2e-3 + 1e-5)
            while True:
                try:
                    for batch in iterator:
                        found.append(batch)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    break
                except Interrupt:
                    if batch is not None and (not found or found[-1] is not batch):
                        found.append(batch)
            assert [values(batch) for batch in found] == expected
            assert loader.sampler.epoch == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)


# ---- refused arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sampler": ShuffleOrderSampler()}, "no seed: use ShuffleOrderSampler"),
        ({"sampler": ShuffleOrderSampler(np.random.RandomState(0))}, "no seed"),
        ({"sampler": lambda order, position: order}, "EpochSampler"),
        ({"batch_sampler": ShuffleOrderSampler()}, "no seed"),
        ({"shuffle": True, "rank": 0, "num_replicas": 1}, "rank=0 is for"),
        ({"num_replicas": 2}, "num_replicas=2 is for"),
        ({"tail": "mask"}, "tail='mask' is for"),
        ({"sampler": ShuffleOrderSampler(0), "tail": "none"}, "tail"),
        ({"sampler": ShuffleOrderSampler(0), "rank": 0}, "num_replicas"),
        ({"sampler": ShuffleOrderSampler(0), "rank": 2, "num_replicas": 2}, "num_replicas"),
        ({"sampler": ShuffleOrderSampler(0), "shuffle": True}, "mutually exclusive"),
        ({"sampler": ShuffleOrderSampler(0), "batch_size": N + 1, "drop_last": True}, "no batch"),
        ({"sampler": Order(ShuffleOrderSampler(0), N), "tail": "drop"}, "has its own"),
    ],
)
def test_refused_arguments(arguments, text):
    with pytest.raises(ValueError, match=text):
        DataLoader(data(), **arguments)


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_tensors_and_arrays(make):
    """They are datasets, also with a single row; a single number is a length."""
    for rows in (list(range(10, 20)), [7], [[5, 6]]):
        for workers in (0, 1):
            arguments = {"sampler": ShuffleOrderSampler(0), "num_workers": workers}
            found = epoch_of(DataLoader(make(rows), 4, **arguments))
            assert found == epoch_of(DataLoader([make(row) for row in rows], 4, **arguments))
        batches = LengthBucketBatchSampler([1] * len(rows), batch_size=4, seed=0)
        assert len(epoch_of(DataLoader(make(rows), batch_sampler=batches))) == -(-len(rows) // 4)
    for length in (make(10), make([10])[0]):
        assert len(Order(ShuffleOrderSampler(0), length)) == 10


def test_refused_orders():
    with pytest.raises(ValueError, match="needs the batch_size"):
        Order(ShuffleOrderSampler(0), N, rank=0, num_replicas=2)
    order = Order(ShuffleOrderSampler(0), N, batch_size=4, rank=0, num_replicas=2)
    with pytest.raises(ValueError, match="batch_size=4"):
        DataLoader(data(), 5, sampler=order)
    with pytest.raises(TypeError, match="gave no cuts"):
        Batches(ShuffleOrderSampler(0), N)

    class Stream(torch_data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="IterableDataset"):
        DataLoader(Stream(), 4, sampler=ShuffleOrderSampler(0))


def test_ranks_of_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    order = Order(ShuffleOrderSampler(0), N, batch_size=4, rank="auto")
    assert (order.rank, order.num_replicas) == (1, 3)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    order = Order(ShuffleOrderSampler(0), N, num_replicas="auto")
    assert (order.rank, order.num_replicas) == (0, 1)


def test_ranks_of_torch_distributed(monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        order = Order(ShuffleOrderSampler(0), N, rank="auto")
    finally:
        torch.distributed.destroy_process_group()
    assert (order.rank, order.num_replicas) == (0, 1)


def test_copies_of_orders():
    order = Order(ShuffleOrderSampler(3), N)
    iterator = iter(order)
    first = [next(iterator) for _ in range(5)]
    other = pickle.loads(pickle.dumps(order))
    assert first and list(other) == list(order)
