"""Actions of a forked child of the program on its parent's workers."""

from __future__ import annotations

import copy
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import fast
import pytest
from examples_of import WIDE, Blocks
from inside import pids_of, ring_of, slots_of
from outside import in_child, is_alive, later, run_script, wait_until

from fastiter import MultiprocessIterator
from fastiter._workers.process import WorkerProcess
from fastiter._workers.process_group import WorkerGroup

HEAD = """
import gc, os, sys, time
from multiprocessing import get_context
from examples_of import Blocks
from fastiter import MultiprocessIterator, concat_examples
from inside import n_restarts, pids_of
from outside import is_alive, wait_until
"""


@pytest.fixture
def elements():
    return 64


@pytest.fixture
def iterator(elements):
    with MultiprocessIterator(
        Blocks(60, elements), 3, n_processes=2, shuffle=False, context="fork"
    ) as iterator:
        next(iterator)
        yield iterator


def test_next_in_a_child_is_a_clear_error(iterator):
    def child():
        for _ in range(2):
            with pytest.raises(RuntimeError, match=f"process {os.getppid()}.*copy"):
                next(iterator)
        return True

    assert in_child(child) == 0
    assert next(iterator)[0][0] == 3 * 64


@pytest.mark.no_stuck_rows("no worker is to end")
@pytest.mark.parametrize("deed", ["finalize", "close", "delete", "reset", "start", "with"])
def test_a_childs_deed_does_not_touch_the_workers(iterator, deed):
    box = [iterator]
    pids = pids_of(iterator)

    def child():
        iterator = box.pop()
        if deed == "delete":
            del iterator
            gc.collect()
        elif deed == "with":
            with iterator:
                pass
        elif deed == "start":
            with pytest.raises(RuntimeError, match="belongs to process"):
                iterator.start()
        else:
            getattr(iterator, deed)()
        return True

    del iterator
    assert in_child(child) == 0
    assert all(map(is_alive, pids))
    for number in range(1, 40):
        assert next(box[0])[0][0] == number * 3 % 60 * 64
    assert pids_of(box[0]) == pids


def test_a_copy_works_in_a_child(iterator):
    def child():
        with copy.copy(iterator) as other:
            return bool(next(other)[0][0] == 3 * 64 and next(other)[0][0] == 6 * 64)

    assert in_child(child) == 0
    assert next(iterator)[0][0] == 3 * 64


def test_a_fork_in_another_thread_while_next_runs(iterator):
    """Forks at any moment, with a child that ends at once or finalizes."""
    stop = threading.Event()
    statuses = []

    def fork_often():
        while not stop.is_set() and len(statuses) < 50:
            pid = os.fork()
            if pid == 0:
                iterator.finalize()
                os._exit(0)
            statuses.append(os.waitpid(pid, 0)[1])

    thread = threading.Thread(target=fork_often)
    thread.start()
    try:
        for number in range(1, 400):
            assert next(iterator)[1][5] == (number * 3 + 1) % 60 * 64 + 5
    finally:
        stop.set()
        thread.join()
    assert set(statuses) == {0}


def test_a_fork_while_memory_for_a_batch_is_allocated(output_of):
    """A slot that comes back meanwhile changes nothing for the batch that gets the memory."""
    out = output_of("""
        import threading, warnings

        for category in (RuntimeWarning, DeprecationWarning):  # the thread makes forks unsafe, too
            warnings.simplefilter("ignore", category)

        def fork_often():
            while not stop.is_set():
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)

        if __name__ == "__main__":
            for _ in range(2):
                iterator = MultiprocessIterator(
                    Blocks(64, 1 << 17), 16, n_processes=2, n_prefetch=3, shared_mem=1 << 20,
                    shuffle=False, context="fork",
                )
                stop = threading.Event()
                thread = threading.Thread(target=fork_often)
                thread.start()
                try:
                    for number in range(8):
                        batch = next(iterator)
                        first = 16 * number % 64
                        assert [int(x[0]) >> 17 for x in batch] == [*range(first, first + 16)]
                finally:
                    stop.set()
                    thread.join()
                iterator.finalize()
            print("done")
        """)
    assert out == "done\n"


