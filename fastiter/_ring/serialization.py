"""Packed objects: how a process leaves an object for another one in shared memory.

A *packed* object is a pickle (protocol 5) with its buffers beside it, 64-byte aligned, in one run
of bytes. In shared memory, the arrays of the loaded object are views of that run: the process that
loads copies nothing. Layout, all numbers little-endian uint64::

    checksum, buffers, pickle_bytes, then per buffer: offset, bytes; the pickle; the buffers

Offsets count from the start of the shared memory, so that a buffer may lie elsewhere in it.

The checksum covers what follows up to the buffers, and the place that the object was packed for: a
pickle that was overwritten must not be run. In an image of a dataset, which is read-only, it is 0.

A buffer of an image may also lie in a file that the loading process maps: the top bits of its
offset hold the number of that mapping, counted from 1. A bit of the bytes of a buffer says that
loading copies it: pixels of an image.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import os
import pickle
import re
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastiter._clib import status
from fastiter._ring.file_mappings import FileMappings, address_of
from fastiter._util import array_subtypes
from fastiter._util.concurrency import made_once
from fastiter._util.loaded import loaded
from fastiter.errors import OverwrittenError

_ALIGNMENT = 64
_HEAD = struct.Struct("<QQQ")
_SUM = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_OFFSET_BITS = 48  # of an offset; above it is the number of a mapping
_COPIED_BIT = 62  # in the bytes of a buffer that whoever loads it copies anyway

# A short string in a pickle: its length, and a dotted name. Modules are named by such.
_NAME = re.compile(rb"\x8c(.)([A-Za-z_][\w.]*)", re.DOTALL)
_SEARCHED = 4 << 20  # bytes of a pickle

_PLAIN = frozenset({str, bytes, int, float, bool})  # types whose pickles have no arrays

_SMALL = 1 << 10  # bytes of an array that are copied in less time than a buffer takes

_WRITTEN_AT_ONCE = 16 << 20  # bytes; between two of them Ctrl-C is heard


def dump(
    value: object,
    file: Any,
    buffer_callback: Any,
    pickler: type[pickle.Pickler] = pickle.Pickler,
    writable: bool = False,
    mappings: FileMappings | None = None,
    reduce: Callable[[object], Any] | None = None,
    small: int = 0,
) -> None:
    """Pickles an object as `pickle.dump` does, but torch's tensors as arrays, and all arrays in
    their byte order. `pickler`: the class to use instead of `pickle.Pickler`; `writable`:
    read-only arrays load writable; `mappings`: arrays in these files are not copied, if
    `buffer_callback` finds them there, too; `reduce` is called first with each object, and
    returns None for an ordinary one; arrays of at most `small` bytes are no buffers."""
    if type(value) in _PLAIN and pickler is pickle.Pickler:
        file.write(pickle.dumps(value, 5))
        return
    kind: Any = pickler  # hashable, which mypy doubts
    writer: Any = _array_pickler(kind, writable)(file, 5, buffer_callback=buffer_callback)
    writer.mappings, writer.reduce, writer.small = mappings, reduce, small
    writer.tensors = array_subtypes.reducers(None if mappings is None else mappings.whole)
    writer.dump(value)


def dumps(value: object, buffer_callback: Any = None, **options: Any) -> bytes:
    """As `dump`, into bytes."""
    parts = _Parts()
    dump(value, parts, buffer_callback, **options)
    return b"".join(parts)


class _Parts(list[Any]):
    """A file of the parts that were written: large bytes among them are the object's own."""

    write = list.append


@functools.cache
def _array_pickler(base: type[pickle.Pickler], writable: bool) -> type[pickle.Pickler]:
    """A pickler whose arrays load in their byte order, and all of them writable if ``writable``.

    NumPy writes the bytes of an array into the pickle if the array is not contiguous or is of a
    subclass. It loads these in native byte order: another dtype.
    """
    override = getattr(base, "reducer_override", None)

    class ArrayPickler(base):  # type: ignore[misc, valid-type]
        mappings: FileMappings | None
        reduce: Callable[[object], Any] | None
        small: int
        tensors: dict[Any, Callable[[Any], Any]]

        def reducer_override(self, obj: object) -> Any:
            if isinstance(obj, np.ndarray):
                reduced = _reduce_array(obj, writable, self.mappings, self.small)
            else:
                reduced = None if self.reduce is None else self.reduce(obj)
                if reduced is None:
                    other = array_subtypes.reduce_subclass
                    reduced = self.tensors.get(type(obj), other)(obj) or _reduce_image(obj)
            if reduced is not None:
                return reduced
            return NotImplemented if override is None else override(self, obj)

    return ArrayPickler


