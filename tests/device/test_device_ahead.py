"""Batches on their way to a GPU, over a stand-in for CuPy: no test here needs a GPU, or shows what
one does. That is left to `test_gpu.py`.

They check in which order the loader asks for things, which memory it gives back when, and that the
batches, the errors and the states stay those of the host, whatever comes late or fails.
"""

from __future__ import annotations

import gc
import os
import random
import warnings
from functools import partial

import numpy as np
import pytest
from cupy_standin import CUDARuntimeError
from device_loops import AHEAD, KINDS, WIDTH, Loop, Rows, build, in_order, wait_for_ready
from inside import copy_no_more, n_copies_of, ring_of, slots_of
from warned import make_warnings_errors

from fastiter import concat_examples

__all__ = ["build"]  # the fixture


# ---- content, whatever the order of things -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_kernels_see_their_batch_in_whatever_order_things_happen(make_world, build, kind, seed):
    world = make_world(seed)
    chance = random.Random(seed)
    arguments = {} if kind == "serial" else {"n_device_prefetch": seed % 4}
    stream = None if seed % 2 else world.stream(non_blocking=True)
    loop = Loop(world, build(kind, Rows(), **arguments), stream)
    held = []
    for _ in range(40):
        held.append(loop.step())
        while held and chance.random() < 0.6:
            del held[chance.randrange(len(held))]
        world.machine.some_steps(chance.choice([0, 3, 30]))
    loop.check(in_order(40))
    assert world.machine.device_waits == world.machine.stream_waits == 0


@pytest.mark.parametrize("kind", AHEAD)
def test_the_next_batch_is_under_way_before_it_is_asked_for(world, build, kind):
    iterator = build(kind, Rows())
    assert (iterator.n_prefetch, iterator.n_device_prefetch) == (2, 1)
    loop = Loop(world, iterator)
    loop.step()
    wait_for_ready(iterator)
    x, _ = loop.step()
    assert n_copies_of(iterator) == 1  # batch 2
    world.machine.go_on()
    world.machine.fail = lambda operation: pytest.fail(operation) if operation == "set" else None
    copy_no_more(iterator)
    assert loop.step()[1].content.tolist() == [8, 9, 10, 11]
    assert x.content[0, 0] == 4


@pytest.mark.parametrize("kind", AHEAD)
def test_none_ahead(world, build, kind):
    iterator = build(kind, Rows(), n_device_prefetch=0, n_prefetch=3)
    assert iterator.n_prefetch == 3
    loop = Loop(world, iterator)
    for _ in range(5):
        loop.step()
        wait_for_ready(iterator)
        assert not n_copies_of(iterator)
    loop.check(in_order(5))


@pytest.mark.parametrize("kind", KINDS)
def test_other_containers_padding_and_odd_rows(world, build, kind):
    rows = [{"x": np.arange(i % 5 + 1, dtype=np.float32), "n": i / 2, "e": []} for i in range(12)]
    convert = partial(concat_examples, padding={"x": -1, "n": None, "e": None}, return_lengths=True)
    for expected, found in zip(
        KINDS[kind](rows, 4, shuffle=False, repeat=False, converter=convert),
        build(kind, rows, converter=convert, repeat=False),
        strict=True,
    ):
        world.machine.finish()
        assert list(found) == list(expected)
        for name, array in found.items():
            assert isinstance(array, world.cupy.ndarray)
            np.testing.assert_array_equal(array.content, expected[name])


def test_what_another_converter_gives_is_sent_too(world, build):
    iterator = build("processes", Rows(), converter=reversed_batch)
    for first in (0, 4, 8):
        found = next(iterator)
        world.machine.finish()
        assert type(found) is list
        assert found[0].content[:, 0].tolist() == [first + 3, first + 2, first + 1, first]
        assert found[0].shape == (4, WIDTH)
        assert found[1] is None


def reversed_batch(examples, device):
    assert device is None
    return [np.stack([x for x, _ in examples])[::-1], None]


def test_a_result_that_cannot_be_sent_is_an_error_of_its_batch(world, build):
    iterator = build("processes", Rows(), converter=sets_at_first)
    with pytest.raises(TypeError, match="set"):
        next(iterator)
    assert next(iterator).shape == (4,)


def sets_at_first(examples, device):
    numbers = [i for _, i in examples]
    return set(numbers) if 0 in numbers else np.array(numbers)


# ---- L8, and memory on both sides ----------------------------------------------------------------


def test_l8_a_slot_comes_back_with_the_event_of_its_copy(world, build):
    iterator = build("processes", Rows(), n_device_prefetch=2, n_prefetch=4)
    loop = Loop(world, iterator)
    loop.step()
    next(iterator)
    for _ in range(8):
        loop.step()  # the first two are spilled, so they are no borrowed slots
    taken = slots_of(iterator)["leased"]
    assert taken > 0
    iterator.reset()  # drops what is ahead; the copies go on, and read the slots
    gc.collect()
    assert slots_of(iterator)["leased"] == taken
    world.machine.go_on()
    assert slots_of(iterator)["leased"] == taken  # nothing looks before the next call
    iterator._batch_maker.gpu().poll()
    assert slots_of(iterator)["leased"] == 0
    loop.seen.pop(0)
    loop.machine.finish()
    for x, t in loop.seen:
        assert (x == t[:, None]).all()


