"""The iterator that fetches in worker processes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from fastiter._fetch.seeded import SeededCall
from fastiter._stats.autotune import (
    FIRST_PREFETCH,
    MOST_PREFETCH,
    Tuner,
    first_workers,
    most_workers,
)
from fastiter._stats.gathering import GatherTrial
from fastiter._stats.stats import LoaderStats, WorkerKind
from fastiter._stats.timer import Timer
from fastiter._stats.trace import WorkerTraces
from fastiter._util import shutdown
from fastiter._util.arguments import checked_callable, checked_optional_int
from fastiter._util.cpus import usable_cpus, whole_cpus
from fastiter._util.failures import Failure, capture, dump
from fastiter._util.worker_info import WorkerInfo, set_worker_info
from fastiter._workers import row_writer
from fastiter._workers.batch_converter import BatchConverter, CallableConverter, ConcatConverter
from fastiter._workers.delivery import from_rows
from fastiter._workers.main import BatchJob, WorkerArguments
from fastiter._workers.pool import Pool
from fastiter._workers.start_method import Caller, choose
from fastiter.errors import TimeoutWarning
from fastiter.iterators._arguments import (
    DEFAULT_RETRIES,
    MOST_WORKERS,
    OnTimeout,
    Rank,
    SeedExamples,
    Tail,
    checked_auto,
    checked_context,
    checked_prefetch,
    checked_share,
    names_counterparts,
)
from fastiter.iterators._batch_maker import BatchMaker
from fastiter.iterators._device_prefetch import PrefetchingIterator
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError
from fastiter.iterators._state import Plan
from fastiter.iterators._stream_parts import Parts, PartStore, reader_of

if TYPE_CHECKING:
    from fastiter._fetch.shard_reader import Examples, Part
    from fastiter._ring.arena import WorkerRing
    from fastiter._ring.parent import Lease

__all__ = ["MultiprocessIterator"]


class MultiprocessIterator(PrefetchingIterator):
    """Iterates over a dataset with worker processes that write into shared memory.

    The workers share each batch: rows are dealt out a few at a time, and each example is written
    once, where the caller will read it. If a batch is only copied from arrays or columns, by
    `concat_examples`, the calling process makes it when that is faster; ``stats()`` shows which.
    Batches come in order. Their arrays are writable views of shared memory, which is used again
    only after the last of these arrays is gone; holding batches costs memory, never progress. A
    worker that dies is replaced, and its rows are fetched again.

    Processes start with the first ``next()``, or with ``start()``. The dataset is pickled once
    into memory that all workers share, or inherited if the start method is fork.

    Parameters
    ----------
    dataset, batch_size, repeat, shuffle, order_sampler
        As in `SerialIterator`.
    n_processes : int, 'auto' or None
        Number of worker processes. None: the number of CPUs that this process may use, by its
        affinity and the quota of its control group. 0: fetch in the calling process, for
        debugging. 'auto': begin with few, and add or remove workers as the iterator's statistics
        advise, within the limits of CPUs and memory.
    n_prefetch : int, 'auto' or None
        As in `MultithreadIterator`.
    shared_mem : int, optional
        Bytes per example that slots have room for at first. They grow as needed. None: measure
        the first batches.
    dataset_timeout : float, optional
        Seconds that the dataset may take for one example or to load in a worker, and a converter
        for a batch, before `TimeoutWarning` is issued, again after each further period; None for no
        limit. The warning also comes when no worker makes progress for this long, for example
        because all are stopped. ``warnings.simplefilter('error',
        MultiprocessIterator.TimeoutWarning)`` makes ``next()`` raise it; no batch is lost then.
    on_timeout : 'warn' or 'retry'
        'retry': a worker that takes longer than ``dataset_timeout`` is ended and replaced, and
        another worker fetches the row; ``dataset_timeout`` then limits one example, and a call of
        ``__getitems__`` for k examples may take k times as long. The guide has a page on it.
    n_retries : int
        Number of further attempts to fetch such an example, before `DatasetTimeoutError`; and to
        load the dataset in a worker, before ``next()`` raises this error. A converter that takes
        too long is an error of its batch at once.
    hedge : float, optional
        Share of the examples, above 0 and at most 1, that workers may fetch a second time, where
        they hold up a batch and take far longer than most; 0.05 is a good value. The copy that
        finishes first is used, so ``dataset[i]`` must give equal results in every worker. None:
        no second fetches. The guide's page on examples that hang has a section on it.
    maxtasksperchild : int, optional
        Number of row ranges that a worker completes before a new worker replaces it.
    converter : callable, optional
        ``next()`` returns what ``converter(examples, device)`` gives. `concat_examples`, also in a
        `functools.partial` with ``padding`` or ``copy``, is done in place, without example
        objects. Any other callable runs in a worker, with the device None, on private copies of
        the examples, or with these alone if it has a single parameter; under spawn and forkserver
        it has to pickle.
    device : device, optional
        Device that the converter's result is sent to; see `to_device`. A GPU reads it from shared
        memory by itself, while the program goes on; the arrays can be used at once on the stream
        that is current in ``next()``.
    n_device_prefetch : int
        Batches copied to the GPU ahead of the one that ``next()`` returns, at least 0. They take
        GPU memory: about three batches more, and those that you hold.
    on_error, skip_limit
        As in `SerialIterator`. An index that kills worker after worker may be skipped, too.
    drop_last, batch_sampler, rank, num_ranks, tail, skip_steps, seed_examples
        As in `SerialIterator`.
    in_order : bool
        False: within an epoch, batches come as they are complete. An epoch has ended when its last
        batch was delivered. `address` identifies the batch. `state_dict` records the batches still
        missing; after loading, those come first. Each rank has a state of its own, and
        other ranks and batch sizes need all of these states: see `load_state_dict`. With a GPU as
        ``device``, and from a `StreamDataset`, batches come in order.
    worker_init : callable, optional
        Callable that each worker, also a replacement, calls as ``worker_init(number)`` when it has
        loaded the dataset; see `get_worker_info`. ``next()`` raises its exceptions. It has to
        pickle under spawn and forkserver, and is not called if ``n_processes`` is 0.
    context : str or multiprocessing context, optional
        Start method of the workers: 'fork', 'spawn', 'forkserver'. None: the method set by
        ``multiprocessing.set_start_method``, else the interpreter's default. 'safe': the same,
        except that a fork server replaces a fork that other threads or CUDA may make unsafe, if
        the dataset pickles and the main module has an ``if __name__ == '__main__'`` guard.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.

    Notes
    -----
    ``next()`` blocks until the batch is complete; signals interrupt it. It raises exceptions of the
    dataset as their own type with the worker's traceback as cause; `DatasetError` for exceptions
    that are no `Exception` or cannot be pickled; and `WorkerDiedError` for an index that kills
    worker after worker. The following call continues with the next batch.
    """

    TimeoutWarning: ClassVar[type[TimeoutWarning]] = TimeoutWarning

    _REOPENABLE = False
    _gathers_in_caller = True  # where that is faster
    _pool_type: type[Pool] = Pool
    _hedge: float | None

    @names_counterparts
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_processes: int | Literal["auto"] | None = None,
        n_prefetch: int | Literal["auto"] | None = None,
        shared_mem: int | None = None,
        order_sampler: Callable[[Any, int], Any] | None = None,
        dataset_timeout: float | None = 30.0,
        maxtasksperchild: int | None = None,
        *,
        on_timeout: OnTimeout = "warn",
        n_retries: int = DEFAULT_RETRIES,
        hedge: float | None = None,
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
        worker_init: Callable[[int], Any] | None = None,
        context: Any = None,
    ) -> None:
        self._n_processes: int | Literal["auto"] | None = None
        if n_processes is not None:
            self._n_processes = checked_auto(
                "n_processes", n_processes, minimum=0, maximum=MOST_WORKERS
            )
        self._n_prefetch, self._n_device_prefetch = checked_prefetch(
            n_prefetch, n_device_prefetch, device
        )
        self._shared_mem = checked_optional_int("shared_mem", shared_mem, minimum=0)
        self._set_timeout(dataset_timeout, on_timeout, n_retries)
        self._hedge = checked_share("hedge", hedge)
        self._maxtasksperchild = checked_optional_int("maxtasksperchild", maxtasksperchild)
        self._worker_init = checked_callable("worker_init", worker_init)
        self._context = checked_context(context)
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
        overtakes = not (self._in_order or self._n_processes == 0 or self._source.is_on_gpu)
        self._planner.unordered = overtakes and self._planner.has_addresses
        if (self._shared_mem or 0) * self._most_rows() >= 1 << 63:
            raise ValueError(
                "shared_mem must be bytes for one example, of which a batch has "
                f"{self._most_rows()}: {self._shared_mem} are more than can be counted in 63 bits"
            )

    def _init_runtime(self) -> None:
        super()._init_runtime()
        self._timer = Timer(is_serial=self._n_processes == 0)
        self._pool: Pool | None = None
        self._remains: _Remains | None = None
        self._trial: GatherTrial | None = None
        most = self._auto_settings()
        self._tuner = Tuner(most) if most else None
        self._set_straight()

    def _auto_settings(self) -> dict[str, int]:
        """The settings that are 'auto', and the most of each."""
        most = {}
        if self._n_processes == "auto":
            most["n_processes"] = most_workers(usable_cpus())
        if self._n_prefetch == "auto" and self._n_processes != 0:
            most["n_prefetch"] = MOST_PREFETCH
        return most

    def _set_straight(self) -> None:
        """Note whether `_fetch` has nothing to do but to wait for the workers."""
        others = (self._trial, self._tuner, self._device)
        self._is_straight = self._n_processes != 0 and all(each is None for each in others)

    @property
    def n_processes(self) -> int:
        """Present number of worker processes; 0 if the caller's process fetches."""
        if isinstance(self._reading, MultiprocessIterator):
            return self._reading.n_processes
        if self._n_processes == "auto":
            pool, remains = self._pool, self._remains
            if pool is not None:
                return pool.n_workers
            return first_workers(usable_cpus()) if remains is None else remains.stats.n_workers
        return whole_cpus() if self._n_processes is None else self._n_processes

    @property
    def n_prefetch(self) -> int:
        """Batches fetched ahead of the one that ``next()`` waits for; with 'auto', at present."""
        if self._n_prefetch == "auto":
            pool, remains = self._pool, self._remains
            if pool is not None:
                return pool.ring.n_prefetch
            return FIRST_PREFETCH if remains is None else remains.stats.n_prefetch
        return self._n_prefetch

    @property
    def shared_mem(self) -> int | None:
        """Bytes per example that slots have room for at first."""
        return self._shared_mem

    @property
    def maxtasksperchild(self) -> int | None:
        """Number of row ranges that a worker completes before it is replaced."""
        return self._maxtasksperchild

    @property
    def hedge(self) -> float | None:
        """Share of the examples that may be fetched a second time; None: no second fetches."""
        return self._hedge

    @property
    def worker_init(self) -> Callable[[int], Any] | None:
        """Callable that each worker calls when it starts."""
        return self._worker_init  # type: ignore[no-any-return]

    def start(self) -> None:
        """Start the worker processes now, all at once, and the first batches with them.

        Without it, the first ``next()`` starts them. Returns without waiting for the workers.

        Raises
        ------
        RuntimeError
            After `finalize`, or in a daemonic process.
        TypeError
            If the dataset or the converter cannot be pickled, under spawn or forkserver.
        """
        with self._lock:
            if self._finalized:
                raise RuntimeError(
                    "this MultiprocessIterator is closed (finalized): make a new one"
                )
            if isinstance(self._reading, MultiprocessIterator):
                self._reading.start()
            elif self.n_processes > 0:
                if self._source.is_on_gpu:
                    self._source.gpu()
                self._running_pool().ring.top_up(self._planner)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._trial = None  # the child has to make a copy of this iterator
        self._set_straight()

    def _fetch(self, plan: Plan) -> Any:
        if not self._is_straight:
            return self._fetch_otherwise(plan)
        pool = self._running_pool(len(plan.indices))  # type: ignore[arg-type]
        pool.ring.top_up(self._planner)
        return self._wait_for(pool, plan)

    def _fetch_otherwise(self, plan: Plan) -> Any:
        """`_fetch` where batches go to a device, or the caller may fetch, or settings change."""
        if self._n_processes == 0:
            return super()._fetch(plan)
        trial = self._trial
        if trial is not None:
            trial.n_left -= 1
            if trial.n_left < 0:
                trial.look(self._timer, self.n_prefetch)
            if trial.in_caller and plan.work is None:  # the workers have begun nothing more
                trial.n_batches += 1
                self._timer.block()
                batch = super()._fetch(plan)
                self._timer.unblock()
                return batch
        # The GPU first: how workers are started depends on whether CUDA is initialised.
        transfer = self._source.gpu() if self._source.is_on_gpu else None
        indices = plan.indices
        assert indices is not None
        pool = self._running_pool(len(indices))
        if self._tuner is not None:
            self._tuner.look(pool, self.stats)
        if transfer is not None:
            transfer.use_arena(pool.ring.arena)
            return self._fetch_to_gpu(pool, plan)
        if trial is None or not trial.in_caller:
            pool.ring.top_up(self._planner)
        batch = self._wait_for(pool, plan)
        if self._device is not None and not isinstance(batch, Failure):
            return capture(self._source.sent, batch)
        return batch

    def _top_up(self, pool: Pool) -> None:
        pool.ring.top_up(self._planner)

    def _wait_for(self, pool: Pool, plan: Plan) -> Any:
        """The oldest batch in the ring, that of ``plan``, as the workers have left it; if that need
        not be the next one, the oldest that is complete."""
        planner = None
        if not self._in_order and self._planner.unordered and not self._planner.has_holes:
            planner = self._planner
            if pool.ring.overtake(planner):
                plan = planner.peek()
        lease = pool.ring.take()
        if lease is not None:
            return self._from_rows(pool, plan, lease)
        self._timer.block()
        while not pool.ring.scheduled:
            pool.wait_for_slot()
            pool.ring.top_up(self._planner)
        pool.wait(planner)
        self._timer.unblock()
        if planner is not None:
            plan = planner.peek()
        return self._in_caller(plan, pool.deliver, plan, self._skips)

    def _take_ready(self, pool: Pool) -> tuple[Plan, Any] | None:
        if not (pool.ring.scheduled and pool.ring.ready()):
            return None
        plan = pool.ring.scheduled[0].plan
        lease = pool.ring.take()
        if lease is not None:
            return plan, self._from_rows(pool, plan, lease)
        if self._skips is not None:
            return None
        pool.wait()  # an overwritten word may have taken it back
        return plan, self._in_caller(plan, pool.deliver, plan, None)

    def _from_rows(self, pool: Pool, plan: Plan, lease: Lease) -> Any:
        converter = pool.job.batch_converter
        if self._seeding is not None:
            return self._in_caller(plan, from_rows, lease, plan.indices, {}, converter)
        try:
            return from_rows(lease, plan.indices, {}, converter)  # type: ignore[arg-type]
        except Exception as error:
            return Failure.of(error)

    def _in_caller(self, plan: Plan, function: Callable[..., Any], *arguments: Any) -> Any:
        """Result, or `Failure`, of a function that may have to convert the batch."""
        if isinstance(self._source.converter, SeededCall):
            return self._capture(plan, function, *arguments)
        return capture(function, *arguments)

    def _running_pool(self, n_rows: int = 0) -> Pool:
        """The workers, with room for batches of ``n_rows``."""
        pool = self._pool
        if pool is not None:
            if n_rows > pool.rows and pool.is_own:
                pool.close()
            if not pool.is_own:
                raise RuntimeError(
                    f"this iterator belongs to process {pool.pid}; in a child, iterate over a copy "
                    "(copy.copy(iterator))"
                )
            if not pool.closed:
                if pool.has_to_look:
                    pool.look()
                return pool
        shutdown.block_if_exiting(self._lock)
        # Not started yet, or the last start failed and said why.
        self._planner.rewind()
        most = {} if self._tuner is None else self._tuner.most
        converter = _batch_converter_of(self._source, self._skips is not None)
        # A batch sampler's later batches may be larger: not much, or this pool ends with the first.
        rows = max(self._most_rows(), n_rows)
        rows += 0 if self._batch_size else rows // 4
        pool = self._pool_type(
            job=self._job(converter),
            workers=self.n_processes,
            most_workers=most.get("n_processes", 0),
            most_prefetch=most.get("n_prefetch", 0),
            rows=rows,
            n_prefetch=self.n_prefetch,
            # Slots that the consumer has while the loop goes on: those of _fetch_to_gpu and one to
            # be copied, or those of a loop that keeps its batch while it calls next().
            n_held=self._n_device_prefetch + 3 if self._source.is_on_gpu else 2,
            shared_mem=self._shared_mem,
            dataset_timeout=self._dataset_timeout,
            start=choose(self._context, Caller()),
            lock=self._lock,
            n_retries=self._n_retries if self._on_timeout == "retry" else None,
        )
        pool.open()
        self._pool = pool
        pool.ring.seed = self._seed
        pool.ring.set_hedge(self._hedge or 0.0)
        plain = self._source.plain()
        if plain is not None and plain.is_arrow:
            pool.use_columns(plain)
        only_gathers = plain is not None and self._source.concat is not None
        only_gathers = only_gathers and self._gathers_in_caller
        if only_gathers and self._row_groups is None and not self._source.is_on_gpu:
            self._trial = self._trial or GatherTrial()
            self._set_straight()
        self._timer.open(pool.note_start)
        if self._timer.trace is not None:
            pool.ring.start_trace()
        return pool

    def _job(self, converter: BatchConverter | None) -> BatchJob:
        if isinstance(self._dataset, Parts):
            stream = self._dataset.stream
            return StreamJob(stream, None, self._worker_init, self._maxtasksperchild)
        return BatchJob(
            self._source.dataset,
            converter,
            self._worker_init,
            self._maxtasksperchild,
            retries=self._on_timeout == "retry",
            hedges=self._hedge is not None,
        )

    def _open_reading(self, store: PartStore) -> MultiprocessIterator | None:
        if self._hedge is not None:
            raise ValueError(
                "hedge needs a dataset with indices: an example of a StreamDataset is not fetched "
                "alone"
            )
        if self._n_processes == 0:
            return None
        parts, n = Parts(store.stream), self._n_processes
        if not isinstance(n, int):
            n = min(whole_cpus(), store.stream.interleave + 1)
        self._tuner = None
        reading = MultiprocessIterator(
            parts,
            1,
            n_processes=n,
            shared_mem=None if self._shared_mem is None else self._shared_mem * store.rows,
            maxtasksperchild=self._maxtasksperchild,
            worker_init=self._worker_init,
            context=self._context,
            **self._reading_arguments(store, n),
        )
        store.read_by(reading, parts, n, True)
        return reading

    def _loader_stats(self, seconds: float) -> LoaderStats:
        pool, remains = self._pool, self._remains
        if pool is not None:
            changed = [each for each in (self._tuner, self._trial) if each is not None]
            changes = tuple(itertools.chain.from_iterable(each.changes for each in changed))
            n_gathered = 0 if self._trial is None else self._trial.n_batches
            return pool.statistics(seconds)._replace(changes=changes, gathered_here=n_gathered)
        if remains is not None:
            return remains.stats
        n_workers = self.n_processes
        kind: WorkerKind = "processes" if n_workers else "none"
        return LoaderStats(kind, n_workers, self.n_prefetch if n_workers else 0)

    def _trace_workers(self, on: bool) -> None:
        if self._pool is not None and not self._pool.closed:  # one whose start failed is closed
            ring = self._pool.ring
            (ring.start_trace if on else ring.stop_trace)()

    def _worker_traces(self) -> WorkerTraces:
        pool, remains = self._pool, self._remains
        if pool is not None:
            return {f"worker {n}": pool.ring.trace_events(n) for n in range(pool.n_workers)}
        return {} if remains is None else remains.traces

    def _drop_works(self, works: list[Any]) -> None:
        pool = self._pool
        if pool is None or not pool.is_own:
            return
        pool.ring.reset()
        pool.ring.seed = self._seed
        if not pool.closed and pool.rows < self._most_rows():
            pool.close()  # the dataset has grown: the next one has room for its batches

    def _close(self) -> None:
        pool = self._pool
        if pool is None or not pool.is_own:
            return
        pool.interrupt()
        with self._lock:
            pool.close()
            self._timer.opened = None
            if self._pool is pool:
                # The memory goes with the pool, unless a batch is alive.
                _, inside, _, between, _ = self._timer.read()
                traces = {} if self._timer.trace is None else self._worker_traces()
                self._remains = _Remains(self._loader_stats(inside + between), traces)
                self._pool = None


class _Remains(NamedTuple):
    """Statistics and traces of a pool that is gone."""

    stats: LoaderStats
    traces: WorkerTraces


class StreamJob(BatchJob):
    """Reads parts of shards in a worker process."""

    learns_columns = False

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        set_worker_info(WorkerInfo(arguments.number, arguments.workers, seed, self.dataset))
        if self.worker_init is not None:
            self.worker_init(arguments.number)
        reader = reader_of(self.dataset)

        def answer(part: Part) -> Examples:
            found = reader.read(part)
            failure = None if found.failure is None else dump(found.failure)
            return found._replace(failure=failure)

        rows = row_writer.RowWriter(end, None, answer)  # which makes all
        return functools.partial(rows.work, None, self.claims or 0)


def _batch_converter_of(source: BatchMaker, tolerates: bool) -> BatchConverter | None:
    if source.converter is None:
        return None
    if source.concat is not None:
        return ConcatConverter(*source.concat, tolerates)
    return CallableConverter(source.converter, tolerates)
