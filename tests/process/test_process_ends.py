"""Nothing is left, whoever ends and how."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading

import psutil
import pytest
from examples_of import Blocks, Opened
from inside import pids_of
from outside import (
    children,
    descriptors,
    is_alive,
    kill,
    mapped_arenas,
    orphaned_names,
    resident,
    run_script,
    start_script,
    threads,
    wait_until,
)

from fastiter import MultiprocessIterator, concat_examples

HEAD = """
import atexit, builtins, gc, multiprocessing, os, pathlib, signal, sys, threading, time
from examples_of import Blocks
from fastiter import MultiprocessIterator, concat_examples
from inside import pids_of
from outside import wait_until

class Stuck(Blocks):
    # At index 0 the first, at 1 the second of two workers hangs.
    def __init__(self, size, how, marks):
        super().__init__(size)
        self.how, self.marks = how, marks

    def __getitem__(self, index):
        if index < 2 and self.how:
            pathlib.Path(self.marks, str(index)).touch()
            if self.how == "sleep":
                time.sleep(1000)
            elif self.how == "loop":
                sum(range(10**12))
            else:
                os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)
"""


def footprint():
    gc.collect()
    return {
        "children": sorted(children()),
        "threads": threads(),
        "descriptors": descriptors(),
        "mappings": mapped_arenas(),
    }


@pytest.mark.parametrize(
    ("method", "cycles"),
    [
        ("fork", 12),
        pytest.param("fork", 200, marks=pytest.mark.stress),
        pytest.param("spawn", 3, marks=pytest.mark.stress),
        ("forkserver", 3),
    ],
)
def test_cycles_leave_nothing(method, cycles):
    def cycle(number):
        iterator = MultiprocessIterator(
            Blocks(40, 2000),
            4,
            n_processes=2,
            context=method,
            converter=concat_examples if number % 2 else None,
        )
        for _ in range(3):
            next(iterator)
        if number % 3:
            iterator.finalize()

    for number in range(2):
        cycle(number)
    before, names, memory = footprint(), orphaned_names(), resident()
    for number in range(cycles):
        cycle(number)
    # multiprocessing reaps its own children late
    wait_until(lambda: footprint()["children"] == before["children"], "all workers end")
    assert footprint() == before
    assert orphaned_names() <= names
    assert resident() - memory < 12 << 20


def test_starts_that_fail_leave_nothing():
    def cycle():
        iterator = MultiprocessIterator(Opened(8), 4, n_processes=2, context="spawn")
        with pytest.raises(TypeError):
            next(iterator)
        iterator.finalize()

    cycle()
    before, names = footprint(), orphaned_names()
    for _ in range(5):
        cycle()
    assert footprint() == before
    assert orphaned_names() <= names


# -- the parent ends ---------------------------------------------------------------------------

PROGRAM = (
    HEAD
    + """
if __name__ == "__main__":
    method, how, marks, begin = {arguments!r}
    def main():
        global iterator, batch
        iterator = MultiprocessIterator(
            Stuck(40, how, marks), 4, n_processes=2, shuffle=False, context=method
        )
        if how:
            iterator.start()
            wait_until(lambda: len(os.listdir(marks)) == 2, "both workers hang")
        else:
            batch = next(iterator)
        print(*pids_of(iterator), flush=True)
        sys.stdin.readline()
        if begin == "exec":
            os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])
    if begin == "thread":
        thread = threading.Thread(target=main)
        thread.start()
        thread.join()
    else:
        main()
