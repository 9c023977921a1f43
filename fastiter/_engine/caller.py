"""Batches that the calling thread makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastiter._engine.executor import Executor, capture_in
from fastiter._util.failures import AllSkipped, FailurePolicy, failure_of
from fastiter.errors import DatasetError

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
        except Exception as error:
            plan.outcome = failure_of(error)
            return plan
        arguments = plan, self.seed, self._policy
        plan.outcome = capture_in(self.seed, plan, maker.batch, *arguments)
        return plan


class StreamExecutor:
    """Merges examples of shards, and converts them by ``batch_maker.batch_of(examples)``, for which
    the global generators are seeded if ``is_seeded``; otherwise it is ``inner``, the `Executor`
    that reads the parts of shards, whose plans are ``parts``, or a `CallerExecutor`."""

    def __init__(
        self, inner: Executor, parts: PlanQueue | None, batch_maker: Any, is_seeded: bool
    ) -> None:
        self.inner = inner
        self._parts = parts
        self._batch_maker = batch_maker
        self._is_seeded = is_seeded

    @property
    def seed(self) -> Seed:
        return self.inner.seed

    @seed.setter
    def seed(self, seed: Seed) -> None:
        self.inner.seed = seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def start(self, plans: PlanQueue) -> None:
        if self._parts is not None:
            self.inner.start(self._parts)

    def make(self, plans: Any, plan: Plan) -> Plan:
        examples = plans.examples_of(plan)
        if not examples:  # with lengths=, a shard that failed has ended before them
            error = DatasetError("the shards of all examples of the batch have ended before them")
            plan.outcome = AllSkipped(error)
            return plan
        seed = self.seed if self._is_seeded else None
        plan.outcome = capture_in(seed, plan, self._batch_maker.batch_of, examples)
        return plan

    def drop(self, begun: list[Any]) -> None:
        """The planner drops the parts."""
