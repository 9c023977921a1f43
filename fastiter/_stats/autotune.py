"""Automatic settings: the number of workers, and how many batches are fetched ahead.

A `Tuner` follows the advice of `fastiter._stats.bottleneck` for the last moments, within the limits
of CPUs and memory, and undoes a change that did not help.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

from fastiter._clib import status
from fastiter._stats import bottleneck, timer
from fastiter._stats.iterator_stats import IteratorStats

FIRST_PREFETCH = 2
MOST_PREFETCH = 16
_WORKERS_PER_CPU = 4  # for datasets that wait for files or a network
_FIRST_WORKERS = 4
_INTERVAL_NS = 250_000_000
_LEAST_GAIN = 0.05  # of the throughput: what a change has to bring to stay
_WINDOWS = 3  # whose median is the throughput: an example that takes long may fill one of them
_PATIENCE = 40  # windows before a change that did not help is tried again, for each such time
_MOST_REFUSALS = 5  # that count
_EAGERNESS = 5  # windows that one counts as if workers are very busy, and others so desirable
_CALM_WINDOWS = 4  # in a row before the number of workers is reduced
_MEMORY_SHARE = 0.5  # of what is available, for what is added


def most_workers(cpus: float) -> int:
    """Most workers that ``n_processes='auto'`` starts."""
    wanted = max(8, math.ceil(_WORKERS_PER_CPU * cpus))
    return max(math.ceil(cpus), min(bottleneck.MOST_WORKERS, wanted))


def first_workers(cpus: float) -> int:
    """Number of workers that ``n_processes='auto'`` begins with."""
    return max(1, min(_FIRST_WORKERS, round(cpus)))


class Adjustable(Protocol):
    """A pool of worker processes, or threads, that fetch ahead. For threads, only ``n_prefetch``
    changes; for a pool ``n_processes``, too, and for a pool on a cluster ``n_workers``."""

    def is_steady(self) -> bool:
        """Whether all workers that are wanted have loaded the dataset."""

    def adjust(self, name: str, count: int) -> None:
        """Change a setting."""

    def bytes_each(self, name: str) -> int:
        """About how much memory one more of it takes."""


class _Trial(NamedTuple):
    """Changes whose effect is not known yet. The second one follows where the first only moved the
    bottleneck: more workers wait for batches to fetch, more batches wait for workers."""

    before: dict[str, int]  # the settings that were changed
    rate: float


class Tuner:
    """Watches one iterator, from within its ``next()``. ``most`` has the settings that may change,
    and how far. At least ``least`` workers stay."""

    def __init__(self, most: dict[str, int], least: int = 1) -> None:
        self.changes: list[str] = []
        self.most = most
        self._least = least
        self._due = 0
        self._marks: list[IteratorStats] = []  # where the last windows began and ended
        self._trial: _Trial | None = None
        self._futile: dict[str, int] = {}  # windows until a setting is tried again
        self._refusals: dict[str, int] = {}  # how often in a row it did not help
        self._calm = 0

    def tune(self, pool: Adjustable, stats_of: Callable[[], IteratorStats]) -> None:
        """Adjust the pool, if it is time to. Called before each batch is waited for."""
        now = timer.now()
        if now < self._due:
            return
        self._due = now + _INTERVAL_NS
        stats = stats_of()
        if stats.batches == 0 or not pool.is_steady():
            self._marks = []  # what starting workers use belongs to no measurement
            return
        if self._marks and bottleneck.diagnose(stats - self._marks[-1]).verdict == "unknown":
            return  # continue with a longer window
        self._marks = [*self._marks, stats][-_WINDOWS - 1 :]
        settings, why = self._next_change(pool) if len(self._marks) > 1 else ({}, "")
        for name, count in settings.items():
            current = _current(stats, name)
            when = f"after {stats.seconds:.1f} s"
            self.changes.append(f"{name} from {current} to {count} {when}: {why}")
            pool.adjust(name, count)
            self._marks = []

    def _next_change(self, pool: Adjustable) -> tuple[dict[str, int], str]:
        """Settings with their new values, and why."""
        recent = self._marks[-1] - self._marks[0]
        diagnosis = bottleneck.diagnose(recent)
        passed = _EAGERNESS if recent.busy > bottleneck.VERY_BUSY else 1
        self._futile = {name: left - passed for name, left in self._futile.items() if left > passed}
        self._calm = self._calm + 1 if diagnosis.verdict == "consumer-bound" else 0
        if len(self._marks) <= _WINDOWS:
            return {}, ""
        windows = [after - before for before, after in itertools.pairwise(self._marks)]
        rate = sorted(window.batches_per_second for window in windows)[_WINDOWS // 2]
        trial, self._trial = self._trial or _Trial({}, 0.0), None
        if rate >= trial.rate * (1 + _LEAST_GAIN):
            for name in trial.before:
                self._refusals.pop(name, None)
            trial = _Trial({}, rate)
        for name, wanted in diagnosis.change.items():
            current = _current(recent, name)
            count = self._allowed(pool, name, current, wanted)
            if count > current and name not in trial.before:
                self._trial = _Trial({**trial.before, name: current}, trial.rate)
                why = f"waiting {recent.wait_share:.0%}, workers {recent.busy:.0%} busy"
                return {name: count}, why
        if trial.before:
            for name in trial.before:
                refusals = min(self._refusals.get(name, 0) + 1, _MOST_REFUSALS)
                self._refusals[name] = refusals
                self._futile[name] = refusals * _PATIENCE
            return trial.before, "that did not help"
        for name in self.most.keys() & {"n_processes", "n_workers"}:
            workers = _current(recent, name)
            enough = max(self._least, math.ceil(1.5 * recent.busy * workers))
            if self._calm >= _CALM_WINDOWS and 2 * enough <= workers:
                self._calm = 0
                return {name: enough}, f"workers {recent.busy:.0%} busy"
        return {}, ""

    def _allowed(self, pool: Adjustable, name: str, current: int, wanted: int) -> int:
        """Next permitted number: at most twice as many, and as memory allows."""
        if name in self._futile or name not in self.most:
            return current
        count = min(wanted, 2 * current, self.most[name])
        room = _MEMORY_SHARE * status.memory_available()
        return min(count, current + int(room / max(pool.bytes_each(name), 1)))


def _current(stats: IteratorStats, name: str) -> int:
    if name == "n_workers":
        return sum(node.workers for node in stats.nodes)
    return stats.n_workers if name == "n_processes" else stats.n_prefetch


def private_bytes(pid: int) -> int:
    """Memory that a process shares with no other; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup") as lines:
        for line in lines:
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) << 10
    return 0
