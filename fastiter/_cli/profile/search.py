"""Searches for the best settings within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastiter._cli.profile.trials import (
    ENOUGH_GAIN,
    Kind,
    Settings,
    Task,
    Trials,
    least_batches,
    run_once,
)
from fastiter._clib import system

PREFETCH = 4  # while workers are compared
SIMPLER = 0.05  # of the best rate: the simplest of those that are so close is recommended
_STARTED = 4  # most workers while start methods are compared
_SHARE_OF_WORKERS = 0.65  # of the time
_SHARE_OF_ONE = 0.2  # of the time: what the first run of one setting may take


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
        What it may take, about, not above 0 if nothing is left. One setting with workers is tried
        in any case, and nothing else.
    batch_bytes : float
        Of one batch, to keep out what memory has no room for.
    prefers_processes : bool
        Whether processes are better than threads that are as fast: where the dataset computes, and
        so takes the GIL and time from the training loop.
    example_seconds : float
        What an example costs by itself: tells how long a run will take.
    most_parallel : float
        How many workers get on at the same time.
    """

    def __init__(
        self,
        task: Task,
        plan: Plan,
        seconds: float,
        batch_bytes: float,
        prefers_processes: bool,
        example_seconds: float = 0.0,
        most_parallel: float = math.inf,
    ) -> None:
        self._task = task
        self._plan = plan
        self._begin = time.perf_counter()
        self._seconds = seconds
        self._batch_bytes = batch_bytes
        self._kinds: tuple[Kind, Kind] = (
            ("processes", "threads") if prefers_processes else ("threads", "processes")
        )
        self._example_seconds = example_seconds
        self._most_parallel = most_parallel
        self._window = min(1.0, max(0.15, seconds / 60))
        self._costs: dict[Settings, float] = {}
        self._overruns: dict[Kind, float] = {}  # seconds that starts and the like took at most
        self.runs: dict[Settings, Trials] = {}
        self.starts: dict[str, Trials] = {}  # first batches by start method
        self.left_out: list[Settings] = []  # for want of time
        self.method: str | None = None  # None: the program's own

    def search(self) -> Trials:
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

    def best(self) -> Trials:
        """The simplest of those that are as good as the best.

        Workers leave the training loop its time, so `SerialIterator` has to be faster than they
        are, unless the loop's own time is part of what was measured.
        """
        works = [runs for runs in self.runs.values() if runs.rates]
        if not works:
            raise RuntimeError("; ".join(sorted({runs.error for runs in self.runs.values()})))
        most = max(runs.rate for runs in works)
        good = [runs for runs in works if runs.rate >= (1 - SIMPLER) * most]
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
        self._each([Settings("serial")], _SHARE_OF_WORKERS)
        for kind in self._kinds:
            before = 0.0
            for workers in self._numbers(kind):
                settings = Settings(kind, workers, self._plan.prefetch[0])
                runs = self._first_run(settings, _SHARE_OF_WORKERS)
                if runs is None:
                    continue  # more workers may be done sooner
                if runs.error or runs.rate < ENOUGH_GAIN * before:
                    break
                before = runs.rate
        for kind in self._kinds:
            if any(runs.rates and one.workers for one, runs in self.runs.items()):
                return
            untried = [
                Settings(kind, workers, self._plan.prefetch[0]) for workers in self._numbers(kind)
            ]
            untried = [one for one in untried if one not in self.runs]
            if untried:
                # Of those that are done about as soon as any, the fewest workers.
                soon = 2 * min(map(self._cost, untried))
                self._first_run(next(one for one in untried if self._cost(one) <= soon), None)
        if not any(runs.rates for runs in self.runs.values()):
            self._measure(Settings("serial"))

    def _numbers(self, kind: Kind) -> Sequence[int]:
        return self._plan.threads if kind == "threads" else self._plan.processes

    def _first_run(self, settings: Settings, share: float | None) -> Trials | None:
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
                runs = self.starts[method] = Trials(settings)
                run_once(self._task, runs, 0)

    def _each(self, settings: Iterable[Settings], share: float | None) -> bool:
        """Measure those that have not been, as long as the time's share lasts; None: always."""
        for one in settings:
            if one in self.runs:
                continue
            if share is not None:
                most = max(_SHARE_OF_ONE * self._seconds, 3 * self._window)
                most = min(most, self._left(share))
                if most < self._cost(one):
                    self.left_out.append(one)
                    return False
            elif one in self.left_out:
                self.left_out.remove(one)
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
        """Seconds that a run will take: as before, or by what the dataset costs, and what runs of
        this kind took besides."""
        if settings in self._costs:
            return self._costs[settings]
        return self._expected(settings) + self._overruns.get(settings.kind, 0.0)

    def _expected(self, settings: Settings) -> float:
        """Seconds of the dataset and the loop: the first batch, one to warm up, those counted."""
        size = self._task.batch_size
        at_once = min(settings.workers, size * (settings.prefetch + 1), self._most_parallel)
        each = size * self._example_seconds / max(at_once, 1)
        each = max(each, self._task.step) if settings.workers else each + self._task.step
        return 2 * each + max(self._window, least_batches(self._task, settings) * each)

    def _measure(self, settings: Settings) -> None:
        runs = self.runs.setdefault(settings, Trials(settings))
        batches = settings.prefetch + 3 + settings.workers
        room = system.memory_available() // 2
        if settings.kind == "processes" and batches * self._batch_bytes > room:
            runs.error = "not tried: its slots would take more than half of the memory"
            return
        begin = time.perf_counter()
        run_once(self._task, runs, self._window)
        cost = self._costs[settings] = time.perf_counter() - begin
        overrun = max(cost - self._expected(settings), self._overruns.get(settings.kind, 0.0))
        self._overruns[settings.kind] = overrun
