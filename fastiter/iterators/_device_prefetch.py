"""Iterators whose workers make batches ahead, and copies of these to a GPU, also ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fastiter._stats.autotune import FIRST_PREFETCH
from fastiter._util.arguments import checked_seconds
from fastiter._util.failures import Failure, capture
from fastiter.iterators._arguments import OnTimeout, checked_retries
from fastiter.iterators._base import PlannedIterator

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer
    from fastiter._order.plan import Plan
    from fastiter.iterators._stream_parts import PartStore


class _Copy(NamedTuple):
    """The copy of a batch as the work of its plan."""

    batch: Any  #: a `PendingBatch`, or the batch's `Failure`


class PrefetchingIterator(PlannedIterator):
    """Base of the iterators whose ``pool`` of workers makes batches on the host."""

    _n_device_prefetch: int
    _n_prefetch: int | Literal["auto"]
    _dataset_timeout: float | None
    _on_timeout: OnTimeout
    _n_retries: int

    def _set_timeout(self, dataset_timeout: Any, on_timeout: Any, n_retries: Any) -> None:
        """Check the limit of a worker's time, and the action when a worker exceeds it."""
        self._dataset_timeout = checked_seconds("dataset_timeout", dataset_timeout)
        self._on_timeout, self._n_retries = checked_retries(
            on_timeout, n_retries, self._dataset_timeout
        )

    @property
    def dataset_timeout(self) -> float | None:
        """Seconds that the dataset may take for one example; None for no limit."""
        return self._dataset_timeout

    @property
    def on_timeout(self) -> OnTimeout:
        """Treatment of a worker that takes longer than `dataset_timeout`."""
        return self._on_timeout

    @property
    def n_retries(self) -> int:
        """Number of further attempts to fetch an example that takes too long, with
        `on_timeout='retry'`."""
        return self._n_retries

    def _reading_arguments(self, store: PartStore, n_workers: int) -> dict[str, Any]:
        """Arguments of the iterator that reads parts of a `StreamDataset` for this one."""
        seconds = self._dataset_timeout
        ahead = FIRST_PREFETCH if self._n_prefetch == "auto" else self._n_prefetch
        if self._on_timeout == "retry":
            assert seconds is not None
            seconds *= store.rows  # as a call of ``__getitems__`` for as many
        return {
            "shuffle": False,
            "n_prefetch": store.parts_ahead(ahead, n_workers),
            "dataset_timeout": seconds,
            "on_timeout": self._on_timeout,
            "n_retries": self._n_retries,
        }

    def _top_up(self, pool: Any) -> None:
        """Have the workers begin as many batches as are wanted ahead."""
        raise NotImplementedError

    def _wait_for(self, pool: Any, plan: Plan) -> Any:
        """Block until the oldest batch, that of ``plan``, is there; return it or its `Failure`."""
        raise NotImplementedError

    def _take_ready(self, pool: Any) -> tuple[Plan, Any] | None:
        """Return the oldest batch, or None if it is not complete, or if ``on_error`` has to decide
        about a row of it, which must wait for the batch's turn."""
        raise NotImplementedError

    def _forget(self, work: Any) -> None:
        """The batch of some work is being copied to the GPU: the work is over."""

    @property
    def n_device_prefetch(self) -> int:
        """Batches copied to a GPU ahead of the one that ``next()`` returns."""
        return self._n_device_prefetch

    def _fetch_to_gpu(self, pool: Any, plan: Plan) -> Any:
        """Return the batch of ``plan``, for the GPU's current stream, or its `Failure`; and begin
        to copy those after it that are ready.

        Blocks until the batch is there on the host. Blocks also while more than
        ``n_device_prefetch + 1`` earlier batches are still being copied: a program that is far
        ahead of its GPU has to wait.
        """
        transfer, most = self._source.gpu(), self._n_device_prefetch + 1
        try:
            self._top_up(pool)
        except MemoryError:
            if type(plan.work) is not _Copy:
                raise
        if type(plan.work) is not _Copy:
            transfer.wait(most)
            self._begin_copy(transfer, plan, self._wait_for(pool, plan))
        while self._count_copies() < most and transfer.poll() <= most:
            taken = self._take_ready(pool)
            if taken is None:
                break
            self._begin_copy(transfer, *taken)
        copy = plan.work
        if type(copy) is not _Copy:  # by a signal handler or another thread
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        return copy.batch if isinstance(copy.batch, Failure) else capture(copy.batch.hand_out)

    def _begin_copy(self, transfer: AsyncTransfer, plan: Plan, batch: Any) -> None:
        """Begin to copy a batch; an exception is the batch's failure."""
        if not isinstance(batch, Failure):
            batch = capture(transfer.begin, batch)
        work, plan.work = plan.work, _Copy(batch)
        self._forget(work)

    def _count_copies(self) -> int:
        """Batches whose copy has begun, and that were not delivered."""
        return sum(type(work) is _Copy for work in self._planner.works())
