"""fastiter.cache in processes: one copy for all, killed workers, limits of a program."""

from __future__ import annotations

import fcntl
import itertools
import logging
import multiprocessing
import os
import random
import re
import signal
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from outside import run_script, wait_until

import fastiter
from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator
from fastiter._ring import serialization
from fastiter._ring.serialization import unpack
from fastiter.datasets import SubDataset

METHODS = ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.stress)]
N = 60
HEAD = """
import os, resource, signal, sys
import numpy as np
import fastiter

class Rows:
    def __len__(self):
        return 60
    def __getitem__(self, i):
        return np.full(5000 + i, i, np.int32), i
"""


class Rows:
    """Examples that differ in shape, and are slow enough to be killed in; `calls` counts them in
    shared memory."""

    def __init__(self, seconds=0.0, fail=(), size=5000):
        self.seconds, self.fail, self.size = seconds, fail, size

    def __len__(self):
        return N

    def __getitem__(self, i):
        if i in self.fail:
            raise KeyError(i)
        time.sleep(self.seconds)
        return np.full(self.size + i, i, np.int32), i


def is_right(example, i, size=5000):
    return len(example[0]) == size + i and (example[0] == i).all() and example[1] == i


def read_all(cached, size=5000):
    return all(is_right(cached[i], i, size) for i in range(N))


def place_of(kind, tmp_path):
    os.makedirs(tmp_path, exist_ok=True)
    return {"path": tmp_path / "cache"} if kind == "file" else {"memory": 1 << 24}


