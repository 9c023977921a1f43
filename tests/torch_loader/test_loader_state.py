"""`state_dict` and `load_state_dict`: what is left of an iteration is what comes."""

from __future__ import annotations

import copy
import gc
import io
import json
import multiprocessing
import pickle
import random
import subprocess
import sys

import numpy as np
import pytest
from support.transports import TRANSPORTS, by_json

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

DATA = torch_data.TensorDataset(torch.arange(46))
CHANGES = [(0, 0), (2, 2), (2, 3), (0, 1), (2, 0)]  # of the number of workers


def own_generator():
    return torch_data.RandomSampler(DATA, generator=torch.Generator().manual_seed(7))


class Shuffled(torch_data.Sampler):
    """Keys by torch's global generator: batches of them, or with a size of None single ones."""

    def __init__(self, size=None):
        self.size = size

    def __iter__(self):
        order = torch.randperm(len(DATA))
        yield from map(torch.Tensor.tolist, order if self.size is None else order.split(self.size))


LOADERS = {
    "in order": dict,
    "shuffled": lambda: {"shuffle": True},
    "seeded": lambda: {"shuffle": True, "generator": torch.Generator().manual_seed(2)},
    "drop_last": lambda: {"shuffle": True, "drop_last": True},
    "own generator": lambda: {"sampler": own_generator()},
    "batch sampler": lambda: {
        "batch_sampler": torch_data.BatchSampler(own_generator(), 4, False),
        "batch_size": 1,
    },
    "with replacement": lambda: {"sampler": torch_data.RandomSampler(DATA, True, 30)},
    "weighted": lambda: {"sampler": torch_data.WeightedRandomSampler([1.0] * 46, 30)},
    "weighted beside a generator": lambda: {
        "sampler": torch_data.WeightedRandomSampler([1.0] * 46, 30),
        "generator": torch.Generator().manual_seed(2),
    },
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "a sampler of one's own beside a generator": lambda: {
        "sampler": Shuffled(),
        "generator": torch.Generator().manual_seed(2),
    },
    "a batch sampler of one's own beside a generator": lambda: {
        "batch_sampler": Shuffled(4),
        "batch_size": 1,
        "generator": torch.Generator().manual_seed(2),
    },
}


def loader_of(kind, workers, **arguments):
    arguments = {"batch_size": 4, **LOADERS[kind](), **arguments}
    return DataLoader(DATA, num_workers=workers, **arguments)


def values(batch):
    return (batch[0] if isinstance(batch, (list, tuple)) else batch).tolist()


