"""The start of a loop: workers begin with ``iter()``, and the first batch waits for little else."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import signal
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fastiter.torch import DataLoader  # noqa: E402


class Telling(torch.utils.data.Dataset):
    """Tells that an example was fetched."""

    def __init__(self):
        self.fetched = multiprocessing.get_context("fork").Event()

    def __len__(self):
        return 8

    def __getitem__(self, i):
        self.fetched.set()
        return torch.full((2,), i)


@pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_fetch_before_the_first_next(persistent):
    dataset = Telling()
    loader = DataLoader(
        dataset,
        4,
        num_workers=1,
        persistent_workers=persistent,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        dataset.fetched.clear()
        iterator = iter(loader)
        assert dataset.fetched.wait(30)
        assert [batch[:, 0].tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    loader._iterator = None


SOURCES = """
import linecache, sys
from fastiter.torch import DataLoader

class Sources:
    def __len__(self):
        return 1

    def __getitem__(self, i):
        return repr((set(linecache.cache) - known, hasattr(sys, "tracebacklimit")))

known = set(linecache.cache)
loader = DataLoader(Sources(), num_workers=1, multiprocessing_context="fork")
assert next(iter(loader)) == ["(set(), False)"]
"""


def test_a_worker_reads_no_sources_to_seed_torch():
    subprocess.run([sys.executable, "-c", SOURCES], check=True, timeout=60)


class Counting(torch.utils.data.Dataset):
    """Its own sampler, which counts each time that it is opened, or first asked for a key."""

    def __init__(self, is_late):
        self.is_late, self.n_opened = is_late, 0

    def __getitem__(self, i):
        return 10 * self.n_opened + i

    def keys(self):
        self.n_opened += 1
        yield from range(2)

    def __iter__(self):
        return self.keys() if self.is_late else iter(list(self.keys()))


@pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, DataLoader])
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_workers_have_what_there_is_before_the_first_key(kind, is_late, batch_size):
    """A sampler may change the dataset, or draw from a generator of both. Without batches it is
    opened twice, as torch opens it."""
    dataset = Counting(is_late)
    start = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = kind(dataset, batch_size, sampler=dataset, **start)
    epochs = [[int(n) for batch in loader for n in torch.as_tensor(batch).view(-1)] for _ in "12"]
    first, second = (0, 1) if is_late or batch_size else (1, 3)
    assert epochs == [[10 * n, 10 * n + 1] for n in (first, second)]


class Drawing(torch.utils.data.Dataset):
    """Draws from a generator of its own, which the loader may have, too."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.rand(1, generator=self.generator)


@pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")
@pytest.mark.parametrize("is_shared", [False, True])
def test_workers_have_the_generator_before_a_key_is_drawn_from_it(is_shared):
    found = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        dataset = Drawing()
        generator = dataset.generator if is_shared else torch.Generator().manual_seed(4)
        start = {"num_workers": 2, "multiprocessing_context": "fork", "generator": generator}
        loader = kind(dataset, 2, shuffle=True, **start)
        found.append([batch.flatten().tolist() for _ in "12" for batch in loader])
    assert found[0] == found[1]


BLAS = """
import numpy as np, torch
from fastiter.torch import DataLoader
from threadpoolctl import threadpool_info

def threads():
    return [pool["num_threads"] for pool in threadpool_info()]

def check():
    np.ones((300, 300)) @ np.ones((300, 300))
    assert threads() == before, (threads(), before)

before = threads()
loader = DataLoader(torch.arange(64), 4, num_workers=2, multiprocessing_context="fork")
for _ in range(2):
    iterator = iter(loader)
    for _ in range(16):
        next(iterator)
        check()
iterator = iter(loader)
iterator.close()
check()
"""


class Counted(torch.utils.data.Dataset):
    """Counting its examples may take long, as a query does."""

    n_counts = 0

    def __len__(self):
        self.n_counts += 1
        return 8

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_shuffled_dataset_is_counted_as_often_as_by_torch(num_workers):
    counts = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        loader = kind(Counted(), 4, shuffle=True, num_workers=num_workers)
        assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]
        counts.append(loader.dataset.n_counts)
    assert counts[1] <= counts[0]


