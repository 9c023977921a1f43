"""on_timeout='retry': rows of workers that hang are fetched by others."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from examples_of import Blocks, Hanging, HangingCalls, Loading, hang
from inside import group_of, has_spare, n_restarts, pids_of, pool_of, ring_of
from interrupts import interrupt_at, n_interrupts_of
from outside import (
    HANG,
    children,
    descriptors,
    environment,
    is_alive,
    later,
    run_script,
    sleeps,
    wait_until,
)

from fastiter import DatasetTimeoutError, MultiprocessIterator, concat_examples
from fastiter._workers.process import WorkerProcess
from fastiter._workers.process_group import WorkerGroup

RETRY = {"on_timeout": "retry", "dataset_timeout": 0.3}


def indices(batch):
    """Those of a batch whose arrays are right."""
    for array, index in batch:
        assert (array == index).all()
    return [index for _, index in batch]


@pytest.mark.parametrize("how", ["sleep", pytest.param("read", marks=pytest.mark.stress), "stop"])
def test_rows_of_hung_workers_are_fetched_by_others(make, tmp_path, how):
    before, processes = set(descriptors()), children()
    held = {3, 4, 17, 40, 63}
    iterator = make(
        Hanging(64, held, how, tmp_path),
        8,
        n_processes=3,
        repeat=False,
        maxtasksperchild=9,
        **RETRY,
    )
    kept = list(iterator)
    assert [indices(batch) for batch in kept] == np.arange(64).reshape(8, 8).tolist()
    touched = {path.name for path in tmp_path.iterdir()}
    assert touched >= {f"{index}.{touch}" for index in held for touch in (0, 1)}
    stats = iterator.stats()
    assert (stats.deaths, stats.abandoned) == (0, 0)
    assert stats.timeouts >= 5  # more where a busy machine lets a worker wait as long
    iterator.finalize()
    assert children() <= processes
    assert [indices(batch) for batch in kept] == np.arange(64).reshape(8, 8).tolist()
    del kept, iterator, stats
    assert set(descriptors()) <= before


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_rows_are_fetched_by_others_under(make, tmp_path, context):
    dataset = Hanging(24, {0, 13}, "sleep", tmp_path)
    iterator = make(
        dataset, 8, repeat=False, context=context, on_timeout="retry", dataset_timeout=2
    )
    assert [indices(batch) for batch in iterator] == np.arange(24).reshape(3, 8).tolist()
    assert iterator.stats().timeouts >= 2


def note_number(folder, number):
    Path(folder, f"number.{number}.{os.getpid()}").touch()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_a_spare_takes_the_place_of_a_hung_worker(make, tmp_path, context):
    """It has loaded the dataset before: here no other process can any more."""
    with make(range(4), 4, context=context) as first:  # starts what stays: a tracker, a server
        next(first)
    del first
    before = set(descriptors())
    iterator = make(
        Loading(24, {13}, "sleep", tmp_path),
        8,
        n_processes=1,
        context=context,
        worker_init=functools.partial(note_number, tmp_path),
        on_timeout="retry",
        dataset_timeout=5,  # time to load, on a busy machine
    )
    places = itertools.cycle((0, 8, 16))

    def next_batch(iterator):
        place = next(places)
        assert indices(next(iterator)) == list(range(place, place + 8))

    next_batch(iterator)
    if ring_of(iterator).bell_pipe(0) >= 0:
        pytest.skip("the portable path: there is no spare, as it could not get another's doorbell")
    while len(list(tmp_path.glob("load.*"))) < 2:  # until the spare loads the dataset
        next_batch(iterator)
    (tmp_path / "shut").touch()
    for _ in range(6):
        next_batch(iterator)
    assert (tmp_path / "13.0").exists()
    # A busy machine may take more than the 5 s for which its number waits for a killed process.
    second = 1 if iterator.stats().abandoned else 0
    numbers = sorted(int(path.name.split(".")[1]) for path in tmp_path.glob("number.*"))
    assert numbers == [0, second]
    iterator.finalize()
    assert not any(is_alive(int(path.name[5:])) for path in tmp_path.glob("load.*"))
    del iterator
    assert set(descriptors()) <= before


@pytest.mark.each_method
@pytest.mark.parametrize(
    ("context", "function"),
    [
        ("spawn", WorkerGroup._launch_with),
        ("forkserver", WorkerGroup._launch_with),
        ("forkserver", WorkerProcess.open_pidfd),
        pytest.param("spawn", WorkerProcess.open_pidfd, marks=pytest.mark.stress),
    ],
)
def test_an_interrupt_while_the_spare_starts(make, context, function):
    """It is started again, or goes on, and nothing is left of it in the end."""
    with make(range(4), 4, context=context) as first:
        next(first)
        if ring_of(first).bell_pipe(0) >= 0:
            pytest.skip("the portable path: there is no spare, which needs another's doorbell")
    del first
    before, processes = set(descriptors()), children()
    iterator = make(
        Blocks(8), 4, n_processes=1, context=context, on_timeout="retry", dataset_timeout=30
    )
    with interrupt_at(function, WorkerGroup.start_spare) as came:
        n_interrupts = n_interrupts_of(iterator, lambda it: came and has_spare(it), HANG)
    assert n_interrupts == 1
    iterator.finalize()
    del iterator
    assert children() <= processes
    assert set(descriptors()) <= before


def test_calls_for_many_rows(make, tmp_path):
    """The row of a call that hangs is not known: all are fetched again one by one."""
    iterator = make(HangingCalls(64, {5, 50}, "sleep", tmp_path), 16, repeat=False, **RETRY)
    assert [indices(batch) for batch in iterator] == np.arange(64).reshape(4, 16).tolist()
    assert iterator.stats().timeouts >= 2


def says_where(text):
    """A busy machine may not give the worker the tenth of a second in which it is to say so."""
    return "in hang" in text or "not available" in text


def test_an_index_that_always_hangs_fails(make, tmp_path, caplog):
    dataset = Hanging(8, {5}, "sleep", tmp_path, times=99)
    iterator = make(dataset, 4, n_retries=1, **RETRY)
    for epoch, attempts in ((0, 2), (1, 1)):  # next time once is enough
        assert indices(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(DatasetTimeoutError, match=r"(?s)dataset index 5 ") as c:
            next(iterator)
        assert isinstance(c.value, TimeoutError)
        assert f"epoch {epoch}, batch 1" in str(c.value)
        assert (c.value.index, c.value.attempts) == (5, attempts)
        assert 0.3 < c.value.seconds < HANG
        assert says_where(c.value.stack) and c.value.stack in str(c.value)
    assert len(list(tmp_path.iterdir())) == 3 <= iterator.stats().timeouts
    ended = [record.message for record in caplog.records if "is ended" in record.message]
    assert sum(map(says_where, ended)) == 3
    assert indices(next(iterator)) == [0, 1, 2, 3]


def test_an_index_that_always_hangs_is_skipped(make, tmp_path):
    dataset = Hanging(8, {5}, "sleep", tmp_path, times=99)
    iterator = make(
        dataset, 4, n_retries=0, on_error="skip", converter=concat_examples, repeat=False, **RETRY
    )
    assert [batch[1].tolist() for batch in iterator] == [[0, 1, 2, 3], [4, 6, 7]]
    assert iterator.skipped[0].error.startswith("fastiter.errors.DatasetTimeoutError")


class HangsOnce:
    def __init__(self, folder):
        self.mark = folder / "mark"

    def __call__(self, batch, device=None):
        if 4 in batch and not self.mark.exists():
            self.mark.touch()
            hang("read")
        return sum(batch)


def test_a_converter_that_hangs_is_an_error_of_its_batch(make, tmp_path):
    iterator = make(range(12), 4, converter=HangsOnce(tmp_path), **RETRY)
    assert next(iterator) == 6
    with pytest.raises(DatasetTimeoutError, match=r"(?s)the converter took longer .*in hang"):
        next(iterator)
    assert [next(iterator) for _ in range(3)] == [38, 6, 22]


def test_a_dataset_that_does_not_load(make, tmp_path):
    def load(number):
        if number == 1 and not (tmp_path / "works").exists():
            (tmp_path / f"load.{len(list(tmp_path.iterdir()))}").touch()
            hang("sleep")

    dataset = Hanging(8, {7}, "sleep", tmp_path / "none", times=0)
    dataset.held = set()
    iterator = make(dataset, 4, worker_init=load, n_retries=1, **RETRY)
    deadline = time.monotonic() + HANG
    with pytest.raises(DatasetTimeoutError, match=r"has been loading .* 2 times") as caught:
        while time.monotonic() < deadline:
            next(iterator)
    assert (caught.value.index, caught.value.attempts) == (None, 2)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "works").touch()
    position = iterator.current_position
    assert indices(next(iterator)) == list(range(position, position + 4))


def test_a_dataset_that_does_not_load_now_and_then(make, tmp_path):
    def load(number):
        (mark := tmp_path / f"load.{len(list(tmp_path.glob('load.*')))}").touch()
        if mark.name in ("load.0", "load.2"):
            hang("sleep")

    dataset = Hanging(8, {5}, "sleep", tmp_path)
    iterator = make(dataset, 4, n_processes=1, worker_init=load, n_retries=1, **RETRY)
    assert [indices(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(list(tmp_path.glob("load.*"))) == 4


def test_workers_stopped_with_nothing_in_hand(make):
    iterator = make(range(4000), 4, **RETRY)
    assert next(iterator) == [0, 1, 2, 3]
    pids = pids_of(iterator)
    wait_until(lambda: all(map(sleeps, pids)), "the workers have nothing to do")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for number in range(1, 100):
        assert next(iterator) == list(range(4 * number, 4 * number + 4))
    assert iterator.stats().timeouts >= 2
    assert not any(map(is_alive, pids))


# An interrupt may come between the opening of a file of /proc, and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_interrupts_and_resets_while_rows_hang(make, tmp_path):
    held = set(range(0, 200, 11))
    iterator = make(
        Hanging(200, held, "sleep", tmp_path), 8, on_timeout="retry", dataset_timeout=0.1
    )
    main = threading.get_native_id()
    place = 0
    for step in range(60):
        if step % 6 == 5:
            iterator.reset()
            place = 0

        def interrupt():
            wait_until(lambda: sleeps(main), "next() waits")
            os.kill(os.getpid(), signal.SIGINT)

        try:
            with later(interrupt) if step % 4 == 3 else contextlib.nullcontext():
                batch = next(iterator)
                threading.Event().wait(0.05)
        except KeyboardInterrupt:
            if iterator.current_position == place:
                continue
            place += 8  # it came after the batch
            continue
        assert indices(batch) == list(range(place, place + 8))
        place += 8
    assert n_restarts(iterator) == 0  # its starts may have hung, beside a thread


class Interrupted(dict):
    """Workers by number; each that is added is followed by Ctrl-C."""

    def __setitem__(self, number, worker):
        super().__setitem__(number, worker)
        raise KeyboardInterrupt


def test_an_interrupt_right_after_a_start(make, tmp_path):
    """The pipe of the worker's stacks stays open: its number would be that of another file next."""
    iterator = make(Hanging(64, {40}, "sleep", tmp_path), 8, n_processes=1, repeat=False, **RETRY)
    found = indices(next(iterator))
    group = group_of(iterator)
    group.workers = Interrupted(group.workers)
    with pytest.raises(KeyboardInterrupt):
        while True:
            found += indices(next(iterator))
    group.workers = dict(group.workers)
    for worker in group.workers.values():
        os.fstat(worker.stacks)
    for batch in iterator:
        found += indices(batch)
    assert found == list(range(64))


