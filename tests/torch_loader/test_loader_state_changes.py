"""A state that a loader with other arguments loads: the rest of the epoch stays the same, or each
example of it comes once, or an error says why not. torch's own loader gives the orders.
"""

from __future__ import annotations

import collections
import itertools
import warnings

import numpy as np
import pytest
from support.transports import by_json

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:worker processes are forked:RuntimeWarning",
    "ignore:This DataLoader will create:UserWarning",
)

N, GROWN, SIZE = 46, 53, 4


def seeded(seed=3):
    return torch.Generator().manual_seed(seed)


def values(batch):
    return [int(value) for value in torch.as_tensor(batch).reshape(-1)]


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


class Own(torch_data.Sampler):
    """A user's, without a state."""

    def __init__(self, n=N):
        self.n = n

    def __iter__(self):
        return iter([(i * 5) % self.n for i in range(self.n)])

    def __len__(self):
        return self.n


class Other(Own):
    """Another class."""


class Ranked(Own):
    def __init__(self, n=N, num_replicas=2):
        super().__init__(n)
        self.num_replicas = num_replicas


class Counting(Own):
    """A user's with a state; of any number of ranks."""

    def __init__(self, n=N, num_replicas=1):
        super().__init__(n)
        self.i, self.num_replicas = 0, num_replicas

    def __iter__(self):
        while self.i < self.n:
            self.i += 1
            yield (self.i * 5) % self.n
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


class OtherCounting(Counting):
    """Another class."""


class Drawing(Own):
    """Draws its order when it is asked for an iterator."""

    generator = None

    def __iter__(self):
        return iter(torch.randperm(self.n, generator=self.generator).tolist())


class CountingEpochs(Counting):
    """The state at the end of an epoch is that of the next one's start."""

    epoch = 0

    def __iter__(self):
        for key in super().__iter__():
            yield (key + self.epoch) % self.n
        self.epoch += 1

    def state_dict(self):
        return {"i": self.i, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.i, self.epoch = state.pop("i"), state.pop("epoch")  # the dict is the sampler's now


class Pairs(Own):
    """A batch sampler of the user's."""

    def __init__(self, n=N, size=2, **given):
        super().__init__(n)
        self.batch_size = size
        self.__dict__.update(given)

    def __iter__(self):
        size = self.batch_size
        return iter([list(range(i, min(i + size, self.n))) for i in range(0, self.n, size)])

    def __len__(self):
        return -(-self.n // self.batch_size)


class OtherPairs(Pairs):
    """Another class."""


class CountingPairs(Pairs):
    """With a state: the number of examples."""

    i = 0

    def __iter__(self):
        while self.i < self.n:
            first, self.i = self.i, min(self.n, self.i + self.batch_size)
            yield list(range(first, self.i))
        self.i = 0

    state_dict, load_state_dict = Counting.state_dict, Counting.load_state_dict


class OtherCountingPairs(CountingPairs):
    """Another class."""


class OfRanks(torch_data.DistributedSampler):
    """Not torch's class: what it does with the ranks is not known."""


class Map(torch_data.Dataset):
    """A map-style dataset with a state."""

    def __init__(self, n=N):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index

    def state_dict(self):
        return {"n": 1}

    def load_state_dict(self, state):
        assert state == {"n": 1}


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, N, step))


class Resumable(Stream):
    def __init__(self):
        self.at = 0

    def __iter__(self):
        numbers = list(super().__iter__())
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def sampled(make, n=N):
    """Arguments of a loader whose sampler is made anew."""
    return lambda **other: {"dataset": range(n), "sampler": make(), **other}


def of_ranks(kind=torch_data.DistributedSampler, n=2 * N, **given):
    arguments = {"num_replicas": 2, "rank": 1, "seed": 4, **given}
    return lambda **other: {"dataset": range(n), "sampler": kind(range(n), **arguments), **other}


def paired(make, n=N):
    return lambda **other: {"dataset": range(n), "batch_sampler": make(), **other}


