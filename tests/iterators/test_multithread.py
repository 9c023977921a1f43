"""Properties of threads alone: waiting, interrupting, hanging, forking."""

from __future__ import annotations

import copy
import gc
import itertools
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest
from failing import Calling, Failing

from fastiter import DatasetError, MultithreadIterator, concat_examples
from fastiter._threads import pool, tasks
from fastiter._util import concurrency
from fastiter.datasets import TupleDataset

PATIENCE = 30.0  # seconds; a limit for what should come at once


class Gated:
    """Waits at one index until the gate is opened; tells when it is there."""

    def __init__(self, index: int, size: int = 8) -> None:
        self._index = index
        self._size = size
        self.is_waiting = threading.Event()
        self.gate = threading.Event()
        self.on_arrival: Any = None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        if index == self._index and not self.gate.is_set():
            if self.on_arrival is not None:
                self.on_arrival()
            self.is_waiting.set()
            assert self.gate.wait(PATIENCE)
        return index


def our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("fastiter-")}


def wait_until_gone(threads: set[threading.Thread]) -> None:
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def run(program: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = our_threads()
    yield
    gc.collect()
    wait_until_gone(our_threads() - before)


def test_all_threads_work_on_one_batch():
    n_threads = 4
    barrier = threading.Barrier(n_threads, timeout=PATIENCE)

    def meet(index):
        barrier.wait()  # passed only if all rows are fetched at the same time
        return index

    dataset = Calling(meet, n_threads)
    with MultithreadIterator(dataset, n_threads, shuffle=False, n_threads=n_threads) as iterator:
        assert next(iterator) == [0, 1, 2, 3]


def test_first_failing_row_gives_the_error():
    release = threading.Event()

    def fail_twice(index):
        if index == 1:
            assert release.wait(PATIENCE)
            raise LookupError(index)
        if index == 2:
            release.set()
            raise ValueError(index)
        return index

    for _ in range(5):
        release.clear()
        with (
            MultithreadIterator(Calling(fail_twice, 4), 4, shuffle=False, n_threads=4) as iterator,
            pytest.raises(LookupError),
        ):
            next(iterator)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_error_that_would_end_a_thread_comes_as_dataset_error(error):
    with MultithreadIterator(Failing({1: error}, 3), 1, repeat=False, shuffle=False) as iterator:
        assert next(iterator) == [0]
        with pytest.raises(DatasetError, match=type(error).__name__) as caught:
            next(iterator)
        assert caught.value.__cause__ is error
        assert next(iterator) == [2]


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 6])
@pytest.mark.parametrize("limit", [{}, {"dataset_timeout": 20.0, "on_timeout": "retry"}])
def test_a_thread_that_finds_no_memory_for_its_own_work_loses_nothing(monkeypatch, at, limit):
    clock, calls = pool.now, itertools.count(1)

    def now():
        if threading.current_thread() is not threading.main_thread() and next(calls) == at:
            raise MemoryError("none is left")
        return clock()

    monkeypatch.setattr(pool, "now", now)
    indices, errors = [], 0
    with MultithreadIterator(range(30), 5, repeat=False, shuffle=False, **limit) as iterator:
        while len(indices) < 30:
            try:
                indices += next(iterator)
            except MemoryError:
                errors += 1
    assert indices == list(range(30)) and errors <= 1


