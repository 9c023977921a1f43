"""Batches that are made by workers or by the caller, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastiter._engine.processes import ProcessExecutor
from fastiter._stats.gathering import GatherTrial

if TYPE_CHECKING:
    from fastiter._engine.caller import CallerExecutor
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._stats.stats import LoaderStats


class Choosing(ProcessExecutor):
    """Compares its worker processes with another executor, the caller.

    The processes make the first batch, so they are started, and an error of their start is raised.
    ``is_of_use()``, asked after it, tells whether the caller may be the faster one.
    """

    def __init__(
        self, caller: CallerExecutor, is_of_use: Callable[[], bool], *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._caller = caller
        self._is_of_use = is_of_use
        self._trial: GatherTrial | None = None

    def make(self, plans: PlanQueue, plan: Plan, begins: bool = True) -> Plan:
        trial = self._trial
        if trial is None:
            plan = super().make(plans, plan)
            if self._is_of_use():
                self._trial = GatherTrial()
            else:
                self.__class__ = ProcessExecutor  # type: ignore[assignment]  # costs nothing more
            return plan
        trial.n_left -= 1
        if trial.n_left < 0:
            trial.end_round(self._timer, self.n_prefetch)
        if not trial.in_caller:
            return super().make(plans, plan)
        if plan.work is not None:  # of the workers, which begin nothing more
            return super().make(plans, plan, begins=False)
        self.check_own()
        trial.n_batches += 1
        self._timer.block()
        plan = self._caller.make(plans, plan)
        self._timer.unblock()
        return plan

    def drop(self, begun: list[Any]) -> None:
        self._caller.seed = self.seed
        super().drop(begun)

    def stats(self, seconds: float) -> LoaderStats:
        found, trial = super().stats(seconds), self._trial
        if trial is None:
            return found
        return replace(found, changes=tuple(trial.changes), gathered_here=trial.n_batches)
