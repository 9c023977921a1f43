"""Limits the time of one step of a worker: warns of longer steps, or ends the worker."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from fastiter._clib import status
from fastiter._util.running_time import RunningTime
from fastiter._util.warn import warn_caller
from fastiter._workers.process import NO_STEP, STUCK_SECONDS, Overrun, stacks_of
from fastiter.errors import TimeoutWarning

if TYPE_CHECKING:
    from fastiter._ring.parent import Report
    from fastiter._ring.scheduler import BatchScheduler
    from fastiter._workers.process import WorkerProcess
    from fastiter._workers.process_group import WorkerGroup

#: Seconds after SIGKILL until a worker that has not ended is abandoned.
UNKILLABLE_SECONDS = 5.0

_LATE_SECONDS = 0.1  # that this process may sleep longer than it asked for, and count as running
_LEAST_START_SECONDS = 30.0
_UNUSUAL = 10  # times as long as its rows take on average: a call that hangs, most likely
_WARNED_STACK_SECONDS = 1.0
_ENDED_STACK_SECONDS = 0.1

logger = logging.getLogger("fastiter")


_NEVER = float("inf")
_Late = tuple["WorkerProcess", int, float]  # with its step, and for how long


class WaitLimit(Protocol):
    """Limit of the time that an executor waits for a batch, and its message then."""

    def begin(self) -> None:
        """A wait begins."""

    def slice(self, most: float) -> float:
        """Seconds of the next sleep, at most these."""

    def is_due(self) -> bool:
        """Whether to `check` now. Called after each sleep."""

    def check(self, goal: str) -> None:
        """Called when the wait for `goal` takes long; may raise."""

    def end(self) -> None:
        """A wait ends."""


class Timeouts:
    """Looks at the workers' reports while `next()` waits, and with `retries` at each `next()`.

    `seconds` limits one step of a worker. Longer steps cause a warning. With `retries` the worker
    is ended. A call for k rows may then take k times `seconds`, unless it takes more than `seconds`
    and far longer than calls have taken so far. The start of a process may take 30 s, or 10 times
    `seconds` if that is longer, with a warning before.

    Time in which this process does not run (SIGSTOP, a debugger, a frozen control group) does not
    count then: while `next()` waits, what exceeds the sleep; between two calls, what exceeds half
    of `seconds`.
    """

    def __init__(
        self, seconds: float, ring: BatchScheduler, group: WorkerGroup, retries: bool
    ) -> None:
        self.seconds = seconds
        self.retries = retries
        self._ring = ring
        self._group = group
        self.n_ended = 0  # workers
        self._progress = -1  # of all workers, at the last check of this wait
        self._quiet_since = 0.0  # since when there was none, and no worker busy
        self._quiet_warnings = 0
        self._due = 0.0  # when the next limit passes, by the last check
        self._running = RunningTime()

    # ---- when to check

    def slice(self, most: float) -> float:
        """Seconds until the next check, at most ``most``; where workers are ended, until the next
        limit passes."""
        if not self.retries:
            return min(most, self.seconds / 2)
        now = status.now()
        oldest = self._ring.oldest_fetch()
        due = now + self.seconds if not oldest else oldest + self.seconds
        sleep = min(most, self.seconds, max(0.0, (due if due > now else self._due) - now))
        self._running.runs(now, now + sleep + _LATE_SECONDS)
        return sleep

    def begin(self) -> None:
        """Called when a wait begins."""
        self._progress = -1

    def end(self) -> None:
        """Called when a wait ends."""
        if self.retries:
            self._note_running(status.now())

    def is_due(self) -> bool:
        """Whether a limit may have passed."""
        now = status.now()
        if self.retries:
            self._note_running(now)
        oldest = self._ring.oldest_fetch()
        return now >= self._due or 0 < oldest < now - self.seconds

    def _note_running(self, now: float) -> None:
        self._running.runs(now, now + self.seconds / 2)

    # ---- what a worker does

    def _since(self, worker: WorkerProcess, report: Report, now: float) -> float:
        """When the worker has begun its present step, or came to rest."""
        since = report["since"] / 1e9
        if worker.born <= since <= now:
            return since
        if not self._has_begun(worker, report):
            return worker.born
        done = report["rows"] + report["claims"]
        if done != worker.done:
            worker.done, worker.rests_since = done, now
        return worker.rests_since

    @staticmethod
    def _has_begun(worker: WorkerProcess, report: Report) -> bool:
        return report["pid"] == worker.pid or report["ready"] == worker.start

    def _step(self, worker: WorkerProcess, report: Report, now: float) -> int | None:
        """Present step of the worker: an index of the dataset, or a number below 0 for
        another step; None if it waits for work."""
        if not self._has_begun(worker, report):
            return status.STARTING
        if worker.born <= report["since"] / 1e9 <= now:
            return report["index"]
        # The times may have been overwritten. Where it has been told of work, it has to go on.
        return None if self._ring.is_asleep(worker.number) else NO_STEP

    def _limit(self, worker: WorkerProcess, step: int, seconds: float) -> float:
        """Seconds after which a worker that has taken `seconds` is ended."""
        if step == status.STARTING:
            return max(_LEAST_START_SECONDS, 10 * self.seconds)
        if step < 0 or seconds < self.seconds:
            return self.seconds
        rows = sum(row >= 0 for _, row, _ in self._ring.losses(worker.number))
        if rows <= 1:
            return self.seconds
        # A call that is ended costs no row an attempt: they are fetched one by one then.
        reports = [self._ring.report(number) for number in range(self._group.count)]
        done = sum(report["rows"] for report in reports)
        usual = rows * sum(report["fetch_ns"] for report in reports) / 1e9 / max(done, 1)
        most = rows * self.seconds
        return min(most, self.seconds + _UNUSUAL * usual) if done else most

    # ---- check

    def check(self, goal: str) -> None:
        """Warns of steps that take too long, once for each further period, or ends the worker.
        If warnings are errors, it raises them, and does not repeat them. `goal` names the aim of
        the wait."""
        now = status.now()
        self._due = now + self.seconds
        progress, is_quiet = 0, True
        over: list[_Late] = []
        slow: list[_Late] = []
        asked = []
        workers = list(self._group.workers.values())
        for worker in workers:
            if worker.overrun is not None:
                worker.end()  # again, for an interrupt may have come before the signal
                if not worker.is_abandoned:
                    patience = UNKILLABLE_SECONDS if worker.is_stuck else STUCK_SECONDS
                    self._due_at(worker.ended + patience, now)
                continue
            if worker.number == self._group.helper:  # it waits for others
                is_quiet = False
                continue
            report = self._ring.report(worker.number)
            progress += report["rows"] + report["claims"]
            since, step = self._since(worker, report, now), self._step(worker, report, now)
            if step is None:
                worker.rests_since = now
            if step is None or (step == NO_STEP and not self.retries):
                continue
            is_quiet = is_quiet and step == NO_STEP
            if since != worker.warned_since:
                worker.warned_since, worker.warnings = since, 0
            seconds = self._running.since(since, now)
            limit = self._limit(worker, step, seconds) if self.retries else _NEVER
            period = _NEVER
            if not self.retries or step == status.STARTING:
                period = self.seconds * (worker.warnings + 1)
            if seconds > min(limit, period):
                (over if seconds > limit else slow).append((worker, step, seconds))
                if self._has_begun(worker, report):  # else it does not handle the signal yet
                    asked.append(worker)
            else:
                self._due_at(now - seconds + min(limit, period), now)
        if over or slow:
            self._tell_of(over, slow, asked, goal)
        quiet = now - self._quiet_since
        if not is_quiet or progress != self._progress:
            self._progress, self._quiet_since, self._quiet_warnings = progress, now, 0
        elif quiet > self.seconds * (self._quiet_warnings + 1) and not self.retries:
            self._quiet_warnings += 1
            states = ", ".join(f"{worker.pid} {worker.state()}" for worker in workers)
            what = f"no worker process has made progress for {quiet:.1f} s"
            self._warn(what, f": {states}", goal)

    def _due_at(self, time: float, now: float) -> None:
        self._due = min(self._due, max(time, now))

    def _tell_of(
        self, over: list[_Late], slow: list[_Late], asked: list[WorkerProcess], goal: str
    ) -> None:
        """Ends the workers that are over their limit, and warns of slow ones."""
        patience = _ENDED_STACK_SECONDS if self.retries else _WARNED_STACK_SECONDS
        stacks: dict[int, str] = {}
        try:
            stacks = stacks_of(asked, patience)
        finally:  # interrupts that come again and again must not put off the end
            for worker, step, seconds in over:
                stack = stacks.get(worker.number, "")
                worker.overrun = Overrun(step, seconds, self.seconds, stack)
                logger.warning(
                    "worker process %d is ended: %s for %.1f s (dataset_timeout=%s s, on_timeout="
                    "'retry'). Its Python stack:\n%s",
                    worker.pid,
                    self._text_of(step),
                    seconds,
                    self.seconds,
                    stack,
                )
                worker.end()
                self.n_ended += 1
        for worker, step, seconds in slow:
            worker.warnings += 1
            what = f"{self._text_of(step)} for {seconds:.1f} s"
            if worker.number in stacks:
                what_now = f"{goal}. Its Python stack now:\n{stacks[worker.number]}"
            else:
                what_now = goal
            self._warn(what, f" in worker process {worker.pid}", what_now)

    def _text_of(self, step: int) -> str:
        for plan in self._ring.scheduled:
            numbers: Any = plan.indices
            if plan.keys is not None and step in numbers:
                return step_text(step, plan.name_of(step - numbers[0]))
        return step_text(step)

    def _warn(self, what: str, where: str, goal: str) -> None:
        text = f"{what} (dataset_timeout={self.seconds} s){where}; waiting for {goal}"
        warn_caller(TimeoutWarning(text))


def step_text(step: int, row: str = "") -> str:
    """Name of the step that has taken long. ``row``: that of a row whose key is no index."""
    if step >= 0:
        return f"the dataset has been busy with {row or f'index {step}'}"
    return {
        status.STARTING: "it has been starting",
        status.LOADING: "the dataset has been loading",
        status.FINISHING: "the converter has been busy",
        NO_STEP: "it has not gone on",
    }.get(step, "it has been busy")