def streaming(make):
    return lambda **other: {"dataset": make(), "batch_size": SIZE, **other}


def random_of(n=N, **given):
    return sampled(lambda: torch_data.RandomSampler(range(n), generator=seeded(), **given), n)


def weighted(last=1.0, n=N, **given):
    weights = [1.0] * (n - 1) + [last]
    return sampled(lambda: torch_data.WeightedRandomSampler(weights, 40, **given), n)


def subset(first=0, n=N):
    return sampled(lambda: torch_data.SubsetRandomSampler([first, *range(1, n)]), n)


def plain(n=N, **given):
    return lambda **other: {"dataset": range(n), **given, **other}


def stateful_map(n=N):
    return lambda **other: {"dataset": Map(n), **other}


#: Each row of the table: the loader that has saved, and by change the loader that loads, with what
#: comes: 'same', 'once', 'error', or 'grown': an error unless `strict=False`.
TABLE = {
    "in order": (plain(), {"n": (plain(GROWN), "grown"), "fewer": (plain(40), "error"),
        "sampler": (plain(shuffle=True), "error")}),
    "shuffled": (plain(shuffle=True), {"n": (plain(GROWN, shuffle=True), "grown"),
        "fewer": (plain(40, shuffle=True), "error"), "sampler": (plain(), "error"),
        "generator": (lambda **other: plain(shuffle=True, generator=seeded())(**other), "error"),
        "own generator": (random_of(), "error")}),
    "seeded": (lambda **other: plain(shuffle=True, generator=seeded())(**other), {
        "n": (lambda **other: plain(GROWN, shuffle=True, generator=seeded())(**other), "grown"),
        "generator": (plain(shuffle=True), "error")}),
    "own generator": (random_of(), {"n": (random_of(GROWN), "grown"),
        "num_samples": (random_of(num_samples=40), "error"),
        "replacement": (random_of(replacement=True), "error")}),
    "some": (random_of(num_samples=40), {"n": (random_of(GROWN, num_samples=40), "grown"),
        "num_samples": (random_of(num_samples=45), "error")}),
    "replacement": (random_of(replacement=True, num_samples=40), {
        "n": (random_of(GROWN, replacement=True, num_samples=40), "error"),
        "num_samples": (random_of(replacement=True, num_samples=45), "error"),
        "replacement": (random_of(num_samples=40), "error")}),
    "weighted": (weighted(), {"n": (weighted(n=GROWN), "error"),
        "weights": (weighted(2.0), "error"),
        "replacement": (weighted(replacement=False), "error")}),
    "subset": (subset(), {"n": (subset(n=GROWN), "error"), "indices": (subset(45), "error")}),
    "passed": (paired(lambda: torch_data.BatchSampler(random_of()()["sampler"], SIZE, False)),
        {"sampler": (paired(lambda: torch_data.BatchSampler(range(N), SIZE, False)), "error")}),
    "of a rank": (of_ranks(), {"n": (of_ranks(n=2 * GROWN), "error"),
        "seed": (of_ranks(seed=5), "error"), "shuffle": (of_ranks(shuffle=False), "error"),
        "sampler's drop_last": (of_ranks(drop_last=True), "error"),
        "class": (of_ranks(OfRanks), "error")}),
    "subclass": (of_ranks(OfRanks), {"n": (of_ranks(OfRanks, 2 * GROWN), "error"),
        "R": (of_ranks(OfRanks, num_replicas=4), "error"),
        "seed": (of_ranks(OfRanks, seed=5), "error"),
        "sampler's drop_last": (of_ranks(OfRanks, drop_last=True), "error"),
        "class": (of_ranks(), "error")}),
    "own": (sampled(Own), {"n": (sampled(Own, GROWN), "error"), "class": (sampled(Other), "error"),
        "length": (sampled(lambda: Own(40)), "error")}),
    "own of ranks": (sampled(Ranked), {"R": (sampled(lambda: Ranked(num_replicas=3)), "error")}),
    "stateful": (sampled(Counting), {"R": (sampled(lambda: Counting(num_replicas=2)), "same"),
        "n": (sampled(Counting, GROWN), "same"), "class": (sampled(OtherCounting), "error")}),
    "epochs": (sampled(CountingEpochs), {}),
    "drawing": (sampled(Drawing), {}),
    "batches": (paired(Pairs), {"b": (paired(lambda: Pairs(size=4)), "error"),
        "n": (paired(Pairs, GROWN), "error"), "class": (paired(OtherPairs), "error"),
        "length": (paired(lambda: Pairs(40)), "error")}),
    "batches of ranks": (paired(lambda: Pairs(num_replicas=2)),
        {"R": (paired(lambda: Pairs(num_replicas=3)), "error")}),
    "list": (paired(lambda: [[0, 1], [3, 2], [4], [6, 5]]), {
        "class": (paired(lambda: ([0, 1], [3, 2], [4], [6, 5])), "error"),
        "length": (paired(lambda: [[0, 1], [3, 2], [4]]), "error")}),
    "stateful batches": (paired(CountingPairs), {
        "b": (paired(lambda: CountingPairs(size=4)), "once"),
        "R": (paired(lambda: CountingPairs(num_replicas=3)), "same"),
        "n": (paired(CountingPairs, GROWN), "same"),
        "class": (paired(OtherCountingPairs), "error")}),
    "stateful map": (stateful_map(), {"n": (stateful_map(GROWN), "error"),
        "W": (stateful_map(), "error"), "b": (stateful_map(), "same")}),
    "stream": (streaming(Stream), {"W": (streaming(Stream), "error"),
        "b": (streaming(Stream), "once"), "map": (plain(), "error")}),
    "resumable": (streaming(Resumable), {"W": (streaming(Resumable), "error"),
        "b": (streaming(Resumable), "once"), "map": (plain(), "error")}),
    "map to stream": (plain(), {"stream": (streaming(Stream), "error")}),
}  # fmt: skip

