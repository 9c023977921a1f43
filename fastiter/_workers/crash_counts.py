"""Counts the deaths of workers, and decides when an index that kills or stops them is given up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fastiter._workers.process import Overrun

if TYPE_CHECKING:
    from fastiter._order.plan import Plan

MOST_DEATHS = 3  # of workers, by one index or the finish of one batch


class Exit(NamedTuple):
    """The end of a worker process: its number, and the reason."""

    pid: int = 0
    reason: str = "died"


class CrashCounts:
    """Deaths of workers by the index, or the text of a key, or the conversion of a batch, that must
    have caused them.

    Workers that were ended since a row took too long count by themselves: such a row is fetched
    again `n_retries` times. Batches go by their sequence number q.
    """

    def __init__(self, n_retries: int = 0) -> None:
        self._n_retries = n_retries
        # The starts of the workers: one that is counted twice, after an interrupt, counts once.
        self._deaths: defaultdict[Any, set[int]] = defaultdict(set)  # by index
        self._overruns: defaultdict[Any, set[int]] = defaultdict(set)  # likewise
        self._given_up: set[Any] = set()  # indices, when they came last
        self._of_finish: defaultdict[int, set[int]] = defaultdict(set)  # deaths, by q
        self._ends: dict[tuple[int, int], Exit | Overrun] = {}  # of the last worker, by (q, row)
        self._idle = 0

    def __bool__(self) -> bool:
        """Whether workers have died of batches that are under way, or of an index since it was last
        delivered."""
        return bool(self._deaths or self._overruns or self._of_finish or self._ends)

    def count(self, q: int, row: int, index: Any, start: int, end: Exit | Overrun) -> bool:
        """Notes the death of the worker with number `start` of all starts, that had a row, or that
        was finishing a batch (`row` is -1). Returns whether the row's index, or the finish, is
        given up. `index` is None where another row may have caused the death."""
        self._ends[q, row] = end
        is_overrun = isinstance(end, Overrun)
        if row < 0:
            self._of_finish[q].add(start)
            return is_overrun or len(self._of_finish[q]) >= MOST_DEATHS
        if index is None:
            return False
        starts = (self._overruns if is_overrun else self._deaths)[index]
        starts.add(start)
        if isinstance(end, Overrun):
            self._ends[q, row] = end._replace(attempts=len(starts))
        most = 1 + self._n_retries if is_overrun else MOST_DEATHS
        return index in self._given_up or len(starts) >= most

    def count_idle(self, workers: int) -> bool:
        """Notes the death of a worker without rows; returns whether that is too much for `workers`
        without a batch, and then counts anew."""
        self._idle += 1
        if self._idle < MOST_DEATHS * workers:
            return False
        self._idle = 0
        return True

    def last_exit(self, q: int, row: int = -1) -> Exit | Overrun:
        """The end of the worker that had the row last, or that finished the batch last."""
        return self._ends.get((q, row), Exit())

    def clear(self, indices: Iterable[Any], given_up: Iterable[int]) -> None:
        """Forgets the deaths by the indices of a complete batch, but remembers indices that were
        given up: next time one death is enough, so that such an index costs at most one worker
        in each epoch."""
        if not self._deaths and not self._overruns and not self._given_up:
            return
        rows = set(given_up)
        for row, index in enumerate(indices):
            self._deaths.pop(index, None)
            self._overruns.pop(index, None)
            if row in rows:
                self._given_up.add(index)
            else:
                self._given_up.discard(index)

    def delivered(self, q: int, left: Iterable[Plan]) -> None:
        """Forgets the deaths during a batch that leaves the ring while other batches stay; the
        workers' ends can be read until the next batch leaves."""
        self._idle = 0
        self._of_finish.pop(q, None)
        if self._ends:
            first = min([q, *(plan.q for plan in left)])
            self._ends = {place: end for place, end in self._ends.items() if place[0] >= first}
