"""Row groups of Parquet files that several processes, or several objects in one, read at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outside import HANG, in_child

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="this pyarrow has no Parquet")

from fastiter import MultiprocessIterator, SerialIterator, TimeoutWarning, kernels  # noqa: E402
from fastiter._clib.file_locks import FileLocks  # noqa: E402
from fastiter._fetch import row_groups  # noqa: E402
from fastiter.datasets import ArrowDataset  # noqa: E402
from fastiter.random import example_rng  # noqa: E402

GROUP, N_GROUPS = 20, 14  # more than there are cells
N = GROUP * N_GROUPS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(N), "b": [[i] * 3 for i in range(N)]})
    pq.write_table(table, file, row_group_size=GROUP)
    return file


def wrong_rows(data: Any, seed: int, count: int) -> int:
    """Reads random rows, and counts the wrong ones."""
    rng, wrong = np.random.default_rng(seed), 0
    for _ in range(count):
        places = rng.integers(0, N, 16).tolist()
        rows = data.__getitems__(places)
        wrong += sum(
            r["a"] != i or r["b"].tolist() != [i] * 3 for r, i in zip(rows, places, strict=True)
        )
    return wrong


def assert_no_lock_is_held(data: ArrowDataset) -> None:
    """By another open file description."""
    n = len(data._groups.ends)
    with FileLocks(data._groups._table_fd, 1 + n, "this test").hold() as hold:
        assert [number for number in range(1 + n) if not hold.take(number, True)] == []


def test_two_objects_in_one_process_exclude_each_other(path: Path) -> None:
    """A dataset and what its shared handle gives are two, with one memory."""
    first = ArrowDataset(path)
    second = kernels.share(first).value
    assert second._groups is not first._groups
    wrong: list[int] = []
    threads = [
        threading.Thread(target=lambda d=data, k=seed: wrong.append(wrong_rows(d, k, 80)))
        for seed, data in enumerate((first, second))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]
    assert_no_lock_is_held(first)


def test_a_closed_duplicate_gives_up_no_lock(path: Path) -> None:
    """A handle that arrives again in a process closes the descriptor that came with it."""
    data = ArrowDataset(path)
    reading = data._groups.pieces(np.arange(3))
    next(reading)
    os.close(os.dup(data._groups._table_fd))

    def child() -> bool:
        # It reads on in other cells, since that one is in use.
        assert all(data[i]["a"] == i for i in range(0, N, 7))
        return not data._groups._locks.hold().take(1, True)

    assert in_child(child) == 0
    reading.close()
    assert_no_lock_is_held(data)


def lines_that_run(data: ArrowDataset) -> list[tuple[str, int]]:
    seen: dict[tuple[str, int], int] = {}

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != row_groups.__file__:
            return None
        if event in ("line", "return"):
            seen[event, frame.f_lineno] = seen.get((event, frame.f_lineno), 0) + 1
        return tracer

    read_all(data, tracer)
    return [place for place, count in seen.items() if count >= 3]


def read_all(data: ArrowDataset, tracer: Any) -> None:
    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        for k in range(40):
            assert data[k * 37 % N]["a"] == k * 37 % N
        data._groups.drop()
    finally:
        sys.settrace(before)


@pytest.mark.parametrize(
    "third", [0, *(pytest.param(third, marks=pytest.mark.stress) for third in (1, 2))]
)
def test_an_interrupt_at_any_line_leaves_no_lock(path: Path, third: int) -> None:
    places = lines_that_run(ArrowDataset(path))
    assert len(places) > 100
    for wanted in places[third::3]:
        data, hits = ArrowDataset(path), 0

        def tracer(frame: Any, event: str, arg: Any, wanted: tuple[str, int] = wanted) -> Any:
            nonlocal hits
            if frame.f_code.co_filename != row_groups.__file__:
                return None
            if (event, frame.f_lineno) == wanted:
                hits += 1
                if hits == 3:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return tracer

        with contextlib.suppress(KeyboardInterrupt):
            read_all(data, tracer)
        assert hits >= 3 or wanted[0] == "return", wanted
        assert_no_lock_is_held(data)
        assert wrong_rows(data, 0, 2) == 0


def test_interrupts_at_random_leave_no_lock(path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    data, rng, count = ArrowDataset(path), random.Random(0), 0
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-3))
                while True:
                    data.__getitems__([rng.randrange(N) for _ in range(4)])
            except KeyboardInterrupt:
                count += 1
            assert_no_lock_is_held(data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count == 400
    assert in_child(lambda: wrong_rows(data, 1, 10) == 0) == 0


# An interrupt may come between the opening of a file of /proc, and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_storm_of_interrupts_over_workers(path: Path) -> None:
    """No batch is lost, nothing hangs, and nothing else than the interrupts is raised."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    rng = random.Random(0)
    data = ArrowDataset(path, "a")
    with MultiprocessIterator(data, 10, n_processes=2, shuffle=False, context="fork") as it:
        got = [int(x) for x in next(it)]
        n_interrupts = 0
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            while n_interrupts < 300 and len(got) < 300 * N:
                batch: Any = []
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 3e-3))
                    while True:
                        batch = next(it)
                        got += [int(x) for x in batch]
                        batch = []
                except KeyboardInterrupt:
                    n_interrupts += 1
                    # One between the batch's return and its note is this loop's own.
                    done = len(got) // 10 * 10
                    got = got[:done]
                    if len(batch) and (not done or got[-1] != int(batch[-1])):
                        got += [int(x) for x in batch]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    # An interrupt may fall between the return and the assignment: then a batch is missing
    # here, and no row is wrong or comes twice.
    steps = np.array(got[::10]) // 10
    assert ((np.diff(steps) % (N // 10) != 0).all()) and n_interrupts == 300
    assert got == [int(10 * s + k) for s in steps for k in range(10)]


@pytest.mark.parametrize("mode", ["warn", "retry"])
def test_a_stopped_reader_is_told_of(path: Path, mode: str) -> None:
    """A process that holds a lock and is stopped, as by a debugger: the time limit counts."""
    data = ArrowDataset(path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with data._groups._locks.hold() as hold:
            hold.take(1, True)  # as if it decoded the first group
            os.write(writer, b"x")
            signal.pause()
    try:
        assert os.read(reader, 1) == b"x"
        os.kill(pid, signal.SIGSTOP)
        more: dict[str, Any] = {"n_retries": 1} if mode == "retry" else {}
        iterator = MultiprocessIterator(
            data,
            10,
            n_processes=2,
            shuffle=False,
            context="fork",
            dataset_timeout=0.5,
            on_timeout=mode,
            **more,
        )
        with iterator as it, warnings.catch_warnings():
            # On a busy machine a worker that replaces another one may be told of as it starts.
            warnings.simplefilter("error" if mode == "warn" else "ignore", TimeoutWarning)
            if mode == "warn":
                with pytest.raises(TimeoutWarning, match=r"0\.5"):
                    next(it)
                os.kill(pid, signal.SIGKILL)
                warnings.simplefilter("ignore", TimeoutWarning)  # a busy machine takes longer
                assert [row["a"] for row in next(it)] == list(range(10))
            else:
                with pytest.raises(Exception, match="index 0"):
                    next(it)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def test_a_wait_without_a_limit_names_the_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ArrowDataset(path)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with data._groups._locks.hold() as hold:
            hold.take(2, True)
            os.write(writer, b"x")
            signal.pause()
    try:
        assert os.read(reader, 1) == b"x"
        monkeypatch.setattr(row_groups, "_STUCK_SECONDS", 0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            with pytest.raises(RuntimeWarning, match=rf"row group 1 of .*process {pid} holds"):
                SerialIterator(data, 2 * GROUP, shuffle=False).next()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)
    assert data[GROUP]["a"] == GROUP


def test_a_child_that_lives_on_keeps_no_lock_of_its_parent(path: Path) -> None:
    data = ArrowDataset(path)
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        hold = data._groups._locks.hold()
        hold.take(1, True)
        child = os.fork()
        if child == 0:
            os.write(writer, b"%d\n" % os.getpid())
            time.sleep(10 * HANG)
            os._exit(0)
        signal.pause()
    child = int(os.read(reader, 32))
    try:
        assert not data._groups._locks.hold().take(1)
        os.kill(middle, signal.SIGKILL)
        os.waitpid(middle, 0)
        assert_no_lock_is_held(data)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


def test_a_childs_finalize_only_lets_go(path: Path) -> None:
    """Also where another thread of its parent was in the middle of a read."""
    data = ArrowDataset(path, "a")
    iterator = SerialIterator(data, 10, shuffle=False)
    batch = next(iterator)
    groups = data._groups
    inside, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with groups._lock, groups._locks.alone(0, "this test"), iterator._lock:
            inside.set()
            assert go_on.wait(HANG)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(HANG)
    owners = groups._owners.copy()

    def child() -> bool:
        iterator._pid = os.getppid()  # as before any handler of the fork has run
        iterator.finalize()
        groups.drop()
        return bool((groups._owners == owners).all())

    assert in_child(child) == 0
    go_on.set()
    thread.join()
    assert len(batch) == 10 and [int(x) for x in next(iterator)] == list(range(10, 20))
    iterator.finalize()
    assert not groups._owners.any()


class ReadsInAChild:
    """Every tenth row; one of another group is read in a process that the worker forks for it."""

    def __init__(self, data: ArrowDataset):
        self.data = data

    def __len__(self) -> int:
        return len(self.data) // 10

    def __getitem__(self, index: int) -> tuple[int, int]:
        i = 10 * index
        far = (i + N // 2) % N

        def child() -> bool:
            with pytest.raises(RuntimeError):  # the example is the worker's
                example_rng()
            return int(self.data[far]["a"]) == far

        return int(self.data[i]["a"]), in_child(child)


def test_a_process_that_a_worker_forks_reads_the_same_dataset(path: Path) -> None:
    data = ReadsInAChild(ArrowDataset(str(path), columns=["a"]))
    with MultiprocessIterator(data, 10, n_processes=1, repeat=False, shuffle=False) as iterator:
        assert [row for batch in iterator for row in batch] == [(i, 0) for i in range(0, N, 10)]
