"""Ctrl-C at each line of `next()`: no batch is lost, none comes twice, and the state is exact."""

from __future__ import annotations

import contextlib
import functools
import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from interrupts import Interrupts  # noqa: E402
from steps import each_step  # noqa: E402

from fastiter._engine import processes  # noqa: E402
from fastiter.datasets import StreamDataset  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402
from fastiter.torch._keys import OrderKeys  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset:UserWarning"),
]

N = 60
BATCH = 4


class Rows(torch_data.Dataset):
    """Indices, and tensors that may grow from the example `grows` on."""

    def __init__(self, grows=N):
        self.grows = grows

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, torch.full((2 + (index >= self.grows),), index)


class Stream(torch_data.IterableDataset):
    def __iter__(self):
        info = torch_data.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(number, N, count))


class StatefulStream(torch_data.IterableDataset):
    def __init__(self):
        self.done = 0

    def __iter__(self):
        info = torch_data.get_worker_info()
        number, count = (0, 1) if info is None else (info.id, info.num_workers)
        while (item := number + self.done * count) < N:
            self.done += 1
            yield item
        self.done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


class Batches(torch_data.Sampler):
    """A batch sampler whose iterator has a state."""

    def __init__(self):
        self.done = 0

    def __iter__(self):
        self.done = 0
        return self

    def __next__(self):
        self.done += 1
        if self.done > N // BATCH:
            raise StopIteration
        return list(range((self.done - 1) * BATCH, self.done * BATCH))

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def stream_of_shards():
    return StreamDataset(range(3), lambda shard: (Rows()[i] for i in range(shard, N, 3)), seed=1)


def items(batch):
    batch = batch[0] if isinstance(batch, list) and isinstance(batch[0], torch.Tensor) else batch
    return batch.tolist() if isinstance(batch, torch.Tensor) else [row[0] for row in batch]


KINDS = {
    "columns": lambda: {"dataset": Rows(40), "batch_size": BATCH},
    "shuffled": lambda: {"dataset": Rows(), "batch_size": BATCH, "shuffle": True},
    "whole": lambda: {"dataset": Rows(), "batch_size": BATCH, "collate_fn": list},
    "stream": lambda: {"dataset": Stream(), "batch_size": BATCH},
    "stateful stream": lambda: {"dataset": StatefulStream(), "batch_size": BATCH},
    "stream of shards": lambda: {"dataset": stream_of_shards(), "batch_size": BATCH},
    "stateful sampler": lambda: {"dataset": Rows(), "batch_sampler": Batches()},
    "any order": lambda: {"dataset": Rows(), "batch_size": BATCH, "in_order": False},
}


def loader_of(kind, workers, **arguments):
    if workers:
        arguments["multiprocessing_context"] = "fork"
    generator = torch.Generator().manual_seed(5)
    return DataLoader(num_workers=workers, generator=generator, **KINDS[kind](), **arguments)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [(kind, workers) for kind in KINDS for workers in (0, 2) if workers or kind != "any order"],
)
def test_interrupts_at_each_line(kind, workers):
    """Two epochs of one loader, interrupted at each line; another one goes on from some states."""
    arguments = {"persistent_workers": True} if workers else {}
    loader = loader_of(kind, workers, **arguments)
    expected = [[items(batch) for batch in loader] for _ in range(2)]
    for seed in (None, 1):
        loader = loader_of(kind, workers, **arguments)
        # Hundreds of lines of a stream's batch run again after an interrupt.
        interrupts = Interrupts(seed, 0.004 if kind == "stream of shards" else 0.02)
        for epoch in expected:
            iterator = iter(loader)
            found, states = interrupted(loader, iterator, interrupts)
            if kind == "any order":
                found, epoch = sorted(found), sorted(epoch)
            assert found == epoch
            for n_before, state in states:
                again = loader_of(kind, workers, **arguments)
                again.load_state_dict(state)
                rest = [items(batch) for batch in again]
                if kind == "any order":
                    assert len(rest) == len(epoch) - n_before
                else:
                    assert rest == epoch[n_before:]
        assert interrupts.count > 20


def interrupted(loader, iterator, interrupts):
    """All batches of an iteration, and two states at interrupts."""
    found, states, before = [], [], interrupts.count

    def loop():
        with interrupts:
            for batch in iterator:
                found.append(items(batch))

    while True:
        try:
            loop()
            return found, states
        except KeyboardInterrupt:
            if interrupts.count - before in (5, 40):
                states.append((len(found), loader.state_dict()))


