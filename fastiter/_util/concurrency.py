"""Objects shared by threads, or inherited by forked children."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

T = TypeVar("T")

_START_SECONDS = 10  # that a new thread may take to its first instruction

if TYPE_CHECKING:
    made_once = functools.cached_property
else:

    class made_once:
        """`functools.cached_property` without the lock that it has before Python 3.12, one for all
        objects: a child that is forked while another thread has it would wait for ever."""

        def __init__(self, func):
            self.func, self.__doc__ = func, func.__doc__

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.func.__name__, self.func(instance))


class _Started(threading.Event):
    """In place of the event that ``Thread.start`` waits for: of a thread that finds no memory to
    begin it would wait without end."""

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        # In parts: while the program is stopped, or another thread has the GIL, only one ends.
        if not any(super(_Started, self).wait(1.0) for _ in range(_START_SECONDS)):
            raise RuntimeError(
                "can't start new thread: it found no memory to begin; raise RLIMIT_AS (ulimit -v)"
            )
        return True


def start_thread(thread: threading.Thread) -> None:
    """``thread.start()``, whose RuntimeError also tells of a thread that ended before it ran."""
    thread._started = _Started()  # type: ignore[attr-defined]
    try:
        thread.start()
    except Exception as error:
        threading._limbo.pop(thread, None)  # type: ignore[attr-defined]
        if not any(arg is thread for arg in error.args):
            raise
        raise (error.__context__ or error) from None  # a handler's: the thread had begun


class WeakObjects(Generic[T]):
    """A set of objects, by identity, that does not keep them alive.

    Unlike `weakref.WeakSet`, other threads and garbage collections may change it during a loop.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, item: T) -> None:
        # A callback without bytecode: an interrupt that came in one would be lost.
        forget = functools.partial(self._references.pop, id(item))
        self._references[id(item)] = weakref.ref(item, forget)

    def __iter__(self) -> Iterator[T]:
        # A single step: no other thread runs and nothing is collected meanwhile.
        references = list(self._references.values())
        return (item for reference in references if (item := reference()) is not None)


class ThreadOfNoLocks(threading.Thread):
    """A thread beside which the process may fork: it takes no lock but the interpreter's and that
    of memory, which a fork keeps in order, and ends soon."""


_owners: WeakObjects[Any] = WeakObjects()


def renew_in_child(owner: Any) -> None:
    """Call ``owner._after_fork()`` in each child that this process forks, to replace its locks.

    A lock that another thread held during the fork would never be free there. The child finds the
    object as an exception, such as that of Ctrl-C, would have left it at that moment.
    """
    _owners.add(owner)


def lock_of_child(lock: Any) -> Any:
    """The `threading.RLock` to use in a child: a new one if a thread holds it that is not there."""
    if not lock.acquire(blocking=False):
        return threading.RLock()
    lock.release()  # free, or held by the child's only thread
    return lock


def _after_fork_in_child() -> None:
    with contextlib.ExitStack() as stack:  # calls all of them, even if one raises
        for owner in _owners:
            stack.callback(owner._after_fork)


os.register_at_fork(after_in_child=_after_fork_in_child)


def items_of(items: deque[T]) -> list[T]:
    """A copy of a deque that other threads may change meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # it was changed during the copy
            return list(items)
