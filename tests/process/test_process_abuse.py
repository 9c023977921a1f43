"""Datasets and programs that do what no program should, to processes, descriptors and clocks."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import signal
import textwrap
import time

import numpy as np
import pytest
from examples_of import Blocks, Gated, Spawning
from inside import n_restarts, pids_of
from outside import HANG, descriptors, is_alive, kill, later, run_script, wait_until

from fastiter import DatasetError


def indices(batch):
    return [int(example.flat[0]) for example in batch]


def taken(iterator, count, start=0, size=40):
    """The next batches of four of Blocks(size, 1), checked."""
    for number in range(start, start + count):
        assert indices(next(iterator)) == [(4 * number + row) % size for row in range(4)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("has_pidfds", [True, False])
def test_what_a_worker_has_forked_outlives_it(make, monkeypatch, tmp_path, method, has_pidfds):
    """It holds open whatever the worker held, but the worker's death is noticed."""
    if not has_pidfds:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    try:
        iterator = make(Spawning(24, tmp_path), 4, repeat=False, context=method)
        blocks = [block for batch in iterator for block in batch]
        assert np.array_equal(np.ravel(blocks), np.arange(24 * 64))
        assert n_restarts(iterator) == 1
        iterator.finalize()
        (child,) = [int(path.suffix[1:]) for path in tmp_path.glob("child.*")]
        assert is_alive(child)
    finally:
        (tmp_path / "end").touch()
    wait_until(lambda: not is_alive(child), "what the worker had forked ends")


@pytest.mark.no_stuck_rows("no worker is to end")
def test_a_fork_that_goes_on_as_the_worker_does_no_harm(make):
    """The child returns from the dataset too: it is no worker, and finds no memory of the ring."""

    class Doubles(Blocks):
        def __getitem__(self, index):
            if index % 16 == 5:
                faulthandler.disable()  # where the child ends is of no interest
                os.fork()
            return super().__getitem__(index)

    iterator = make(Doubles(40, 1), 4)
    pids = (next(iterator), pids_of(iterator))[1]
    taken(iterator, 29, 1)
    assert pids_of(iterator) == pids


@pytest.mark.parametrize("has_pidfds", [True, False])
def test_children_that_the_kernel_reaps(make, monkeypatch, has_pidfds):
    """A worker's end without a known reason: its death is handled all the same, planned exits are
    no deaths, and nothing is left of the workers."""
    if not has_pidfds:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    with make(Blocks(40, 1), 4) as warm:  # what only the first one opens stays
        next(warm)
    gc.collect()
    known, opened = set(multiprocessing.active_children()), descriptors()
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        iterator = make(Blocks(40, 1), 4, maxtasksperchild=2)
        taken(iterator, 12)
        assert iterator.stats().deaths == 0 and iterator.stats().replacements > 0
        iterator.finalize()
        iterator = make(Blocks(40, 1), 4)
        taken(iterator, 3)
        for pid in pids_of(iterator):
            kill(pid)
        number = 3
        while number < 15 or n_restarts(iterator) < 2:  # one may do the other's work, too
            taken(iterator, 1, number)
            number += 1
        assert n_restarts(iterator) == 2
        iterator.finalize()
        assert (set(multiprocessing.active_children()), descriptors()) == (known, opened)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_fork_server_of_a_program_that_blocks_sigchld(tmp_path):
    """It hears of the ends of its workers, and tells them, all the same."""
    lines = """
        import os, signal
        from fastiter import MultiprocessIterator, WorkerDiedError

        class Leaves(list):
            def __getitem__(self, index):
                return os._exit(3) if index == 5 else index

        if __name__ == "__main__":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            dataset = Leaves(range(8))
            with MultiprocessIterator(dataset, 4, shuffle=False, context="forkserver") as iterator:
                next(iterator)
                try:
                    next(iterator)
                except WorkerDiedError as error:
                    print(error.exit_reason)
    """
    status, out, err = run_script(tmp_path, textwrap.dedent(lines))
    assert (status, out, err) == (0, "exited with status 3\n", "")


