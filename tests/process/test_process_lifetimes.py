"""Lifetimes of slots, batches and memory, one test per number of the rules.

L8, the lease of an asynchronous device copy, is tested in `test_device_ahead.py` (a stand-in) and
`test_gpu.py`.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import sys
import threading
import weakref
from multiprocessing import get_context

import numpy as np
import psutil
import pytest
from examples_of import WIDE, Blocks, Gated, Numbered
from inside import pids_of, planner_of, ring_of, slots_of
from outside import HANG, descriptors, is_alive, later, mapped_arenas, resident, sleeps, wait_until

from fastiter import MultiprocessIterator, concat_examples
from fastiter._workers.pool import _SPARES


def numbers(batch):
    return [int(example[0]) // example.size for example in batch]


def is_intact(batch, dataset, first):
    return all(
        np.array_equal(example, dataset[(first + row) % len(dataset)])
        for row, example in enumerate(batch)
    )


def test_l1_a_slot_has_one_owner(make):
    iterator = make(Blocks(64, WIDE), 4, n_prefetch=3)
    held = [next(iterator) for _ in range(2)]
    counts = slots_of(iterator)
    assert counts["leased"] == 2
    owned = counts["free"] + counts["leased"] + counts["draining"] + counts["retired"]
    in_ring = len(ring_of(iterator).scheduled)
    assert owned + in_ring + _SPARES == ring_of(iterator).arena.geometry[0]
    places = {example.__array_interface__["data"][0] for batch in held for example in batch}
    assert len(places) == 8
    del held
    assert slots_of(iterator)["leased"] == 0


def test_l2_any_view_of_any_depth_keeps_the_slot(make):
    dataset = Blocks(40, WIDE)
    iterator = make(dataset, 4)
    batch = next(iterator)
    views = {
        "slice": batch[0][3:9],
        "reshape": batch[1].reshape(16, 16)[2],
        "memoryview": memoryview(batch[2])[5:7],
        "other dtype": batch[3].view("i8")[1:2],
    }
    expected = {name: np.array(view) for name, view in views.items()}
    del batch
    for _ in range(50):
        next(iterator)
    assert slots_of(iterator)["leased"] == 1
    for name, view in views.items():
        np.testing.assert_array_equal(np.asarray(view), expected[name], err_msg=name)
    views.clear()
    del view
    assert slots_of(iterator)["leased"] == 0


def test_l2_released_in_a_collection_inside_next(make):
    dataset = Blocks(30, WIDE)
    iterator = make(dataset, 3)
    threshold = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1)
    try:
        for number in range(100):
            batch = next(iterator)
            assert is_intact(batch, dataset, 3 * number)
            batch.append(batch)  # only the collector frees it
            del batch
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert slots_of(iterator)["leased"] == 0


class Ring:
    """Refers to itself, and to bytes that stay in the slot."""

    def __init__(self, data):
        self.data, self.itself = data, self

    def __reduce_ex__(self, protocol):
        return Ring, (pickle.PickleBuffer(self.data),)


class Rings(Blocks):
    def __getitem__(self, index):
        if index % 4 == 3:
            raise ValueError(index)
        return Ring(bytearray(b"%064d" % index))


def test_l2_released_by_a_collection_of_garbage(make):
    """By an example in it, or by the traceback of an error that its own frame refers to."""
    gc.collect()
    iterator = make(Rings(64), 2)
    for number in range(20):
        try:
            batch = next(iterator)
            assert [int(bytes(x.data)) for x in batch] == [2 * number % 64, 2 * number % 64 + 1]
            del batch
        except ValueError as error:
            kept = [error]
            kept.append(kept)
            del kept
        gc.collect()
        assert slots_of(iterator)["leased"] == 0
    assert iterator.stats().copied_out == 0


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_l3_held_for_a_thousand_batches(make, converter):
    dataset = Blocks(100, WIDE)
    iterator = make(dataset, 5, converter=converter)
    next(iterator)
    held = {number: next(iterator) for number in range(1, 3)}
    held_example = next(iterator)[2]
    for number in range(4, 1004):
        assert is_intact(next(iterator), dataset, 5 * number)
    for number, batch in held.items():
        assert is_intact(batch, dataset, 5 * number)
    np.testing.assert_array_equal(held_example, dataset[17])


def test_l3_a_leased_slot_outlives_reset_snapshot_and_finalize(make, save, load):
    dataset = Blocks(40, WIDE)
    iterator = make(dataset, 4)
    held = [next(iterator), next(iterator)]
    snapshot = save(iterator)
    for _ in range(10):
        iterator.reset()
        assert numbers(next(iterator)) == [0, 1, 2, 3]
        load(iterator, snapshot)
        assert numbers(next(iterator)) == [8, 9, 10, 11]
        pickle.dumps(iterator)
    iterator.finalize()
    assert is_intact(held[0], dataset, 0)
    assert is_intact(held[1], dataset, 4)
    held[0][0][:] = 1
    assert is_intact(held[1], dataset, 4)


@pytest.mark.no_stuck_rows("a row that is fetched in two steps has no owner yet")
def test_l4_a_drained_slot_waits_for_its_owner(make, tmp_path):
    gate = tmp_path / "gate"
    iterator = make(Gated(40, {1}, gate), 2, n_processes=2, n_prefetch=1)
    iterator.start()
    wait_until(tmp_path.joinpath("gate.1").exists, "a worker fetches index 1")
    iterator.reset()
    wait_until(lambda: slots_of(iterator)["draining"] == 1, "all but the owned slot come back")
    for _ in range(3):
        iterator.reset()
    assert slots_of(iterator)["draining"] == 1
    gate.touch()
    assert next(iterator) == [0, 1]
    wait_until(lambda: slots_of(iterator)["draining"] == 0, "the drained slot comes back")


def test_l4_many_resets_while_workers_are_busy(make, tmp_path):
    """Each worker can pin one slot of an old generation, never more."""
    gate = tmp_path / "gate"
    iterator = make(Gated(40, {0, 1}, gate), 2, n_processes=2, n_prefetch=1)
    iterator.start()
    wait_until(tmp_path.joinpath("gate.0").exists, "a worker fetches index 0")
    for _ in range(20):
        iterator.reset()
        ring_of(iterator).top_up(planner_of(iterator))
    assert slots_of(iterator)["draining"] <= 2
    gate.touch()
    assert next(iterator) == [0, 1]
    assert next(iterator) == [2, 3]


@pytest.mark.parametrize("converter", [None, concat_examples])
def test_l5_holding_everything_never_stops_progress(make, converter):
    dataset = Numbered(60, WIDE)
    iterator = make(dataset, 3, n_prefetch=2, converter=converter)
    kept = [next(iterator) for _ in range(200)]
    assert iterator.stats().copied_out > 100
    for number, batch in enumerate(kept):
        if converter is None:
            arrays, indices = zip(*batch, strict=True)
        else:
            arrays, indices = batch
        assert is_intact(arrays, Blocks(60, WIDE), 3 * number)
        assert list(indices) == [(3 * number + row) % 60 for row in range(3)]


@pytest.mark.parametrize("kind", ["columns", "ragged", "objects"])
def test_l5_one_example_of_each_of_a_thousand_batches(make, kind):
    elements = 8192  # 64 KiB an example

    class Ragged(Blocks):
        def __getitem__(self, index):
            return super().__getitem__(index)[: elements - index % 5]

    class Objects(Blocks):
        def __getitem__(self, index):
            return {"deep": [super().__getitem__(index)]}

    dataset = {"columns": Blocks, "ragged": Ragged, "objects": Objects}[kind](64, elements)
    iterator = make(dataset, 8)
    for _ in range(20):
        next(iterator)
    before = resident()
    kept = [next(iterator)[number % 8] for number in range(1000)]
    grown = resident() - before
    size = elements * 8
    all_slots = ring_of(iterator).arena.geometry[0] * 8 * size * 2
    assert grown <= 3 * 1000 * size + all_slots
    if kind == "columns":
        for number, example in enumerate(kept):
            assert np.array_equal(example, dataset[((20 + number) * 8 + number % 8) % 64])


def test_l6_finalize_unmaps_with_the_last_view(make):
    gc.collect()
    before = mapped_arenas()
    descriptors_before = descriptors()
    dataset = Numbered(40, WIDE)
    iterator = make(dataset, 4)
    batch = next(iterator)
    view = batch[1][0][10:20]
    rest = next(iterator)
    columns = concat_examples(rest)
    assert mapped_arenas() == before + 1
    pids = pids_of(iterator)
    iterator.finalize()
    assert not any(map(is_alive, pids))
    assert descriptors() == descriptors_before
    assert is_intact([example[0] for example in batch], Blocks(40, WIDE), 0)
    assert is_intact(columns[0], Blocks(40, WIDE), 4)
    del batch, rest, iterator, make
    gc.collect()
    np.testing.assert_array_equal(view, Blocks(40, WIDE)[1][10:20])
    del columns
    view[:] = 3
    assert view.sum() == 30


def test_l6_the_mapping_dies_with_the_last_view():
    gc.collect()
    before = mapped_arenas()
    iterator = MultiprocessIterator(Blocks(40, WIDE), 4, n_processes=2, context="fork")
    view = next(iterator)[2][1:2]
    iterator.finalize()
    del iterator
    gc.collect()
    assert mapped_arenas() == before + 1
    del view
    gc.collect()
    assert mapped_arenas() == before


def test_l6_a_dropped_iterator_ends_its_workers(make):
    descriptors_before = descriptors()
    iterator = MultiprocessIterator(Blocks(40, WIDE), 4, n_processes=2, context="fork")
    batch = next(iterator)
    pids = pids_of(iterator)
    reference = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert reference() is None
    wait_until(lambda: not any(map(is_alive, pids)), "workers of a dropped iterator end")
    assert descriptors() == descriptors_before
    assert len(batch) == 4


def _check_held(connection, batch, columns, first, dataset):
    """In a forked child: says that it holds, then compares when the parent has gone on."""
    connection.send("holding")
    connection.recv()
    good = is_intact(batch, dataset, first) and is_intact(columns, dataset, first + len(batch))
    batch[0][:] = -1
    del batch, columns
    gc.collect()
    connection.send(good)


@pytest.mark.no_stuck_rows("no worker is to end")
def test_l7_a_child_forgets_instead_of_freeing(make):
    dataset = Blocks(60, WIDE)
    iterator = make(dataset, 3)
    batch = next(iterator)
    following = next(iterator)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            del batch, following
            iterator.finalize()
            del iterator
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    assert is_intact(batch, dataset, 0)
    assert is_intact(following, dataset, 3)
    pids = pids_of(iterator)
    for number in range(2, 40):
        assert is_intact(next(iterator), dataset, 3 * number)
    assert pids_of(iterator) == pids


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing", "grandchild"])
def test_l9_a_forked_child_keeps_the_content_it_holds(make, way):
    dataset = Blocks(60, WIDE)
    iterator = make(dataset, 3)
    next(iterator)
    batch, columns = next(iterator), concat_examples(next(iterator))
    here, there = multiprocessing.Pipe()
    arguments = (there, batch, columns, 3, dataset)
    if way == "multiprocessing":
        process = get_context("fork").Process(target=_check_held, args=arguments)
        process.start()
        pid = None
    else:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                if way == "grandchild" and (child := os.fork()):
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                else:
                    _check_held(*arguments)
                    status = 0
            finally:
                os._exit(status)
    del arguments, batch, columns
    assert here.poll(HANG)
    assert here.recv() == "holding"
    for number in range(3, 300):
        assert is_intact(next(iterator), dataset, 3 * number)
    here.send("go on")
    assert here.poll(HANG)
    assert here.recv() is True
    if pid is None:
        process.join(HANG)
        assert process.exitcode == 0
    else:
        assert os.waitpid(pid, 0)[1] == 0
    assert slots_of(iterator)["retired"] == 2
    assert is_intact(next(iterator), dataset, 900)


def test_l9_a_hundred_forks_never_stop_progress(make):
    dataset = Blocks(60, WIDE)
    iterator = make(dataset, 3)
    for number in range(100):
        batch = next(iterator)
        pid = os.fork()
        if pid == 0:
            os._exit(not is_intact(batch, dataset, 3 * number))
        assert is_intact(batch, dataset, 3 * number)
        assert os.waitpid(pid, 0)[1] == 0
    for number in range(100, 200):
        assert is_intact(next(iterator), dataset, 3 * number)
    stats = iterator.stats()
    assert stats.retired == slots_of(iterator)["retired"] >= _SPARES
    assert f"{stats.retired} slots lost to forks" in str(stats)


def test_l9_other_iterators_workers_retire_nothing(make):
    """Starts of workers, of whichever iterator, are no forks of the program."""
    dataset = Blocks(60, WIDE)
    training = make(dataset, 3)
    batch = next(training)
    for _ in range(3):
        with MultiprocessIterator(dataset, 20, n_processes=2, context="fork") as validation:
            assert len(next(validation)) == 20
    assert slots_of(training)["retired"] == 0
    assert is_intact(batch, dataset, 0)


def test_l6_leases_at_exit_are_silent(output_of):
    out = output_of("""
        import builtins
        from examples_of import WIDE, Blocks
        from fastiter import MultiprocessIterator, concat_examples

        if __name__ == "__main__":
            iterator = MultiprocessIterator(Blocks(40, WIDE), 4, n_processes=2, context="fork")
            builtins.kept = [next(iterator), concat_examples(next(iterator))]
            cycle = [next(iterator)]
            cycle.append(cycle)
            builtins.iterator = iterator
            print("done")
        """)
    assert out == "done\n"


def test_memory_of_a_long_run_stays(make):
    iterator = make(Numbered(64, 4096), 16, n_prefetch=2)
    for _ in range(50):
        batch = next(iterator)
    shared = psutil.Process().memory_info().shared
    before = resident()
    for batch in itertools.islice(iterator, 300):
        concat_examples(batch)
    assert resident() - before < 8 << 20
    assert psutil.Process().memory_info().shared - shared < 8 << 20


def test_l3_a_dataset_of_anothers_batches(make):
    """Forked workers read examples that still lie in the slots of another iterator."""
    dataset = Blocks(6, WIDE)
    source = make(dataset, 2)
    kept = [example for _ in range(3) for example in next(source)]
    assert slots_of(source)["leased"] > 0
    iterator = make(kept, 3)
    for number in range(10):
        assert is_intact(next(iterator), dataset, 3 * number)
        next(source)


@pytest.mark.no_stuck_rows("its rows are too large for the limit")
def test_l6_other_threads_go_on_while_memory_is_unmapped():
    """Python's lock is not held meanwhile, which takes long: some 80 ms for a GB."""
    interval = sys.getswitchinterval()
    for _ in range(20):
        iterator = MultiprocessIterator(Blocks(4, 1 << 21), 4, n_processes=1, context="fork")
        batch = next(iterator)
        iterator.finalize()
        del iterator
        gc.collect()
        gate, passed = threading.Lock(), threading.Event()

        def pass_gate(gate=gate, passed=passed):
            with gate:
                passed.set()

        gate.acquire()
        with later(pass_gate) as thread:
            wait_until(lambda thread=thread: sleeps(thread.native_id), "the thread waits")
            try:
                sys.setswitchinterval(1000)  # no thread gets the GIL unless it is released
                gate.release()
                del batch
                was_passed = passed.is_set()
            finally:
                sys.setswitchinterval(interval)
        if was_passed:
            return
    raise AssertionError("no other thread ran")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_l6_a_finalized_iterator_keeps_no_memory(taken, method):
    gc.collect()
    before = mapped_arenas()
    iterator = MultiprocessIterator(Blocks(40, WIDE), 4, n_processes=2, context=method)
    with iterator.trace() as trace:
        for _ in range(taken + 1):
            next(iterator)
        iterator.finalize()
    assert mapped_arenas() == before
    stats = iterator.stats()
    assert (stats.batches, stats.n_workers, len(stats.workers)) == (taken + 1, 2, 2)
    assert stats.bytes_written >= (taken + 1) * 4 * Blocks(40, WIDE)[0].nbytes
    assert str(stats) and iterator.n_processes == 2
    assert {event["name"] for event in trace.events()} >= {"next()", "write"}
    iterator.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        next(iterator)


def test_l6_finalized_iterators_in_cycles_do_not_use_up_the_address_space():
    gc.collect()
    gc.disable()
    try:
        rooms = []
        for _ in range(20):
            iterator = MultiprocessIterator(range(8), 2, n_processes=1)
            next(iterator)
            rooms.append(ring_of(iterator).arena.geometry[-1])
            iterator.finalize()
            iterator.itself = iterator
    finally:
        gc.enable()
    assert min(rooms) == max(rooms)