@pytest.mark.parametrize("deed", ["next", "copy", "state_dict", "finalize"])
def test_a_child_forked_while_a_thread_waits_in_next(iterator, deed):
    def child():
        if deed == "next":
            with pytest.raises(RuntimeError, match=f"process {os.getppid()}.*copy"):
                next(iterator)
        elif deed == "copy":
            with copy.copy(iterator) as other:
                return bool(next(other)[0][0] == 0 and next(other)[0][0] == 3 * 64)
        elif deed == "state_dict":
            return iterator.state_dict()["position"] == 0
        else:
            iterator.finalize()
        return True

    def is_in_next():
        is_free = iterator._lock.acquire(blocking=False)
        if is_free:
            iterator._lock.release()
        return not is_free

    pids = pids_of(iterator)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    iterator.reset()  # nothing is complete
    with later(lambda: next(iterator)):
        try:
            wait_until(is_in_next, "the thread is in next()")
            status = in_child(child)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    assert status == 0
    assert next(iterator)[0][0] == 3 * 64


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [1, 2])
def test_an_interrupt_within_a_fork_costs_no_slot(iterator, number):
    """CPython drops what is raised within a hook of a fork, and calls the hooks that follow."""
    n_calls = 0

    def interrupt(frame, event, argument):  # our call of this number within os.fork
        nonlocal n_calls
        if "fastiter" in frame.f_globals["__name__"]:
            n_calls += 1
            if n_calls == number:
                raise KeyboardInterrupt

    former = sys.gettrace()
    sys.settrace(interrupt)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    finally:
        sys.settrace(former)
    assert os.waitpid(pid, 0)[1] == 0
    for _ in range(4):
        next(iterator)
    assert slots_of(iterator)["retired"] == 0


@pytest.mark.parametrize("elements", [WIDE])
def test_neither_a_fork_nor_another_iterators_start_changes_a_ring(iterator):
    """Another thread may be changing it: returned slots are collected by `next()` alone."""
    batches = [next(iterator), next(iterator)]
    ring = ring_of(iterator)
    ring.has_free_slot()
    before = ring.slots
    assert before["leased"] == 2
    del batches[0]
    with MultiprocessIterator(Blocks(60), 3, n_processes=1, context="fork") as other:
        other.start()
        assert in_child(lambda: True) == 0
        assert ring.slots == before
        assert ring.has_views
    del batches[0]
    assert not ring.has_views
    assert ring.slots == before
    ring.has_free_slot()
    assert (ring.slots["leased"], ring.slots["retired"]) == (0, 1)


@pytest.mark.parametrize(
    ("method", "end"),
    [
        ("fork", "sys.exit(0)"),
        ("fork", "None"),
        ("fork", "1 / 0"),
        pytest.param("spawn", "sys.exit(0)", marks=pytest.mark.stress),
        ("forkserver", "None"),
    ],
)
def test_a_childs_exit_does_not_touch_the_workers(output_of, method, end):
    """An ordinary end runs the exit handlers that the child inherited, multiprocessing's too."""
    out = output_of(f"""
        from multiprocessing.resource_tracker import ResourceTracker

        if __name__ == "__main__":
            iterator = MultiprocessIterator(
                Blocks(60), 3, n_processes=2, shuffle=False, context={method!r}
            )
            batch = next(iterator)
            pids = pids_of(iterator)
            child = os.fork()
            if child == 0:
                # CPython 3.13.5's complains where the tracker is the parent's.
                ResourceTracker.__del__ = lambda tracker: None
                if "1 / 0" == {end!r}:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                {end}
                sys.exit(0)
            os.waitpid(child, 0)
            assert all(map(is_alive, pids)), "the child's end killed workers"
            for number in range(1, 100):
                assert next(iterator)[0][0] == number * 3 % 60 * 64
            assert pids_of(iterator) == pids
            assert n_restarts(iterator) == 0
            print("done")
        """)
    assert out == "done\n"


def test_a_multiprocessing_child_that_holds_the_iterator(output_of):
    out = output_of("""
def look(iterator):
    try:
        next(iterator)
    except RuntimeError as error:
        assert "copy" in str(error), error
    else:
        raise AssertionError("next() worked in a child")

if __name__ == "__main__":
    iterator = MultiprocessIterator(Blocks(60), 3, n_processes=2, shuffle=False, context="fork")
    next(iterator)
    pids = pids_of(iterator)
    process = get_context("fork").Process(target=look, args=(iterator,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert all(map(is_alive, pids))
    assert next(iterator)[0][0] == 3 * 64
    print("done")
""")
    assert out == "done\n"


THREADS = (
    HEAD
    + """
import threading, warnings

warnings.simplefilter("ignore", RuntimeWarning)  # forks are unsafe here, which is told

def run(number):
    for turn in range(6):
        with MultiprocessIterator(
            Blocks(12), 3, n_processes=2, shuffle=False, repeat=False, context="fork"
        ) as iterator:
            assert [int(block[0]) // 64 for batch in iterator for block in batch] == [*range(12)]
            assert iterator.stats().deaths == 0, iterator.stats()
    done.append(number)

sys.setswitchinterval(1e-5)
done = []
threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(done) == [0, 1, 2, 3]
"""
)