CELLS = [(row, change) for row, (_, changes) in TABLE.items() for change in changes]
STREAMS = ("stream", "resumable")
CUTS = ("unbegun", "begun", 1, 3, "last", "after")


def loader_of(make, **other):
    torch.manual_seed(2)
    arguments = make(**other)
    if "batch_sampler" not in arguments:
        arguments = {"batch_size": SIZE, **arguments}
    return DataLoader(**arguments)


def cut(loader, at, n_batches):
    """The keys up to a cut, and the state there."""
    if at == "unbegun":
        return [], loader.state_dict()
    if at == "after":
        return flat(map(values, loader)), loader.state_dict()
    iterator = iter(loader)
    count = {"begun": 0, "last": n_batches}.get(at, at)
    found = [values(batch) for batch in itertools.islice(iterator, count)]
    return flat(found), loader.state_dict()


def number_of_batches(make, **other):
    arguments = make(**other)
    arguments |= {} if "batch_sampler" in arguments else {"batch_size": SIZE} | arguments
    return len(list(torch_data.DataLoader(**arguments)))


def loaded(make, state, strict=True, **other):
    """A loader that has loaded a state, saved at once, and loaded that."""
    loader = loader_of(make, **other)
    loader.load_state_dict(by_json(state), strict=strict)
    again = loader_of(make, **other)
    again.load_state_dict(by_json(loader.state_dict()))
    return again


