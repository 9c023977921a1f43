"""States that meet another loader: the rest of the epoch comes exactly, or an error says why."""

from __future__ import annotations

import copy
import io
import itertools
import os
import random
import sys

import numpy as np
import pytest
from support.transports import by_json, by_pickle

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

N = 96


def data(n=N):
    return torch_data.TensorDataset(torch.arange(n))


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def values(batch):
    batch = batch[0] if isinstance(batch, (list, tuple)) else batch
    return [int(value) for value in torch.as_tensor(batch).reshape(-1)]


def taken(loader, count):
    """The keys of some batches, and the state after them."""
    iterator = iter(loader)
    found = [key for _ in range(count) for key in values(next(iterator))]
    return found, loader.state_dict()


def rest_of(loader, state):
    loader.load_state_dict(state)
    return [values(batch) for batch in loader]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


# ---- other batch sizes ---------------------------------------------------------------------------

SAMPLERS = {
    "in order": lambda: torch_data.SequentialSampler(data()),
    "shuffled": lambda: torch_data.RandomSampler(data(), generator=seeded()),
    "with replacement": lambda: torch_data.RandomSampler(data(), True, N, generator=seeded()),
    "weighted": lambda: torch_data.WeightedRandomSampler([1.0] * N, N, generator=seeded()),
    "of a rank": lambda: torch_data.DistributedSampler(data(2 * N), 2, 1),
}


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1), (0, 2), (2, 0)])
def test_another_batch_size(kind, before, after):
    """40 of 96 examples delivered: the 56 others come, in order."""

    def make(size, workers):
        examples = data(2 * N) if kind == "of a rank" else data()
        return DataLoader(examples, size, sampler=SAMPLERS[kind](), num_workers=workers)

    whole = flat(values(batch) for batch in make(8, 0))
    for size in (12, 4, 7, None):
        first, state = taken(make(8, before), 5)
        rest = rest_of(make(size, after), by_json(state))
        assert first + flat(rest) == whole
        assert {len(batch) for batch in rest[:-1]} == {size or 1}


@pytest.mark.parametrize("drop_last", [False, True])
def test_another_drop_last(drop_last):
    _, state = taken(DataLoader(range(10), 4, drop_last=not drop_last, num_workers=1), 2)
    rest = rest_of(DataLoader(range(10), 4, drop_last=drop_last), state)
    assert rest == ([] if drop_last else [[8, 9]])


class Held(torch_data.Dataset):
    """Waits before one of its examples for a byte in a pipe."""

    def __init__(self):
        self.ends = os.pipe()

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index == 9:
            assert os.read(self.ends[0], 1)
        return index


def test_missing_batches_keep_their_size():
    """Batches that were overtaken come as they were cut; then come batches of the new size."""
    held = Held()
    arguments = {"num_workers": 2, "in_order": False, "multiprocessing_context": "fork"}
    loader = DataLoader(held, 8, **arguments)
    iterator = iter(loader)
    first = flat(values(next(iterator)) for _ in range(4))
    assert 9 not in first
    state = loader.state_dict()
    os.write(held.ends[1], bytes(9))
    del iterator
    rest = rest_of(DataLoader(range(N), 12), by_json(state))
    assert rest[0] == list(range(8, 16)) and sorted(first + flat(rest)) == list(range(N))
    with pytest.raises(ValueError, match="not with batch_size=None"):
        rest_of(DataLoader(range(N), batch_size=None), state)
    for end in held.ends:
        os.close(end)


class Stream(torch_data.IterableDataset):
    """Numbers, those of a worker in turn."""

    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, N, step))


class StatefulStream(Stream):
    def __init__(self):
        self.i = 0

    def __iter__(self):
        for number in list(super().__iter__())[self.i :]:
            self.i += 1
            yield number
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