def epoch(iterator):
    """The examples of an epoch, by their index."""
    examples = [example for _ in range(N // 6) for example in next(iterator)]
    assert sorted(label for _, label in examples) == list(range(N))
    assert all(is_right(example, example[1]) for example in examples)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_workers_fill_one_cache(method, kind, tmp_path):
    cached = fastiter.cache(Rows(), **place_of(kind, tmp_path))
    for repeat in range(2):
        iterator = MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context=method)
        with iterator:
            for _ in range(2):
                epoch(iterator)
        stats = cached.stats()
        assert stats.rows == N and stats.lost == 0
        if repeat == 0:
            misses = stats.misses
            assert N <= misses <= N + 12  # prefetched rows may be fetched twice
    assert cached.stats().misses == misses
    assert read_all(cached)


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_all_iterators_use_one_cache(kind, tmp_path):
    cached = fastiter.cache(Rows(), **place_of(kind, tmp_path))
    for make in (SerialIterator, MultithreadIterator, MultiprocessIterator):
        iterator = make(cached, 6, shuffle=True)
        epoch(iterator)
        iterator.finalize()
    assert cached.stats().rows == N and cached.stats().misses <= N + 12


def read_in_child(cached, queue):
    right = read_all(cached)
    queue.put((right, cached.stats().hits >= N))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_cache_travels_to_a_process(method, kind, tmp_path):
    context = multiprocessing.get_context(method)
    cached = fastiter.cache(Rows(), **place_of(kind, tmp_path))
    assert read_all(cached)
    queue = context.Queue()
    child = context.Process(target=read_in_child, args=(cached, queue))
    child.start()
    assert queue.get(timeout=60) == (True, True)
    child.join()
    assert cached.stats().misses == N


def fetch_for_ever(cached, order, size=5000):
    while True:
        for i in order:
            assert is_right(cached[i], i, size)


def bytes_of_rows(dataset):
    with fastiter.cache(dataset, memory=1 << 30) as cached:
        empty = cached.stats().bytes
        assert read_all(cached, dataset.size)
        return cached.stats().bytes - empty


def kill_fillers(kind, tmp_path, kills, size):
    dataset = Rows(0.001 if size == 5000 else 0.0, size=size)
    cached = fastiter.cache(dataset, **{**place_of(kind, tmp_path), **LARGE[kind]})
    empty, whole = cached.stats().bytes, bytes_of_rows(dataset)
    context = multiprocessing.get_context("fork")
    dice = random.Random(kills)
    done = 0
    while done < kills:
        orders = [dice.sample(range(N), N) for _ in range(2)]
        children = [
            context.Process(target=fetch_for_ever, args=(cached, order, size)) for order in orders
        ]
        for child in children:
            child.start()
        os.kill(children[1].pid, signal.SIGSTOP)  # its row may stay claimed while it is stopped
        before = cached.stats()
        wait_until(lambda before=before: cached.stats()[5:7] != before[5:7], "a fetch")
        for child in children:
            child.kill()
            child.join()
            done += 1
        if cached.stats().rows == N:
            assert read_all(cached, size)
            cached.clear()
    for _ in range(2):
        assert read_all(cached, size)
    stats = cached.stats()
    assert stats.rows == N and stats.damaged == 0
    assert stats.lost <= kills * (4 * (size + N) + 2048)
    # Each row is there once. A process that was killed may not have counted its last one.
    assert 0 <= whole - (stats.bytes - empty - stats.lost) <= stats.lost


#: Room for rows that take a moment to store.
LARGE = {"memory": {"memory": 1 << 30}, "file": {}}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_killed_fillers_leave_whole_rows(kind, tmp_path):
    kill_fillers(kind, tmp_path, 6, 5000)


@pytest.mark.stress
@pytest.mark.parametrize("size", [5000, 400_000])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_many_killed_fillers_leave_whole_rows(kind, size, tmp_path):
    kill_fillers(kind, tmp_path, 200, size)


def open_and_fetch(path):
    cached = fastiter.cache(Rows(0.001), path=path, key=1)
    fetch_for_ever(cached, random.sample(range(N), N))


def kill_programs(path, times):
    context = multiprocessing.get_context("fork")
    for _ in range(times):
        children = [context.Process(target=open_and_fetch, args=(path,)) for _ in range(2)]
        for child in children:
            child.start()
        wait_until(path.exists, "the file")
        cached = fastiter.cache(Rows(), path=path, key=1)
        before = cached.stats()
        wait_until(
            lambda before=before, cached=cached: cached.stats()[5:7] != before[5:7], "a fetch"
        )
        cached.close()
        for child in children:
            child.kill()
            child.join()
    with fastiter.cache(Rows(), path=path, key=1) as cached:
        assert read_all(cached) and cached.stats().damaged == 0
    with fastiter.cache(Rows(), path=path, key=1) as cached:
        assert read_all(cached) and cached.stats().misses == 0


def test_a_file_serves_after_the_program_was_killed(tmp_path):
    kill_programs(tmp_path / "cache", 3)


@pytest.mark.stress
def test_a_file_serves_after_the_program_was_killed_often(tmp_path):
    kill_programs(tmp_path / "cache", 50)


def open_at_once(path, barrier, queue):
    barrier.wait()
    cached = fastiter.cache(Rows(), path=path)
    queue.put(read_all(cached) and os.stat(path).st_ino)


def test_many_processes_make_one_file(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, queue = context.Barrier(8), context.Queue()
    for content in (None, b""):  # no file, and one that counts as none
        path = tmp_path / f"cache {content}"
        if content is not None:
            path.write_bytes(content)
        children = [
            context.Process(target=open_at_once, args=(path, barrier, queue)) for _ in range(8)
        ]
        for child in children:
            child.start()
        assert len({queue.get(timeout=60) for _ in children}) == 1
        for child in children:
            child.join()
    assert len(os.listdir(tmp_path)) == 2
    with fastiter.cache(Rows(), path=path) as cached:
        assert cached.stats().rows == N


def be_killed(_):
    os.kill(os.getpid(), signal.SIGKILL)


def open_and_be_killed(path):
    os.fsync = be_killed  # just before the file gets its name
    fastiter.cache(Rows(), path=path)


@pytest.mark.parametrize("content", [None, b"", b"fastiter cache 1 of which the rest is lost"])
def test_who_is_killed_while_it_makes_a_file_leaves_none(tmp_path, content):
    path = tmp_path / "cache"
    if content is not None:
        path.write_bytes(content)
    child = multiprocessing.get_context("fork").Process(target=open_and_be_killed, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    left = [] if content is None else [content]
    assert [file.read_bytes() for file in tmp_path.iterdir()] == left


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_that_a_program_starts_opens_its_file(method, tmp_path):
    """The main module has another name there."""
    source = f"""
import multiprocessing
import fastiter

class Rows:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return i

def check():
    with fastiter.cache(Rows(), path={str(tmp_path / "file")!r}, key=1) as cached:
        print(cached[3], cached.stats().hits, flush=True)

if __name__ == "__main__":
    fastiter.cache(Rows(), path={str(tmp_path / "file")!r}, key=1)[3]
    process = multiprocessing.get_context({method!r}).Process(target=check)
    process.start()
    process.join()
"""
    assert run_script(tmp_path, source) == (0, "3 1\n", "")


class ManyRows(Rows):
    def __getitems__(self, indices):
        return [self[i] for i in indices]


@pytest.mark.parametrize("rows", [Rows, ManyRows])
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_fill_fetches_each_row_once(kind, rows, tmp_path, caplog):
    cached = fastiter.cache(rows(fail=(7,)), **place_of(kind, tmp_path))
    stats = cached.fill(2, progress=False)
    assert (stats.rows, stats.misses, stats.failed, stats.lost) == (N - 1, N, 1, 0)
    again = cached.fill(2, progress=False)
    assert again.misses == N + 1 and again.rows == N - 1
    full = fastiter.cache(Rows(), memory=200_000)
    assert full.fill(2, progress=False).full == "memory"


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_fill_in_a_program_without_a_main_guard(tmp_path, method):
    """Only workers that import the program need one."""
    source = f"""
import multiprocessing
import fastiter
from examples_of import Blocks

multiprocessing.set_start_method({method!r})
print(fastiter.cache(Blocks(20), memory=1 << 24).fill(2, progress=False).rows)
"""
    status, out, err = run_script(tmp_path, source)
    if method == "fork":
        assert (status, out, err) == (0, "20\n", "")
    else:
        assert (status, out) == (1, "")
        told = r"line 7 of .*__name__ == '__main__':, or call multiprocessing.set_start_method"
        assert re.search(told, err)


def test_fill_ends_in_a_program_that_ignores_the_ends_of_its_children(tmp_path):
    """The kernel then keeps no exit codes."""
    source = (
        HEAD
        + """
if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print(fastiter.cache(Rows(), memory=1 << 24).fill(2, progress=False).rows)
"""
    )
    assert run_script(tmp_path, source) == (0, "60\n", "")


def test_fill_draws_a_bar_and_leaves_the_start_method_to_the_program(tmp_path):
    source = (
        HEAD
        + """
if __name__ == "__main__":
    import multiprocessing

    print(fastiter.cache(Rows(), memory=1 << 24).fill(2).rows)
    multiprocessing.set_start_method("spawn")
"""
    )
    status, out, err = run_script(tmp_path, source)
    assert (status, out) == (0, "60\n")
    assert err.splitlines()[-1].split("\r")[-1].startswith("fill: 100%")


def fill_and_tell(cached, queue):
    try:
        cached.fill(2, progress=False)
    except RuntimeError as error:
        queue.put(str(error))


def test_fill_in_a_daemonic_process_says_so():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    cached = fastiter.cache(Rows(), memory=1 << 24)
    child = context.Process(target=fill_and_tell, args=(cached, queue), daemon=True)
    child.start()
    assert "in a daemonic process: create that process with daemon=False" in queue.get(timeout=60)
    child.join()


def test_a_full_cache_is_told_by_one_process(tmp_path):
    handler = logging.FileHandler(tmp_path / "log")
    logger = logging.getLogger("fastiter")
    logger.addHandler(handler)
    try:
        cached = fastiter.cache(Rows(), memory=200_000)
        arguments = {"n_processes": 2, "shuffle": True, "context": "fork"}
        with MultiprocessIterator(cached, 6, **arguments) as iterator:
            for _ in range(3):
                epoch(iterator)
        assert read_all(cached) and cached.stats().full
    finally:
        logger.removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text().count("full") == 1


class Noted(Rows):
    """Rows whose fetches are noted in a file. The first fetch of a process waits for those of the
    others."""

    def __init__(self, notes, barrier=None):
        super().__init__()
        self.notes, self.barrier = notes, barrier

    def __getitem__(self, i):
        barrier, self.barrier = self.barrier, None
        if barrier is not None:
            barrier.wait(60)
        with open(self.notes, "ab", buffering=0) as file:
            file.write(bytes([i]))
        return super().__getitem__(i)


def fill_rank(path, notes, begun, met, queue):
    cached = fastiter.cache(Noted(notes, begun), path=path, key=1)
    cached.fill(2, progress=False)
    met.wait(60)
    fetched = notes.read_bytes()
    again = cached.fill(2, progress=False)
    queue.put((read_all(cached), again.rows, notes.read_bytes() == fetched))


def test_ranks_that_fill_at_once_share_the_work(tmp_path):
    """No row is there before each worker of each rank fetches one."""
    context, path, notes = multiprocessing.get_context(), tmp_path / "cache", tmp_path / "notes"
    begun, met, queue = context.Barrier(6), context.Barrier(3), context.Queue()
    with fastiter.cache(Noted(notes), path=path, key=1) as cached:  # which goes on counting
        arguments = (path, notes, begun, met, queue)
        ranks = [context.Process(target=fill_rank, args=arguments) for _ in range(3)]
        for rank in ranks:
            rank.start()
        assert [queue.get(timeout=100) for _ in ranks] == 3 * [(True, N, True)]
        for rank in ranks:
            rank.join()
        stats = cached.stats()
        assert read_all(cached)
    fetched = notes.read_bytes()
    assert {*fetched} == {*range(N)} and len(fetched) <= 2 * N  # 3 * N if each fetched all
    assert max(map(fetched.count, range(N))) <= 3
    assert stats.misses == len(fetched) == N + stats.uncached  # each was stored once
    assert stats.hits >= 3 * N and (stats.failed, stats.lost, stats.damaged) == (0, 0, 0)
    with fastiter.cache(Noted(notes), path=tmp_path / "other", key=1) as alone:
        assert alone.fill(1, progress=False).bytes == stats.bytes


def test_a_process_that_fills_and_dies_is_told(tmp_path):
    class Deadly(Rows):
        def __getitem__(self, i):
            if i == 30:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(i)

    cached = fastiter.cache(Deadly(), memory=1 << 24)
    if multiprocessing.get_start_method() != "fork":
        pytest.skip("a local class needs fork")
    with pytest.raises(RuntimeError, match="exit code -9"):
        cached.fill(2, progress=False)
    assert cached.stats().rows >= N // 2


@pytest.mark.parametrize("place", ["memory=1 << 24", "path=sys.argv[1] + '/cache'"])
def test_a_limit_of_the_file_size_makes_it_full(place, output_of, tmp_path):
    kind = "memory" if place.startswith("memory") else "disk"
    printed = output_of(f"""
        sys.argv.append({str(tmp_path)!r})
        import logging
        logging.getLogger("fastiter").setLevel(logging.ERROR)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        cached = fastiter.cache(Rows(), {place})
        for _ in range(2):
            assert all((cached[i][0] == i).all() for i in range(60))
        stats = cached.stats()
        assert 5 < stats.rows < 15 and stats.hits == stats.rows and stats.lost == 0
        print(stats.full)
    """)
    assert printed.strip() == kind


def test_a_file_that_cannot_be_made_is_named(output_of, tmp_path):
    printed = output_of(f"""
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        try:
            fastiter.cache(Rows(), path={str(tmp_path / "file")!r})
        except OSError as error:
            print(error)
    """)
    assert printed.strip().endswith(f"File too large: {str(tmp_path / 'file')!r}")
    assert not list(tmp_path.glob("file*"))


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no /dev/shm")
def test_a_file_in_memory():
    path = f"/dev/shm/fastiter-test-{os.getpid()}"
    try:
        with fastiter.cache(Rows(), path=path) as cached:
            assert read_all(cached) and read_all(cached) and cached.stats().rows == N
    finally:
        os.unlink(path)


@pytest.mark.parametrize("kind", ["memory", "file"])
@pytest.mark.parametrize("ours", [True, False])
def test_loaders_of_torch_use_one_cache(ours, kind, tmp_path):
    utils = pytest.importorskip("torch.utils.data")
    if ours:
        from fastiter.torch import DataLoader
    else:
        DataLoader = utils.DataLoader
    cached = fastiter.cache(Rows(), **place_of(kind, tmp_path))
    part = utils.Subset(cached, list(range(0, N, 2)))
    loader = DataLoader(part, 6, shuffle=True, num_workers=2, collate_fn=list)
    for _ in range(2):
        examples = [example for batch in loader for example in batch]
        assert sorted(int(label) for _, label in examples) == list(range(0, N, 2))
        assert all(is_right(example, example[1]) for example in examples)
    stats = cached.stats()
    assert (stats.rows, stats.misses, stats.hits) == (N // 2, N // 2, N // 2)


def states_of(dataset, **arguments):
    iterator = MultiprocessIterator(
        dataset,
        7,
        n_processes=2,
        order_sampler=fastiter.ShuffleOrderSampler(3),
        **arguments,
    )
    with iterator:
        batches = [next(iterator) for _ in range(12)]
        return batches, iterator.state_dict() if hasattr(iterator, "state_dict") else None


@pytest.mark.parametrize("arguments", [{}, {"seed_examples": True}, {"hedge": 0.05}])
def test_orders_and_states_are_those_without_a_cache(arguments):
    plain, state = states_of(Rows(), **arguments)
    cached, other = states_of(fastiter.cache(Rows()), **arguments)
    assert repr(state) == repr(other)
    for left, right in zip(plain, cached, strict=True):
        assert [label for _, label in left] == [label for _, label in right]
        assert all(is_right(example, example[1]) for example in right)


VIEWS = {
    "none": lambda cached: cached,
    "a part": lambda cached: SubDataset(cached, 6, 54),
    "an order": lambda cached: SubDataset(cached, 0, N, order=np.arange(-1, -N - 1, -1)),
    "torch": lambda cached: pytest.importorskip("torch.utils.data").Subset(cached, [*range(48)]),
}


class Even(Rows):
    """Examples of many kinds of fields, of one shape."""

    def __getitem__(self, i):
        array = np.full((40, 30), i, np.int16)
        array.flags.writeable = i % 2 == 0
        return {"a": array, "i": i, "f": i / 2, "b": i % 2 == 0, "n": np.float32(i), "e": array[:0]}


def is_right_even(example, i):
    if list(example) != ["a", "i", "f", "b", "n", "e"] or not (example["a"] == i).all():
        return False
    rest = example["i"], example["f"], example["b"], example["n"]
    return rest == (i, i / 2, i % 2 == 0, i) and type(example["n"]) is np.float32


def counting(*args, **kwargs):
    with CALLS:
        CALLS.value += 1
    return unpack(*args, **kwargs)


def hits():
    """Each view with arguments of its own, in memory and in a file; the rest nightly."""
    ways = [{}, {"seed_examples": True}, {"hedge": 0.5}]
    for kind, (number, view), (turn, arguments) in itertools.product(
        ["memory", "file"], enumerate(VIEWS), enumerate(ways)
    ):
        nightly = turn != number % len(ways)
        yield pytest.param(kind, view, arguments, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.parametrize(("kind", "view", "arguments"), list(hits()), ids=str)
def test_hits_are_copied_without_their_examples(kind, view, arguments, tmp_path, monkeypatch):
    monkeypatch.setattr("fastiter.datasets.cached_dataset.unpack", counting)
    for rows, check in ((Rows(), is_right), (Even(), is_right_even)):
        cached = fastiter.cache(rows, **place_of(kind, tmp_path / type(rows).__name__))
        dataset = VIEWS[view](cached)
        CALLS.value = 0
        iterator = MultiprocessIterator(
            dataset, 6, n_processes=2, shuffle=True, context="fork", **arguments
        )
        with iterator:
            for _ in range(4 * len(dataset) // 6):
                for example in next(iterator):
                    label = example["i"] if type(example) is dict else example[1]
                    assert check(example, label)
        stats = cached.stats()
        # Until the columns are known, rows are examples, which take a moment on a busy machine.
        assert stats.damaged == 0 and CALLS.value <= stats.hits / 4
        assert stats.hits >= 3 * len(dataset) - 12
        assert len(dataset) <= stats.misses <= len(dataset) + 12


LAYOUTS = {
    "contiguous": lambda array: array,
    "permuted": lambda array: array.transpose(2, 0, 1),
    "Fortran": np.asfortranarray,
    "reversed": lambda array: array[::-1, :, ::-1],
    "a part": lambda array: array[1:, ::2],
    "repeated": lambda array: np.broadcast_to(array[:1], array.shape),
    "a permuted tensor": lambda array: sys.modules["torch"].tensor(array).permute(2, 0, 1),
    "a repeated tensor": lambda array: sys.modules["torch"].tensor(array[:1]).expand(5, 4, 3),
}


class Laid(Rows):
    """Examples whose elements all differ, in a layout of memory."""

    def __init__(self, layout):
        self.layout = layout

    def __getitem__(self, i):
        return LAYOUTS[self.layout](np.arange(60, dtype=np.float32).reshape(5, 4, 3) + 100 * i), i


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "place", ["memory", pytest.param("file", marks=pytest.mark.stress), "views"]
)
def test_hits_are_right_in_any_layout(place, layout, tmp_path):
    if "tensor" in layout:
        pytest.importorskip("torch")
    dataset = Laid(layout)
    cached = fastiter.cache(dataset, **place_of(place, tmp_path), copy=place != "views")
    with MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context="fork") as iterator:
        for _ in range(4 * N // 6):
            for array, i in next(iterator):
                assert type(array) is type(dataset[i][0])
                np.testing.assert_array_equal(array, dataset[i][0])
    assert cached.stats().hit_rate > 0.5


class Many(Rows):
    def __getitems__(self, indices):
        with CALLS:
            CALLS.value += len(indices)
        return [self[i] for i in indices]


CALLS = multiprocessing.get_context("fork").Value("i", 0)


def test_one_call_for_the_rows_that_miss():
    CALLS.value = 0
    cached = fastiter.cache(Many())
    for i in range(0, N, 3):
        cached[i]
    with MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context="fork") as iterator:
        epoch(iterator)
        epoch(iterator)
    assert N - N // 3 <= CALLS.value <= N - N // 3 + 12
    assert cached.stats().misses == CALLS.value + N // 3


def test_rows_are_right_while_it_is_cleared():
    cached = fastiter.cache(Even())
    with MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context="fork") as iterator:
        for _ in range(100):
            assert all(is_right_even(example, example["i"]) for example in next(iterator))
            cached.clear()


def clear_at_once(cached, barrier, times):
    for _ in range(times):
        barrier.wait()
        cached.clear()
        barrier.wait()


@pytest.mark.stress  # it waits for ten seconds
def test_an_opening_that_is_stopped_is_told_of(tmp_path):
    path = tmp_path / "file"
    fastiter.cache(list(range(4)), path=path).close()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX)  # as the first process that opens it
        os.write(writer, b"x")
        signal.pause()
    assert os.read(reader, 1) == b"x"
    os.kill(pid, signal.SIGSTOP)
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: (
            told.append(str(message)),
            os.kill(pid, signal.SIGKILL),
        )
        with fastiter.cache(list(range(4)), path=path) as cached:
            assert cached[2] == 2
    os.waitpid(pid, 0)
    assert len(told) == 1 and "is that process stopped?" in told[0]


def test_processes_that_clear_at_once_leave_the_counts_right():
    cached = fastiter.cache(range(1_000_000), memory=1 << 26)  # which takes a moment to clear
    empty, times = cached.stats().bytes, 30
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(3)
    arguments = (cached, barrier, times)
    children = [context.Process(target=clear_at_once, args=arguments) for _ in range(2)]
    for child in children:
        child.start()
    for _ in range(times):
        assert cached[:100] == list(range(100))
        barrier.wait()
        barrier.wait()
        assert cached.stats()[2:4] == (empty, 0)
        cached[0]
        assert cached.stats().lost == 0
    for child in children:
        child.join()


def test_misfits_are_examples():
    class Misfits(Rows):
        def __getitem__(self, i):
            shape = (3, 3) if i < 50 else (i, 2) if i < 55 else (9,)
            return (np.full(shape, i, np.float32 if i % 6 else np.float64), i)

    cached = fastiter.cache(Misfits())
    with MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context="fork") as iterator:
        for _ in range(40):
            for array, i in next(iterator):
                wanted = Misfits()[i][0]
                assert array.dtype == wanted.dtype and np.array_equal(array, wanted)


def test_a_subclass_with_its_own_examples_is_asked():
    class Negative(fastiter.datasets.CachedDataset):
        def get_example(self, i):
            array, label = super().get_example(i)
            return -array, label

    cached = Negative(Rows(), memory=1 << 24)
    with MultiprocessIterator(cached, 6, n_processes=2, shuffle=True, context="fork") as iterator:
        for _ in range(30):
            assert all((array == -label).all() for array, label in next(iterator))


def test_a_fork_while_a_thread_stores(monkeypatch):
    cached, address_of = fastiter.cache(Rows()), serialization.address_of
    is_storing, forked = threading.Event(), threading.Event()

    def in_a_thread_slow(buffer):
        if threading.current_thread() is thread:
            is_storing.set()
            forked.wait()
        return address_of(buffer)

    monkeypatch.setattr(serialization, "address_of", in_a_thread_slow)
    thread = threading.Thread(target=cached.__getitem__, args=(0,))
    child = multiprocessing.get_context("fork").Process(target=cached.__getitem__, args=(1,))
    thread.start()
    assert is_storing.wait(20)
    child.start()
    child.join(20)
    child.kill()
    forked.set()
    thread.join()
    child.join()
    assert child.exitcode == 0
    assert cached.stats().rows == 2