@pytest.mark.parametrize("row", [row for row in TABLE if row not in (*STREAMS, "stateful map")])
@pytest.mark.parametrize("at", CUTS)
def test_other_workers_and_batch_sizes(row, at):
    """The same rows in the same order, whatever cut them before, also into a third loader."""
    make, _ = TABLE[row]
    n_batches = number_of_batches(make)
    has_size = "batch_sampler" not in make()
    whole, following = (flat(map(values, loader)) for loader in [loader_of(make)] * 2)
    sizes = [{"batch_size": size} for size in (7, 3, None)] if has_size else [{}]
    for workers, others in ((2, (0, 1)), (0, (2,))):
        first, state = cut(loader_of(make, num_workers=workers), at, n_batches)
        for number, size in zip(others, sizes * 2, strict=False):
            loader = loaded(make, state, num_workers=number, **size)
            if at not in ("last", "after"):
                iterator = iter(loader)
                more = values(next(iterator))
                third = loaded(make, loader.state_dict(), **sizes[-1])
                assert first + more + flat(map(values, third)) == whole
                assert first + more + flat(map(values, iterator)) == whole
            elif at == "last":
                assert flat(map(values, loader)) == []
            assert flat(map(values, loader)) == following


@pytest.mark.parametrize(("row", "change"), CELLS)
@pytest.mark.parametrize("at", CUTS)
def test_a_cell(row, change, at):
    make, changes = TABLE[row]
    other, result = changes[change]
    given = {"W": {"num_workers": 3}, "b": {"batch_size": 5}}.get(change, {})
    given = {} if "batch_sampler" in other() else given
    workers = 2 if row in (*STREAMS, "stateful map") else 0
    before = {"num_workers": workers}
    given = {**before, **given}
    n_batches = 12 if row in STREAMS else number_of_batches(make)
    first, state = cut(loader_of(make, **before), at, n_batches)
    if change == "W" and (at == "unbegun" or (at == "begun" and row == "stream")):
        result = "once"
    loader = loader_of(other, **given)
    former = loader.state_dict()
    if result in ("error", "grown"):
        with pytest.raises(ValueError, match=r"state_dict (was saved with|holds a state)") as told:
            loader.load_state_dict(by_json(state))
        assert isinstance(told.value, AssertionError) == (change == "W")
        assert loader.state_dict() == former
        if result == "error":
            with pytest.raises(ValueError, match=r"state_dict (was saved with|holds a state)"):
                loader.load_state_dict(state, strict=False)
            return
        loader = loaded(other, state, False, **given)
        rest = flat(map(values, loader))
        n_samples = len(loader.sampler)
        assert len(flat(map(values, loader))) == n_samples  # the next epoch has all
        if at in ("unbegun", "after"):
            assert len(rest) == n_samples
        elif row == "in order":
            assert first + rest == list(range(GROWN))
        else:
            assert first + rest == flat(map(values, loader_of(make)))
        return
    rest = flat(map(values, loaded(other, state, **given)))
    if at == "after":
        first = []
    if row == "stateful":
        n = N if at == "last" else len(other()["sampler"])
        assert first + rest == [(i * 5) % n for i in range(1, n + 1)]
    elif result == "same":
        assert first + rest == flat(map(values, loader_of(make)))
    else:
        assert sorted(first + rest) == list(range(N))


# ---- changes that later epochs alone depend on ---------------------------------------------------

PERSISTENT = {
    "shuffled": (plain(shuffle=True), True),
    "seeded": (lambda **other: plain(shuffle=True, generator=seeded())(**other), True),
    "in order": (plain(), False),
    "own generator": (random_of(), False),
    "of a rank": (of_ranks(), False),
}


@pytest.mark.parametrize("row", PERSISTENT)
@pytest.mark.parametrize("before", [False, True])
def test_other_persistent_workers(row, before):
    make, is_refused = PERSISTENT[row]
    whole = flat(map(values, loader_of(make)))
    first, state = cut(loader_of(make, num_workers=1, persistent_workers=before), 3, 0)
    for arguments in ({"num_workers": 1, "persistent_workers": not before}, {"num_workers": 0}):
        loader = loader_of(make, **arguments)
        if is_refused and (before or arguments["num_workers"]):
            with pytest.raises(ValueError, match=f"pass persistent_workers={before}, or strict="):
                loader.load_state_dict(state)
            loader.load_state_dict(state, strict=False)
        else:
            loader.load_state_dict(state)
        assert first + flat(map(values, loader)) == whole