@pytest.mark.slow
def test_a_thread_that_finds_no_memory_to_begin_is_an_error(monkeypatch):
    """CPython waits without end for a thread that ends before its first instruction."""
    monkeypatch.setattr(concurrency, "_START_SECONDS", 1)
    count, bootstrap = threading.active_count(), threading.Thread._bootstrap
    monkeypatch.setattr(threading.Thread, "_bootstrap", lambda thread: None)
    iterator = MultithreadIterator(list(range(8)), 4, n_threads=2, shuffle=False)
    with pytest.raises(RuntimeError, match="RLIMIT_AS"):
        next(iterator)
    assert threading.active_count() == count
    monkeypatch.setattr(threading.Thread, "_bootstrap", bootstrap)
    assert [next(iterator), next(iterator)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    iterator.finalize()


def test_interrupt_ends_the_wait_and_loses_nothing():
    dataset = Gated(2)
    main = threading.main_thread().ident
    dataset.on_arrival = lambda: signal.pthread_kill(main, signal.SIGINT)
    with MultithreadIterator(dataset, 4, shuffle=False, repeat=False) as iterator:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert iterator.current_position == 0
        dataset.gate.set()
        assert list(iterator) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_a_converter_raises_in_a_thread_ends_neither_thread_nor_program(error):
    def convert(batch, device):
        if 2 in batch:
            raise error
        return batch

    with MultithreadIterator(
        range(6), 2, shuffle=False, repeat=False, converter=convert
    ) as iterator:
        assert next(iterator) == [0, 1]
        with pytest.raises(DatasetError, match=type(error).__name__) as caught:
            next(iterator)
        assert caught.value.__cause__ is error
        assert next(iterator) == [4, 5]


def test_interrupt_in_a_converter_that_has_a_device_loses_nothing():
    interrupts = [KeyboardInterrupt()]
    threads = []

    def convert(batch, device):
        assert device == "@numpy"
        threads.append(threading.current_thread())
        if interrupts:
            raise interrupts.pop()
        return batch

    with MultithreadIterator(
        range(6), 2, shuffle=False, repeat=False, converter=convert, device="@numpy"
    ) as iterator:
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert list(iterator) == [[0, 1], [2, 3], [4, 5]]
    assert set(threads) == {threading.current_thread()}


@pytest.mark.slow
def test_finalize_wakes_up_who_waits():
    dataset = Gated(1)
    iterator = MultithreadIterator(dataset, 4, shuffle=False)
    errors: list[BaseException] = []

    def wait_for_batch():
        try:
            next(iterator)
        except RuntimeError as error:
            errors.append(error)

    waiting = threading.Thread(target=wait_for_batch)
    waiting.start()
    assert dataset.is_waiting.wait(PATIENCE)
    iterator.finalize()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()
    assert len(errors) == 1
    dataset.gate.set()


def test_finalize_waits_for_the_example_that_a_thread_fetches():
    dataset, before = Gated(5), our_threads()
    iterator = MultithreadIterator(dataset, 4, shuffle=False)
    next(iterator)
    assert dataset.is_waiting.wait(PATIENCE)
    dataset.gate.set()
    iterator.finalize()
    assert our_threads() <= before


@pytest.mark.parametrize("n_prefetch", [1, 7])
@pytest.mark.parametrize("in_cycle", [False, True])
def test_dropped_iterator_ends_its_threads(n_prefetch, in_cycle):
    before = our_threads()
    iterator = MultithreadIterator(range(50), 3, n_threads=3, n_prefetch=n_prefetch)
    next(iterator)
    if in_cycle:
        iterator.itself = iterator
    started = our_threads() - before
    assert len(started) == 3
    del iterator
    gc.collect()
    wait_until_gone(started)


def test_iterating_from_several_threads_gives_each_batch_once():
    batches: list[list[int]] = []

    def consume(iterator):
        for batch in iterator:
            batches.append(batch)

    with MultithreadIterator(range(300), 2, repeat=False, shuffle=False, n_threads=2) as iterator:
        consumers = [threading.Thread(target=consume, args=(iterator,)) for _ in range(4)]
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join(PATIENCE)
    assert sorted(batches) == [[i, i + 1] for i in range(0, 300, 2)]


def test_a_thread_that_begins_when_others_have_ended_takes_the_rest():
    left = []
    with MultithreadIterator(range(6), 2, repeat=False) as iterator:
        for _ in range(3):  # each likely has the number of the one before
            thread = threading.Thread(target=lambda: left.append(len(list(iterator))))
            thread.start()
            thread.join()
    assert left == [3, 0, 0]


def test_copy_has_threads_of_its_own():
    with MultithreadIterator(range(6), 2, shuffle=False, n_threads=2) as iterator:
        next(iterator)
        with copy.copy(iterator) as other:
            iterator.finalize()
            assert next(other) == [2, 3]
            assert other.n_threads == 2


@pytest.mark.parametrize("name", ["n_threads", "n_prefetch"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_numbers_are_checked(name, wrong):
    with pytest.raises((TypeError, ValueError), match=name):
        MultithreadIterator(range(3), 1, **{name: wrong})


def test_program_ends_silently_with_an_iterator_alive_and_a_thread_hanging():
    program = """
        import threading
        from fastiter import MultithreadIterator

        class Hanging:
            def __len__(self):
                return 4

            def __getitem__(self, index):
                if index == 2:
                    threading.Event().wait()
                return index

        iterator = MultithreadIterator(Hanging(), 2, shuffle=False)
        print(next(iterator))
    """
    assert run(program) == (0, "[0, 1]\n", "")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_array_that_changes_before_it_is_gathered(monkeypatch, on_error):
    """The batch is then made of examples, as they are now."""
    array = np.arange(48.0).reshape(12, 4)
    fill = tasks.ColumnsTask._fill

    def fill_later(job: Any, start: int, stop: int, at: Any) -> Any:
        array.shape = (24, 2)
        return fill(job, start, stop, at)

    monkeypatch.setattr(tasks.ColumnsTask, "_fill", fill_later)
    with MultithreadIterator(
        TupleDataset(array, np.arange(12)),
        4,
        shuffle=False,
        n_threads=2,
        converter=concat_examples,
        on_error=on_error,
    ) as iterator:
        rows, numbers = next(iterator)
        assert numbers.tolist() == [0, 1, 2, 3]
        assert rows.tolist() == np.arange(8.0).reshape(4, 2).tolist()
