"""Devices: what a ``device`` argument means, and how arrays get there.

The only module that imports CuPy, and only when a GPU is asked for.
"""

from __future__ import annotations

import contextlib
import numbers
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

_WHAT_IS_A_DEVICE = (
    "None, an integer (negative: the host; 0 and above: that GPU), 'cpu', '@numpy', 'cuda', "
    "'cuda:<id>', '@cupy:<id>' or a cupy.cuda.Device"
)

_INSTALL_CUPY = "pip install 'fastiter[cuda12]' (or 'fastiter[cuda13]'), or use device=-1"


class Device:
    """A place for arrays. `CpuDevice` and `GpuDevice` are the two kinds."""

    name: str  #: '@numpy' or '@cupy:<id>'

    @property
    def xp(self) -> Any:
        """Module of the arrays that live here: numpy or cupy."""
        raise NotImplementedError

    def send(self, arrays: Any) -> Any:
        """Move an array, or a list or tuple of arrays (None among them), to this device.

        Arrays that are there already are returned as they are.

        Raises
        ------
        TypeError
            If something is neither an array nor a number or string.
        """
        if not isinstance(arrays, (list, tuple)):
            return self._send_one(arrays)
        sent: dict[int, Any] = {}  # an array that occurs twice is moved once
        for array in arrays:
            if id(array) not in sent:
                sent[id(array)] = self._send_one(array)
        return type(arrays)([sent[id(array)] for array in arrays])

    def _send_one(self, array: Any) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class CpuDevice(Device):
    """The host: NumPy arrays."""

    name = "@numpy"

    @property
    def xp(self) -> Any:
        return np

    def _send_one(self, array: Any) -> Any:
        if array is None or isinstance(array, np.ndarray):
            return array
        if is_cupy_array(array):
            with array.device:
                return array.get()
        return _scalar_array(array)


class GpuDevice(Device):
    """One GPU: CuPy arrays.

    Parameters
    ----------
    device_id : int
        CUDA's number of the device.

    Raises
    ------
    RuntimeError
        If CuPy is not installed.
    """

    def __init__(self, device_id: int) -> None:
        self._cupy = import_cupy(f"device {device_id}")
        self.id = device_id
        self.name = f"@cupy:{device_id}"

    @property
    def xp(self) -> Any:
        return self._cupy

    def _send_one(self, array: Any) -> Any:
        if array is None:
            return None
        if is_cupy_array(array) and array.device.id == self.id:
            return array
        if not is_cupy_array(array) and not isinstance(array, np.ndarray):
            array = _scalar_array(array)
        with self._cupy.cuda.Device(self.id):
            return self._cupy.array(array)

    def __reduce__(self) -> tuple[Any, ...]:
        return GpuDevice, (self.id,)


def resolve(device: Any) -> Any:
    """The device that an argument names.

    Parameters
    ----------
    device : None, int, str, cupy.cuda.Device, or an object with ``xp`` and ``send``
        None means to leave arrays where they are. Objects with ``xp`` and ``send``, such as
        Chainer's devices, are taken as they are.

    Returns
    -------
    Device or None

    Raises
    ------
    TypeError, ValueError
        If ``device`` names no device.
    RuntimeError
        If it names a GPU and CuPy is not installed.
    """
    if device is None or isinstance(device, Device):
        return device
    if isinstance(device, numbers.Integral) and not isinstance(device, bool):
        return CpuDevice() if device < 0 else GpuDevice(int(device))
    if isinstance(device, str):
        return _from_string(device)
    if type(device).__module__.partition(".")[0] == "cupy" and hasattr(device, "id"):
        return GpuDevice(int(device.id))
    if hasattr(device, "xp") and callable(getattr(device, "send", None)):
        return device
    raise TypeError(
        f"device must be {_WHAT_IS_A_DEVICE}, not {device!r} of type {type(device).__qualname__}"
    )