@pytest.mark.blas
def test_openblas_computes_in_all_threads_again_with_the_first_batch():
    """Its threads start after the forks, and not beside workers that make the first batch."""
    done = subprocess.run([sys.executable, "-c", BLAS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- the start method ----------------------------------------------------------------------------

SAFE = """
import sys, threading
import torch
from fastiter.torch import DataLoader

class Parents(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        import os
        return os.getppid()

if __name__ == "__main__":
    import os
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    for context in (None, "safe"):
        loader = DataLoader(Parents(), 8, num_workers=1, multiprocessing_context=context)
        (parents,) = loader
        print(set(parents.tolist()) == {os.getpid()})
"""


def test_safe_starts_no_worker_by_a_fork_beside_threads(tmp_path):
    forks = multiprocessing.get_all_start_methods()[0] == "fork"
    (tmp_path / "program.py").write_text(SAFE)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [str(forks), "False"], done.stderr


def test_the_context_is_torchs_or_safe():
    """Its errors, and the attribute, are torch's; a loader that is 'safe' can be copied and sent,
    which one with a context cannot."""
    torchs, ours = torch.utils.data.DataLoader, DataLoader
    for context, workers in (("thread", 1), ("safer", 1), (3, 1), ("fork", 0), (True, 0)):
        texts = []
        for kind in (torchs, ours):
            with pytest.raises((ValueError, TypeError)) as caught:
                kind([1], num_workers=workers, multiprocessing_context=context)
            texts.append((caught.type, str(caught.value)))
        assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="multi-process loading"):
        ours([1], multiprocessing_context="safe")
    for context in ("fork", multiprocessing.get_context("spawn"), None):
        given = [k([1], num_workers=1, multiprocessing_context=context) for k in (torchs, ours)]
        assert given[0].multiprocessing_context is given[1].multiprocessing_context
    loader = ours([1], num_workers=1, multiprocessing_context="safe")
    for other in (loader, copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.multiprocessing_context == "safe"
    loader.multiprocessing_context = "spawn"
    assert loader.multiprocessing_context is multiprocessing.get_context("spawn")
    loader.multiprocessing_context = None
    assert loader.multiprocessing_context is None


ABORTED = "terminate called without an active exception\n"


@pytest.mark.parametrize("run", range(4))  # where the exit finds the threads differs
def test_the_exit_is_silent_amid_starts_in_daemon_threads(run: int) -> None:
    program = """
import threading
import fastiter.torch

def start():
    while True:
        iter(fastiter.torch.DataLoader(range(8), 4, num_workers=1))
        moved.release()

moved = threading.Semaphore(0)
for _ in range(4):
    threading.Thread(target=start, daemon=True).start()
for _ in range(6):
    moved.acquire()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    # torch itself may abort where a daemon thread draws random numbers at the exit.
    assert (done.stdout, done.stderr.replace(ABORTED, "")) == ("", "")


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_programs_see_the_worker_processes(loader_class: Any, persistent_workers: bool) -> None:
    loader = loader_class(range(12), 4, num_workers=2, persistent_workers=persistent_workers)
    iterator = iter(loader)
    next(iterator)
    workers, children = list(iterator._workers), multiprocessing.active_children()
    assert len(workers) == 2 and all(worker in children for worker in workers)
    assert all(worker.is_alive() and worker.pid for worker in workers)
    assert len(list(iterator)) == 2
    if persistent_workers:
        assert len(list(loader)) == 3
        assert loader._iterator._workers == workers
        iterator._shutdown_workers()
    for worker in iterator._workers:
        worker.join(20)
        assert not worker.is_alive() and worker.exitcode is not None
        assert worker not in multiprocessing.active_children()
        worker.terminate()
    assert iterator._workers == workers


def test_programs_see_the_fetcher(loader_class: Any) -> None:
    data = list(range(4))
    assert iter(loader_class(data, 2))._dataset_fetcher.dataset is data


def test_a_worker_that_the_program_ends_is_replaced() -> None:
    loader = DataLoader(range(40), 2, num_workers=2)
    iterator = iter(loader)
    batches = [next(iterator)]
    ended = iterator._workers[1]
    ended.kill()
    ended.join()
    batches += iterator
    assert torch.cat(batches).tolist() == list(range(40))
    assert ended.exitcode == -signal.SIGKILL


WITHOUT_MEMORY = """
import gc, resource
import torch
from pathlib import Path
from fastiter.torch import DataLoader

limits = resource.getrlimit(resource.RLIMIT_AS)
mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
loader = DataLoader(range(8), 4, num_workers=2)
resource.setrlimit(resource.RLIMIT_AS, (mapped, limits[1]))
try:
    iter(loader)
except MemoryError:
    print("MemoryError")
resource.setrlimit(resource.RLIMIT_AS, limits)
gc.collect()
print(torch.cat(list(loader)).tolist())
"""


def test_a_start_without_memory_is_one_error_and_the_next_loop_works():
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == (f"MemoryError\n{[*range(8)]}\n", "")
