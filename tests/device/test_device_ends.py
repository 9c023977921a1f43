"""Batches on their way to a GPU when there is an end, an error or an interrupt, over a stand-in for
CuPy: no test here needs a GPU, or shows what one does.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import random
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from cupy_standin import CUDARuntimeError
from device_loops import (
    AHEAD,
    KINDS,
    Imports,
    Loop,
    Rows,
    build,
    in_order,
    run_in_fork,
    wait_for_ready,
)
from inside import pids_of, pool_of

from fastiter import MultiprocessIterator, SerialIterator, concat_examples, to_device
from fastiter._device import cupy as _cupy

__all__ = ["build"]  # the fixture


# ---- states, resets, ends ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_that_of_the_batch_handed_out(world, build, kind):
    ours = build(kind, Rows(21), 4)
    host = SerialIterator(Rows(21), 4, shuffle=False)
    for number in range(25):
        _, t = next(ours)
        world.machine.finish()
        assert t.content.tolist() == [i for _, i in next(host)]
        assert ours.state_dict() | {"example_seed": 0} == host.state_dict() | {"example_seed": 0}
        assert (ours.epoch, ours.is_new_epoch) == (host.epoch, host.is_new_epoch)
        if number % 7 == 3:
            other = copy.copy(ours)
            _, expected = next(copy.copy(host))[0], [i for _, i in next(copy.copy(host))]
            _, t = next(other)
            world.machine.finish()
            assert t.content.tolist() == expected
            other.finalize()
        if number == 12:
            ours.reset()
            host.reset()
        if number == 18:
            ours.load_state_dict(host.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_ends_after_its_last_batch(world, build, kind):
    iterator = build(kind, Rows(10), repeat=False)
    for _ in range(2):
        numbers = []
        for _, t in iterator:
            world.machine.finish()
            numbers += t.content.tolist()
        assert numbers == list(range(10))
        iterator.reset()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_outlive_the_iterator(world, build, kind):
    iterator = build(kind, Rows())
    held = [next(iterator) for _ in range(6)]
    iterator.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        next(iterator)
    del iterator
    gc.collect()
    world.machine.finish()
    assert [t.content.tolist() for _, t in held] == in_order(6)
    assert all((x.content == t.content[:, None]).all() for x, t in held)
    assert world.machine.registered == {}


@pytest.mark.parametrize("kind", ["serial", "threads"])
def test_reset_reopens(world, build, kind):
    iterator = build(kind, Rows())
    next(iterator)
    iterator.finalize()
    iterator.reset()
    _, t = next(iterator)
    world.machine.finish()
    assert t.content.tolist() == [0, 1, 2, 3]


def test_a_garbage_collected_iterator_gives_all_back(world, build):
    iterator = MultiprocessIterator(
        Rows(), 4, n_processes=1, context="fork", converter=concat_examples, device=0
    )
    for _ in range(8):
        next(iterator)
    assert world.machine.registered
    del iterator
    gc.collect()
    assert world.machine.registered == {}


@pytest.mark.parametrize("operation", ["alloc", "set", "record", "wait_event", "hostRegister"])
def test_finalize_in_a_signal_handler(world, build, operation):
    machine = world.machine
    iterator = build("processes", Rows())
    held = [next(iterator) for _ in range(3)]  # the first ones are spilled: nothing is borrowed

    def finalize(asked):
        if asked == operation:
            machine.fail = lambda asked: None
            iterator.finalize()  # as a handler does that runs at this moment

    machine.fail = finalize
    for _ in range(9):
        with contextlib.suppress(RuntimeError):
            held.append(next(iterator))
    assert iterator._finalized
    machine.finish()
    assert machine.registered == {}
    for number, (x, t) in enumerate(held):
        assert t.content.tolist() == in_order(number + 1)[-1]
        assert (x.content == t.content[:, None]).all()


ENDING = """
import atexit, sys
from cupy_standin import Machine, make_cupy

machine = Machine()
atexit.register(lambda: print(len(machine.registrations) > 0, machine.registered))
sys.modules["cupy"] = make_cupy(machine)

from device_loops import Rows
from fastiter import MultiprocessIterator, concat_examples

