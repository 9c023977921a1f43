"""The limit of the time that a thread may take for an example or a batch's converter."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from fastiter._stats.timer import now
from fastiter._threads.tasks import Attempts
from fastiter._util.running_time import RunningTime
from fastiter._util.warn import warn_caller
from fastiter.errors import DatasetTimeoutError, TimeoutWarning

if TYPE_CHECKING:
    from fastiter._threads.pool import Claim, Threads

_LATE_SECONDS = 0.1

logger = logging.getLogger("fastiter")


class TimeLimit(Attempts):
    """``dataset_timeout`` of an iterator: warns of what takes longer, or (``retries``) has other
    threads fetch the rows of one that does, at most ``n_retries`` times for a row.

    `check` is called by the thread that waits for a batch.
    """

    def __init__(self, seconds: float, retries: bool, n_retries: int) -> None:
        super().__init__(seconds, n_retries)
        self.retries = retries
        self.n_ended = 0  # claims that were taken away
        self._running = RunningTime()
        self._warned: dict[tuple[int, int], int] = {}  # by thread and begin, how often

    def check(self, threads: Threads, goal: str) -> float:
        """Check what all threads do; return seconds until the next check."""
        time = now() / 1e9
        self._running.runs(time, time + self.seconds / 2)
        sleep = min(threads.check(), self.seconds)
        claims = threads.claims()
        if self._warned:
            alive = {(claim.thread.native_id or 0, claim.at.since) for claim in claims}
            self._warned = {key: n for key, n in self._warned.items() if key in alive}
        for claim in claims:
            at = claim.at
            row, since = at.row, at.since
            if at.is_lost:
                threads.replace(claim)  # again: an interrupt came before
                continue
            if since == 0:
                continue
            seconds = self._running.since(since / 1e9, time)
            key = claim.thread.native_id or 0, since
            n_warned = self._warned.get(key, 0)
            limit = self.seconds * (max(at.rows, 1) if self.retries else n_warned + 1)
            if seconds <= limit:
                sleep = min(sleep, limit - seconds)
                continue
            stack = _stack_of(claim.thread)
            if self.retries:
                self._end(threads, claim, row, since, seconds, stack)
                continue
            self._warned[key] = n_warned + 1
            warn_caller(
                TimeoutWarning(
                    f"{claim.what} has been worked on for {seconds:.1f} s (dataset_timeout="
                    f"{self.seconds} s) in worker thread {claim.thread.name}; waiting for {goal}. "
                    f"Its Python stack now:\n{stack}"
                )
            )
        time = now() / 1e9
        self._running.runs(time, time + sleep + _LATE_SECONDS)
        return sleep

    def end(self) -> None:
        time = now() / 1e9
        self._running.runs(time, time + self.seconds / 2)

    def _end(
        self, threads: Threads, claim: Claim, row: int, since: int, seconds: float, stack: str
    ) -> None:
        """Take a claim away from a thread that hangs, and have another thread go on with it."""
        if not threads.may_replace():
            raise DatasetTimeoutError.of(
                f"no thread is left: {threads.n_abandoned} of them hang, and {claim.what} takes "
                f"longer than dataset_timeout={self.seconds} s, too. Use a MultiprocessIterator, "
                "whose workers can be ended.",
                None,
                seconds,
                1,
                stack,
            )
        claim.task.overruns[claim.at] = (seconds, stack)
        if not claim.at.take_away(row, since):
            return
        self.n_ended += 1
        logger.warning(
            "thread %s is abandoned: %s took longer than dataset_timeout=%s s. It is left behind "
            "as a daemon thread. Its Python stack:\n%s",
            claim.thread.name,
            claim.what,
            self.seconds,
            stack,
        )
        threads.replace(claim)


def _stack_of(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)).rstrip() if frame is not None else ""
