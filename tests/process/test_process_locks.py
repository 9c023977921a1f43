"""Workers that are forked beside threads: locks that those threads hold at the fork."""

from __future__ import annotations

import multiprocessing
import platform
import textwrap
from pathlib import Path

import pytest
from outside import openmp_library, run_script

pytestmark = [
    pytest.mark.skipif(
        multiprocessing.get_all_start_methods()[0] != "fork",
        reason="this interpreter's default is not to fork",
    ),
    pytest.mark.skipif(
        platform.system() != "Linux", reason="only Linux tells what a process waits for"
    ),
]

PROGRAM = """
import logging, multiprocessing, os, sys, threading, time, warnings
import numpy as np
from fastiter import MultiprocessIterator, WorkerDiedError
from fastiter.reader import multiprocess_reader

# Where a test releases a lock: when a worker has been ended that waited for it.
found = threading.Event()

class Finding(logging.Handler):
    def emit(self, record):
        if "waited for a lock" in record.getMessage():
            found.set()
            for thread in released:
                thread.join()

released = []
logging.getLogger("fastiter").addHandler(Finding())
logging.getLogger("fastiter").setLevel(logging.INFO)
held = threading.Event()
lock = threading.Lock()

def hold(lock, until=threading.Event()):
    with lock:
        held.set()
        until.wait()

def begin(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, daemon=True, name="the holder")
    thread.start()
    assert held.wait(30)
    return thread

class Dataset:
    def __len__(self):
        return 32
    def __getitem__(self, index):
        return example(index)

def check(hung=False, context=None, **options):
    options = {{"n_processes": 2, "shuffle": False, "repeat": False, **options}}
    with MultiprocessIterator(Dataset(), 4, context=context, **options) as iterator:
        indices = [index for batch in iterator for index in batch]
        assert indices == list(range(32)), indices
        if hung is not None:
            assert hung == (iterator.stats().deaths > 0)
    print("right")

def check_error(run, *words):
    try:
        run()
    except (WorkerDiedError, RuntimeError) as error:
        for word in ("4 worker processes in a row", "the holder", "'safe'", *words):
            assert word in str(error), (word, error)
        print("told")

{definitions}

if __name__ == "__main__":
{body}
    sys.stdout.flush()
    os._exit(0)
"""


def run(directory: Path, definitions: str, body: str) -> str:
    source = PROGRAM.format(
        definitions=textwrap.dedent(definitions),
        body=textwrap.indent(textwrap.dedent(body), "    "),
    )
    status, out, err = run_script(directory, source)
    assert status == 0, err
    return out


LOCKED = """
def example(index):
    with lock:
        return index
"""


@pytest.mark.parametrize("context", [None, "fork"])
def test_a_lock_that_is_never_released_is_an_error(tmp_path, context):
    """It names the place of the lock, and the threads."""
    body = f"""
    begin(hold, lock)
    check_error(lambda: check(context={context!r}), "in example", "context='safe'")
    """
    assert run(tmp_path, LOCKED, body) == "told\n"


def test_a_lock_that_worker_init_waits_for(tmp_path):
    definitions = """
    def example(index):
        return index
    def start(number):
        with lock:
            pass
    """
    body = """
    begin(hold, lock)
    check_error(lambda: check(worker_init=start), "in start")
    """
    assert run(tmp_path, definitions, body) == "told\n"


def test_another_fork_finds_a_lock_released(tmp_path):
    """No row is lost, and none is blamed for the death."""
    body = """
    released.append(begin(hold, lock, found))
    check(hung=True)
    """
    assert run(tmp_path, LOCKED, body) == "right\n"


def test_safe_needs_no_other_fork(tmp_path):
    body = """
    begin(hold, lock)
    check(context="safe")
    """
    assert run(tmp_path, LOCKED, body) == "right\n"


@pytest.mark.parametrize("ends", [False, True])
def test_a_reader_that_waits_before_its_first_sample(tmp_path, ends):
    definitions = """
    def numbers():
        with lock:
            yield from range(100)
    def read():
        return sorted(multiprocess_reader([numbers, numbers])())
    """
    body = f"""
    if {ends}:
        released.append(begin(hold, lock, found))
        assert read() == sorted([*range(100)] * 2)
        assert found.is_set()
    else:
        begin(hold, lock)
        check_error(read, "in numbers")
    """
    assert run(tmp_path, definitions, body) == ("" if ends else "told\n")


@pytest.mark.parametrize("kind", ["map", "iterable"])
@pytest.mark.parametrize("ends", [False, True])
def test_the_loader_of_torch(tmp_path, kind, ends):
    pytest.importorskip("torch")
    definitions = f"""
    import torch.utils.data
    from fastiter.torch import DataLoader

    class Locked(torch.utils.data.Dataset):
        def __len__(self):
            return 32
        def __getitem__(self, index):
            with lock:
                return index

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            number = torch.utils.data.get_worker_info().id
            for index in range(16):
                with lock:
                    yield 2 * index + number

    dataset = Locked() if {kind == "map"} else Stream()

    def read():
        loader = DataLoader(dataset, 4, num_workers=2)
        return sorted(index for batch in loader for index in batch.tolist())
    """
    body = f"""
    if {ends}:
        released.append(begin(hold, lock, found))
        assert read() == list(range(32))
        assert found.is_set()
        assert DataLoader([1], num_workers=1, multiprocessing_context="safe")
    else:
        begin(hold, lock)
        check_error(read, "multiprocessing_context='safe'")
    """
    assert run(tmp_path, definitions, body) == ("" if ends else "told\n")


