"""Slots that a GPU reads where they lie: the arena's memory, registered with CUDA."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter._device.cupy import on_device
from fastiter._ring.arena import Arena
from fastiter._ring.lease import Lease
from fastiter._util.warn import warn_caller

_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every GPU of the process
_SWITCH = "FASTITER_REGISTER"

_COST = (
    "batches are copied into pinned memory first, by the thread that calls next(): at some 11 GB/s "
    "(on one H200), where a GPU reads registered memory at 55 GB/s by itself"
)


class Registration:
    """The slots of one arena that are registered with CUDA, each as one range.

    A slot is registered when the first batch in it goes to a GPU. One that has grown since is
    registered anew, as a whole, since a copy must not reach from one range into another; at that
    time its batch is the only one that can be copied from it, and has not been yet.

    It keeps the mapping: memory must be unregistered first. Used under the iterator's lock.

    Parameters
    ----------
    cupy : module
    device_id : int
        A GPU whose context may be used; what is registered there is so for all.
    arena : Arena
        Mapped by this process.
    """

    def __init__(self, cupy: Any, device_id: int, arena: Arena) -> None:
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._device_id = device_id
        self.arena: Arena | None = arena
        self._ranges: dict[int, int] = {}  # bytes registered, by address
        self._is_given_up = os.environ.get(_SWITCH, "") == "0"
        self._pid = os.getpid()

    def covers(self, array: np.ndarray[Any, Any]) -> bool:
        """Whether a contiguous array lies in a slot of the arena, leased and registered.

        Registers the slot if need be, which takes milliseconds. If CUDA refuses that, it is told in
        a RuntimeWarning, once, and no slot is tried again.
        """
        lease = lease_of(array)
        if lease is None or lease.arena is not self.arena:
            return False
        # The committed bytes, of which there are no more and no fewer as long as it is leased.
        slot = np.frombuffer(lease, np.uint8)  # type: ignore[call-overload]
        address, nbytes = slot.ctypes.data, slot.nbytes
        if self._ranges.get(address, 0) < nbytes and not self._register(address, nbytes):
            return False
        start = array.ctypes.data
        return bool(address <= start and start + array.nbytes <= address + nbytes)

    def close(self) -> None:
        """Unregister everything. No copy from there is under way any more.

        Does nothing in a forked process.
        """
        if self._pid != os.getpid():
            return
        self._is_given_up = True
        with contextlib.suppress(self._runtime.CUDARuntimeError), self._on_device():
            for address in list(self._ranges):
                self._unregister(address)
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
            # CUDA would go on reading pages that were given back to the system.
            self.arena.keeps_pages = True
            with self._on_device():
                self._runtime.hostRegister(address, nbytes, _PORTABLE)
            self._ranges[address] = nbytes
            # Memory that a device may read is commonly kept from forked children. It is shared, so
            # a fork copies no page of it, and workers that are forked later need it.
            self.arena.do_fork()
        except (self._runtime.CUDARuntimeError, OSError) as error:
            if address in self._ranges:
                self._unregister(address)
            self._is_given_up = True
            warn_caller(
                f"CUDA cannot register the {nbytes} bytes of shared memory that hold a batch "
                f"({error}), so {_COST}. Likely causes: a limit on locked memory (ulimit -l), or a "
                f"container without the permission. {_SWITCH}=0 in the environment keeps from "
                "trying, and from this warning",
                RuntimeWarning,
            )
            return False
        return True

    def _on_device(self) -> contextlib.AbstractContextManager[None]:
        return on_device(self._cupy, self._device_id)

    def _unregister(self, address: int) -> None:
        del self._ranges[address]
        with contextlib.suppress(self._runtime.CUDARuntimeError):  # then CUDA is lost altogether
            self._runtime.hostUnregister(address)


def lease_of(array: Any) -> Lease | None:
    """The lease whose slot holds an array, or None."""
    owner = array
    while isinstance(owner, (np.ndarray, memoryview)):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, Lease) else None