@pytest.mark.parametrize("row", ["in order", "shuffled", "seeded", "own generator", "some"])
@pytest.mark.parametrize("at", ["begun", 1, 3, "last"])
def test_a_dataset_that_grows_twice(row, at):
    """States of the same epoch load as they are, and into a still longer dataset."""
    make, (longer, _) = TABLE[row][0], TABLE[row][1]["n"]
    n_longest = GROWN + 6
    n_batches = number_of_batches(make)
    first, state = cut(loader_of(make), at, n_batches)
    whole = list(range(n_longest)) if row == "in order" else flat(map(values, loader_of(make)))
    loader = loader_of(longer)
    loader.load_state_dict(state, strict=False)
    iterator = iter(loader)
    first += flat(map(values, itertools.islice(iterator, 1)))
    state = by_json(loader.state_dict())
    if len(first) == len(whole):
        return
    rest = flat(map(values, iterator))
    again = loader_of(longer, batch_size=7, num_workers=2)
    again.load_state_dict(state)
    assert flat(map(values, again)) == rest
    longest = {
        "in order": plain(n_longest),
        "shuffled": plain(n_longest, shuffle=True),
        "seeded": lambda **other: plain(n_longest, shuffle=True, generator=seeded())(**other),
        "own generator": random_of(n_longest),
        "some": random_of(n_longest, num_samples=40),
    }[row]
    again = loader_of(longest)
    with pytest.raises(ValueError, match="or strict=False: later epochs then have all"):
        again.load_state_dict(state)
    again.load_state_dict(state, strict=False)
    assert first + flat(map(values, again)) == whole
    assert len(flat(map(values, again))) == len(again.sampler)


def test_a_dataset_that_grows_after_the_state_was_loaded():
    dataset = list(range(N))
    _, state = cut(DataLoader(dataset, SIZE), 3, 0)
    for strict in (True, False):
        loader = DataLoader(dataset, SIZE)
        loader.load_state_dict(state, strict)
        dataset.append(len(dataset))
        if strict:
            with pytest.raises(ValueError, match=r"len\(dataset\) = 46, which is now 47"):
                iter(loader)
        else:
            assert flat(map(values, loader)) == list(range(12, len(dataset)))
        dataset.pop()


# ---- a refusal changes nothing -------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_refuses_a_state_stays_as_it_is(workers):
    """Its iteration, the state that it has loaded, and random numbers."""
    _, wrong = cut(loader_of(plain(40, shuffle=True)), 3, 0)
    arguments = {"num_workers": workers, "persistent_workers": bool(workers)}
    loader = loader_of(plain(shuffle=True), **arguments)
    whole = flat(map(values, loader_of(plain(shuffle=True), **arguments)))
    torch.manual_seed(2)
    iterator = iter(loader)
    first = values(next(iterator))
    former, drawn = loader.state_dict(), torch.get_rng_state()
    for state in (wrong, {**former, "_skipped": 3}, {**former, "_global_state": ["no"]}):
        with pytest.raises(ValueError, match=r"saved with|'skipped'|no state of a generator"):
            loader.load_state_dict(state)
        assert loader.state_dict() == former and torch.equal(torch.get_rng_state(), drawn)
    assert first + flat(map(values, iterator)) == whole
    loader.load_state_dict(former)
    with pytest.raises(ValueError, match="was saved with"):
        loader.load_state_dict(wrong)
    assert loader.state_dict() == former
    assert first + flat(map(values, loader)) == whole


# ---- states that a client has changed, or that were saved before ---------------------------------


