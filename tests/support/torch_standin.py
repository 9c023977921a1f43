"""A stand-in for the parts of torch.cuda that pinned batches use, over `cupy_machine`.

It is no GPU, and tests none. Memory is pinned if it was registered, or copied by ``pin_memory()``;
copies happen late, in any order that CUDA allows, and fail if their memory is not pinned then. An
event that is recorded for a context is behind all streams of its GPU, as CUDA's driver documents.
What CUDA refuses it tells once more, to the next kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from cupy_machine import GARBAGE, CUDARuntimeError, Machine, Stream, Ticket

if TYPE_CHECKING:
    import pytest

_REFUSED = 712


class TorchMachine(Machine):
    """Its GPUs, as torch sees them. ``used`` are those that were given something to do."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.used = {0}
        self.last_error = 0

    def stream(self, device_id: int = 0) -> Stream:
        self.n_streams += 1
        self.used.add(device_id)
        return Stream(self, self.n_streams, device_id)

    def copy(self, stream: Stream, tensor: torch.Tensor) -> np.ndarray:
        """``tensor.to("cuda", non_blocking=True)`` on a stream: the bytes, once they are copied."""
        at, nbytes = tensor.data_ptr(), tensor.nbytes
        there = np.full(nbytes, GARBAGE, np.uint8)

        def copy() -> None:  # keeps no tensor alive
            assert self.is_pinned(at, nbytes), "copied from memory that is not pinned any more"
            ctypes.memmove(there.ctypes.data, at, nbytes)

        assert tensor.is_pinned(), "to be copied from memory that is not pinned"
        self.put(stream, copy)
        return there

    def pinned_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in memory that is pinned for ever."""
        if tensor.is_pinned():
            return tensor
        self.fail("pin_memory")
        block = np.empty(max(tensor.nbytes, 1), np.uint8)
        self.blocks.append(block)
        self.pinned_bytes += tensor.nbytes
        flat = torch.from_numpy(block)[: tensor.nbytes].view(tensor.dtype)
        return flat.reshape(tensor.shape).copy_(tensor)


class _Event:
    bound_to: TorchMachine

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    def record_on(self, queues: list[Any]) -> None:
        self.tickets = [Ticket() for _ in queues]
        for queue, ticket in zip(queues, self.tickets, strict=True):
            queue.append(ticket.mark)

    def record(self) -> None:
        self.bound_to.fail("record")
        self.record_on([self.bound_to.queues[self.bound_to.current.queue]])

    def query(self) -> bool:
        return all(ticket.is_done for ticket in self.tickets)

    def synchronize(self) -> None:
        self.bound_to.run_until(self.query)


class _Cudart:
    def __init__(self, machine: TorchMachine) -> None:
        self._machine = machine

    def cudaHostRegister(self, ptr: int, size: int, flags: int) -> int:
        return self._told(self._machine.register, ptr, size, flags)

    def cudaHostUnregister(self, ptr: int) -> int:
        return self._told(self._machine.unregister, ptr)

    def _told(self, function: Any, *arguments: int) -> int:
        try:
            function(*arguments)
        except CUDARuntimeError:
            self._machine.last_error = _REFUSED
            return _REFUSED
        self._machine.fail(f"after {function.__name__}")
        return 0


class _Driver:
    """Contexts are the GPUs' numbers, from 1 on."""

    def __init__(self, machine: TorchMachine) -> None:
        self._machine = machine

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, active: Any) -> int:
        active._obj.value = device.value in self._machine.used
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self._machine.device_id + 1
        return 0

    def cuCtxRecordEvent(self, context: Any, event: _Event) -> int:
        try:
            self._machine.fail("cuCtxRecordEvent")
        except CUDARuntimeError:
            return _REFUSED
        device_id = context.value - 1
        event.record_on([q for at, q in self._machine.queues.items() if at[0] == device_id])
        return 0


def install(monkeypatch: pytest.MonkeyPatch, machine: TorchMachine) -> _Driver:
    """Put it in the place of torch's; gives CUDA's driver."""

    class Event(_Event):
        bound_to = machine

    @contextlib.contextmanager
    def device(number: int) -> Iterator[None]:
        before = machine.device_id
        machine.set_device(number)
        yield
        machine.set_device(before)

    def ones(*size: int, device: Any) -> None:
        assert device == "cuda"
        error, machine.last_error = machine.last_error, 0
        if error:
            raise RuntimeError(f"cudaError {error}")

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return machine.is_pinned(tensor.data_ptr(), max(tensor.nbytes, 1))

    def pin_memory(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        return machine.pinned_copy(tensor)

    cudart = _Cudart(machine)
    if hasattr(torch, "accelerator"):  # since 2.6
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    for owner, name, value in [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "device_count", lambda: machine.n_devices),
        (torch.cuda, "cudart", lambda: cudart),
        (torch.cuda, "device", device),
        (torch.cuda, "Event", Event),
        (torch.cuda, "synchronize", machine.finish),
        (torch, "ones", ones),
        (torch.Tensor, "is_pinned", is_pinned),
        (torch.Tensor, "pin_memory", pin_memory),
    ]:
        monkeypatch.setattr(owner, name, value)
    return _Driver(machine)
