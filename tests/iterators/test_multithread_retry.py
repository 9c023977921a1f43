"""Threads that take longer than dataset_timeout: warned of, or their rows are fetched by others."""

from __future__ import annotations

import signal
import threading
import warnings

import numpy as np
import pytest
from inside import abandoned_thread_of

from fastiter import DatasetTimeoutError, MultiprocessIterator, MultithreadIterator, concat_examples
from fastiter.errors import TimeoutWarning

HANG = 30
RETRY = {"on_timeout": "retry", "dataset_timeout": 0.2, "shuffle": False}


class Hanging:
    """Rows, of which those in `held` wait for `gate` at their first `times` touches."""

    def __init__(self, size, held=(), times=1):
        self.size, self.held, self.times = size, set(held), times
        self.gate = threading.Event()
        self.touches = []
        self.late = threading.Semaphore(0)

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.touches.append(index)
        late = index in self.held and self.touches.count(index) <= self.times
        if late:
            assert self.gate.wait(HANG)
            self.late.release()
        return np.full(64, -1.0 if late else index), index


class HangingCalls(Hanging):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.fixture
def make():
    made = []

    def build(dataset, batch_size, **arguments):
        made.append(MultithreadIterator(dataset, batch_size, **arguments))
        return made[-1]

    yield build
    for iterator in made:
        iterator._dataset.gate.set()
        iterator.finalize()


def indices(batch):
    """Those of a batch whose arrays are right."""
    arrays, numbers = batch if isinstance(batch, tuple) else zip(*batch, strict=True)
    for array, index in zip(arrays, numbers, strict=True):
        assert (array == index).all()
    return [int(index) for index in numbers]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Hanging, HangingCalls])
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_rows_of_hung_threads_are_fetched_by_others(make, kind, converter, caplog):
    held = [3, 4, 30]
    dataset = kind(48, held)
    iterator = make(dataset, 8, n_threads=3, repeat=False, converter=converter, **RETRY)
    kept = list(iterator)
    expected = np.arange(48).reshape(6, 8).tolist()
    assert [indices(batch) for batch in kept] == expected
    stats = iterator.stats()
    assert 2 <= stats.timeouts <= 3 and stats.abandoned == stats.timeouts
    assert "thread fastiter-" in caplog.text and "in __getitem__" in caplog.text
    dataset.gate.set()
    for _ in range(stats.timeouts):
        assert dataset.late.acquire(timeout=HANG)
    iterator.finalize()
    assert [indices(batch) for batch in kept] == expected  # what came late is written nowhere


def test_an_index_that_always_hangs_fails(make):
    iterator = make(Hanging(8, [5], 99), 4, n_threads=4, n_retries=1, **RETRY)
    for epoch, attempts in ((0, 2), (1, 1)):  # next time once is enough
        assert indices(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(DatasetTimeoutError, match=r"index 5 took longer") as caught:
            next(iterator)
        assert (caught.value.index, caught.value.attempts) == (5, attempts)
        assert "in __getitem__" in caught.value.stack
        assert iterator.epoch == epoch + 1
    assert iterator._dataset.touches.count(5) == 3


def test_an_index_that_always_hangs_is_skipped(make):
    iterator = make(
        Hanging(8, [3, 5], 99),
        4,
        n_threads=2,
        n_retries=0,
        on_error="skip",
        skip_limit=None,
        repeat=False,
        converter=concat_examples,
        **RETRY,
    )
    assert [indices(batch) for batch in iterator] == [[0, 1, 2], [4, 6, 7]]
    assert [record.index for record in iterator.skipped] == [3, 5]


def test_a_converter_that_hangs_is_an_error_of_its_batch(make):
    dataset = Hanging(12)

    def converter(batch):
        if batch[0][1] == 4:
            assert dataset.gate.wait(HANG)
        return [index for _, index in batch]

    iterator = make(dataset, 4, n_threads=1, converter=converter, **RETRY)
    assert next(iterator) == [0, 1, 2, 3]
    with pytest.raises(DatasetTimeoutError, match="the converter took longer") as caught:
        next(iterator)
    assert caught.value.index is None and "in converter" in caught.value.stack
    assert next(iterator) == [8, 9, 10, 11]


def test_no_thread_is_left(make):
    dataset = Hanging(8, [1], 99)
    iterator = make(dataset, 4, n_threads=1, n_retries=9, **RETRY)
    for _ in range(2):
        with pytest.raises(DatasetTimeoutError, match="no thread is left: 1 of them hang"):
            next(iterator)
    dataset.held.clear()
    abandoned = abandoned_thread_of(iterator)
    dataset.gate.set()  # what hangs has its turn still
    abandoned.join(HANG)
    assert iterator.stats().abandoned == 0
    assert [index for _, index in next(iterator)] == [0, 1, 2, 3]


def test_a_warning_names_thread_index_and_stack(make):
    dataset = Hanging(8, [2])
    iterator = make(dataset, 4, n_threads=2, dataset_timeout=0.1, shuffle=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", TimeoutWarning)
        for _ in range(2):
            with pytest.raises(
                TimeoutWarning, match=r"(?s)index 2 .*fastiter-\d.*epoch 0, batch 0"
            ) as c:
                next(iterator)
            assert "in __getitem__" in str(c.value)
        dataset.gate.set()
        warnings.simplefilter("ignore")
        assert [index for _, index in next(iterator)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_interrupts_and_resets_while_rows_hang(make):
    dataset = Hanging(64, range(0, 64, 9))
    iterator = make(dataset, 8, n_threads=9, on_timeout="retry", dataset_timeout=0.1, shuffle=False)
    place = 0
    for step in range(24):
        if step % 7 == 6:
            iterator.reset()
            place = 0
        timer = threading.Timer(0.05, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        try:
            if step % 3 == 1:
                timer.start()  # on a busy machine the signal comes in here
            batch = next(iterator)
            if step % 3 == 1:
                timer.join()
        except KeyboardInterrupt:
            if iterator.current_position != place % 64:
                place += 8  # it came after the batch
            continue
        finally:
            timer.cancel()
        assert indices(batch) == [i % 64 for i in range(place, place + 8)]
        place += 8


def test_processes_have_a_limit_and_threads_have_none_unless_it_is_set():
    assert MultiprocessIterator([1], 1).dataset_timeout == 30
    assert MultithreadIterator([1], 1).dataset_timeout is None


def test_arguments():
    for arguments in ({"on_timeout": "retry"}, {"n_retries": 1}, {"dataset_timeout": 0}):
        with pytest.raises(ValueError, match=r"dataset_timeout|on_timeout"):
            MultithreadIterator(Hanging(4), 2, **arguments)
