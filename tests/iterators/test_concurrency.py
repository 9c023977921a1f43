"""Threads, and forked children, meet objects that another thread is using.

Without a GIL more of it can go wrong: those tests are for a free-threaded interpreter above all.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from failing import Calling
from inside import planner_of
from steps import at_step

from fastiter import (
    MixtureOrderSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    concat_examples,
)
from fastiter._ring import infer_schema, serialization
from fastiter._util.concurrency import WeakObjects
from fastiter.datasets import ArrowDataset, open_pickle_dataset, open_pickle_dataset_writer
from fastiter.iterators.samplers.mixture import MixtureOrder
from fastiter.iterators.samplers.shuffle import OrderBuffers
from fastiter.reader import cache

HANG = 30

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Gate:
    """A place where a thread stops, in this process and not in those that it forks."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.is_waiting, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if os.getpid() == self.pid:
            self.is_waiting.set()
            assert self.opened.wait(HANG)

    @contextlib.contextmanager
    def held(self, action: Callable[[], Any]) -> Iterator[None]:
        """Has a thread do `action`, and wait here while the block runs."""
        thread = threading.Thread(target=action)
        thread.start()
        try:
            assert self.is_waiting.wait(HANG)
            yield
        finally:
            self.opened.set()
            thread.join(HANG)


