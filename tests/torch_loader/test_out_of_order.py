"""`in_order=False`: whichever batch is done first comes first, and each comes once."""

from __future__ import annotations

import collections
import contextlib
import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

N = 300
SLOW = 12  # of an example that waits


class Gate:
    """Holds up forked processes until it is opened."""

    def __init__(self):
        self.ends = os.pipe()

    def wait(self):
        assert os.read(self.ends[0], 1)

    def open(self, times=1000):
        os.write(self.ends[1], bytes(times))


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    for end in gate.ends:
        os.close(end)


class Held(torch_data.Dataset):
    """Waits before one of its examples."""

    def __init__(self, gate, slow=SLOW):
        self.gate, self.slow = gate, slow

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index == self.slow:
            self.gate.wait()
        return index


class HeldStream(torch_data.IterableDataset):
    """A stream for each of two workers, of which one waits at its third example."""

    def __init__(self, gate, stateful=False):
        self.gate, self.i = gate, 0
        if stateful:
            self.state_dict = lambda: {"i": self.i}
            self.load_state_dict = lambda state: setattr(self, "i", state["i"])

    def __iter__(self):
        worker = torch_data.get_worker_info().id
        for i in range(self.i, 60):
            if (worker, i) == (1, 2):
                self.gate.wait()
            self.i = i + 1
            yield worker * 100 + i


