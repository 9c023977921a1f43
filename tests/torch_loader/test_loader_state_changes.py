"""A state that a loader with other arguments loads: the rest of the epoch stays the same, or each
example of it comes once, or an error says why not. torch's own loader gives the orders.
"""

from __future__ import annotations

import itertools

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
