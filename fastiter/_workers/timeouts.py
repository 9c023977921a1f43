"""Warns while `next()` waits: which worker takes long, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastiter._clib import status
from fastiter._util.warn import warn_caller
from fastiter.errors import TimeoutWarning

if TYPE_CHECKING:
    from fastiter._ring.parent import ParentRing, Report
    from fastiter._workers.process import WorkerProcess
    from fastiter._workers.process_group import WorkerGroup


class Timeouts:
    """Looks at the workers' reports while `next()` waits.

    `seconds` is how long one of them may take for one thing; None warns of nothing.
    """

    def __init__(self, seconds: float | None, ring: ParentRing, group: WorkerGroup) -> None:
        self.seconds = seconds
        self._ring = ring
        self._group = group
        self._progress = -1  # of all workers, at the last look of this wait
        self._quiet_since = 0.0  # since when there was none, and nobody busy
        self._quiet_warnings = 0

    def slice(self, most: float) -> float:
        """Seconds until the next look, ``most`` at most."""
        return most if self.seconds is None else min(most, self.seconds / 2)

    def begin(self) -> None:
        """Called when a wait begins."""
        self._progress = -1

    def look(self, goal: str) -> None:
        """Warns of what takes too long, by one warning for each further period. Where warnings are
        errors, it raises them, and does not repeat them. `goal` is what is waited for."""
        if self.seconds is None:
            return
        now = status.now()
        progress, is_quiet = 0, True
        workers = list(self._group.workers.values())
        for worker in workers:
            report = self._ring.report(worker.number)
            progress += report["rows"] + report["claims"]
            since = self._busy_since(worker, report, now)
            if since is None:
                continue
            is_quiet = False
            if since != worker.warned_since:
                worker.warned_since, worker.warnings = since, 0
            seconds = now - since
            if seconds > self.seconds * (worker.warnings + 1):
                worker.warnings += 1
                self._warn_of(worker, report, seconds, goal)
        quiet = now - self._quiet_since
        if not is_quiet or progress != self._progress:
            self._progress, self._quiet_since, self._quiet_warnings = progress, now, 0
        elif quiet > self.seconds * (self._quiet_warnings + 1):
            self._quiet_warnings += 1
            states = ", ".join(f"{worker.pid} {worker.state()}" for worker in workers)
            what = f"no worker process has made progress for {quiet:.1f} s"
            self._warn(what, f": {states}", goal)

    def _busy_since(self, worker: WorkerProcess, report: Report, now: float) -> float | None:
        """When the worker has begun its present step; None if it is idle, or the time was
        overwritten."""
        since = report["since"] / 1e9
        if worker.born <= since <= now:
            return since
        return None if self._has_begun(worker, report) else worker.born

    @staticmethod
    def _has_begun(worker: WorkerProcess, report: Report) -> bool:
        return report["pid"] == worker.pid or report["ready"] == worker.start

    def _warn_of(self, worker: WorkerProcess, report: Report, seconds: float, goal: str) -> None:
        index = report["index"]
        has_begun = self._has_begun(worker, report)
        if index == status.STARTING or not has_begun:
            what = "it has been starting"
        elif index == status.LOADING:
            what = "the dataset has been loading"
        elif index == status.FINISHING:
            what = "the converter has been busy"
        else:
            what = f"the dataset has been busy with index {index}"
        if has_begun:  # else it does not handle the signal yet
            goal += f". Its Python stack now:\n{self._group.stack_of(worker)}"
        self._warn(f"{what} for {seconds:.1f} s", f" in worker process {worker.pid}", goal)

    def _warn(self, what: str, where: str, goal: str) -> None:
        text = f"{what} (dataset_timeout={self.seconds} s){where}; waiting for {goal}"
        warn_caller(TimeoutWarning(text))