def test_finalize_is_bounded_when_pythons_clock_stands(make, monkeypatch, tmp_path):
    """Libraries that freeze time do so to all of a program."""

    class Deaf(Gated):
        def __getitem__(self, index):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            return super().__getitem__(index)

    iterator = make(Deaf(16, set(range(16)), tmp_path / "gate"), 4)
    iterator.start()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both workers hang")
    pids = pids_of(iterator)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: 0.0)
        iterator.finalize()
    assert not any(map(is_alive, pids))


def test_a_worker_that_has_lost_its_descriptors(make):
    """Bells between it and the parent are silent, so that batches come slowly, but they come."""

    class Closes(Blocks):
        def __getitem__(self, index):
            if index == 10:
                os.closerange(3, 1000)
            return super().__getitem__(index)

    iterator = make(Closes(40, 1), 4)
    taken(iterator, 12)
    pids = pids_of(iterator)
    iterator.finalize()
    assert not any(map(is_alive, pids))


def test_a_worker_whose_descriptors_are_those_of_another_file(make, tmp_path):
    """A file that the dataset opens by the number of the shared memory is never mapped for it."""
    other = tmp_path / "other"
    other.write_bytes(b"x" * (8 << 20))

    class Reopens(Blocks):
        def __getitem__(self, index):
            if index == 10:
                os.closerange(3, 1000)
                self.kept = [os.open(other, os.O_RDWR) for _ in range(100)]
            return super().__getitem__(index)

    iterator = make(Reopens(40, 1), 4)
    taken(iterator, 12)
    iterator.finalize()
    # Its first bytes may be those of a bell, which is rung by the number, too.
    assert other.read_bytes()[4096:] == b"x" * ((8 << 20) - 4096)


def test_a_worker_that_becomes_another_program(make, tmp_path):
    class Executes(Blocks):
        def __getitem__(self, index):
            with contextlib.suppress(FileExistsError):
                if index == 5:
                    (tmp_path / "executed").touch(exist_ok=False)
                    os.execv("/bin/true", ["true"])
            return super().__getitem__(index)

    iterator = make(Executes(40, 1), 4)
    taken(iterator, 20)
    assert n_restarts(iterator) == 1


STAYS = """
import sys, threading
import numpy as np
from examples_of import Blocks
from fastiter import MultiprocessIterator

class Stays(Blocks):
    thread = None

    def __getitem__(self, index):
        if self.thread is None:
            self.thread = threading.Thread(target=threading.Event().wait)
            self.thread.start()
            print("begun", threading.active_count())
        return super().__getitem__(index)

if __name__ == "__main__":
    with MultiprocessIterator(
        Stays(40), 4, n_processes=1, shuffle=False, maxtasksperchild=2, context={method!r}
    ) as iterator:
        for _ in range(2):
            assert len(next(iterator)) == 4
        assert iterator.stats().deaths == 0, "planned exits are no deaths"
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_threads_that_the_dataset_leaves_behind(tmp_path, method):
    """A worker that is through ends all the same, and another takes its place."""
    status, out, err = run_script(tmp_path, STAYS.replace("{method!r}", repr(method)))
    assert (status, err) == (0, "")
    assert out.count("begun 2\n") >= 2, out


def test_handlers_in_the_dataset_that_raise_at_any_moment(make):
    """As by a timer that the dataset forgot to stop: where it hits an example, that is the error of
    its batch, where it hits the worker's own part, the worker dies; no batch is wrong."""

    class Ticks(Blocks):
        is_armed = False

        def __getitem__(self, index):
            if not self.is_armed:
                self.is_armed = True
                signal.signal(signal.SIGVTALRM, _raise_tick)
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.003, 0.003)
            return super().__getitem__(index)

    iterator = make(Ticks(40, 1), 4)
    found = set()
    end = time.monotonic() + HANG
    number = 0
    while found != {"batch", "error"} or number < 300:
        assert time.monotonic() < end, (found, number)
        try:
            got = indices(next(iterator))
        except (_Tick, DatasetError) as error:
            # A second one may have hit while the worker reported the first.
            assert isinstance(error, _Tick) or "left no reason" in str(error)
            found.add("error")
        else:
            found.add("batch")
            assert got == [(4 * number + row) % 40 for row in range(4)]
        number += 1


