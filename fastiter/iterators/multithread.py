"""The iterator that fetches in threads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from fastiter._engine.executor import Executor
from fastiter._engine.threads import ThreadExecutor
from fastiter._fetch.row_groups import RowClaims
from fastiter._plan.epoch_sampler import EpochSampler
from fastiter._threads.limit import TimeLimit
from fastiter._util.arguments import checked_int
from fastiter.iterators import _arguments
from fastiter.iterators._arguments import OnTimeout, Rank, SeedExamples, Tail
from fastiter.iterators._batch_maker import BatchMaker
from fastiter.iterators._prefetching import PrefetchingIterator, shared
from fastiter.iterators._properties import Given, given
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError
from fastiter.iterators._stream_parts import PartStore, ShardParts

if TYPE_CHECKING:
    from fastiter._engine.device_stage import DeviceStage

__all__ = ["MultithreadIterator"]


class MultithreadIterator(PrefetchingIterator):
    """Iterates over a dataset with threads, which fetch batches ahead.

    For datasets that release the GIL while they work (files, decompression, NumPy on large
    arrays), and for objects that cannot be sent to other processes; a dataset of pure Python code
    is faster in processes. The threads share each batch: rows are dealt out a few at a time.
    Batches come in order.

    Parameters
    ----------
    dataset, batch_size, repeat, shuffle, order_sampler
        As in `SerialIterator`, also for the errors; several threads call the dataset at a time, and
        the thread that iterates calls the order sampler.
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

    n_threads: Given[int] = given("_n_threads", "Number of threads.")

    @_arguments.names_counterparts
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
        n_retries: int = _arguments.DEFAULT_RETRIES,
        n_prefetch: int | Literal["auto"] | None = None,
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
    ) -> None:
        self._set_timeout(dataset_timeout, on_timeout, n_retries)
        if seed_examples is not False and on_timeout == "retry":
            raise ValueError(
                "on_timeout='retry' leaves threads behind, which would draw from the generators "
                "that seed_examples seeds: use MultiprocessIterator"
            )
        self._n_threads = checked_int("n_threads", n_threads, maximum=_arguments.MOST_WORKERS)
        self._n_prefetch, self._n_device_prefetch = _arguments.checked_prefetch(
            n_prefetch, n_device_prefetch, device
        )
        self._is_serial = seed_examples is not False  # the generators are the process's
        super().__init__(**shared(locals()))

    def finalize(self) -> None:
        """End the iteration and its threads.

        Waits at most a second for threads that fetch an example. A hanging thread is left
        behind as a daemon thread, which does not keep the program from ending.
        """
        super().finalize()
        if "_executor" in self.__dict__:
            self._executor.join()

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():  # as in the base class
            super().finalize()  # a garbage collection must not wait for threads

    def _new_stage(self) -> DeviceStage | None:
        # Any other converter gets the device, in this thread.
        return None if self._batch_maker.concat is None else super()._new_stage()

    def _new_executor(self) -> Executor:
        maker = self._batch_maker
        converts_here = self._device is not None and maker.takes_device
        return ThreadExecutor(
            maker,
            self._most_rows(),
            self._lock,
            self._timer,
            n_threads=self._n_threads,
            n_prefetch=self._first_prefetch,
            limit=self._limit_of(self._dataset_timeout),
            policy=self._policy,
            claims=None if self._row_groups is None else RowClaims(len(self._dataset)),
            seed=self._seed,
            finish=maker.convert if converts_here else self._finish(),
            converts=not converts_here,
            measures=self._tuner is not None,
        )

    def _part_executor(self, store: PartStore) -> Executor:
        parts, n = ShardParts(store.stream), self._n_threads
        executor = ThreadExecutor(
            BatchMaker(parts, None, None),
            1,
            self._lock,
            self._timer,
            n_threads=n,
            n_prefetch=store.parts_ahead(self._first_prefetch, n),
            limit=self._limit_of(self._part_timeout(store)),
        )
        store.read_by(executor, n, parts)
        return executor

    def _limit_of(self, seconds: float | None) -> TimeLimit | None:
        if seconds is None:
            return None
        return TimeLimit(seconds, self._on_timeout == "retry", self._n_retries)