def in_child(function: Callable[[], bool]) -> int:
    """Exit status of a forked child: 0 if `function` is true there; -SIGALRM if it hangs."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(10)
        try:
            status = 0 if function() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextlib.contextmanager
def meanwhile(action: Callable[[], Any], n_threads: int = 1) -> Iterator[None]:
    """Does `action` again and again in threads while the block runs."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            action()

    threads = [threading.Thread(target=run) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(HANG)


# ---- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator])
def test_a_child_forked_while_a_thread_is_in_next(kind):
    gate = Gate()  # of the thread that fetches number 4
    dataset = Calling(lambda index: (index == 4 and gate(), index)[1], 100)
    iterator = kind(dataset, 4, shuffle=False)
    assert next(iterator) == [0, 1, 2, 3]
    position = iterator.state_dict()["position"]

    def child() -> bool:
        state, other = iterator.state_dict(), copy.copy(iterator)
        stats = iterator.stats()
        right = (
            state["position"] == position
            and stats.next_seconds == iterator.stats().next_seconds
            and next(iterator) == next(other) == [4, 5, 6, 7]
            and next(iterator) == [8, 9, 10, 11]
        )
        iterator.finalize()
        other.finalize()
        return right and threading.active_count() == 1

    with gate.held(lambda: next(iterator)):
        status = in_child(child)
    assert status == 0
    assert next(iterator) == [8, 9, 10, 11]
    iterator.finalize()


def test_a_child_forked_by_the_dataset_is_still_in_next():
    statuses = []

    def fork(index: int) -> int:
        if index == 2:
            statuses.append(in_child(refuses))
        return index

    def refuses() -> bool:
        with pytest.raises(RuntimeError, match="inside another call"):
            next(iterator)
        return iterator.current_position == 0

    iterator = SerialIterator(Calling(fork, 100), 4, shuffle=False)
    assert next(iterator) == [0, 1, 2, 3]
    assert statuses == [0]


def test_a_child_forked_while_a_thread_learns_the_fields(monkeypatch):
    gate = Gate()
    derive = infer_schema.derive_schema
    monkeypatch.setattr(infer_schema, "derive_schema", lambda *given: (gate(), derive(*given))[1])
    with MultithreadIterator(range(8), 4, shuffle=False, converter=concat_examples) as iterator:
        with gate.held(lambda: next(iterator)):
            assert in_child(lambda: next(iterator).tolist() == [0, 1, 2, 3]) == 0
        assert next(iterator).tolist() == [4, 5, 6, 7]


def test_a_child_forked_while_a_thread_reads_into_a_cache():
    gate = Gate()

    def source() -> Iterator[int]:
        yield 0
        gate()
        yield 1

    reader = cache(source)
    begun = reader()
    next(begun)

    def child() -> bool:
        with pytest.raises(RuntimeError, match="forked while another thread"):
            next(begun)
        return list(reader()) == list(reader()) == [0, 1]

    with gate.held(lambda: list(reader())):
        assert in_child(child) == 0
    assert list(begun) == [1]


def test_a_child_forked_between_reads_goes_on_with_a_cache():
    begun = cache(lambda: iter(range(3)))()
    assert next(begun) == 0
    assert in_child(lambda: list(begun) == [1, 2]) == 0
    assert list(begun) == [1, 2]


def test_a_child_forked_while_a_thread_writes_pickles(tmp_path):
    gate = Gate()
    writer = open_pickle_dataset_writer(tmp_path / "examples")
    write = writer._writer.write

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(writer_file, name)

        def write(self, data: bytes) -> int:
            gate()
            return write(data)

    writer_file, writer._writer = writer._writer, Slow()
    with gate.held(lambda: writer.write("parent")):
        assert in_child(lambda: writer.write("child") is None) == 0
    writer.close()
    with open_pickle_dataset(tmp_path / "examples") as dataset:
        assert dataset[0] == "parent"


# ---- threads -------------------------------------------------------------------------------------


def test_an_iterator_is_asked_while_another_thread_iterates():
    def fetch(index: int) -> int:
        if index == 500:
            raise ValueError("damaged")
        return index

    iterator = SerialIterator(Calling(fetch, 1000), 4, shuffle=False, on_error="skip")

    def ask() -> None:
        address, skipped, valid = iterator.address, iterator.skipped, iterator.valid
        assert address is None or len(address.indices) == 4
        assert valid is None or valid.all()
        assert [each.index for each in skipped] in ([], [500])
        assert iterator.epoch <= iterator.epoch_detail

    with meanwhile(ask, n_threads=2):
        for _ in range(20_000):
            next(iterator)
    assert iterator.epoch == 80


def test_work_under_way_is_listed_while_another_thread_delivers():
    planner = planner_of(SerialIterator(range(1000), 4))
    with meanwhile(planner.begun_work, n_threads=2):  # as stats() and finalize() do
        for _ in range(5_000):
            while planner.ahead().number % 3:
                planner.ahead().work = object()
            planner.ahead().work = object()
            planner.deliver()
    assert planner.state.epoch == 20


def test_a_trace_begins_and_ends_while_another_thread_iterates():
    iterator = SerialIterator(range(1000), 4, shuffle=False)

    def trace() -> None:
        with iterator.trace() as record:
            pass
        record.events()

    with meanwhile(trace):
        for number in range(20_000):
            assert next(iterator)[0] == number * 4 % 1000


def test_finalize_while_other_threads_iterate():
    for _ in range(60):
        iterator = MultithreadIterator(range(1000), 4, n_threads=2)
        next(iterator)

        def go_on(iterator: MultithreadIterator = iterator) -> None:
            with contextlib.suppress(RuntimeError):
                while True:
                    next(iterator)

        threads = [threading.Thread(target=go_on) for _ in range(3)]
        for thread in threads:
            thread.start()
        iterator.finalize()
        for thread in threads:
            thread.join(HANG)
            assert not thread.is_alive()


def test_examples_that_another_thread_changes():
    """A dict whose values are replaced, so that each dies, while threads copy them."""
    shared = {"a": np.zeros(40), "b": 1.0}

    def change() -> None:
        for number in range(100):
            shared["a"], shared["b"] = np.full(40, number), float(number)

    dataset = Calling(lambda index: shared, 1000)
    iterator = MultithreadIterator(dataset, 64, n_threads=2, converter=concat_examples)
    with iterator, meanwhile(change):
        for _ in range(300):
            batch = next(iterator)
            assert (batch["a"] == batch["a"][:, :1]).all()
            assert set(batch["b"]) <= set(range(100))


def test_modules_of_a_pickle_are_named_while_another_thread_imports():
    packed, rounds = serialization.Packed(np.float32), []

    def import_and_forget() -> None:
        for number in range(100):
            sys.modules[f"imported_{number}"] = threading
        for number in range(100):
            del sys.modules[f"imported_{number}"]
        rounds.append(None)

    calls = 0
    with meanwhile(import_and_forget):
        while calls < 5_000 or len(rounds) < 1_000:
            calls += 1
            assert packed.modules() == ["numpy"]


def test_a_collection_at_any_moment_of_a_loop_over_weak_objects():
    class Thing:
        me: Thing

    before = gc.get_threshold()
    kept, found = Thing(), WeakObjects[Thing]()
    found.add(kept)
    gc.collect()
    try:
        for allocations in range(1, 40):
            gc.disable()
            for _ in range(5):
                garbage = Thing()
                garbage.me = garbage
                found.add(garbage)
            del garbage
            gc.set_threshold(allocations)
            gc.enable()
            assert kept in list(found)
    finally:
        gc.set_threshold(*before)
        gc.enable()
    gc.collect()
    assert list(found) == [kept]


@pytest.mark.parametrize("line", range(12))
def test_threads_that_draw_orders_of_one_sampler(line):
    expected = [ShuffleOrderSampler(3).epoch(number, 100).order for number in range(3)]
    sampler, others = ShuffleOrderSampler(3), []
    sampler.epoch(0, 100)  # memory that is used again
    another = functools.partial(sampler.epoch, 1, 100)
    with at_step(OrderBuffers.take, line, lambda: others.append(another().order), "line"):
        order = sampler.epoch(2, 100).order
    assert np.array_equal(order, expected[2])
    for other in others:
        assert np.array_equal(other, expected[1])


@pytest.mark.parametrize("line", range(10))
def test_threads_that_read_one_order_of_a_mixture(line):
    sampler = MixtureOrderSampler([300, 50], [0.8, 0.2], 1, stop=10_000)
    order, expected = sampler.epoch(0, 350).order, sampler.epoch(0, 350).order[:10_000]
    others = []
    another = functools.partial(order._piece, 9000, 9010)
    with at_step(MixtureOrder._piece, line, lambda: others.append(another()), "line"):
        assert np.array_equal(order._piece(10, 20), expected[10:20])
    for other in others:
        assert np.array_equal(other, expected[9000:9010])


@pytest.mark.parametrize("library", ["pandas", "datasets", "torch", "cupy", "cv2", "pyarrow"])
def test_a_library_that_another_thread_has_begun_to_import(monkeypatch, library):
    """Its module is there, and empty yet."""
    tables = [[1, 2, 3, 4]]
    if library != "pyarrow":
        with contextlib.suppress(ImportError):
            import pyarrow as pa

            tables.append(ArrowDataset(pa.array([1, 2, 3, 4])))
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))
    for rows in tables:
        for kind in (SerialIterator, MultithreadIterator, MultiprocessIterator):
            with kind(rows, 2, shuffle=False, converter=concat_examples) as iterator:
                assert [next(iterator).tolist() for _ in range(3)] == [[1, 2], [3, 4], [1, 2]]
    if len(tables) > 1:
        assert [int(row) for row in ArrowDataset(pa.array([1, 2]))] == [1, 2]