@pytest.mark.parametrize("dataset", [Stream, StatefulStream])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_another_batch_size_of_a_stream(dataset, workers):
    for size in (5, 3, None):
        first, state = taken(DataLoader(dataset(), 4, num_workers=workers), 5)
        rest = flat(rest_of(DataLoader(dataset(), size, num_workers=workers), state))
        assert sorted(first + rest) == list(range(N))


def test_another_batch_size_after_a_snapshot():
    """Batches delivered since then cannot be fetched again in other batches."""
    for size, n_more in ((4, 1), (4, 0), (5, 1)):
        loader = DataLoader(StatefulStream(), 4, num_workers=1, snapshot_every_n_steps=3)
        first, state = taken(loader, 3 + n_more)
        again = DataLoader(StatefulStream(), size, num_workers=1)
        if size != 4 and n_more:
            with pytest.raises(ValueError, match="pass the batch_size of the loader that has"):
                rest_of(again, state)
        else:
            assert first + flat(rest_of(again, state)) == list(range(N))


class UnevenStream(torch_data.IterableDataset):
    """One worker has nothing, another one ends early."""

    sizes = (0, 19, 9)

    def __iter__(self):
        number = torch_data.get_worker_info().id
        first = sum(self.sizes[:number])
        return StatefulRange(first, first + self.sizes[number])


class StatefulRange:
    def __init__(self, first, end):
        self.first, self.end = first, end

    def __iter__(self):
        return self

    def __next__(self):
        if self.first == self.end:
            raise StopIteration
        self.first += 1
        return self.first - 1

    def state_dict(self):
        return {"first": self.first}

    def load_state_dict(self, state):
        self.first = state["first"]


def test_workers_that_end_before_and_after_a_snapshot():
    """Workers at their end are asked once more, in vain: what they are asked for is no batch."""
    loader = DataLoader(UnevenStream(), 2, num_workers=3, snapshot_every_n_steps=4)
    found = [(values(batch), loader.state_dict()) for batch in loader]
    whole = [batch for batch, _ in found]
    assert sorted(flat(whole)) == list(range(28))
    for n_steps, (_, state) in enumerate(found, 1):
        again = DataLoader(UnevenStream(), 2, num_workers=3)
        assert rest_of(again, state) == whole[n_steps:]
    assert rest_of(DataLoader(UnevenStream(), 2, num_workers=3), loader.state_dict()) == whole


# ---- other ranks ---------------------------------------------------------------------------------


def ranks(n, num_replicas, size, **arguments):
    samplers = (
        torch_data.DistributedSampler(range(n), num_replicas, rank, **arguments)
        for rank in range(num_replicas)
    )
    return [DataLoader(range(n), size, sampler=sampler) for sampler in samplers]


def in_turn(parts):
    return [key for keys in itertools.zip_longest(*parts) for key in keys if key is not None]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [96, 95, 50, 7])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 2), (4, 6), (1, 8), (8, 1)])
