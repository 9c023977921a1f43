"""Examples of a loader's batches, and statistics and traces of all its iterations."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import _DatasetKind

from fastiter._engine.executor import Executor
from fastiter._fetch.dataset_access import row_groups_of
from fastiter._plan.state import Skipped, SkipState
from fastiter._stats.autotune import Tuner, most_workers
from fastiter._stats.bottleneck import TORCHS
from fastiter._stats.iterator_stats import IteratorStats
from fastiter._stats.stats import LoaderStats
from fastiter._stats.timer import Timer
from fastiter._stats.trace import Call, Trace, WorkerTraces
from fastiter._util.concurrency import made_once, renew_in_child
from fastiter._util.cpus import usable_cpus
from fastiter.datasets.stream_dataset import shard_counts
from fastiter.iterators._addresses import Address
from fastiter.torch._orders.samplers import EpochOwner
from fastiter.torch._state import LastIteration, drawn_from

if TYPE_CHECKING:
    from fastiter._engine.processes import ProcessExecutor
    from fastiter._ring.schema import Schema

    shown = made_once
else:

    class shown(made_once):
        """A property without a cache that an attribute of its name hides: a subclass written for
        torch's loader, which has no such names, sets its own."""

        def __get__(self, instance, owner=None):
            return self if instance is None else self.func(instance)


class Iteration:
    """Counters of one iteration. They do not keep the iterator."""

    def __init__(self, iterator: Any, timer: Timer) -> None:
        self.iterator = weakref.ref(iterator)
        self.timer = timer
        self.executor = Executor()  #: of the workers, once it was made; until then one without
        self.changes: tuple[str, ...] = ()  #: of the number of workers

    def stats(self, facts: dict[str, Any]) -> IteratorStats:
        return IteratorStats.of(self.timer, self.executor.stats, self.changes, **facts)


def ahead(loader: Any) -> int:
    """Batches that workers fetch ahead."""
    # Without an order no worker is to have more than its share.
    return loader.prefetch_factor * loader.num_workers - (not loader.in_order)  # type: ignore[no-any-return]


class Adjustment:
    """Adjusts the number of workers of an iteration, with ``num_workers='auto'``: that of the
    loader is kept up to date. ``least`` workers stay."""

    def __init__(self, loader: Any, least: int) -> None:
        self._loader = weakref.ref(loader)
        self.most_workers = max(most_workers(usable_cpus()), loader.num_workers)
        self._tuner = Tuner({"n_processes": self.most_workers}, least)
        # A tuner knows the settings by the iterators' names.
        self._facts = {**loader._iterations.facts, "iterator": "MultiprocessIterator"}

    def tune(self, executor: ProcessExecutor, counted: Iteration) -> None:
        """Adjust the number, if it is time to. Called before each batch is waited for."""
        self._tuner.tune(executor, lambda: counted.stats(self._facts))
        loader, pool = self._loader(), executor.pool
        if pool is None or len(counted.changes) == len(self._tuner.changes):
            return
        counted.changes = tuple(
            change.replace("n_processes", "num_workers", 1) for change in self._tuner.changes
        )
        if loader is not None:
            loader.num_workers = pool.n_workers
            pool.adjust("n_prefetch", ahead(loader))


class Iterations:
    """The iterations of a loader: what was counted of those that have ended, and the others."""

    def __init__(self, loader: Any) -> None:
        self.facts = {"iterator": TORCHS, "batch_size": loader.batch_size, "has_converter": True}
        self.facts |= shard_counts(loader.dataset)
        # Statistics that are added up have no number of CPUs, which takes reading files.
        self._summands = {**self.facts, "cpus": 0.0}
        n = loader.num_workers
        none = LoaderStats("processes" if n else "none", n, n * (loader.prefetch_factor or 0))
        # Swapped in one step: any thread reads both.
        self._counted: tuple[IteratorStats, tuple[Iteration, ...]] = (
            IteratorStats.of(Timer(), lambda _: none, **self._summands),
            (),
        )
        #: columns that the last iteration has learnt, where workers share the rows of a batch
        self.schema: Schema | None = None
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

    def begin(self, iterator: Any) -> Iteration:
        """Count an iteration that begins. Without workers it takes over the timer of one that has
        ended: adding up statistics takes longer than a short epoch."""
        with self._lock:
            timer = iterator._timer
            ended, others = self._counted
            left = [one for one in others if one.iterator() is not None or self._note is not None]
            for one in others:
                if one in left:
                    continue
                if timer.is_serial and one.timer.is_serial and timer is iterator._timer:
                    timer = one.timer
                    timer.pause()
                else:
                    ended = ended.followed_by(one.stats(self._summands))
            timer.trace = self._note
            self._first = self._first or timer
            iterator._timer = timer
            begun = Iteration(iterator, timer)
            self._counted = ended, (*left, begun)
        return begun

    def going(self) -> Any:
        """An iterator that is alive, or None."""
        found = (one.iterator() for one in self._counted[1])
        return next((one for one in found if one is not None), None)

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
            found = found.followed_by(one.stats(self._summands))
        n_decoded = 0 if self._row_groups is None else self._row_groups.n_decoded - self._n_decoded
        # The time of the process, which runs once for all.
        seconds = 0.0 if self._first is None else self._first.read()[-1]
        return dataclasses.replace(
            found, cpus=usable_cpus(), cpu_seconds=seconds, row_groups_decoded=n_decoded
        )

    def _start_trace(self, note: Callable[[Call], None]) -> None:
        """Record iterations from now on, also those that begin later."""
        with self._lock:
            if self._note is not None:
                raise RuntimeError("the loader is traced already, by another with block")
            for one in self._counted[1]:
                one.executor.trace(True)
                one.timer.trace = note
            self._note = note

    def _stop_trace(self) -> WorkerTraces:
        traces: dict[str, list[Any]] = {}
        with self._lock:
            self._note = None
            for one in self._counted[1]:
                one.timer.trace = None
                one.executor.trace(False)
                for worker, events in one.executor.traces().items():
                    traces.setdefault(worker, []).extend(events)
        return {**traces}


