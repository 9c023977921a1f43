"""File descriptors: none is left, many are open, or the program has closed ours."""

from __future__ import annotations

import os
import resource

import numpy as np
import pytest
from outside import run_script, sleeps, wait_until

HEAD = """
import errno, gc, os, resource, signal, sys, time, warnings
from pathlib import Path
from examples_of import Blocks
from fastiter import MultiprocessIterator
from inside import pids_of
from outside import children, descriptors, is_alive, kill, wait_until

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
"""


def test_no_descriptor_left_leaves_nothing(output_of):
    """Out of descriptors at the start: an OSError, nothing half made, and later it works."""
    out = output_of("""
if __name__ == "__main__":
    with MultiprocessIterator(Blocks(40), 4, n_processes=3, context="fork") as iterator:
        next(iterator)
    before = descriptors()
    errors = 0
    for limit in range(4, 40):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        iterator = MultiprocessIterator(Blocks(40), 4, n_processes=3, context="fork")
        try:
            batch = next(iterator)
        except OSError as error:
            assert error.errno == 24 and "RLIMIT_NOFILE" in str(error), error
            errors += 1
        else:
            assert len(batch) == 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        if limit % 2:
            assert len(next(iterator)) == 4
        iterator.finalize()
        del iterator
        batch = None
        wait_until(lambda: not children(), "no child stays")
        assert descriptors() == before, (limit, before, descriptors())
    assert errors > 3, errors
    print("done")
""")
    assert out == "done\n"


def test_a_fork_server_that_began_with_few_descriptors(tmp_path):
    """It has the limit of its start for ever, and gives way to another one."""
    status, out, err = run_script(
        tmp_path,
        HEAD
        + """
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
    iterator = MultiprocessIterator(Blocks(40), 4, n_processes=3, context="forkserver")
    try:
        next(iterator)
    except OSError as error:
        assert error.errno == 24, error
    else:
        raise AssertionError("20 descriptors are enough for three workers of a fork server")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert len(next(iterator)) == 4
    iterator.finalize()
    print("done")
""",
    )
    assert (status, out) == (0, "done\n"), err


MANY = (
    HEAD
    + """
class Hangs(Blocks):
    def __getitem__(self, index):
        if index == 30:
            time.sleep(1000)
        return super().__getitem__(index)

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    others = [open(os.devnull) for _ in range(1100)]
    iterator = MultiprocessIterator(
        Hangs(40), 4, n_processes=2, shuffle=False, dataset_timeout=0.2, context={method!r}
    )
    next(iterator)
    kill(pids_of(iterator)[0])
    for _ in range(6):
        next(iterator)
    pids = pids_of(iterator)
    warnings.simplefilter("error", iterator.TimeoutWarning)
    text = ""
    while "in __getitem__" not in text:  # at first it may be the start of the dead one's successor
        try:
            next(iterator)
            raise AssertionError("the dataset hangs")
        except iterator.TimeoutWarning as warning:
            text = str(warning)
    iterator.finalize()
    assert not any(map(is_alive, pids))
    print("done")
"""
)


@pytest.mark.skipif(
    -1 < resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000, reason="the system allows too few"
)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_more_descriptors_than_select_takes(tmp_path, method):
    """Deaths, stacks and ends are seen above 1023, too, where select() sees nothing."""
    status, out, err = run_script(tmp_path, MANY.replace("{method!r}", repr(method)))
    assert (status, out) == (0, "done\n"), err


