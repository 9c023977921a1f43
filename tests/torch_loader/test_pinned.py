"""Batches that are born pinned, over a stand-in for torch.cuda: `torch_standin` says what it shows.

`test_pinned_gpu` does the same on a GPU.
"""

from __future__ import annotations

import gc
import os
import warnings

import numpy as np
import pytest
from inside import ring_of

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.utils.data as torch_data  # noqa: E402
from cupy_machine import CUDARuntimeError, Ticket  # noqa: E402
from device_loops import run_in_fork  # noqa: E402
from tensors_of import LongRows  # noqa: E402
from torch_standin import TorchMachine, install  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402
from fastiter.torch._device import pinned  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")

WIDTH = 5000


def long_rows(size=64, growth=0):
    return LongRows(size, WIDTH, growth)


def as_a_whole(examples):
    """A collate function that makes whole batches, of tensors of one's own."""
    return [torch.cat([x for x, _ in examples]), torch.tensor([i for _, i in examples])]


@pytest.fixture(params=[0, 1])
def machine(request, monkeypatch):
    machine = TorchMachine(request.param)
    driver = install(monkeypatch, machine)
    monkeypatch.setattr(pinned, "cuda_driver", lambda: driver)
    yield machine
    gc.collect()
    machine.finish()
    assert not machine.registered
    assert machine.last_error == 0


@pytest.fixture(params=[None, as_a_whole], ids=["columns", "whole batches"])
def collate_fn(request):
    return request.param


def loader_of(dataset, collate_fn=None, workers=2, **arguments):
    return DataLoader(
        dataset, 4, num_workers=workers, pin_memory=True, collate_fn=collate_fn, **arguments
    )


def is_registered(machine, tensor):
    at = tensor.data_ptr()
    return any(a <= at and at + tensor.nbytes <= a + n for a, n in machine.registered.items())


def assert_is(copy, number):
    """Whether a copy of the first tensor of batch `number` is right."""
    rows = copy.view(np.int64).reshape(4, -1)
    assert (rows == np.arange(number * 4, number * 4 + 4)[:, None]).all()


@pytest.mark.parametrize("in_order", [True, False])
def test_batches_lie_in_registered_slots(machine, collate_fn, in_order):
    loader = loader_of(long_rows(), collate_fn, in_order=in_order)
    for x, i in loader:
        assert x.is_pinned() and i.is_pinned()
        assert is_registered(machine, x)
        assert x.view(4, -1)[:, 0].tolist() == i.tolist()
        machine.go_on()
    # The first batch of columns tells a schema, and comes packed; small tensors are in its pickle.
    assert machine.pinned_bytes <= 16 * 4 * 8


def test_a_slot_comes_back_after_the_copies_on_any_stream(machine, collate_fn):
    """Nothing waits for the copies but the ring, and batches are dropped at once."""
    streams = [machine.stream(), machine.stream(), machine.stream(1)]
    copies = []
    for number, (x, _) in enumerate(loader_of(long_rows(640), collate_fn)):
        copies.append(machine.copy(streams[number % 3], x))
        del x
        machine.some_steps(4)
    machine.finish()
    for number, copy in enumerate(copies):
        assert_is(copy, number)
    assert len(machine.registered) + 1 < len(copies) / 4


@pytest.mark.parametrize("device_id", [0, 1])
def test_a_stream_that_is_held_up(machine, collate_fn, device_id):
    """All other streams of both GPUs have done their work, and so has the current one."""
    stream, behind, copies = machine.stream(device_id), Ticket(), []
    machine.put(stream, behind)
    loader = loader_of(long_rows(), collate_fn, persistent_workers=True)
    for x, _ in loader:
        copies.append(machine.copy(stream, x))
        del x
        machine.go_on()
    behind.mark()
    machine.finish()
    for number, copy in enumerate(copies):
        assert_is(copy, number)


def test_a_program_far_ahead_of_its_gpu_gets_copies(machine, collate_fn):
    stream = machine.stream()
    copies = [machine.copy(stream, x) for x, _ in loader_of(long_rows(400), collate_fn)]
    assert machine.pinned_bytes > 60 * 4 * WIDTH * 8
    machine.finish()
    for number, copy in enumerate(copies):
        assert_is(copy, number)


def test_slots_that_grow_are_registered_anew(machine):
    stream = machine.stream()
    copies = []
    for x, i in loader_of(long_rows(240, growth=3000), lambda rows: [rows[0][0], rows[0][1]]):
        copies.append((machine.copy(stream, x), i))
        machine.some_steps(8)
    machine.finish()
    for copy, i in copies:
        assert (copy.view(np.int64) == i).all()
    assert len(machine.registrations) > len({at for at, _ in machine.registrations})


def test_what_is_held_stays_pinned_until_its_copies_are_done(machine, collate_fn):
    stream = machine.stream()
    held = list(loader_of(long_rows(16), collate_fn))
    gc.collect()
    assert all(x.is_pinned() for x, _ in held)
    copy = machine.copy(stream, held[-1][0])
    del held
    gc.collect()
    assert not machine.registered
    assert_is(copy, 3)


