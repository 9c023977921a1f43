"""The arena's slots, registered with CUDA so that a GPU reads them itself."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fastiter._device.cupy import on_device
from fastiter._ring.arena import Arena
from fastiter._ring.lease import Lease
from fastiter._util.warn import warn_caller

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every GPU of the process
_SWITCH = "FASTITER_REGISTER"

_COST = (
    "batches are copied into pinned memory first, by the thread that calls next(): at about 8 "
    "GB/s (beside an H100), while a GPU reads registered memory at 55 GB/s by itself"
)


class Cuda(Protocol):
    """CUDA's runtime, as a library binds it."""

    error: type[Exception]

    def register(self, address: int, nbytes: int) -> None:
        """Pin memory for all GPUs. Raises `error`."""

    def unregister(self, address: int) -> None:
        """Likewise the opposite."""


class CupyCuda:
    """CuPy's. ``device_id`` is a GPU whose context may be used."""

    def __init__(self, cupy: Any, device_id: int) -> None:
        self._cupy = cupy
        self._device_id = device_id
        self.error: type[Exception] = cupy.cuda.runtime.CUDARuntimeError

    def register(self, address: int, nbytes: int) -> None:
        with on_device(self._cupy, self._device_id):
            self._cupy.cuda.runtime.hostRegister(address, nbytes, PORTABLE)

    def unregister(self, address: int) -> None:
        with on_device(self._cupy, self._device_id):
            self._cupy.cuda.runtime.hostUnregister(address)


class Registration:
    """The slots of one arena that are registered with CUDA, each as one range.

    A slot is registered when its first batch goes to a GPU. If it has grown since, it is registered
    again as a whole, since a copy must not reach from one range into another; at that time no copy
    from it is pending. It keeps the mapping: memory must be unregistered before it is unmapped.

    Used under the iterator's lock.
    """

    def __init__(self, cuda: Cuda, arena: Arena) -> None:
        self._cuda = cuda
        self.arena: Arena | None = arena
        self._ranges: dict[int, int] = {}  # bytes registered, by address
        self._is_given_up = os.environ.get(_SWITCH, "") == "0"
        self._pid = os.getpid()

    def cover(self, address: int, nbytes: int) -> bool:
        """Register a slot if it is not; whether it is now.

        That takes milliseconds. If CUDA refuses, a RuntimeWarning says so once, and no slot is
        tried again.
        """
        return self._ranges.get(address, 0) >= nbytes or self._register(address, nbytes)

    def covers(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether a contiguous array lies in a leased slot of the arena, which is registered."""
        lease = lease_of(array)
        if lease is None or lease.arena is not self.arena:
            return False
        # The committed bytes, whose number stays the same as long as the slot is leased.
        slot = np.frombuffer(lease, np.uint8)  # type: ignore[call-overload]
        address, nbytes = slot.ctypes.data, slot.nbytes
        if not self.cover(address, nbytes):
            return False
        start = array.ctypes.data
        return bool(address <= start and start + array.nbytes <= address + nbytes)

    def keep(self, addresses: set[int]) -> None:
        """Unregister all slots but those at these addresses, once no copy is pending."""
        for address in self._ranges.keys() - addresses:
            self._unregister(address)

    def close(self) -> None:
        """Unregister everything, once no copy is pending. Does nothing in a forked process."""
        if self._pid != os.getpid():
            return
        self._is_given_up = True
        self.keep(set())
        self.arena = None

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():
            self.close()

    def _register(self, address: int, nbytes: int) -> bool:
        if self._is_given_up or self.arena is None:
            return False
        try:
            if address in self._ranges:
                self._unregister(address)
            # Otherwise CUDA would read pages that were given back to the system.
            self.arena.keeps_pages = True
            self._ranges[address] = nbytes  # first: an interrupt must leave no range unknown
            self._cuda.register(address, nbytes)
            # Drivers commonly hide memory that a device may read from forked children. It is
            # shared, so a fork copies no page of it, and workers that are forked later need it.
            self.arena.do_fork()
        except BaseException as error:
            self._unregister(address)
            if not isinstance(error, (self._cuda.error, OSError)):
                raise
            self._is_given_up = True
            warn_caller(
                f"CUDA cannot register the {nbytes} bytes of shared memory that hold a batch "
                f"({error}), so {_COST}. Likely causes: a limit on locked memory (ulimit -l), or a "
                f"container without the permission. {_SWITCH}=0 in the environment switches "
                "registration, and this warning, off",
                RuntimeWarning,
            )
            return False
        return True

    def _unregister(self, address: int) -> None:
        with contextlib.suppress(self._cuda.error):  # its context is lost, or it had refused
            self._cuda.unregister(address)
        self._ranges.pop(address, None)


def lease_of(array: Any) -> Lease | None:
    """The lease whose slot holds an array, or None."""
    owner = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, Lease) else None
