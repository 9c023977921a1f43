"""Batches that are made by workers or by the caller, whichever is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastiter._engine.processes import ProcessExecutor

if TYPE_CHECKING:
    from fastiter._engine.caller import CallerExecutor
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._stats.stats import LoaderStats
    from fastiter._stats.timer import Timer

_ROUNDS = 3  # whose median counts
_LEAST_BATCHES = 32  # of a round
_LEAST_GAIN = 0.05  # of the time in next()
_MOST_ROUNDS = 256  # between two trials
_TOO_SLOW = 1.5  # times what the other way took in the last trial: the next one begins at once


class GatherTrial:
    """Compares the time in ``next()`` when workers gather with the time when the caller gathers.

    A trial is four rounds of batches the other way. Trials become rare, but do not end, since the
    loop and the load of the machine may change. A way that has become slower than the last time of
    the other way is left for a trial at once.
    """

    def __init__(self) -> None:
        self.in_caller = False
        self.n_batches = 0  #: that the caller has gathered
        self.n_left = 0  #: batches until `end_round` is due
        self.changes: list[str] = []
        self._mark: tuple[int, float] | None = None  # batches and seconds when the round began
        self._rounds: list[float] = []  # seconds of a batch
        self._other: float | None = None  # likewise, of the way before; None outside of trials
        self._slower = float("inf")  # likewise, of the way that lost the last trial
        self._pause = self._n_to_come = 1  # rounds before the next trial

    def end_round(self, timer: Timer, n_ahead: int) -> None:
        """End a round, and decide where the next one is gathered."""
        _, seconds, *_ = timer.read()
        if self._mark is not None and timer.batches > self._mark[0]:
            batches, since = self._mark
            self._rounds.append((seconds - since) / (timer.batches - batches))
        self._mark = timer.batches, seconds
        # Many more than were made ahead of it.
        self.n_left = _LEAST_BATCHES + 4 * n_ahead
        if len(self._rounds) <= _ROUNDS:  # batches of the way before fall into the first one
            return
        took, other = sorted(self._rounds[-_ROUNDS:])[_ROUNDS // 2], self._other
        if other is None:
            self._n_to_come -= 1
            if self._n_to_come > 0 and took <= _TOO_SLOW * self._slower:
                return
            self._other = took
            self.in_caller = not self.in_caller
        else:
            self._pause = self._n_to_come = min(4 * self._pause, _MOST_ROUNDS)
            self._other = None
            self._slower = max(took, other)
            if took > (1 - _LEAST_GAIN) * other:
                self.in_caller = not self.in_caller
            else:
                self.changes.append(
                    f"{'the caller gathers' if self.in_caller else 'workers gather'} from batch "
                    f"{timer.batches:,} on: {took * 1e6:.3g} us in next() instead of "
                    f"{other * 1e6:.3g}"
                )
        self._rounds = []


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
