"""Time in which this process ran."""

from __future__ import annotations

from collections import deque


class RunningTime:
    """Measures the part of a time in which this process ran, and was not stopped (by SIGSTOP, a
    debugger, a frozen control group).

    The process reports from time to time that it runs, and the latest time of its next report. Time
    after that counts as stopped. Times are seconds on one clock.
    """

    def __init__(self) -> None:
        self._stops: deque[tuple[float, float]] = deque(maxlen=64)
        self._until = float("inf")

    def runs(self, now: float, until: float) -> None:
        """Report that this process runs, and reports again at ``until`` at the latest."""
        if now > self._until:
            self._stops.append((self._until, now))
        self._until = until

    def since(self, begin: float, now: float) -> float:
        """Seconds in which it ran from ``begin`` until ``now``."""
        return now - begin - sum(max(0.0, end - max(stop, begin)) for stop, end in self._stops)
