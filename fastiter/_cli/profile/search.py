"""Searches for the best settings within a time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastiter._cli.profile.trials import ENOUGH_GAIN, Kind, Settings, Trials, least_batches
from fastiter._clib import status

PREFETCH = 4  # while numbers of workers are compared
SIMPLER = 0.05  # of the best rate: the simplest of the settings that are so close is recommended
_STARTED = 4  # most workers while start methods are compared
_SHARE_OF_WORKERS = 0.65  # of the time
_SHARE_OF_ONE = 0.2  # of the time: what the first trial of one choice of settings may take


@dataclass
class Search:
    """Tries settings, more workers only while they help, and the promising ones repeatedly.

    It takes about ``seconds``. If no time is left (0 or less), one setting with workers is tried.
    ``numbers`` are those of workers, the preferred kind first: of equally fast settings it is
    recommended. ``batch_bytes`` is used to leave out what memory has no room for,
    ``example_seconds`` and ``most_parallel`` (workers that make progress at the same time) to
    predict how long a trial takes.
    """

    subject: Any  # `Subject`, or `LoaderSubject`
    numbers: dict[Kind, Sequence[int]]
    prefetch: Sequence[int]
    methods: Sequence[str]
    seconds: float
    batch_bytes: float
    example_seconds: float = 0.0
    most_parallel: float = math.inf
    tried: dict[Settings, Trials] = field(default_factory=dict)
    starts: dict[str, Trials] = field(default_factory=dict)  # first batches by start method
    left_out: list[Settings] = field(default_factory=list)  # for lack of time
    method: str | None = None  # None: the program's default

    def __post_init__(self) -> None:
        self._begin = time.perf_counter()
        self._window = min(1.0, max(0.15, self.seconds / 60))
        self._costs: dict[Settings, float] = {}
        self._overruns: dict[Kind, float] = {}  # most seconds that starts and the like took

    def search(self) -> Trials:
        """Try settings; return the best. RuntimeError if none work."""
        self._try_workers()
        self._repeat(list(self.tried), 2, _SHARE_OF_WORKERS)
        best = self._best().settings
        if best.workers:
            for prefetch in self.prefetch:
                if not self._try(best._replace(prefetch=prefetch), 0.8):
                    break
        self._compare_starts()
        # The closest ones, repeatedly while there is time.
        close = 0.8 * self._best().rate
        self._repeat([s for s, trials in self.tried.items() if trials.rate >= close], 9, 1.0)
        return self._best()

    def _best(self) -> Trials:
        """The simplest of those that are about as fast as the fastest: fewer workers, then the
        preferred kind, then a prefetch of 2 or a little more.

        Workers leave the training loop its time, so `SerialIterator` has to be faster than they
        are, unless the loop's own time is part of what was measured.
        """
        works = [trials for trials in self.tried.values() if trials.rates]
        if not works:
            raise RuntimeError("; ".join(sorted({trials.error for trials in self.tried.values()})))
        kinds = ["serial", *self.numbers]

        def complexity(trials: Trials) -> tuple[int, int, int]:
            kind, workers, prefetch, _ = trials.settings
            return workers, kinds.index(kind), prefetch if prefetch != 1 else PREFETCH + 1

        least = (1 - SIMPLER) * max(trials.rate for trials in works)
        good = [trials for trials in works if trials.rate >= least]
        with_workers = [trials for trials in good if trials.settings.workers]
        return min(good if self.subject.step or not with_workers else with_workers, key=complexity)

    def _try_workers(self) -> None:
        """One trial of each number of workers, upwards while it helps."""
        self._try(Settings("serial"), _SHARE_OF_WORKERS)
        for kind, numbers in self.numbers.items():
            before = 0.0
            for workers in numbers:
                settings = Settings(kind, workers, self.prefetch[0])
                trials = self._try_start(settings, _SHARE_OF_WORKERS)
                if trials is None:
                    continue  # more workers may be done sooner
                if trials.error or trials.rate < ENOUGH_GAIN * before:
                    break
                before = trials.rate
        for kind, numbers in self.numbers.items():
            if any(trials.rates and one.workers for one, trials in self.tried.items()):
                return
            choices = (Settings(kind, workers, self.prefetch[0]) for workers in numbers)
            if untried := [one for one in choices if one not in self.tried]:
                # Of those that take about the least time, the fewest workers.
                soon = 2 * min(map(self._cost, untried))
                self._try_start(next(one for one in untried if self._cost(one) <= soon), None)
        if not any(trials.rates for trials in self.tried.values()):
            self._measure(Settings("serial"))

    def _try_start(self, settings: Settings, share: float | None) -> Trials | None:
        """Like `_try`; None for lack of time. If the program's default start method does not work
        and another one does, later trials of processes use that one."""
        if not settings.has_method:
            return self.tried[settings] if self._try(settings, share) else None
        settings = settings._replace(method=self.method)
        if not self._try(settings, share):
            return None
        for method in () if self.method else self.methods:
            if not self.tried[settings].error:
                break
            other = settings._replace(method=method)
            if self._try(other, share) and not self.tried[other].error:
                self.method, settings = method, other
        return self.tried[settings]

    def _compare_starts(self) -> None:
        """Measure the time to the first batch with each start method; the rate is the same."""
        processes = [one for one in self.tried.values() if one.settings.has_method]
        fastest = max(processes, key=lambda trials: trials.rate, default=None)
        if fastest is None or not fastest.rates:
            return
        workers = min(fastest.settings.workers, _STARTED)
        for method in self.methods:
            settings = fastest.settings._replace(method=method, workers=workers)
            if self._left(0.9) > self._cost(fastest.settings):
                self.starts[method] = Trials(settings)
                self.subject.run(self.starts[method], 0)

    def _try(self, settings: Settings, share: float | None) -> bool:
        """Measure settings that have not been, if this share of the time leaves room for it; None:
        in any case. False for lack of time."""
        if settings in self.tried:
            return True
        if share is not None:
            most = max(_SHARE_OF_ONE * self.seconds, 3 * self._window)
            if min(most, self._left(share)) < self._cost(settings):
                self.left_out.append(settings)
                return False
        elif settings in self.left_out:
            self.left_out.remove(settings)
        self._measure(settings)
        return True

    def _repeat(self, settings: Iterable[Settings], rounds: int, share: float) -> None:
        """More trials, up to ``rounds`` of each; settings take turns."""
        works = [one for one in settings if not self.tried[one].error]
        while works:
            fewest = min(len(self.tried[one].rates) for one in works)
            todo = [one for one in works if len(self.tried[one].rates) == fewest]
            if fewest >= rounds or self._left(share) < sum(map(self._cost, todo)):
                return
            for one in todo:
                self._measure(one)
            works = [one for one in works if not self.tried[one].error]

    def _left(self, share: float) -> float:
        return self._begin + share * self.seconds - time.perf_counter()

    def _cost(self, settings: Settings) -> float:
        """Seconds that a trial will take: as before, or as predicted from the dataset's cost, plus
        the most by which a trial of this kind exceeded its prediction."""
        if settings in self._costs:
            return self._costs[settings]
        return self._predicted(settings) + self._overruns.get(settings.kind, 0.0)

    def _predicted(self, settings: Settings) -> float:
        """Seconds of the dataset and the loop: the first batch, one to warm up, those counted."""
        size: int = self.subject.batch_size
        at_once = min(settings.workers, size * (settings.prefetch + 1), self.most_parallel)
        each: float = size * self.example_seconds / max(at_once, 1)
        each = max(each, self.subject.step) if settings.workers else each + self.subject.step
        return 2 * each + max(self._window, least_batches(size, settings) * each)

    def _measure(self, settings: Settings) -> None:
        trials = self.tried.setdefault(settings, Trials(settings))
        batches = settings.prefetch + 3 + settings.workers
        room = status.memory_available() // 2
        if settings.has_method and batches * self.batch_bytes > room:
            trials.error = "not tried: its slots would take more than half of the memory"
            return
        begin = time.perf_counter()
        self.subject.run(trials, self._window)
        cost = self._costs[settings] = time.perf_counter() - begin
        overrun = max(cost - self._predicted(settings), self._overruns.get(settings.kind, 0.0))
        self._overruns[settings.kind] = overrun