def _reduce_array(
    array: np.ndarray[Any, Any],
    writable: bool,
    mappings: FileMappings | None = None,
    small: int = 0,
) -> Any:
    """The reduction of an array that NumPy would change, or copy; None for any other."""
    dtype, flags = array.dtype, array.flags
    if dtype.hasobject or not dtype.itemsize:
        return None
    if (
        array.nbytes <= small
        and type(array) is np.ndarray
        and dtype.isnative
        and flags.forc
        and (writable or flags.writeable)
        and np.ndarray not in copyreg.dispatch_table
    ):
        return array.__reduce__()
    if mappings is not None and type(array) is np.memmap:
        return _as_memmap, (array.view(np.ndarray), array.filename, array.offset, array.mode)
    if type(array) is np.ndarray:
        if flags.forc and (dtype.kind in "mMV" or not dtype.isnative) and not _is_buffer(array):
            straight = np.ravel(array, "K").view(np.uint8)
            return _as_strided, (straight, array.shape, dtype, 0, array.strides)
        if flags.forc and (flags.writeable or not writable):
            return None
        whole = None if mappings is None else mappings.whole(array)
        if whole is not None:
            steps = zip(array.shape, array.strides, strict=True)
            start = sum((1 - n) * step for n, step in steps if step < 0)
            return _as_strided, (whole, array.shape, dtype, start, array.strides)
        # Contiguous: a buffer, which stays outside of the pickle and keeps the dtype. The order of
        # the axes in memory stays, too: a training step may depend on it (channels last).
        if flags.forc:
            return np.asarray(_Writable(array)).view(dtype).__reduce_ex__(5)
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


def _is_buffer(array: np.ndarray[Any, Any]) -> bool:
    """Whether the dtype has a code in the buffer protocol; datetimes have none, and long doubles of
    the other byte order."""
    try:
        memoryview(array)  # type: ignore[arg-type]
    except ValueError:
        return False
    return True


def _reduce_image(value: Any) -> Any:
    """The reduction of an image of Pillow whose pixels are a buffer; None for all else."""
    kind: Any = type(value)
    if not kind.__module__.startswith("PIL.") or not hasattr(kind, "frombytes"):
        return None
    palette = size = data = None
    if value.mode == "RGB" and 0 not in value.size:
        # Pillow has four bytes a pixel in memory, and slow loops from and to three.
        size, data = value.size, value.tobytes("raw", "RGBX")
        value = _of_one_pixel(value)
    state: Any = value.__getstate__()
    # Of all images: info, mode, size, palette, pixels; what follows is a subclass's.
    if type(state) not in (list, tuple) or len(state) < 5 or type(state[4]) is not bytes:
        return None
    if state[3] is not None and value.palette is not None:  # an empty one, and alpha, get lost
        palette = bytes(value.getpalette(value.palette.mode)), value.palette.mode
    pixels: Any = np.asarray(_Writable(np.frombuffer(data or state[4], np.uint8))).view(_Pixels)
    if size is None:
        state = [*state[:4], None, *state[5:]]
    parts = list(state), size, pickle.PickleBuffer(pixels), palette
    return copyreg.__newobj__, (kind,), parts, None, None, _set_image  # type: ignore[attr-defined]


class _Pixels(np.ndarray[Any, Any]):
    """Pixels of an image, which copies them when it is loaded."""


def _of_one_pixel(image: Any) -> Any:
    """An image with all else of another one."""
    one: Any = object.__new__(type(image))
    one.__dict__.update(image.__dict__)
    one.im, one._size = sys.modules["PIL.Image"].core.new(image.mode, (1, 1)), (1, 1)
    return one


def _set_image(image: Any, parts: tuple[Any, ...]) -> None:
    state, size, pixels, palette = parts
    state[4] = pixels if size is None else state[4]
    image.__setstate__(state)
    if size is not None:
        image.im, image._size = sys.modules["PIL.Image"].core.new("RGB", size), size
        image.frombytes(pixels, "raw", "RGBX")
    if palette is not None:
        image.putpalette(*palette)


