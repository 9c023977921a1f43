"""Copies of batches to one GPU that the host does not wait for."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastiter._device.cupy import CUT_OFF, allocate, import_cupy_for, leak_after_fork, on_device
from fastiter._device.devices import GpuDevice
from fastiter._device.pinned import CupyCuda, Registration
from fastiter._ring.arena import Arena
from fastiter._util.concurrency import WeakObjects

_N_STAGING = 3  # While one staging buffer is filled, copies from the others may be pending.

# How many calls' worth of dropped device memory may stay unused although no copy waits for it.
# With 1, the copy of batch k waits for the end of the work on batch k-2 at most, so it runs during
# that on batch k-1; more would cost memory and gain nothing.
_N_RETIRED = 1

_ALIGNMENT = 64  # bytes: each field begins at a cache line
_COPIED_DTYPES = "?bhilqBHILQefdFD"  # characters of the dtypes that CuPy's arrays can have

# By GPU, for all transfers that are given no stream. They are never destroyed: CuPy's pool files
# free memory under the handle of the stream that allocated it, and CUDA may give the handle of a
# destroyed stream to a new one, which waits for nothing that the old one waited for.
_copy_streams: dict[int, Any] = {}

_living: WeakObjects[AsyncTransfer] = WeakObjects()


class _Staging:
    """Pinned memory for the arrays of one batch, and the event behind the copies out of it."""

    __slots__ = ("copied", "memory", "nbytes")

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = cupy.cuda.alloc_pinned_memory(nbytes)
        self.copied: Any = None


class _DeviceBuffer:
    """Owner of an array's device memory, which goes back to the transfer with the last view.

    ``compute`` is the stream on which the array is used; None before the array is handed out.
    """

    __slots__ = ("compute", "memory", "transfer")

    def __init__(self, transfer: AsyncTransfer, memory: Any) -> None:
        self.transfer = transfer
        self.memory = memory
        self.compute: Any = None

    def __del__(self) -> None:
        self.transfer.take_back(self.memory, self.compute)


class PendingBatch:
    """A batch on its way to a GPU, from `AsyncTransfer.begin`."""

    __slots__ = ("_arrays", "_copied", "_device_buffers", "_made", "_on_device", "_rebuild")

    def __init__(
        self,
        on_device: Callable[[], contextlib.AbstractContextManager[Any]],
        rebuild: Callable[[list[Any]], Any],
    ) -> None:
        self._on_device = on_device
        self._rebuild = rebuild
        self._arrays: list[Any] = []
        self._device_buffers: list[_DeviceBuffer] = []
        self._copied: Any = None  # the event behind the copies
        self._made: Any = None  # the stream on which CuPy makes the other arrays, and an event

    def hand_out(self, compute_stream: Any = None) -> Any:
        """Return the batch, for use on a stream, by default this GPU's current one.

        Later work on that stream runs after the copies. Does not block. A second call,
        after an interrupt in the first one, gives the same batch.
        """
        with self._on_device() as current:
            compute = current if compute_stream is None else compute_stream
            for device_buffer in self._device_buffers:
                device_buffer.compute = compute
            if self._copied is not None:
                compute.wait_event(self._copied)
            if self._made is not None and self._made[0].ptr != compute.ptr:
                compute.wait_event(self._made[1])
        return self._rebuild(self._arrays)


class AsyncTransfer:
    """Copies batches to one GPU, on a stream of its own.

    Three orders have to be kept:

    - *The copy before its use.* The compute stream waits for the event behind the copy.
    - *The copy before the host's memory is written again.* Arrays are copied through pinned
      buffers. A buffer is filled again, or given back to CuPy, when the event behind its copies is
      done. There are three; while all of their copies are pending, the host waits for the oldest.
      Arrays that lie in the arena are copied from there if CUDA can register it, and tracked, with
      what owns their memory, until that event is done.
    - *The use before the device memory is written again.* CuPy's pool gives memory back to the
      stream that was current when it was allocated, without waiting for any other. So destinations
      are allocated with the copy stream as the current one, which alone gets them again, and each
      has an owner that the pool does not know. When the last array over it is gone, the memory is
      set aside; the next call records an event on the compute stream, behind all that used the
      array, and the memory goes to the pool when that event is done. Memory set aside before
      the last call goes there at once, after the copy stream was made to wait for the event: so
      device memory is bounded, and the host does not wait.

    "Use" means on the compute stream; for other streams that use the arrays, the caller makes the
    compute stream wait before the arrays are dropped, as always in CuPy.

    Copies run on ``stream``, by default a stream that all transfers to this GPU share. RuntimeError
    if CuPy or the GPU is missing, ValueError if ``stream`` belongs to another GPU.
    """

    def __init__(self, device_id: int, stream: Any = None) -> None:
        self._pid = os.getpid()
        self._cupy = import_cupy_for(device_id)
        self._device = GpuDevice(device_id)
        self._registration: Registration | None = None
        self._check_stream("stream", stream)
        if stream is None:
            stream = _copy_streams.get(device_id)
        if stream is None:
            with on_device(self._cupy, device_id):
                # Else the work on the default stream would wait for copies, and copies for it.
                stream = self._cupy.cuda.Stream(non_blocking=True)
            stream = _copy_streams.setdefault(device_id, stream)
        self._stream = stream
        self._staging: list[_Staging] = []  # the oldest copies first
        self._tracked: deque[tuple[Any, list[Any]]] = deque()  # events, and what they release
        self._dropped: deque[tuple[Any, Any]] = deque()  # memory, and the stream that used it
        self._retired: deque[tuple[list[Any], list[Any]]] = deque()  # events, and memory
        self._lock = threading.RLock()  # a signal handler may close it in the middle of a call
        self._beginning_thread: int | None = None  # the thread that is in `begin`
        self._closes_after_begin = False
        self._is_closed = False
        _living.add(self)

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        # In a forked child: garbage of its parent that was found before any handler of the fork.
        if not _exits() and self._pid != os.getpid():
            leak_after_fork(self)

    def use_arena(self, arena: Arena) -> None:
        """Copy batches that lie in this arena from there, and from no other arena."""
        if self._registration is None or self._registration.arena is not arena:
            self.wait(0)
            self._unregister()
            self._registration = Registration(CupyCuda(self._cupy, self._device.id), arena)

    def send(self, batch: Any, compute_stream: Any = None) -> Any:
        """Begin to copy a batch, and hand it out at once; see `begin` and `PendingBatch.hand_out`.

        ValueError if ``compute_stream`` belongs to another GPU.
        """
        self._check_stream("compute_stream", compute_stream)
        return self.begin(batch).hand_out(compute_stream)

    def begin(self, batch: Any) -> PendingBatch:
        """Begin to copy a batch to the GPU: an array or number, or a list, tuple or dict of these.

        Arrays of the host are copied, and may change as soon as this returns, except those in the
        arena. Arrays of a GPU, and those of dtypes that CuPy lacks, go as `GpuDevice.send` moves
        them. TypeError if it is something else, RuntimeError in a process that was forked since.
        Errors of CUDA are passed on; the transfer can still be used.
        """
        if self._pid != os.getpid():
            raise RuntimeError(CUT_OFF)
        with self._lock, self._on_device() as current:
            self._beginning_thread = threading.get_ident()
            try:
                self._forget_copied()
                self._retire(_N_RETIRED)
                arrays, rebuild = _parts_of(batch)
                pending = PendingBatch(self._on_device, rebuild)
                host = [array for array in arrays if _can_copy(array)]
                copies = iter(self._copy(host, pending) if host else ())
                pending._arrays = [
                    next(copies) if _can_copy(array) else self._device.send(array)
                    for array in arrays
                ]
                if len(host) < len(arrays):
                    pending._made = current, self._record(current)
                return pending
            finally:
                self._beginning_thread = None
                if self._closes_after_begin:
                    self.close()

    def poll(self) -> int:
        """Release arrays in the arena that have been copied; return how many batches are left."""
        if self._pid != os.getpid():
            return 0
        with self._lock:
            self._forget_copied()
            return len(self._tracked)

    def wait(self, n_left: int) -> None:
        """Block until at most ``n_left`` batches are still being copied from the arena.

        Signals do not interrupt it: it takes as long as the GPU is behind.
        """
        if self._pid != os.getpid():
            return
        with self._lock:
            while len(self._tracked) > n_left:
                self._tracked[0][0].synchronize()
                self._forget_copied()

    def take_back(
        self, memory: Any, compute: Any, _exits: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Take device memory whose arrays are gone; called by their owner, in any thread.

        While the transfer is open this only sets the memory aside, since a finalizer may run in
        the middle of any call, CUDA's included.
        """
        self._dropped.append((memory, compute))
        if self._is_closed and not _exits() and self._pid == os.getpid():
            with self._on_device():
                events, dropped = self._events_behind_dropped()
                self._wait_for(events)
                del dropped  # goes to CuPy's pool, now that the stream waits

    def close(self) -> None:
        """Block until all copies have ended, and give back the memory that they needed.

        Batches stay valid. Does nothing in a forked process. A signal handler that calls it in the
        middle of `begin` leaves all that to the end of `begin`.
        """
        if self._pid != os.getpid():
            return
        self._closes_after_begin = self._beginning_thread == threading.get_ident()
        if self._closes_after_begin:
            return
        self._is_closed = True
        lost = self._cupy.cuda.runtime.CUDARuntimeError  # nothing runs in CUDA any more
        with self._lock:
            with contextlib.suppress(lost), self._on_device():
                for copied in [tracked for tracked, _ in self._tracked]:
                    copied.synchronize()
                for staging in self._staging:
                    staging.copied.synchronize()
                self._retire(0)
            self._tracked.clear()
            self._staging.clear()
            self._unregister()

    def _unregister(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.close()

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[Any]:
        """Make the GPU the current one; give its current stream."""
        with on_device(self._cupy, self._device.id):
            yield self._cupy.cuda.get_current_stream()

    def _copy(self, arrays: list[np.ndarray[Any, Any]], pending: PendingBatch) -> list[Any]:
        ours = self._registration
        in_place = [
            ours is not None
            and array.flags.c_contiguous
            and array.dtype.isnative
            and ours.covers(array)
            for array in arrays
        ]
        offsets = [0]
        for array, stays in zip(arrays, in_place, strict=True):
            nbytes = 0 if stays else array.nbytes
            offsets.append(offsets[-1] + nbytes + -nbytes % _ALIGNMENT)
        n_staged = offsets.pop()
        staging = self._idle_staging(n_staged) if n_staged else None
        there = []
        try:
            for array, stays, offset in zip(arrays, in_place, offsets, strict=True):
                target = self._empty(array.shape, array.dtype.newbyteorder("="), pending)
                source = array
                if not stays and staging is not None:
                    source = np.frombuffer(staging.memory, target.dtype, array.size, offset)
                    source = source.reshape(array.shape)
                    source[...] = array
                target.set(source, stream=self._stream)
                there.append(target)
            copied = self._record(self._stream)
            if staging is not None:
                staging.copied = copied
                self._staging.append(staging)
            if any(in_place):
                self._tracked.append((copied, list(itertools.compress(arrays, in_place))))
        except BaseException:
            # Some copies may have begun. If the stream cannot be waited for, CUDA's context is
            # lost, and nothing runs in it any more.
            with contextlib.suppress(Exception):
                self._stream.synchronize()
            raise
        pending._copied = copied
        return there

    def _forget_copied(self) -> None:
        with contextlib.suppress(IndexError):  # none are left, also where a signal handler closes
            while self._tracked[0][0].done:
                self._tracked.popleft()

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], pending: PendingBatch) -> Any:
        cuda = self._cupy.cuda
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        memory = allocate(self._cupy, nbytes, self._stream)
        device_buffer = _DeviceBuffer(self, memory)
        pending._device_buffers.append(device_buffer)
        borrowed = cuda.UnownedMemory(memory.ptr, nbytes, device_buffer, self._device.id)
        return self._cupy.ndarray(shape, dtype, cuda.MemoryPointer(borrowed, 0))

    def _idle_staging(self, nbytes: int) -> _Staging:
        """Take a staging buffer that nothing is copied from."""
        idle = [staging for staging in self._staging if staging.copied.done]
        if not idle and len(self._staging) == _N_STAGING:
            idle = self._staging[:1]
            idle[0].copied.synchronize()
        if not idle:
            return _Staging(self._cupy, nbytes)
        big = [staging for staging in idle if staging.nbytes >= nbytes]
        found = min(big or idle, key=lambda staging: staging.nbytes)
        self._staging.remove(found)
        if found.nbytes < nbytes:  # with room to grow: CuPy keeps memory of each size that it gave
            found = _Staging(self._cupy, nbytes + nbytes // 4)
        return found

    def _retire(self, n_kept: int) -> None:
        """Give memory of dropped arrays to CuPy's pool, except that of the ``n_kept`` last calls
        whose work has not ended."""
        events, dropped = self._events_behind_dropped()
        if dropped:
            self._retired.append((events, dropped))
        while self._retired:
            events, _ = self._retired[0]
            if len(self._retired) > n_kept:
                self._wait_for(events)
            elif not all(event.done for event in events):
                break
            self._retired.popleft()

    def _events_behind_dropped(self) -> tuple[list[Any], list[Any]]:
        """Return events behind all uses of the arrays that are gone, and these arrays' memory."""
        taken: list[tuple[Any, Any]] = []
        with contextlib.suppress(IndexError):  # finalizers may add to it, other threads take
            while True:
                taken.append(self._dropped.popleft())
        streams = {stream.ptr: stream for _, stream in taken if stream is not None}
        try:
            events = [self._record(stream) for stream in streams.values()]
        except BaseException:
            self._dropped.extend(taken)  # nothing waits for its use yet
            raise
        return events, [memory for memory, _ in taken]

    def _record(self, stream: Any) -> Any:
        # Without times; a host that waits for it sleeps and does not poll.
        event = self._cupy.cuda.Event(block=True, disable_timing=True)
        event.record(stream)
        return event

    def _wait_for(self, events: list[Any]) -> None:
        for event in events:
            self._stream.wait_event(event)

    def _check_stream(self, name: str, stream: Any) -> None:
        device_id = getattr(stream, "device_id", -1)  # CUDA's default streams are of every GPU
        if device_id not in (-1, self._device.id):
            raise ValueError(
                f"{name} belongs to device {device_id}, and the batch goes to device "
                f"{self._device.id}: pass a stream of that device, or none"
            )


def _can_copy(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.char in _COPIED_DTYPES and array.size > 0


def _parts_of(batch: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """Return the arrays of a batch, and what makes a batch of such a list again."""
    if isinstance(batch, dict):
        keys = list(batch)
        return list(batch.values()), lambda arrays: dict(zip(keys, arrays, strict=True))
    if isinstance(batch, (list, tuple)):
        return list(batch), type(batch)
    return [batch], lambda arrays: arrays[0]


@atexit.register
def _close_all() -> None:
    """While CuPy still works: it was imported before this module, so this runs before its end."""
    for transfer in _living:
        transfer.close()


os.register_at_fork(after_in_child=lambda: leak_after_fork(*_living))
