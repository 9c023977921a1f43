"""Workers that die: nothing is lost or repeated, and who kills them all is named."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import threading
import time

import numpy as np
import psutil
import pytest
from examples_of import Blocks, Gated, Misfits, Numbered, Unloadable, killing_converter
from inside import n_restarts, pids_of, ready_pids_of
from interrupts import interrupt_at, n_interrupts_of
from outside import HANG, descriptors, is_alive, kill, later, wait_until

from fastiter import WorkerDiedError, concat_examples
from fastiter._util import fds
from fastiter._workers.process import WorkerProcess
from fastiter._workers.process_group import WorkerGroup

METHODS = ["fork", "spawn", "forkserver"]
DEEDS = {
    "SIGKILL": "SIGKILL",
    "SIGTERM": "SIGTERM",
    "fault": "SIGSEGV",
    "SIGABRT": "SIGABRT",
    "SIGBUS": "SIGBUS",
    "_exit0": "status 0",
    "_exit3": "status 3",
}


def indices(batch):
    return [int(example.flat[0]) for example in batch]


@pytest.mark.parametrize("deed", DEEDS)
def test_a_death_in_fetch_loses_nothing(make, tmp_path, deed):
    iterator = make(Misfits(24, {5, 13}, deed, tmp_path), 4, repeat=False)
    assert [indices(batch) for batch in iterator] == np.arange(24).reshape(6, 4).tolist()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["13", "5"]
    assert n_restarts(iterator) == 2


@pytest.mark.parametrize("method", METHODS)
def test_a_death_in_fetch_loses_nothing_under(make, tmp_path, method):
    iterator = make(Misfits(24, {5}, "SIGKILL", tmp_path), 4, repeat=False, context=method)
    assert [indices(batch) for batch in iterator] == np.arange(24).reshape(6, 4).tolist()


@pytest.mark.parametrize("deed", DEEDS)
def test_an_index_that_kills_every_worker_is_named(make, deed):
    iterator = make(Misfits(24, {9}, deed), 4, n_prefetch=2)
    seen = []
    for number in range(12):
        if number % 6 == 2:
            with pytest.raises(WorkerDiedError) as caught:
                next(iterator)
            text = str(caught.value)
            assert re.search(r"\bindex 9\b", text)
            assert DEEDS[deed] in text and DEEDS[deed] in caught.value.exit_reason
            assert caught.value.pid > 0
            assert f"epoch {number // 6}, batch 2" in text
        else:
            seen.append(indices(next(iterator)))
    expected = np.arange(24).reshape(6, 4).tolist()
    del expected[2]
    assert seen == 2 * expected


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_an_index_that_kills_every_worker_is_named_under(make, method):
    iterator = make(Misfits(8, {3}, "_exit7"), 4, context=method)
    with pytest.raises(WorkerDiedError, match=r"index 3\b.*exited with status 7"):
        next(iterator)
    assert indices(next(iterator)) == [4, 5, 6, 7]


def test_an_interrupt_while_a_dead_worker_is_forgotten(make):
    before = set(descriptors())
    iterator = make(Numbered(8), 4, n_processes=1)
    next(iterator)
    kill(*pids_of(iterator))
    with interrupt_at(WorkerProcess.release, WorkerGroup.dismiss) as came:
        assert n_interrupts_of(iterator, lambda _: bool(came), HANG) == 1
    next(iterator)
    iterator.finalize()
    del iterator
    assert set(descriptors()) <= before


@pytest.mark.parametrize("number", range(4))
def test_an_interrupt_of_the_end_closes_nothing_twice(make, tmp_path, number):
    """A file that the program opens meanwhile may have the number of a closed descriptor."""
    iterator = make(Numbered(8), 4, n_processes=1)
    next(iterator)
    with (
        contextlib.suppress(KeyboardInterrupt),
        interrupt_at(fds.close, WorkerGroup.close, "return", number),
    ):
        iterator.finalize()
    with contextlib.ExitStack() as opened:
        files = [opened.enter_context(open(tmp_path / str(n), "w")) for n in range(8)]
        iterator.finalize()
        for file in files:
            os.fstat(file.fileno())


def test_two_indices_of_one_batch_that_kill(make):
    iterator = make(Misfits(12, {1, 2}, "SIGKILL"), 4)
    with pytest.raises(WorkerDiedError, match=r"index [12]\b"):
        next(iterator)
    assert indices(next(iterator)) == [4, 5, 6, 7]


def test_getitems_that_dies_names_one_index(make, tmp_path):
    class Together(Misfits):
        def __getitems__(self, wanted):
            return [self[index] for index in wanted]

    iterator = make(Together(64, {9}, "SIGKILL"), 32)
    with pytest.raises(WorkerDiedError, match=r"index 9\b"):
        next(iterator)
    assert indices(next(iterator)) == list(range(32, 64))


@pytest.mark.no_stuck_rows("a call for thousands of rows may take thousands of limits")
def test_a_death_with_thousands_of_rows_in_hand(make, tmp_path):
    class Together:
        def __len__(self):
            return 20_000

        def __getitem__(self, index):
            return index

        def __getitems__(self, wanted):
            mark = tmp_path / "dead"
            if len(wanted) > 4096 and not mark.exists():  # more than are given back at once
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return wanted

    iterator = make(Together(), 20_000)
    assert next(iterator) == list(range(20_000))
    assert (tmp_path / "dead").exists() and n_restarts(iterator) == 1


def test_a_death_is_noticed_in_a_thread_with_a_small_stack(tmp_path, output_of):
    out = output_of(f"""
        import os, pathlib, threading, warnings
        from examples_of import Misfits
        from fastiter import MultiprocessIterator

        warnings.simplefilter("ignore", RuntimeWarning)  # the replacement is forked in a thread

        if __name__ == "__main__":
            dataset = Misfits(240, {{230}}, "SIGKILL", pathlib.Path({str(tmp_path)!r}))
            iterator = MultiprocessIterator(
                dataset, 4, n_processes=2, repeat=False, shuffle=False, context="fork"
            )
            found = [int(x[0]) for x in next(iterator)]
            threading.stack_size(max(96 << 10, os.sysconf("SC_THREAD_STACK_MIN")))
            thread = threading.Thread(
                target=lambda: found.extend(int(x[0]) for batch in iterator for x in batch)
            )
            thread.start()
            thread.join()
            print(found == [*range(240)], iterator.stats().deaths)
        """)
    assert out == "True 1\n"


def test_a_converter_that_kills_is_named(make):
    iterator = make(Misfits(24, set(), ""), 4, converter=killing_converter, context="fork")
    assert next(iterator)[:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(WorkerDiedError, match=r"converter.*SIGKILL.*epoch 0, batch 1"):
        next(iterator)
    assert next(iterator)[:, 0].tolist() == [8, 9, 10, 11]


def test_a_converter_that_dies_once_loses_nothing(make, tmp_path):
    def convert(batch, device):
        with contextlib.suppress(FileExistsError):  # two batches may be finished at once
            (tmp_path / "mark").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return np.stack(batch)

    iterator = make(Blocks(24, 1), 4, converter=convert)
    for number in range(12):
        assert next(iterator)[:, 0].tolist() == [(4 * number + row) % 24 for row in range(4)]
    assert n_restarts(iterator) == 1


@pytest.mark.parametrize(
    ("method", "number"),
    [("fork", "SIGKILL"), ("fork", "SIGTERM"), ("spawn", "SIGKILL"), ("forkserver", "SIGKILL")],
)
def test_idle_workers_killed_all_at_once(make, method, number):
    iterator = make(Blocks(40, 1), 4, n_processes=3, context=method)
    for round_ in range(3 if method == "fork" else 1):
        assert indices(next(iterator)) == [(8 * round_ + row) % 40 for row in range(4)]
        pids = pids_of(iterator)
        for pid in pids:
            kill(pid, getattr(signal, number))
        wait_until(lambda pids=pids: not any(map(is_alive, pids)), "the killed end")
        assert indices(next(iterator)) == [(8 * round_ + 4 + row) % 40 for row in range(4)]


def test_a_death_is_noticed_while_next_waits(make, tmp_path):
    """Both workers sit in a long fetch, one is killed: another fetches its rows at once."""
    gate = tmp_path / "gate"
    iterator = make(Gated(40, {0, 1}, gate), 2)
    iterator.start()
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both workers fetch")
    victims = pids_of(iterator)
    (tmp_path / "gate.0").unlink()

    def kill_and_look():
        for pid in victims:
            kill(pid)
        killed = time.monotonic()
        wait_until((tmp_path / "gate.0").exists, "another worker fetches index 0")
        noticed.append(time.monotonic() - killed)
        gate.touch()

    noticed = []
    with later(kill_and_look):
        assert next(iterator) == [0, 1]
    assert noticed[0] < 5


@pytest.mark.no_stuck_rows("while rows hang, workers that are killed count as such without a row")
def test_random_kills_under_load(make):
    dataset = Numbered(97)
    iterator = make(dataset, 8, n_processes=3, n_prefetch=3)
    next(iterator)
    stop = threading.Event()
    generator = random.Random(0)
    kills = 0

    def kill_at_random():
        nonlocal kills
        while not stop.is_set():
            # Too many deaths of workers before they begin, late on a busy machine, are an error.
            if ready := ready_pids_of(iterator):
                kill(generator.choice(ready))
                kills += 1
            stop.wait(generator.uniform(0.001, 0.05))

    with later(kill_at_random):
        try:
            expected = itertools.count(8)
            end = time.monotonic() + 2
            while time.monotonic() < end:
                for block, index in next(iterator):
                    assert index == next(expected) % 97
                    np.testing.assert_array_equal(block, Blocks(97)[index])
        finally:
            stop.set()
    assert kills > 3


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_random_kills_and_resets_for_long(make, method, converter):
    iterator = make(
        Numbered(97), 8, n_processes=3, n_prefetch=3, context=method, converter=converter
    )
    generator = random.Random(1)
    expected = itertools.count()
    held = []
    end = time.monotonic() + 40
    while time.monotonic() < end:
        if generator.random() < 0.02:
            iterator.reset()
            expected = itertools.count()
        if generator.random() < 0.05:
            for pid in generator.sample(pids_of(iterator) or [0], 1):
                if pid:
                    kill(pid)
        batch = next(iterator)
        blocks, numbers = batch if converter else zip(*batch, strict=True)
        wanted = [next(expected) % 97 for _ in range(8)]
        assert list(numbers) == wanted
        held.append((blocks, wanted))
        if len(held) > 20:
            for blocks, wanted in held:
                for block, index in zip(blocks, wanted, strict=True):
                    np.testing.assert_array_equal(block, Blocks(97)[index])
            held.clear()


def test_rare_deaths_over_many_epochs_poison_nothing(make, tmp_path):
    """An index is given up for deaths on end, not for one an epoch."""
    iterator = make(Misfits(8, {5}, "SIGKILL", tmp_path), 8)
    for _ in range(6):
        assert indices(next(iterator)) == list(range(8))
        next(iterator)
        for mark in tmp_path.iterdir():
            mark.unlink()
    assert n_restarts(iterator) >= 5


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_loaded(make, method):
    iterator = make(Unloadable(40), 4, context=method)
    for _ in range(2):
        with pytest.raises(LookupError, match="not on this machine") as caught:
            next(iterator)
        cause = str(caught.value.__cause__)
        assert "__setstate__" in cause
        assert "loading the dataset, worker process" in cause


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_kills_on_load(make, method):
    iterator = make(Unloadable(40, "_exit9"), 4, context=method)
    with pytest.raises(WorkerDiedError, match=r"loaded the dataset.*exited with status 9"):
        next(iterator)


def test_workers_that_die_idle_again_and_again_are_an_error(make):
    class DiesAfter(Blocks):
        def __getitem__(self, index):
            threading.Timer(0, os._exit, (4,)).start()
            time.sleep(HANG)

    iterator = make(DiesAfter(4), 2)
    with pytest.raises(WorkerDiedError, match=r"index [01]\b.*status 4"):
        next(iterator)


@pytest.mark.parametrize("method", METHODS)
def test_planned_exits_lose_nothing(make, method):
    epochs = 4 if method == "fork" else 1
    iterator = make(Numbered(24), 4, maxtasksperchild=2, context=method)
    pids = set()
    for number in range(6 * epochs):
        for row, (block, index) in enumerate(next(iterator)):
            assert index == (4 * number + row) % 24
            np.testing.assert_array_equal(block, Blocks(24)[index])
        pids.update(pids_of(iterator))
    assert len(pids) > 4
    assert n_restarts(iterator) == 0


def test_an_exit_that_the_dataset_makes_is_a_death_where_exits_are_planned_too(make, tmp_path):
    dataset = Misfits(8, {5}, "_exit0", tmp_path)
    iterator = make(dataset, 4, repeat=False, maxtasksperchild=100)
    assert [indices(batch) for batch in iterator] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    stats = iterator.stats()
    assert (stats.deaths, stats.replacements) == (1, 0)


def test_one_task_per_child_for_long_batches(make):
    """Planned exits in numbers, in one batch, are no deaths."""
    iterator = make(Blocks(64, 1), 64, maxtasksperchild=1, n_processes=2)
    for _ in range(3):
        assert indices(next(iterator)) == list(range(64))
    assert n_restarts(iterator) == 0


@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN])
def test_the_forkserver_killed(make, handler):
    """Also where the kernel reaps it, as a handler of SIGCHLD does that waits for all children."""
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        survives_its_server(make)
    finally:
        signal.signal(signal.SIGCHLD, before)


def survives_its_server(make):
    iterator = make(Blocks(40, 1), 4, context="forkserver")
    assert indices(next(iterator)) == [0, 1, 2, 3]
    (server,) = {psutil.Process(pid).ppid() for pid in pids_of(iterator)}
    kill(server)
    wait_until(lambda: not is_alive(server), "the forkserver ends")
    for number in range(1, 20):
        assert indices(next(iterator)) == [(4 * number + row) % 40 for row in range(4)]
    pids = pids_of(iterator)
    for pid in pids:
        kill(pid)
    for number in range(20, 40):
        assert indices(next(iterator)) == [(4 * number + row) % 40 for row in range(4)]


def test_a_stopped_worker_that_is_then_killed(make):
    iterator = make(Blocks(40, 1), 4)
    next(iterator)
    for pid in pids_of(iterator):
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
    for number in range(1, 20):
        assert indices(next(iterator)) == [(4 * number + row) % 40 for row in range(4)]