def take(loader, count=None, epochs=3):
    """Batches of some epochs with a number that the program draws beside each, and the state after
    `count` of them, of which no more are taken."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            draws = loader.generator is None  # else the state is not that of the global generator
            found.append((values(batch), torch.rand(()).item() if draws else 0))
            if len(found) == count:
                return found, loader.state_dict()
    return found, None


def epochs_left(count, whole):
    per_epoch = len(whole) // 3
    return 3 - (count - 1) // per_epoch


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_resume(kind, before, after):
    """With any number of workers, the epochs that follow, and the program's numbers, too."""
    torch.manual_seed(3)
    whole, _ = take(loader_of(kind, before))
    for count in (1, len(whole) // 3, len(whole) // 3 + 2):
        torch.manual_seed(3)
        first, state = take(loader_of(kind, before), count)
        torch.manual_seed(99)
        loader = loader_of(kind, after)
        loader.load_state_dict(copy.deepcopy(state))
        rest, _ = take(loader, epochs=epochs_left(count, whole))
        assert first + rest == whole, count


def test_resume_with_persistent_workers():
    torch.manual_seed(3)
    arguments = {"persistent_workers": True, "seed_examples": True}
    whole, _ = take(loader_of("shuffled", 2, **arguments))
    for count in (5, 17):
        torch.manual_seed(3)
        first, state = take(loader_of("shuffled", 2, **arguments), count)
        loader = loader_of("shuffled", 3, **arguments)
        loader.load_state_dict(state)
        assert first + take(loader, epochs=epochs_left(count, whole))[0] == whole


@pytest.mark.parametrize("kind", ["shuffled", "seeded", "own generator"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_state_before_the_first_batch_and_after_the_last(kind, before, after):
    torch.manual_seed(3)
    loader = loader_of(kind, before)
    state = loader.state_dict()
    expected = [values(batch) for batch in loader]
    again = loader_of(kind, after)
    again.load_state_dict(state)
    assert [values(batch) for batch in again] == expected
    # After the last batch, but before the end is known, the rest is empty; then it is an epoch.
    iterator = iter(loader)
    for _ in range(12):
        next(iterator)
    again.load_state_dict(loader.state_dict())
    assert list(again) == []
    with pytest.raises(StopIteration):
        next(iterator)
    del iterator
    state = loader.state_dict()
    following = [values(batch) for batch in loader]
    again.load_state_dict(state)
    assert [values(batch) for batch in again] == following


@pytest.mark.parametrize(("kind", "most"), [("seeded", 6_000), ("shuffled", 10_000)])
def test_states_are_plain_data_and_small(kind, most):
    for loader in (loader_of(kind, 2), loader_of(kind, 0)):
        unbegun = loader.state_dict()
        batches = iter(loader)
        next(batches)
        for state in (unbegun, loader.state_dict()):
            file = io.BytesIO()
            torch.save(state, file)
            assert len(file.getvalue()) < most
            file.seek(0)
            assert torch.load(file, weights_only=True) == state
            again = loader_of(kind, 2)
            again.load_state_dict(json.loads(json.dumps(state)))
            assert json.loads(json.dumps(again.state_dict())) == json.loads(json.dumps(state))
        torch.manual_seed(5)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert [values(batch) for batch in again] == [values(batch) for batch in batches]


PLAIN = {
    **{kind: {"kind": kind} for kind in ("shuffled", "seeded", "weighted", "no batches")},
    "any order": {"kind": "shuffled", "in_order": False},
    "seeded examples": {"kind": "shuffled", "seed_examples": True},
    "of a rank": {"sampler": lambda: torch_data.DistributedSampler(DATA, 2, 1)},
    "stream": {"dataset": lambda: Stateless()},
    "stateful stream": {"dataset": lambda: Stateful()},
    "stateful map": {"dataset": lambda: Remembering()},
}


def plain_loader(kind, workers):
    given = dict(PLAIN[kind])
    arguments = {"batch_size": 4, **LOADERS[given.pop("kind", "in order")]()}
    arguments |= {name: value() if callable(value) else value for name, value in given.items()}
    return DataLoader(arguments.pop("dataset", DATA), num_workers=workers, **arguments)


def types_in(value):
    found = {type(value)}
    if isinstance(value, dict):
        return found.union(*map(types_in, value), *map(types_in, value.values()))
    return found.union(*map(types_in, value)) if isinstance(value, (list, tuple)) else found


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("workers", [0, 2])
def test_states_are_plain_data(kind, workers):
    """Before the first batch, within the epoch, after its last batch, and after the loop."""
    torch.manual_seed(3)
    loader = plain_loader(kind, workers)
    batches, places = [], [(loader.state_dict(), None)]
    for batch in loader:
        batches.append(flattened(batch))
        places.append((loader.state_dict(), len(batches)))
    places.append((loader.state_dict(), None))
    for state, n_before in [*places[:2], places[len(batches) // 2], *places[-2:]]:
        assert types_in(state) <= {dict, list, int, float, bool, str, bytes, type(None)}
        for copied in TRANSPORTS.values():
            assert copied(state) == state
            again = plain_loader(kind, workers)
            again.load_state_dict(copied(state))
            assert by_json(again.state_dict()) == state
            if n_before is not None:
                rest = [flattened(batch) for batch in again]
                if kind == "any order":
                    assert len(rest) == len(batches) - n_before
                else:
                    assert rest == batches[n_before:]


def flattened(batch):
    batch = batch if isinstance(batch, list) else [batch]
    return [torch.as_tensor(part).tolist() for part in batch]


class OneValue:
    """A loader's state as one value, for `torch.distributed.checkpoint`."""

    def __init__(self, loader):
        self.loader = loader

    def state_dict(self):
        return {"rank_0": pickle.dumps(self.loader.state_dict())}

    def load_state_dict(self, state):
        self.loader.load_state_dict(pickle.loads(state["rank_0"]))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.skipif(torch.__version__ < (2, 6), reason="torch's save() takes no no_dist=")
@pytest.mark.parametrize("workers", [0, 2])
def test_distributed_checkpoints(workers, tmp_path):
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    other, loader, again = (loader_of("seeded", workers) for _ in range(3))
    batches = iter(loader)
    first = [values(next(batches)) for _ in range(3)]
    for given, path in ((OneValue(loader), "one"), (loader, "each")):
        checkpoint.save({"loader": given}, checkpoint_id=tmp_path / path, no_dist=True)
    with pytest.raises(checkpoint.CheckpointException, match="Missing key in checkpoint"):
        checkpoint.load({"loader": again}, checkpoint_id=tmp_path / "each", no_dist=True)
    checkpoint.load({"loader": OneValue(again)}, checkpoint_id=tmp_path / "one", no_dist=True)
    assert first + [*map(values, again)] == [*map(values, other)]


def test_the_state_of_a_generator_that_is_none():
    loader = loader_of("seeded", 0)
    state = loader.state_dict()
    for wrong in ([1, 2], "eJ", "abc", "\u00e9"):
        with pytest.raises(ValueError, match="state of a generator"):
            loader.load_state_dict({**state, "_unbegun_states": [wrong]})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", ["shuffled", "weighted"])
def test_a_program_that_draws_before_the_first_batch(kind, workers):
    """Without workers the sampler draws after it."""
    torch.manual_seed(3)
    loader = loader_of(kind, workers)
    for _ in range(2):
        iterator = iter(loader)
        torch.rand(5)
        next(iterator)
        state = by_json(loader.state_dict())
        rest = [values(batch) for batch in iterator]
        again = loader_of(kind, workers)
        again.load_state_dict(state)
        iterator = iter(again)
        next(iterator)
        again.load_state_dict(again.state_dict())
        assert [values(batch) for batch in again] == rest[1:]


def test_the_epoch_of_a_distributed_sampler():
    """A client may begin to iterate before it calls ``set_epoch``, as Lightning does."""

    def make():
        sampler = torch_data.DistributedSampler(DATA, 2, 0)
        return sampler, DataLoader(DATA, 4, sampler=sampler, num_workers=2)

    sampler, loader = make()
    sampler.set_epoch(1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = [values(batch) for batch in iterator]
    sampler, loader = make()
    loader.load_state_dict(state)
    iterator = iter(loader)
    sampler.set_epoch(1)
    assert [values(batch) for batch in iterator] == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_changes_a_state(workers):
    """The loader keeps nothing of what it has given."""
    loader = loader_of("seeded", workers)
    batches = iter(loader)
    next(batches)
    for _ in range(2):
        state, same = loader.state_dict(), loader.state_dict()
        for part in (state["_facts"], state.get("_snapshot", {}).get("_main_snapshot", state)):
            part.clear()
        assert loader.state_dict() == same
        loader.load_state_dict(same)
        next(iter(loader))


def test_a_state_that_was_loaded_is_given_back_until_it_is_used():
    """A program that is killed twice goes on from it."""
    loader = loader_of("shuffled", 2)
    next(iter(loader))
    state = loader.state_dict()
    again = loader_of("shuffled", 2)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_state_before_the_first_iteration_starts_nothing():
    """The workers have the dataset as it is when the loop begins."""
    former = children()
    dataset = [0] * 8
    loader = DataLoader(dataset, num_workers=2)
    assert loader.state_dict() and children() == former
    dataset[0] = 100
    assert next(iter(loader)).item() == 100


def test_state_before_the_first_iteration_asks_no_dataset():
    """It says that nothing has begun, and the first batch is the first again."""
    former = children()
    loader = DataLoader(Stateful(), 4, num_workers=2)
    state = loader.state_dict()
    assert children() == former and pickle.dumps(loader)
    again = DataLoader(Stateful(), 4, num_workers=2)
    again.load_state_dict(state)
    expected = [batch.tolist() for batch in loader]
    assert [batch.tolist() for batch in again] == expected and len(expected) == 10


@pytest.mark.parametrize("state", [{"a": 1}, {"_snapshot": 3}, [1], [], ""])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="state_dict is not the state of a DataLoader"):
        loader_of("in order", 2).load_state_dict(state)


class Stateful(torch_data.IterableDataset):
    """A stream that knows where it is."""

    def __init__(self, n=40):
        self.n, self.start = n, 0

    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        self.i, self.start = self.start, 0
        while self.i * step + first < self.n:
            self.i += 1
            yield torch.tensor([(self.i - 1) * step + first, random.randrange(1)])

    def state_dict(self):
        return {"i": self.i if hasattr(self, "i") else 0}

    def load_state_dict(self, state):
        self.start = state["i"]


class Stateless(torch_data.IterableDataset):
    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor([i]) for i in range(first, 40 + 9 * first, step))


@pytest.mark.parametrize("dataset", [Stateful, Stateless])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [0, 1, 3])
def test_resume_of_streams(dataset, workers, every):
    arguments = {"batch_size": 3, "num_workers": workers, "snapshot_every_n_steps": every}
    whole = [batch[:, 0].tolist() for batch in DataLoader(dataset(), **arguments)]
    for count in (1, 4, 7):
        loader = DataLoader(dataset(), **arguments)
        first = [batch[:, 0].tolist() for _, batch in zip(range(count), loader, strict=False)]
        state = loader.state_dict()
        for _ in range(2):  # also saved again before the first batch
            again = DataLoader(dataset(), **arguments)
            again.load_state_dict(state)
            iterator = iter(again)
            state = again.state_dict()
        assert first + [batch[:, 0].tolist() for batch in iterator] == whole


class Remembering(torch_data.Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return index

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def test_an_end_after_the_last_snapshot():
    """The batches since then are fetched again, though the sampler has ended."""
    loader, again = (
        DataLoader(Remembering(), num_workers=2, snapshot_every_n_steps=4) for _ in range(2)
    )
    list(loader)
    again.load_state_dict(loader.state_dict())
    assert torch.cat(list(again)).tolist() == [*range(10)]


@pytest.mark.parametrize("dataset", [Stateful, Stateless])
@pytest.mark.parametrize("workers", [0, 3])
def test_another_number_of_workers_for_a_stream_is_refused(dataset, workers):
    loader = DataLoader(dataset(), num_workers=2)
    next(iter(loader))
    again = DataLoader(dataset(), num_workers=workers)
    for error in (AssertionError, ValueError):
        with pytest.raises(error, match=r"pass num_workers=2"):
            again.load_state_dict(loader.state_dict())


class Beginning(Stateful):
    """In one part. Begins anew at its end, and goes on at once where it is told to."""

    def __iter__(self):
        while self.start < self.n:
            self.start += 1
            yield torch.tensor([self.start - 1])
        self.start = 0

    def state_dict(self):
        return {"i": self.start}


class Uneven(Stateful):
    """The first worker's part has one example."""

    def __iter__(self):
        info = torch_data.get_worker_info()
        self.n = 1 if info is not None and info.id == 0 else 40
        return super().__iter__()


@pytest.mark.parametrize(
    ("dataset", "workers"),
    [(Stateful, 0), (Stateful, 2), (Beginning, 0), (Beginning, 1), (Uneven, 2)],
)
@pytest.mark.parametrize("size", [3, 4, None])
def test_a_stream_that_has_ended_gives_its_next_epoch_whole(dataset, workers, size):
    """A generator takes the place that was loaded as it begins, which is not the next epoch's."""
    options = {"num_workers": workers, "persistent_workers": bool(workers)}
    whole = [batch.tolist() for batch in DataLoader(dataset(), size, **options)]
    for count in (2, len(whole)):
        loader, again = (DataLoader(dataset(), size, **options) for _ in range(2))
        assert len([*zip(range(count), loader, strict=False)]) == count
        again.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in again] == whole[count:]
        assert [batch.tolist() for batch in again] == whole


class Live(torch_data.Dataset):
    """Map or iterator; its state is an object that it goes on to change, and takes apart."""

    def __init__(self):
        self.state = {"left": [[i] for i in range(40)]}

    def __len__(self):
        return 40

    def __iter__(self):
        return self

    def __next__(self):
        if not self.state["left"]:
            raise StopIteration
        return self.state["left"].pop(0)[0]

    def __getitem__(self, index):
        return index, next(self)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state["left"] = state.pop("left")


class LiveStream(Live, torch_data.IterableDataset):
    pass


class OfLive(torch_data.IterableDataset):
    def __iter__(self):
        return Live()

    def __len__(self):
        return 40


LIVE = {
    "map": lambda: {"dataset": Live()},
    "stream": lambda: {"dataset": LiveStream()},
    "iterator": lambda: {"dataset": OfLive()},
    "sampler": lambda: {"dataset": DATA, "sampler": Live()},
    "iterator of a sampler": lambda: {"dataset": DATA, "sampler": OfLive()},
}


@pytest.mark.parametrize("kind", LIVE)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_stays_as_it_was(kind, workers):
    """Whatever the object does that has given it, or has got it. A client may fetch a batch before
    it saves the state, and save another one before it goes on."""

    def make():
        return DataLoader(**LIVE[kind](), batch_size=4, num_workers=workers, collate_fn=list)

    def plain(batches):
        return [*map(str, batches)]

    whole, loader = plain(make()), make()
    batches = iter(loader)
    first = plain(next(batches) for _ in range(3))
    state = loader.state_dict()
    next(batches)
    for _ in range(2):
        again = make()
        again.load_state_dict(state)
        batches = iter(again)
        state = again.state_dict()
    assert first + plain(batches) == whole


class Unplain(Live):
    def state_dict(self):
        return {"left": (key for key in ())}


def test_a_state_that_cannot_be_copied_is_told_by_the_loaders():
    for given in ({"dataset": Unplain()}, {"dataset": DATA, "sampler": Unplain()}):
        loader = DataLoader(**given, collate_fn=list)
        assert len([*zip(range(3), loader, strict=False)]) == 3
        with pytest.raises(RuntimeError, match=r"state_dict\(\) of Unplain failed"):
            loader.state_dict()


class LateMap(Remembering):
    """None is its state until it has begun."""

    def __init__(self):
        self.n = 0

    def __getitem__(self, index):
        self.n += 1
        return index, self.n

    def state_dict(self):
        return {"n": self.n} if self.n else None

    def load_state_dict(self, state):
        self.n = state["n"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_state_that_is_none_at_first(workers, every):
    def make():
        options = {"num_workers": workers, "snapshot_every_n_steps": every}
        return DataLoader(LateMap(), collate_fn=list, **options)

    whole = [*make()]
    for count in (0, 1, 2, 7):
        loader, again = make(), make()
        batches = iter(loader)
        first = [next(batches) for _ in range(count)]
        again.load_state_dict(loader.state_dict())
        assert first + [*again] == whole


class OtherProtocol(torch_data.IterableDataset):
    """A method that some libraries' own loaders call with arguments."""

    def __iter__(self):
        return iter(range(6))

    def state_dict(self, n_examples, from_beginning):
        raise AssertionError

    def load_state_dict(self, state):
        raise AssertionError


class OtherMap(torch_data.Dataset):
    state_dict, load_state_dict = OtherProtocol.state_dict, OtherProtocol.load_state_dict

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 6


class OtherSampler(torch_data.SequentialSampler):
    state_dict, load_state_dict = OtherProtocol.state_dict, OtherProtocol.load_state_dict


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_dict_that_takes_arguments_is_not_asked(workers):
    for dataset, arguments in (
        (OtherProtocol(), {}),
        (OtherMap(), {}),
        (range(6), {"sampler": OtherSampler(range(6))}),
    ):
        loader, again = (DataLoader(dataset, 2, num_workers=workers, **arguments) for _ in range(2))
        assert next(iter(loader)).tolist() == [0, 1]
        again.load_state_dict(loader.state_dict())
        assert [batch.tolist() for batch in again] == [[2, 3], [4, 5]]


class Failing(Stateful):
    """Has no state until it has begun, or never."""

    def __init__(self, is_for_ever=False):
        super().__init__()
        self.is_for_ever = is_for_ever

    def state_dict(self):
        if self.is_for_ever or not getattr(self, "i", 0):
            raise KeyError("no state yet")
        return super().state_dict()


class FailingMap(Remembering):
    def state_dict(self):
        raise KeyError("no state yet")


class FailingSampler(torch_data.SequentialSampler):
    state_dict, load_state_dict = FailingMap.state_dict, FailingMap.load_state_dict


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_dict_that_fails_is_told_by_the_loaders(workers):
    """The loop goes on without it."""
    for dataset, arguments in (
        (Failing(True), {}),
        (FailingMap(), {}),
        (range(40), {"sampler": FailingSampler(range(40))}),
    ):
        loader = DataLoader(dataset, 2, num_workers=workers, **arguments)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
            with pytest.raises(RuntimeError, match=r"state_dict\(\) of Failing(.|\n)*no state yet"):
                loader.state_dict()
        assert len(list(iterator)) == len(list(loader)) - 2
        del iterator
        with pytest.raises(RuntimeError, match="no state yet"):
            loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_dict_that_fails_at_first(workers):
    loader, again, other = (DataLoader(Failing(), 2, num_workers=workers) for _ in range(3))
    whole = [batch[:, 0].tolist() for batch in other]
    iterator = iter(loader)
    with pytest.raises(RuntimeError, match="no state yet"):
        loader.state_dict()
    first = [next(iterator)[:, 0].tolist() for _ in range(4)]
    again.load_state_dict(loader.state_dict())
    assert first + [batch[:, 0].tolist() for batch in again] == whole


def test_a_class_as_dataset_has_no_state():
    class Meta(type):
        def __len__(cls):
            return 4

        def __getitem__(cls, index):
            return index

    class Numbers(metaclass=Meta):
        state_dict = load_state_dict = staticmethod(lambda *state: pytest.fail("was asked"))

    loader = DataLoader(Numbers, 2)
    assert next(iter(loader)).tolist() == [0, 1] and loader.state_dict()


class Drawing(torch_data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(2)


def drawn(workers, count=None, state=None, dataset=Drawing):
    torch.manual_seed(4)
    loader = DataLoader(
        dataset(), batch_size=4, shuffle=True, num_workers=workers, seed_examples=True
    )
    if state is not None:
        loader.load_state_dict(state)
    found = []
    for batch in loader:
        found.append([part.tolist() for part in batch])
        if len(found) == count:
            return found, loader.state_dict()
    return found, None


def test_random_numbers_that_belong_to_examples():
    """The same with any number of workers, and after resuming."""
    whole, _ = drawn(0)
    assert len({number for _, numbers, *_ in whole for number in numbers}) == 30
    for workers in (1, 3):
        assert drawn(workers)[0] == whole
    for before, after in ((2, 3), (0, 2), (2, 0)):
        first, state = drawn(before, 3)
        assert first + drawn(after, state=state)[0] == whole


class DrawingWithState(Drawing):
    def state_dict(self):
        return {"is_state": True}

    def load_state_dict(self, state):
        assert state == {"is_state": True}


def test_seeded_examples_of_a_dataset_with_a_state():
    whole, _ = drawn(0)
    for workers in (0, 2):
        first, state = drawn(workers, 3, dataset=DrawingWithState)
        assert first + drawn(workers, state=state, dataset=DrawingWithState)[0] == whole


def test_seeded_examples_leave_the_programs_generators_alone():
    states = []
    for seed_examples in (False, True):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        loader = DataLoader(list(range(8)), shuffle=True, seed_examples=seed_examples)
        list(loader)
        states.append((torch.rand(()).item(), random.random(), np.random.rand()))
    assert states[0] == states[1]


def test_seeded_examples_of_a_stream_are_refused():
    with pytest.raises(ValueError, match="seed_examples=True needs a dataset with __getitem__"):
        DataLoader(Stateless(), seed_examples=True)


# ---- what is left behind -------------------------------------------------------------------------


def children():
    return {process.pid for process in multiprocessing.active_children()}


def test_a_loop_that_is_left_leaves_no_workers():
    """And its state can be asked for afterwards."""
    former = children()
    gc.disable()  # nothing waits for a collection
    try:
        loader = loader_of("in order", 2)
        for _ in loader:
            assert len(children() - former) == 2
            break
        assert children() == former
        again = loader_of("in order", 2)
        again.load_state_dict(loader.state_dict())
        assert [values(batch)[0] for batch in again] == list(range(4, 46, 4))
        del loader, again
        assert children() == former
    finally:
        gc.enable()


def test_workers_are_shut_down_by_the_name_that_torch_has():
    former = children()
    loader = loader_of("in order", 2, persistent_workers=True)
    next(iter(loader))
    loader._iterator._shutdown_workers()
    assert children() == former
    assert len(list(loader)) == 12
    assert loader.stats().batches == 1 + 12


def test_several_iterations_at_a_time():
    loader = loader_of("in order", 2)
    pairs = [(values(a), values(b)) for a, b in zip(iter(loader), iter(loader), strict=True)]
    assert all(a == b for a, b in pairs) and len(pairs) == 12


def test_batches_outlive_the_loader():
    loader = loader_of("in order", 2)
    batches = list(loader)
    del loader
    gc.collect()
    assert torch.equal(torch.cat([batch[0] for batch in batches]), torch.arange(46))


DROPPED = """
import gc
import torch
from fastiter.torch import DataLoader

for workers in (0, 1):
    loader = DataLoader(range(60), 4, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    iterator.itself, iterator = iterator, None
    draw, former = torch.default_generator.get_state, gc.get_threshold()
    gc.set_threshold(1)
    states = [draw(), draw()]
    gc.set_threshold(*former)
    gc.collect()
    print(loader.state_dict()["_rank"])
"""


def test_the_garbage_collector_may_drop_an_iteration_within_torchs_generator():
    """`get_state` holds the generator's lock while it makes a tensor, which may collect garbage."""
    command = [sys.executable, "-c", DROPPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("0\n0\n", 0), done.stderr
