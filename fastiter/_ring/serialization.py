"""Packed objects: how a process leaves an object for another one in shared memory.

A *packed* object is a pickle (protocol 5) with its buffers beside it, 64-byte aligned, in one run
of bytes. In shared memory, the arrays of the loaded object are views of that run: the process that
loads copies nothing. Layout, all numbers little-endian uint64::

    checksum, buffers, pickle_bytes, then per buffer: offset, bytes; the pickle; the buffers

Offsets count from the start of the shared memory, so that a buffer may lie elsewhere in it.

The checksum covers what follows up to the buffers, and the place that the object was packed for: a
pickle that was overwritten must not be run. In an image of a dataset, which is read-only, it is 0.
"""

from __future__ import annotations

import copyreg
import functools
import io
import os
import pickle
import re
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter._clib import status
from fastiter._util import torch_tensors
from fastiter.errors import OverwrittenError

_ALIGNMENT = 64
_HEAD = struct.Struct("<QQQ")
_SUM = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")

# A short string in a pickle: its length, and a dotted name. Modules are named by such.
_NAME = re.compile(rb"\x8c(.)([A-Za-z_][\w.]*)", re.DOTALL)
_SEARCHED = 4 << 20  # bytes of a pickle

_WRITTEN_AT_ONCE = 16 << 20  # bytes; between two of them Ctrl-C is heard


def dumps(
    value: object,
    protocol: int,
    buffer_callback: Any,
    pickler: type[pickle.Pickler] = pickle.Pickler,
    writable: bool = False,
) -> bytes:
    """Pickles an object as `pickle.dumps` does, but torch's tensors as arrays, and all arrays in
    their byte order. `pickler`: the class to use instead of `pickle.Pickler`; `writable`:
    read-only arrays load writable."""
    kind: Any = pickler  # hashable, which mypy doubts
    tensors = torch_tensors.reducers()
    file = io.BytesIO()
    writer = _array_pickler(kind, writable)(file, protocol, buffer_callback=buffer_callback)
    if tensors:
        known = getattr(writer, "dispatch_table", copyreg.dispatch_table)
        writer.dispatch_table = {**known, **tensors}
    writer.dump(value)
    return file.getvalue()


@functools.cache
def _array_pickler(base: type[pickle.Pickler], writable: bool) -> type[pickle.Pickler]:
    """A pickler whose arrays load in their byte order, and all of them writable if ``writable``.

    NumPy writes the bytes of an array into the pickle if the array is not contiguous or is of a
    subclass. It loads these in native byte order: another dtype.
    """
    override = getattr(base, "reducer_override", None)

    class ArrayPickler(base):  # type: ignore[misc, valid-type]
        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, np.ndarray):
                reduced = _reduce_array(obj, writable)
                if reduced is not None:
                    return reduced
            return NotImplemented if override is None else override(self, obj)

    return ArrayPickler


def _reduce_array(array: np.ndarray[Any, Any], writable: bool) -> Any:
    """How to pickle an array that NumPy would change; None for any other."""
    dtype, flags = array.dtype, array.flags
    if dtype.hasobject or not dtype.itemsize:
        return None
    if type(array) is np.ndarray:
        if flags.forc and (flags.writeable or not writable):
            return None
        # Contiguous: a buffer, which stays outside of the pickle and keeps the dtype. The order of
        # the axes in memory stays, too: a training step may depend on it (channels last).
        axes = np.argsort([-abs(stride) for stride in array.strides], kind="stable")
        straight = array.transpose(axes)
        if not straight.flags.c_contiguous or (writable and not flags.writeable):
            straight = straight.copy()
            straight.flags.writeable = writable or flags.writeable
        return np.transpose, (straight, np.argsort(axes).tolist())
    if dtype.isnative:
        return None
    native = array.astype(dtype.newbyteorder("="))
    return (_as_dtype, (native, dtype)) if type(native) is type(array) else None