def test_a_program_far_ahead_of_its_gpu_waits_for_copies_and_memory_is_bounded(world, build):
    iterator = build("processes", Rows())
    loop = Loop(world, iterator)
    for _ in range(6):
        loop.step()
    machine = world.machine
    machine.finish()
    used = machine.device_bytes, machine.pinned_bytes
    waits = machine.event_waits
    for _ in range(60):  # nothing happens but what the host waits for
        loop.step()
        assert slots_of(iterator)["leased"] <= 3
    assert machine.event_waits > waits
    assert machine.device_waits == machine.stream_waits == 0
    assert machine.pinned_bytes == used[1]
    assert machine.device_bytes <= 6 * (4 * WIDTH * 4 + 512 + 512)
    assert iterator.stats().copied_out == 0
    loop.check(in_order(66))


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_bounded(world, build, kind):
    loop = Loop(world, build(kind, Rows()))
    for _ in range(120):
        loop.step()
        world.machine.go_on()
    batch = 4 * (WIDTH * 4 + 8)
    assert world.machine.device_bytes <= 5 * (batch + 2 * 512)
    assert world.machine.pinned_bytes <= 3 * (batch + batch // 4 + 128)
    assert sum(world.machine.registered.values()) <= 6 * (1 << 20)
    loop.check(in_order(120))


# ---- registration --------------------------------------------------------------------------------


def test_slots_are_registered_once_each_and_unregistered_with_finalize(world, build):
    iterator = build("processes", Rows())
    loop = Loop(world, iterator)
    for _ in range(60):
        loop.step()
        world.machine.some_steps(10)
    places = [address for address, _ in world.machine.registrations]
    assert places
    assert len(set(places)) == len(places) <= 6
    assert set(world.machine.registered) == set(places)
    iterator.finalize()
    assert world.machine.registered == {}
    loop.check(in_order(60))  # also of those that had not been copied when finalize was called


class OneIsLarge(Rows):
    """Ragged rows, of which one is far longer than the others."""

    def __len__(self):
        return 400

    def __getitem__(self, i):
        return np.full(1 << 23 if i == 9 else 8 + i % 4, i, np.int32), i


def test_a_registered_slot_keeps_its_pages(world, build):
    """Else the GPU, which knows where they are, would read others than the workers write."""
    convert = partial(concat_examples, padding=(0, None))
    iterator = build("processes", OneIsLarge(), converter=convert)
    allocated = []
    for number in range(60):
        x, _ = next(iterator)
        assert x.shape == (4, 1 << 23 if number == 2 else 11)
        world.machine.finish()
        allocated.append(os.fstat(ring_of(iterator).arena.fd).st_blocks)
    assert allocated == sorted(allocated)


class Growing(Rows):
    """Ragged rows, ever longer ones."""

    def __getitem__(self, i):
        return np.full(1 + i * 3000, i, np.int32), i


def test_a_slot_that_has_grown_is_registered_anew(world, build):
    convert = partial(concat_examples, padding=(0, None))
    iterator = build("processes", Growing(), converter=convert, n_prefetch=1)
    seen = []
    for number in range(16):
        x, _ = next(iterator)
        assert x.shape == (4, 1 + (4 * number + 3) * 3000)
        world.machine.kernel(world.cupy.cuda.get_current_stream(), x, seen.append)
        world.machine.some_steps(6)
    world.machine.finish()
    for number, x in enumerate(seen):
        for row in range(4):
            i = 4 * number + row
            assert (x[row, : 1 + i * 3000] == i).all()
            assert (x[row, 1 + i * 3000 :] == 0).all()
    sizes = {}
    for address, nbytes in world.machine.registrations:
        assert nbytes > sizes.get(address, 0)
        sizes[address] = nbytes
    assert len(world.machine.registrations) > len(sizes)


def test_without_permission_it_warns_once_and_goes_through_pinned_buffers(world, build):

    def refuse(operation):
        if operation == "hostRegister":
            raise CUDARuntimeError("cudaErrorMemoryAllocation")

    world.machine.fail = refuse
    iterator = build("processes", Rows())
    loop = Loop(world, iterator)
    with pytest.warns(RuntimeWarning, match=r"cudaErrorMemoryAllocation.*GB/s.*ulimit") as caught:
        for _ in range(30):
            loop.step()
    # Python may warn of forks, too, if earlier tests have left threads.
    assert len([w for w in caught if w.category is RuntimeWarning]) == 1
    batch = 4 * WIDTH * 4 + 64
    assert world.machine.pinned_bytes <= 3 * (batch + batch // 4)
    loop.check(in_order(30))


def test_registration_can_be_switched_off(world, build, monkeypatch):
    monkeypatch.setenv("FASTITER_REGISTER", "0")
    loop = Loop(world, build("processes", Rows()))
    with warnings.catch_warnings():
        make_warnings_errors()
        for _ in range(10):
            loop.step()
    assert world.machine.registrations == []
    loop.check(in_order(10))
