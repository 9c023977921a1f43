"""File descriptors that iterators hold in the program's process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
from collections.abc import Iterable, Iterator

#: What all iterators of this process hold. A worker that a fork starts keeps its own and lets go of
#: the rest: a pipe's end held open keeps others from noticing a death, an arena its memory alive.
held: set[int] = set()

_lock = threading.RLock()


def alone() -> contextlib.AbstractContextManager[bool]:
    """The lock of who changes what is open and its record, and of who forks a worker. A garbage
    collection may do the first amid the second, so it can be held twice."""
    return _lock


def _begin_anew() -> None:
    global _lock
    _lock = threading.RLock()  # another thread, which a forked child does not have, may hold it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def above_stdio(fd: int) -> int:
    """A descriptor that is none of the standard streams, which a program may have closed: what is
    printed then must not look like a sign of life or death. Takes over `fd`."""
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pipe() -> tuple[int, int]:
    """The ends of a pipe, to read from and to write to."""
    read, write = os.pipe()
    return above_stdio(read), above_stdio(write)


def require(count: int, some: int) -> None:
    """Fails early where multiprocessing would fail half way and leave some open.

    Raises
    ------
    OSError
        If `some`, an open descriptor, cannot be duplicated `count` times.
    """
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.dup(some))
    except OSError as error:
        if error.errno == errno.EBADF:
            raise closed_by_others() from error
        raise OSError(
            error.errno,
            f"starting a worker takes up to {count} file descriptors, and {len(opened)} are left: "
            f"{error.strerror}; raise RLIMIT_NOFILE or close some",
        ) from error
    finally:
        for fd in opened:
            os.close(fd)


def events(fd: int, seconds: float) -> int:
    """What `poll` sees at a descriptor within `seconds`; `select` takes none above 1023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return sum(seen for _, seen in poll.poll(seconds * 1000))


def close(fds: Iterable[int]) -> None:
    """Closes those that are open: a program may have closed them all itself."""
    with alone():
        for fd in fds:
            held.discard(fd)
            if fd >= 0:
                with unless_closed():
                    os.close(fd)


@contextlib.contextmanager
def unless_closed() -> Iterator[None]:
    """Leaves out what cannot be done with a descriptor that the program has closed."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EBADF:
            raise


def closed_by_others() -> OSError:
    """The error of an iterator whose descriptors the program has closed."""
    return OSError(
        errno.EBADF,
        "other code of this program has closed file descriptors of this iterator: make a new one, "
        "and let os.close() and os.closerange() leave alone what that code has not opened",
    )