def _as_dtype(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return array.astype(dtype)


class Packed:
    """An object ready to be written into `size` bytes of memory.

    Buffers of at least `least` bytes are stored beside the pickle, which `make` makes, as `dumps`
    does. With `writable`, read-only arrays load writable, as arrays in columns do. `placed` tells
    at which offset of the shared memory a buffer lies already, so that it is not copied, or -1.
    """

    def __init__(
        self,
        value: object,
        least: int = 0,
        make: Callable[[object, int, Any], bytes] = dumps,
        writable: bool = True,
        placed: Callable[[memoryview], int] | None = None,
    ):
        self._buffers: list[memoryview] = []
        self._least = least
        self._pickle = make(value, 5, self._keep)
        if writable and any(buffer.readonly for buffer in self._buffers):
            self._buffers.clear()
            self._pickle = dumps(value, 5, self._keep, writable=True)
        start = _HEAD.size + _PAIR.size * len(self._buffers)
        end = start + len(self._pickle)
        self._places = []  # in what is written; and in the memory, or -1
        for buffer in self._buffers:
            inside = -1 if placed is None else placed(buffer)
            offset = end + -end % _ALIGNMENT
            self._places.append((offset, inside))
            if inside < 0:
                end = offset + buffer.nbytes
        self.size = end

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Takes a buffer out of the pickle; True leaves it in."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < self._least:
            return True
        self._buffers.append(raw)
        return False

    def modules(self) -> list[str]:
        """Modules of this process that the pickle names: those needed to load it, and others whose
        names are among its strings."""
        found = _NAME.findall(memoryview(self._pickle)[:_SEARCHED])
        names = {name.decode() for length, name in found if ord(length) == len(name)}
        loaded = {name for name in names if name in sys.modules}  # no loop: others may import
        return sorted(loaded - {"__main__"})

    def _head(self, at: int = 0) -> bytes:
        pairs = [
            _PAIR.pack(at + offset if inside < 0 else inside, buffer.nbytes)
            for (offset, inside), buffer in zip(self._places, self._buffers, strict=True)
        ]
        return b"".join([_HEAD.pack(0, len(self._buffers), len(self._pickle)), *pairs])

    def write_into(self, view: memoryview, seed: int, at: int = 0) -> None:
        """Writes into a part of a slot that begins `at` an offset; `seed` identifies the place."""
        head = self._head(at)
        start, end = len(head), len(head) + len(self._pickle)
        view[:start] = head
        view[start:end] = self._pickle
        _SUM.pack_into(view, 0, status.checksum(view, _SUM.size, end, seed))
        for (offset, inside), buffer in zip(self._places, self._buffers, strict=True):
            if inside < 0:
                view[offset : offset + buffer.nbytes] = buffer

    def write_to(self, fd: int) -> None:
        """Writes into a file, from its start on. For new shared memory this takes half the time of
        `write_into`: the kernel allocates and fills each page at once, without a page fault."""
        head = self._head()
        _write_at(fd, head, 0)
        _write_at(fd, self._pickle, len(head))
        for (offset, _), buffer in zip(self._places, self._buffers, strict=True):
            _write_at(fd, buffer, offset)


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left[:_WRITTEN_AT_ONCE], offset)
        left = left[written:]
        offset += written


def unpack(view: memoryview, seed: int | None = None, at: int = 0, copy: bool = False) -> Any:
    """Loads what `Packed` wrote `at` an offset of the memory that `view` shows from its start on.
    Arrays of the result are views of it, and keep it alive; with `copy`, they have memory of their
    own.

    OverwrittenError if it is not what was packed for the place in a slot that `seed` identifies.
    An image has no seed.
    """
    if view.nbytes < _HEAD.size:
        raise OverwrittenError(f"shared memory was overwritten: {view.nbytes} bytes hold no object")
    checksum, buffers, length = _HEAD.unpack_from(view, at)
    pairs = at + _HEAD.size
    start = pairs + _PAIR.size * buffers
    _check_end(view, start + length)
    if seed is not None and checksum != status.checksum(view, at + _SUM.size, start + length, seed):
        raise OverwrittenError("shared memory was overwritten: what was packed there has changed")
    outside: list[memoryview | bytearray] = []
    for place in range(pairs, start, _PAIR.size):
        offset, size = _PAIR.unpack_from(view, place)
        _check_end(view, offset + size)
        buffer = view[offset : offset + size]
        outside.append(bytearray(buffer) if copy else buffer)
    return pickle.loads(view[start : start + length], buffers=outside)


def _check_end(view: memoryview, end: int) -> None:
    if end > view.nbytes:
        raise OverwrittenError(
            f"shared memory was overwritten: a packed object of {view.nbytes} bytes claims {end}"
        )