"""
)


def parents():
    """Start method, what the workers do, and what the parent does; the rare ones nightly."""
    for method, how, begin in itertools.product(
        ["fork", "spawn", "forkserver"], ["", "sleep", "loop"], ["main", "thread", "exec"]
    ):
        is_first = how == "loop" and begin != "thread"
        nightly = not is_first and (method != "fork" or (how != "loop" and begin != "main"))
        yield pytest.param(method, how, begin, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.parametrize(("method", "how", "begin"), list(parents()))
def test_a_parent_killed_or_replaced_leaves_nothing(tmp_path, monkeypatch, method, how, begin):
    names = orphaned_names()
    temporary = tempfile.mkdtemp()  # a name that has room for that of a socket
    monkeypatch.setenv("TMPDIR", temporary)
    marks = tmp_path / "marks"
    marks.mkdir()
    program = start_script(
        tmp_path,
        PROGRAM.format(arguments=(method, how, str(marks), begin)),
        stdin=subprocess.PIPE,
    )
    try:
        line = program.stdout.readline()
        assert line, program.communicate()[1]
        workers = [int(pid) for pid in line.split()]
        family = children(program.pid)
        assert len(workers) == 2
        assert set(workers) <= family
        if begin == "exec":
            program.stdin.write("\n")
            program.stdin.flush()
            family = set(workers)
        else:
            program.kill()
        wait_until(lambda: not any(map(is_alive, family)), "all end with the parent", 10)
    finally:
        program.kill()
        program.communicate()
    assert orphaned_names() <= names
    # The fork server of a program that has replaced itself is not in `family`.
    wait_until(lambda: not os.listdir(temporary), "temporary files go, too", 10)
    os.rmdir(temporary)


def server_of(program):
    for child in psutil.Process(program.pid).children():
        if any("forkserver" in word for word in child.cmdline()):
            return child.pid
    raise AssertionError("there is no fork server")


def test_a_fork_server_removes_the_folder_of_its_own_program_alone(tmp_path, monkeypatch):
    temporary = tempfile.mkdtemp()  # a name that has room for that of a socket
    monkeypatch.setenv("TMPDIR", temporary)
    source = PROGRAM.format(arguments=("forkserver", "", "", "main")) + "    next(iterator)\n"
    programs, folders = [], []
    try:
        for _ in range(2):
            programs.append(start_script(tmp_path, source, stdin=subprocess.PIPE))
            assert programs[-1].stdout.readline(), programs[-1].communicate()[1]
            folders.append(set(os.listdir(temporary)).difference(*folders))
        killed, living = programs
        server = server_of(killed)
        killed.kill()
        wait_until(lambda: not is_alive(server), "its server ends")
        assert set(os.listdir(temporary)) == folders[1] != set()
        assert living.communicate("\n") == ("", "") and living.returncode == 0
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    assert folders[0] and os.listdir(temporary) == []
    os.rmdir(temporary)


@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP", "SIGABRT"])
def test_a_parent_ended_by_a_signal_leaves_nothing(tmp_path, number):
    program = start_script(
        tmp_path, PROGRAM.format(arguments=("fork", "", "", "main")), stdin=subprocess.PIPE
    )
    try:
        assert program.stdout.readline()
        family = children(program.pid)
        assert len(family) == 2
        kill(program.pid, getattr(signal, number))
        wait_until(lambda: not any(map(is_alive, family)), "all end with the parent", 10)
    finally:
        program.kill()
        program.communicate()


def said_after_ctrl_c(program, imports):
    try:
        wait_until(imports, "a worker, or the fork server, imports")
        os.killpg(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=30)
        return program.returncode, out, err
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ctrl_c_while_workers_import_is_the_parents_alone(tmp_path, method):
    """Sent to the whole group, as a terminal does, while the workers import the main program."""
    marks = tmp_path / "marks"
    marks.mkdir()
    program = start_script(
        tmp_path,
        HEAD
        + f"""
if __name__ == "__mp_main__":
    pathlib.Path({str(marks)!r}, str(os.getpid())).touch()
    wait_until(pathlib.Path({str(tmp_path / "go")!r}).exists, "the parent was interrupted")

