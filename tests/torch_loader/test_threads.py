"""Threads share a loader, or ask it while another iterates: at any step of each other, as it is
where there is no GIL."""

from __future__ import annotations

import itertools
import threading

import pytest
from steps import each_step

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter import MultithreadIterator, ShuffleOrderSampler  # noqa: E402
from fastiter._engine.processes import ProcessExecutor  # noqa: E402
from fastiter._engine.threads import ThreadExecutor  # noqa: E402
from fastiter.torch import DataLoader, Order, patch  # noqa: E402
from fastiter.torch import _patch as patching  # noqa: E402
from fastiter.torch._iterator import LoaderIterator  # noqa: E402
from fastiter.torch._orders.samplers import EpochOwner  # noqa: E402
from fastiter.torch._statistics import LoaderReports  # noqa: E402

HANG = 60


class Rows(torch_data.Dataset):
    def __init__(self, function=int):
        self.function = function

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.function(index)


class Pausing(Rows):
    """Another thread may go on while the test asks for the state."""

    n_fetched = 0

    def __init__(self):
        super().__init__()
        self.test = threading.current_thread()
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def __getitem__(self, index):
        self.n_fetched += 1
        return index

    def state_dict(self):
        n_fetched = self.n_fetched
        if threading.current_thread() is self.test:
            self.is_asked.set()
            self.goes_on.wait(0.5)  # in vain: the other thread has to wait for the state
        return {"n_fetched": n_fetched}

    def load_state_dict(self, state):
        self.n_fetched = state["n_fetched"]


def test_a_state_is_of_one_batch_while_another_thread_takes_them():
    dataset, found = Pausing(), []
    loader = DataLoader(dataset, 1)
    batches = iter(loader)

    has_begun = threading.Event()

    def go_on():
        found.append(next(batches).item())
        has_begun.set()
        dataset.is_asked.wait(HANG)
        found.extend(next(batches).item() for _ in range(3))
        dataset.goes_on.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert has_begun.wait(HANG)
    state = loader.state_dict()
    thread.join(HANG)
    assert found == [0, 1, 2, 3]
    assert state["_num_yielded"] == state["dataset_state"]["n_fetched"]
    other = DataLoader(dataset, 1)
    other.load_state_dict(state)
    assert [batch.item() for batch in other] == [*range(state["_num_yielded"], 8)]


def test_a_loop_begins_anew_while_the_loader_is_asked():
    def make():
        loader = DataLoader(range(8), 2)
        before = loader.state_dict()
        batches = iter(loader)
        next(batches)
        kept.append(batches)
        return lambda: loader.indices, lambda: loader.load_state_dict(before)

    kept = []
    found = [*each_step(LoaderReports._own_iterator, make)]
    assert found[0] is None
    assert found[-1] == [0, 1]


def test_a_loop_begins_anew_while_the_state_is_asked_for():
    def make():
        loader = DataLoader(range(8), 2)
        before = loader.state_dict()
        next(iter(loader))  # this loop is left
        return loader.state_dict, lambda: loader.load_state_dict(before)

    found = [*each_step(DataLoader.state_dict, make)]
    assert {state.get("_num_yielded") for state in found} == {None, 1}


def test_the_indices_are_those_of_one_batch():
    def make():
        def row(index):
            assert index != 5
            return index

        loader = DataLoader(Rows(row), 4, on_error="skip")
        batches = iter(loader)
        next(batches)
        kept.append(batches)
        return lambda: loader.indices, lambda: next(batches)

    kept = []
    found = [*each_step(LoaderIterator.indices.fget, make)]
    assert found[-1] == [0, 1, 2, 3]
    assert all(each in ([0, 1, 2, 3], [4, 6, 7]) for each in found)


def test_an_order_is_drawn_while_another_is():
    expected = Order(ShuffleOrderSampler(3), 100).planner(2).state.order.tolist()

    def make():
        order = Order(ShuffleOrderSampler(3), 100)
        order.planner(2)
        return lambda: order.planner(2).state.order.tolist(), lambda: order.planner(5)

    assert all(found == expected for found in each_step(EpochOwner._state, make))


def test_an_epoch_ends_while_its_length_is_asked_for():
    def make():
        loader = DataLoader(range(8), 2, sampler=ShuffleOrderSampler(3))
        batches = iter(loader)
        next(batches)
        return lambda: len(loader), lambda: [*batches]

    assert set(each_step(EpochOwner._of_epoch, make)) == {4}


def test_an_epoch_ends_while_another_does():
    def make():
        loader = DataLoader(range(8), 2, sampler=ShuffleOrderSampler(3))
        batches = iter(loader)
        return lambda: len([*batches]), lambda: [*loader]

    assert set(each_step(EpochOwner.end, make)) == {4}


def test_a_patch_is_undone_while_a_loader_is_made():
    def make():
        patched = patch()
        kind = torch_data.DataLoader
        return lambda: bool(kind(range(8)).state_dict()), patched.undo

    assert all(each_step(type(patching._patches).keywords.fget, make))


def test_a_loader_goes_while_a_report_is_written():
    def make():
        patched = patch()
        loaders = [torch_data.DataLoader(range(8), 2)]
        assert len([*loaders[0]]) == 4
        patched.undo()
        return patched.report, loaders.clear

    for found in each_step(patching.Record.stats, make):
        assert "1 made: 1 epoch, 4 batches" in found


def test_a_loader_goes_while_the_loaders_are_listed():
    def make():
        patched = patch()
        loaders = [torch_data.DataLoader(range(8), 2) for _ in range(3)]
        patched.undo()
        return lambda: [each in patched.loaders for each in loaders[-2:]], lambda: loaders.pop(0)

    for found in each_step(patching.Patch.loaders.fget, make):
        assert found == [True, True]


@pytest.mark.parametrize("function", [ProcessExecutor.close, ProcessExecutor.interrupt])
def test_two_threads_end_the_workers(function):
    def make():
        batches = iter(DataLoader(range(8), 2, num_workers=1))
        return batches.close, batches.close

    assert [*itertools.islice(each_step(function, make), 12)] == [None] * 12


def test_threads_end_while_statistics_are_asked_for():
    def make():
        iterator = MultithreadIterator(range(8), 2, n_threads=1)
        next(iterator)
        return iterator.stats, iterator.finalize

    assert {stats.batches for stats in each_step(ThreadExecutor.stats, make)} == {1}
