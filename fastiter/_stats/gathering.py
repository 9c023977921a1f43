"""The trial that has columns gathered by workers or by the caller, whichever is faster."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        took, other = statistics.median(self._rounds[-_ROUNDS:]), self._other
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
