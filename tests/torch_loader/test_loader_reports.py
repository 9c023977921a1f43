"""Reports of a `fastiter.torch.DataLoader`: statistics, traces, progress, and keys of batches."""

from __future__ import annotations

import collections
import dataclasses
import io
import itertools
import json
import pickle
import threading
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402

import fastiter  # noqa: E402
from fastiter.tokens import TokenDataset  # noqa: E402
from fastiter.torch import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

N = 30


class Numbers(torch_data.Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return int(index)


class Named(torch_data.Dataset):
    """A dataset whose keys are texts."""

    def __getitem__(self, key):
        return ord(key)


class Counted(torch_data.IterableDataset):
    def __iter__(self):
        info = torch_data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, N, step))


class Slow(Numbers):
    def __getitem__(self, index):
        time.sleep(0.003)
        return int(index)


def as_list(examples):
    return list(examples)


BATCHES = [[3, 1], [4], [15, 9, 2], [6, 5, 3]]
OPTIONS = {
    "columns": {"batch_size": 4, "shuffle": True},
    "a collate_fn": {"batch_size": 4, "shuffle": True, "collate_fn": as_list},
    "a batch sampler": {"batch_sampler": BATCHES},
    "without batches": {"batch_size": None, "sampler": [3, 1, 4, 1, 5]},
    "any order": {"batch_size": 4, "in_order": False},
}


def keys_in(batch):
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", OPTIONS)
def test_indices_are_the_keys_of_the_last_batch(kind, num_workers):
    options = OPTIONS[kind]
    loader = DataLoader(Numbers(), num_workers=num_workers, **options)
    last = None
    for _ in range(2):
        assert loader.indices == last
        iterator = iter(loader)
        assert loader.indices is iterator.indices is None
        for batch in iterator:
            last = loader.indices
            assert last == iterator.indices == keys_in(batch)
            assert type(last) is (int if options.get("batch_size", 1) is None else list)
    del iterator
    assert loader.indices == last  # as the loop has left it
    pairs = list(DataLoader(Numbers(), num_workers=num_workers, return_indices=True, **options))
    for batch, indices in pairs:
        assert indices.dtype == torch.int64 and indices.tolist() == keys_in(batch)
    assert len(pairs) == len(loader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_indices_after_a_load(num_workers):
    loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=num_workers)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    other = DataLoader(Numbers(), 5, shuffle=True, num_workers=num_workers)
    other.load_state_dict(state)
    assert other.indices is None
    seen = []
    for batch in other:
        assert other.indices == batch.tolist()
        seen += other.indices
    assert len(seen) == N - 12


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("name", ["indices", "set_epoch", "skipped", "valid"])
def test_attributes_of_a_subclass_hide_reports(name, num_workers):
    """One written for torch's loader, which has none of these names."""

    class Own(DataLoader):
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            setattr(self, name, "own")

    loader = Own(Numbers(), batch_size=4, num_workers=num_workers)
    for _ in range(2):
        iterator = iter(loader)
        assert [batch.tolist() for batch in iterator][-1] == iterator.indices == [28, 29]
    loader.load_state_dict(loader.state_dict())
    assert getattr(loader, name) == "own"
    delattr(loader, name)
    assert loader.indices is None and loader.valid is None and loader.skipped == []
    assert not hasattr(loader, "set_epoch")


