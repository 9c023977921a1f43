"""Handles of objects that live once in shared memory: the basis of the dataset's transport.

The object is pickled once, its large buffers beside the pickle, into an image. Each process loads
it from a private mapping of that image: its arrays are views of the same pages, until it writes.
The image has no name. Its descriptor travels with the handle: to a process that starts, through
multiprocessing's queues and pipes, or inside another image.
"""

from __future__ import annotations

import contextlib
import copyreg
import ctypes
import errno
import functools
import gc
import importlib
import io
import os
import pickle
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from fastiter._ring.file_mappings import FileMappings, MappedFile
from fastiter._ring.serialization import Packed, dump, dumps, unpack
from fastiter._util.array_subtypes import shared_address
from fastiter._workers.shm_image import Image, map_file

if TYPE_CHECKING:
    from fastiter._workers.start_method import Caller

T = TypeVar("T")

# Smaller buffers stay in the pickle: a page-aligned home would cost more than a copy.
_BUFFER_BYTES = 64 << 10

_NO_WAY = (
    "a shared object's memory has no name, so its handle travels only through multiprocessing: as "
    "an argument of a Process, through a Queue, Pipe or Pool, or as part of a dataset or of "
    "another shared object. To store or send its content, pickle handle.value"
)

# Handles that this process has, by key: one that arrives again is the same, and loads no second
# time.
_here: weakref.WeakValueDictionary[bytes, Shared[Any]] = weakref.WeakValueDictionary()


class _Reduction(threading.local):
    """Per thread, the objects beside an image that is being packed, or loaded."""

    packing: list[Any] | None = None
    loading: tuple[Any, ...] = ()


_context = _Reduction()


