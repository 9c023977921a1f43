"""Copies to one GPU that the host does not wait for."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fastiter._device.cupy import (
    CUT_OFF,
    allocate,
    import_cupy_for,
    leak_after_fork,
    new_event,
    on_device,
)
from fastiter._device.devices import GpuDevice
from fastiter._util.concurrency import lock_of_child, renew_in_child

# Staging buffers of a transfer. While one is filled, the copies from the others may still wait.
_N_STAGING = 3

# How many calls' worth of given-up device memory may stay unused although no copy waits for it.
# With 1, the copy of batch k waits for the end of the work on batch k-2 at most, so it runs beside
# that on batch k-1; more would cost memory and gain nothing.
_N_RETIRED = 1

_ALIGNMENT = 64  # bytes: fields start on cache lines of their own

_COPIED_DTYPES = "?bhilqBHILQefdFD"  # characters of the dtypes that CuPy's arrays can have

# One stream for each GPU, for all transfers that are given none. They are never destroyed: CuPy's
# pool files free memory under the handle of the stream that allocated it, and CUDA may give the
# handle of a destroyed stream to a new one, which waits for nothing that the old one waited for.
_copy_streams: dict[int, Any] = {}


class _Staging:
    """Pinned memory for the arrays of one batch, and the event behind the copies out of it."""

    __slots__ = ("copied", "memory", "nbytes")

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        self.memory = cupy.cuda.alloc_pinned_memory(nbytes)
        self.copied: Any = None


class _DeviceBuffer:
    """Owner of an array's device memory, which goes back to the transfer with the last view.

    ``compute`` is the stream on which the array is used; None as long as nobody has it.
    """

    __slots__ = ("compute", "memory", "transfer")

    def __init__(self, transfer: AsyncTransfer, memory: Any) -> None:
        self.transfer = transfer
        self.memory = memory
        self.compute: Any = None

    def __del__(self) -> None:
        self.transfer.take_back(self.memory, self.compute)


class Sent:
    """Arrays on their way to a GPU, from `AsyncTransfer.begin`.

    Attributes
    ----------
    n_staged : int
        Bytes that were copied into pinned memory first.
    """

    __slots__ = ("_arrays", "_copied", "_device_buffers", "_made", "_on_device", "n_staged")

    def __init__(self, on_device: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self._on_device = on_device
        self._arrays: list[Any] = []
        self._device_buffers: list[_DeviceBuffer] = []
        self._copied: Any = None  # the event behind the copies
        self._made: Any = None  # the stream on which CuPy makes the other arrays, and an event
        self.n_staged = 0

    def hand_out(self, compute_stream: Any = None) -> list[Any]:
        """The arrays, for use on ``compute_stream``, by default this GPU's current stream.

        What that stream is given from now on runs after the copies. Does not block. Once only.
        """
        with self._on_device() as current:
            compute = current if compute_stream is None else compute_stream
            for device_buffer in self._device_buffers:
                device_buffer.compute = compute
            if self._copied is not None:
                compute.wait_event(self._copied)
            if self._made is not None and self._made[0].ptr != compute.ptr:
                compute.wait_event(self._made[1])
        arrays, self._arrays, self._device_buffers = self._arrays, [], []
        return arrays


class AsyncTransfer:
    """Copies arrays of the host to one GPU, on a stream of its own.

    What has to happen in which order, and what sees to it:

    - *The copy before its use.* The compute stream waits for the event behind the copy.
    - *The copy before the host's memory is used again.* Arrays are copied out of pinned buffers. A
      buffer is filled again, or given back to CuPy, when the event behind its copies is done.
      There are three; if the copies out of all of them are still to come, the host waits for the
      oldest. Arrays for which ``may_borrow`` answers True are copied from where they lie, and
      tracked, with what owns their memory, until that event is done.
    - *The use before the device memory is used again.* CuPy's pool gives memory back to the stream
      that was current when it was allocated, without waiting for any other. So destinations are
      allocated with the copy stream as the current one, which alone gets them again, and each has
      an owner that the pool does not know. When the last array over it is gone, the memory is set
      aside; the next call records an event on the compute stream, behind all that used the
      array, and the memory goes to the pool when that event is done. What was set aside before
      the last call goes there at once, after the copy stream was made to wait for the event:
      so device memory is bounded, and the host does not wait.

    "Used" means on the compute stream; for other streams that use the arrays, the caller makes the
    compute stream wait before the arrays are dropped, as always in CuPy.

    Parameters
    ----------
    device_id : int
        CUDA's number of the GPU.
    stream : cupy.cuda.Stream, optional
        Where copies run. Without it they run on one that all transfers to this GPU share.

    Attributes
    ----------
    may_borrow : callable or None
        ``may_borrow(array)`` tells whether the GPU may read a contiguous array where it lies,
        and nobody will write there before it is let go. None at first: nothing may be borrowed.

    Raises
    ------
    RuntimeError
        If CuPy or the GPU is missing.
    ValueError
        If ``stream`` belongs to another GPU.
    """

    def __init__(self, device_id: int, stream: Any = None) -> None:
        self._cupy = import_cupy_for(device_id)
        self._device = GpuDevice(device_id)
        self.may_borrow: Callable[[np.ndarray[Any, Any]], bool] | None = None
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
        self._lock = threading.RLock()  # a signal handler may close it amid a call
        self._is_closed = False
        self._pid = os.getpid()
        _living.add(self)
        renew_in_child(self)

    def _after_fork(self) -> None:
        self._lock = lock_of_child(self._lock)

    def send(self, arrays: Sequence[Any], compute_stream: Any = None) -> list[Any]:
        """Begin to copy arrays to the GPU, and give them to a stream at once.

        Parameters
        ----------
        arrays
            As in `begin`.
        compute_stream : cupy.cuda.Stream, optional
            Where the results will be used; the current stream of this GPU by default. What it is
            given from now on runs after the copies.

        Returns
        -------
        list of cupy.ndarray

        Raises
        ------
        ValueError
            If ``compute_stream`` belongs to another GPU; else as `begin`.
        """
        self._check_process()
        self._check_stream("compute_stream", compute_stream)
        return self.begin(arrays).hand_out(compute_stream)

    def begin(self, arrays: Sequence[Any]) -> Sent:
        """Begin to copy arrays to the GPU.

        Parameters
        ----------
        arrays : sequence of arrays
            Those of the host are copied; they may change as soon as this returns, unless
            ``may_borrow`` says otherwise. Arrays of a GPU, and those of dtypes that CuPy lacks,
            go as `GpuDevice.send` has it.

        Raises
        ------
        RuntimeError
            In a process that was forked since. What CUDA raises is passed on; the transfer can be
            used on.
        """
        self._check_process()
        with self._lock, self._on_device() as current:
            self._untrack()
            self._retire(_N_RETIRED)
            sent = Sent(self._on_device)
            copied = [array for array in arrays if _can_copy(array)]
            copies = iter(self._copy(copied, sent) if copied else ())
            sent._arrays = [next(copies) if _can_copy(a) else self._device.send(a) for a in arrays]
            if len(copied) < len(arrays):
                sent._made = current, self._record(current)
            return sent

    def poll(self) -> int:
        """Release what copies have been made of; returns how many calls' copies have not ended."""
        with self._lock:
            self._untrack()
            return len(self._tracked)

    def wait(self, n_left: int) -> None:
        """Block until the copies out of borrowed arrays of at most ``n_left`` calls have not ended.

        Not interrupted by signals: it takes as long as the GPU is behind.
        """
        with self._lock:
            while len(self._tracked) > n_left:
                self._tracked[0][0].synchronize()
                self._tracked.popleft()

    def take_back(
        self, memory: Any, compute: Any, _exits: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Take device memory whose arrays are gone; called by their owner, in any thread.

        While the transfer is open this only sets the memory aside, since a finalizer may run in
        the middle of anything, CUDA's calls included.
        """
        self._dropped.append((memory, compute))
        if self._is_closed and not _exits() and self._pid == os.getpid():
            with self._on_device():
                events, dropped = self._events_behind_dropped()
                self._wait_for(events)
                del dropped  # goes to CuPy's pool, and no sooner

    def close(self) -> None:
        """Give memory back: the host waits for the copies that have not ended, and for no more.

        Arrays that were sent stay valid. Does nothing in a forked process.
        """
        if self._pid != os.getpid():
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

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[Any]:
        """Makes the GPU the current one; gives its current stream."""
        with on_device(self._cupy, self._device.id):
            yield self._cupy.cuda.get_current_stream()

    def _copy(self, arrays: list[np.ndarray[Any, Any]], sent: Sent) -> list[Any]:
        borrowed = [self._borrows(array) for array in arrays]
        offsets = [0]
        for array, is_borrowed in zip(arrays, borrowed, strict=True):
            nbytes = 0 if is_borrowed else array.nbytes
            offsets.append(offsets[-1] + nbytes + -nbytes % _ALIGNMENT)
        sent.n_staged = offsets.pop()
        staging = self._idle_staging(sent.n_staged) if sent.n_staged else None
        copied = new_event(self._cupy)
        there = []
        try:
            for array, is_borrowed, offset in zip(arrays, borrowed, offsets, strict=True):
                target = self._empty(array.shape, array.dtype.newbyteorder("="), sent)
                source = array
                if not is_borrowed and staging is not None:
                    source = np.frombuffer(staging.memory, target.dtype, array.size, offset)
                    source = source.reshape(array.shape)
                    source[...] = array
                target.set(source, stream=self._stream)
                there.append(target)
            copied.record(self._stream)
            if staging is not None:
                staging.copied = copied
                self._staging.append(staging)
            if any(borrowed):
                kept = [a for a, is_borrowed in zip(arrays, borrowed, strict=True) if is_borrowed]
                self._tracked.append((copied, kept))
        except BaseException:
            # Some copies may have begun. If the stream cannot be waited for, CUDA's context is
            # lost, and nothing runs in it any more.
            with contextlib.suppress(Exception):
                self._stream.synchronize()
            raise
        sent._copied = copied
        return there

    def _borrows(self, array: np.ndarray[Any, Any]) -> bool:
        return (
            self.may_borrow is not None
            and array.flags.c_contiguous
            and array.dtype.isnative
            and self.may_borrow(array)
        )

    def _untrack(self) -> None:
        while self._tracked and self._tracked[0][0].done:
            self._tracked.popleft()

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], sent: Sent) -> Any:
        cuda = self._cupy.cuda
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        memory = allocate(self._cupy, nbytes, self._stream)
        device_buffer = _DeviceBuffer(self, memory)
        sent._device_buffers.append(device_buffer)
        borrowed = cuda.UnownedMemory(memory.ptr, nbytes, device_buffer, self._device.id)
        return self._cupy.ndarray(shape, dtype, cuda.MemoryPointer(borrowed, 0))

    def _idle_staging(self, nbytes: int) -> _Staging:
        """A staging buffer that nothing is copied from, taken out of the pool."""
        idle = [staging for staging in self._staging if staging.copied.done]
        if not idle and len(self._staging) == _N_STAGING:
            idle = self._staging[:1]
            idle[0].copied.synchronize()
        if not idle:
            return _Staging(self._cupy, nbytes)
        big = [staging for staging in idle if staging.nbytes >= nbytes]
        found = min(big or idle, key=lambda staging: staging.nbytes)
        self._staging.remove(found)
        if found.nbytes < nbytes:  # with room to grow: CuPy keeps each size that it ever gave
            found = _Staging(self._cupy, nbytes + nbytes // 4)
        return found

    def _retire(self, n_kept: int) -> None:
        """Give memory of dropped arrays to CuPy's pool, all but that of the ``n_kept`` last calls
        with work that has not ended."""
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
        """The memory of arrays that are gone, and events behind all that used them."""
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
        event = new_event(self._cupy)
        event.record(stream)
        return event

    def _wait_for(self, events: list[Any]) -> None:
        for event in events:
            self._stream.wait_event(event)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(CUT_OFF)

    def _check_stream(self, name: str, stream: Any) -> None:
        device_id = getattr(stream, "device_id", -1)  # CUDA's default streams are of every GPU
        if device_id not in (-1, self._device.id):
            raise ValueError(
                f"{name} belongs to device {device_id}, and the batch goes to device "
                f"{self._device.id}: pass a stream of that device, or none"
            )


def _can_copy(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.char in _COPIED_DTYPES and array.size > 0


_living: weakref.WeakSet[AsyncTransfer] = weakref.WeakSet()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: leak_after_fork(*_living))