@pytest.mark.parametrize("row", ["in order", "shuffled", "own", "batches", "of a rank", "stream"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("names", [("_sampler_iter_yielded", "_num_yielded"), ("_num_yielded",)])
def test_a_client_that_is_one_batch_ahead(row, workers, names):
    """It takes the batches that it has not used from the counts, as Accelerate does."""
    make = TABLE[row][0]
    n_batches = 12 if row == "stream" else number_of_batches(make)
    for count in (1, 4, n_batches):
        loader = loader_of(make, num_workers=workers)
        batches = [values(batch) for batch in itertools.islice(loader, count)]
        state = by_json(loader.state_dict())
        snapshot = state.get("_snapshot", state)
        main = snapshot.get("_main_snapshot", snapshot)
        if "_sampler_iter_yielded" in names:
            main["_sampler_iter_yielded"] -= 1
        snapshot["_snapshot_step" if workers else "_num_yielded"] -= 1
        for size in (SIZE, 5):
            given = {} if "batch_sampler" in make() or row == "stream" else {"batch_size": size}
            rest = flat(map(values, loaded(make, state, num_workers=workers, **given)))
            whole = flat(map(values, loader_of(make, num_workers=workers)))
            assert flat(batches[:-1]) + rest == whole


@pytest.mark.parametrize("row", ["stateful", "stateful map", "resumable"])
def test_a_client_that_is_one_batch_ahead_of_another_state(row):
    """The state of the dataset or the sampler would go on behind the batch."""
    make = TABLE[row][0]
    _, state = cut(loader_of(make), 3, 0)
    with pytest.raises(ValueError, match=r"counts 2 batches, but 3.* has a state"):
        loader_of(make).load_state_dict({**state, "_sampler_iter_yielded": 2, "_num_yielded": 2})


def test_a_count_below_the_last_change_of_cuts():
    first, state = cut(loader_of(plain()), 3, 0)
    loader = loader_of(plain(), batch_size=5)
    loader.load_state_dict(state)
    iterator = iter(loader)
    first += flat(values(next(iterator)) for _ in range(2))
    state = by_json(loader.state_dict())
    for n_more, n_keys in ((-1, 17), (-2, 12), (1, 27), (-3, None)):
        changed = {**state, "_sampler_iter_yielded": state["_sampler_iter_yielded"] + n_more}
        again = loader_of(plain())
        if n_keys is None:
            with pytest.raises(
                ValueError, match=r"counts 2 batches.* cut otherwise before batch 3"
            ):
                again.load_state_dict(changed)
        else:
            again.load_state_dict(changed)
            assert flat(map(values, again)) == list(range(N))[n_keys:]


SOURCES = {
    "dates": lambda last: torch_data.SubsetRandomSampler(np.array([1, 2, last], "M8[D]")),
    "keys of any length": lambda last: torch_data.SubsetRandomSampler([(1,), (1, 2), (last,)]),
    "weights with a gradient": lambda last: torch_data.WeightedRandomSampler(
        torch.tensor([1.0, 2.0, last], requires_grad=True), 6
    ),
}


class Named(dict):
    """Has an example for each key."""

    def __missing__(self, key):
        return str(key)


@pytest.mark.parametrize("kind", SOURCES)
def test_what_a_sampler_draws_from_is_compared(kind):
    def made(cls, last=3):
        torch.manual_seed(5)
        return cls(Named(), sampler=SOURCES[kind](last))

    expected = list(made(torch_data.DataLoader))
    saved, loader = made(DataLoader), made(DataLoader)
    first = next(iter(saved))
    loader.load_state_dict(by_json(saved.state_dict()))
    assert [first, *loader] == expected
    with pytest.raises(ValueError, match=r"saved with sampler\.(indices|weights)"):
        made(DataLoader, 4).load_state_dict(saved.state_dict())


def without_facts(state):
    del state["_facts"]
    return state


def of_some_facts(state):
    names = ("sampler", "len(dataset)", "len(sampler)", "sampler.replacement")
    state["_facts"] = {name: fact for name, fact in state["_facts"].items() if name in names}
    return state


@pytest.mark.parametrize("saved", [without_facts, of_some_facts])
@pytest.mark.parametrize("row", ["in order", "shuffled", "stream", "resumable", "batches"])
@pytest.mark.parametrize("workers", [0, 2])
def test_states_that_cannot_be_compared(saved, row, workers):
    make = TABLE[row][0]
    whole = flat(map(values, loader_of(make, num_workers=workers)))
    first, state = cut(loader_of(make, num_workers=workers), 4, 0)
    for strict in (True, False):
        loader = loader_of(make, num_workers=workers)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            loader.load_state_dict(saved(by_json(state)), strict=strict)
        texts = [str(one.message) for one in told if one.category is UserWarning]
        assert ["cannot be compared" in text for text in texts] == [True] * strict
        loader.load_state_dict(loader.state_dict(), strict=False)
        assert first + flat(map(values, loader)) == whole


def test_a_state_of_torchdata():
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    for workers in (0, 1):
        loader = torchdata.StatefulDataLoader(range(N), SIZE, num_workers=workers)
        next(iter(loader))
        with pytest.raises(ValueError, match="not the state of a DataLoader of this version"):
            loader_of(plain()).load_state_dict(loader.state_dict(), strict=False)


# ---- streams, ranks, samplers with a state -------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0)])
def test_no_worker_of_a_stream_is_as_one(before, after):
    for at in CUTS:
        for size in (SIZE, 5, None):
            first, state = cut(loader_of(streaming(Stream), num_workers=before), at, 12)
            other = {"num_workers": after, "batch_size": size}
            rest = flat(map(values, loaded(streaming(Stream), state, **other)))
            assert ([] if at == "after" else first) + rest == list(range(N))


@pytest.mark.parametrize("size", [SIZE, 5, None])
@pytest.mark.parametrize("workers", [0, 2])
def test_other_ranks_with_other_workers_and_batches(size, workers):
    make = lambda rank, n: of_ranks(num_replicas=n, rank=rank)  # noqa: E731
    order = list(torch_data.DistributedSampler(range(2 * N), 1, 0, seed=4))
    _, state = cut(loader_of(make(1, 2), num_workers=1), 3, 0)
    for rank in range(3):
        other = {"batch_size": size, "num_workers": workers}
        loader = loaded(make(rank, 3), state, **other)
        expected = order[2 * 12 :][rank::3]
        assert flat(map(values, loader))[: len(expected)] == expected
        assert len(loader) == len(
            torch_data.DataLoader(**{"batch_size": 4, **make(rank, 3)(**other)})
        )


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("is_passed", [False, True])
def test_the_epoch_of_a_sampler_comes_with_the_state(n, is_passed):
    """Also of one that a batch sampler draws from."""

    def make(n):
        sampler = of_ranks(num_replicas=n)()["sampler"]
        if is_passed:
            batches = torch_data.BatchSampler(sampler, SIZE, False)
            return DataLoader(range(2 * N), batch_sampler=batches), sampler
        return DataLoader(range(2 * N), SIZE, sampler=sampler), sampler

    loader, sampler = make(2)
    sampler.set_epoch(5)
    _, state = cut(loader, 3, 0)
    of_all = torch_data.DistributedSampler(range(2 * N), 1, 0, seed=4)
    of_all.set_epoch(5)
    expected = [*of_all][2 * 12 :][1::n]
    loader, _ = make(n)
    loader.load_state_dict(state)
    assert flat(map(values, loader))[: len(expected)] == expected


def test_other_ranks_where_batches_are_missing():
    loader = loader_of(of_ranks(), num_workers=1, in_order=False)
    next(iter(loader))
    state = by_json(loader.state_dict())
    state["_snapshot"]["_main_snapshot"]["_not_delivered"] = [[0, 0, 4]]
    state["_snapshot"]["_main_snapshot"].update(
        _sampler_iter_yielded=0, _keys_yielded=0, _delivered_up_to=[2, 8], _counted=[1, 0]
    )
    with pytest.raises(ValueError, match="by in_order=False, batches of one rank are missing"):
        loader_of(of_ranks(num_replicas=3)).load_state_dict(state)
    order = flat(map(values, loader_of(of_ranks())))
    loader = loaded(of_ranks(), state, batch_size=5)
    assert flat(map(values, loader)) == order[:4] + order[8:]


@pytest.mark.parametrize("every", [1, 3, 7])
def test_the_state_of_a_sampler_is_that_of_each_batch(every):
    """Whatever the interval of the dataset's states is."""
    for count in (1, 4, 5):
        arguments = {"num_workers": 2, "snapshot_every_n_steps": every}
        first, state = cut(loader_of(sampled(Counting), **arguments), count, 0)
        loader = loaded(sampled(Counting), state, batch_size=5)
        assert first + flat(map(values, loader)) == [(i * 5) % N for i in range(1, N + 1)]


@pytest.mark.parametrize("sizes", [*itertools.permutations((4, None, 3))])
@pytest.mark.parametrize(
    "workers", [(0, 0, 0), (2, 0, 1), (1, 1, 1)], ids=["none", "changed", "persistent"]
)
@pytest.mark.parametrize("own", [False, True])
def test_a_sampler_that_draws_with_its_iterator(sizes, workers, own):
    """Whether torch makes the iterator before the base seed, as without batches, or after it, and
    with workers a second time."""

    def loader_of(size, num_workers):
        torch.manual_seed(2)
        arguments = {"sampler": Drawing(), "generator": seeded() if own else None}
        arguments["sampler"].generator = arguments["generator"]
        arguments |= {"num_workers": num_workers, "persistent_workers": all(workers)}
        return DataLoader(range(N), size, **arguments)

    whole = loader_of(sizes[0], workers[0])
    epochs = [flat(map(values, whole)) for _ in range(3)]
    for n_before in (0, 1):
        loader, found, state = loader_of(sizes[0], workers[0]), [], None
        for _ in range(n_before):
            collections.deque(loader, 0)
        for size, number in zip(sizes, workers, strict=True):
            if state is not None:
                loader = loader_of(size, number)
                loader.load_state_dict(state)
            iterator = iter(loader)
            found += values(next(iterator))
            state = by_json(loader.state_dict())
        assert found + flat(map(values, iterator)) == epochs[n_before]


class DrawingEach(Own):
    """Draws each key when it is asked for it."""

    def __iter__(self):
        for _ in range(self.n):
            yield int(torch.randint(0, self.n, ()))


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 2)], ids=str)
@pytest.mark.parametrize("n_before", [0, 1, 3, N // 4])
def test_a_sampler_that_draws_key_by_key(workers, n_before):
    """Workers are ahead: keys that were drawn for them are those that come."""

    def loader_of(num_workers, seed):
        torch.manual_seed(seed)
        return DataLoader(range(N), 4, sampler=DrawingEach(), num_workers=num_workers)

    whole = loader_of(workers[0], 2)
    epochs = [flat(map(values, whole)) for _ in range(2)]
    batches = iter(loader := loader_of(workers[0], 2))
    found = flat(values(next(batches)) for _ in range(n_before))
    state = by_json(loader.state_dict())
    resumed = loader_of(workers[1], 5)
    resumed.load_state_dict(state)
    assert [found + flat(map(values, resumed)), flat(map(values, resumed))] == epochs


class DrawingMap(torch_data.Dataset):
    """Random numbers, of several examples by one call."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, float(torch.rand(()))

    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)])
def test_seeded_examples_of_several_by_one_call(before, after):
    def make(size, workers):
        torch.manual_seed(5)
        return DataLoader(
            DrawingMap(),
            size,
            shuffle=True,
            num_workers=workers,
            seed_examples=True,
            collate_fn=list,
        )

    whole = flat(make(4, 0))
    assert len({number for _, number in whole}) == N
    loader = make(4, before)
    first = flat(itertools.islice(loader, 3))
    again = make(7, after)
    again.load_state_dict(by_json(loader.state_dict()))
    assert first + flat(again) == whole