@pytest.mark.parametrize("num_workers", [0, 2])
def test_keys_that_are_no_integers(num_workers):
    loader = DataLoader(
        Named(), 2, sampler=list("abcde"), num_workers=num_workers, return_indices=True
    )
    for batch, keys in loader:
        assert keys == loader.indices == [chr(code) for code in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iterables_have_no_indices(num_workers):
    loader = DataLoader(Counted(), 4, num_workers=num_workers)
    for _ in loader:
        assert loader.indices is None
    with pytest.raises(ValueError, match="return_indices=True needs a dataset with __getitem__"):
        DataLoader(Counted(), 4, return_indices=True)


@pytest.mark.parametrize("name", ["return_indices", "seed_examples"])
def test_flags_are_true_or_false(name):
    with pytest.raises(TypeError, match=f"{name} must be True or False, not 'no'"):
        DataLoader(Numbers(), 4, **{name: "no"})


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [*OPTIONS, "iterable"])
def test_statistics_count_all_iterations(kind, num_workers):
    dataset = Counted() if kind == "iterable" else Numbers()
    loader = DataLoader(dataset, num_workers=num_workers, **OPTIONS.get(kind, {"batch_size": 4}))
    before = loader.stats()
    assert (before.batches, before.n_workers) == (0, num_workers)
    found = [before]
    rows = 0
    n_batches = 0
    for _ in range(2):
        for batch in loader:
            keys = keys_in(batch)
            rows += len(keys) if isinstance(keys, list) else 1
            n_batches += 1
            found.append(loader.stats())
            assert (found[-1].batches, found[-1].examples) == (n_batches, rows)
    stats = loader.stats()
    assert (stats.iterator, stats.batches, stats.examples) == ("DataLoader", n_batches, rows)
    assert stats.batch_size == loader.batch_size
    for earlier, later in itertools.pairwise(found):
        assert (later - earlier).batches == 1
    half = stats - found[n_batches // 2]
    assert half.batches == n_batches - n_batches // 2
    assert half.cpu_seconds >= 0 and half.seconds > 0
    if num_workers:
        assert stats.workers_are == "processes" and len(stats.workers) == num_workers
        assert stats.start_seconds > 0
        assert sum(worker.rows for worker in stats.workers) == rows
    assert pickle.loads(pickle.dumps(loader)).stats().batches == 0


def reads_of_this_thread():
    with open("/proc/thread-self/io") as file:
        counts = dict(line.split(": ") for line in file)
    return int(counts["syscr"])


def test_an_epoch_without_workers_reads_no_files():
    loader = DataLoader(Numbers(), batch_size=10)
    for _ in range(3):
        list(loader)
    first = reads_of_this_thread()
    own = reads_of_this_thread() - first
    for _ in range(5):
        list(loader)
        list(DataLoader(Numbers(), batch_size=10))
    assert reads_of_this_thread() - first == 2 * own
    assert loader.stats().batches == 24


def test_statistics_while_another_thread_waits():
    loader = DataLoader(Slow(), 5, num_workers=1)
    found = []
    thread = threading.Thread(target=lambda: found.extend(loader))
    thread.start()
    counts = [0]
    while thread.is_alive():
        counts.append(loader.stats().batches)
    thread.join()
    assert counts == sorted(counts) and len(found) == loader.stats().batches == N // 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_was_left_counts(num_workers):
    loader = DataLoader(Numbers(), 4, num_workers=num_workers)
    for _ in loader:
        break
    left = loader.stats()
    assert left.batches == 1
    batches = iter(loader)
    next(batches)
    assert loader.stats().consumer_seconds == left.consumer_seconds  # without the time between
    assert len([*batches]) == loader.stats().batches - 2


def with_times(stats, busy):
    """The same statistics of a loop that waits for 0.9 of a second, which no load changes."""
    times = {"seconds": 1.0, "busy_seconds": busy, "cpu_seconds": 0.0, "cpu_wait_seconds": 0.0}
    workers = tuple(dataclasses.replace(worker, **times) for worker in stats.workers)
    loop = {"next_seconds": 0.9, "wait_seconds": 0.9, "consumer_seconds": 0.1, "cpu_seconds": 0.0}
    return dataclasses.replace(stats, cpus=4, workers=workers, batches=200, **loop)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_advice_names_torchs_arguments(num_workers):
    arguments = {"dataset": Numbers(), "batch_size": 1, "num_workers": num_workers}
    loader = DataLoader(**arguments)
    for _ in loader:
        pass
    stats = with_times(loader.stats(), 0.99)
    assert stats.verdict == "loader-bound"
    assert [*stats.change] == ["num_workers"] and stats.change["num_workers"] > num_workers
    assert f"num_workers={stats.change['num_workers']}" in stats.advice
    assert "n_processes" not in str(stats) and "Multiprocess" not in str(stats)
    better = DataLoader(**{**arguments, **stats.change})
    assert better.num_workers == stats.change["num_workers"]


def test_the_advice_to_prefetch_names_the_factor():
    arguments = {"dataset": Numbers(), "num_workers": 2, "prefetch_factor": 3}
    loader = DataLoader(**arguments)
    for _ in loader:
        pass
    stats = with_times(loader.stats(), 0.1)
    assert stats.change == {"prefetch_factor": 6}  # 12 batches of 2 workers
    assert "prefetch_factor=6" in stats.advice
    assert DataLoader(**{**arguments, **stats.change}).prefetch_factor == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_a_trace_of_two_epochs(tmp_path, persistent):
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=persistent)
    next(iter(loader))
    with loader.trace(tmp_path / "trace.json") as trace:
        for _ in range(2):
            n_batches = len(list(loader))
        with pytest.raises(RuntimeError, match="traced already"), loader.trace():
            pass
    list(loader)  # not recorded
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kinds = collections.Counter(event["name"] for event in events)
    calls = [e for e in events if e["name"] == "next()" and "rows" in e["args"]]
    assert len(calls) == 2 * n_batches and sum(e["args"]["rows"] for e in calls) == 2 * N
    assert kinds["fetch"] >= n_batches
    named = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named == {"loop", "worker 0", "worker 1"}
    assert events == trace.events()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_progress(num_workers):
    pytest.importorskip("tqdm")
    loader = DataLoader(Numbers(), 4, num_workers=num_workers)
    for epoch in range(2):
        screen = io.StringIO()
        bar = fastiter.progress(loader, file=screen, mininterval=0, miniters=1, ncols=100)
        assert [keys_in(batch) for batch in bar] == [keys_in(batch) for batch in loader]
        drawn = screen.getvalue()
        assert f"epoch {2 * epoch}: 100%" in drawn and "30.0/30.0" in drawn
    screen = io.StringIO()
    stream = DataLoader(Counted(), 4, num_workers=num_workers)
    assert len(list(fastiter.progress(stream, file=screen, ncols=100))) == 8
    assert "30.0 examples" in screen.getvalue().replace("30.0examples", "30.0 examples")