# ---- locks of others -----------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True])
def test_an_import_in_another_thread(tmp_path, ends):
    (tmp_path / "imported.py").write_text(
        "import sys\nprogram = sys.modules['__main__']\nprogram.held.set()\n"
        f"(program.found if {ends} else program.threading.Event()).wait()\n"
    )
    definitions = """
    def load():
        import imported
    def example(index):
        load()
        return index
    """
    body = f"""
    if {ends}:
        released.append(begin(load))
        check(hung=True)
    else:
        begin(load)
        check_error(check, "importlib", "in load")
    """
    assert run(tmp_path, definitions, body) == ("right\n" if ends else "told\n")


def test_a_handler_of_logging(tmp_path):
    """Python makes its locks anew in a child."""
    definitions = """
    def example(index):
        logging.getLogger("dataset").warning("index %d", index)
        return index
    """
    body = """
    logging.basicConfig(stream=open(os.devnull, "w"))
    begin(hold, logging.getLogger().handlers[0].lock)
    check()
    """
    assert run(tmp_path, definitions, body) == "right\n"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_generator_of_random_numbers(tmp_path, library):
    """Workers have generators of their own, whose locks are free."""
    pytest.importorskip(library)
    definitions = f"""
    import {library}
    def draw():
        while True:
            if {library!r} == "torch":
                torch.rand(200_000)
            else:
                np.random.random_sample(200_000)
            held.set()
    def example(index):
        torch.rand(3) if {library!r} == "torch" else np.random.rand(3)
        return index
    """
    body = """
    begin(draw)
    for _ in range(3):
        check(hung=None)
    """
    assert run(tmp_path, definitions, body) == "right\n" * 3


def test_a_start_that_fails_leaves_nothing_for_later_forks(tmp_path):
    """The lock of torch's generator is freed for forks of workers alone: a native library may fork
    without the GIL, which that needs."""
    definitions = """
    import itertools, types
    example = int
    takes = itertools.count()
    generator = types.SimpleNamespace(get_state=takes.__next__)
    sys.modules["torch"] = types.SimpleNamespace(default_generator=generator)

    class Full:
        def write(self, text): pass
        def flush(self): raise OSError(28, "no space is left")
    """
    body = """
    iterator, out = MultiprocessIterator(Dataset(), 4, context="fork"), sys.stdout
    sys.stdout = Full()
    try:
        next(iterator)
    except OSError as error:
        code = error.errno
    iterator.finalize()
    sys.stdout, n_takes = out, next(takes)
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    print(next(takes) - n_takes, code)
    """
    assert run(tmp_path, definitions, body) == "1 28\n"


NATIVE = """
#include <stdlib.h>

void churn(void)
{
    for (int i = 0; i < 1000000; i++) {
        void *small = malloc(i % 4096 + 1), *large = malloc(i % 300000 + 1);
        free(small);
        free(large);
    }
}

double sum_by_two(const double *values, long n)
{
    double sum = 0;
    #pragma omp parallel for num_threads(2) reduction(+ : sum)
    for (long i = 0; i < n; i++)
        sum += values[i];
    return sum;
}
"""


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A library that allocates, and computes by OpenMP's threads."""
    return openmp_library(tmp_path_factory.mktemp("native"), NATIVE)


def test_memory_that_other_threads_allocate(tmp_path, native):
    definitions = f"""
    import ctypes
    library = ctypes.CDLL({native!r})
    def churn():
        while True:
            held.set()
            library.churn()
    def example(index):
        return np.full(100_000, index).tolist()[-1]
    """
    body = """
    for _ in range(2):
        begin(churn)
    check()
    """
    assert run(tmp_path, definitions, body) == "right\n"


def test_a_region_of_openmp_that_wants_more_threads(tmp_path, native):
    """It waits for threads that the fork did not copy. A fork server has threads of its own."""
    definitions = f"""
    import ctypes
    library = ctypes.CDLL({native!r})
    library.sum_by_two.restype = ctypes.c_double
    def example(index):
        values = np.full(1000, index, float)
        return library.sum_by_two(values.ctypes.data_as(ctypes.c_void_p), 1000) / 1000
    """
    body = """
    begin(hold, threading.Lock())
    assert example(3) == 3
    check_error(check, "in example")
    check(context="safe")
    """
    assert run(tmp_path, definitions, body) == "told\nright\n"


# ---- what only takes long ------------------------------------------------------------------------

SLOW = {
    "sleeps": "time.sleep(2)",
    "a time limit": "threading.Event().wait(2)",
    "a thread of the worker": "hold_for_a_while()",
    "another process": "shared.acquire(); shared.release()",
}


@pytest.mark.parametrize("what", list(SLOW))
def test_a_worker_that_may_go_on_is_left_alone(tmp_path, what):
    definitions = f"""
    shared = multiprocessing.Lock()
    def hold_for_a_while():
        ended = threading.Event()
        threading.Thread(target=lambda: (time.sleep(2), ended.set())).start()
        ended.wait()
    def hold_shared():
        with shared:
            held.set()
            time.sleep(2)
    first = [True]
    def example(index):
        if first:
            first.clear()
            {SLOW[what]}
        return index
    """
    body = """
    begin(hold_shared)
    check()
    """
    assert run(tmp_path, definitions, body) == "right\n"
