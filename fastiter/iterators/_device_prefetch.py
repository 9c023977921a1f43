"""Copies of batches to a GPU that begin before the batches are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastiter._util.failures import Failure, capture

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer
    from fastiter.iterators._state import Plan, Planner


class Host(Protocol):
    """An iterator whose ``pool`` of workers makes batches on the host."""

    def _top_up(self, pool: Any) -> None:
        """Have the workers begin as many batches as are wanted ahead."""

    def _wait_for(self, pool: Any, plan: Plan) -> Any:
        """Block until the oldest batch, that of ``plan``, is there; return it or its `Failure`."""

    def _take_ready(self, pool: Any) -> tuple[Plan, Any] | None:
        """Return the oldest batch, or None if it is not complete, or if ``on_error`` has to decide
        about a row of it, which must wait for the batch's turn."""

    def _forget(self, work: Any) -> None:
        """The batch of this work was taken over."""


class _Copy(NamedTuple):
    """The copy of a batch as the work of its plan."""

    batch: Any  #: a `PendingBatch`, or the batch's `Failure`


class DevicePrefetch:
    """The batches that are being copied to a GPU; their plans own the copies.

    Parameters
    ----------
    transfer : AsyncTransfer
        Copies the batches. Closed by its owner.
    planner : Planner
        The iterator's.
    depth : int
        Batches to copy ahead of the one that ``next()`` returns.
    """

    def __init__(self, transfer: AsyncTransfer, planner: Planner, depth: int) -> None:
        self.transfer = transfer
        self._planner = planner
        self._depth = depth

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
        try:
            host._top_up(pool)
        except MemoryError:
            if type(plan.work) is not _Copy:
                raise
        if type(plan.work) is not _Copy:
            self.transfer.wait(self._depth + 1)
            self._begin(host, plan, host._wait_for(pool, plan))
        while self.n_copies <= self._depth and self.transfer.poll() <= self._depth + 1:
            taken = host._take_ready(pool)
            if taken is None:
                break
            self._begin(host, *taken)
        copy = plan.work
        if type(copy) is not _Copy:
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        return copy.batch if isinstance(copy.batch, Failure) else capture(copy.batch.hand_out)

    def _begin(self, host: Host, plan: Plan, batch: Any) -> None:
        """Begin to copy a batch; an exception is the batch's failure."""
        if not isinstance(batch, Failure):
            batch = capture(self.transfer.begin, batch)
        work, plan.work = plan.work, _Copy(batch)
        host._forget(work)

    @property
    def n_copies(self) -> int:
        """Batches whose copy has begun, and that were not delivered."""
        return sum(type(work) is _Copy for work in self._planner.works())