def test_time_in_which_the_program_is_stopped_does_not_count(tmp_path):
    status, out, err = run_script(
        tmp_path,
        """
        import os, signal, subprocess, sys, time
        from fastiter import MultiprocessIterator

        class Slow:
            def __len__(self):
                return 8

            def __getitem__(self, index):
                for _ in range(3):  # a stop makes it longer
                    time.sleep(0.1)
                return index

        if __name__ == "__main__":
            iterator = MultiprocessIterator(
                Slow(), 8, n_processes=2, shuffle=False, context="fork", dataset_timeout=1.5,
                on_timeout="retry", repeat=False,
            )
            iterator.start()
            group = os.getpid()
            helper = subprocess.Popen(
                ["sh", "-c", f"sleep 0.5; kill -STOP -{group}; sleep 3; kill -CONT -{group}"],
                start_new_session=True,
            )
            print(next(iterator), iterator.stats().timeouts)
            helper.wait()
            iterator.finalize()
        """,
        start_new_session=True,
    )
    assert (status, out, err) == (0, "[0, 1, 2, 3, 4, 5, 6, 7] 0\n", "")


# -- workers that SIGKILL does not end ------------------------------------------------------------


@pytest.fixture
def freezer(monkeypatch):
    """A frozen control group, in which a process takes no SIGKILL: of cgroups v1. Those of v2 let
    it through, and nothing else that needs no broken device holds it back."""
    group = Path("/sys/fs/cgroup/freezer", f"fastiter-{uuid.uuid4()}")
    try:
        group.mkdir()
        (group / "freezer.state").write_text("FROZEN")
    except OSError as error:
        pytest.skip(f"no freezer of cgroups v1: {error}")
    monkeypatch.setenv("FREEZER", str(group))
    yield group
    (group / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
    group.rmdir()


def test_a_worker_that_sigkill_does_not_end_is_abandoned(make, tmp_path, freezer):
    before = children()
    iterator = make(Hanging(64, {9}, "freeze", tmp_path), 8, repeat=False, **RETRY)
    kept = [next(iterator) for _ in range(3)]
    frozen = [int(pid) for pid in (freezer / "cgroup.procs").read_text().split()]
    assert len(frozen) == 1 and all(map(is_alive, frozen))
    kept += [next(iterator)]
    wait_until(lambda: pool_of(iterator).check() or iterator.stats().abandoned, "it is given up")
    assert (iterator.stats().deaths, iterator.stats().abandoned) == (0, 1)
    assert len({*pids_of(iterator)} - {*frozen}) == 2  # as many as before work
    kept += [next(iterator) for _ in range(2)]
    (freezer / "freezer.state").write_text("THAWED")
    wait_until(lambda: not any(map(is_alive, frozen)), "the workers have ended")
    kept += iterator
    assert [indices(batch) for batch in kept] == np.arange(64).reshape(8, 8).tolist()
    wait_until(lambda: pool_of(iterator).check() or not iterator.stats().abandoned, "it is noticed")
    iterator.finalize()
    assert children() <= before


EXIT = """
import pathlib, time
from examples_of import Hanging
from fastiter import MultiprocessIterator

if __name__ == "__main__":
    folder = pathlib.Path(__file__).parent
    iterator = MultiprocessIterator(
        Hanging(16, {1}, "freeze", folder), 4, n_processes=1, shuffle=False, context="fork",
        on_timeout="retry", dataset_timeout=0.3,
    )
    print([index for _, index in next(iterator)])
    begin = time.monotonic()
    iterator.finalize()
    print(time.monotonic() - begin < 3, flush=True)
"""


def test_neither_finalize_nor_the_exit_waits_for_it(tmp_path, freezer):
    program, said = tmp_path / "program.py", tmp_path / "said"
    program.write_text(EXIT)
    with said.open("w") as file:  # the frozen worker has it open, too: no end of a pipe would come
        subprocess.run(
            [sys.executable, program],
            stdout=file,
            stderr=file,
            env=environment(),
            timeout=HANG,
            check=True,
        )
    text = said.read_text()
    assert "[0, 1, 2, 3]\n" in text and "True\n" in text
    assert "does not end, even by SIGKILL" in text
    assert "Traceback" not in text


def test_no_worker_is_left(make, tmp_path, freezer):
    iterator = make(
        Hanging(8, {1}, "freeze", tmp_path, times=99), 4, n_processes=1, n_retries=5, **RETRY
    )
    with pytest.raises(RuntimeError, match="is left: 2 of them take"):
        next(iterator)
    with pytest.raises(RuntimeError, match="no worker process is left"):
        next(iterator)
    iterator.finalize()


# -- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"on_timeout": "kill"}, ValueError),
        ({"on_timeout": "retry", "dataset_timeout": None}, ValueError),
        ({"on_timeout": "retry", "n_retries": -1}, ValueError),
        ({"on_timeout": "retry", "n_retries": 0.5}, TypeError),
        ({"n_retries": 1}, ValueError),
    ],
)
def test_arguments(arguments, error):
    with pytest.raises(error, match=r"on_timeout|n_retries"):
        MultiprocessIterator(Blocks(8), 4, **arguments)
