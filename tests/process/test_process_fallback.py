"""The portable path at run time: where memfd_create, pidfd_open or eventfd fail, as on old kernels
and in sandboxes, other means take their place. The whole suite runs so nightly."""

from __future__ import annotations

import errno
import os
import platform
import textwrap

import pytest
from outside import run_script
from without_calls import NUMBERS

pytestmark = pytest.mark.skipif(
    platform.machine() not in NUMBERS, reason="numbers of system calls are not known here"
)

PROGRAM = """
    import errno
    import os
    import signal
    import sys
    import numpy as np
    from without_calls import refuse
    from examples_of import Blocks
    from inside import n_restarts, pids_of
    from outside import children, descriptors, kill, orphaned_names, wait_until

    def main(method, names, error):
        from fastiter import MultiprocessIterator, cache
        for name, call in CALLS.items():
            try:
                os.close(call())
            except OSError as caught:
                assert name in names and caught.errno == error, (name, caught)
            else:
                assert name not in names
        for is_cached in (False, True):  # what only the first one opens stays
            before, names = descriptors(), orphaned_names()
            dataset = cache(Blocks(48), memory=1 << 20) if is_cached else Blocks(48)
            iterator = MultiprocessIterator(
                dataset, 8, n_processes=2, shuffle=False, context=method
            )
            number = 0
            while number < 18 or n_restarts(iterator) < 2:  # one may do the other's work, too
                batch = np.stack(next(iterator))
                first = 8 * 64 * (number % 6)
                assert np.array_equal(batch.ravel(), np.arange(first, first + 8 * 64)), number
                if number == 3:
                    for pid in pids_of(iterator):
                        kill(pid)
                number += 1
            assert n_restarts(iterator) == 2
            workers = set(pids_of(iterator))
            iterator.finalize()
            assert not workers & children()
            if is_cached:
                assert dataset.stats().hits > 0
                dataset.close()
        assert descriptors() == before
        assert orphaned_names() <= names
        print("done")

    CALLS = {
        "memfd_create": lambda: os.memfd_create("x"),
        "pidfd_open": lambda: os.pidfd_open(os.getpid()),
    }

    if __name__ == "__main__":
        arguments = ARGUMENTS
        refuse(arguments[1], arguments[2])
        main(*arguments)
"""

ALL = ("memfd_create", "pidfd_open", "eventfd2")


def refuses_calls():
    try:
        os.close(os.memfd_create("x"))
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return True
    return False


@pytest.mark.parametrize(
    ("method", "names", "error"),
    [
        ("fork", ALL, "ENOSYS"),
        ("forkserver", ALL, "EPERM"),
        ("fork", ("pidfd_open",), "EPERM"),
        ("fork", ("madvise", "prctl"), "EPERM"),
        ("fork", ("madvise",), "ENOMEM"),
        pytest.param("forkserver", ("sched_getaffinity",), "EPERM", id="sched_getaffinity"),
        pytest.param("spawn", ("memfd_create",), "EPERM", marks=pytest.mark.stress),
    ],
)
def test_without_calls(tmp_path, method, names, error):
    if len(names) < len(ALL) and refuses_calls():
        pytest.skip("the system refuses more of these calls by itself")
    arguments = (method, list(names), getattr(errno, error))
    source = textwrap.dedent(PROGRAM).replace("ARGUMENTS", repr(arguments))
    status, out, err = run_script(tmp_path, source)
    assert (status, out, err) == (0, "done\n", ""), err


ALLOCATED = """
    import errno
    from without_calls import refuse
    from examples_of import Blocks
    from fastiter import MultiprocessIterator, cache

    def error_of(function):
        try:
            function()
        except PermissionError as error:
            return str(error)

    if __name__ == "__main__":
        refuse(["fallocate"], errno.EPERM)
        iterator = MultiprocessIterator(Blocks(48), 8, n_processes=1, context="fork")
        print(error_of(iterator.next))
        iterator.finalize()
        print(error_of(lambda: cache(Blocks(48), path=PATH)[0]))
"""


def test_memory_that_cannot_be_allocated_is_named(tmp_path):
    source = textwrap.dedent(ALLOCATED).replace("PATH", repr(str(tmp_path / "rows.cache")))
    status, out, err = run_script(tmp_path, source)
    ring, file = out.splitlines()
    assert (status, err) == (0, ""), err
    assert "memory for an arena: fallocate() of " in ring
    assert "n_processes=0" in ring
    assert "rows.cache" in file


CLOSED = """
    import errno, os, pathlib, threading
    from without_calls import refuse
    from inside import group_of
    from outside import wait_until
    from fastiter import MultiprocessIterator

    class Closing:
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if index == 0:
                wait_until(pathlib.Path("pipe").exists, "the program has told of the pipe")
                for fd in os.listdir("/proc/self/fd"):
                    if os.path.exists(f"/proc/self/fd/{fd}") and os.path.samefile(
                        f"/proc/self/fd/{fd}", "pipe"
                    ):
                        os.close(int(fd))
                open("closed", "w").close()
                wait_until(pathlib.Path("gate").exists, "the gate opens")
                if not os.path.exists("dead"):
                    open("dead", "w").close()
                    os._exit(3)
            return index

    if __name__ == "__main__":
        refuse(["pidfd_open"], errno.ENOSYS)
        iterator = MultiprocessIterator(Closing(), 4, n_processes=1, shuffle=False, context=METHOD)
        iterator.start()
        sentinel = group_of(iterator).workers[0].process.sentinel
        os.symlink(f"/proc/{os.getpid()}/fd/{sentinel}", "pipe.new")
        os.rename("pipe.new", "pipe")

        waits = []

        def measure():
            wait_until(pathlib.Path("closed").exists, "the pipe is closed")
            before = len(waits)
            threading.Event().wait(1.5)  # three times as long as the program sleeps at most
            print("busy" if len(waits) - before > 20 else "asleep")
            open("gate", "w").close()

        look = group_of(iterator).descriptors
        group_of(iterator).descriptors = lambda: waits.append(None) or look()

        threading.Thread(target=measure).start()
        print(next(iterator))
        iterator.finalize()
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.stress)])
def test_a_closed_pipe_keeps_nobody_busy(tmp_path, method):
    """Without pidfds, a pipe tells of a worker's death. One that the dataset closes tells of none:
    the program sleeps while it waits, and notices the death all the same."""
    source = textwrap.dedent(CLOSED).replace("METHOD", repr(method))
    status, out, err = run_script(tmp_path, source, cwd=tmp_path)
    assert (status, out) == (0, "asleep\n[0, 1, 2, 3]\n"), err
