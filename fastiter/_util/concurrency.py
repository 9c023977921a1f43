"""What threads, and children that this process forks, need of the objects that they share."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class WeakObjects(Generic[T]):
    """Objects, by identity, that are forgotten when they die.

    Neither a garbage collection nor another thread disturbs a loop over them, as both do with a
    set of weak references, and threads with a `weakref.WeakSet`.
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}

    def add(self, item: T) -> None:
        key, references = id(item), self._references
        references[key] = weakref.ref(item, lambda reference: references.pop(key, None))

    def __iter__(self) -> Iterator[T]:
        # One step, in which no other thread runs and nothing is collected.
        references = list(self._references.values())
        return (item for reference in references if (item := reference()) is not None)


class Owner(Protocol):
    """An object with locks, or other things that a thread may be amid the use of."""

    def _after_fork(self) -> None:
        """In a forked child, which has one thread only: make locks free that it does not hold."""


_owners: WeakObjects[Owner] = WeakObjects()


def renew_in_child(owner: Owner) -> None:
    """Has ``owner._after_fork()`` called in each child that this process forks.

    A lock that another thread holds at that moment would never be free there. The child finds the
    object as an exception at that moment would have left it, for example Ctrl-C's.
    """
    _owners.add(owner)


def lock_of_child(lock: Any) -> Any:
    """What takes the place of a `threading.RLock` in a child: itself if the child's only thread
    holds it, else a free one."""
    return lock if lock._is_owned() else threading.RLock()


def _after_fork_in_child() -> None:
    with contextlib.ExitStack() as stack:  # if one raises, the others are called all the same
        for owner in _owners:
            stack.callback(owner._after_fork)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def items_of(items: deque[T]) -> list[T]:
    """A copy of a deque that other threads change."""
    while True:
        with contextlib.suppress(RuntimeError):  # it was changed amid the copy
            return list(items)