class LoaderReports:
    """Base of a loader: the examples of its batches, statistics and traces, between iterations and
    while one is under way."""

    _index_sampler: Any
    _last_iteration: LastIteration

    @made_once
    def _iterations(self) -> Iterations:
        return Iterations(self)

    @property
    def _owner(self) -> EpochOwner | None:
        """The `Order` or `Batches` that the keys come from."""
        sampler = drawn_from(self._index_sampler)
        return sampler if isinstance(sampler, EpochOwner) else None

    def _own_iterator(self) -> Any:
        """The one of the last iteration, if it lives."""
        return (found := self._last_iteration.iterator) and found()

    def _skips(self) -> SkipState | None:
        own = self._own_iterator()
        return self._last_iteration.skips if own is None else own.skip_state()

    @shown
    def indices(self) -> Any:
        """Keys of the batch delivered last, in the order of its rows.

        A list, or with ``batch_size=None`` one key; None before the first batch of an iteration,
        and for an `IterableDataset`. The iterator has it, too.
        """
        own = self._own_iterator()
        return self._last_iteration.indices if own is None else own.indices

    @shown
    def valid(self) -> torch.Tensor | None:
        """For each row of the batch delivered last, whether it is to be counted: False only with
        ``tail='mask'``, for repetitions that give all ranks equally many rows.

        A bool tensor; None before the first batch of an iteration, and without a sampler of
        fastiter's. The iterator has it, too.
        """
        own = self._own_iterator()
        return self._last_iteration.valid if own is None else own.valid

    def batch_at(self, number: int, *, rank: int | None = None) -> Address:
        """Return the examples of a batch, without fetching or moving; with a sampler of fastiter's.

        Batches count from 0 in each epoch, as those of an iterator with ``repeat=False``. The epoch
        is that of the iteration that is under way, else that of the next one, which ``set_epoch``
        chooses: the batch of step s of the whole training is number ``s % len(loader)`` of epoch
        ``s // len(loader)``, if all epochs have that length.

        Parameters
        ----------
        number : int
        rank : int, optional
            Number of the rank; by default this process's.

        Returns
        -------
        Address
            As that of `MultiprocessIterator.batch_at`; its ``step`` is the number.

        Raises
        ------
        LookupError
            If the loader has no sampler of fastiter's, if the epoch has no such batch, or if a
            state was loaded and the batch is one of those before its cuts have changed.
        """
        if (owner := self._owner) is None:
            raise LookupError(
                "batch_at() needs a sampler of fastiter's, whose batches are known beforehand: "
                "pass sampler=ShuffleOrderSampler(seed), or another one with a seed"
            )
        own = self._own_iterator()
        iteration = None if own is None or own._finished else own._sampler_iter
        return owner.address(self, iteration, number, rank)

    @shown
    def skipped(self) -> list[Skipped]:
        """Keys whose examples were skipped, with ``on_error``: one `Skipped` for each, at most
        10,000, in the order in which they were skipped first, of all iterations.

        Its ``index`` is the key, or its `repr` where that is no int; ``epoch`` the number of the
        iteration, from 0. States hold them.
        """
        skips = self._skips()
        return [] if skips is None else [*skips.records.values()]

    def stats(self) -> IteratorStats:
        """Return statistics of all iterations: their work, and the time that loops waited for it.

        As `MultiprocessIterator.stats`; ``change`` and ``advice`` name this loader's arguments:
        ``DataLoader(**{**arguments, **stats.change})``. Settings are those of the last iteration.
        Does not block, and may be called in any state, from any thread. Batches that torch's own
        workers make (``multiprocessing_context`` of another class) do not count.
        """
        return self._iterations.stats()

    def trace(self, path: str | os.PathLike[str] | None = None) -> Trace:
        """Record what loops and workers do during a ``with`` block, also in iterations that begin
        within it; see `MultiprocessIterator.trace`."""
        return Trace(self._iterations, path)