def test_another_number_of_ranks(n, before, after, drop_last):
    """The rest of torch's order comes to the ranks in turns, and again to a third number of
    them; the epoch after it is the sampler's own."""
    arguments, size = {"drop_last": drop_last, "seed": 5}, 2
    order = list(torch_data.DistributedSampler(range(n), 1, 0, seed=5))
    n_steps = len(ranks(n, before, size, **arguments)[0])
    for steps in sorted({0, 1, n_steps // 2, max(0, n_steps - 1), n_steps}):
        n_had, state = 0, None
        for number, count in ((before, steps), (after, 1), (3, None)):
            loaders, left = ranks(n, number, size, **arguments), order[n_had:]
            share = len(left) // number if drop_last else -(-len(left) // number)
            for rank, loader in enumerate(loaders):
                if state is not None:
                    loader.load_state_dict(state)
                    loader.load_state_dict(by_json(loader.state_dict()))
                keys = flat(map(values, itertools.islice(loader, count)))
                n_keys = share if count is None else min(count * size, share)
                expected = left[rank::number][:n_keys]
                assert keys[: len(expected)] == expected and len(keys) == n_keys
                assert {*keys} <= {*order}
            if count is None or share <= count * size - size:  # the loop has ended
                break
            n_had = min(n, n_had + n_keys * number)
            state = by_json(loaders[0].state_dict())
        for loader, of_torch in zip(loaders, ranks(n, number, size, **arguments), strict=True):
            assert [values(batch) for batch in loader] == [values(batch) for batch in of_torch]


def test_another_number_of_ranks_after_an_epoch():
    for before, after in ((2, 3), (3, 2)):
        loader = ranks(10, before, 2)[0]
        list(loader)
        state = loader.state_dict()
        again = ranks(10, after, 2)[1]
        assert rest_of(again, state) == [values(batch) for batch in ranks(10, after, 2)[1]]


# ---- random numbers of the examples --------------------------------------------------------------


class Drawing(torch_data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), float(torch.rand(()))


def alone(example):
    return [example]


def drawing(size, workers, rank=0, num_replicas=1):
    torch.manual_seed(5)
    return DataLoader(
        Drawing(),
        size,
        sampler=torch_data.DistributedSampler(range(N), num_replicas, rank),
        num_workers=workers,
        seed_examples=True,
        collate_fn=list if size else alone,
    )


def drawn(loader, count=None):
    return flat(itertools.islice(loader, count))


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (2, 1)])
def test_other_batches_have_the_same_random_numbers(before, after):
    whole = drawn(drawing(8, 0))
    assert len({number for _, *numbers in whole for number in numbers}) == 3 * N
    for size in (12, 3, None):
        loader = drawing(8, before)
        first = drawn(loader, 5)
        again = drawing(size, after)
        again.load_state_dict(by_json(loader.state_dict()))
        assert first + drawn(again) == whole


def test_other_ranks_have_other_random_numbers():
    """Each rank has a seed of its own, which another number of ranks has not."""
    loader = drawing(4, 0, 1, 2)
    drawn(loader, 6)
    with pytest.raises(ValueError, match="seed_examples=True each rank has a seed of its own"):
        drawing(4, 0, 1, 4).load_state_dict(loader.state_dict())


def test_batches_of_a_batch_sampler_have_their_own_random_numbers():
    def make(workers):
        torch.manual_seed(5)
        return DataLoader(
            Drawing(),
            batch_sampler=Pairs(),
            num_workers=workers,
            seed_examples=True,
            collate_fn=list,
        )

    whole = drawn(make(0))
    assert len({number for _, *numbers in whole for number in numbers}) == 3 * N
    loader = make(2)
    first = drawn(loader, 5)
    again = make(1)
    again.load_state_dict(loader.state_dict())
    assert first + drawn(again) == whole


# ---- what is refused -----------------------------------------------------------------------------


class Numbers(torch_data.Sampler):
    def __init__(self, n=N):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))

    def __len__(self):
        return self.n


class Pairs(Numbers):
    batch_size = 2

    def __iter__(self):
        return iter([[i, i + 1] for i in range(0, self.n, 2)])


class Lengthless(Numbers):
    __len__ = None


class Sized(torch_data.BatchSampler):
    """Not torch's class: what it does with its size is not known."""


def distributed(**arguments):
    return torch_data.DistributedSampler(data(), 2, 0, **arguments)


