"""One thread of one process at a time, for each file of the cache.

Locks save work here; what is right does not depend on them. Where a file system has none, or lies
about them, several may make the same file, and each puts a whole one in its place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fastiter.dataset._download.place import hidden_name

if TYPE_CHECKING:
    from filelock import BaseFileLock

_log = logging.getLogger("fastiter")


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Holds the lock of a file of the cache, whose directory exists. Blocks until it is free.

    Raises RuntimeError where waiting would never end: if this thread, or one that waits for this
    one, holds the lock already.
    """
    directory, name = os.path.split(target)
    key = os.path.join(os.path.realpath(directory), name)
    pid = os.getpid()
    _threads.take(key)
    try:
        lock = _take_file(os.path.join(directory, f"{hidden_name(target)}.lock"))
        try:
            yield
        finally:
            if lock is not None and os.getpid() == pid:
                with contextlib.suppress(OSError):  # the file is there, or the error is known
                    lock.release()
    finally:
        _threads.give(key)


def _take_file(path: str) -> BaseFileLock | None:
    """Locks a file against other processes; gives None where that cannot be done."""
    import filelock

    # Without the fallback, a lock by a file's mere existence, which outlives a killed process.
    lock = filelock.FileLock(path, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except (OSError, NotImplementedError) as error:
        _log.info("Going on without the lock %s: %s", path, error)
        return None
    return lock


class _ThreadLocks:
    """Locks of this process's threads, by name, that know who waits for whom."""

    def __init__(self, holders: dict[str, int]) -> None:
        self._changed = threading.Condition()
        self._holders = holders  # threads by what they hold
        self._waits: dict[int, str] = {}  # what a thread waits for

    def take(self, key: str) -> None:
        me = threading.get_ident()
        with self._changed:
            while key in self._holders:
                if self._waits_for_me(key, me):
                    raise RuntimeError(
                        f"the creation of {key} needs that file itself, so that it can never be "
                        "done: a creator may use the cache for other files only"
                    )
                self._waits[me] = key
                try:
                    self._changed.wait()
                finally:
                    del self._waits[me]
            self._holders[key] = me

    def _waits_for_me(self, key: str, me: int) -> bool:
        holder = self._holders.get(key)
        while holder is not None and holder != me:
            holder = self._holders.get(self._waits.get(holder, ""))
        return holder == me

    def give(self, key: str) -> None:
        with self._changed:
            del self._holders[key]
            self._changed.notify_all()

    def after_fork(self) -> _ThreadLocks:
        """What a forked child has: its only thread, and what that is in the midst of creating."""
        me = threading.get_ident()
        return _ThreadLocks({key: holder for key, holder in self._holders.items() if holder == me})


_threads = _ThreadLocks({})


def _fork() -> None:
    global _threads
    _threads = _threads.after_fork()


os.register_at_fork(after_in_child=_fork)
