"""Batches that are born in pinned memory: slots registered with CUDA, through torch's binding."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
from typing import Any

import torch

from fastiter._device.pinned import PORTABLE, Registration
from fastiter._ring.arena import Arena
from fastiter._util.concurrency import WeakObjects


@functools.cache
def cuda_driver() -> Any:
    """CUDA's driver, if it can record an event behind all streams of a GPU (12.5 and newer); else
    None."""
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        return driver if driver.cuCtxRecordEvent else None
    return None


class _TorchCuda:
    error: type[Exception] = RuntimeError

    def register(self, address: int, nbytes: int) -> None:
        self._check(torch.cuda.cudart().cudaHostRegister(address, nbytes, PORTABLE))

    def unregister(self, address: int) -> None:
        self._check(torch.cuda.cudart().cudaHostUnregister(address))

    def _check(self, result: Any) -> None:
        if int(result) != 0:
            # The program's next kernel would raise this error, which CUDA keeps for it.
            with contextlib.suppress(RuntimeError):
                torch.ones(1, device="cuda")
            raise RuntimeError(f"cudaError {int(result)}")


class PinnedSlots(Registration):
    """The registration of a `BatchScheduler` whose batches a program copies to GPUs by itself.

    The program may copy on any stream of any GPU, as torch's own pinned memory allows, and torch
    reports copies to its own allocator only. So a slot waits for all work that the GPUs got before
    the `next()` after the end of the slot's last view.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__(_TorchCuda(), arena)
        _living.add(self)

    def mark(self) -> list[torch.cuda.Event]:
        """Events behind all that the GPUs were given until now."""
        n_devices = torch.cuda.device_count() if self._ranges else 0
        return [_event_of(device) for device in range(n_devices) if _is_used(device)]

    def is_done(self, mark: list[torch.cuda.Event]) -> bool:
        return all(event.query() for event in mark)

    def keep(self, addresses: set[int]) -> None:
        """Wait for pending copies, and unregister all slots but those at these addresses."""
        with contextlib.suppress(RuntimeError):  # CUDA's context is lost
            for event in self.mark():
                event.synchronize()
        super().keep(addresses)


def _is_used(device: int) -> bool:
    """Whether this process has given a GPU anything to do."""
    driver, handle = cuda_driver(), ctypes.c_int()
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), device)
    driver.cuDevicePrimaryCtxGetState(handle, ctypes.byref(flags), ctypes.byref(is_active))
    return bool(is_active.value)


def _event_of(device: int) -> torch.cuda.Event:
    """An event behind all work that a GPU got, on any stream."""
    driver, context = cuda_driver(), ctypes.c_void_p()
    with torch.cuda.device(device):
        event = torch.cuda.Event()
        event.record()  # makes it
        driver.cuCtxGetCurrent(ctypes.byref(context))
        if driver.cuCtxRecordEvent(context, event) != 0:
            torch.cuda.synchronize()
    return event


def pinned_slots(arena: Arena) -> PinnedSlots | None:
    """Registration of the slots of an arena; None if CUDA is missing or too old."""
    if not torch.cuda.is_available() or cuda_driver() is None:
        return None
    return PinnedSlots(arena)


_living: WeakObjects[PinnedSlots] = WeakObjects()


@atexit.register
def _close_all() -> None:
    """While CUDA still works."""
    for slots in _living:
        slots.close()
