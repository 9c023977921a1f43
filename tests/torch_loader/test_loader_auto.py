"""``num_workers='auto'``, and others with which workers share the rows of a batch."""

from __future__ import annotations

import copy
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import IterableDataset, TensorDataset, get_worker_info  # noqa: E402

from fastiter import ShuffleOrderSampler  # noqa: E402
from fastiter.datasets import StreamDataset  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")


class Waiting:
    """Examples that wait for a disk or a network, which more workers do at a time."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        time.sleep(0.01)
        return index, get_worker_info().id


class Texts:
    """Keys that are no numbers."""

    def __getitem__(self, key):
        return f"{key}!"


class Stateful(TensorDataset):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def test_workers_are_added_while_a_loop_waits_for_them():
    loader = DataLoader(Waiting(), 4, num_workers="auto")
    first = loader.num_workers
    iterator = iter(loader)
    end, number, ids = time.monotonic() + 60, 0, set()
    while loader.num_workers < 2 * first or max(ids) < first:
        rows, workers = next(iterator)
        assert rows.tolist() == list(range(4 * number, 4 * number + 4))
        ids.update(workers.tolist())
        number += 1
        assert time.monotonic() < end, loader.stats()
    changes = loader.stats().changes
    assert changes[0].startswith(f"num_workers from {first} to ")
    assert loader.stats().n_workers == loader.num_workers
    state = loader.state_dict()
    del iterator
    # The next loop begins with as many, and any other loader goes on.
    more = loader.num_workers
    other = DataLoader(Waiting(), 4, num_workers=1)
    other.load_state_dict(state)
    assert next(iter(other))[0].tolist() == list(range(4 * number, 4 * number + 4))
    iterator = iter(loader)
    next(iterator)
    assert loader.stats().n_workers == more == loader.num_workers


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_those_of_any_number(persistent):
    data = TensorDataset(torch.arange(53))
    loaders = [
        DataLoader(
            data, 4, sampler=ShuffleOrderSampler(3), num_workers=workers,
            persistent_workers=persistent and workers != 0,
        )
        for workers in ("auto", 0)
    ]  # fmt: skip
    for _ in range(2):
        ours, others = ([rows.tolist() for (rows,) in loader] for loader in loaders)
        assert ours == others
    copied = copy.copy(loaders[0])
    copied.set_epoch(0)
    assert len([*copied]) == 14


@pytest.mark.parametrize(
    "arguments", [{"num_workers": "auto"}, {"hedge": 0.1}, {"dataset_timeout": 60.0}]
)
def test_keys_that_are_no_numbers(arguments):
    keys = [f"{number}" for number in range(40)]
    loader = DataLoader(Texts(), 3, sampler=keys, **{"num_workers": 2, **arguments})
    assert [text for batch in loader for text in batch] == [f"{key}!" for key in keys]


def test_what_cannot_be_adjusted():
    data = TensorDataset(torch.arange(8))
    with pytest.raises(ValueError, match="num_workers must be a number or 'auto', not 'many'"):
        DataLoader(data, num_workers="many")
    for dataset in (Stateful(torch.arange(8)), Endless(), StreamDataset(["a"], list)):
        with pytest.raises(ValueError, match="num_workers='auto'"):
            DataLoader(dataset, num_workers="auto")
