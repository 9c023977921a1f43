"""Batches that the calling thread makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastiter._engine.executor import capture_in
from fastiter._stats.stats import LoaderStats
from fastiter._util.failures import Failure, FailurePolicy

if TYPE_CHECKING:
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._ring.arena import Arena
    from fastiter._stats.trace import WorkerTraces


class CallerExecutor:
    """An `Executor` without workers.

    Parameters
    ----------
    batch_maker : object
        ``gather(indices)`` makes a batch at once, or returns None; ``batch_maker.batch(plan, seed,
        policy)`` makes any.
    policy : FailurePolicy or None
    is_seeded : bool
        Whether the global generators are seeded for examples and converter.
    """

    n_workers = n_prefetch = 0
    arena: Arena | None = None

    def __init__(self, batch_maker: Any, policy: FailurePolicy | None, is_seeded: bool, seed: Seed):
        self._batch_maker = batch_maker
        self._policy = policy
        self._is_seeded = is_seeded
        self.seed = seed

    def start(self, plans: PlanQueue) -> None:
        """Nothing is made ahead."""

    def make(self, plans: PlanQueue, plan: Plan) -> Plan:
        maker = self._batch_maker
        try:  # without a call more, for batches that take a few microseconds
            if maker.gather is not None:
                plan.outcome = maker.gather(plan.indices)
                if plan.outcome is not None:
                    return plan
            if not self._is_seeded:
                plan.outcome = maker.batch(plan, self.seed, self._policy)
                return plan
        except Exception as error:  # a signal handler's, too
            plan.outcome = Failure.of(error)
            return plan
        arguments = plan, self.seed, self._policy
        plan.outcome = capture_in(self.seed, plan, maker.batch, *arguments)
        return plan

    def ready(self, plans: PlanQueue) -> Plan | None:
        return None

    def drop(self, begun: list[Any]) -> None:
        """Nothing is under way."""

    def interrupt(self) -> None:
        """The caller does not wait."""

    def after_fork(self, lock: Any) -> None:
        """There are no workers."""

    def close(self) -> None:
        """There are no workers."""

    def join(self) -> None:
        """There are no workers."""

    def adjust(self, name: str, count: int) -> None:
        """There is no setting."""

    def is_steady(self) -> bool:
        return True

    def bytes_each(self, name: str) -> int:
        return 0

    def stats(self, seconds: float) -> LoaderStats:
        return LoaderStats()

    def trace(self, on: bool) -> None:
        """There are no workers."""

    def traces(self) -> WorkerTraces:
        return {}
