"""ConcatWithAsyncTransfer: on the host, over a stand-in for CuPy, and on a GPU (marked gpu).

The tests with the fixture ``world`` run without a GPU: they check in which order things are asked
for and which memory is used again, by `cupy_standin`. That CUDA does as it is asked to is for those
marked gpu.
"""

from __future__ import annotations

import contextlib
import gc
import pickle
import random
import sys
from functools import partial

import numpy as np
import pytest
from cupy_standin import CUDARuntimeError, Ticket
from device_loops import run_in_fork
from drawn import seeds

from fastiter import SerialIterator, concat_examples
from fastiter.dataset import ConcatWithAsyncTransfer

ROW = 1024  # bytes of an example, so that a batch's memory is no multiple of another's by chance


def batch_of(number, n=4, length=ROW // 4):
    return [(np.full(length, number * n + i, np.int32), number * n + i) for i in range(n)]


class Loop:
    """A training loop: what it gave to a converter, and what its kernels saw."""

    def __init__(self, world, converter, stream, device=0):
        self.world, self.converter, self.stream, self.device = world, converter, stream, device
        self.seen, self.wanted = [], []

    def step(self, batch, **options):
        """Convert a batch and begin to work on it; returns the arrays."""
        arrays = self.converter(batch, self.device, **options)
        self.wanted += [array.copy() for array in concat_examples(batch, copy=True, **options)]
        start = len(self.wanted) - len(arrays)
        self.seen += [None] * len(arrays)
        for i, array in enumerate(arrays, start):
            self.world.machine.kernel(self.stream, array, partial(self.seen.__setitem__, i))
        for example in batch:
            example[0][...] = -1  # the caller may use its arrays again
        return arrays

    def check(self):
        self.world.machine.finish()
        for seen, wanted in zip(self.seen, self.wanted, strict=True):
            assert seen.dtype == wanted.dtype
            np.testing.assert_array_equal(seen, wanted)


@pytest.mark.parametrize("device", [None, -1, "cpu"])
def test_on_the_host_it_is_concat_examples(device):
    before = "cupy" in sys.modules
    converter = ConcatWithAsyncTransfer()
    x, t = converter([(np.array([1, 2]), 0), (np.array([3]), 1)], device, (9, None))
    assert x.tolist() == [[1, 2], [3, 9]]
    assert t.tolist() == [0, 1]
    assert ("cupy" in sys.modules) is before
    with pytest.raises(ValueError, match="empty"):
        converter([], device)


def test_iterators_take_it(make):
    iterator = make(range(4), 2, shuffle=False, converter=ConcatWithAsyncTransfer(), device=-1)
    assert next(iterator).tolist() == [0, 1]


def test_without_a_gpu_it_says_what_to_install(world):
    def fail(operation):
        raise CUDARuntimeError("no driver")

    world.machine.fail = fail
    matches = r"no driver.*driver.*pip install cupy-cuda12x"
    with pytest.raises(RuntimeError, match=matches):
        ConcatWithAsyncTransfer()([1, 2], 0)


def test_a_gpu_that_is_not_there(make_world):
    make_world(n_devices=1)
    with pytest.raises(RuntimeError, match=r"device 1 is not there: CuPy finds 1 GPU"):
        ConcatWithAsyncTransfer()([1, 2], 1)


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("seed", seeds(6, 15))
def test_kernels_see_their_batch_in_whatever_order_things_happen(make_world, seed, is_given):
    world = make_world(seed)
    chance = random.Random(seed)
    stream = world.stream(non_blocking=True)
    converter = ConcatWithAsyncTransfer(compute_stream=stream if is_given else None)
    loop = Loop(world, converter, stream)
    held = []
    for number in range(30):
        batch = batch_of(number, chance.randint(1, 4), chance.choice([1, 100, 256, 300]))
        if is_given:
            held.append(loop.step(batch))
        else:
            with stream:
                held.append(loop.step(batch))
        while held and chance.random() < 0.6:
            del held[chance.randrange(len(held))]
        world.machine.some_steps(chance.choice([0, 3, 30]))
    loop.check()
    assert world.machine.device_waits == world.machine.stream_waits == 0


def test_the_host_does_not_wait_and_memory_is_used_again(world):
    loop = Loop(world, ConcatWithAsyncTransfer(), world.cupy.cuda.get_current_stream())
    for number in range(50):
        arrays = loop.step(batch_of(number))
        machine = world.machine
        machine.run_until(lambda n=number: loop.seen[2 * max(n - 1, 0)] is not None)
    loop.check()
    assert machine.device_waits == machine.stream_waits == machine.event_waits == 0
    batch = sum(array.content.nbytes for array in arrays)
    assert machine.pinned_bytes <= 3 * (batch + 64)
    assert machine.device_bytes <= 4 * (ROW * 4 + 512)


def test_memory_is_bounded_if_the_host_runs_ahead(world):
    machine = world.machine
    loop = Loop(world, ConcatWithAsyncTransfer(), world.cupy.cuda.get_current_stream())
    for number in range(50):  # nothing happens but what the host waits for
        loop.step(batch_of(number))
    assert machine.event_waits > 0
    assert machine.device_waits == machine.stream_waits == 0
    assert machine.pinned_bytes <= 3 * (ROW * 4 + 64)
    assert machine.device_bytes <= 4 * (ROW * 4 + 512)
    loop.check()


def test_a_batch_is_copied_while_the_last_one_is_worked_on(world):
    stream = world.cupy.cuda.get_current_stream()
    loop = Loop(world, ConcatWithAsyncTransfer(), stream)
    for number in range(3):
        loop.step(batch_of(number))
        world.machine.go_on()
    loop.step(batch_of(3))
    slow = Ticket()
    world.machine.put(stream, slow)  # the step on batch 3 takes long
    x, _ = loop.step(batch_of(4))
    world.machine.go_on()
    assert loop.seen[-2:] == [None] * 2
    assert x.content[0, 0] == 16  # batch 4 is there all the same
    slow.mark()
    loop.check()


def test_it_never_gets_memory_that_another_stream_still_uses(world):
    stream = world.cupy.cuda.get_current_stream()
    converter = ConcatWithAsyncTransfer()
    seen = []
    scratch = world.cupy.array(np.arange(ROW))
    world.machine.go_on()
    slow = Ticket()
    world.machine.put(stream, slow)
    world.machine.kernel(stream, scratch, seen.append)
    del scratch  # the compute stream may have its memory again, since it keeps the order
    converter([np.zeros(ROW // 4, np.int64)] * 4, 0)
    world.machine.go_on()
    slow.mark()
    world.machine.finish()
    np.testing.assert_array_equal(seen[0], np.arange(ROW))


def test_views_keep_the_memory(world):
    stream = world.cupy.cuda.get_current_stream()
    loop = Loop(world, ConcatWithAsyncTransfer(), stream)
    x, _ = loop.step(batch_of(7))
    view = world.cupy.ndarray((ROW // 4,), np.int32, x.data)  # as CuPy's views: the same memory
    del x
    for number in range(10):
        loop.step(batch_of(number))
        world.machine.go_on()
    assert (view.content == 28).all()
    loop.check()


ALL_DTYPES = ["?", *"bhilqBHILQefdFD", ">i4", ">f8"]


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_dtypes_and_layouts(world, dtype):
    converter = ConcatWithAsyncTransfer()
    batch = [np.arange(6).reshape(2, 3).astype(dtype)[:, ::-1] for _ in range(3)]
    made = converter(batch, 0)
    world.machine.finish()
    assert isinstance(made, world.cupy.ndarray)
    assert made.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(made.content, concat_examples(batch))


def test_containers_padding_and_empty_arrays(world):
    converter = ConcatWithAsyncTransfer()
    batch = [
        {"x": np.array([1, 2]), "n": 1.5, "e": np.empty(0)},
        {"x": np.array([3]), "n": 2.5, "e": np.empty(0)},
    ]
    made = converter(batch, 0, {"x": -1, "n": None, "e": None})
    world.machine.finish()
    assert list(made) == ["x", "n", "e"]
    assert made["x"].content.tolist() == [[1, 2], [3, -1]]
    assert made["n"].content.tolist() == [1.5, 2.5]
    assert made["e"].shape == (2, 0)
    assert all(isinstance(array, world.cupy.ndarray) for array in made.values())
    assert type(converter([(1,)], 0)) is tuple
    assert converter([1, 2], "cuda:0").shape == (2,)
    with pytest.raises(ValueError, match="empty"):
        converter([], 0)


def test_what_cupy_makes_on_the_current_stream_is_waited_for_too(make_world):
    for seed in range(20):
        here = make_world(seed)
        stream = here.stream(non_blocking=True)
        loop = Loop(here, ConcatWithAsyncTransfer(compute_stream=stream), stream)
        # No dtype that the transfer copies, so this goes as to_device has it.
        arrays = loop.step([(np.full(3, 5, np.longdouble), i) for i in range(2)])
        assert arrays[0].dtype == np.longdouble
        loop.check()


def test_several_devices(world):
    converter = ConcatWithAsyncTransfer()
    null = world.cupy.cuda.get_current_stream()
    loops = [Loop(world, converter, null, device) for device in (0, 1)]
    for number in range(10):
        for loop in loops:
            with world.cupy.cuda.Device(loop.device):
                x, _ = loop.step(batch_of(number + 100 * loop.device))
            assert x.device.id == loop.device
        world.machine.some_steps(10)
    for loop in loops:
        loop.check()
    assert world.machine.n_streams == 2


def test_objects_for_one_device_share_a_stream(world):
    for _ in range(3):
        ConcatWithAsyncTransfer()([1, 2], 0)
    assert world.machine.n_streams == 1


@pytest.mark.parametrize("name", ["stream", "compute_stream"])
def test_a_stream_of_another_device(world, name):
    converter = ConcatWithAsyncTransfer(**{name: world.stream(non_blocking=True)})
    assert converter([1, 2], 0).shape == (2,)
    with pytest.raises(ValueError, match=rf"^{name} belongs to device 0, .* device 1"):
        converter([1, 2], 1)


def test_copies_run_on_the_stream_that_is_given(world):
    stream = world.stream(non_blocking=True)
    converter = ConcatWithAsyncTransfer(stream)
    converter([1, 2], 0)
    assert world.machine.n_streams == 1
    assert len(world.machine.queues[stream.queue]) == 2  # the copy, and the event behind it


@pytest.mark.parametrize(
    "operation", ["alloc_pinned_memory", "alloc", "set", "record", "wait_event"]
)
@pytest.mark.parametrize("seed", seeds(4, 8))
def test_after_a_failure_it_goes_on(make_world, operation, seed):
    world = make_world(seed)
    chance = random.Random(seed)
    asked_before = []

    def fail(asked):
        if asked == operation:
            asked_before.append(asked)
            if len(asked_before) == 1 or chance.random() < 0.1:
                raise CUDARuntimeError(asked)

    loop = Loop(world, ConcatWithAsyncTransfer(), world.cupy.cuda.get_current_stream())
    held = []
    for number in range(60):
        world.machine.fail = fail
        length = chance.choice([10, 20, 500, 700 + number])
        with contextlib.suppress(CUDARuntimeError):
            held.append(loop.step(batch_of(number, length=length)))
        world.machine.fail = lambda operation: None
        held = held[-chance.randrange(1, 3) :]
        world.machine.some_steps(12)
    assert asked_before
    assert (world.machine.stream_waits > 0) is (operation in ("alloc", "set", "record"))
    loop.check()
    assert world.machine.device_waits == 0


@pytest.mark.parametrize("seed", range(20))
def test_what_it_leaves_behind_is_safe(make_world, seed):
    world = make_world(seed)
    machine = world.machine
    stream = world.cupy.cuda.get_current_stream()
    loops, held = [], []
    for number in range(12):  # objects come and go; their arrays outlive them
        loop = Loop(world, ConcatWithAsyncTransfer(), stream)
        loops.append(loop)
        held.append(loop.step(batch_of(2 * number)))
        held.append(loop.step(batch_of(2 * number + 1)))
        loop.converter = None
        held = held[-machine.random.randrange(1, 4) :]
        machine.some_steps(8)
    held.clear()
    for loop in loops:
        loop.check()
    used = machine.device_bytes, machine.pinned_bytes
    for _ in range(10):
        ConcatWithAsyncTransfer()(batch_of(0), 0)
        machine.finish()
    assert (machine.device_bytes, machine.pinned_bytes) == used  # all had gone back to the pools


def test_a_forked_child_is_told_and_leaves_cuda_alone(world):
    machine = world.machine
    converter = ConcatWithAsyncTransfer()
    arrays = converter(batch_of(0), 0)

    def child():
        nonlocal converter, arrays
        with pytest.raises(RuntimeError, match="spawn or forkserver"):
            converter(batch_of(0), 0)
        asked = []
        machine.fail = asked.append
        converter = None
        arrays = None
        gc.collect()
        assert asked == []
        assert machine.event_waits == 0

    run_in_fork(child)


def test_it_pickles():
    converter = pickle.loads(pickle.dumps(ConcatWithAsyncTransfer()))
    assert converter([1, 2]).tolist() == [1, 2]
    assert converter.compute_stream is None


SPIN = """extern "C" __global__ void spin(long long n) {
    long long start = clock64();
    while (clock64() - start < n) {}
}"""


def spin(cupy, milliseconds):
    """A kernel that holds up its stream."""
    clock = cupy.cuda.Device().attributes["ClockRate"]  # kHz
    cupy.RawKernel(SPIN, "spin")((1,), (1,), (np.int64(milliseconds * clock),))


@pytest.mark.gpu
@pytest.mark.parametrize("is_given", [True, False])
def test_on_a_gpu_kernels_see_their_batch(cupy, is_given):
    stream = cupy.cuda.Stream(non_blocking=True)
    converter = ConcatWithAsyncTransfer(compute_stream=stream if is_given else None)
    sums, wanted = [], []
    for number in range(100):
        batch = [(np.full(50_000 + number % 7, number + i, np.int64), i) for i in range(8)]
        wanted.append(sum(int(x.sum()) for x, _ in batch))
        with contextlib.nullcontext() if is_given else stream:
            x, t = converter(batch, 0)
        with stream:
            spin(cupy, number % 3)
            sums.append((x.sum(), t))
        for example in batch:
            example[0][...] = -1
        del x
    stream.synchronize()
    assert [int(total) for total, _ in sums] == wanted
    assert all(t.get().tolist() == list(range(8)) for _, t in sums)


@pytest.mark.gpu
def test_on_a_gpu_the_call_returns_while_the_device_works(cupy):
    converter = ConcatWithAsyncTransfer()
    converter(batch_of(0), 0)
    spin(cupy, 0)
    cupy.cuda.Device().synchronize()
    spin(cupy, 2000)
    behind = cupy.cuda.Event()
    behind.record()
    converter(batch_of(1), 0)
    assert not behind.done
    behind.synchronize()


@pytest.mark.gpu
def test_on_a_gpu_memory_is_flat(cupy, long_loop):
    converter = ConcatWithAsyncTransfer()
    before, used = cupy.get_default_memory_pool().total_bytes(), []
    for number in range(long_loop):
        x, _ = converter(batch_of(number), 0)
        x += 1
        if number % (long_loop // 10) == long_loop // 10 - 1:
            used.append(cupy.get_default_memory_pool().total_bytes() - before)
    batch = 4 * ROW + 512
    assert max(used) <= 4 * batch
    assert used[-1] <= used[4] + batch  # how far the host may be ahead differs a little


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_on_a_gpu_dtypes(dtype):
    batch = [np.arange(6).reshape(2, 3).astype(dtype)[:, ::-1] for _ in range(3)]
    made = ConcatWithAsyncTransfer()(batch, 0)
    np.testing.assert_array_equal(made.get(), concat_examples(batch))


@pytest.mark.gpu
def test_on_a_gpu_its_arrays_are_joined_there(cupy):
    stream = cupy.cuda.Stream(non_blocking=True)
    iterator = SerialIterator([(cupy.arange(3) + i, i) for i in range(4)], 4, shuffle=False)
    x, t = ConcatWithAsyncTransfer(compute_stream=stream)(next(iterator), 0)
    with stream:
        assert (x.sum(axis=1) + t).get().tolist() == [3, 7, 11, 15]
