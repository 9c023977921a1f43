"""Copies of batches to a GPU, some of them ahead of the batch that is delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastiter._util.failures import Failure, capture

if TYPE_CHECKING:
    from fastiter._device.transfer import AsyncTransfer
    from fastiter._order.plan import Plan, PlanQueue


class DeviceStage:
    """Between an executor and the loop: has the batches copied, and hands the copies out.

    The executor's batches are copied by `begin` in its ``finish``: the outcome of a plan is a
    `PendingBatch` or a `Failure`. ``transfer_of()`` is what copies, and initialises CUDA;
    ``n_ahead`` batches are copied ahead of the one that is handed out.
    """

    def __init__(self, transfer_of: Callable[[], AsyncTransfer], n_ahead: int) -> None:
        self._transfer_of = transfer_of
        self._most = n_ahead + 1

    def begin(self, batch: Any) -> Any:
        """Begin to copy a batch of the host."""
        return self._transfer_of().begin(batch)

    def batch_of(self, executor: Any, plans: PlanQueue, plan: Plan) -> Any:
        """The batch of ``plan``, the first one of ``plans``, for the current stream of the GPU, or
        its `Failure`. Begins to copy the batches after it that are complete.

        Blocks until the batch is there on the host, and while more than ``n_ahead + 1`` earlier
        batches are still being copied: a program that is far ahead of its GPU has to wait. Called
        again for the same plan, it gives the same.
        """
        # CUDA first: how workers are started depends on whether it is initialised.
        transfer = self._transfer_of()
        try:
            executor.start(plans)
        except MemoryError:
            if plan.outcome is None:
                raise
        if executor.arena is not None:
            transfer.use_arena(executor.arena)
        if plan.outcome is None:
            transfer.wait(self._most)
            executor.make(plans, plan)
        # As many as were begun and not delivered.
        while sum(one.outcome is not None for one in plans.plans) < self._most:
            if transfer.poll() > self._most or executor.ready(plans) is None:
                break
        pending = plan.outcome
        if pending is None:  # by a signal handler or another thread
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        return pending if isinstance(pending, Failure) else capture(pending.hand_out)
