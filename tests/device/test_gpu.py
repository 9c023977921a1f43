"""Batches of the iterators on a GPU. Skipped, with the reason, where there is none.

``pytest -m gpu --rehearse-gpu`` runs most of them over the stand-in for CuPy, so that a mistake in
a test is found before a GPU is there. It proves nothing of a GPU.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from device_loops import KINDS, Rows, run_in_fork
from device_loops import WIDTH as NARROW
from inside import pids_of, slots_of
from test_async_transfer import ALL_DTYPES, spin

from fastiter import MultiprocessIterator, SerialIterator, concat_examples, to_device

pytestmark = pytest.mark.gpu

BATCH = 32
WIDTH = 20_000  # int32 in a row: 2.5 MB in a batch
ROW = 4 * NARROW  # bytes in a row of Rows


class Wide(Rows):
    """Row i: an array full of i, and i."""

    def __getitem__(self, i):
        super().__getitem__(i)  # which may fail
        return np.full(WIDTH, i, np.int32), i


class Shaped:
    """Row i in one dtype and layout, i counted into it."""

    def __init__(self, dtype, layout):
        self.dtype, self.layout = np.dtype(dtype), layout

    def __len__(self):
        return 24

    def __getitem__(self, i):
        n = i % 5 + 1 if self.layout == "ragged" else 4
        array = (np.arange(n * 6).reshape(n, 6) + i).astype(self.dtype)
        if self.layout == "fortran":
            return np.asfortranarray(array)
        if self.layout == "reversed":
            return array[::-1, ::2]
        return array[0, 0] if self.layout == "scalar" else array


@pytest.fixture
def build(request):
    """Makes iterators of a kind for the first GPU, and finalizes them with the test."""

    def make(kind, dataset, batch_size=BATCH, **arguments):
        arguments = {"shuffle": False, "converter": concat_examples, "device": 0, **arguments}
        if kind == "processes":
            arguments.setdefault("context", "forkserver")
        iterator = KINDS[kind](dataset, batch_size, **arguments)
        request.addfinalizer(iterator.finalize)
        return iterator

    return make


def numbers_of(number, size):
    return [(number * BATCH + row) % size for row in range(BATCH)]


def assert_is(batch, number, size=64):
    x, t = batch
    assert t.get().tolist() == numbers_of(number, size)
    assert bool((x == t[:, None]).all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["plain", "fortran", "reversed", "ragged", "scalar"])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_content_is_bit_exact(cupy, build, kind, layout, dtype):
    convert = partial(concat_examples, padding=1 if layout == "ragged" else None)
    dataset = Shaped(dtype, layout)
    host = SerialIterator(dataset, 5, shuffle=False, repeat=False, converter=convert)
    ours = build(kind, dataset, 5, converter=convert, repeat=False, **processes(kind))
    for there, here in zip(ours, host, strict=True):
        assert isinstance(there, cupy.ndarray)
        assert (there.shape, there.dtype) == (here.shape, here.dtype.newbyteorder("="))
        assert there.get().tobytes() == here.astype(there.dtype).tobytes()


def processes(kind):
    return {"context": "fork"} if kind == "processes" else {}


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_see_their_batch_on_any_stream(cupy, build, kind):
    iterator = build(kind, Wide(64))
    streams = [cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null]
    sums, wanted = [], []
    for number in range(200):
        with streams[number // 100]:
            x, _ = next(iterator)
            spin(cupy, number % 3)
            sums.append(x.sum(dtype=np.int64))
            wanted.append(WIDTH * sum(numbers_of(number, 64)))
            del x
    cupy.cuda.Device().synchronize()
    assert [int(total) for total in sums] == wanted


def test_l8_slots_come_back_after_their_copies_only(cupy, build):
    iterator = build("processes", Wide(64), n_device_prefetch=3, n_prefetch=6)
    for number in range(8):
        assert_is(next(iterator), number)
    cupy.cuda.Device().synchronize()
    iterator._batch_maker.gpu().wait(0)
    copies = iterator._batch_maker.gpu()._stream
    with copies:
        spin(cupy, 1500)  # holds up the copies from now on
        behind = cupy.cuda.Event()
        behind.record()
    batches = [next(iterator) for _ in range(5)]
    leased = slots_of(iterator)["leased"]
    assert not behind.done
    assert leased > 0
    behind.synchronize()
    cupy.cuda.Device().synchronize()
    iterator._batch_maker.gpu().poll()
    assert slots_of(iterator)["leased"] < leased
    for number, batch in enumerate(batches, 8):
        assert_is(batch, number)


def test_next_does_not_wait_for_the_device(cupy, build):
    iterator = build("processes", Wide(64))
    for number in range(6):
        assert_is(next(iterator), number)
    spin(cupy, 0)
    cupy.cuda.Device().synchronize()
    spin(cupy, 2000)
    behind = cupy.cuda.Event()
    behind.record()
    batch = next(iterator)
    assert not behind.done
    behind.synchronize()
    assert_is(batch, 6)


def test_slots_are_registered_and_unregistered(cupy, build):
    runtime = cupy.cuda.runtime
    iterator = build("processes", Wide(64))
    for _ in range(20):
        next(iterator)
    ranges = dict(iterator._batch_maker.gpu()._registration._ranges)
    assert ranges
    for address in ranges:
        with pytest.raises(runtime.CUDARuntimeError, match="AlreadyRegistered"):
            runtime.hostRegister(address, 4096, 1)
    iterator.finalize()
    for address in ranges:
        with pytest.raises(runtime.CUDARuntimeError, match=r"NotRegistered|InvalidValue"):
            runtime.hostUnregister(address)


class Growing:
    """Ragged rows, ever longer ones: slots grow, and are registered anew."""

    def __len__(self):
        return 256

    def __getitem__(self, i):
        return np.full(1 + i * 2000, i, np.int32)


def test_slots_that_grow(build):
    convert = partial(concat_examples, padding=-1)
    iterator = build("processes", Growing(), 8, converter=convert, repeat=False)
    for number, x in enumerate(iterator):
        found = x.get()
        for row, i in enumerate(range(number * 8, number * 8 + 8)):
            assert (found[row, : 1 + i * 2000] == i).all()
            assert (found[row, 1 + i * 2000 :] == -1).all()


@pytest.mark.parametrize("is_registered", [True, False])
def test_memory_is_flat_over_ten_thousand_batches(
    cupy, build, monkeypatch, long_loop, is_registered
):
    import psutil

    if not is_registered:
        monkeypatch.setenv("FASTITER_REGISTER", "0")
    iterator = build("processes", Rows(64), 8)
    device, resident, pinned, registered = [], [], [], []
    before = cupy.get_default_memory_pool().total_bytes()
    for number in range(long_loop):
        x, _ = next(iterator)
        x += 1
        if number % (long_loop // 10) == long_loop // 10 - 1:
            device.append(cupy.get_default_memory_pool().total_bytes() - before)
            resident.append(psutil.Process().memory_info().rss)
            pinned.append(cupy.get_default_pinned_memory_pool().n_free_blocks())
            registered.append(sum(iterator._batch_maker.gpu()._registration._ranges.values()))
    batch = -(-8 * ROW // 512) * 512 + 512  # in the pool's units, and the numbers
    assert max(device) <= 6 * batch
    assert device[-1] <= device[4] + batch  # how far the program may be ahead differs a little
    assert len(set(pinned[1:])) == 1
    assert len(set(registered[1:])) == 1
    assert resident[-1] <= resident[4] + (4 << 20)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_come_with_their_batch(build, kind):
    iterator = build(kind, Wide(640, broken=[70, 200]))
    raised = []
    for number in range(20):
        try:
            assert_is(next(iterator), number, 640)
        except KeyError:
            raised.append(number)
    assert raised == [70 // BATCH, 200 // BATCH]


def test_workers_that_die_lose_nothing(build):
    iterator = build("processes", Wide(64))
    n_killed = 0
    for number in range(60):
        assert_is(next(iterator), number)
        if number % 10 == 5:
            for pid in pids_of(iterator):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:  # killed before, and not noticed yet
                    continue
                n_killed += 1
                break
    assert n_killed > 1


def test_reset_and_finalize_amid_copies(cupy, build):
    for _ in range(20):
        iterator = build("processes", Wide(64), n_device_prefetch=2, context="fork")
        for _ in range(2):
            held = [next(iterator) for _ in range(4)]
            iterator.reset()
        batch = next(iterator)
        iterator.finalize()
        del iterator
        gc.collect()
        for number, kept in enumerate(held):
            assert_is(kept, number)
        assert_is(batch, 0)
    cupy.cuda.Device().synchronize()


def test_examples_of_the_gpu_are_joined_there(cupy, build):
    rows = [(cupy.arange(3) + i, i) for i in range(8)]
    for kind in ("serial", "threads"):
        x, t = next(build(kind, rows, 8))
        assert (x.sum(axis=1)).get().tolist() == [3 + 3 * i for i in range(8)]
        assert t.get().tolist() == list(range(8))


@pytest.mark.gpu(real="the pointers are CuPy's")
def test_other_libraries_take_the_arrays_without_copying(cupy, build):
    x, _ = next(build("processes", Wide(64)))
    assert x.__cuda_array_interface__["data"][0] == x.data.ptr
    again = cupy.from_dlpack(x)
    assert again.data.ptr == x.data.ptr
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    if torch.cuda.is_available():
        tensor = torch.from_dlpack(x)
        assert tensor.data_ptr() == x.data.ptr
        assert tensor[3, 0].item() == 3


def test_a_second_gpu_from_a_program_that_uses_the_first(cupy, build):
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is one GPU only")
    with cupy.cuda.Device(0):
        cupy.zeros(3)
        for kind in KINDS:
            iterator = build(kind, Wide(64), device=1)
            for number in range(6):
                batch = next(iterator)
                assert cupy.cuda.runtime.getDevice() == 0
                assert batch[0].device.id == 1
                with cupy.cuda.Device(1):
                    assert_is(batch, number)


@pytest.mark.gpu(real="it is CUDA that does not work in forked processes")
def test_a_forked_child_is_told(cupy):
    cupy.zeros(3)

    def child():
        with pytest.raises(RuntimeError, match="forked from one that uses CUDA"):
            to_device(0, np.zeros(3))

    run_in_fork(child)


EXIT = """
from fastiter import MultiprocessIterator, concat_examples
import numpy as np

