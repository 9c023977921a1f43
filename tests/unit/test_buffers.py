"""The pool of output buffers: what is used again, when, and what never is."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from fastiter import SerialIterator, concat_examples
from fastiter._collate.buffers import Buffer, idle
from fastiter.datasets import TupleDataset
from fastiter.kernels import pad_stack, stack, trim_buffers
from fastiter.tokens import TokenDataset

MIB = 1 << 20
LARGE = 4 * MIB

pytestmark = pytest.mark.skipif(
    os.environ.get("FASTITER_BUFFER_POOL") == "0", reason="the pool is switched off"
)


@pytest.fixture(autouse=True)
def empty_pool():
    gc.collect()
    trim_buffers()
    yield
    trim_buffers()


def batch(value=0, nbytes=LARGE):
    return stack([np.full(nbytes // 4, value, np.uint8)] * 4)


def address(array):
    return array.ctypes.data


def owner(array):
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def test_a_large_result_lies_in_a_buffer_and_is_an_ordinary_array():
    array = batch(3)
    assert type(array) is np.ndarray
    assert array.flags.writeable
    assert array.flags.c_contiguous
    assert array.flags.aligned
    assert isinstance(owner(array), Buffer)
    assert array.nbytes <= owner(array).nbytes <= array.nbytes * 9 // 8
    array += 1
    assert (array == 4).all()
    assert np.array_equal(pickle.loads(pickle.dumps(array)), array)


def test_padded_results_lie_there_too():
    rows = [np.ones(MIB // 2), np.ones(MIB // 4)]
    assert isinstance(owner(pad_stack(rows, 0)), Buffer)
    tokens, _ = concat_examples([(row, 1) for row in rows], padding=0)
    assert isinstance(owner(tokens), Buffer)


def test_gathered_columns_lie_there_too():
    columns = TupleDataset(np.ones((40, 4096)), np.arange(40))
    with SerialIterator(columns, 16, converter=concat_examples) as iterator:
        rows, numbers = next(iterator)
    assert isinstance(owner(rows), Buffer) and numbers.base is None
    documents = [np.ones(n, np.int32) for n in (1024, 700, 900, 800) * 20]
    tokens = TokenDataset(documents, 2048, packing="bfd", seed=0)
    with SerialIterator(tokens, 16, converter=concat_examples) as iterator:
        assert isinstance(owner(next(iterator)["input_ids"]), Buffer)


def test_a_small_result_does_not():
    assert stack([np.zeros(8191)] * 4).base is None


def test_the_buffer_is_used_again_when_the_last_view_dies():
    array = batch()
    place = address(array)
    views = [array[1:], array.reshape(-1), memoryview(array), np.asarray(memoryview(array))]
    del array
    while views:
        assert address(batch()) != place
        views.pop()
    trim_buffers()
    array = batch()
    place, tail = address(array), array[-1:]
    del array
    assert idle() == (0, 0)
    del tail
    assert idle()[0] == 1
    assert address(batch()) == place


def test_the_buffer_released_last_is_used_first():
    first, second = batch(), batch()
    places = address(first), address(second)
    del first
    del second
    assert address(batch()) == places[1]


def test_a_held_batch_is_never_overwritten():
    held = [batch(value) for value in range(40)]
    assert len({address(array) for array in held}) == 40
    for value in range(40, 80):
        batch(value)
    for value, array in enumerate(held):
        assert (array == value).all()


def test_idle_memory_is_bounded_whatever_was_held():
    held = [batch(nbytes=MIB) for _ in range(300)]
    del held
    count, nbytes = idle()
    assert 0 < count <= 16
    assert nbytes <= 16 * MIB * 9 // 8


def test_trimming_gives_everything_back():
    kept = batch(7)
    del kept
    assert idle()[0] == 1
    trim_buffers()
    assert idle() == (0, 0)
    assert (batch(7) == 7).all()


def test_released_inside_a_collection():
    class Knot:
        pass

    for _ in range(3):
        knot = Knot()
        knot.self, knot.array = knot, batch()
        place = address(knot.array)
        del knot
        gc.collect()
        assert idle()[0] == 1
        assert address(batch()) == place


def test_an_error_in_the_middle_loses_nothing():
    rows = [np.zeros(MIB), np.zeros(MIB), None]
    with pytest.raises((TypeError, AttributeError)):
        stack(rows)
    with pytest.raises(ValueError, match="has no value"):
        pad_stack([np.zeros(MIB, int), np.zeros(3, int)], np.nan)
    gc.collect()
    trim_buffers()
    assert idle() == (0, 0)


def test_threads_never_share_a_buffer():
    failures = []

    def work(mark):
        rows = [np.full(MIB // 2, mark, np.uint8)] * 4
        for _ in range(60):
            array = stack(rows)
            if not (array == mark).all():
                failures.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert idle()[1] <= 16 * LARGE


def in_child(held, connection):
    before = idle()
    same = bool((held == 5).all())
    held[:] = 6
    mine = batch(9)
    connection.send((before, same, bool((mine == 9).all())))
    del held, mine
    gc.collect()
    connection.send(idle()[0] > 0)


def test_a_forked_child_has_a_pool_of_its_own():
    held, dropped = batch(5), batch(1)
    place = address(dropped)
    del dropped
    assert idle()[0] == 1
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(held, there))
    child.start()
    assert here.recv() == ((0, 0), True, True)
    assert here.recv() is True
    child.join()
    assert child.exitcode == 0
    assert (held == 5).all()
    assert idle() == (0, 0)  # given back before the fork, so that no child keeps a copy
    assert place  # nothing was unmapped twice
    assert (batch(2) == 2).all()


def run(program, **environment):
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


AT_EXIT = """
import atexit, sys, threading
import numpy as np
from fastiter.kernels import stack

rows = [np.zeros(1 << 20)] * 4
held = stack(rows)
view = held[1:]
class Late:
    def __init__(self): self.array = stack(rows)
    def __del__(self): self.array = None
late = Late()
late.self = late
sys.late = stack(rows)
atexit.register(lambda: stack(rows))
def forever():
    while True:
        stack(rows)
threading.Thread(target=forever, daemon=True).start()
stack(rows)
"""


def test_exit_is_silent():
    result = run(AT_EXIT)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


BASE = """
import numpy as np
from fastiter._collate import buffers as _buffers
from fastiter.kernels import stack
array = stack([np.zeros(1 << 20)] * 4)
print(type(array.base).__name__)
del array
print(*_buffers.idle())
"""


@pytest.mark.parametrize(
    ("value", "output"),
    [
        ("0", "NoneType\n0 0\n"),
        ("", f"Buffer\n1 {32 * MIB}\n"),
        ("64", f"Buffer\n1 {32 * MIB}\n"),
        ("16", "Buffer\n0 0\n"),  # less than this batch
    ],
)
def test_the_environment_variable(value, output):
    result = run(BASE, FASTITER_BUFFER_POOL=value)
    assert (result.stdout, result.stderr) == (output, "")


@pytest.mark.parametrize("value", ["-1", "many", "1.5", "1" * 30])
def test_a_wrong_environment_variable_says_what_it_should_be(value):
    result = run(BASE, FASTITER_BUFFER_POOL=value)
    assert (result.returncode, result.stdout.split()[0]) == (0, "Buffer")  # as if it were not set
    assert "FASTITER_BUFFER_POOL" in result.stderr
    assert "MiB" in result.stderr
