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

    Parameters
    ----------
    seconds : float or None
        That one of them may take for one thing; None warns of nothing.
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
        """Warns of what takes too long, by one warning for each further period.

        Parameters
        ----------
        goal : str
            What is waited for.

        Raises
        ------
        TimeoutWarning
            Where warnings are errors. It is not repeated then.
        """
        if self.seconds is None:
            return
        now = status.now()
        progress, is_quiet = 0, True
        for member in self._group.members:
            if member is None:
                continue
            report = self._ring.report(member.number)
            progress += report["rows"] + report["claims"]
            since = self._busy_since(member, report, now)
            if since is None:
                continue
            is_quiet = False
            if since != member.warned_since:
                member.warned_since, member.warnings = since, 0
            seconds = now - since
            if seconds > self.seconds * (member.warnings + 1):
                member.warnings += 1
                self._warn_of(member, report, seconds, goal)
        if not is_quiet or progress != self._progress:
            self._progress, self._quiet_since, self._quiet_warnings = progress, now, 0
        elif now - self._quiet_since > self.seconds * (self._quiet_warnings + 1):
            self._quiet_warnings += 1
            self._warn_of_nothing(now - self._quiet_since, goal)

    def _busy_since(self, member: WorkerProcess, report: Report, now: float) -> float | None:
        """When the worker has begun its present step; None if it is idle, or the time was
        overwritten."""
        since = report["since"] / 1e9
        if member.born <= since <= now:
            return since
        return None if self._has_begun(member, report) else member.born

    @staticmethod
    def _has_begun(member: WorkerProcess, report: Report) -> bool:
        return report["pid"] == member.pid or report["ready"] == member.start

    def _warn_of(self, member: WorkerProcess, report: Report, seconds: float, goal: str) -> None:
        index = report["index"]
        if not self._has_begun(member, report):  # it does not handle the stack signal yet
            what, stack = "it has been starting", ""
        else:
            if index == status.STARTING:
                what = "it has been starting"
            elif index == status.LOADING:
                what = "the dataset has been loading"
            elif index == status.FINISHING:
                what = "the converter has been busy"
            else:
                what = f"the dataset has been busy with index {index}"
            stack = f". Its Python stack now:\n{self._group.stack_of(member)}"
        self._warn(f"{what} for {seconds:.1f} s", f" in worker process {member.pid}", goal, stack)

    def _warn_of_nothing(self, seconds: float, goal: str) -> None:
        members = [member for member in self._group.members if member is not None]
        states = ", ".join(f"{member.pid} {member.state()}" for member in members)
        self._warn(
            f"no worker process has made progress for {seconds:.1f} s", f": {states}", goal, ""
        )

    def _warn(self, what: str, where: str, goal: str, stack: str) -> None:
        warn_caller(
            TimeoutWarning(
                f"{what} (dataset_timeout={self.seconds} s){where}; waiting for {goal}{stack}"
            )
        )
