"""The iterator that fetches in threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from fastiter.iterators._arguments import checked_int
from fastiter.iterators._base import PlannedIterator
from fastiter.iterators._fetch import Outcome, capture
from fastiter.iterators._state import Indices, Plan
from fastiter.iterators._threads import ColumnsJob, ExamplesJob, Job, Threads

__all__ = ["MultithreadIterator"]

_JOIN_SECONDS = 1.0  # finalize() waits so long for threads that are amid an example


class MultithreadIterator(PlannedIterator):
    """Iterates over a dataset with threads, which fetch one batch ahead.

    For datasets that release the GIL while they work (files, decompression, NumPy on large
    arrays), and for what cannot be sent to other processes. The dataset's errors are raised as
    they are by the ``next()`` whose batch they belong to.

    Parameters
    ----------
    dataset : sequence
        Has ``__len__``, and ``__getitem__(int)`` or ``__getitems__(list of int)``, which
        several threads may call at a time.
    batch_size : int
        Examples in a batch, at least 1; may exceed the dataset's length.
    repeat : bool
        Whether to go on, epoch after epoch, for ever. Otherwise the iteration ends with the
        first epoch, whose last batch may be short.
    shuffle : bool, optional
        True, and None without an ``order_sampler``: a new order for each epoch, from NumPy's
        global generator. False: in the order of indices.
    n_threads : int
        Number of threads, at least 1.
    order_sampler : callable, optional
        ``order_sampler(current_order, current_position)`` gives the next epoch's order; see
        `OrderSampler`. Excludes ``shuffle``. Called in the thread that iterates.
    converter : callable, optional
        ``next()`` returns ``converter(examples, device)`` instead of the list of examples.
        Called in the thread that iterates.
    device : device, optional
        What ``converter`` gets; see `to_device`.

    Raises
    ------
    TypeError, ValueError
        If an argument is none of these, or the dataset is empty.
    """

    _RUNTIME: ClassVar[frozenset[str]] = PlannedIterator._RUNTIME | {"_threads", "_started"}

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        repeat: bool = True,
        shuffle: bool | None = None,
        n_threads: int = 1,
        order_sampler: Callable[[Any, int], Any] | None = None,
        *,
        converter: Callable[[Any, Any], Any] | None = None,
        device: Any = None,
    ) -> None:
        self._n_threads = checked_int("n_threads", n_threads)
        super().__init__(dataset, batch_size, repeat, shuffle, order_sampler, converter, device)

    def _init_runtime(self) -> None:
        super()._init_runtime()
        self._threads: Threads | None = None
        self._started: deque[tuple[Plan, Job]] = deque()  # the oldest one first

    @property
    def n_threads(self) -> int:
        """Number of threads."""
        return self._n_threads

    def finalize(self) -> None:
        """End the iteration and its threads.

        Waits at most a second for threads that are amid an example. One that hangs is left
        behind as a daemon thread, which does not keep the program from ending.
        """
        threads = self.__dict__.get("_threads")
        super().finalize()
        if threads is not None:
            threads.join(_JOIN_SECONDS)

    def __del__(self) -> None:
        super().finalize()  # a garbage collection must not wait for threads

    def _fetch(self, plan: Plan) -> Outcome:
        self._start_batches(plan)
        if self._finalized:  # by another thread, which may have missed what was just started
            self._close()
        job = self._started[0][1]
        outcome = job.wait()
        if outcome.error is None and isinstance(job, ColumnsJob):
            outcome = capture(self._finish_columns, plan, outcome.batch)
        elif outcome.error is None and self._converter is not None:
            outcome = capture(self._converter, outcome.batch, self._device)
        self._started.popleft()
        return outcome

    def _start_batches(self, plan: Plan) -> None:
        """Have the threads work on ``plan`` and the one that follows it."""
        threads = self._threads
        if threads is None or threads.pid != os.getpid():
            self._started.clear()
            threads = self._threads = Threads(self._n_threads)
        if not self._started or self._started[0][0] is not plan:
            # The first batch; or a Ctrl-C hit between the end of _fetch and the delivery.
            self._discard_ahead()
            self._planner.rewind()
        while len(self._started) < 2:
            planned = self._planner.ahead()
            if planned.indices is None:
                return
            job = self._job(planned.indices)
            self._started.append((planned, job))
            threads.submit(job)

    def _job(self, indices: Indices) -> Job:
        plain = self._source.plain()
        if plain is not None and self._source.joins(plain):
            outputs = plain.reader.outputs(len(indices))
            if outputs is not None:
                return ColumnsJob(plain.reader, outputs, indices, self._n_threads)
        return ExamplesJob(self._source.examples, indices, self._n_threads)

    def _finish_columns(self, plan: Plan, columns: Any) -> Any:
        if columns is None:
            assert plan.indices is not None
            return self._source.batch(plan.indices)
        return self._source.sent(columns)

    def _discard_ahead(self) -> None:
        while self._started:
            self._started.popleft()[1].abort()

    def _close(self) -> None:
        threads, self._threads = self._threads, None
        for _, job in self._started.copy():
            job.abort()
        if threads is not None:
            threads.close()
