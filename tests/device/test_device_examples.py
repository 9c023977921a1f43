"""Examples that lie on a GPU already, over a stand-in for CuPy: most tests here need no
GPU, and show nothing of one.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from device_loops import build

from fastiter import concat_examples, to_device

__all__ = ["build"]  # the fixture


@pytest.mark.gpu
def test_they_are_joined_on_a_gpu(cupy):
    check_joined(cupy)


def test_they_are_joined_where_they_are(world):
    check_joined(world.cupy)


def check_joined(cupy):
    batch = [(cupy.arange(2), 1), (cupy.arange(3), 2)]
    arrays, labels = concat_examples(batch, padding=(-1, None))
    assert isinstance(arrays, cupy.ndarray)
    assert arrays.get().tolist() == [[0, 1, -1], [0, 1, 2]]
    assert isinstance(labels, np.ndarray)
    arrays, lengths = concat_examples([x for x, _ in batch], padding=0, return_lengths=True)
    assert isinstance(lengths, cupy.ndarray)
    assert lengths.get().tolist() == [2, 3]
    assert concat_examples([cupy.ones(2)] * 3).shape == (3, 2)
    with pytest.raises(ValueError, match="dimensions"):
        concat_examples([cupy.ones(2), cupy.ones((2, 2))], padding=0)


def test_they_are_joined_on_their_device_and_the_current_one_stays(world):
    cupy = world.cupy
    with cupy.cuda.Device(1):
        batch = [cupy.arange(3), cupy.arange(3, 6)]
    cupy.cuda.Device(0).use()
    joined = concat_examples(batch)
    assert joined.device.id == 1
    assert world.machine.device_id == 0
    assert to_device(1, joined) is joined
    assert to_device(-1, joined).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert world.machine.device_id == 0


class OnGpu:
    """Row i: an array full of i that was made on the GPU, and i."""

    def __init__(self, cupy):
        self.cupy = cupy

    def __len__(self):
        return 24

    def __getitem__(self, i):
        return self.cupy.full((50,), i, np.int32), i


@pytest.mark.parametrize("kind", ["serial", "threads"])
@pytest.mark.parametrize("device", [0, None])
@pytest.mark.parametrize("seed", range(5))
def test_kernels_see_them_on_any_stream(make_world, build, kind, device, seed):
    world = make_world(seed)
    iterator = build(kind, OnGpu(world.cupy), device=device)
    with contextlib.nullcontext() if kind == "serial" else world.stream(non_blocking=True):
        seen, held = [], []  # of another stream's memory: the loop keeps what it still reads
        for number in range(20):
            x, t = next(iterator)
            held.append(x)
            assert isinstance(x, world.cupy.ndarray)
            assert isinstance(t, np.ndarray if device is None else world.cupy.ndarray)
            world.machine.kernel(world.cupy.cuda.get_current_stream(), x, seen.append)
            world.machine.some_steps(number % 9)
    world.machine.finish()
    for number, x in enumerate(seen):
        assert x[:, 0].tolist() == [(4 * number + row) % 24 for row in range(4)]
        assert (x == x[:, :1]).all()
