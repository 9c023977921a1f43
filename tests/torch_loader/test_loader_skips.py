"""Examples that fail: ``on_error`` and ``skip_limit`` of `fastiter.torch.DataLoader`."""

from __future__ import annotations

import json
import os
import signal
import sys

import numpy as np
import pytest
from inside import pids_of

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter import MultiprocessIterator, Replacement, SkipLimitError  # noqa: E402
from fastiter.torch import DataLoader, default_collate  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

N = 40
BAD = {3, 4, 13, 20, 21, 22, 23}


class Broken(torch_data.Dataset):
    def __init__(self, bad=BAD, n=N):
        self.bad, self.n = bad, n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index in self.bad:
            raise KeyError(f"example {index}")
        return torch.full((2,), index), index


class Whole(Broken):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class ManyAlone(torch_data.Dataset):  # whose own __getitem__ only raises
    def __len__(self):
        return N

    def __getitems__(self, indices):
        return Whole().__getitems__(indices)


class Stateful(Broken):
    def state_dict(self):
        return {"x": 1}

    def load_state_dict(self, state):
        assert state == {"x": 1}


def as_lists(examples):
    assert all(len(example) == 2 for example in examples)
    return [index for _, index in examples]


def labels_of(batch):
    return batch if isinstance(batch, list) and type(batch[0]) is int else batch[1].tolist()


def expected(size, bad=BAD):
    batches = [[i for i in range(k, min(k + size, N)) if i not in bad] for k in range(0, N, size)]
    return [batch for batch in batches if batch]


DATASETS = {"items": Broken, "many": Whole, "many alone": ManyAlone, "with a state": Stateful}
COLLATES = {"default": None, "own": as_lists}
OPTIONS = {"skip_limit": None, "batch_size": 4}


def skip(index, error):
    assert isinstance(error, KeyError) and str(index) in str(error)
    return "skip"


def replace(index, error):
    return Replacement((torch.zeros(2, dtype=torch.int64), -index))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate", COLLATES)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("on_error", ["skip", skip])
def test_batches_come_without_the_examples_that_fail(dataset, collate, num_workers, on_error):
    loader = DataLoader(
        DATASETS[dataset](),
        num_workers=num_workers,
        collate_fn=COLLATES[collate],
        on_error=on_error,
        return_indices=True,
        **OPTIONS,
    )
    for epoch in range(2):
        found = []
        for batch, indices in loader:
            found.append(labels_of(batch))
            assert found[-1] == indices.tolist() == loader.indices
        assert found == expected(4)
        kept = [(one.index, one.epoch, one.times) for one in loader.skipped]
        assert kept == [(index, epoch, epoch + 1) for index in sorted(BAD)]
    assert loader.skipped[0].error == "KeyError: 'example 3'"
    stats = loader.stats()
    assert (stats.skipped, stats.examples) == (2 * len(BAD), 2 * (N - len(BAD)))


def test_the_other_interface_skips_the_same():
    loader = DataLoader(Broken(), 4, num_workers=1, on_error="skip", skip_limit=None)
    list(loader)
    other = MultiprocessIterator(
        Broken(), 4, repeat=False, shuffle=False, n_processes=1, on_error="skip", skip_limit=None
    )
    with other:
        batches = [[label for _, label in batch] for batch in other]
        assert batches == [labels_of(batch) for batch in loader]
        assert [s.index for s in other.skipped] == [s.index for s in loader.skipped]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("collate", COLLATES)
def test_replacements_work_with_any_collate(collate, num_workers):
    loader = DataLoader(
        Broken(), 4, num_workers=num_workers, collate_fn=COLLATES[collate], on_error=replace
    )
    found = [label for batch in loader for label in labels_of(batch)]
    assert found == [-i if i in BAD else i for i in range(N)]
    assert loader.skipped == [] and loader.stats().skipped == 0


@pytest.mark.parametrize("num_workers", [0, 2])
def test_without_batches_the_key_is_passed_over(num_workers):
    loader = DataLoader(
        Broken(), batch_size=None, num_workers=num_workers, on_error="skip", skip_limit=len(BAD)
    )
    assert [label for _, label in loader] == [i for i in range(N) if i not in BAD]