class Interrupted(torch_data.Sampler):
    """A generator that Ctrl-C reaches once, at its twenty-first key."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        for key in range(30):
            self.count += 1
            if self.count == 21:
                raise KeyboardInterrupt
            yield key


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_keys_that_was_interrupted_ends_no_epoch_in_silence(workers):
    loader = DataLoader(range(30), 2, sampler=Interrupted(), num_workers=workers)
    iterator, found = iter(loader), []
    # In between, what was planned is delivered.
    for error, text in ((KeyboardInterrupt, None), (RuntimeError, "Interrupted was interrupted")):
        with pytest.raises(error, match=text):
            for batch in iterator:
                found.append(batch.tolist())
    assert len(found) == 10
    again = DataLoader(range(30), 2, sampler=loader.sampler, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    found += [batch.tolist() for batch in again]
    assert found == [[key, key + 1] for key in range(0, 30, 2)]


class InterruptedStream(torch_data.IterableDataset):
    """Ctrl-C reaches its generator once, at its twenty-first example."""

    def __init__(self):
        self.source = Interrupted()

    def __iter__(self):
        yield from self.source


@pytest.mark.parametrize("batch_size", [2, 3, None])
def test_a_generator_of_examples_that_was_interrupted_ends_no_epoch_in_silence(batch_size):
    loader = DataLoader(InterruptedStream(), batch_size)
    iterator, found = iter(loader), []
    for error, text in ((KeyboardInterrupt, None), (RuntimeError, "Stream was interrupted")):
        with pytest.raises(error, match=text):
            for batch in iterator:
                found.append(batch)
    again = DataLoader(loader.dataset, batch_size)
    again.load_state_dict(loader.state_dict())
    found += list(again)
    whole = torch_data.DataLoader(range(30), batch_size)
    assert list(map(str, found)) == list(map(str, whole))


class Broken(Rows):
    def __getitem__(self, index):
        if index % 8 == 5:
            raise ValueError(index)
        return super().__getitem__(index)


@pytest.mark.parametrize("is_error", [False, True], ids=["Ctrl-C", "Exception"])
@pytest.mark.parametrize("here", ["columns", "collate_fn"])
def test_what_a_handler_raises_while_a_batch_is_made_loses_none(here, is_error, monkeypatch):
    """Not the batch has failed, so the next call makes it again."""
    program, sent = os.getpid(), []

    def handler(*_):
        raise TimeoutError if is_error else KeyboardInterrupt

    def interrupted(function, *arguments):
        if os.getpid() == program and not sent:
            sent.append(True)
            os.kill(program, signal.SIGUSR1)
        return function(*arguments)

    arguments = {"dataset": Rows()}
    if here == "collate_fn":  # it runs in the program where a callable decides
        arguments = {"dataset": Broken(), "on_error": lambda key, error: "skip", "skip_limit": None}
        arguments["collate_fn"] = functools.partial(interrupted, list)
    else:
        made = functools.partial(interrupted, processes.from_rows)
        monkeypatch.setattr(processes, "from_rows", made)
    loader = DataLoader(
        **arguments, batch_size=BATCH, num_workers=2, multiprocessing_context="fork"
    )
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        batches, found = iter(loader), []
        with pytest.raises(TimeoutError if is_error else KeyboardInterrupt):
            for batch in batches:
                found += items(batch)
        found += [row for batch in batches for row in items(batch)]
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert found == [row for row in range(N) if here == "columns" or row % 8 != 5]


class Interrupting:
    """Keys in order. The program gets a signal before one that `iter` has not drawn ahead."""

    def __init__(self):
        self.next_key, self.is_sent = 0, False

    def __len__(self):
        return N

    def __iter__(self):
        return self

    def __next__(self):
        if self.next_key == 17 and not self.is_sent:
            self.is_sent = True
            os.kill(os.getpid(), signal.SIGUSR1)
        if self.next_key == N:
            raise StopIteration
        self.next_key += 1
        return self.next_key - 1


def test_what_a_handler_raises_while_batches_are_planned_comes_at_once():
    """Not with the batch that was planned, which may be many calls later."""

    def handler(*_):
        raise TimeoutError

    former = signal.signal(signal.SIGUSR1, handler)
    try:
        arguments = {"num_workers": 2, "multiprocessing_context": "fork"}
        batches = iter(DataLoader(Rows(), BATCH, sampler=Interrupting(), **arguments))
        with pytest.raises(TimeoutError):
            next(batches)
        found = [row for batch in batches for row in items(batch)]
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert found == [*range(N)]


def test_states_are_exact_after_the_draw_of_the_order_was_interrupted():
    """The program's generator has moved then, by the loader's own draw."""

    def make():
        torch.manual_seed(3)
        return DataLoader(range(20), 5, shuffle=True)

    def states_of(loader):
        batches, n_found, states = iter(loader), 0, []
        while not n_found:
            with contextlib.suppress(KeyboardInterrupt):
                next(batches)
                n_found += 1
            states.append((n_found, loader.state_dict()))
        return states

    def interrupt():
        raise KeyboardInterrupt

    whole, count = [batch.tolist() for batch in make()], 0
    steps = each_step(
        OrderKeys._drawn_order, lambda: (functools.partial(states_of, make()), interrupt)
    )
    for states in steps:
        for n_found, state in states:
            again = make()
            again.load_state_dict(state)
            assert [batch.tolist() for batch in again] == whole[n_found:]
            count += 1
    assert count > 50


class InterruptedDraw:
    """Keys by torch's generator. Ctrl-C reaches it once, before its first key."""

    is_interrupted = False

    def __len__(self):
        return 20

    def __iter__(self):
        order = torch.randperm(20).tolist()
        if not self.is_interrupted:
            self.is_interrupted = True
            raise KeyboardInterrupt
        yield from order


def test_the_state_is_right_after_a_sampler_was_interrupted_in_its_draw():
    torch.manual_seed(3)
    sampler = InterruptedDraw()
    loader = DataLoader(range(20), 5, sampler=sampler)
    batches = iter(loader)
    for error in (KeyboardInterrupt, RuntimeError):
        with pytest.raises(error):
            next(batches)
    again = DataLoader(range(20), 5, sampler=sampler)
    again.load_state_dict(loader.state_dict())
    torch.manual_seed(3)
    whole = DataLoader(range(20), 5, sampler=sampler)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in whole]