def test_progress_goes_on_from_a_state():
    pytest.importorskip("tqdm")
    loader = DataLoader(Numbers(), 4)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    other = DataLoader(Numbers(), 4)
    other.load_state_dict(state)
    screen = io.StringIO()
    assert len(list(fastiter.progress(other, file=screen, ncols=100))) == 7
    first, last = screen.getvalue().split("\r")[1], screen.getvalue().rstrip().split("\r")[-1]
    assert " 4.00/30.0 " in first and " 30.0/30.0 " in last


def test_progress_refuses_what_has_no_statistics():
    for other in (torch_data.DataLoader(Numbers()), [1, 2]):
        with pytest.raises(TypeError, match="progress needs an iterator of fastiter"):
            fastiter.progress(other)


@pytest.mark.parametrize("arguments", [{}, {"num_workers": 2}, {"batch_size": None}])
@pytest.mark.parametrize("packing", ["bfd", None])
def test_tokens_of_the_rows_are_counted(arguments, packing):
    documents = None if packing is None else [0, 10, 30, 100, 301]
    fields = ("input_ids", "n_tokens")
    dataset = TokenDataset(np.arange(301), 16, packing=packing, documents=documents, fields=fields)
    loader = DataLoader(dataset, **{"batch_size": 4, **arguments})
    read = sum(int(batch["n_tokens"].sum()) for batch in loader)
    assert loader.stats().tokens_read == read > 250
    assert DataLoader(Numbers(), 4).stats().tokens_read == 0
