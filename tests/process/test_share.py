"""share(): one copy in shared memory for all processes, seen from outside."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import threading
from multiprocessing import resource_sharer

import numpy as np
import psutil
import pytest
from examples_of import Blocks
from outside import OUR_FILES, children, descriptors, mapped_arenas, orphaned_names, wait_until

from fastiter import MultiprocessIterator
from fastiter.kernels import Shared, share

METHODS = ["fork", "spawn", "forkserver"]
SOME = ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.stress)]
NBYTES = 24 << 20


def content() -> dict[str, object]:
    return {
        "table": np.arange(NBYTES // 8, dtype=np.int64).reshape(-1, 64),
        "frozen": frozen(),
        "strided": np.arange(80_000)[::2],
        "big-endian": np.arange(80_000, dtype=">i4")[::2],
        "big-endian, masked": np.ma.array(np.arange(80_000, dtype=">i4")),
        "empty": np.zeros((0, 3)),
        "text": "some words",
    }


def frozen() -> np.ndarray:
    array = np.ones(20_000)
    array.flags.writeable = False
    return array


def check_content(value: dict[str, object]) -> None:
    expected = content()
    assert value.keys() == expected.keys()
    for key, array in expected.items():
        if isinstance(array, np.ndarray):
            np.testing.assert_array_equal(value[key], array)
            assert value[key].dtype == array.dtype
    assert value["text"] == "some words"


def footprint() -> tuple[object, ...]:
    gc.collect()
    return descriptors(), mapped_arenas()


def test_the_value_on_this_side():
    before = footprint()
    original = content()
    handle = share(original)
    assert mapped_arenas() == before[1]  # no process has it yet
    check_content(handle.value)
    assert handle.value is handle.value
    assert handle.value is not original
    assert NBYTES < handle.nbytes < NBYTES + (1 << 20)
    assert str(handle.nbytes) in repr(handle)
    assert handle.value["table"].flags.writeable
    assert not handle.value["frozen"].flags.writeable
    handle.value["table"][0] = -1
    assert original["table"][0, 0] == 0
    table = handle.value["table"][5:7]
    del handle
    gc.collect()
    assert mapped_arenas() == before[1] + 1  # the part keeps it
    assert table[0, 0] == 5 * 64
    del table
    assert footprint() == before


def test_a_closed_handle_keeps_its_value_and_travels_no_more():
    handle = share([np.ones(20_000)])
    value = handle.value
    handle.close()
    handle.close()
    assert handle.value is value
    assert value[0].sum() == 20_000
    with pytest.raises(ValueError, match="closed"):
        multiprocessing.Pipe()[0].send(handle)
    never = share([1])
    never.close()
    with pytest.raises(ValueError, match="closed"):
        _ = never.value


def test_handles_are_not_copied():
    handle = share([1, 2])
    assert copy.copy(handle) is handle
    assert copy.deepcopy({"a": handle})["a"] is handle


def test_a_plain_pickle_is_refused_and_says_what_works():
    with pytest.raises(TypeError, match=r"Process.*Queue.*handle\.value"):
        pickle.dumps([share([1])])


def test_what_does_not_pickle_raises_its_own_error_and_leaves_nothing():
    before = footprint()
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        share([np.ones(100_000), lambda: 0])
    assert footprint() == before


def test_more_than_the_memory_is_refused():
    before = footprint()
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (1 << 46,), (1,))
    huge = Raw(huge)
    with pytest.raises(MemoryError, match=rf"{1 << 46}|needs \d+ bytes.*share less"):
        share(huge)
    assert footprint() == before


class Raw:
    """Has a buffer of any length without its memory."""

    def __init__(self, array: np.ndarray):
        self.array = array

    def __reduce_ex__(self, protocol: int) -> tuple[object, ...]:
        return bytes, (pickle.PickleBuffer(self.array),)


# -- to other processes ------------------------------------------------------------------------


def answer(handle: Shared, connection) -> None:
    """Loads, writes into its own pages, answers, and stays until told."""
    value = handle.value
    check_content(value)
    value["table"][0] = 7
    connection.send((int(value["table"][0, 0]), mapped_arenas(), sorted(orphaned_names())))
    connection.recv()


def start(context, target, *arguments):
    ours, theirs = context.Pipe()
    # Daemonic, so that it ends with pytest where the test fails.
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@pytest.mark.parametrize("method", METHODS)
def test_as_an_argument_of_processes(method):
    context = multiprocessing.get_context(method)
    names = orphaned_names()
    warm, end = start(context, answer, share(content()))  # forkserver and tracker stay
    end.recv()
    end.send(None)
    warm.join()
    end.close()
    del warm, end
    before = footprint()
    handle = share(content())
    started = [start(context, answer, handle) for _ in range(2)]
    for _, end in started:
        seen, mapped, there = end.recv()
        assert (seen, mapped) == (7, 1)
        assert set(there) <= names
    private = 0
    for process, _ in started:
        for region in psutil.Process(process.pid).memory_maps():
            if any(name in region.path for name in OUR_FILES):
                # What another process maps too; the page that was written is private.
                assert region.shared_clean + region.shared_dirty >= NBYTES // 2
                private += region.private_clean + region.private_dirty
    assert private < NBYTES // 4
    assert handle.value["table"][0, 0] == 0
    os.kill(started[0][0].pid, signal.SIGKILL)
    started[1][1].send(None)
    for process, end in started:
        process.join()
        end.close()
        process.close()
    del handle, started, process, end
    assert footprint() == before


def sum_of(handle: Shared, row: int) -> tuple[int, int, int]:
    return int(handle.value["table"][row].sum()), mapped_arenas(), os.getpid()


@pytest.mark.parametrize("method", SOME)
def test_as_an_argument_of_tasks_in_a_pool(method):
    handle = share(content())
    table = handle.value["table"]
    mapped = mapped_arenas() if method == "fork" else 1
    with multiprocessing.get_context(method).Pool(2, initializer=keep, initargs=(handle,)) as pool:
        for row, (total, maps, pid) in enumerate(
            pool.starmap(sum_of, [(handle, r) for r in range(20)])
        ):
            assert total == table[row].sum()
            assert maps == mapped  # one for all tasks: it is known there
            assert pid != os.getpid()


kept = []


def keep(handle: Shared) -> None:
    kept.append(handle)


def consume(queue, connection) -> None:
    handle = queue.get()
    connection.send(int(handle.value["table"][3].sum()))
    connection.recv()
    kept.append(handle)


@pytest.mark.parametrize("method", SOME)
def test_through_a_queue_to_a_process_that_runs_already(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process, end = start(context, consume, queue)
    handle = share(content())
    total = handle.value["table"][3].sum()
    queue.put(handle)
    assert end.recv() == total
    end.send(None)
    process.join()
    assert process.exitcode == 0
    queue.close()
    queue.join_thread()


def send_and_end(connection) -> None:
    connection.send(share([np.ones(20_000)]))
    resource_sharer.stop()


def test_a_sender_that_has_ended_is_named():
    process, end = start(multiprocessing.get_context("fork"), send_and_end)
    process.join()
    with pytest.raises(RuntimeError, match="has that process ended"):
        end.recv()


def test_threads_get_one_value():
    handle = share(content())
    values: list[object] = []
    threads = [threading.Thread(target=lambda: values.append(handle.value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(value is values[0] for value in values)


# -- inside of datasets and of each other ----------------------------------------------------------


class Table:
    """A dataset with a handle inside."""

    def __init__(self, handle: Shared):
        self.handle = handle
        self.lock = None

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array([self.handle.value["table"][index].sum(), mapped_arenas(), os.getpid()])


@pytest.mark.parametrize(
    ("method", "locked"),
    [
        ("fork", False),
        ("spawn", True),
        ("forkserver", False),
        pytest.param("spawn", False, marks=pytest.mark.stress),
        pytest.param("forkserver", True, marks=pytest.mark.stress),
    ],
)
def test_inside_of_a_dataset(make, method, locked):
    handle = share(content())
    dataset = Table(handle)
    if locked:
        dataset.lock = multiprocessing.get_context(method).Lock()
    table = content()["table"]
    iterator = make(dataset, 4, context=method)
    for number in range(8):
        for row, example in enumerate(next(iterator)):
            assert example[0] == table[4 * number + row].sum()


def test_inside_of_another_shared_object():
    inner = share(content())
    before = mapped_arenas()
    outer = share({"inner": inner, "again": [inner], "own": np.ones(20_000)})
    assert outer.nbytes < NBYTES
    assert outer.value["inner"] is inner  # it is here already
    assert mapped_arenas() == before + 1
    process, end = start(multiprocessing.get_context("spawn"), nested, outer)
    assert end.recv() == (content()["table"][1].sum(), True)
    process.join()


def nested(outer: Shared, connection) -> None:
    value = outer.value
    connection.send((value["inner"].value["table"][1].sum(), value["inner"] is value["again"][0]))


def test_an_example_cannot_be_a_handle(make):
    iterator = make([share([1])], 1)
    with pytest.raises(Exception, match="Queue"):
        next(iterator)


# -- the start that runs on it ----------------------------------------------------------------


def test_the_image_ends_with_the_iterator():
    def cycle() -> None:
        with MultiprocessIterator(
            Blocks(40, 20_000), 4, n_processes=2, context="forkserver", shuffle=False
        ) as iterator:
            next(iterator)

    cycle()
    before = footprint()
    cycle()
    wait_until(lambda: footprint() == before, "all memory is given back")


def test_an_image_that_cannot_be_written_ends_the_start(make, monkeypatch):
    """Whatever comes while the workers import already, Ctrl-C for instance."""
    make(Blocks(40), 4, context="forkserver").start()  # forkserver and tracker stay
    before, family = footprint(), children()

    def interrupted(fd, data, offset):
        raise KeyboardInterrupt

    iterator = make(Blocks(40), 4, context="forkserver")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    gc.collect()
    assert children() <= family
    assert footprint() == before
    assert next(iterator)[0][0] == 0
