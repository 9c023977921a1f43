"""The iterator that fetches in threads."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastiter._fetch.dataset_access import column_getter
from fastiter._fetch.row_groups import RowClaims
from fastiter._stats.autotune import FIRST_PREFETCH, MOST_PREFETCH, Lookahead, Tuner
from fastiter._stats.stats import LoaderStats
from fastiter._stats.timer import Timer
from fastiter._stats.trace import WorkerTraces
from fastiter._threads.batch_buffer import CallCost
from fastiter._threads.collator import Assembler
from fastiter._threads.limit import TimeLimit
from fastiter._threads.pool import ThreadCounters, Threads
from fastiter._threads.tasks import (
    BatchTask,
    ColumnsTask,
    ListsTask,
    PartsTask,
    RowCost,
    RowsTask,
    Work,
)
from fastiter._util.arguments import checked_int
from fastiter._util.concurrency import items_of
from fastiter._util.failures import Failure, capture
from fastiter._util.units import nbytes_of
from fastiter.iterators._arguments import (
    DEFAULT_RETRIES,
    MOST_WORKERS,
    OnTimeout,
    Rank,
    SeedExamples,
    Tail,
    checked_prefetch,
    names_counterparts,
)
from fastiter.iterators._batch_maker import fills_suit
from fastiter.iterators._device_prefetch import PrefetchingIterator
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError
from fastiter.iterators._state import Plan
from fastiter.iterators._stream_parts import Parts, PartStore

if TYPE_CHECKING:
    from fastiter._ring.parent import Event

__all__ = ["MultithreadIterator"]

_MOST_EVENTS = 32_765  # of a trace, for each thread


class MultithreadIterator(PrefetchingIterator):
    """Iterates over a dataset with threads, which fetch batches ahead.

    For datasets that release the GIL while they work (files, decompression, NumPy on large
    arrays), and for objects that cannot be sent to other processes; a dataset of pure Python code
    is faster in processes. The threads share each batch: rows are dealt out a few at a time.
    Batches come in order.

    Parameters
    ----------
    dataset, batch_size, repeat, shuffle, order_sampler
        As in `SerialIterator`; several threads call the dataset at a time, and the thread that
        iterates calls the order sampler.
    n_threads : int
        Number of threads, at least 1.
    dataset_timeout : float, optional
        Seconds that the dataset may take for one example, and a converter for a batch; k times as
        long for k examples in one call. None sets no limit.
    on_timeout : 'warn' or 'retry'
        'warn': `TimeoutWarning` after each ``dataset_timeout`` while ``next()`` waits. 'retry':
        another thread fetches the example. The hanging thread is abandoned: it stays behind as a
        daemon thread, keeps its locks, and its result is not used. If ``n_threads`` threads hang,
        `DatasetTimeoutError` is raised.
    n_retries : int
        Number of further attempts to fetch such an example, before `DatasetTimeoutError`. A
        converter that takes too long is an error of its batch at once.
    n_prefetch : int, 'auto' or None
        Batches fetched ahead of the one that ``next()`` waits for, at least 1. None: 1, or 2 if
        ``device`` is a GPU. 'auto': begin with 2, and use more, up to 16, if some batches take
        much longer than others.
    converter : callable, optional
        ``next()`` returns ``converter(examples, device)`` instead of the list of examples.
        `concat_examples`, also in a `functools.partial` with ``padding`` and the like, is done by
        the threads as they fetch. Any other callable runs in the thread that completes the batch,
        several batches at a time; with a ``device`` in the thread that iterates. A converter with a
        single parameter gets the examples there, and its result is sent to the device.
    device : device, optional
        Device that ``converter`` gets; see `to_device`. With `concat_examples`, copies to a GPU
        run while the program goes on.
    n_device_prefetch : int
        Batches of `concat_examples` copied to the GPU ahead of the one that ``next()`` returns, at
        least 0.
    on_error, skip_limit, drop_last, batch_sampler, rank, num_ranks, tail, skip_steps
        As in `SerialIterator`.
    seed_examples : bool, int or callable
        As in `SerialIterator`. The global generators are the whole program's, so the thread that
        iterates then fetches and converts by itself, and ``dataset_timeout`` has no effect.
    in_order : bool
        As in `SerialIterator`: batches always come in order.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.

    Notes
    -----
    ``next()`` blocks until the batch is complete; signals interrupt it, and no batch is lost then.
    It raises exceptions of the dataset or the converter as they are, with the dataset index, epoch
    and batch as a note (before Python 3.11 as the cause), or `DatasetError` for exceptions that are
    no `Exception`; the following call continues with the next batch.

    Threads start with the first ``next()``. A thread cannot be ended from outside: it ends after
    the example that it fetches. ``finalize()`` and the program's end leave a hanging thread behind,
    after a second.
    """

    @names_counterparts
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: Callable[[Any, int], Any] | None = None,
        *,
        dataset_timeout: float | None = None,
        on_timeout: OnTimeout = "warn",
        n_retries: int = DEFAULT_RETRIES,
        n_prefetch: int | Literal["auto"] | None = None,
        converter: Callable[[Any, Any], Any] | None = None,
        device: Any = None,
        n_device_prefetch: int = 1,
        on_error: OnError = "raise",
        skip_limit: float | None = DEFAULT_LIMIT,
        drop_last: bool = False,
        batch_sampler: Callable[[int], Any] | None = None,
        rank: Rank = None,
        num_ranks: Rank = None,
        tail: Tail = "pad",
        skip_steps: Sequence[tuple[int, int]] = (),
        seed_examples: SeedExamples = False,
        in_order: bool = True,
    ) -> None:
        self._set_timeout(dataset_timeout, on_timeout, n_retries)
        if seed_examples is not False and on_timeout == "retry":
            raise ValueError(
                "on_timeout='retry' leaves threads behind, which would draw from the generators "
                "that seed_examples seeds: use MultiprocessIterator"
            )
        self._n_threads = checked_int("n_threads", n_threads, maximum=MOST_WORKERS)
        self._n_prefetch, self._n_device_prefetch = checked_prefetch(
            n_prefetch, n_device_prefetch, device
        )
        super().__init__(
            dataset,
            batch_size,
            repeat,
            shuffle,
            order_sampler,
            converter=converter,
            device=device,
            on_error=on_error,
            skip_limit=skip_limit,
            drop_last=drop_last,
            batch_sampler=batch_sampler,
            rank=rank,
            num_ranks=num_ranks,
            tail=tail,
            skip_steps=skip_steps,
            seed_examples=seed_examples,
            in_order=in_order,
        )

    def _init_runtime(self) -> None:
        super()._init_runtime()
        self._timer = Timer(is_serial=self._seeding is not None)
        self._threads: Threads | None = None
        self._all_counters = [ThreadCounters() for _ in range(self._n_threads)]
        self._calls = self._ready_sum = 0
        self._tuner: Tuner | None = None
        if self._n_prefetch == "auto":
            self._lookahead = Lookahead(FIRST_PREFETCH)
            self._tuner = Tuner({"n_prefetch": MOST_PREFETCH})
        else:
            self._lookahead = Lookahead(self._n_prefetch)
        self._recorded: list[deque[Event]] = []
        self._assembler: Assembler | None = None
        if self._source.concat is not None:
            self._assembler = Assembler(
                *self._source.concat, self._most_rows(), self.n_prefetch + 1
            )
        self._limit: TimeLimit | None = None
        if self._dataset_timeout is not None:
            retries = self._on_timeout == "retry"
            self._limit = TimeLimit(self._dataset_timeout, retries, self._n_retries)
        self._work = Work(
            self._source,
            self._n_threads,
            RowCost(),
            CallCost(),
            self._limit,
            converts=not self._converts_itself,
            tolerates=self._skips is not None,
            claims=None if self._row_groups is None else RowClaims(len(self._dataset)),
        )

    @property
    def n_threads(self) -> int:
        """Number of threads."""
        return self._n_threads

    @property
    def n_prefetch(self) -> int:
        """Batches fetched ahead of the one that ``next()`` waits for; with 'auto', at present."""
        return self._lookahead.n_batches

    def finalize(self) -> None:
        """End the iteration and its threads.

        Waits at most a second for threads that fetch an example. A hanging thread is left
        behind as a daemon thread, which does not keep the program from ending.
        """
        threads = self.__dict__.get("_threads")
        super().finalize()
        if threads is not None:
            threads.join()

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():  # as in the base class
            super().finalize()  # a garbage collection must not wait for threads

    def _open_reading(self, store: PartStore) -> MultithreadIterator | None:
        if self._seeding is not None:  # the generators are the process's
            return None
        parts, n = Parts(store.stream), self._n_threads
        reading = MultithreadIterator(parts, 1, n_threads=n, **self._reading_arguments(store, n))
        store.read_by(reading, parts, n, False)
        return reading

    def _fetch(self, plan: Plan) -> Any:
        if self._seeding is not None:
            return super()._fetch(plan)
        threads = self._running_threads()
        if self._tuner is not None:
            self._tuner.look(self._lookahead, self.stats)
        if self._source.is_on_gpu and self._assembler is not None:
            return self._fetch_to_gpu(threads, plan)
        self._top_up(threads)
        task = plan.work
        batch = self._wait_for(threads, plan)
        if self._device is not None and not isinstance(batch, Failure):
            finish = self._source.convert if self._converts_itself else self._source.sent
            batch = capture(finish, batch)
        plan.outcome = batch
        task.forget()
        return batch

    def _wait_for(self, pool: Threads, plan: Plan) -> Any:
        """Block until the oldest batch is there, and decide about rows that have failed."""
        task = plan.work
        if task is None:
            raise RuntimeError("the iterator was finalized or reset while next() was at work")
        self._timer.block()
        batch = self._batch_of(task)
        self._timer.unblock()
        failures = task.failures
        if not failures:
            return batch
        assert self._skips is not None
        replaced = capture(self._skips.resolve, plan, failures)
        if isinstance(replaced, Failure):
            return replaced
        return capture(task.rebuild, replaced) if replaced else batch

    def _take_ready(self, pool: Threads) -> tuple[Plan, Any] | None:
        for task in self._tasks[:1]:
            if task.is_ready if self._skips is None else task.is_clean:
                return task.plan, self._batch_of(task)
        return None

    def _batch_of(self, task: BatchTask) -> Any:
        threads, limit, look = self._threads, self._limit, None
        if limit is not None and threads is not None:
            look = functools.partial(limit.look, threads, task.plan.label)
        batch = task.wait(look)
        if limit is not None:
            limit.end()
        if self._tuner is not None:
            self._lookahead.batch_bytes = nbytes_of(batch)
        return batch

    def _forget(self, work: BatchTask) -> None:
        work.forget()

    @property
    def _tasks(self) -> list[BatchTask]:
        """The batches that threads work on or have completed, oldest first."""
        return [work for work in self._planner.works() if isinstance(work, BatchTask)]

    def _count_ready(self) -> int:
        """Complete batches, from the oldest one on."""
        count = 0
        for task in self._tasks:
            if not task.is_ready:
                break
            count += 1
        return count

    def _loader_stats(self, seconds: float) -> LoaderStats:
        if self._seeding is not None:
            return super()._loader_stats(seconds)
        return LoaderStats(
            workers_are="threads",
            timeouts=0 if self._limit is None else self._limit.n_ended,
            abandoned=0 if self._threads is None else self._threads.n_abandoned,
            n_workers=self._n_threads,
            n_prefetch=self.n_prefetch,
            changes=() if self._tuner is None else tuple(self._tuner.changes),
            ready=self._count_ready(),
            calls=self._calls,
            ready_sum=self._ready_sum,
            workers=tuple(
                counters.stats(number, seconds)
                for number, counters in enumerate(self._all_counters)
            ),
        )

    def _trace_workers(self, on: bool) -> None:
        if not on:
            self._recorded = [counters.events or deque() for counters in self._all_counters]
        for counters in self._all_counters:
            counters.events = deque(maxlen=_MOST_EVENTS) if on else None

    def _worker_traces(self) -> WorkerTraces:
        return {f"thread {n}": items_of(events) for n, events in enumerate(self._recorded)}

    @property
    def _converts_itself(self) -> bool:
        """Whether the converter is called in the thread that iterates, with the device."""
        return self._device is not None and self._source.takes_device

    def _running_threads(self) -> Threads:
        threads = self._threads
        if threads is None:
            threads = self._threads = Threads(self._all_counters, self._lock, self._limit)
            self._timer.open(functools.partial(_note_start, self._all_counters))
        return threads

    def _top_up(self, threads: Threads) -> None:
        """Have the threads work on as many batches as are wanted."""
        n_tasks = len(self._tasks)
        while n_tasks <= self._lookahead.n_batches:
            plan = self._planner.ahead()
            if plan.indices is None:
                break
            try:
                task = self._task(plan)
            except MemoryError:
                if not self._planner.works():
                    raise
                break  # with fewer batches ahead it may do
            # An interrupt in between has this batch fetched twice, and delivered once.
            threads.submit(task)
            plan.work = task
            n_tasks += 1
        if self._finalized:  # by another thread, which may have missed what was just started
            self._close()
        threads.wake()
        self._calls += 1
        self._ready_sum += self._count_ready()

    def _task(self, plan: Plan) -> BatchTask:
        work, origin, concat = self._work, (self._seed, plan), self._source.concat
        assert plan.indices is not None
        if concat is not None:
            plain = self._source.plain()
            if plain is not None and not plain.reader.is_fixed:
                return ListsTask(work, origin, plain)
            if plain is None:
                getter = column_getter(self._dataset)
                if getter is not None:
                    return PartsTask(work, origin, getter)
            elif fills_suit(plain, concat.padding):
                outputs = plain.reader.outputs(len(plan.indices))
                if outputs is not None:
                    n_batches = self.n_prefetch + 1
                    return ColumnsTask(work, origin, plain.reader, outputs, n_batches)
        return RowsTask(work, origin, self._assembler)

    def _drop_works(self, works: list[Any]) -> None:
        for work in works:
            if isinstance(work, BatchTask):
                work.abort()

    def _close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.close()
        self._drop_works(self._planner.works())

    def _after_fork(self) -> None:
        super()._after_fork()
        self._threads = None  # the child has none of them


def _note_start(all_counters: Sequence[ThreadCounters]) -> None:
    for counters in all_counters:
        counters.note_start()