def test_threads_start_and_end_workers_at_once(tmp_path):
    # A worker that fails at its start says so on stderr.
    status, _, err = run_script(tmp_path, THREADS)
    assert status == 0 and not err, err


def test_a_start_that_was_interrupted_does_not_count_as_hung(caplog):
    """A worker that waits for the parent's word, since that was interrupted, does not hang."""
    caplog.set_level(logging.INFO, "fastiter")
    n_left = 3

    def interrupt(frame, event, argument):
        nonlocal n_left
        if frame.f_code.co_name == "_allow_start" and n_left:
            n_left -= 1
            raise KeyboardInterrupt

    with MultiprocessIterator(range(10), 1, n_processes=1, context="fork") as iterator:
        next(iterator)
        (first,) = pids_of(iterator)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), "the end of the worker")
        for _ in range(3):
            sys.settrace(interrupt)
            try:
                while n_left == 3:  # what is there already, is delivered first
                    next(iterator)
                next(iterator)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            # By then a fork that waits counts as hung, and `next()` looks at it.
            limit = time.monotonic() + 0.6
            wait_until(lambda limit=limit: time.monotonic() > limit, "the limit")
        next(iterator)
    assert n_left < 3
    assert "waited for a lock" not in caplog.text


def test_a_worker_that_begins_during_the_look_at_its_start_is_not_ended(monkeypatch):
    """By then it waits, too: for work."""
    looked_at = []
    has_begun = WorkerGroup._has_begun

    def asked(group, worker):
        if worker in looked_at:
            wait_until(lambda: has_begun(group, worker), "the end of the start")
            return True
        looked_at.append(worker)
        return False

    monkeypatch.setattr(WorkerGroup, "_has_begun", asked)
    monkeypatch.setattr(WorkerProcess, "waited_in_start", lambda worker: 60.0)
    with MultiprocessIterator(range(10), 1, n_processes=2, context="fork") as iterator:
        for _ in range(20):
            next(iterator)
        assert len(looked_at) == 2 and iterator.stats().deaths == 0


def test_a_childs_threads_locals_end_nothing_of_the_parent(output_of):
    """CPython deletes the locals of other threads before any handler of a fork runs."""
    out = output_of("""
        import threading, warnings
        warnings.simplefilter("ignore")  # of forks beside threads
        local, here, go_on = threading.local(), threading.Barrier(2), threading.Barrier(2)

        def loop():
            local.iterator = MultiprocessIterator(
                Blocks(60), 3, n_processes=2, shuffle=False, context="fork")
            next(local.iterator)
            for _ in range(5):
                here.wait()
                go_on.wait()
                next(local.iterator)
            here.wait()
            print(local.iterator.stats().deaths)
            local.iterator.finalize()

        thread = threading.Thread(target=loop)
        thread.start()
        for _ in range(5):
            here.wait()
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            go_on.wait()
        here.wait()
        thread.join()
    """)
    assert out == "0\n"


def test_garbage_that_a_child_collects_ends_nothing_of_the_parent(tmp_path):
    """Before any of the package's own handlers of the fork has run."""
    source = """
    import gc, os
    os.register_at_fork(after_in_child=gc.collect)  # handlers run in the order of their imports
    """
    status, out, err = run_script(
        tmp_path,
        textwrap.dedent(source)
        + HEAD
        + textwrap.dedent("""
        iterator = MultiprocessIterator(Blocks(60), 3, n_processes=2, context="fork")
        next(iterator)
        pids = pids_of(iterator)
        gc.disable()
        iterator.itself = iterator
        del iterator
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print(all(map(is_alive, pids)))
        gc.collect()
        """),
    )
    assert (status, out, err) == (0, "True\n", "")


def test_garbage_that_a_worker_collects_does_not_end_it(tmp_path):
    """Its memory is that of another iterator, whose descriptors the worker would close."""
    source = """
    import logging
    iterator = MultiprocessIterator(Blocks(60), 3, n_processes=1, context="fork")
    batch = next(iterator)
    gc.disable()
    garbage = [batch, iterator]
    garbage.append(garbage)
    del garbage, batch, iterator
    os.register_at_fork(after_in_child=gc.collect)
    logging.getLogger("fastiter").addHandler(logging.StreamHandler(sys.stdout))
    with MultiprocessIterator(Blocks(60), 3, n_processes=1, context="fork") as other:
        print(len(next(other)))
    """
    assert run_script(tmp_path, HEAD + textwrap.dedent(source)) == (0, "3\n", "")


@pytest.mark.parametrize("waits", [True, False])
def test_a_process_that_a_test_starts_is_noticed(waits):
    """So that a test which is marked fast, and starts one, fails."""
    watch = fast.Watch()
    assert not watch.has_started()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    try:
        if waits:
            process.communicate()
        assert watch.has_started()
    finally:
        process.communicate()