REFUSED = {
    "dataset": ({"dataset": data(90)}, {}, r"len\(dataset\) = 90, which is now 96.* the dataset"),
    "shuffle": ({"shuffle": True}, {}, r"RandomSampler.*which is now .*SequentialSampler"),
    "replacement": (
        {"sampler": torch_data.RandomSampler(data(), True)},
        {"shuffle": True},
        "sampler.replacement = True, which is now False",
    ),
    "seed": (
        {"sampler": distributed(seed=1)},
        {"sampler": distributed()},
        r"sampler.seed = 1, which is now 0.* pass the sampler",
    ),
    "shuffle of a rank": (
        {"sampler": distributed(shuffle=False)},
        {"sampler": distributed()},
        "sampler.shuffle = False",
    ),
    "own sampler": ({"sampler": Numbers()}, {}, r"Numbers', which is now 'torch"),
    "its length": (
        {"sampler": Numbers(90)},
        {"sampler": Numbers()},
        r"len\(sampler\) = 90, which is now 96",
    ),
    "batch sampler": (
        {"batch_sampler": Pairs(90), "batch_size": 1},
        {"batch_sampler": Pairs(), "batch_size": 1},
        r"len\(sampler\) = 90",
    ),
    "its batch size": (
        {"batch_sampler": Sized(Numbers(), 50, False), "batch_size": 1},
        {"batch_sampler": Sized(Numbers(), 60, False), "batch_size": 1},
        "sampler.batch_size = 50, which is now 60",
    ),
    "fewer keys": (
        {"sampler": Lengthless()},
        {"sampler": Lengthless(2)},
        "counts 4 keys of the sampler in this epoch, but it gives 2",
    ),
    "generator": (
        {"shuffle": True, "generator": seeded()},
        {"shuffle": True},
        "generator = 'given', which is now None",
    ),
    "no generator": (
        {"shuffle": True},
        {"shuffle": True, "generator": seeded()},
        "generator = None, which is now 'given'.* pass the generator",
    ),
    "seed_examples": ({"seed_examples": True}, {}, "seed_examples = True, which is now False"),
    "weights": (
        {"sampler": torch_data.WeightedRandomSampler([1.0] * N, N)},
        {"sampler": torch_data.WeightedRandomSampler([1.0] * (N - 1) + [2.0], N)},
        "sampler.weights = .* which is now .* pass the sampler",
    ),
    "indices": (
        {"sampler": torch_data.SubsetRandomSampler(range(N))},
        {"sampler": torch_data.SubsetRandomSampler([*range(1, N), 0])},
        "sampler.indices = .* which is now",
    ),
    "stream": ({"dataset": Stream()}, {}, "with an IterableDataset, which is now a map-style"),
    "no stream": ({}, {"dataset": Stream()}, "a map-style dataset, which is now an Iterable"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_cannot_be_told_is_refused(kind, workers):
    before, after, says = REFUSED[kind]
    _, state = taken(DataLoader(**{"dataset": data(), "batch_size": 4, **before}), 1)
    again = DataLoader(**{"dataset": data(), "batch_size": 4, **after}, num_workers=workers)
    if kind == "fewer keys":  # it has no length to compare
        again.load_state_dict(state)
        for _ in range(2):  # it is not forgotten
            with pytest.raises(ValueError, match=says):
                iter(again)
        again.load_state_dict({})
    else:
        for strict in (True, kind == "dataset"):
            with pytest.raises(ValueError, match=says):
                again.load_state_dict(state, strict)
    assert list(again)


# ---- samplers that are changed -------------------------------------------------------------------

CHANGES = {
    "larger": [(0, 2, "batch_size", 10)],
    "smaller": [(0, 1, "batch_size", 3)],
    "several": [(0, 0, "batch_size", 7), (0, 3, "batch_size", 2), (1, 1, "batch_size", 5)],
    "between epochs": [(0, None, "batch_size", 10)],
    "drop_last": [(0, 1, "drop_last", True), (0, 1, "batch_size", 6)],
    "no drop_last": [(0, None, "drop_last", True), (1, 1, "batch_size", 6)],
}


def changed(kind, change, loader_class=DataLoader, **arguments):
    """The batches of three epochs, while attributes of the batch sampler are changed."""
    torch.manual_seed(1)
    examples = data(2 * 46) if kind == "of a rank" else data(46)
    sampler = {
        "in order": lambda: torch_data.SequentialSampler(examples),
        "shuffled": lambda: torch_data.RandomSampler(examples),
        "of a rank": lambda: torch_data.DistributedSampler(examples, 2, 1),
    }[kind]()
    loader = loader_class(examples, 4, sampler=sampler, **arguments)
    found = []
    for epoch in range(3):
        found.append(len(loader))
        for step, batch in enumerate(loader):
            found.append(values(batch))
            for *place, name, value in CHANGES[change]:
                if place == [epoch, step]:
                    setattr(loader.batch_sampler, name, value)
        for *place, name, value in CHANGES[change]:
            if place == [epoch, None]:
                setattr(loader.batch_sampler, name, value)
    return found


@pytest.mark.parametrize("kind", ["in order", "shuffled", "of a rank"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_workers": 1}, {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3}],
    ids=["0", "1", "persistent"],
)
def test_a_batch_sampler_that_is_changed(kind, change, arguments):
    """As torch's loader: as many batches of the old size follow as workers were ahead."""
    expected = changed(kind, change, torch_data.DataLoader, **arguments)
    assert changed(kind, change, **arguments) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", [10, 3, 4])
def test_a_state_after_a_change(workers, size):
    """The batches that workers were ahead come in the size of the loader that goes on."""

    def make():
        return DataLoader(data(46), 4, shuffle=True, generator=seeded(), num_workers=workers)

    whole = flat(values(batch) for batch in make())
    loader = make()
    iterator = iter(loader)
    first = values(next(iterator))
    loader.batch_sampler.batch_size = size
    first += flat(values(next(iterator)) for _ in range(2))
    assert first + flat(rest_of(make(), loader.state_dict())) == whole


def test_a_batch_size_of_nothing():
    loader = DataLoader(data(), 4, num_workers=1, persistent_workers=True)
    for size in (4, 0, 4, -1, 4):
        loader.batch_sampler.batch_size = size
        if size == 4:
            assert len(list(loader)) == 24
            continue
        with pytest.raises(ValueError, match=f"batch_size of the batch sampler is {size}"):
            next(iter(loader))


# ---- samplers with a state -----------------------------------------------------------------------


class Counting(Numbers):
    """Goes on where it was; its state is one of the keys that it has given."""

    def __init__(self):
        super().__init__()
        self.i = 0

    def __iter__(self):
        while self.i < N:
            self.i += 1
            yield (self.i * 7) % N
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class CountingIterator:
    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == N:
            raise StopIteration
        self.i += 1
        return (self.i * 5) % N

    state_dict, load_state_dict = Counting.state_dict, Counting.load_state_dict


class OfIterator(Numbers):
    def __iter__(self):
        return CountingIterator()


class Replayed(torch_data.DistributedSampler):
    """As torchdata's: the next iteration leaves out what was counted."""

    def __init__(self):
        super().__init__(data(2 * N), 2, 1)
        self.n_given = self.n_left_out = 0

    def __iter__(self):
        self.n_given, self.n_left_out = self.n_left_out, 0
        for key in itertools.islice(super().__iter__(), self.n_given, None):
            self.n_given += 1
            yield key

    def state_dict(self):
        return {"n_given": self.n_given}

    def load_state_dict(self, state):
        self.n_left_out = state["n_given"]


@pytest.mark.parametrize("sampler", [Counting, OfIterator, Replayed])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 1), (2, 0)])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_samplers_with_a_state(sampler, before, after, every):
    """It is that after the delivered batches, whatever was drawn ahead."""
    examples = data(2 * N)

    def make(workers, size=8):
        arguments = {"num_workers": workers, "snapshot_every_n_steps": every}
        return DataLoader(examples, size, sampler=sampler(), **arguments)

    whole = flat(values(batch) for batch in make(0))
    for count in (0, 1, 4, 12):
        first, state = taken(make(before), count)
        assert first + flat(rest_of(make(after), by_json(state))) == whole
        if every == 1:
            assert first + flat(rest_of(make(after, 5), state)) == whole
    loader = make(before)
    list(loader)
    again = make(after)
    assert flat(rest_of(again, loader.state_dict())) == whole
    assert flat(values(batch) for batch in again) == whole


