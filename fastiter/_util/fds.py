"""File descriptors that iterators hold in the program's process."""

from __future__ import annotations

import collections
import contextlib
import errno
import fcntl
import itertools
import os
import select
import threading
from collections.abc import Iterable, Iterator

from fastiter._clib.status import closed_by_others

#: The descriptors of all iterators of this process. A forked worker keeps its own and closes the
#: rest: an open end of a pipe would hide a death, and an open arena would keep its memory alive.
held: set[int] = set()

_lock = threading.RLock()


def lock() -> contextlib.AbstractContextManager[bool]:
    """The lock around changes of `held`, and around forks of workers. It is reentrant: a garbage
    collection during a fork may close descriptors."""
    return _lock


def _renew_lock() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that does not exist in the forked child may hold it


os.register_at_fork(after_in_child=_renew_lock)


def above_stdio(fd: int) -> int:
    """Move ``fd`` above the standard streams, which a program may have closed: its prints must not
    reach a pipe between processes."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pipe() -> tuple[int, int]:
    """The ends of a pipe: to read from and to write to."""
    ends = os.pipe()
    return ends if min(ends) > 2 else (above_stdio(ends[0]), above_stdio(ends[1]))


def require(count: int, some: int) -> None:
    """Raise OSError unless ``some``, an open descriptor, can be duplicated ``count`` times.

    Otherwise multiprocessing would fail later and leave some descriptors open.
    """
    opened: list[int] = []
    try:
        # One step each: an interrupt comes before or after all of them.
        opened.extend(map(os.dup, itertools.repeat(some, count)))
    except OSError as error:
        if error.errno == errno.EBADF:
            raise closed_by_others() from error
        raise OSError(
            error.errno,
            f"starting a worker needs up to {count} file descriptors, but only {len(opened)} are "
            f"left: {error.strerror}; raise RLIMIT_NOFILE (ulimit -n) or close some files",
        ) from error
    finally:
        collections.deque(map(os.close, opened), 0)


def events(fd: int, seconds: float) -> int:
    """The events of `poll` at a descriptor within ``seconds``; `select` allows none above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return sum(seen for _, seen in poll.poll(seconds * 1000))


def close(fds: Iterable[int]) -> None:
    """Close those that the program has not closed itself."""
    with lock():
        for fd in fds:
            held.discard(fd)
            if fd >= 0:
                with unless_closed():
                    os.close(fd)


@contextlib.contextmanager
def unless_closed() -> Iterator[None]:
    """Ignore the error of a descriptor that the program has closed."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