def test_epochs_and_loaders_side_by_side(machine, collate_fn):
    one, two = (loader_of(long_rows(32), collate_fn, persistent_workers=True) for _ in range(2))
    stream = machine.stream()
    for _ in range(3):
        copies = []
        for (x, _), (y, _) in zip(one, two, strict=True):
            copies.append((machine.copy(stream, x), machine.copy(stream, y)))
            machine.some_steps(4)
        machine.finish()
        for number, pair in enumerate(copies):
            for copy in pair:
                assert_is(copy, number)
    addresses = [at for at, _ in machine.registrations]
    assert len(addresses) == len(set(addresses))


def test_cuda_that_refuses_to_register(machine, collate_fn):
    def fail(operation):
        if operation == "hostRegister":
            raise CUDARuntimeError("refused")

    machine.fail = fail
    with pytest.warns(RuntimeWarning, match="CUDA cannot register") as told:
        batches = list(loader_of(long_rows(), collate_fn))
    assert len([w for w in told if "register" in str(w.message)]) == 1
    assert all(x.is_pinned() and i.is_pinned() for x, i in batches)
    assert not machine.registrations


def test_a_driver_that_records_no_event_for_all_streams(machine, collate_fn, monkeypatch):
    monkeypatch.setattr(pinned, "cuda_driver", lambda: None)
    assert all(x.is_pinned() and i.is_pinned() for x, i in loader_of(long_rows(), collate_fn))
    assert not machine.registrations


def test_an_event_that_cannot_be_recorded_is_waited_for(machine):
    def fail(operation):
        if operation == "cuCtxRecordEvent":
            raise CUDARuntimeError("a stream is being captured")

    machine.fail = fail
    stream, copies = machine.stream(), []
    for x, _ in loader_of(long_rows()):
        copies.append(machine.copy(stream, x))
        del x
    machine.fail = lambda operation: None
    for number, copy in enumerate(copies):
        machine.finish()
        assert_is(copy, number)


@pytest.mark.parametrize("operation", ["hostRegister", "after register", "record", "pin_memory"])
def test_interrupts_lose_nothing(machine, collate_fn, operation, monkeypatch, recwarn):
    if operation == "pin_memory":
        monkeypatch.setenv("FASTITER_REGISTER", "0")
    rest = []

    def interrupt(found):
        if found == operation and machine.random.random() < 0.3:
            raise KeyboardInterrupt

    machine.fail = interrupt
    batches = iter(loader_of(long_rows(160), collate_fn, persistent_workers=True))
    n_interrupts = 0
    while True:
        try:
            rest += next(batches)[1].tolist()
        except KeyboardInterrupt:
            n_interrupts += 1
        except StopIteration:
            break
    machine.fail = lambda operation: None
    assert n_interrupts
    assert not [w for w in recwarn if "CUDA cannot register" in str(w.message)]
    assert rest == list(range(160))
    ring = ring_of(batches)
    ring.has_free_slot()
    machine.finish()
    ring.has_free_slot()
    assert ring.slots["leased"] == 0


def test_forked_children_leave_it_alone(machine):
    loader = loader_of(long_rows(32))
    batches = iter(loader)
    x, _ = next(batches)
    ring, registered = ring_of(batches), dict(machine.registered)

    def child():
        machine.fail = lambda operation: os._exit(1)
        assert x[0, 0] == 0
        ring.registration.close()
        assert machine.registered == registered

    run_in_fork(child)
    assert [i[0].item() for _, i in batches] == list(range(4, 32, 4))


class Own:
    """A batch with a method of its own, as torch's loader calls it; one fails."""

    def __init__(self, examples):
        self.x = torch.stack([x for x, _ in examples])
        self.is_ours = False

    def pin_memory(self):
        if self.x[0, 0] == 40:
            raise ValueError("not this one")
        self.x = self.x.pin_memory()
        self.is_ours = True
        return self


def test_types_with_a_method_of_their_own(machine):
    for batch in loader_of(long_rows(16), Own):
        assert batch.is_ours and is_registered(machine, batch.x)
        machine.go_on()
    assert machine.pinned_bytes == 0


def test_a_batch_that_cannot_be_pinned_is_an_error_of_its_own(machine):
    batches = iter(loader_of(long_rows(48), Own))
    for _ in range(10):
        next(batches)
    with pytest.raises(ValueError, match="not this one"):
        next(batches)
    assert next(batches).x[0, 0] == 44


def test_without_workers_torch_pins(machine, collate_fn):
    assert all(x.is_pinned() and i.is_pinned() for x, i in loader_of(long_rows(), collate_fn, 0))
    assert not machine.registrations


def test_it_can_be_switched_off(machine, monkeypatch):
    monkeypatch.setenv("FASTITER_REGISTER", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert all(
            x.is_pinned() for x, _ in loader_of(long_rows(), multiprocessing_context="forkserver")
        )
    assert not machine.registrations


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
@pytest.mark.skipif(torch.__version__ < (2, 8), reason="torch raises an error of the driver's")
@pytest.mark.parametrize("workers", [0, 2])
def test_without_an_accelerator_as_torch(workers):
    told = []
    for cls in (torch_data.DataLoader, DataLoader):
        with pytest.warns(UserWarning, match="pin_memory") as found:
            loader = cls(
                long_rows(8), 4, num_workers=workers, pin_memory=True, pin_memory_device="cuda"
            )
            batches = [x.tolist() for x, _ in loader]
        told.append((batches, sorted(str(w.message) for w in found if "pin" in str(w.message))))
    assert told[0] == told[1]


def test_an_unknown_process_gets_no_driver():
    assert os.path.exists("/dev/nvidiactl") or pinned.cuda_driver() is None