@pytest.mark.parametrize("sampler", [Counting, OfIterator, Replayed])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [0, 1])
def test_a_sampler_that_tells_of_another_time_until_its_first_key(sampler, workers, every):
    """In a later epoch, and after resuming: a generator has not begun when its iterator is made."""

    def make():
        arguments = {"num_workers": workers, "snapshot_every_n_steps": every}
        return DataLoader(data(2 * N), 8, sampler=sampler(), **arguments)

    whole = flat(values(batch) for batch in make())
    for count in (0, 3):
        loader = make()
        list(loader)
        first, state = taken(loader, count)
        for _ in range(2):
            again = make()
            again.load_state_dict(by_json(state))
            _, state = taken(again, 0)
        assert first + flat(rest_of(make(), state)) == whole


def test_a_sampler_that_has_begun_before_the_loader():
    sampler = Counting()
    sampler.load_state_dict({"i": 90})
    state = DataLoader(data(), 3, sampler=sampler).state_dict()
    rest = rest_of(DataLoader(data(), 3, sampler=Counting()), state)
    assert flat(rest) == [(i * 7) % N for i in range(91, 97)]


# ---- lengths -------------------------------------------------------------------------------------


class Huge(torch_data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("n", [10**12, 2**62, sys.maxsize])
@pytest.mark.parametrize("workers", [0, 1])
def test_huge_lengths_in_order(n, workers):
    """No memory for them exists; a state of them goes on."""

    def make():
        return DataLoader(Huge(n), 4, num_workers=workers)

    first, state = taken(make(), 20)
    assert first == list(range(80))
    again = make()
    again.load_state_dict(state)
    assert values(next(iter(again))) == [80, 81, 82, 83]


# ---- copies --------------------------------------------------------------------------------------


def by_torch_save(loader):
    file = io.BytesIO()
    torch.save(loader, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [by_pickle, copy.deepcopy, copy.copy, by_torch_save]


@pytest.mark.skipif(torch.__version__ < (2, 4), reason="torch's generators do not pickle")
@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("loader_class", [torch_data.DataLoader, DataLoader])
def test_copies_begin_anew(copied, workers, loader_class):
    """At any time; the original goes on."""
    loader = loader_class(data(), 8, shuffle=True, generator=seeded(), num_workers=workers)

    def check():
        again = copied(loader)
        if copied is copy.copy:
            again = copy.deepcopy(again)  # else they share the generator
        expected = loader_class(data(), 8, shuffle=True, generator=copy.copy(loader.generator))
        expected.generator.set_state(loader.generator.get_state())
        assert [values(batch) for batch in again] == [values(batch) for batch in expected]

    check()
    whole = [values(batch) for batch in copy.deepcopy(loader)]
    iterator = iter(loader)
    first = [values(next(iterator))]
    check()
    assert first + [values(batch) for batch in iterator] == whole
    check()
    del iterator
    check()


@pytest.mark.parametrize("copied", COPIES)
def test_copies_with_persistent_workers(copied):
    """As torch, which copies no iterator."""
    for loader_class in (torch_data.DataLoader, DataLoader):
        loader = loader_class(data(), 8, num_workers=1, persistent_workers=True)
        assert len(list(copied(loader))) == 12
        list(loader)
        if copied is not copy.copy:
            with pytest.raises(NotImplementedError):
                copied(loader)


@pytest.mark.parametrize("copied", COPIES)
def test_copies_of_a_loader_with_a_loaded_state(copied):
    first, state = taken(DataLoader(data(), 8), 5)
    loader = DataLoader(data(), 8)
    loader.load_state_dict(state)
    again = copied(loader)
    assert again.state_dict() == state
    for each in (loader, again):
        assert first + flat(values(batch) for batch in each) == list(range(N))