def _from_string(text: str) -> Device:
    if text in ("cpu", "@numpy"):
        return CpuDevice()
    if text == "cuda":
        return GpuDevice(int(import_cupy("device 'cuda'").cuda.Device().id))
    for prefix in ("cuda:", "@cupy:", ""):
        number = text[len(prefix) :]
        if text.startswith(prefix) and number.isascii() and number.isdigit():
            return GpuDevice(int(number))
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit():
        return CpuDevice()
    raise ValueError(f"device must be {_WHAT_IS_A_DEVICE}, not {text!r}")


def send(device: Any, x: Any) -> Any:
    """Move ``x`` to the device that ``device`` names; None leaves it where it is."""
    resolved = resolve(device)
    return x if resolved is None else resolved.send(x)


def is_cupy_array(x: Any) -> bool:
    """Whether ``x`` is a CuPy array. Does not import CuPy: without it there is none."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def array_module(x: Any) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """Module for work on ``x`` and its like, and a context in which to do it.

    Returns
    -------
    tuple of module and context manager
        numpy with a context that does nothing, or cupy with the array's device.
    """
    if is_cupy_array(x):
        return sys.modules["cupy"], x.device
    return np, contextlib.nullcontext()


def import_cupy(purpose: str) -> Any:
    """Import CuPy.

    Raises
    ------
    RuntimeError
        If it is not installed; the text names ``purpose`` and what to install.
    """
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"{purpose} needs CuPy, which cannot be imported ({error}): install it with "
            f"{_INSTALL_CUPY}"
        ) from error
    return cupy


def _scalar_array(value: Any) -> np.ndarray[Any, Any]:
    if np.isscalar(value):
        return np.asarray(value)
    raise TypeError(f"cannot make an array for a device out of {type(value).__qualname__}")


def import_cupy_for(device_id: int) -> Any:
    """Import CuPy, and make sure that it finds the GPU ``device_id``.

    Raises
    ------
    RuntimeError
        If CuPy or the GPU is missing; the text names what to install.
    """
    cupy = import_cupy(f"device {device_id}")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise RuntimeError(
            f"device {device_id} needs a GPU, and CuPy finds none ({error}): install NVIDIA's "
            f"driver, and CuPy for a CUDA that the driver supports with {_INSTALL_CUPY}"
        ) from error
    if device_id >= count:
        raise RuntimeError(
            f"device {device_id} is not there: CuPy finds {count} GPU(s), numbered from 0 (those "
            "that CUDA_VISIBLE_DEVICES names, if it is set)"
        )
    return cupy


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
        self.copied = _new_event(cupy)


class _Loan:
    """Owner of an array's device memory, which goes back to the transfer with the last view."""

    __slots__ = ("compute", "memory", "transfer")

    def __init__(self, transfer: AsyncTransfer, memory: Any, compute: Any) -> None:
        self.transfer = transfer
        self.memory = memory
        self.compute = compute

    def __del__(self) -> None:
        self.transfer.take_back(self.memory, self.compute)


