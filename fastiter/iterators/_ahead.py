"""Batches of an iterator that are on their way to a GPU before they are asked for."""

from __future__ import annotations

import os
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from fastiter import _device
from fastiter._util.failures import Failure, capture

if TYPE_CHECKING:
    from fastiter._device.batches import BatchTransfer
    from fastiter.iterators._state import Plan

_living: weakref.WeakSet[Ahead] = weakref.WeakSet()


class _Item:
    """A batch under way, as a `PendingBatch`, or its failure; None once it was handed out."""

    __slots__ = ("batch", "plan")

    def __init__(self, plan: Plan, batch: Any) -> None:
        self.plan = plan
        self.batch = batch


class Ahead:
    """The batches under way, the oldest one first.

    The planner delivers a batch after it was handed out here, and Ctrl-C may come in between. So a
    batch stays in its place, empty, until the next call shows that it was delivered.

    Parameters
    ----------
    transfer : BatchTransfer
        Begins and ends the copies. Closed by whoever made it.
    depth : int
        Batches under way besides the one to be handed out.
    """

    def __init__(self, transfer: BatchTransfer, depth: int) -> None:
        self.transfer = transfer
        self._depth = depth
        self._items: deque[_Item] = deque()
        _living.add(self)

    def is_in_step(self, plan: Plan) -> bool:
        """Whether what is under way goes on with ``plan``, which is to be delivered next."""
        items = self._items
        if items and items[0].batch is None and items[0].plan is not plan:
            items.popleft()
        return not items or (items[0].plan is plan and items[0].batch is not None)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to hand out."""
        return not self._items

    @property
    def has_room(self) -> bool:
        """Whether another copy may begin before anybody needs it."""
        return len(self._items) <= self._depth and self.transfer.poll() <= self._depth + 1

    def wait_for_room(self) -> None:
        """Block until at most ``depth + 1`` slots are being copied from: a program that is further
        ahead of its GPU is made to wait."""
        self.transfer.wait(self._depth + 1)

    def begin(self, plan: Plan, batch: Any) -> None:
        """Begin to copy a batch, unless it is a failure; an exception is the batch's failure."""
        if not isinstance(batch, Failure):
            batch = capture(self.transfer.begin, batch)
        self._items.append(_Item(plan, batch))

    def hand_out(self, plan: Plan) -> Any:
        """The oldest batch, that of ``plan``, for the GPU's current stream.

        Raises
        ------
        RuntimeError
            If a signal handler, or another thread, has cleared it away since it was begun.
        """
        if not self._items or self._items[0].plan is not plan:
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        item = self._items[0]
        batch, item.batch = item.batch, None
        return batch if isinstance(batch, Failure) else capture(batch.hand_out)

    def clear(self) -> None:
        """Drop all batches. Copies go on, and keep the slots that they read."""
        self._items.clear()


def _keep_all() -> None:
    _device.leak_after_fork(*(item for ahead in _living for item in ahead._items))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_all)
