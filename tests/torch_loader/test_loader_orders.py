"""fastiter's samplers in loaders of torch: the orders of the iterators."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
import signal

import numpy as np
import pytest
from support.transports import by_json

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from orders_of import (  # noqa: E402
    BATCHES,
    KINDS,
    ORDERS,
    N,
    data,
    epoch_of,
    flat,
    iterator_of,
    loader_of,
    values,
)

from fastiter import (  # noqa: E402
    Epoch,
    EpochSampler,
    LengthBucketBatchSampler,
    SerialIterator,
    ShuffleOrderSampler,
)
from fastiter.errors import SkipLimitError  # noqa: E402
from fastiter.tokens import TokenDataset  # noqa: E402
from fastiter.torch import Batches, DataLoader, Order  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

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


@pytest.mark.parametrize("persists", [False, True])
def test_len_between_epochs_is_that_of_the_next(persists):
    def batches(epoch):
        return np.split(np.arange(24), 2 + epoch)

    given = {"num_workers": 1, "persistent_workers": persists}
    loader = DataLoader(data(), batch_sampler=batches, **given)
    for expected in [2, 3]:
        assert len(loader) == expected
        for _ in loader:
            assert len(loader) == expected
    assert len(loader) == 4


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


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("kind", ["shuffle", "function"])
def test_a_state_before_an_epoch_that_set_epoch_has_chosen(kind, arguments):
    """After a loop, and where the end of one was loaded."""
    loader, other = loader_of(kind, **arguments), loader_of(kind, **arguments)
    epochs = [epoch_of(loader) for _ in range(4)]
    end = loader.state_dict()
    loader.set_epoch(1)
    other.load_state_dict(end)
    other.set_epoch(2)
    for one, expected in ((loader, epochs[1]), (other, epochs[2])):
        again = loader_of(kind, **arguments)
        again.load_state_dict(one.state_dict())
        assert epoch_of(again) == epoch_of(one) == expected
        assert epoch_of(again) == epoch_of(one)
    iterator = iter(loader)
    assert values(next(iterator)) == epochs[3][0]
    loader.set_epoch(0)  # of the next loop
    again.load_state_dict(loader.state_dict())
    assert epoch_of(again) == epochs[3][1:]


def test_other_loaders_have_no_set_epoch():
    assert not hasattr(DataLoader(data(), 4), "set_epoch")
    assert DataLoader(data(), 4).valid is None


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


def test_trainers_know_that_an_order_is_dealt():
    """Those that deal a sampler's indices to the ranks leave a `DistributedSampler` as it is."""
    for rank in range(2):
        ranks = {"rank": rank, "num_replicas": 2}
        loader = DataLoader(data(), 4, sampler=ShuffleOrderSampler(0), **ranks)
        order = loader.sampler
        assert isinstance(order, Order)
        assert isinstance(order, torch_data.DistributedSampler)
        assert (order.num_samples, order.total_size) == (len(order), 2 * len(order))
        expected = epoch_of(loader)
        for again in (order, pickle.loads(pickle.dumps(order)), copy.deepcopy(order)):
            again.set_epoch(0)
            assert isinstance(again, torch_data.DistributedSampler)
            # Lightning's Trainer makes a loader anew of the arguments and the new sampler.
            assert epoch_of(DataLoader(data(), 4, sampler=again, **ranks)) == expected
        order.set_epoch(0)
        batches = torch_data.BatchSampler(order, 4, False)
        assert epoch_of(DataLoader(data(), batch_sampler=batches, **ranks)) == expected
        for name, value in (("rank", 1 - rank), ("num_replicas", 3), ("tail", "mask")):
            with pytest.raises(ValueError, match="has its own"):
                DataLoader(data(), 4, sampler=order, **{**ranks, name: value})
    assert not isinstance(Order(ShuffleOrderSampler(0), N), torch_data.DistributedSampler)


def test_refused_orders():
    with pytest.raises(ValueError, match="needs the batch_size"):
        Order(ShuffleOrderSampler(0), N, rank=0, num_replicas=2)
    with pytest.raises(ValueError, match="drop_last=True an Order needs the batch_size"):
        Order(ShuffleOrderSampler(0), 1000, drop_last=True)
    order = Order(ShuffleOrderSampler(0), N, batch_size=4, rank=0, num_replicas=2)
    with pytest.raises(ValueError, match="batch_size=4"):
        DataLoader(data(), 5, sampler=order)
    with pytest.raises(ValueError, match="batch_size=4"):
        DataLoader(data(), batch_sampler=torch_data.BatchSampler(order, 2, False))
    with pytest.raises(ValueError, match="batch_size=4 and drop_last=True"):
        dropping = Order(ShuffleOrderSampler(0), N, batch_size=4, drop_last=True)
        DataLoader(data(), 2, sampler=dropping)
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
    packed = Order(ShuffleOrderSampler(3), TokenDataset([[1] * 9] * 20, 16, packing="bfd", seed=0))
    assert list(pickle.loads(pickle.dumps(packed))) == list(packed)


class Stopping(EpochSampler):
    def epoch(self, number, n_examples, cuttings=()):
        if number == 1:
            raise StopIteration
        return Epoch(np.arange(n_examples), [0, 4, n_examples] if cuttings else None)


def stopping(epoch):
    return Stopping(0).epoch(epoch, 8).order.reshape(2, 4)


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 4, "sampler": Stopping(0)},
        {"batch_sampler": Stopping(0)},
        {"batch_sampler": stopping},
    ],
    ids=["sampler", "batch_sampler", "function"],
)
def test_a_sampler_that_raises_stop_iteration_gives_no_empty_epoch(arguments):
    loader = DataLoader(range(8), **arguments)
    assert len(list(loader)) == 2
    for _ in range(2):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(loader)
