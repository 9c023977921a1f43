"""The rows of an epoch that is planned in windows: their number, and their indices.

Rows are numbered through their epoch. The index of a row, which iterators and workers have,
includes epoch, window and place in the window, so that fetching the row needs the plan of this
window alone.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]


class _Counts(NamedTuple):
    first: int  # the first window that is counted
    before: int  # rows before it
    ends: list[int]  # rows until the end of each window from it on

    def place(self, number: int) -> int:
        """Rows before a window of that number among these."""
        return self.ends[number - 1] if number else self.before


class WindowPlanner(Protocol):
    """Plans the rows of one window of documents after the other, as `RowPlanner` does."""

    window: int  # documents
    n_windows: int
    n_documents: int
    row_bits: int

    def first_index(self, epoch: int, number: int) -> int: ...
    def plan(self, epoch: int, number: int, *, only_count: bool = False) -> Any: ...
    def planned(self, epoch: int, number: int) -> Any: ...


class EpochRows:
    """Counts windows as far as requested, from 0 on, or from the window given to `begin`.

    Any thread may call it.
    """

    def __init__(self, planner: WindowPlanner, epoch: int) -> None:
        self._planner, self._epoch = planner, epoch
        self._lock = threading.Lock()
        self._counts = _Counts(0, 0, [])
        #: rows before each window, and of all; None until all are counted
        self._befores: Indices | None = None

    def begin(self, window: int, before: int) -> None:
        """Count from this window on, which has ``before`` rows before it, unless it is counted."""
        first, known, ends = self._counts
        if before < known or window > first + len(ends):
            self._counts = _Counts(window, before, [])

    def _from(self, row: int) -> _Counts:
        if row < self._counts.before:
            self._counts = _Counts(0, 0, [])
        return self._counts

    def _count_one(self, counts: _Counts, *, is_used: bool) -> bool:
        """Count one more window, kept planned if its rows are used; False: it was the last."""
        number = counts.first + len(counts.ends)
        if number >= self._planner.n_windows:
            return False
        if is_used:
            n_rows = self._planner.planned(self._epoch, number).n_rows
        else:
            n_rows = self._planner.plan(self._epoch, number, only_count=True)
        with self._lock:
            known = len(counts.ends)
            if number == counts.first + known:  # no other thread has counted it
                counts.ends.append(counts.place(known) + n_rows)
        return True

    def _count(self, counts: _Counts, row: float, *, is_used: bool = True) -> int:
        """Count windows up to that of a row, or all; return the rows before and in these."""
        while (n := counts.place(len(counts.ends))) <= row:
            if not self._count_one(counts, is_used=is_used):
                break
        return n

    def within(self, stop: int) -> int:
        """Rows of the epoch if there are at most ``stop``, else ``stop`` or more."""
        return self._count(self._counts, stop)

    def __len__(self) -> int:
        return self._count(self._counts, math.inf, is_used=False)

    def place(self, row: int) -> tuple[int, int]:
        """A window at a row, or before it as far as windows are counted, and the rows before it."""
        counts = self._from(row)
        number = bisect_right(counts.ends, row)
        return counts.first + number, counts.place(number)

    def window_of(self, row: int) -> tuple[int, int, int] | None:
        """The window of a row, the rows before it, and those until its end; None if there is no
        such row."""
        counts = self._from(row)
        self._count(counts, row)
        number = bisect_right(counts.ends, row)
        if number == len(counts.ends):
            return None
        return counts.first + number, counts.place(number), counts.ends[number]

    def share(self, row: int) -> float:
        """Share of the epoch's documents that come before a row."""
        found = self.window_of(row)
        if found is None:
            return 1.0
        number, before, end = found
        planner = self._planner
        first = number * planner.window
        n = min(planner.window, planner.n_documents - first)
        return (first + (row - before) / (end - before) * n) / planner.n_documents

    def indices(self, start: int, stop: int) -> Indices:
        """The indices of rows from ``start`` to below ``stop``, which exist."""
        parts = []
        while True:
            found = self.window_of(start)
            assert found is not None
            number, before, end = found
            begin = self._planner.first_index(self._epoch, number) - before
            last = min(stop, end)
            parts.append(np.arange(begin + start, begin + last, dtype=np.int64))
            if last == stop:
                return parts[0] if len(parts) == 1 else np.concatenate(parts)
            start = last

    def named(self, rows: Indices) -> Indices:
        """The indices of rows in any order; of those that do not exist, indices of no row."""
        befores = self._befores
        if befores is None:
            if self._counts.first:
                self._counts = _Counts(0, 0, [])
            counts = self._counts
            self._count(counts, math.inf, is_used=False)
            befores = self._befores = np.array([0, *counts.ends], dtype=np.int64)
        windows = np.searchsorted(befores[1:], rows, side="right")
        first, step = self._planner.first_index(self._epoch, 0), 1 << self._planner.row_bits
        named: Indices = np.where(rows < 0, rows, first + windows * step + rows - befores[windows])
        return named

    def numbers(self, indices: Indices) -> Indices:
        """The numbers of rows with these indices, which are of this epoch."""
        places = indices - self._planner.first_index(self._epoch, 0)
        windows, rows = np.divmod(places, 1 << self._planner.row_bits)
        if not len(rows):
            return rows
        low, high = int(windows.min()), int(windows.max())
        counts = self._counts = self._counts if low >= self._counts.first else _Counts(0, 0, [])
        while counts.first + len(counts.ends) < high and self._count_one(counts, is_used=True):
            pass
        befores = [counts.place(window - counts.first) for window in range(low, high + 1)]
        numbers: Indices = rows + np.array(befores, dtype=np.int64)[windows - low]
        return numbers
