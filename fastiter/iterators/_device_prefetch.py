"""Copies of batches to a GPU that begin before the batches are asked for."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from fastiter import _device
from fastiter._util.failures import Failure, capture

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer
    from fastiter.iterators._state import Plan


class Host(Protocol):
    """An iterator whose ``pool`` of workers makes batches on the host."""

    def _is_in_step(self, pool: Any) -> bool:
        """Whether no batch was lost by an interrupt after it was taken."""

    def _start_over(self, pool: Any) -> None:
        """Have the next `_top_up` fetch anew all that was not delivered."""

    def _top_up(self, pool: Any) -> None:
        """Have the workers begin as many batches as are wanted ahead."""

    def _wait_for(self, pool: Any, plan: Plan) -> Any:
        """Block until the oldest batch, that of ``plan``, is there; return it or its `Failure`."""

    def _take_ready(self, pool: Any) -> tuple[Plan, Any] | None:
        """Return the oldest batch, or None if it is not complete, or if ``on_error`` has to decide
        about a row of it, which must wait for the batch's turn."""

    def _taken_over(self, pool: Any) -> None:
        """The batch returned last is among those being copied."""


class DevicePrefetch:
    """The batches that are being copied to a GPU, the oldest one first.

    Parameters
    ----------
    transfer : AsyncTransfer
        Copies the batches. Closed by its owner.
    depth : int
        Batches to copy ahead of the one that ``next()`` returns.
    """

    def __init__(self, transfer: AsyncTransfer, depth: int) -> None:
        self.transfer = transfer
        self._depth = depth
        self._pending: deque[tuple[Plan, Any]] = deque()  # each a `PendingBatch` or a `Failure`
        self._handed_out: Plan | None = None  # delivered, unless the next call is for it again
        self._is_in_step = True  # False while a batch moves from the host to here

    def fetch(self, host: Host, pool: Any, plan: Plan) -> Any:
        """Return the batch of ``plan``, for the GPU's current stream, or its `Failure`; and begin
        to copy those after it that are ready.

        Blocks until the batch is there on the host. Blocks also while more than ``depth + 1``
        earlier batches are still being copied: a program that is far ahead of its GPU has to wait.

        Raises
        ------
        RuntimeError
            If a signal handler or another thread has finalized the iterator meanwhile.
        """
        is_next = self._handed_out is not plan
        if self._pending:
            is_next = is_next and self._pending[0][0] is plan
        if not (is_next and self._is_in_step and host._is_in_step(pool)):
            self.clear()
            host._start_over(pool)
        try:
            host._top_up(pool)
        except MemoryError:
            if not self._pending:
                raise
        if not self._pending:
            self.transfer.wait(self._depth + 1)
            self._begin(host, pool, plan, host._wait_for(pool, plan))
        while len(self._pending) <= self._depth and self.transfer.poll() <= self._depth + 1:
            taken = host._take_ready(pool)
            if taken is None:
                break
            self._begin(host, pool, *taken)
        # First: if Ctrl-C comes before the batch is delivered, the next call starts over.
        self._handed_out = plan
        if not self._pending or self._pending[0][0] is not plan:
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        _, batch = self._pending.popleft()
        return batch if isinstance(batch, Failure) else capture(batch.hand_out)

    def _begin(self, host: Host, pool: Any, plan: Plan, batch: Any) -> None:
        """Begin to copy a batch; an exception is the batch's failure."""
        self._is_in_step = False
        if not isinstance(batch, Failure):
            batch = capture(self.transfer.begin, batch)
        self._pending.append((plan, batch))
        host._taken_over(pool)
        self._is_in_step = True

    def clear(self) -> None:
        """Drop all batches. Their copies go on, and keep the memory that they read."""
        self._pending.clear()
        self._handed_out = None
        self._is_in_step = True

    def leak_after_fork(self) -> None:
        """In a forked child: keep the parent's batches, whose destructors would use CUDA."""
        _device.leak_after_fork(*self._pending)