def items(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else list(batch)


def loader_of(dataset, **arguments):
    arguments = {"batch_size": 2, "num_workers": 2, "in_order": False, **arguments}
    arguments.setdefault("multiprocessing_context", "fork" if arguments["num_workers"] else None)
    return DataLoader(dataset, **arguments)


def take(iterator, count):
    return [item for _ in range(count) for item in items(next(iterator))]


@pytest.mark.parametrize("collate_fn", [None, list], ids=["columns", "whole"])
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_slow_batch_is_overtaken(gate, collate_fn, prefetch):
    """By all but those that its worker is to make, which are `prefetch_factor` at most."""
    loader = loader_of(Held(gate), collate_fn=collate_fn, prefetch_factor=prefetch)
    iterator = iter(loader)
    first = take(iterator, N // 2 - prefetch)
    assert SLOW not in first
    gate.open()
    assert sorted(first + take(iterator, prefetch)) == list(range(N))
    with pytest.raises(StopIteration):
        next(iterator)


def test_batches_that_are_kept_do_not_block(gate):
    iterator = iter(loader_of(Held(gate)))
    kept = [next(iterator) for _ in range(N // 2 - 2)]
    gate.open()
    kept += list(iterator)
    assert sorted(item for batch in kept for item in items(batch)) == list(range(N))


def test_several_epochs_of_workers_that_persist(gate):
    loader = loader_of(Held(gate), persistent_workers=True)
    for is_whole in (True, False, True):
        iterator = iter(loader)
        first = take(iterator, N // 2 - 2)
        assert SLOW not in first
        gate.open(1)
        if is_whole:
            assert sorted(first + take(iterator, 2)) == list(range(N))
            with pytest.raises(StopIteration):
                next(iterator)


@pytest.mark.parametrize("stateful", [False, True])
def test_streams(gate, stateful):
    """Each worker's examples keep their order; where a stream waits, the other one goes on."""
    iterator = iter(loader_of(HeldStream(gate, stateful)))
    first = take(iterator, 31)
    assert [i for i in first if i < 100] == list(range(60))
    gate.open()
    rest = [item for batch in iterator for item in items(batch)]
    assert [i for i in first + rest if i >= 100] == list(range(100, 160))


class Killing(Held):
    """Kills its worker at some indices, once."""

    def __init__(self, gate, folder):
        super().__init__(gate, None)
        self.folder = folder

    def __getitem__(self, index):
        if index % 40 == 7 and not (self.folder / str(index)).exists():
            (self.folder / str(index)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("collate_fn", [None, list], ids=["columns", "whole"])
def test_workers_that_die_lose_nothing(gate, collate_fn, tmp_path):
    found = loader_of(Killing(gate, tmp_path), collate_fn=collate_fn, num_workers=3)
    assert sorted(item for batch in found for item in items(batch)) == list(range(N))
    assert len(list(tmp_path.iterdir())) == 8


def test_a_batch_that_kills_its_workers_is_overtaken(gate):
    class Fatal(Held):
        def __getitem__(self, index):
            if index == SLOW:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    found = []
    iterator = iter(loader_of(Fatal(gate)))
    torchs = r"^DataLoader worker \(pid \d+\) is killed by signal: SIGKILL: "
    with pytest.raises(RuntimeError, match=torchs + r".*12.* has killed .*SIGKILL"):
        while True:
            found += items(next(iterator))
    found += [item for batch in iterator for item in items(batch)]
    assert sorted(found) == [i for i in range(N) if i not in (SLOW, SLOW + 1)]


class Raising(Held):
    def __getitem__(self, index):
        if index == 41:
            raise ValueError("no such example")
        return super().__getitem__(index)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("workers", [2, 0])
def test_an_error_is_delivered_once(gate, in_order, workers):
    """The state after it goes on behind it, and behind what came since."""
    gate.open()
    loader = loader_of(Raising(gate), in_order=in_order, num_workers=workers)
    found, iterator = [], iter(loader)
    with pytest.raises(ValueError, match="no such example"):
        while True:
            found += items(next(iterator))
    found += take(iterator, min(20, (N - 2 - len(found)) // 2))  # the error may come late
    again = loader_of(Raising(gate), in_order=in_order, num_workers=workers)
    again.load_state_dict(loader.state_dict())
    rest = [item for batch in again for item in items(batch)]
    assert sorted(found + rest) == [i for i in range(N) if i not in (40, 41)]


def test_the_timeout_is_that_of_the_next_batch_to_be_done(gate):
    iterator = iter(loader_of(Held(gate), timeout=1))
    found, told = [], "DataLoader timed out after 1 seconds"
    while len(found) < N - 4:
        try:
            found += take(iterator, 1)
        except RuntimeError as error:  # of a busy machine
            assert str(error) == told
    with pytest.raises(RuntimeError, match=told):
        next(iterator)
    gate.open()
    while len(found) < N:
        with contextlib.suppress(RuntimeError):
            found += take(iterator, 1)
    assert sorted(found) == list(range(N))


# ---- state ---------------------------------------------------------------------------------------


class Sampler(torch_data.Sampler):
    """Every index once, from a state of its own."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        while self.i < N // 2:
            self.i += 1
            yield [N - 2 * self.i, N - 2 * self.i + 1]
        self.i = 0

    def state_dict(self):
        return {"i": self.i}

    def load_state_dict(self, state):
        self.i = state["i"]


@pytest.mark.parametrize("count", [10, 100, N // 2 - 2])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"in_order": True}, {"num_workers": 3}, {"num_workers": 0}],
    ids=["again", "in order", "more workers", "no workers"],
)
@pytest.mark.parametrize("sampler", [None, Sampler])
def test_a_state_has_each_batch_that_was_not_delivered(gate, count, arguments, sampler):
    own = {} if sampler is None else {"batch_sampler": sampler(), "batch_size": 1}
    loader = loader_of(Held(gate, 8 if sampler is None else N - 8), **own)
    iterator = iter(loader)
    found = take(iterator, count)
    state = loader.state_dict()
    gate.open()
    own = {} if sampler is None else {"batch_sampler": sampler(), "batch_size": 1}
    again = loader_of(Held(gate), **{**own, **arguments})
    again.load_state_dict(state)
    # What comes is saved and loaded once more, before all that was missing has been delivered.
    iterator = iter(again)
    found += take(iterator, 1)
    state = again.state_dict()
    del iterator
    own = {} if sampler is None else {"batch_sampler": sampler(), "batch_size": 1}
    again = loader_of(Held(gate), **{**own, **arguments})
    again.load_state_dict(state)
    rest = [items(batch) for batch in again]
    assert sorted(found + [item for batch in rest for item in batch]) == list(range(N))
    if again.in_order:
        assert rest == sorted(rest, reverse=sampler is not None)
    whole = [item for batch in again for item in items(batch)]
    assert sorted(whole) == list(range(N))


def test_a_state_behind_the_last_batch_that_was_missing(gate):
    """Workers have drawn the sampler to its end by then, which begins its next epoch."""

    def loader_with(**arguments):
        return loader_of(Held(gate, N - 8), batch_sampler=Sampler(), batch_size=1, **arguments)

    loader = loader_with(prefetch_factor=1)
    iterator = iter(loader)
    found = take(iterator, N // 2 - 1)
    state = loader.state_dict()
    gate.open()
    for in_order in (False, True):
        again = loader_with(in_order=in_order)
        again.load_state_dict(state)
        iterator = iter(again)
        assert sorted(found + take(iterator, 1)) == list(range(N))
        for workers in (0, 2):
            last = loader_with(num_workers=workers)
            last.load_state_dict(again.state_dict())
            assert [*last] == []
            assert sorted(item for batch in last for item in items(batch)) == list(range(N))


def test_a_state_is_small(gate):
    """However many batches have overtaken others."""
    loader = loader_of(Held(gate))
    iterator = iter(loader)
    take(iterator, N // 2 - 2)
    main = loader.state_dict()["_snapshot"]["_main_snapshot"]
    assert len(main["_not_delivered"]) == 2
    gate.open()


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("count", [3, 20, 31])
def test_the_state_of_a_stream(gate, stateful, count):
    loader = loader_of(HeldStream(gate, stateful), snapshot_every_n_steps=4)
    iterator = iter(loader)
    found = take(iterator, count)
    state = loader.state_dict()
    gate.open()
    again = loader_of(HeldStream(gate, stateful))
    again.load_state_dict(state)
    found += [item for batch in again for item in items(batch)]
    assert collections.Counter(found) == collections.Counter([*range(60), *range(100, 160)])
