"""Handles of objects that live once in shared memory: what the dataset's transport runs on.

The object is pickled once, its large buffers beside the pickle, into an image. Each process loads
it from a private mapping of that image: its arrays are views of the same pages, until it writes.
The image has no name. Its descriptor travels with the handle: to a process that starts, through
multiprocessing's queues and pipes, or inside another image.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fastiter._ring.serialization import Packed, dumps, unpack
from fastiter._workers.shm_image import Image

if TYPE_CHECKING:
    from fastiter._workers.main import Job
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
    """Per thread, the handles inside of an image that is being packed, or loaded."""

    packing: list[Shared[Any]] | None = None
    loading: tuple[Shared[Any], ...] = ()


_context = _Reduction()


class Shared(Generic[T]):
    """A handle of an object in shared memory; `fastiter.kernels.share` makes one."""

    def __init__(self, image: Image, carried: tuple[Shared[Any], ...], key: bytes):
        self._image = image
        self._carried = carried  # handles that are part of the object
        self._key = key  # the same in all processes
        self._packed: Packed | None = None  # what is still to be written
        self._loaded: dict[str, T] = {}

    @classmethod
    def reserve(
        cls, value: T, what: str, remedy: str, make: Callable[..., bytes] = dumps
    ) -> Shared[T]:
        """A handle whose memory is still to be filled, by `write`. The value is pickled now, but
        for its large buffers. `what` and `remedy` are for the error where it does not fit."""
        with packing() as carried:
            packed = Packed(value, least=_BUFFER_BYTES, make=make, writable=False)
        handle = cls(Image.create(packed.size, what, remedy), tuple(carried), os.urandom(16))
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
        self._packed.write_to(self._image.fd)
        self._packed = None

    @property
    def value(self) -> T:
        """The object, in this process. It is loaded at the first use, and is the same from then
        on. Its arrays are writable where those of the original were; what is written stays in this
        process.

        Raises
        ------
        Exception
            What the loading of the pickle raises; MemoryError if the address space is used up;
            ValueError if the handle was closed before.
        """
        try:
            return self._loaded["value"]
        except KeyError:
            pass
        if self._image.fd < 0:
            raise ValueError("this handle was closed in this process before its value was loaded")
        before, _context.loading = _context.loading, self._carried
        try:
            value = unpack(self._image.map())
        finally:
            _context.loading = before
        return self._loaded.setdefault("value", value)  # another thread may have been faster

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory, without that of handles inside."""
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

    def forget(self) -> None:
        """Let go of the object in this process, which has closed the handle."""
        self._loaded.clear()

    def __repr__(self) -> str:
        return f"<fastiter.kernels.Shared: {self.nbytes} bytes>"

    def __copy__(self) -> Shared[T]:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if _context.packing is None:
            raise TypeError(_NO_WAY)
        _context.packing.append(self)
        return _carried, (len(_context.packing) - 1,)


@contextlib.contextmanager
def packing() -> Iterator[list[Shared[Any]]]:
    """Within it, handles may be pickled: they are put down here, and only their number goes into
    the pickle."""
    before = _context.packing
    carried: list[Shared[Any]] = []
    _context.packing = carried
    try:
        yield carried
    finally:
        _context.packing = before


def is_packing() -> bool:
    """Whether handles may be pickled now."""
    return _context.packing is not None


def reserve_file(nbytes: int) -> Shared[None]:
    """A handle of shared memory that processes write themselves. No page is taken before that."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("fastiter", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return Shared(Image.adopt(fd, nbytes), (), os.urandom(16))


def _carried(number: int) -> Shared[Any]:
    return _context.loading[number]


def _through_multiprocessing(handle: Shared[Any]) -> tuple[Any, ...]:
    if handle._image.fd < 0:
        raise ValueError("this handle is closed in this process: it can travel no more")
    duplicate = reduction.DupFd(handle._image.fd)
    return _arrive, (duplicate, handle.nbytes, handle._carried, handle._key)


def _arrive(
    duplicate: Any, nbytes: int, carried: tuple[Shared[Any], ...], key: bytes
) -> Shared[Any]:
    try:
        fd = duplicate.detach()
    except (OSError, EOFError) as error:
        raise RuntimeError(
            "the memory of a shared object could not be fetched from the process that sent its "
            "handle: has that process ended?"
        ) from error
    image = Image.adopt(fd, nbytes)
    known = _here.setdefault(key, Shared(image, carried, key))
    if known._image.fd < 0:
        known._image = image
    return known


reduction.ForkingPickler.register(Shared, _through_multiprocessing)


def share(obj: T) -> Shared[T]:
    """What `fastiter.kernels.share` is."""
    handle = Shared.reserve(obj, "a shared object", "share less of it, or let it read from files")
    handle.write()
    return handle


# ---- the image of a job --------------------------------------------------------------------------


def image_of(job: Job, caller: Caller) -> Shared[Job] | None:
    """The image of a job, still to be written; None if it holds locks or queues of multiprocessing,
    which pickle only while a process starts."""
    instead = f"pass {caller.context}='fork', or {caller.instead}"
    remedy = f"let it read from files, or {instead}"
    try:
        return Shared.reserve(job, job.image, remedy)
    except RuntimeError as error:
        if "inheritance" in str(error):
            return None
        raise
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        with contextlib.suppress(Exception):
            pickler = importlib.import_module("cloudpickle").CloudPickler
            make = functools.partial(dumps, pickler=pickler)
            return Shared.reserve(job, job.image, remedy, make)
        raise TypeError(
            f"{_unpicklable_part(job)} cannot be pickled for the worker processes: {error}. Define "
            f"it at module level, or {instead}; with cloudpickle installed, lambdas and local "
            "classes travel too"
        ) from error


def _unpicklable_part(job: Job) -> str:
    """Names the smallest attribute that does not pickle."""
    for name, value in job.names.items():
        if _pickles(value):
            continue
        for _ in range(4):
            parts = vars(value).items() if hasattr(value, "__dict__") else ()
            bad = next(((k, v) for k, v in parts if not _pickles(v)), None)
            if bad is None:
                break
            name, value = f"{name}'s attribute {bad[0]!r}", bad[1]
        return f"{name} ({type(value).__qualname__})"
    return next(reversed(job.names))


def _pickles(value: object) -> bool:
    try:
        with packing():
            dumps(value, 5, lambda buffer: None)
    except Exception:
        return False
    return True