class AsyncTransfer:
    """Copies arrays of the host to one GPU, on a stream of its own.

    What has to happen in which order, and what sees to it:

    - *The copy before its use.* The compute stream waits for the event behind the copy.
    - *The copy before the pinned memory is used again.* Arrays are copied out of pinned buffers. A
      buffer is filled again, or given back to CuPy, when the event behind its copies is done.
      There are three; if the copies out of all of them are still to come, the host waits for the
      oldest. It never waits otherwise.
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
        self._check_stream("stream", stream)
        if stream is None:
            stream = _copy_streams.get(device_id)
        if stream is None:
            with self._cupy.cuda.Device(device_id):
                # Else the work on the default stream would wait for copies, and copies for it.
                stream = self._cupy.cuda.Stream(non_blocking=True)
            stream = _copy_streams.setdefault(device_id, stream)
        self._stream = stream
        self._staging: list[_Staging] = []  # the oldest copies first
        self._dropped: deque[tuple[Any, Any]] = deque()  # memory, and the stream that used it
        self._retired: deque[tuple[list[Any], list[Any]]] = deque()  # events, and memory
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()

    def send(self, arrays: Sequence[Any], compute_stream: Any = None) -> list[Any]:
        """Begin to copy arrays to the GPU.

        Parameters
        ----------
        arrays : sequence of arrays
            Those of the host are copied; they may change as soon as this returns. Arrays of a GPU,
            and those of dtypes that CuPy lacks, go as `GpuDevice.send` has it.
        compute_stream : cupy.cuda.Stream, optional
            Where the results will be used; the current stream of this GPU by default. What it is
            given from now on runs after the copies.

        Returns
        -------
        list of cupy.ndarray

        Raises
        ------
        ValueError
            If ``compute_stream`` belongs to another GPU.
        RuntimeError
            In a process that was forked since. What CUDA raises is passed on; the transfer can be
            used on.
        """
        if self._pid != os.getpid():
            raise RuntimeError(
                "this process was forked from one that uses CUDA, and cannot use it: start it by "
                "spawn or forkserver, or send batches to the GPU in the parent"
            )
        self._check_stream("compute_stream", compute_stream)
        with self._lock, self._cupy.cuda.Device(self._device.id):
            current = self._cupy.cuda.get_current_stream()
            compute = current if compute_stream is None else compute_stream
            self._retire(_N_RETIRED)
            staged = [array for array in arrays if _can_stage(array)]
            copies = iter(self._copy(staged, compute) if staged else ())
            sent = [next(copies) if _can_stage(a) else self._device.send(a) for a in arrays]
            if len(staged) < len(arrays) and compute.ptr != current.ptr:
                compute.wait_event(self._record(current))  # where CuPy made the other arrays
            return sent

    def take_back(self, memory: Any, compute: Any) -> None:
        """Take device memory whose arrays are gone; called by their owner, in any thread.

        While the transfer is open this only sets the memory aside, since a finalizer may run in
        the middle of anything, CUDA's calls included.
        """
        self._dropped.append((memory, compute))
        if self._is_closed and self._pid == os.getpid() and not sys.is_finalizing():
            with self._cupy.cuda.Device(self._device.id):
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
        with self._lock, self._cupy.cuda.Device(self._device.id):
            self._retire(0)
            for staging in self._staging:
                staging.copied.synchronize()
            self._staging.clear()

    def _copy(self, arrays: list[np.ndarray[Any, Any]], compute: Any) -> list[Any]:
        offsets = [0]
        for array in arrays:
            offsets.append(offsets[-1] + array.nbytes + -array.nbytes % _ALIGNMENT)
        staging = self._idle_staging(offsets.pop())
        try:
            sent = []
            for array, offset in zip(arrays, offsets, strict=True):
                there = self._empty(array.shape, array.dtype.newbyteorder("="), compute)
                here = np.frombuffer(staging.memory, there.dtype, array.size, offset)
                here = here.reshape(array.shape)
                here[...] = array
                there.set(here, stream=self._stream)
                sent.append(there)
            staging.copied.record(self._stream)
        except BaseException:
            # Some copies may have begun. If the stream cannot be waited for, CUDA's context is
            # lost, and nothing runs in it any more.
            with contextlib.suppress(Exception):
                self._stream.synchronize()
            raise
        self._staging.append(staging)
        compute.wait_event(staging.copied)
        return sent

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], compute: Any) -> Any:
        cuda = self._cupy.cuda
        nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        with self._stream:
            memory = cuda.alloc(nbytes)
        loan = _Loan(self, memory, compute)
        borrowed = cuda.UnownedMemory(memory.ptr, nbytes, loan, self._device.id)
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
        streams = {stream.ptr: stream for _, stream in taken}
        try:
            events = [self._record(stream) for stream in streams.values()]
        except BaseException:
            self._dropped.extend(taken)  # nothing waits for its use yet
            raise
        return events, [memory for memory, _ in taken]

    def _record(self, stream: Any) -> Any:
        event = _new_event(self._cupy)
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


def _new_event(cupy: Any) -> Any:
    # block: a host that waits for it sleeps instead of asking again and again
    return cupy.cuda.Event(block=True, disable_timing=True)


def _can_stage(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.char in _COPIED_DTYPES and array.size > 0
