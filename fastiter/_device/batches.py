"""Batches of an iterator, sent to a GPU."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

from fastiter._device.cupy import import_cupy_for
from fastiter._device.pinned import Registration
from fastiter._device.transfer import AsyncTransfer, Sent
from fastiter._ring.arena import Arena
from fastiter._util.concurrency import WeakObjects

_living: WeakObjects[BatchTransfer] = WeakObjects()


class PendingBatch:
    """A batch on its way to a GPU."""

    __slots__ = ("_make", "_sent")

    def __init__(self, sent: Sent, make: Callable[[list[Any]], Any]) -> None:
        self._sent = sent
        self._make = make

    def hand_out(self) -> Any:
        """The batch, for the stream that is the GPU's current one now. Once only."""
        return self._make(self._sent.hand_out())


class BatchTransfer:
    """Copies the batches of one iterator to a GPU, from where they lie if it can read that.

    Used under the iterator's lock, except for `close`.

    Parameters
    ----------
    device_id : int
        CUDA's number of the GPU.

    Raises
    ------
    RuntimeError
        If CuPy or the GPU is missing.
    """

    def __init__(self, device_id: int) -> None:
        self._cupy = import_cupy_for(device_id)
        self._device_id = device_id
        self._arena: Arena | None = None
        self._registration: Registration | None = None
        self._transfer = AsyncTransfer(device_id)
        self._pid = os.getpid()
        self._beginner: int | None = None  # the thread that is amid `begin`
        self._is_to_close = False
        _living.add(self)

    def use_arena(self, arena: Arena) -> None:
        """Have batches in this arena copied from where they lie."""
        if arena is self._arena:
            return
        self._transfer.wait(0)
        self._unregister()
        self._arena = arena
        self._registration = Registration(self._cupy, self._device_id, arena)
        self._transfer.may_borrow = self._registration.may_borrow

    def begin(self, batch: Any) -> PendingBatch:
        """Begin to copy a batch: an array or number, or a list, tuple or dict of these.

        Raises
        ------
        TypeError
            If it is something else.
        """
        arrays, make = parts_of(batch)
        self._beginner = threading.get_ident()
        try:
            return PendingBatch(self._transfer.begin(arrays), make)
        finally:
            self._beginner = None
            if self._is_to_close:
                self.close()

    def send(self, batch: Any) -> Any:
        """Begin to copy a batch, and give it to the GPU's current stream at once."""
        return self.begin(batch).hand_out()

    def poll(self) -> int:
        """Release the slots of batches that have been copied; returns how many are left."""
        return self._transfer.poll()

    def wait(self, n_left: int) -> None:
        """Block until the slots of at most ``n_left`` batches are still being copied."""
        self._transfer.wait(n_left)

    def close(self) -> None:
        """Block until all copies have ended, and give back what they needed on the host.

        Batches stay valid. Does nothing in a forked process. Called by a signal handler amid
        `begin`, it leaves all that to the end of `begin`.
        """
        if self._pid != os.getpid():
            return
        self._is_to_close = self._beginner == threading.get_ident()
        if self._is_to_close:
            return
        self._transfer.close()
        self._unregister()

    def _unregister(self) -> None:
        self._transfer.may_borrow = None
        if self._registration is not None:
            self._registration.close()
        self._registration = self._arena = None


def parts_of(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The arrays of a batch, and what makes the batch of such a list again."""
    if isinstance(batch, dict):
        keys = list(batch)
        return list(batch.values()), lambda arrays: dict(zip(keys, arrays, strict=True))
    if isinstance(batch, (list, tuple)):
        return list(batch), type(batch)
    return [batch], lambda arrays: arrays[0]


@atexit.register
def _close_all() -> None:
    """While CuPy still works: this module is imported after it, so this runs before its end."""
    for transfer in _living:
        transfer.close()
