"""Searches for the best settings within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastiter import _system
from fastiter._tools.runs import Kind, Runs, Settings, Task, run_once

PREFETCH = 4  # while workers are compared
_ENOUGH_GAIN = 1.05  # more workers are tried as long as they bring this
_AS_GOOD = 0.95  # of the best rate: the simplest of these is recommended
_STARTED = 4  # most workers while start methods are compared
_SHARE_OF_WORKERS = 0.65  # of the time


class Plan(NamedTuple):
    """What is to be tried."""

    threads: Sequence[int]
    processes: Sequence[int]
    prefetch: Sequence[int]
    methods: Sequence[str]


class Search:
    """Measures settings, the promising ones in more rounds.

    Parameters
    ----------
    task : Task
        What is measured.
    plan : Plan
        Which settings; more workers are tried only while they help.
    seconds : float
        What it may take, about. One setting of each kind of iterator is tried in any case.
    batch_bytes : float
        Of one batch, to keep out what memory has no room for.
    prefers_processes : bool
        Whether processes are better than threads that are as fast: where the dataset computes, and
        so takes the GIL and time from the training loop.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        seconds: float,
        batch_bytes: float,
        prefers_processes: bool,
    ) -> None:
        self._task = task
        self._plan = plan
        self._begin = time.perf_counter()
        self._seconds = seconds
        self._batch_bytes = batch_bytes
        self._kinds = ("processes", "threads") if prefers_processes else ("threads", "processes")
        self._window = min(1.0, max(0.15, seconds / 60))
        self._costs: dict[Settings, float] = {}
        self.runs: dict[Settings, Runs] = {}
        self.starts: dict[str, Runs] = {}  # first batches by start method
        self.left_out: list[Settings] = []  # for want of time
        self.method: str | None = None  # None: the program's own

    def search(self) -> Runs:
        """Measure; return the best.

        Raises
        ------
        RuntimeError
            If nothing works at all.
        """
        self._by_workers()
        self._repeat(list(self.runs), 2, _SHARE_OF_WORKERS)
        best = self.best().settings
        if best.workers:
            self._each([best._replace(prefetch=n) for n in self._plan.prefetch], 0.8)
        self._compare_starts()
        # The closest ones, again and again while there is time.
        most = self.best().rate
        self._repeat([s for s, runs in self.runs.items() if runs.rate >= 0.8 * most], 9, 1.0)
        return self.best()

    def best(self) -> Runs:
        """The simplest of those that are as good as the best.

        Workers leave the training loop its time, so `SerialIterator` has to be faster than they
        are, unless the loop's own time is part of what was measured.
        """
        works = [runs for runs in self.runs.values() if runs.rates]
        if not works:
            raise RuntimeError("; ".join(sorted({runs.error for runs in self.runs.values()})))
        most = max(runs.rate for runs in works)
        good = [runs for runs in works if runs.rate >= _AS_GOOD * most]
        beside = [runs for runs in good if runs.settings.kind != "serial"]
        if beside and not self._task.step:
            good = beside
        return min(good, key=lambda runs: self._burden(runs.settings))

    def _burden(self, settings: Settings) -> tuple[int, int, int]:
        """What is simpler comes first: fewer workers, then the better kind, then a prefetch of 2 or
        a little more."""
        kind = 0 if settings.kind == "serial" else 1 + self._kinds.index(settings.kind)
        prefetch = settings.prefetch if settings.prefetch != 1 else PREFETCH + 1
        return settings.workers, kind, prefetch

    def _by_workers(self) -> None:
        """One run of each number of workers, upwards while it helps."""
        self._measure(Settings("serial"))
        kinds: tuple[tuple[Kind, Sequence[int]], ...] = (
            ("threads", self._plan.threads),
            ("processes", self._plan.processes),
        )
        for kind, numbers in kinds:
            before = 0.0
            for workers in numbers:
                settings = Settings(kind, workers, self._plan.prefetch[0])
                # One of each kind is tried whatever it takes.
                share = math.inf if workers == numbers[0] else _SHARE_OF_WORKERS
                runs = self._first_run(settings, share)
                if runs is None or runs.error or runs.rate < _ENOUGH_GAIN * before:
                    break
                before = runs.rate

    def _first_run(self, settings: Settings, share: float) -> Runs | None:
        """None for want of time. Where the program's own start method does not work, and another
        one does, that is kept to."""
        settings = settings._replace(method=self.method if settings.kind == "processes" else None)
        if not self._each([settings], share):
            return None
        methods = self._plan.methods if settings.kind == "processes" and not self.method else ()
        for method in methods:
            if not self.runs[settings].error:
                break
            other = settings._replace(method=method)
            if self._each([other], share) and not self.runs[other].error:
                self.method, settings = method, other
        return self.runs[settings]

    def _compare_starts(self) -> None:
        """How long each start method takes to the first batch; the rate is the same with all."""
        fastest = max(
            (runs for runs in self.runs.values() if runs.settings.kind == "processes"),
            key=lambda runs: runs.rate,
            default=None,
        )
        if fastest is None or not fastest.rates:
            return
        workers = min(fastest.settings.workers, _STARTED)
        for method in self._plan.methods:
            settings = fastest.settings._replace(method=method, workers=workers)
            if self._left(0.9) > self._cost(fastest.settings):
                runs = self.starts[method] = Runs(settings)
                run_once(self._task, runs, 0)

    def _each(self, settings: Iterable[Settings], share: float) -> bool:
        """Measure those that have not been, as long as the time's share lasts."""
        for one in settings:
            if one in self.runs:
                continue
            if self._left(share) < self._cost(one):
                self.left_out.append(one)
                return False
            self._measure(one)
        return True

    def _repeat(self, settings: list[Settings], rounds: int, share: float) -> None:
        """More runs, up to ``rounds`` of each; they take turns."""
        while True:
            works = [one for one in settings if not self.runs[one].error]
            fewest = min((len(self.runs[one].rates) for one in works), default=rounds)
            todo = [one for one in works if len(self.runs[one].rates) == fewest]
            if fewest >= rounds or self._left(share) < sum(map(self._cost, todo)):
                return
            for one in todo:
                self._measure(one)

    def _left(self, share: float) -> float:
        return self._begin + share * self._seconds - time.perf_counter()

    def _cost(self, settings: Settings) -> float:
        """Seconds that a run will take: as before, or as the most that one took."""
        return self._costs.get(settings, max(self._costs.values(), default=0.0))

    def _measure(self, settings: Settings) -> None:
        runs = self.runs.setdefault(settings, Runs(settings))
        batches = settings.prefetch + 3 + settings.workers
        room = _system.memory_available() // 2
        if settings.kind == "processes" and batches * self._batch_bytes > room:
            runs.error = "not tried: its slots would take more than half of the memory"
            return
        begin = time.perf_counter()
        run_once(self._task, runs, self._window)
        self._costs[settings] = time.perf_counter() - begin