iterator = MultiprocessIterator(
    Rows(), 4, n_processes=2, context="fork", converter=concat_examples, device=0
)
held = [next(iterator) for _ in range(8)]
iterator.itself = iterator
"""


def test_a_program_that_just_ends_unregisters_first():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ENDING], capture_output=True, text=True, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True {}\n", "")


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_with_its_batch(world, build, kind):
    loop = Loop(world, build(kind, Rows(broken=[9, 21])))
    raised = []
    for number in range(10):
        try:
            loop.step()
        except KeyError as error:
            raised.append((number, error.args[0]))
    assert raised == [(2, "row 9"), (5, "row 21")]
    loop.check([batch for k, batch in enumerate(in_order(10)) if k not in (2, 5)])


def failing(operation, probability, error):
    """A machine's `fail`, and the list of what it has raised."""
    chance, raised = random.Random(operation), []

    def fail(asked):
        if asked == operation and chance.random() < probability:
            raised.append(asked)
            raise error(asked)

    return fail, raised


OPERATIONS = ["alloc", "set", "record", "wait_event", "alloc_pinned_memory", "hostRegister"]


@pytest.mark.parametrize("kind", AHEAD)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_copy_that_fails_costs_its_batch_alone(make_world, build, kind, operation):
    world = make_world(3)
    loop = Loop(world, build(kind, Rows()))
    fail, failures = failing(operation, 0.15, CUDARuntimeError)
    taken = []
    for number in range(40):
        world.machine.fail = fail
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            try:
                loop.step()
            except CUDARuntimeError:
                pass
            else:
                taken.append(number)
        world.machine.fail = lambda asked: None
        world.machine.some_steps(12)
    if operation in ("hostRegister", "alloc_pinned_memory"):
        assert len(taken) >= 40 - len(failures)
    else:
        assert 0 < 40 - len(taken) <= len(failures)
    expected = in_order(40)
    loop.check([expected[number] for number in taken])


@pytest.mark.parametrize("kind", AHEAD)
@pytest.mark.parametrize("operation", ["alloc", "set", "record", "wait_event"])
def test_an_interrupt_amid_a_copy_loses_nothing(make_world, build, kind, operation):
    world = make_world(5)
    loop = Loop(world, build(kind, Rows()))
    fail, interrupts = failing(operation, 0.2, KeyboardInterrupt)
    while len(loop.seen) < 40:
        world.machine.fail = fail
        with contextlib.suppress(KeyboardInterrupt):
            loop.step()
        world.machine.fail = lambda asked: None
        world.machine.some_steps(12)
    assert interrupts
    loop.check(in_order(40))


def test_a_worker_that_dies_loses_nothing(world, build):
    iterator = build("processes", Rows())
    loop = Loop(world, iterator)
    for number in range(30):
        loop.step()
        world.machine.some_steps(6)
        if number % 10 == 5:
            os.kill(pids_of(iterator)[0], signal.SIGKILL)
    loop.check(in_order(30))


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_do_not_import_cupy(world, build, context):
    iterator = build("processes", Imports(), context=context)
    for _ in range(4):
        found = next(iterator)
        world.machine.finish()
        assert found.content.tolist() == [0] * 4


