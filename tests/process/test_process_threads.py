"""Thread pools in the parent: workers start and work whatever lives there, by the start method of
multiprocessing, or by a fork server where 'safe' asks for it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from outside import openmp_library, run_script

from fastiter._workers import thread_limits

pytestmark = pytest.mark.blas
stress = pytest.mark.stress
DEFAULT = multiprocessing.get_all_start_methods()[0]
forks_by_default = pytest.mark.skipif(
    DEFAULT != "fork", reason="this interpreter's default is not to fork"
)

PARALLEL_SUM = """
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

double parallel_sum(const double *values, long n)
{
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (long i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

static void *wait_named(void *name)
{
    prctl(PR_SET_NAME, name);
    for (;;)
        pause();
}

int start_named(char *name)
{
    pthread_t thread;
    return pthread_create(&thread, NULL, wait_named, strdup(name));
}
"""

OPENMP = """
    import ctypes
    library = ctypes.CDLL({library!r})
    library.parallel_sum.restype = ctypes.c_double

    def work(index):
        values = np.full(100_000, index, dtype=float)
        return library.parallel_sum(values.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(100_000))
"""

DEVICE = """
    class Device:
        @property
        def __cuda_array_interface__(self):
            return {"version": 3}
"""

BLAS = """
    def work(index):
        return float((np.full((300, 300), index, dtype=float) @ np.ones((300, 300))).sum())

    def toil(stop):
        while not stop:
            work(1)
"""

OPENCV = """
    import cv2

    def work(index):
        image = np.full((600, 600, 3), index, dtype=np.float32)
        cv2.GaussianBlur(image, (5, 5), 0)
        return float(cv2.resize(image, (500, 400), interpolation=cv2.INTER_AREA).sum())
"""

ARROW = """
    import pyarrow

    def work(index):  # a list is made anew by jemalloc, whose thread purges what was freed
        pool = pyarrow.jemalloc_memory_pool()
        return float(pyarrow.array(np.full(100_000, index).tolist(), memory_pool=pool)[-1].as_py())
"""

PROGRAM = """
    import logging
    import multiprocessing
    import os
    import threading
    import numpy as np
    from fastiter import MultiprocessIterator
    from inside import start_method_of
    {pool}
    class Dataset:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            return work(index)

    def main():
        expected = [work(index) for index in range(16)]
        dataset = Dataset()
        {before}
        iterator = MultiprocessIterator(
            dataset, 4, n_processes=2, shuffle=False, repeat=False, context={context!r}
        )
        found = [value for batch in iterator for value in batch]
        print(start_method_of(iterator), found == expected)
        iterator.finalize()
        {after}

    {run}
"""

GUARDED = "if __name__ == '__main__':\n        main()"
UNGUARDED = "main()"
NOTHING = "pass"
UNPICKLABLE = "dataset.handle = lambda: None"


@pytest.fixture(scope="session")
def openmp(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that computes by OpenMP's threads."""
    return openmp_library(tmp_path_factory.mktemp("openmp"), PARALLEL_SUM)


def run(
    directory: Path,
    pool: str,
    start: str = GUARDED,
    before: str = NOTHING,
    after: str = NOTHING,
    context: str | None = None,
) -> str:
    """Runs the program to its end; the start method, and whether the batches were right."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("libraries start no threads for one processor")
    source = PROGRAM.format(pool=pool, run=start, before=before, after=after, context=context)
    status, out, err = run_script(directory, textwrap.dedent(source))
    assert status == 0, err
    return out.strip()


@pytest.mark.parametrize(("context", "method"), [(None, DEFAULT), ("safe", "forkserver")])
def test_openmp(tmp_path, openmp, context, method):
    """A forked worker computes in one thread, and needs no pool."""
    pool = OPENMP.format(library=openmp)
    assert run(tmp_path, pool, context=context) == f"{method} True"


@forks_by_default
@pytest.mark.parametrize(("start", "before"), [(UNGUARDED, NOTHING), (GUARDED, UNPICKLABLE)])
def test_openmp_where_only_a_fork_will_do(tmp_path, openmp, start, before):
    pool = OPENMP.format(library=openmp)
    assert run(tmp_path, pool, start, before, context="safe") == "fork True"


@pytest.mark.parametrize(("context", "method"), [(None, DEFAULT), ("safe", "forkserver")])
def test_blas_busy_in_another_thread(tmp_path, context, method):
    """A fork ends the threads of OpenBLAS: the other thread's call has to end before, and its next
    ones compute in one thread."""
    before = "stop = []; beside = threading.Thread(target=toil, args=(stop,)); beside.start()"
    after = "stop.append(None); beside.join()"
    assert run(tmp_path, BLAS, GUARDED, before, after, context) == f"{method} True"


def test_blas_at_rest(tmp_path):
    """OpenBLAS lets its threads end before a fork: they are no reason against one. And to make an
    iterator fixes no start method for the rest of the program."""
    after = "assert multiprocessing.get_start_method(allow_none=True) is None"
    out = run(tmp_path, BLAS, after=after)
    assert out == f"{DEFAULT} True"


def test_workers_may_end_in_a_thread_that_is_waited_for():
    """As by a garbage collection in a thread that is started to see whether OpenBLAS could."""
    ending = threading.Thread(target=thread_limits.own_pools.lift, daemon=True)
    with thread_limits.own_pools._lock:
        ending.start()
        ending.join(60)
    assert not ending.is_alive()


def test_a_collection_amid_the_lifting_of_limits_may_lift_them():
    """A collection that ends workers may come while threads are started to see whether OpenBLAS
    could, in the same thread."""
    pools = thread_limits._OwnPools()
    lifted = []
    for threads in (1, 2):
        limits = contextlib.ExitStack()
        limits.callback(lifted.append, threads)
        pools._limits.append((limits, thread_limits.native_threads() + threads))

    class Workers:
        def __init__(self):
            self.itself = self

        def __del__(self):
            pools.lift()

    Workers()
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        pools.lift(object())
    finally:
        gc.set_threshold(*thresholds)
    assert lifted == [2, 1]
    assert pools._limits == []


THREADS_OF_WORKERS = """
    import os
    import numpy as np
    from fastiter import MultiprocessIterator

    class Dataset:
        def __len__(self):
            return 16
        def __getitem__(self, index):
            before = len(os.listdir("/proc/self/task"))
            np.ones((300, 300)) @ np.ones((300, 300))
            return before, len(os.listdir("/proc/self/task"))

    if __name__ == "__main__":
        OPTIONS = {{"n_processes": 2, "repeat": False, "context": {method!r}}}
        np.ones((300, 300)) @ np.ones((300, 300))
        alone = len(os.listdir("/proc/self/task"))
        with MultiprocessIterator(Dataset(), 4, **OPTIONS) as iterator:
            print({{pair for batch in iterator for pair in batch}})
            print(len(os.listdir("/proc/self/task")) - {left})
        (np.ones((300, 300)) @ np.ones((300, 300))).sum()
        print(len(os.listdir("/proc/self/task")) - alone)
"""


@pytest.mark.parametrize(("method", "left"), [("fork", "1"), ("forkserver", "alone")])
def test_a_forked_worker_has_no_threads_of_blas(tmp_path, method, left):
    """To start a worker must not start a pool of one thread for each processor, which would spin
    before they sleep; nor may computing in it. It has a thread that computes and one that watches
    the parent. The program itself computes in as many threads as before; forks end them until it
    computes again."""
    source = textwrap.dedent(THREADS_OF_WORKERS).format(method=method, left=left)
    status, out, err = run_script(tmp_path, source)
    assert (status, err, out.split("\n")) == (0, "", ["{(2, 2)}", "0", "0", ""])


LEFT_AT_THE_FIRST_BATCH = """
    import os
    import numpy as np
    from torch.utils.data import TensorDataset
    import torch
    from fastiter.torch import DataLoader

    if __name__ == "__main__":
        torch.set_num_threads(1)
        (np.ones((300, 300)) @ np.ones((300, 300))).sum()
        loader = DataLoader(TensorDataset(torch.arange(9)), num_workers=1)
        next(iter(loader))
        print(len(os.listdir("/proc/self/task")))
"""


@forks_by_default
def test_threads_of_blas_do_not_spin_when_a_loop_is_left_at_the_first_batch(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    status, out, err = run_script(tmp_path, textwrap.dedent(LEFT_AT_THE_FIRST_BATCH))
    assert (status, err, out) == (0, "", "1\n")


@pytest.mark.parametrize(
    ("start", "context", "method"),
    [(GUARDED, None, DEFAULT), (GUARDED, "safe", "forkserver"), (UNGUARDED, "safe", "fork")],
)
def test_opencv(tmp_path, start, context, method):
    """Its pool of threads was used in the program, and is used in the workers."""
    pytest.importorskip("cv2", exc_type=ImportError)
    if method == "fork" != DEFAULT:
        pytest.skip("this interpreter's default is not to fork")
    assert run(tmp_path, OPENCV, start, context=context) == f"{method} True"


@forks_by_default
def test_opencv_computes_in_another_thread(tmp_path):
    pytest.importorskip("cv2", exc_type=ImportError)
    before = """stop = []
        def blur():
            while not stop:
                work(1)
        beside = threading.Thread(target=blur)
        beside.start()"""
    after = "stop.append(None); beside.join()"
    assert run(tmp_path, OPENCV, GUARDED, before, after) == "fork True"


def test_the_allocator_of_arrow(tmp_path):
    """Its thread, which `import pyarrow` starts, makes a fork no less safe."""
    arrow = pytest.importorskip("pyarrow", reason="Arrow is not installed")
    if "jemalloc" not in arrow.supported_memory_backends():
        pytest.skip("this Arrow is built without jemalloc")
    before = "assert any(open(f'/proc/self/task/{t}/comm').read() == 'jemalloc_bg_thd\\n' "
    before += "for t in os.listdir('/proc/self/task'))"
    assert run(tmp_path, ARROW, GUARDED, before) == f"{DEFAULT} True"


@stress
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_what_the_program_has_set_stands(tmp_path, openmp, method):
    before = f"multiprocessing.set_start_method({method!r})"
    pool = OPENMP.format(library=openmp)
    assert run(tmp_path, pool, GUARDED, before) == f"{method} True"


@forks_by_default
def test_safe_replaces_a_fork_that_multiprocessing_has_set(tmp_path, openmp):
    """Whoever uses multiprocessing, as progress bars do, sets the start method to its default."""
    pool = OPENMP.format(library=openmp)
    assert run(tmp_path, pool, before="multiprocessing.Lock()", context="safe") == "forkserver True"


CATCH = """import warnings
        caught = []
        warnings.showwarning = lambda message, category, *_: caught.append((category, str(message)))
        {fork}
        MultiprocessIterator(dataset, 4, n_processes=1, context='fork').start()"""


@pytest.mark.parametrize(
    ("fork", "expected"),
    [
        ("threading.Thread(target=threading.Event().wait, daemon=True).start()", "NOTHING"),
        # The name by which the system knows a thread of gRPC.
        ("assert library.start_named(b'grpc_global_tim') == 0", "gRPC has threads"),
        ("dataset.table = Device()", "the dataset holds arrays of a GPU"),
        ("dataset.dataset = Dataset(); dataset.dataset.tables = [Device()]", "arrays of a GPU"),
    ],
)
def test_what_is_known_to_fail_in_forks_is_warned_of_once(tmp_path, openmp, fork, expected):
    """Not OpenMP, whose pool lives here: a forked worker computes in one thread."""
    pool = OPENMP.format(library=openmp) + DEVICE
    after = f"""if {expected!r} == "NOTHING":
            assert not caught, caught
        else:
            (category, message), = caught
            assert category is RuntimeWarning
            assert {expected!r} in message and "context='safe'" in message"""
    out = run(tmp_path, pool, GUARDED, CATCH.format(fork=fork), after, "fork")
    assert out == "fork True"


# ---- locks that other threads hold ---------------------------------------------------------------

BESIDE = """
    import logging, multiprocessing, os, sys, threading, warnings
    import numpy as np
    import psutil
    from fastiter import MultiprocessIterator, WorkerDiedError
    from fastiter.reader import multiprocess_reader
    from inside import have_begun, pids_of
    from outside import wait_until

    class Dataset:
        def __len__(self):
            return 64
        def __getitem__(self, index):
            return index, os.getppid()

    def numbers():
        yield from range(100)

    def draw(started):
        while True:
            started.set()
            np.random.random_sample(5_000_000)  # holds the lock of NumPy's generator

    def draw_by_torch(started):
        import torch
        while True:
            torch.rand(2_000_000)  # holds the lock of torch's generator
            started.set()

    def read(started):
        started.set()
        sys.stdin.readline()  # holds the lock of that stream

    def begin(thread):
        started = threading.Event()
        threading.Thread(target=thread, args=(started,), daemon=True).start()
        started.wait()

    def make(**options):
        warnings.simplefilter("ignore", RuntimeWarning)
        options = {"n_processes": 2, "shuffle": False, **options}
        return MultiprocessIterator(Dataset(), 4, **options)

    def hang_in_starts(count):
        '''This many of the next forks make a worker that waits for a lock in its start.'''
        left = [count + 1]
        held = threading.Lock()
        def before():
            left[0] -= 1
        def after():
            if left[0] > 0:
                held.acquire()
        os.register_at_fork(before=before, after_in_child=after)
        held.acquire()

    if __name__ == "__main__":
"""


def run_beside(directory: Path, body: str, **options: Any) -> tuple[str, str]:
    """Runs the statements in a program of their own: what it prints, and its messages."""
    source = textwrap.dedent(BESIDE) + textwrap.indent(textwrap.dedent(body), "    ")
    status, out, err = run_script(directory, source + "\n    os._exit(0)\n", **options)
    assert status == 0, err
    return out, err


@pytest.mark.parametrize("thread", ["draw", "read"])
def test_a_lock_that_another_thread_holds_does_not_hang_a_forked_worker(tmp_path, thread):
    read, write = os.pipe()  # standard input, to which no process writes
    try:
        body = f"""
        begin({thread})
        iterator = make(context="fork")
        print([index for index, _ in next(iterator)], flush=True)
        """
        assert run_beside(tmp_path, body, stdin=read)[0] == "[0, 1, 2, 3]\n"
    finally:
        os.close(read)
        os.close(write)


@forks_by_default
@pytest.mark.parametrize("killed", [pytest.param(False, marks=pytest.mark.stress), True])
def test_workers_that_come_later_are_forked_as_the_first_ones(tmp_path, killed):
    body = f"""
    iterator = make(maxtasksperchild=None if {killed} else 9)
    begin(draw)
    next(iterator)
    pids = pids_of(iterator)
    if {killed}:
        for pid in pids:
            os.kill(pid, 9)
    indices = []
    while len(indices) < 200 or set(pids) & set(pids_of(iterator)):
        for index, parent in next(iterator):
            indices.append(index)
            assert parent == os.getpid()
    assert indices == [number % 64 for number in range(4, len(indices) + 4)]
    print("done", flush=True)
    """
    assert run_beside(tmp_path, body)[0] == "done\n"


@forks_by_default
@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.stress)])
def test_workers_that_come_later_are_not_forked_beside_threads_where_safe(tmp_path, killed):
    """The fork was safe when the first ones started."""
    body = f"""
    iterator = make(context="safe", maxtasksperchild=None if {killed} else 9)
    assert {{parent for _, parent in next(iterator)}} == {{os.getpid()}}
    begin(draw)
    if {killed}:
        for pid in pids_of(iterator):
            os.kill(pid, 9)
    parents, indices = [], []
    while len(indices) < 200 or parents[-1] == os.getpid():
        for index, parent in next(iterator):
            indices.append(index)
            parents.append(parent)
    assert indices == [number % 64 for number in range(4, len(indices) + 4)]
    print("done", flush=True)
    """
    assert run_beside(tmp_path, body)[0] == "done\n"


@forks_by_default
@pytest.mark.parametrize(("hangs", "context", "forked"), [(1, "fork", 2), (1000, "safe", 0)])
def test_a_start_that_hangs_is_replaced_while_others_keep_up(tmp_path, hangs, context, forked):
    """By another fork, and under 'safe' after some of these by the fork server."""
    body = f"""
    hang_in_starts({hangs})
    iterator = make(context={context!r})
    indices = []
    while not have_begun(iterator):
        indices += [index for index, _ in next(iterator)]
    assert indices == [number % 64 for number in range(len(indices))]
    parents = [psutil.Process(pid).ppid() for pid in pids_of(iterator)]
    print(parents.count(os.getpid()), len(parents), flush=True)
    """
    assert run_beside(tmp_path, body)[0] == f"{forked} 2\n"


def test_no_start_hangs_beside_a_thread_that_draws_by_torch(tmp_path):
    """The next call may come late: so all workers start without one, also those that take the place
    of dead ones."""
    pytest.importorskip("torch")
    body = """
    begin(draw_by_torch)
    iterator = make(context="fork", n_processes=8)
    next(iterator)
    wait_until(lambda: have_begun(iterator), "all workers start")
    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, 9)
    while len(set(pids_of(iterator)) - set(pids)) < 8:
        next(iterator)
    wait_until(lambda: have_begun(iterator), "all workers start again")
    print("done", flush=True)
    """
    assert run_beside(tmp_path, body)[0] == "done\n"


def test_starts_that_hang_again_and_again_are_an_error(tmp_path):
    body = """
    hang_in_starts(1000)
    iterator = make(context="fork")
    try:
        next(iterator)
    except WorkerDiedError as error:
        print(str(error).partition(" in a row were forked and then waited for a lock")[0])
        assert "context='safe'" in str(error) and "after a fork" in str(error), error
    sys.stdout.flush()
    iterator.finalize()  # the other worker's start may hang still
    """
    assert run_beside(tmp_path, body)[0] == "4 worker processes\n"


def test_a_reader_whose_start_hangs_is_started_again(tmp_path):
    body = """
    hang_in_starts(1)
    warnings.simplefilter("ignore", RuntimeWarning)
    samples = list(multiprocess_reader([numbers, numbers], context="fork")())
    print(sorted(samples) == sorted([*range(100)] * 2), flush=True)
    """
    assert run_beside(tmp_path, body)[0] == "True\n"


@forks_by_default
@pytest.mark.traces
def test_an_interrupt_leaves_no_limit_of_blas(tmp_path):
    """Ctrl-C when workers are about to be forked, and when the limit is lifted after it."""
    script = """
    import sys
    import numpy as np
    from threadpoolctl import ThreadpoolController, threadpool_info
    from fastiter import MultiprocessIterator
    from fastiter._workers.thread_limits import _OwnPools
    from interrupts import interrupt_at

    def threads():
        return [pool["num_threads"] for pool in threadpool_info()]

    before = threads()
    for place in (ThreadpoolController.limit, _OwnPools.limit), (_OwnPools.limit, _OwnPools.limit):
        iterator = MultiprocessIterator(range(8), 4, n_processes=1, context="fork")
        try:
            with interrupt_at(*place, "return"):
                next(iterator)
        except KeyboardInterrupt:
            print("interrupted", threads() == before)
        next(iterator)
        iterator.finalize()
        print(threads() == before)
    """
    status, out, err = run_script(tmp_path, textwrap.dedent(script))
    assert (status, out, err) == (0, "interrupted True\nTrue\n" * 2, "")