class _Writable:
    """A read-only array whose bytes are pickled as those of an array that loads writable."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self.__array_interface__ = {
            **array.__array_interface__,
            "data": (array.__array_interface__["data"][0], False),
        }


def _as_dtype(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return array.astype(dtype)


def _as_strided(
    whole: np.ndarray[Any, Any],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    start: int,
    strides: tuple[int, ...],
) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, dtype, whole, start, strides)


def _as_memmap(
    array: np.ndarray[Any, Any], filename: Any, offset: int, mode: str
) -> np.ndarray[Any, Any]:
    result: Any = array.view(np.memmap)
    result.filename, result.offset, result.mode = filename, offset, mode
    return result  # type: ignore[no-any-return]


_dump_small = functools.partial(dump, small=_SMALL)


class Packed:
    """An object ready to be written into `size` bytes of memory.

    Buffers of at least `least` bytes are stored beside the pickle, which `make` makes, as `dump`
    does; by default small arrays are no buffers. With `writable`, read-only arrays load writable,
    as arrays in columns do. `placed` returns the offset at which a buffer already lies in the
    shared memory, so that it is not copied, or -1. Buffers in `mappings` are not copied either.
    """

    def __init__(
        self,
        value: object,
        least: int = 0,
        make: Callable[..., None] = _dump_small,
        writable: bool = True,
        placed: Callable[[memoryview], int] | None = None,
        mappings: FileMappings | None = None,
    ):
        self._mappings = mappings
        self._buffers: list[memoryview] = []
        self._least = least
        self._pickle = _Parts()
        make(value, self._pickle, self._keep, writable=writable)
        self._pickle_bytes = sum(map(len, self._pickle))
        end = self.start
        self._places = []  # in what is written; and in the memory, or -1
        self._sizes: list[int] = []
        for buffer in self._buffers:
            inside = -1 if placed is None else placed(buffer)
            if (mapped := self._find(buffer)) is not None:
                inside = (mapped[0] + 1) << _OFFSET_BITS | mapped[1]
            offset = end + -end % _ALIGNMENT
            self._places.append((offset, inside))
            is_copied = isinstance(buffer.obj, _Pixels)
            self._sizes.append(buffer.nbytes | is_copied << _COPIED_BIT)
            if inside < 0:
                end = offset + buffer.nbytes
        self.size = end

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Takes a buffer out of the pickle; True leaves it in."""
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < self._least and self._find(raw) is None:
            return True
        self._buffers.append(raw)
        return False

    def _find(self, buffer: memoryview) -> tuple[int, int] | None:
        if self._mappings is None:
            return None
        return self._mappings.find(address_of(buffer), buffer.nbytes)

    def offset_of(self, array: np.ndarray[Any, Any]) -> int:
        """The place of an array's bytes in what is written; -1 if they are not there in C order."""
        if not array.flags.c_contiguous:  # its memory may be there, in the order of its strides
            return -1
        return self._offsets.get((array.__array_interface__["data"][0], array.nbytes), -1)

    @made_once  # not a search of all buffers for each array
    def _offsets(self) -> dict[tuple[int, int], int]:
        return {(address_of(buffer), buffer.nbytes): offset for offset, buffer in self.buffers}

    def modules(self) -> list[str]:
        """Modules of this process that the pickle names: those needed to load it, and others whose
        names are among its strings."""
        found = _NAME.findall(memoryview(b"".join(self._pickle))[:_SEARCHED])
        names = {name.decode() for length, name in found if ord(length) == len(name)}
        loaded = {name for name in names if name in sys.modules}  # no loop: others may import
        return sorted(loaded - {"__main__"})

    @property
    def buffers(self) -> list[tuple[int, memoryview]]:
        """The buffers that are written beside the pickle, each with its offset, ascending."""
        pairs = zip(self._places, self._buffers, strict=True)
        return [(offset, buffer) for (offset, inside), buffer in pairs if inside < 0]

    @property
    def start(self) -> int:
        """Bytes before the buffers."""
        return _HEAD.size + _PAIR.size * len(self._buffers) + self._pickle_bytes

    def _head(self, at: int = 0) -> bytes:
        pairs = [
            _PAIR.pack(at + offset if inside < 0 else inside, size)
            for (offset, inside), size in zip(self._places, self._sizes, strict=True)
        ]
        return b"".join([_HEAD.pack(0, len(self._buffers), self._pickle_bytes), *pairs])

    def write_into(self, view: memoryview, seed: int, at: int = 0) -> None:
        """Writes into a part of a slot that begins `at` an offset; `seed` identifies the place."""
        self.write_start(view, seed, at)
        for offset, buffer in self.buffers:
            view[offset : offset + buffer.nbytes] = buffer

    def write_start(self, view: memoryview, seed: int, at: int = 0) -> None:
        """As `write_into`, without the buffers."""
        end = 0
        for part in (self._head(at), *self._pickle):
            start, end = end, end + len(part)
            view[start:end] = part
        _SUM.pack_into(view, 0, status.checksum(view, _SUM.size, end, seed))

    def write_to(self, fd: int) -> None:
        """Writes into a file, from its start on. For new shared memory this takes half the time of
        `write_into`: the kernel allocates and fills each page at once, without a page fault."""
        end = 0
        for part in (self._head(), *self._pickle):
            _write_at(fd, part, end)
            end += len(part)
        for offset, buffer in self.buffers:
            _write_at(fd, buffer, offset)


