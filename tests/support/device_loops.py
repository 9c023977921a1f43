"""Iterators that feed a stand-in's GPU, and training loops over them. None of it is a GPU."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from functools import partial

import numpy as np
import pytest
from inside import executor_of, pool_of, ring_of

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, concat_examples

WIDTH = 600  # int32 in a row, so that a batch is some pages

KINDS = {
    "serial": SerialIterator,
    "threads": functools.partial(MultithreadIterator, n_threads=2),
    "processes": functools.partial(MultiprocessIterator, n_processes=2, context="fork"),
}
AHEAD = ["threads", "processes"]


class Rows:
    """Row i: an array full of i, and i; ``broken`` rows fail, ``odd`` ones are of another shape."""

    def __init__(self, size=64, broken=(), odd=(), deadly=()):
        self.size, self.broken, self.odd, self.deadly = size, set(broken), set(odd), set(deadly)

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        if i in self.broken:
            raise KeyError(f"row {i}")
        if i in self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.full(WIDTH + (i in self.odd), i, np.int32), i


class Imports:
    """Row i: whether its process has imported CuPy, or what copies to GPUs."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        return int(bool({"cupy", "fastiter._device.transfer"} & set(sys.modules)))


@pytest.fixture
def build(request):
    """Makes iterators of a kind, for a stand-in's GPU, and finalizes them with the test."""

    def make(kind, dataset, batch_size=4, **arguments):
        arguments = {"shuffle": False, "converter": concat_examples, "device": 0, **arguments}
        iterator = KINDS[kind](dataset, batch_size, **arguments)
        request.addfinalizer(iterator.finalize)
        return iterator

    return make


class Loop:
    """A training loop: what its kernels saw of the batches that it took."""

    def __init__(self, world, iterator, stream=None, device=0):
        self.machine, self.cupy, self.iterator = world.machine, world.cupy, iterator
        self.device, self.stream = device, stream
        self.seen = []

    def step(self):
        with self.cupy.cuda.Device(self.device):
            stream = self.stream or self.cupy.cuda.get_current_stream()
            with stream:
                batch = next(self.iterator)
                self.work_on(batch, stream)
        return batch

    def work_on(self, batch, stream):
        """Begin to read a batch on a stream of the current device."""
        number = len(self.seen)
        self.seen.append([None, None])
        for place, array in enumerate(batch):
            self.machine.kernel(stream, array, partial(self.seen[number].__setitem__, place))

    def check(self, indices):
        self.machine.finish()
        assert [list(t) for _, t in self.seen] == [list(batch) for batch in indices]
        for x, t in self.seen:
            assert x.shape == (len(t), WIDTH)
            assert (x == t[:, None]).all()


def run_in_fork(function):
    """Runs a function in a forked child; fails if it raises there."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def in_order(n_batches, size=64, batch_size=4):
    every = [i % size for i in range(n_batches * batch_size)]
    return [every[k : k + batch_size] for k in range(0, len(every), batch_size)]


def wait_for_ready(iterator):
    """Until the batches that were not taken over are complete on the host."""
    if isinstance(iterator, MultithreadIterator):
        for task in list(executor_of(iterator)._tasks):
            task.wait(lambda: 0.25)
        return
    pool, ring = pool_of(iterator), ring_of(iterator)
    pool.wait()
    while ring.count_ready < len(ring.scheduled):
        pool.check()  # for rows that hang (--stuck-rows)
        time.sleep(0.001)