if __name__ == "__main__":
    multiprocessing.set_forkserver_preload([])  # else the server would import it for all
    iterator = MultiprocessIterator(
        Blocks(40), 4, n_processes=2, shuffle=False, context={method!r}
    )
    iterator.start()
    pids = pids_of(iterator)
    print("started", flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        pathlib.Path({str(tmp_path / "go")!r}).touch()
    batch = next(iterator)
    print(batch[1][0], pids_of(iterator) == pids)
    iterator.finalize()
""",
        start_new_session=True,
    )
    assert program.stdout.readline() == "started\n"
    assert said_after_ctrl_c(program, lambda: os.listdir(marks)) == (0, "64.0 True\n", "")


def test_ctrl_c_while_the_fork_server_imports(tmp_path):
    """The program waits for it meanwhile. The next call starts the workers anew."""
    program = start_script(
        tmp_path,
        HEAD
        + f"""
if __name__ == "__mp_main__":
    pathlib.Path({str(tmp_path / "imports")!r}).touch()
    wait_until(pathlib.Path({str(tmp_path / "go")!r}).exists, "the parent was interrupted")

if __name__ == "__main__":
    iterator = MultiprocessIterator(
        Blocks(40), 4, n_processes=2, shuffle=False, context="forkserver"
    )
    try:
        iterator.start()
    except KeyboardInterrupt:
        pathlib.Path({str(tmp_path / "go")!r}).touch()
    print(next(iterator)[1][0])
    iterator.finalize()
""",
        start_new_session=True,
    )
    assert said_after_ctrl_c(program, (tmp_path / "imports").exists) == (0, "64.0\n", "")


# -- the interpreter exits in silence --------------------------------------------------------------

ENDS = {
    "a global": "",
    "a global that a thread has used": """
    thread = threading.Thread(target=next, args=(iterator,))
    thread.start()
    thread.join()""",
    "held batches": "kept = [next(iterator), concat_examples(next(iterator))]",
    "a cycle": "class A: pass\n    a = A(); a.a = a; a.i = iterator; del iterator, a",
    "builtins": "builtins.iterator = iterator",
    "after finalize": "iterator.finalize()",
    "prefetch under way": "iterator.reset(); iterator.start()",
    "sys.exit": "sys.exit(0)",
    "os._exit": "os._exit(0)",
    "a daemon thread in next": """
    def go_on():
        for batch in iterator:
            pass
    threading.Thread(target=go_on, daemon=True).start()
    time.sleep(0.1)""",
    "a daemon thread that waits": """
    import warnings; warnings.simplefilter("ignore", RuntimeWarning)  # the thread forks, too
    iterator = MultiprocessIterator(
        Stuck(40, "sleep", sys.argv[0] + ".d"), 4, n_processes=2, shuffle=False, context="fork"
    )
    os.mkdir(sys.argv[0] + ".d")
    threading.Thread(target=next, args=(iterator,), daemon=True).start()
    wait_until(lambda: len(os.listdir(sys.argv[0] + ".d")) == 2, "both workers hang")""",
    "an exit handler that uses it": "atexit.register(lambda: next(iterator))",
    "workers stopped": "[os.kill(pid, signal.SIGSTOP) for pid in pids_of(iterator)]",
    "workers killed": "[os.kill(pid, signal.SIGKILL) for pid in pids_of(iterator)]",
    "many iterators": """
    more = [MultiprocessIterator(Blocks(40), 4, n_processes=2, context="fork") for _ in range(4)]
    for other in more:
        next(other)""",
}
#: Those that end as another one does.
NIGHTLY = ("a global that a thread has used", "builtins", "sys.exit", "workers stopped")


@pytest.mark.parametrize(
    ("state", "method"),
    [
        *((state, "fork") for state in ENDS if state not in NIGHTLY),
        ("a global", "spawn"),
        ("builtins", "forkserver"),
        *(pytest.param(state, "fork", marks=pytest.mark.stress) for state in NIGHTLY),
        pytest.param("a cycle", "spawn", marks=pytest.mark.stress),
        pytest.param("workers stopped", "forkserver", marks=pytest.mark.stress),
    ],
)
def test_the_exit_is_silent(tmp_path, output_of, state, method):
    out = output_of(f"""
if __name__ == "__main__":
    iterator = MultiprocessIterator(
        Blocks(40), 4, n_processes=2, shuffle=False, context={method!r}
    )
    next(iterator)
    pids = pids_of(iterator)
    pathlib.Path({str(tmp_path / "pids")!r}).write_text(" ".join(map(str, pids)))
    {ENDS[state]}
""")
    assert out == ""
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    wait_until(lambda: not any(map(is_alive, pids)), "workers end with the program", 10)


MAKERS = {
    **{
        method: f"MultiprocessIterator(Blocks(40), 4, n_processes=1, context={method!r})"
        for method in ("fork", "spawn", "forkserver")
    },
    "threads": "MultithreadIterator(Blocks(40), 4, n_threads=2)",
}


# CPython 3.13t itself may hang when it exits beside daemon threads that import modules or look them
# up, as those of this program do: a stopped thread may own the lock of sys.modules.
@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="CPython's exit hangs by itself"
)
@pytest.mark.parametrize(
    ("method", "times"),
    [(method, 1) for method in MAKERS]
    + [pytest.param(method, 3, marks=pytest.mark.stress) for method in MAKERS],
)
def test_the_exit_is_silent_amid_starts_and_ends_in_daemon_threads(tmp_path, method, times):
    program = f"""
import itertools, threading, warnings
from examples_of import Blocks
from fastiter import MultiprocessIterator, MultithreadIterator

def consume(n):
    while True:
        iterator = {MAKERS[method]}
        for _ in itertools.islice(iterator, n):
            moved.release()
        iterator.finalize()
        moved.release()

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the threads fork
    moved = threading.Semaphore(0)
    for n in [0, 0, 1, 1, 20, 10**9]:
        threading.Thread(target=consume, args=(n,), daemon=True).start()
    for _ in range(50):
        moved.acquire()
"""
    for _ in range(times):  # until the workers too, which have its streams, have ended
        assert run_script(tmp_path, program) == (0, "", "")


@pytest.mark.parametrize("how", ["sleep", "loop", "stop"])
def test_the_exit_with_hung_workers_is_silent(tmp_path, output_of, how):
    marks = tmp_path / "marks"
    marks.mkdir()
    out = output_of(f"""
if __name__ == "__main__":
    iterator = MultiprocessIterator(
        Stuck(40, {how!r}, {str(marks)!r}), 4, n_processes=2, shuffle=False, context="fork"
    )
    iterator.start()
    wait_until(lambda: len(os.listdir({str(marks)!r})) == 2, "both workers hang")
""")
    assert out == ""


def test_an_unhandled_exception_is_the_only_thing_said(tmp_path):
    status, out, err = run_script(
        tmp_path,
        HEAD
        + """
if __name__ == "__main__":
    iterator = MultiprocessIterator(Blocks(40), 4, n_processes=2, context="fork")
    for batch in iterator:
        raise LookupError("the loop's own")
""",
    )
    assert (status, out) == (1, "")
    assert err.count("Traceback") == 1
    assert err.endswith("LookupError: the loop's own\n")


def test_a_spawned_worker_runs_its_exit_handlers(tmp_path):
    status, out, err = run_script(
        tmp_path,
        """
        from examples_of import Farewell
        from fastiter import MultiprocessIterator

        if __name__ == "__main__":
            iterator = MultiprocessIterator(
                Farewell(4), 1, n_processes=1, context="spawn", maxtasksperchild=1
            )
            for _ in range(2):  # the second comes when the first worker has ended
                next(iterator)
            iterator.finalize()
        """,
    )
    assert (status, err) == (0, "")
    assert "goodbye\n" in out


# -- odd environments ------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("closed", [(0,), (0, 1, 2)])
def test_closed_standard_streams(tmp_path, method, closed):
    status, _, _ = run_script(
        tmp_path,
        HEAD
        + f"""
if __name__ == "__main__":
    for fd in {closed!r}:
        os.close(fd)
    if 1 in {closed!r}:
        sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
    iterator = MultiprocessIterator(
        Blocks(40, 1), 4, n_processes=2, shuffle=False, context={method!r}
    )
    for number in range(30):
        batch = next(iterator)
        for row in range(4):
            if batch[row][0] != (4 * number + row) % 40:
                os._exit(5)
    taken = [fd for fd in {closed!r} if os.path.exists(f"/proc/self/fd/{{fd}}")]
    links = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in taken]
    if any("fastiter" in link for link in links):
        os._exit(6)
    iterator.finalize()
    os._exit(7)
