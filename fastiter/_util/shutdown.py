"""What happens to workers, and to daemon threads, when the interpreter exits."""

from __future__ import annotations

import atexit
import threading
import weakref
from multiprocessing import util
from typing import Any, Protocol

_PATIENCE = 5.0  # seconds; how long the exit waits for a thread that holds a lock

_begun = False


def begin() -> None:
    """Called by the exit handlers of whatever has workers or threads."""
    global _begun
    _begun = True


# Before multiprocessing's exit handler, which was registered first: it ends processes that a daemon
# thread starts while it runs.
atexit.register(begin)


def block_if_exiting(lock: Any = None) -> None:
    """Stops a daemon thread that calls `next()` while the interpreter exits: whatever it was given
    or told now would end in a traceback on stderr.

    Parameters
    ----------
    lock : Lock or RLock, optional
        Held by this thread. It becomes free, since the exit, or an exit handler, may wait for it.

    Raises
    ------
    RuntimeError
        In the main thread, which runs the exit handlers.
    """
    if not _begun:
        return
    if threading.current_thread() is threading.main_thread():
        raise RuntimeError("next() is possible no more while the interpreter exits")
    condition = threading.Condition(lock)
    if lock is None:
        condition.acquire()
    while True:
        condition.wait()


class HasWorkers(Protocol):
    """What has worker processes, and is used by one thread at a time, under a lock."""

    def interrupt(self) -> None:
        """Makes the thread that waits for workers give up. Called without the lock."""

    def end_workers(self) -> None:
        """Ends them. Called under the lock, unless a thread does not leave it in time."""


def end_at_exit(owner: HasWorkers, lock: Any) -> util.Finalize:
    """Has the workers of `owner` ended when the interpreter exits, by the main thread, once no
    daemon thread is amid their use or start. Called before they start, by who holds the lock."""
    # Before multiprocessing ends daemonic children at exit: it would wait for a stopped one.
    at_exit = util.Finalize(None, _end, (weakref.ref(owner), lock), exitpriority=10)
    block_if_exiting(lock)  # nothing would end what begins later
    return at_exit


def _end(reference: weakref.ref[HasWorkers], lock: Any) -> None:
    begin()
    owner = reference()
    if owner is None:
        return
    owner.interrupt()
    is_free = lock.acquire(timeout=_PATIENCE)
    try:
        owner.end_workers()
    finally:
        if is_free:
            lock.release()
