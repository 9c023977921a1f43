"""Pinned batches of `fastiter.torch.DataLoader`, copied by torch on a GPU. Skipped, with the
reason, where torch finds none."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
from inside import ring_of

torch = pytest.importorskip("torch", reason="torch is not installed")

from tensors_of import LongRows  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402
from fastiter.torch._device import pinned  # noqa: E402

pytestmark = [
    pytest.mark.gpu(library="torch", real="the copies are torch's"),
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
]

WIDTH = 100_000
BATCH = 8


def long_rows(size=64, growth=0):
    return LongRows(size, WIDTH, growth)


def as_a_whole(examples):
    return [torch.stack([x for x, _ in examples]), torch.tensor([i for _, i in examples])]


def growing(examples):
    return list(examples[-1])


@pytest.fixture(autouse=True)
def _driver():
    if pinned.cuda_driver() is None:
        pytest.skip("the driver cannot record an event behind all streams: it needs CUDA 12.5")


@pytest.fixture(params=[None, as_a_whole], ids=["columns", "whole batches"])
def loader(request):
    return DataLoader(
        long_rows(640), BATCH, num_workers=2, pin_memory=True, collate_fn=request.param,
        multiprocessing_context="forkserver",
    )  # fmt: skip


def registered(batches):
    return dict(ring_of(batches).registration._ranges)


def send(batches):
    for x, _ in batches:
        x.to("cuda", non_blocking=True)


def test_batches_are_pinned_where_the_workers_wrote_them(loader):
    batches = iter(loader)
    for x, _ in batches:
        assert x.is_pinned()
        ranges = registered(batches)
        assert any(at <= x.data_ptr() < at + nbytes for at, nbytes in ranges.items())


@pytest.mark.parametrize("milliseconds", [0, 1, 5])
def test_copies_behind_work_on_any_stream(loader, milliseconds):
    """The batch is dropped at once, and nothing but the ring waits for the copy."""
    streams = [torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()]
    there = []
    for number, (x, _) in enumerate(loader):
        with torch.cuda.stream(streams[number % 3]):
            torch.cuda._sleep(milliseconds * 1_500_000)
            there.append(x.to("cuda", non_blocking=True))
        del x
    torch.cuda.synchronize()
    for number, x in enumerate(there):
        wanted = torch.arange(number * BATCH, (number + 1) * BATCH, device="cuda")
        assert bool((x == wanted[:, None]).all())


def test_next_does_not_wait_for_the_gpu(loader):
    batches = iter(loader)
    held = [next(batches) for _ in range(8)]  # whose slots are registered now, which may wait
    send(held)
    del held
    torch.cuda.synchronize()
    torch.cuda._sleep(3_000_000_000)
    behind = torch.cuda.Event()
    behind.record()
    for _ in range(4):
        next(batches)[0].to("cuda", non_blocking=True)
    assert not behind.query()
    behind.synchronize()


def test_slots_that_grow():
    loader = DataLoader(
        long_rows(256, growth=2000), BATCH, num_workers=2, pin_memory=True, collate_fn=growing,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    there = [(x.to("cuda", non_blocking=True), i) for x, i in loader]
    torch.cuda.synchronize()
    assert all(bool((x == i).all()) for x, i in there)


def test_slots_are_unregistered_with_the_last_batch(loader):
    batches = iter(loader)
    held = [next(batches) for _ in range(4)]
    ranges = registered(batches)
    assert ranges
    del batches
    gc.collect()
    assert all(x.is_pinned() for x, _ in held)
    send(held)
    del held
    gc.collect()
    for address in ranges:
        assert int(torch.cuda.cudart().cudaHostUnregister(address)) != 0
        with pytest.raises(RuntimeError):
            torch.ones(1, device="cuda")  # takes CUDA's last error


def test_a_refused_registration_leaves_no_error_to_the_program(loader):
    batches = iter(loader)
    next(batches)
    address, nbytes = next(iter(registered(batches).items()))
    with pytest.raises(RuntimeError, match="cudaError"):
        pinned._TorchCuda().register(address, nbytes)
    torch.ones(1, device="cuda").cpu()


def test_memory_is_flat(loader):
    import psutil

    resident, pinned = [], []
    for _ in range(12):
        batches = iter(loader)
        for batch in batches:
            send([batch])
            pinned.append(sum(registered(batches).values()))
        del batch, batches
        gc.collect()
        resident.append(psutil.Process().memory_info().rss)
    assert max(pinned) < 40 * BATCH * (WIDTH + 10) * 8
    assert resident[-1] <= resident[4] + (8 << 20)


def test_workers_that_persist_and_start_by_fork_later():
    loader = DataLoader(
        long_rows(64), BATCH, num_workers=2, pin_memory=True, persistent_workers=True,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    for _ in range(3):
        there = [x.to("cuda", non_blocking=True) for x, _ in loader]
        torch.cuda.synchronize()
        assert [int(x[0, 0]) for x in there] == list(range(0, 64, BATCH))


PROGRAM = """
import torch
from fastiter.torch import DataLoader

if __name__ == "__main__":
    data = torch.utils.data.TensorDataset(torch.arange(640_000).reshape(640, 1000))
    loader = DataLoader(data, 8, num_workers=2, pin_memory=True, {arguments})
    batches = iter(loader)
    held = [next(batches) for _ in range(5)]
    there = [x.to("cuda", non_blocking=True) for x, in held]
"""


@pytest.mark.parametrize("arguments", ["multiprocessing_context='forkserver'", "timeout=60"])
def test_a_program_that_just_ends(tmp_path, arguments):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(arguments=arguments))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "")
    assert "Error" not in done.stderr