def packed_bytes(value: Any) -> bytearray:
    """The bytes that `Packed` writes of a value."""
    packed = Packed(value)
    memory = bytearray(packed.size)
    packed.write_into(memoryview(memory), 0)
    return memory


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left[:_WRITTEN_AT_ONCE], offset)
        left = left[written:]
        offset += written


def unpack(
    view: memoryview,
    seed: int | None = None,
    at: int = 0,
    copy: bool = False,
    mapped: Sequence[memoryview] = (),
) -> Any:
    """Loads what `Packed` wrote `at` an offset of the memory that `view` shows from its start on.
    Arrays of the result are views of it, and keep it alive; with `copy`, they have memory of their
    own.

    OverwrittenError if it is not the object packed for the place in a slot that `seed` identifies.
    An image has no seed; `mapped` are its mappings of files.
    """
    _check_end(view, at + _HEAD.size)
    checksum, buffers, length = _HEAD.unpack_from(view, at)
    pairs = at + _HEAD.size
    start = pairs + _PAIR.size * buffers
    _check_end(view, start + length)
    if seed is not None and checksum != status.checksum(view, at + _SUM.size, start + length, seed):
        raise OverwrittenError("shared memory was overwritten: a packed object has changed")
    outside: list[memoryview | bytearray] = []
    for place in range(pairs, start, _PAIR.size):
        offset, size = _PAIR.unpack_from(view, place)
        is_copied, size = size >> _COPIED_BIT, size & ~(1 << _COPIED_BIT)
        memory, number = view, offset >> _OFFSET_BITS
        if 0 < number <= len(mapped):
            memory, offset = mapped[number - 1], offset & ((1 << _OFFSET_BITS) - 1)
        _check_end(memory, offset + size)
        buffer = memory[offset : offset + size]
        outside.append(bytearray(buffer) if copy and not is_copied else buffer)
    return pickle.loads(view[start : start + length], buffers=outside)


def _check_end(view: memoryview, end: int) -> None:
    if end > view.nbytes:
        raise OverwrittenError(
            f"shared memory was overwritten: a packed object of {view.nbytes} bytes claims {end}"
        )


def are_same(stored: Any, fetched: Any) -> bool:
    """Whether two values are equal in type and content, NaN included. What is stored has been
    pickled once."""
    if type(stored) is not type(fetched):
        return False
    if isinstance(stored, (tuple, list)):
        return len(stored) == len(fetched) and all(map(are_same, stored, fetched))
    if isinstance(stored, dict):
        return list(stored) == list(fetched) and all(
            map(are_same, stored.values(), fetched.values())
        )
    tensor = loaded("torch", "Tensor")
    if isinstance(stored, tensor):
        if stored.requires_grad is not fetched.requires_grad:
            return False
        stored, fetched = stored.detach(), fetched.detach()
        if stored.layout is sys.modules["torch"].strided and not stored.is_quantized:
            stored, fetched = (each.resolve_conj().resolve_neg() for each in (stored, fetched))
            stored, fetched = stored.contiguous().clone(), fetched.contiguous().clone()
    with contextlib.suppress(Exception):
        again = unpack(memoryview(packed_bytes(fetched)))
        if packed_bytes(stored) == packed_bytes(again):
            return True
    try:  # a set has its items in the order of the process that made it, an array those of memory
        if isinstance(stored, np.ndarray):
            has_nan = stored.dtype.kind in "fc"
            are_equal = np.array_equal(stored, fetched, equal_nan=has_nan)
            return bool(are_equal and stored.dtype == fetched.dtype)
        if stored == fetched if tensor is not type(stored) else stored.equal(fetched):
            return True
    except Exception:
        pass
    # Of a class whose objects differ by identity, or whose attributes cannot be compared by `==`.
    return bool(getattr(stored, "__dict__", None)) and are_same(vars(stored), vars(fetched))