""",
    )
    assert status == 7


def test_a_daemonic_process_is_told(output_of):
    out = output_of("""
from multiprocessing import get_context

def child():
    try:
        next(MultiprocessIterator(Blocks(40), 4, n_processes=2, context="fork"))
    except RuntimeError as error:
        assert "daemon" in str(error) and "MultithreadIterator" in str(error)
    else:
        raise AssertionError("no error")

if __name__ == "__main__":
    process = get_context("fork").Process(target=child, daemon=True)
    process.start()
    process.join()
    print(process.exitcode)
""")
    assert out == "0\n"


def test_handlers_and_states_of_the_program_stay():
    import random

    import numpy as np

    before = [signal.getsignal(number) for number in range(1, 32)]
    random.seed(1)
    np.random.seed(1)
    states = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    threads = set(threading.enumerate())
    with MultiprocessIterator(
        Blocks(40), 4, n_processes=2, shuffle=False, context="fork"
    ) as iterator:
        for _ in range(20):
            next(iterator)
    assert before == [signal.getsignal(number) for number in range(1, 32)]
    assert states[0] == random.getstate()
    assert states[1:] == (np.random.get_state()[1].tolist(), np.random.get_state()[2])
    assert mask == signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert set(threading.enumerate()) <= threads


def test_children_of_the_program_are_left_alone():
    """A program that reaps all children, ours too, or ignores SIGCHLD, loses nothing."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with MultiprocessIterator(
            Blocks(40, 1), 4, n_processes=2, shuffle=False, context="fork"
        ) as iterator:
            next(iterator)
            for pid in pids_of(iterator):
                with contextlib.suppress(ProcessLookupError):  # a row of it has hung
                    os.kill(pid, signal.SIGKILL)
            for number in range(1, 20):
                assert next(iterator)[0][0] == number * 4 % 40
    finally:
        signal.signal(signal.SIGCHLD, before)