class Keyed(torch_data.Dataset):
    def __getitem__(self, key):
        if key == ("b", 1):
            raise OSError("no file")
        return ord(key[0]) + key[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_keys_that_are_no_integers_are_named_by_their_repr(num_workers):
    sampler = [("a", 0), ("b", 1), ("c", 2)]
    asked = []

    def on_error(key, error):
        asked.append(key)
        return "skip"

    loader = DataLoader(
        Keyed(), 2, sampler=sampler, num_workers=num_workers, on_error=on_error, skip_limit=1
    )
    assert [batch.tolist() for batch in loader] == [[97], [101]]
    assert asked == [("b", 1)]
    assert [one.index for one in loader.skipped] == ["('b', 1)"]
    other = DataLoader(Keyed(), 2, sampler=sampler, on_error="skip")
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert other.skipped == loader.skipped


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("limit", [2, 2 / N])
def test_the_limit_counts_an_epoch(limit, num_workers):
    loader = DataLoader(Broken(), 4, num_workers=num_workers, on_error="skip", skip_limit=limit)
    iterator = iter(loader)
    assert labels_of(next(iterator)) == [0, 1, 2]
    assert labels_of(next(iterator)) == [5, 6, 7]
    assert labels_of(next(iterator)) == [8, 9, 10, 11]
    with pytest.raises(SkipLimitError, match="The loader's `skipped` lists them") as caught:
        next(iterator)
    assert isinstance(caught.value.__cause__, KeyError)
    assert labels_of(next(iterator)) == [16, 17, 18, 19]
    fine = DataLoader(Broken({1}), 4, num_workers=num_workers, on_error="skip", skip_limit=1)
    assert sum(len(labels_of(batch)) for _ in range(3) for batch in fine) == 3 * (N - 1)


class Parts(list):
    batch_size = 4


@pytest.mark.parametrize("kind", [list, Parts])
def test_a_share_of_what_a_batch_sampler_gives_is_one_of_examples(kind):
    parts = kind([*range(first, first + 4)] for first in range(0, N, 4))
    loader = DataLoader(Broken(), batch_sampler=parts, on_error="skip", skip_limit=2 / N)
    iterator = iter(loader)
    assert sum(len(labels_of(next(iterator))) for _ in range(3)) == 10
    with pytest.raises(SkipLimitError, match=f", 2 of {N},"):
        next(iterator)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_callable_may_raise_the_error(num_workers):
    loader = DataLoader(
        Broken({5}), 4, num_workers=num_workers, on_error=lambda index, error: "raise"
    )
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(KeyError, match="example 5"):
        next(iterator)
    assert labels_of(next(iterator)) == [8, 9, 10, 11]
    plain = iter(DataLoader(Broken({5}), 4, num_workers=num_workers))
    next(plain)
    with pytest.raises(KeyError, match="example 5"):
        next(plain)


def broken_collate(examples):
    if examples[0][1] == 4:
        raise RuntimeError("no collate")
    return default_collate(examples)


def broken_init(number):
    raise RuntimeError("no init")


class BrokenSampler(torch_data.Sampler):
    def __iter__(self):
        yield 0
        raise RuntimeError("no sampler")

    def __len__(self):
        return N


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("on_error", ["skip", skip])
def test_other_errors_are_raised(num_workers, on_error):
    options = {"num_workers": num_workers, "on_error": on_error, "skip_limit": None}
    iterator = iter(DataLoader(Broken({5}), 4, collate_fn=broken_collate, **options))
    next(iterator)
    with pytest.raises(RuntimeError, match="no collate"):
        next(iterator)
    assert labels_of(next(iterator)) == [8, 9, 10, 11]
    with pytest.raises(RuntimeError, match="no sampler"):
        list(DataLoader(Broken(), 4, sampler=BrokenSampler(), **options))
    if num_workers:
        with pytest.raises(RuntimeError, match="no init"):
            list(DataLoader(Broken(), 4, worker_init_fn=broken_init, **options))


class Ends(Broken):
    def __getitem__(self, index):
        if index == 5:
            sys.exit(1)
        return super().__getitem__(index)


def test_an_exit_is_not_skipped():
    with pytest.raises(SystemExit):
        list(DataLoader(Ends(), 4, on_error="skip", skip_limit=None))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", ["items", "with a state"])
@pytest.mark.parametrize("at", range(6))
def test_a_state_holds_what_was_skipped(dataset, num_workers, at):
    def make(size):
        return DataLoader(
            DATASETS[dataset](), size, num_workers=num_workers, on_error="skip", skip_limit=None
        )

    loader = make(4)
    whole = make(4)
    list(whole)
    iterator = iter(loader)
    seen = []
    for _ in range(at):
        seen += labels_of(next(iterator))
    state = json.loads(json.dumps(loader.state_dict()))
    told = loader.skipped
    del iterator
    other = make(5)
    other.load_state_dict(state)
    assert other.skipped == told
    seen += [label for batch in other for label in labels_of(batch)]
    assert seen == [i for i in range(N) if i not in BAD]
    assert other.skipped == whole.skipped
    list(other)
    assert {(one.epoch, one.times) for one in other.skipped} == {(1, 2)}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_stay_in_step(num_workers):
    sampler = torch_data.DistributedSampler(range(N), num_replicas=2, rank=0, shuffle=False)
    options = {"sampler": sampler, "num_workers": num_workers, "skip_limit": None}
    loader = iter(DataLoader(Broken({0, 2, 4, 6}), 4, on_error="skip", **options))
    with pytest.raises(SkipLimitError, match="all examples of this rank's batch"):
        next(loader)
    assert labels_of(next(loader)) == [8, 10, 12, 14]


class Endless(torch_data.Sampler):
    def __iter__(self):
        return iter([0, 1, 2, 3])


def test_arguments_without_effect_are_refused():
    with pytest.raises(ValueError, match="skip_limit=3 limits nothing"):
        DataLoader(Broken(), 4, skip_limit=3)
    with pytest.raises(ValueError, match="on_error must be 'raise', 'skip'"):
        DataLoader(Broken(), 4, on_error="ignore")
    with pytest.raises(TypeError, match="on_error must be"):
        DataLoader(Broken(), 4, on_error=3)
    with pytest.raises(ValueError, match=r"skip_limit=0\.01 is a share"):
        DataLoader(Broken(), 4, sampler=Endless(), on_error="skip")
    assert len(list(DataLoader(Broken(), 4, sampler=Endless(), on_error="skip", skip_limit=1))) == 1

    class Stream(torch_data.IterableDataset):
        def __iter__(self):
            return iter([1])

    with pytest.raises(ValueError, match="StreamDataset"):
        DataLoader(Stream(), 4, on_error="skip")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_order_and_persistent_workers(num_workers):
    loader = DataLoader(
        Broken(),
        4,
        num_workers=num_workers,
        in_order=False,
        persistent_workers=num_workers > 0,
        on_error="skip",
        skip_limit=None,
    )
    for epoch in range(3):
        found = [label for batch in loader for label in labels_of(batch)]
        assert sorted(found) == [i for i in range(N) if i not in BAD]
        assert {(one.epoch, one.times) for one in loader.skipped} == {(epoch, epoch + 1)}


class Random(Broken):
    def __getitem__(self, index):
        super().__getitem__(index)
        return torch.rand(2), index


def test_skipping_changes_no_other_examples_numbers():
    torch.manual_seed(3)
    options = {"batch_size": 4, "shuffle": True, "seed_examples": True}
    whole = dict(zip(*_numbers(DataLoader(Random(set()), **options)), strict=True))
    for num_workers in (0, 2):
        torch.manual_seed(3)
        loader = DataLoader(
            Random(), num_workers=num_workers, on_error="skip", skip_limit=None, **options
        )
        indices, numbers = _numbers(loader)
        assert numbers == [whole[index] for index in indices]
        assert sorted(indices) == [i for i in range(N) if i not in BAD]


def _numbers(loader):
    batches = list(loader)
    indices = [index for _, labels in batches for index in labels.tolist()]
    return indices, [tuple(row.tolist()) for rows, _ in batches for row in rows]


class Kills(Broken):
    def __getitem__(self, key):
        if int(key) == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(int(key))


@pytest.mark.parametrize("collate", COLLATES)
@pytest.mark.parametrize("on_error", ["skip", lambda index, error: "skip"])
@pytest.mark.parametrize("kind", [int, np.int64, str], ids=["integers", "NumPy's", "texts"])
@pytest.mark.parametrize("has_size", [True, False])
def test_an_example_that_kills_each_worker_is_skipped(collate, on_error, kind, has_size):
    keys = [*map(kind, range(N))]
    batches = [keys[first : first + 4] for first in range(0, N, 4)]
    loader = DataLoader(
        Kills({2}),
        **({"batch_size": 4, "sampler": keys} if has_size else {"batch_sampler": batches}),
        num_workers=2,
        collate_fn=COLLATES[collate],
        on_error=on_error,
        skip_limit=2,
    )
    assert [labels_of(batch) for batch in loader] == expected(4, {2, 6})
    skipped = [2, 6] if kind is int else [repr(keys[2]), repr(keys[6])]
    assert [one.index for one in loader.skipped] == skipped
    assert "WorkerDiedError" in loader.skipped[1].error


class KillsInParts(Kills):
    def __getitems__(self, part):
        return [self[key] for key in range(N)[part.start : part.stop]]


@pytest.mark.parametrize("kind", [slice, range])
def test_a_batch_that_is_no_list_and_kills_each_worker_is_an_error(kind):
    parts = [kind(first, first + 4) for first in (0, 4, 8)]
    loader = DataLoader(
        KillsInParts(()), batch_sampler=parts, num_workers=2, on_error="skip", skip_limit=None
    )
    iterator = iter(loader)
    assert labels_of(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=rf"SIGKILL: the batch of \[?{kind.__name__}\(4, 8"):
        next(iterator)
    assert labels_of(next(iterator)) == [8, 9, 10, 11] and not loader.skipped


def test_a_worker_that_is_killed_skips_nothing():
    loader = DataLoader(Broken(), 4, num_workers=2, on_error="skip", skip_limit=None)
    iterator = iter(loader)
    found = [labels_of(next(iterator))]
    os.kill(pids_of(iterator)[0], signal.SIGKILL)
    found += [labels_of(batch) for batch in iterator]
    assert found == expected(4)
    assert [one.index for one in loader.skipped] == sorted(BAD)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [ValueError, StopIteration])
def test_what_a_decision_raises_costs_its_batch_alone(workers, error):
    def decide(key, exception):
        raise error

    loader = DataLoader(Broken({4}), 4, num_workers=workers, collate_fn=as_lists, on_error=decide)
    batches = iter(loader)
    assert len(next(batches)) == 4
    with pytest.raises(RuntimeError if error is StopIteration else error):
        next(batches)
    assert [len(batch) for batch in batches] == [4] * (len(loader) - 2)