CLOSED = (
    HEAD
    + """
if __name__ == "__main__":
    iterator = MultiprocessIterator(Blocks(400), 4, n_processes=2, context={method!r})
    next(iterator)
    pids = pids_of(iterator)
    os.closerange(3, 1000)
    try:
        while True:
            next(iterator)
    except OSError as error:
        assert error.errno == errno.EBADF and "create a new iterator" in str(error), error
    wait_until(lambda: not any(map(is_alive, pids)), "workers end with the pipe of their lives")
    iterator.finalize()
    print("done")
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_descriptors_that_the_program_closes(tmp_path, method):
    """As one does that makes a daemon of itself: an error that says so, and an end."""
    script = CLOSED.replace("{method!r}", repr(method))
    status, out, err = run_script(tmp_path, script)
    assert (status, out) == (0, "done\n"), err


# The program closes all descriptors, and opens files in a folder of its own.
CLOSED_ALL = (
    HEAD
    + """
if __name__ == "__main__":
    iterator = MultiprocessIterator(Blocks(400), 4, n_processes=2, context={method!r})
    next(iterator)
    os.chdir({folder!r})
    os.closerange(3, 1000)
"""
)
REUSED = (
    CLOSED_ALL
    + """
    own = [open(f"own{number}", "w+b") for number in range(40)]
    for file in own:
        file.write(b"hello")
        file.flush()
        file.seek(0)
    if {waits!r}:
        try:
            for _ in range(100):
                next(iterator)
        except OSError as error:
            assert error.errno == errno.EBADF and "create a new iterator" in str(error), error
        else:
            print("no error")
    del iterator
    gc.collect()
    found = {Path(f"own{number}").read_bytes() for number in range(40)}
    # multiprocessing asks by a descriptor's number, too, whether its resource tracker is alive.
    print({text for text in found if not text.startswith(b"PROBE:")}, flush=True)
    os._exit(0)  # files of the program were closed with the iterator
"""
)


def filled(script, **facts):
    for name, value in facts.items():
        script = script.replace(f"{{{name}!r}}", repr(value))
    return script


@pytest.mark.parametrize(
    ("method", "waits"),
    [
        pytest.param("fork", False, id="fork-the end"),
        pytest.param("fork", True, id="fork-next()"),
        pytest.param("spawn", True, id="spawn-next()"),
        pytest.param("spawn", False, id="spawn-the end", marks=pytest.mark.stress),
    ],
)
def test_files_that_have_the_descriptors_now_get_no_bytes(tmp_path, method, waits):
    facts = {"method": method, "folder": str(tmp_path), "waits": waits}
    status, out, err = run_script(tmp_path, filled(REUSED, **facts))
    assert (status, out) == (0, "{b'hello'}\n"), err


TRACED = (
    CLOSED_ALL
    + """
    own = [os.open("own", os.O_RDWR | os.O_CREAT) for _ in range(64)]
    try:
        with iterator.trace():
            pass
    except OSError as error:
        assert error.errno == errno.EBADF and "create a new iterator" in str(error), error
    else:
        print("no error")
    print(os.stat("own").st_blocks)
"""
)


def test_a_trace_leaves_the_file_alone_that_has_the_descriptors_now(tmp_path):
    facts = {"method": "fork", "folder": str(tmp_path)}
    status, out, err = run_script(tmp_path, filled(TRACED, **facts))
    assert (status, out) == (0, "0\n"), err


class Reusing:
    """An example of its third batch closes all descriptors of the worker, and opens files in their
    place."""

    def __init__(self, folder):
        self.folder, self.files = folder, []

    def __len__(self):
        return 128

    def __getitem__(self, index):
        if index == 70:
            wait_until(lambda: sleeps(os.getppid()), "the program waits")
            os.closerange(3, 100)
            flags = os.O_WRONLY | os.O_CREAT
            self.files = [os.open(self.folder / str(n), flags) for n in range(100)]
        return np.full(2, index)


def test_files_of_a_dataset_that_have_the_descriptors_now(make, tmp_path):
    """No bell of the program is rung there: `next()` looks by itself, some time later."""
    iterator = make(Reusing(tmp_path), 32, n_processes=1, shuffle=False, repeat=False)
    assert [int(batch[0][0]) for batch in iterator] == [0, 32, 64, 96]
    iterator.finalize()
    assert {path.stat().st_size for path in tmp_path.iterdir()} == {0}