class Asking(Rows):
    """Rows that tell how often their process has asked the stand-in for anything."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked

    def __getitem__(self, i):
        return super().__getitem__(i)[0], len(self.asked)


def test_workers_leave_the_gpu_alone(world, build):
    asked = []
    world.machine.fail = asked.append
    iterator = build("processes", Asking(asked), maxtasksperchild=3)
    iterator.start()
    known = set()
    for _ in range(20):
        before = len(asked)
        _, counts = next(iterator)
        world.machine.go_on()
        known |= set(counts.content.tolist())
        assert before < len(asked)
    # What a worker knows is what its parent had asked when it was started: whole calls of next().
    world.machine.fail = lambda operation: None
    assert len(known) < 20 * 4


# ---- devices and processes -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_current_device_stays(world, build, kind):
    device = world.cupy.cuda.Device
    iterators = [build(kind, Rows(), device=number) for number in (0, 1)]
    loops = [Loop(world, it, device=number) for number, it in enumerate(iterators)]
    for number in range(10):
        for loop in loops:
            device(number % 2).use()
            batch = next(loop.iterator)
            assert batch[0].device.id == loop.device
            assert world.machine.device_id == number % 2
            with device(loop.device):
                loop.work_on(batch, world.cupy.cuda.get_current_stream())
        world.machine.some_steps(9)
    for iterator in iterators:
        device(1).use()
        iterator.finalize()
        assert world.machine.device_id == 1
    for loop in loops:
        loop.check(in_order(10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_the_program_uses_stays_the_current_one(make_world, build, kind):
    world = make_world(4)
    stream = world.stream(non_blocking=True).use()
    loop = Loop(world, build(kind, Rows()))
    for _ in range(20):
        batch = next(loop.iterator)
        assert world.cupy.cuda.get_current_stream() is stream
        loop.work_on(batch, stream)
        world.machine.some_steps(9)
    loop.iterator.finalize()
    assert world.cupy.cuda.get_current_stream() is stream
    loop.check(in_order(20))


def test_a_gpu_that_is_not_there_is_told_before_anything_starts(make_world, build):
    make_world(n_devices=1)
    iterator = build("processes", Rows(), device=1)
    with pytest.raises(RuntimeError, match=r"device 1 is not there"):
        next(iterator)
    with pytest.raises(RuntimeError, match=r"device 1 is not there"):
        iterator.start()
    assert pool_of(iterator) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_leaves_cuda_alone(world, build, kind):
    machine = world.machine
    iterator = build(kind, Rows())
    held = [next(iterator) for _ in range(4)]
    asked = []

    def child():
        nonlocal iterator
        machine.fail = asked.append
        with pytest.raises(RuntimeError, match=r"belongs to process|spawn or forkserver"):
            next(iterator)
        iterator.finalize()
        held.clear()
        iterator = None
        gc.collect()
        assert not asked

    run_in_fork(child)
    _, t = next(iterator)
    machine.finish()
    assert t.content.tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize("works", [None, "getDeviceCount"], ids=["CUDA 12", "CUDA 13"])
def test_after_a_fork_from_a_program_with_cuda_errors_tell_of_it(world, monkeypatch, works):
    machine = world.machine
    monkeypatch.setattr(_cupy, "_UVM", "/dev/null")  # which this program has open
    handle = open("/dev/null")  # noqa: SIM115 - to be open in the child

    def fail(operation):
        raise CUDARuntimeError("cudaErrorInitializationError")

    def child():
        machine.fail = lambda operation: None if operation == works else fail(operation)
        for device in (0, "cuda"):
            with pytest.raises(RuntimeError, match="forked from one that uses CUDA"):
                to_device(device, np.zeros(3))
        with pytest.raises(RuntimeError, match="forked from one that uses CUDA"):
            next(SerialIterator(Rows(), 4, converter=concat_examples, device=0))

    run_in_fork(child)
    handle.close()
    machine.fail = fail
    with pytest.raises(RuntimeError, match="CuPy finds none"):  # here it is no fork's fault
        next(SerialIterator(Rows(), 4, converter=concat_examples, device=0))


@pytest.mark.parametrize("kind", AHEAD)
def test_wrong_numbers_of_batches_ahead(build, kind):
    with pytest.raises(ValueError, match="n_device_prefetch must be at least 0"):
        build(kind, Rows(), device=None, n_device_prefetch=-1)
    with pytest.raises(TypeError, match="n_device_prefetch must be an integer"):
        build(kind, Rows(), device=None, n_device_prefetch=1.5)
    assert build(kind, Rows(), device=-1).n_prefetch == 1


def test_the_host_needs_none_of_it():
    program = (
        "import sys, fastiter\n"
        "it = fastiter.SerialIterator([1, 2], 2, converter=fastiter.concat_examples, device=-1)\n"
        "next(it)\n"
        "assert 'fastiter._device.transfer' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))


@pytest.mark.parametrize("kind", KINDS)
def test_failed_rows_are_skipped_when_it_is_their_turn(world, build, kind):
    iterator = build(kind, Rows(broken=[9, *range(20, 24)]), on_error="skip", skip_limit=None)
    loop = Loop(world, iterator)
    skipped = []
    for _ in range(6):
        loop.step()
        skipped.append([record.index for record in iterator.skipped])
        if kind != "serial":
            wait_for_ready(iterator)
    assert skipped == [[], [], [9], [9], [9], [9, *range(20, 24)]]
    loop.check([*in_order(2), [8, 10, 11], *in_order(5)[3:], [24, 25, 26, 27]])
