"""Batches that threads make."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fastiter._engine.executor import Executor
from fastiter._fetch.dataset_access import column_getter
from fastiter._stats.stats import LoaderStats
from fastiter._threads.batch_buffer import CallCost
from fastiter._threads.collator import Assembler
from fastiter._threads.limit import TimeLimit
from fastiter._threads.pool import ThreadCounters, Threads
from fastiter._threads.tasks import (
    BatchTask,
    ColumnsTask,
    GetExamplesTask,
    ListsTask,
    RowCost,
    RowsTask,
    TaskSettings,
)
from fastiter._util.concurrency import items_of
from fastiter._util.failures import Failure, FailurePolicy, capture
from fastiter._util.units import nbytes_of

if TYPE_CHECKING:
    from fastiter._fetch.row_groups import RowClaims
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._ring.parent import Event
    from fastiter._stats.timer import Timer
    from fastiter._stats.trace import WorkerTraces

_MOST_EVENTS = 32_765  # of a trace, for each thread


class ThreadExecutor(Executor):
    """An `Executor` whose workers are threads of this process, which start with the first batch."""

    n_prefetch = 0  # which a `Tuner` adjusts
    batch_bytes = 0  # of the last batch; the next ones may be about as large

    def __init__(
        self,
        batch_maker: Any,  # a `BatchMaker`, which reads the dataset, and converts
        rows: int,  # that a batch has at most
        lock: Any,  # of the loop
        timer: Timer,
        *,
        n_threads: int,
        n_prefetch: int,
        limit: TimeLimit | None = None,  # of the time for an example
        policy: FailurePolicy | None = None,
        claims: RowClaims | None = None,  # of a dataset of row groups
        seed: Seed = (0, 0),
        finish: Callable[[Any], Any] | None = None,  # makes, in the caller, what is delivered
        converts: bool = True,  # whether the threads call the converter
        measures: bool = False,  # whether batches are measured, for a setting that is 'auto'
    ) -> None:
        self._batch_maker = batch_maker
        self._lock = lock
        self._timer = timer
        self._policy = policy
        self._limit = limit
        self.seed = seed
        self._finish = finish
        self._threads: Threads | None = None
        self._all_counters = [ThreadCounters() for _ in range(n_threads)]
        self._calls = self._ready_sum = 0
        self.n_prefetch = n_prefetch
        self._measures = measures
        self._recorded: list[deque[Event]] = []
        self._assembler: Assembler | None = None
        if batch_maker.concat is not None:
            padding, copy = batch_maker.concat
            self._assembler = Assembler(padding, copy, rows, n_prefetch + 1)
        self._plans: PlanQueue | None = None
        self._ended: Threads | None = None
        self._is_closed = False
        tolerates = policy is not None
        self._settings = TaskSettings(
            batch_maker, n_threads, RowCost(), CallCost(), limit, converts, tolerates, claims
        )

    @property
    def n_workers(self) -> int:
        return len(self._all_counters)

    def start(self, plans: PlanQueue) -> None:
        """Have the threads work on as many batches as are wanted."""
        threads, self._plans = self._running(), plans
        n_tasks = len(self._tasks)
        while n_tasks <= self.n_prefetch:
            plan = plans.ahead()
            if plan.indices is None:
                break
            try:
                task = self._task(plan)
            except MemoryError:
                if not plans.begun_work():
                    raise
                break  # with fewer batches ahead it may do
            # An interrupt in between has this batch fetched twice, and delivered once.
            threads.submit(task)
            plan.work = task
            n_tasks += 1
        if self._is_closed:  # by another thread, which may have missed what was just started
            threads.close()
            self.close()
        threads.wake()
        self._calls += 1
        self._ready_sum += self._count_ready()

    def make(self, plans: PlanQueue, plan: Plan) -> Plan:
        self.start(plans)
        task = plan.work
        if task is None:
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        self._timer.block()
        try:
            batch = self._batch_of(task)
        except BaseException:
            if (threads := self._threads) is not None and threads.error is not None:
                self.close()  # the next call begins all batches anew, in other threads
                self._is_closed = False
                plans.rewind()
            raise
        self._timer.unblock()
        failures = task.failures
        if failures:
            assert self._policy is not None
            replaced = capture(self._policy.resolve, plan, failures)
            if isinstance(replaced, Failure):
                batch = replaced
            elif replaced:
                batch = capture(task.rebuild, replaced)
        return self._finished(plan, task, batch)

    def ready(self, plans: PlanQueue) -> Plan | None:
        for task in self._tasks[:1]:
            if task.is_ready if self._policy is None else task.is_clean:
                return self._finished(task.plan, task, self._batch_of(task))
        return None

    def _finished(self, plan: Plan, task: BatchTask, batch: Any) -> Plan:
        if self._finish is not None and not isinstance(batch, Failure):
            batch = capture(self._finish, batch)
        plan.outcome, plan.work = batch, None
        task.forget()
        return plan

    def _batch_of(self, task: BatchTask) -> Any:
        batch = task.wait(functools.partial(self._check, task.plan.label))
        if self._limit is not None:
            self._limit.end()
        if self._measures:
            self.batch_bytes = nbytes_of(batch)
        return batch

    def _check(self, label: str) -> float:
        """Look at the threads while the batch of that label is waited for."""
        threads = self._threads
        if threads is None:
            return 0.25  # another thread has closed them, and ends this wait
        return threads.check() if self._limit is None else self._limit.check(threads, label)

    @property
    def _tasks(self) -> list[BatchTask]:
        """The batches that threads work on or have completed, oldest first."""
        begun = [] if self._plans is None else self._plans.begun_work()
        return [work for work in begun if isinstance(work, BatchTask)]

    def _count_ready(self) -> int:
        """Complete batches, from the oldest one on."""
        count = 0
        for task in self._tasks:
            if not task.is_ready:
                break
            count += 1
        return count

    def _running(self) -> Threads:
        threads = self._threads
        if threads is None or threads.pid != os.getpid():  # a child has none of its parent's
            is_limited = self._limit is not None
            threads = self._threads = Threads(self._all_counters, self._lock, is_limited)
            self._timer.open(functools.partial(_note_start, self._all_counters))
        return threads

    def _task(self, plan: Plan) -> BatchTask:
        settings, maker = self._settings, self._batch_maker
        origin, concat = (self.seed, plan), maker.concat
        if concat is not None:
            plain = maker.plain()
            if plain is not None and not plain.is_fixed:
                return ListsTask(settings, origin, maker.gatherer(plain))
            if plain is None:
                getter = column_getter(maker.dataset)
                if getter is not None:
                    return GetExamplesTask(settings, origin, getter)
            elif maker.fills_suit(plain):
                outputs = plain.outputs(len(plan.indices))
                if outputs is not None:
                    n_batches = self.n_prefetch + 1
                    return ColumnsTask(settings, origin, plain, outputs, n_batches)
        return RowsTask(settings, origin, self._assembler)

    # ---- settings, statistics

    def adjust(self, name: str, count: int) -> None:
        self.n_prefetch = count

    def bytes_each(self, name: str) -> int:
        return self.batch_bytes

    def stats(self, seconds: float) -> LoaderStats:
        return LoaderStats(
            workers_are="threads",
            timeouts=0 if self._limit is None else self._limit.n_ended,
            abandoned=0 if (threads := self._threads) is None else threads.n_abandoned,
            n_workers=self.n_workers,
            n_prefetch=self.n_prefetch,
            ready=self._count_ready(),
            calls=self._calls,
            ready_sum=self._ready_sum,
            workers=tuple(
                counters.stats(number, seconds)
                for number, counters in enumerate(self._all_counters)
            ),
        )

    def trace(self, on: bool) -> None:
        if not on:
            self._recorded = [counters.events or deque() for counters in self._all_counters]
        for counters in self._all_counters:
            counters.events = deque(maxlen=_MOST_EVENTS) if on else None

    def traces(self) -> WorkerTraces:
        return {f"thread {n}": items_of(events) for n, events in enumerate(self._recorded)}

    # ---- end

    def drop(self, begun: list[Any]) -> None:
        self._is_closed = False
        for work in begun:
            if isinstance(work, BatchTask):
                work.abort()

    def interrupt(self) -> None:
        for task in self._tasks:
            task.abort()

    def after_fork(self, lock: Any) -> None:
        self._lock = lock

    def close(self) -> None:
        """As in `Executor`; takes no lock. Threads end after the example that they fetch."""
        self._is_closed = True
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()
            self._ended = threads
        self.interrupt()

    def join(self) -> None:
        """Wait for the threads to end, at most a second. A thread that hangs is left behind."""
        if self._ended is not None:
            self._ended.join()


def _note_start(all_counters: Sequence[ThreadCounters]) -> None:
    for counters in all_counters:
        counters.note_start()
