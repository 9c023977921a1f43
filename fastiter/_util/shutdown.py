"""The end of workers and daemon threads when the interpreter exits."""

from __future__ import annotations

import atexit
import functools
import threading
import weakref
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from multiprocessing import util

_PATIENCE = 5.0  # seconds; how long the exit waits for a thread that holds a lock

_begun = False


def begin() -> None:
    """Called by every exit handler that ends workers or threads."""
    global _begun
    _begun = True


def has_begun() -> bool:
    return _begun


# Runs after the exit handlers of the program that are registered from now on.
atexit.register(begin)


@functools.cache
def _import_util() -> Any:
    """multiprocessing.util, with the first workers: its import takes long."""
    from multiprocessing import util

    # Runs before multiprocessing's exit handler, which is registered by now and which ends
    # processes that a daemon thread starts meanwhile.
    atexit.register(begin)
    return util


def block_if_exiting(lock: Any = None) -> None:
    """Block a daemon thread that calls `next()` while the interpreter exits: any result or error
    would end in a traceback on stderr.

    ``lock``, held by this thread, is released, since an exit handler may wait for it. RuntimeError
    in the main thread, which runs the exit handlers.
    """
    if not _begun:
        return
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("next() was called while the interpreter exits")
    condition = threading.Condition(lock)
    if lock is None:
        condition.acquire()
    while True:
        condition.wait()


class HasWorkers(Protocol):
    """An object with worker processes that one thread at a time uses, under a lock."""

    def interrupt(self) -> None: ...
    def end_workers(self) -> None: ...


def end_at_exit(owner: HasWorkers, lock: Any) -> util.Finalize:
    """End the workers of ``owner`` when the interpreter exits: in the main thread, after a daemon
    thread that uses or starts them has released ``lock``.

    ``interrupt`` makes such a thread return, and is called without the lock; ``end_workers`` under
    it, unless the thread does not release it in time. Called under the lock, before they start.
    """
    # Runs before multiprocessing ends daemonic children at exit: it would wait for a stopped one.
    at_exit: util.Finalize = _import_util().Finalize(
        None, _end, (weakref.ref(owner), lock), exitpriority=10
    )
    block_if_exiting(lock)  # nothing would end workers that start later
    return at_exit


def _end(reference: weakref.ref[HasWorkers], lock: Any) -> None:
    begin()
    if (owner := reference()) is None:
        return
    owner.interrupt()
    is_free = lock.acquire(timeout=_PATIENCE)
    try:
        owner.end_workers()
    finally:
        if is_free:
            lock.release()
