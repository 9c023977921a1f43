"""Batches that the calling thread makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastiter._engine.executor import Executor, capture_in
from fastiter._util.failures import Failure, FailurePolicy

if TYPE_CHECKING:
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan, PlanQueue


class CallerExecutor(Executor):
    """An `Executor` without workers. ``batch_maker.gather(indices)`` makes a batch at once, or
    returns None; ``batch_maker.batch(plan, seed, policy)`` makes any, ``is_seeded`` with the global
    generators seeded for examples and converter."""

    def __init__(self, batch_maker: Any, policy: FailurePolicy | None, is_seeded: bool, seed: Seed):
        self._batch_maker = batch_maker
        self._policy = policy
        self._is_seeded = is_seeded
        self.seed = seed

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