if __name__ == "__main__":
    rows = [np.full(50_000, i, np.int32) for i in range(64)]
    iterator = MultiprocessIterator(
        rows, 8, n_processes=2, converter=concat_examples, device=0, {end}
    )
    held = [next(iterator) for _ in range(5)]
"""


@pytest.mark.gpu(real="a program of its own imports CuPy")
@pytest.mark.parametrize("end", ["", "context='fork'", "n_device_prefetch=4"])
def test_the_program_ends_in_silence(tmp_path, end):
    path = tmp_path / "program.py"
    path.write_text(EXIT.format(end=end))
    # CUDA has threads, beside which only a program that insists forks workers.
    command = [sys.executable, "-W", "ignore:worker processes are forked:RuntimeWarning", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.gpu(real="it looks whether CUDA is open")
def test_workers_do_not_initialise_cuda():
    arguments = {"converter": concat_examples, "device": 0, "context": "forkserver"}
    with MultiprocessIterator(Opened(), 4, n_processes=2, **arguments) as iterator:
        assert not next(iterator).get().any()


class Opened:
    """Row i: whether the worker process has CUDA open."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        links = []
        for entry in os.scandir("/proc/self/fd"):
            try:
                links.append(os.readlink(entry.path))
            except OSError:
                continue
        return int(any("nvidia-uvm" in link for link in links))
