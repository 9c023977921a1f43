"""Statistics and traces of all iterations of a loader."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.utils.data import _DatasetKind

from fastiter._fetch.dataset_access import row_groups_of
from fastiter._stats.bottleneck import TORCHS
from fastiter._stats.iterator_stats import IteratorStats
from fastiter._stats.stats import LoaderStats
from fastiter._stats.timer import Timer
from fastiter._util.concurrency import renew_in_child

if TYPE_CHECKING:
    from fastiter._engine.processes import ProcessExecutor
    from fastiter._stats.trace import Call, WorkerTraces


class Iteration:
    """Counters of one iteration. They do not keep the iterator."""

    def __init__(self, iterator: Any, timer: Timer) -> None:
        self.iterator = weakref.ref(iterator)
        self.timer = timer
        self.executor: ProcessExecutor | None = None  #: of the workers, once it was made

    def stats(self, facts: dict[str, Any]) -> IteratorStats:
        _, inside, _, between, _ = self.timer.read()
        executor = self.executor
        loader = LoaderStats() if executor is None else executor.stats(inside + between)
        return IteratorStats.of(self.timer, loader, **facts)


class Iterations:
    """The iterations of a loader: what was counted of those that have ended, and the others."""

    def __init__(self, loader: Any) -> None:
        self._facts = {"iterator": TORCHS, "batch_size": loader.batch_size, "has_converter": True}
        n = loader.num_workers
        ahead = n * (loader.prefetch_factor or 0)
        none = LoaderStats("processes" if n else "none", n, ahead)
        # Swapped in one step: any thread reads both.
        self._counted: tuple[IteratorStats, tuple[Iteration, ...]] = (
            IteratorStats.of(Timer(), none, **self._facts),
            (),
        )
        self._first: Timer | None = None
        self._n_counted = 0
        self._note: Callable[[Call], None] | None = None  # of a trace
        is_iterable = loader._dataset_kind == _DatasetKind.Iterable
        self._row_groups = None if is_iterable else row_groups_of(loader.dataset)
        self._n_decoded = 0 if self._row_groups is None else self._row_groups.n_decoded
        self._after_fork()
        renew_in_child(self)

    def _after_fork(self) -> None:
        self._lock = threading.Lock()

    def begin(self, iterator: Any, timer: Timer) -> Iteration:
        """Count an iteration that begins."""
        begun = Iteration(iterator, timer)
        with self._lock:
            timer.trace = self._note
            self._first = self._first or timer
            ended, others = self._counted
            left = [begun]
            for one in reversed(others):
                if one.iterator() is not None or self._note is not None:
                    left.insert(0, one)
            for one in others:
                if one not in left:
                    ended = ended.followed_by(one.stats(self._facts))
            self._counted = ended, tuple(left)
        return begun

    def count(self, number: int | None) -> int:
        """The number of an iteration that begins, from 0; of a loaded one this ``number``."""
        with self._lock:
            number = self._n_counted if number is None else number
            self._n_counted = number + 1
            return number

    def stats(self) -> IteratorStats:
        """Statistics of all. Takes no lock."""
        found, others = self._counted
        for one in others:
            found = found.followed_by(one.stats(self._facts))
        n_decoded = 0 if self._row_groups is None else self._row_groups.n_decoded - self._n_decoded
        # The time of the process, which runs once for all.
        seconds = 0.0 if self._first is None else self._first.read()[-1]
        return dataclasses.replace(found, cpu_seconds=seconds, row_groups_decoded=n_decoded)

    def start_trace(self, note: Callable[[Call], None]) -> None:
        """Record iterations from now on, also those that begin later."""
        with self._lock:
            if self._note is not None:
                raise RuntimeError("the loader is traced already, by another with block")
            for one in self._counted[1]:
                if one.executor is not None:
                    one.executor.trace(True)
                one.timer.trace = note
            self._note = note

    def stop_trace(self) -> WorkerTraces:
        traces: dict[str, list[Any]] = {}
        with self._lock:
            self._note = None
            for one in self._counted[1]:
                one.timer.trace = None
                if one.executor is None:
                    continue
                one.executor.trace(False)
                for worker, events in one.executor.traces().items():
                    traces.setdefault(worker, []).extend(events)
        return {**traces}