class _Tick(Exception):
    pass


def _raise_tick(number, frame):
    raise _Tick("of the dataset's timer")


@pytest.mark.parametrize("rounds", [12, pytest.param(50, marks=pytest.mark.stress)])
def test_all_workers_killed_again_and_again(make, rounds):
    iterator = make(Blocks(40, 1), 4, n_processes=4, n_prefetch=3)
    iterator.start()
    for round_ in range(rounds):
        for pid in pids_of(iterator):
            kill(pid)
        taken(iterator, 2, 2 * round_)


def test_a_handler_amid_next_may_look_save_and_no_more(make, tmp_path):
    """Calls that move the iterator are refused, and the call under way goes on unchanged."""
    gate = tmp_path / "gate"
    iterator = make(Gated(16, {0}, gate), 4)
    state = iterator.state_dict()
    refused = []

    def handler(number, frame):
        assert iterator.state_dict() == state
        assert iterator.stats().batches == 0
        for move in (
            lambda: next(iterator),
            iterator.reset,
            lambda: iterator.load_state_dict(state),
        ):
            try:
                move()
            except RuntimeError as error:
                refused.append(str(error))
        gate.touch()

    def call():
        wait_until((tmp_path / "gate.0").exists, "a worker waits at the gate")
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with later(call):
            assert next(iterator) == [0, 1, 2, 3]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 3 and all("inside another call" in text for text in refused)
    assert next(iterator) == [4, 5, 6, 7]


@pytest.mark.parametrize("turns", [4, pytest.param(15, marks=pytest.mark.stress)])
@pytest.mark.parametrize("number", ["SIGINT", "SIGALRM"])
def test_a_storm_of_interrupts_while_workers_start(output_of, number, turns):
    """The program catches each and goes on: no batch and no worker is lost, and Ctrl-C works."""
    out = output_of(f"""
        import gc, multiprocessing, signal, subprocess, sys, warnings
        from examples_of import Blocks
        from fastiter import MultiprocessIterator
        from outside import descriptors

        number, most = signal.{number}, 30

        def handler(_, frame):
            global count
            while frame is not None and frame.f_code is not take.__code__:
                frame = frame.f_back
            if frame is not None and count < most:
                count += 1
                raise KeyboardInterrupt

        def rows(n):
            return [4 * n + row for row in range(4)]

        def take():
            got.append([int(x[0]) for x in next(iterator)])

        # Of what is raised in a callback of the interpreter, or while a file is open.
        sys.unraisablehook = lambda _: None
        warnings.simplefilter("ignore", ResourceWarning)
        signal.signal(number, handler)
        if number == signal.SIGINT:
            # One process that sends them all: a shell would start another for each pause, and take
            # the time of this program. It ends when this program has, and holds no stream of it.
            sender = \"""if True:
                import os, signal, time
                parent = os.getppid()
                while os.getppid() == parent:
                    os.kill(parent, signal.SIGINT)
                    time.sleep(0.001)
            \"""
            streams = dict.fromkeys(["stdout", "stderr"], subprocess.DEVNULL)
            storm = subprocess.Popen([sys.executable, "-ISc", sender], **streams)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0013)
        before = None
        for turn in range({turns}):
            iterator = MultiprocessIterator(
                Blocks(60, 1), 4, n_processes=2, shuffle=False, context="fork"
            )
            got, count = [], 0
            while len(got) < 3:
                try:
                    take()
                except KeyboardInterrupt:
                    # It may have come when the batch was delivered, but not noted yet.
                    if iterator.current_position > 4 * len(got):
                        got.append(rows(len(got)))
            assert got == list(map(rows, range(3))), got
            assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
            iterator.finalize()
            gc.collect()  # a start that was interrupted may be in a cycle with its traceback
            assert not multiprocessing.active_children()
            before = before or len(descriptors())
            assert len(descriptors()) == before
            print(turn)
        if number == signal.SIGINT:
            storm.kill()
            storm.wait()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)
        """)
    assert out.split() == [str(turn) for turn in range(turns)]
