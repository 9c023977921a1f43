"""The iterator that fetches in worker processes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastiter._engine.choosing import Choosing
from fastiter._engine.executor import Executor
from fastiter._engine.processes import ProcessExecutor
from fastiter._fetch.seeded import SeededCall
from fastiter._fetch.shard_reader import ShardReader
from fastiter._plan.epoch_sampler import EpochSampler
from fastiter._stats.autotune import first_workers, most_workers
from fastiter._util.arguments import checked_callable, checked_optional_int
from fastiter._util.cpus import usable_cpus, whole_cpus
from fastiter._util.failures import dump
from fastiter._workers import row_writer
from fastiter._workers.batch_converter import BatchConverter, CallableConverter, ConcatConverter
from fastiter._workers.main import BatchJob, WorkerArguments, introduce
from fastiter._workers.pool import Pool
from fastiter._workers.start_method import Caller, choose
from fastiter.errors import TimeoutWarning
from fastiter.iterators import _arguments
from fastiter.iterators._arguments import OnTimeout, Rank, SeedExamples, Tail
from fastiter.iterators._batch_maker import BatchMaker
from fastiter.iterators._prefetching import PrefetchingIterator, shared
from fastiter.iterators._properties import Given, given
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError
from fastiter.iterators._stream_parts import PartStore
from fastiter.iterators._tables import is_stream

if TYPE_CHECKING:
    from fastiter._fetch.shard_reader import Examples, ShardPart
    from fastiter._ring.arena import WorkerRing

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
        As in `SerialIterator`, also for the errors.
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

    n_processes: Given[int] = given(
        "_executor.n_workers",
        "Present number of worker processes; 0 if the caller's process fetches.",
    )
    shared_mem: Given[int | None] = given(
        "_shared_mem", "Bytes per example that slots have room for at first."
    )
    maxtasksperchild: Given[int | None] = given(
        "_maxtasksperchild", "Number of row ranges that a worker completes before it is replaced."
    )
    hedge: Given[float | None] = given(
        "_hedge",
        "Share of the examples that may be fetched a second time; None: no second fetches.",
    )
    worker_init: Given[Callable[[int], Any] | None] = given(
        "_worker_init", "Callable that each worker calls when it starts."
    )

    @_arguments.names_counterparts
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
        n_retries: int = _arguments.DEFAULT_RETRIES,
        hedge: float | None = None,
        converter: Callable[[Any, Any], Any] | None = None,
        device: Any = None,
        n_device_prefetch: int = 1,
        on_error: OnError = "raise",
        skip_limit: float | None = DEFAULT_LIMIT,
        drop_last: bool = False,
        batch_sampler: EpochSampler | Callable[[int], Any] | None = None,
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
            self._n_processes = _arguments.checked_auto(
                "n_processes", n_processes, minimum=0, maximum=_arguments.MOST_WORKERS
            )
        self._n_prefetch, self._n_device_prefetch = _arguments.checked_prefetch(
            n_prefetch, n_device_prefetch, device
        )
        self._shared_mem = checked_optional_int("shared_mem", shared_mem, minimum=0)
        self._set_timeout(dataset_timeout, on_timeout, n_retries)
        self._hedge = _arguments.checked_share("hedge", hedge)
        self._maxtasksperchild = checked_optional_int("maxtasksperchild", maxtasksperchild)
        self._worker_init = checked_callable("worker_init", worker_init)
        self._context = _arguments.checked_context(context)
        if self._hedge is not None and is_stream(dataset):
            raise ValueError(
                "hedge needs a dataset with indices: an example of a StreamDataset is not fetched "
                "alone"
            )
        self._is_serial = self._n_processes == 0
        super().__init__(**shared(locals()))
        overtakes = not (self._in_order or self._is_serial or self._batch_maker.is_on_gpu)
        self._planner.unordered = overtakes and self._planner.has_addresses
        if (self._shared_mem or 0) * self._most_rows() >= 1 << 63:
            raise ValueError(
                "shared_mem must be bytes for one example, of which a batch has "
                f"{self._most_rows()}: {self._shared_mem} are more than can be counted in 63 bits"
            )

    def _auto_settings(self) -> dict[str, int]:
        own = {"n_processes": most_workers(usable_cpus())} if self._n_processes == "auto" else {}
        return own | super()._auto_settings()

    @property
    def _first_processes(self) -> int:
        if self._n_processes == "auto":
            return first_workers(usable_cpus())
        return whole_cpus() if self._n_processes is None else self._n_processes

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
            if self._batch_maker.is_on_gpu and not self._is_serial:
                self._batch_maker.gpu()  # first: how workers are started depends on CUDA
            self._executor.start(self._planner)

    def _new_executor(self) -> Executor:
        maker = self._batch_maker
        kind: Callable[..., Executor] = ProcessExecutor
        if self._stage is None and self._row_groups is None and self._gathers_in_caller:
            kind = functools.partial(Choosing, self._caller_executor(), maker.only_gathers)
        return kind(
            weakref.WeakMethod(self._new_pool),
            self._lock,
            self._timer,
            policy=self._policy,
            is_seeded=isinstance(maker.converter, SeededCall),
            seed=self._seed,
            n_workers=self._first_processes,
            n_prefetch=self._first_prefetch,
            finish=self._finish(),
        )

    def _part_executor(self, store: PartStore) -> Executor:
        n = self._n_processes
        if not isinstance(n, int):
            n = min(whole_cpus(), store.stream.interleave + 1)
        executor = ProcessExecutor(
            weakref.WeakMethod(self._new_part_pool),
            self._lock,
            self._timer,
            n_workers=n,
            n_prefetch=store.parts_ahead(self._first_prefetch, n),
        )
        store.read_by(executor, n)
        return executor

    def _new_pool(self, n_rows: int, n_workers: int, n_prefetch: int) -> Pool:
        """Start workers that make batches, of ``n_rows`` for example."""
        most = {} if self._tuner is None else self._tuner.most
        converter = _batch_converter_of(self._batch_maker, self._policy is not None)
        # A batch sampler's later batches may be larger: not much, or this pool ends with the first.
        rows = max(self._most_rows(), n_rows)
        rows += 0 if self._batch_size else rows // 4
        pool = self._opened(
            self._dataset_timeout,
            job=self._job(converter),
            workers=n_workers,
            most_workers=most.get("n_processes", 0),
            most_prefetch=most.get("n_prefetch", 0),
            rows=rows,
            n_prefetch=n_prefetch,
            # Slots that the consumer has while the loop goes on: those of the copies to a GPU and
            # one to be copied, or those of a loop that keeps its batch while it calls next().
            n_held=2 if self._stage is None else self._n_device_prefetch + 3,
            shared_mem=self._shared_mem,
        )
        pool.ring.set_hedge(self._hedge or 0.0)
        plain = self._batch_maker.plain()
        if plain is not None and plain.is_arrow:
            pool.use_columns(plain, pool.rows)
        return pool

    def _new_part_pool(self, n_rows: int, n_workers: int, n_prefetch: int) -> Pool:
        """Start workers that read parts of shards."""
        store: PartStore = self._planner.store  # type: ignore[attr-defined]
        return self._opened(
            self._part_timeout(store),
            job=StreamJob(store.stream, None, self._worker_init, self._maxtasksperchild),
            workers=n_workers,
            rows=1,
            n_prefetch=n_prefetch,
            n_held=2,
            shared_mem=None if self._shared_mem is None else self._shared_mem * store.rows,
        )

    def _opened(self, dataset_timeout: float | None, **options: Any) -> Pool:
        pool = self._pool_type(
            dataset_timeout=dataset_timeout,
            start=choose(self._context, Caller()),
            lock=self._lock,
            n_retries=self._n_retries if self._on_timeout == "retry" else None,
            **options,
        )
        pool.open()
        return pool

    def _job(self, converter: BatchConverter | None) -> BatchJob:
        return BatchJob(
            self._batch_maker.dataset,
            converter,
            self._worker_init,
            self._maxtasksperchild,
            retries=self._on_timeout == "retry",
            hedges=self._hedge is not None,
        )


class StreamJob(BatchJob):
    """Reads parts of shards in a worker process."""

    learns_columns = False

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        introduce(self.dataset, self.worker_init, arguments.number, arguments.workers, seed)
        reader = ShardReader(self.dataset)

        def answer(part: ShardPart) -> tuple[int, Examples]:
            found = reader.read(part)
            failure = None if found.failure is None else dump(found.failure)
            return len(found.rows), found._replace(failure=failure)

        rows = row_writer.RowWriter(end, None, answer)  # which makes all
        return functools.partial(rows.run, None, self.claims or 0)


def _batch_converter_of(maker: BatchMaker, tolerates: bool) -> BatchConverter | None:
    if maker.converter is None:
        return None
    if maker.concat is not None:
        return ConcatConverter(*maker.concat, tolerates)
    return CallableConverter(maker.converter, tolerates)