class Shared(Generic[T]):
    """A handle of an object in shared memory; `fastiter.kernels.share` makes one."""

    def __init__(
        self,
        image: Image,
        carried: tuple[Any, ...],
        key: bytes,
        files: tuple[MappedFile, ...] = (),
        no_way: str = _NO_WAY,
    ):
        self._image = image
        self._no_way = no_way  # the error where it cannot travel
        # Parts of the object that are no part of the image: handles, and others that only
        # multiprocessing brings into another process.
        self._carried = carried
        self._key = key  # the same in all processes
        self._files = files  # that the object has mapped
        self._packed: Packed | None = None  # what is still to be written
        self._loaded: dict[str, T] = {}

    @classmethod
    def reserve(
        cls,
        value: T,
        what: str,
        remedy: str,
        make: Callable[..., None] = dump,
        mappings: FileMappings | None = None,
    ) -> Shared[T]:
        """A handle whose memory is still to be filled, by `write`. The value is pickled now, except
        its large buffers; buffers in `mappings` stay where they are. `what` and `remedy` are
        for the error if it does not fit."""
        with packing() as carried:
            packed = Packed(value, _BUFFER_BYTES, make, writable=False, mappings=mappings)
        files = () if mappings is None else tuple(mappings.used)
        image = Image.create(packed.size, what, remedy)
        handle = cls(image, tuple(carried), os.urandom(16), files)
        handle._packed = packed
        _here[handle._key] = handle
        return handle

    def modules(self) -> list[str]:
        """Modules that its pickle names; before it is written."""
        assert self._packed is not None
        return self._packed.modules()

    def write(self) -> None:
        """Copies the large buffers; once, before anybody loads them."""
        assert self._packed is not None
        try:
            self._packed.write_to(self._image.fd)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                how = "(docker run --shm-size), which a system without memfd_create takes"
                error.strerror = f"a dataset or shared object finds no room in /dev/shm {how}"
            raise
        self._packed = None

    @property
    def value(self) -> T:
        """The object, in this process. It is loaded at the first use, and is the same from then
        on. Its arrays are writable if those of the original were; writes stay in this process.

        Raises
        ------
        Exception
            Errors of loading the pickle; MemoryError if the address space is used up;
            ValueError if the handle was closed before.
        """
        if "value" in self._loaded:
            return self._loaded["value"]
        if self._image.fd < 0:
            raise ValueError("this handle was closed in this process before its value was loaded")
        before, _context.loading = _context.loading, self._carried
        collects = gc.isenabled()
        gc.disable()  # else it walks through all that is loaded, again and again
        try:
            files = [map_file(file) for file in self._files]
            # Into no variable: a module that is imported now may keep a traceback, and with it this
            # frame. Another thread may have been faster.
            self._loaded.setdefault("value", unpack(self._image.map(), mapped=files))
        finally:
            _context.loading = before
            if collects:
                gc.enable()
        return self._loaded["value"]

    def _take(self) -> T:
        """Returns `value`, which the handle forgets, and closes it."""
        try:
            return self.value
        finally:
            self._loaded.clear()
            self.close()

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, without the memory of handles inside."""
        return self._image.nbytes

    @property
    def fd(self) -> int:
        """The descriptor of its memory in this process."""
        return self._image.fd

    def close(self) -> None:
        """Closes the descriptor in this process, where the handle can travel no more. A value that
        was loaded stays."""
        self._packed = None
        self._image.close()

    def __repr__(self) -> str:
        return f"<fastiter.kernels.Shared: {self.nbytes} bytes>"

    def __copy__(self) -> Shared[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if _context.packing is None:
            raise TypeError(self._no_way)
        return _beside(self)


@contextlib.contextmanager
def packing() -> Iterator[list[Any]]:
    """Within it, handles may be pickled: they are appended to the list, and only their number goes
    into the pickle."""
    before = _context.packing
    carried: list[Any] = []
    _context.packing = carried
    try:
        yield carried
    finally:
        _context.packing = before


def is_packing() -> bool:
    """Whether handles may be pickled now."""
    return _context.packing is not None


def reserve_file(nbytes: int, no_way: str = _NO_WAY) -> Shared[None]:
    """A handle of shared memory that processes write themselves. No page is taken before that, but
    of a file of a disk. `no_way` is the error where the handle cannot travel."""
    folder = None
    try:
        fd = os.memfd_create("fastiter", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", errno.ENOSYS) not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        folder = tempfile.gettempdir()
        with tempfile.TemporaryFile(dir=folder) as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
        if folder and nbytes:
            os.posix_fallocate(fd, 0, nbytes)  # a write to a page without room is a SIGBUS
    except OSError as error:
        os.close(fd)
        error.filename = folder
        if error.errno == errno.EFBIG:
            error.strerror = (
                f"a file of {nbytes} bytes in memory is needed, and RLIMIT_FSIZE allows less: "
                "raise it (ulimit -f)"
            )
        raise
    return Shared(Image.adopt(fd, nbytes), (), os.urandom(16), no_way=no_way)


def _carried(number: int) -> Any:
    return _context.loading[number]


def _through_multiprocessing(handle: Shared[Any]) -> tuple[Any, ...]:
    if handle._image.fd < 0:
        raise ValueError("this handle is closed in this process: it can travel no more")
    duplicate = reduction.DupFd(handle._image.fd)
    parts = handle._carried, handle._key, handle._files, handle._no_way
    return _arrive, (duplicate, handle.nbytes, *parts)


def _arrive(
    duplicate: Any,
    nbytes: int,
    carried: tuple[Any, ...],
    key: bytes,
    files: tuple[MappedFile, ...],
    no_way: str,
) -> Shared[Any]:
    try:
        fd = duplicate.detach()
    except (OSError, EOFError) as error:
        raise RuntimeError(
            "the memory of a shared object could not be fetched from the process that sent its "
            "handle: has that process ended?"
        ) from error
    image = Image.adopt(fd, nbytes)
    known = _here.setdefault(key, Shared(image, carried, key, files, no_way))
    if known._image.fd < 0:
        known._image = image
    return known


reduction.ForkingPickler.register(Shared, _through_multiprocessing)


def share(obj: T) -> Shared[T]:
    """Put an object into shared memory, once for all processes: a handle with a ``value``.

    It is pickled once, its large buffers beside the pickle; processes that use the handle map them.
    MemoryError if there is no memory for it; also the errors of pickling.
    """
    handle = Shared.reserve(obj, "a shared object", "share less of it, or let it read from files")
    handle.write()
    return handle


# ---- the image of a job --------------------------------------------------------------------------


class StartReducer:
    """Pickles objects that only multiprocessing's own pickler can bring into another process, and
    only while that process starts: locks and queues, tensors and numbers in shared memory, sockets.
    The pickle travels beside an image, with each start of a worker.

    Parts of the program may have registered more types with that pickler. With `probes`, objects
    are also tried with ``__reduce_ex__``: most types that refuse it are in no table.
    """

    def __init__(self, mappings: FileMappings, probes: bool = False):
        table = reduction.ForkingPickler(io.BytesIO()).dispatch_table
        self._types = {
            kind for kind, how in table.items() if copyreg.dispatch_table.get(kind) is not how
        } - _PICKLED_BY_VALUE
        self._mappings = mappings
        self._probes = probes

    def __call__(self, obj: object) -> Any:
        """The reduction of an object; None for an ordinary one."""
        kind = type(obj)
        if kind in self._types and self._is_shared(obj):
            return _beside(obj)
        is_altered = kind in _ALTERED and kind not in copyreg.dispatch_table
        if is_altered and obj not in (sys.stdout, sys.stderr):
            raise TypeError(f"cannot pickle {kind.__qualname__!r} object")
        if self._probes and kind not in self._types and kind not in _ASKED_LATER:
            try:
                obj.__reduce_ex__(5)
            except Exception as error:
                if "inheritance" in str(error):
                    return _beside(obj)
        return None

    def _is_shared(self, obj: Any) -> bool:
        if type(obj).__module__.startswith("torch") and hasattr(obj, "is_shared"):
            address = shared_address(obj)
            return address is not None and not self._mappings.is_of_file(address)
        # Other numbers and arrays of C have the same types as those in shared memory.
        return not isinstance(obj, _C_TYPES) or hasattr(obj, "_wrapper")


#: Types for which multiprocessing's pickler does what an ordinary one does by now.
_PICKLED_BY_VALUE = {
    Shared,
    functools.partial,
    MethodType,
    type(list.append),
    type(int.__add__),
}
#: Types that pickle refuses, and that cloudpickle alters: the text of a file is sent, in which
#: positions count characters in place of bytes, and the bytes of a view, in place of its elements.
_ALTERED = {io.TextIOWrapper, memoryview}
_ASKED_LATER = _PICKLED_BY_VALUE | {type, FunctionType}
_C_TYPES = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)


def _beside(obj: object) -> tuple[Any, ...]:
    assert _context.packing is not None
    _context.packing.append(obj)
    return _carried, (len(_context.packing) - 1,)


class Later(Generic[T]):
    """A function that returns an object: a starting process, which gets the object as a pickle,
    loads it when it is ready. The pickle holds objects that only multiprocessing may pickle."""

    def __init__(self, value: T):
        self._value = value

    def __call__(self) -> T:
        return self._value

    def __reduce__(self) -> tuple[Any, ...]:
        data = bytes(reduction.ForkingPickler.dumps(self._value))
        return functools.partial, (pickle.loads, data)


class WithImage(Protocol):
    """A job, as far as its image needs to know it."""

    image: str
    """Name of the image in messages."""

    @property
    def names(self) -> dict[str, Any]:
        """Its parts by the names that messages give them, the smallest first."""


def instead_of(caller: Caller) -> str:
    """Alternative that needs no image, for messages."""
    return f"pass {caller.context}='fork', or {caller.instead}"


def image_of(job: WithImage, caller: Caller) -> Shared[Any]:
    """The image of a job, still to be written."""
    instead = instead_of(caller)
    remedy = f"let it read from files, or {instead}"
    try:
        return _reserve(job, remedy, pickle.Pickler)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        with contextlib.suppress(Exception):
            return _reserve(job, remedy, importlib.import_module("cloudpickle").CloudPickler)
        name, part = _unpicklable_part(job)
        raise TypeError(
            f"{name} ({type(part).__qualname__}) cannot be pickled for the worker processes: "
            f"{error}. {_advice(part)}, or {instead}"
        ) from error


def _reserve(job: WithImage, remedy: str, pickler: type[pickle.Pickler]) -> Shared[Any]:
    for probes in (False, True):
        mappings = FileMappings(_BUFFER_BYTES)
        reduce = StartReducer(mappings, probes)
        make = functools.partial(dump, pickler=pickler, mappings=mappings, reduce=reduce)
        try:
            return Shared.reserve(job, job.image, remedy, make, mappings)
        except RuntimeError as error:
            if probes or "inheritance" not in str(error):
                raise
    raise AssertionError


def _advice(part: object) -> str:
    """Advice about an object that does not pickle."""
    if isinstance(part, (type, FunctionType, MethodType)) or "<locals>" in type(part).__qualname__:
        return (
            "Define it at module level (with cloudpickle installed, lambdas and local classes "
            "travel too)"
        )
    return (
        "Open files, databases and connections in the worker, when the first example is read, and "
        "keep their paths in the dataset until then"
    )


def _unpicklable_part(job: WithImage) -> tuple[str, object]:
    """The smallest attribute that does not pickle, and its name."""
    parts_of_job = [*job.names.items()]
    name, value = next((item for item in parts_of_job if not _pickles(item[1])), parts_of_job[-1])
    path: list[str] = []
    for _ in range(4):
        parts = vars(value).items() if hasattr(value, "__dict__") else ()
        bad = next(((k, v) for k, v in parts if not _pickles(v)), None)
        if bad is None:
            break
        path.append(bad[0])
        value = bad[1]
    return f"attribute {'.'.join(path)!r} of {name}" if path else name, value


def _pickles(value: object) -> bool:
    mappings = FileMappings(_BUFFER_BYTES)
    try:
        with packing():
            reduce = StartReducer(mappings, probes=True)
            dumps(value, lambda buffer: None, mappings=mappings, reduce=reduce)
    except Exception:
        return False
    return True
