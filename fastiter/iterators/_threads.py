"""Worker threads, and batches that several of them fetch together.

Not concurrent.futures: its threads are joined when the interpreter exits, so that one example
that hangs would keep the whole program from ending. These are daemon threads.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastiter.errors import DatasetError
from fastiter.iterators._fetch import Outcome, capture

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._columns import ColumnReader
    from fastiter.iterators._state import Indices

_LEAST_BYTES = 1 << 18  # handing less than this to another thread costs more than copying it


class Job:
    """One batch, fetched by all threads together.

    Threads take ranges of rows, ever smaller ones, so that a slow example delays its own range
    only. After an error no more rows are taken; those taken before are finished, so the error
    kept is that of the first failing row, however the threads run.

    A subclass gives ``_fill(start, stop)``, which fetches these rows, and ``_result()``.

    Parameters
    ----------
    indices : int64[n]
        Dataset indices of the rows.
    n_threads : int
        How many threads call `run`.
    """

    def __init__(self, indices: Indices, n_threads: int) -> None:
        self._indices = indices
        self._n_threads = n_threads
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._n_rows = len(indices)  # to be taken; fewer after an error
        self._n_taken = 0
        self._n_done = 0
        self._error: Exception | None = None
        self._error_row = len(indices)
        self._is_aborted = False

    def run(self) -> None:
        """Fetch rows until none is left to take. Called by every thread; raises nothing."""
        while True:
            with self._lock:
                start = self._n_taken
                rest = self._n_rows - start
                if rest <= 0:
                    return
                stop = start + self._share(rest)
                self._n_taken = stop
            outcome = self._do(start, stop)
            with self._lock:
                if outcome.error is not None:
                    self._n_rows = self._n_taken
                    if start < self._error_row:
                        self._error, self._error_row = outcome.error, start
                self._n_done += stop - start
                if self._n_done == self._n_rows:
                    self._finished.set()

    def _share(self, rest: int) -> int:
        """How many of the rows that are left a thread takes at a time."""
        return max(1, rest // (2 * self._n_threads))

    def _do(self, start: int, stop: int) -> Outcome:
        try:
            return capture(self._fill, start, stop)
        except BaseException as error:
            # SystemExit and its like would end this thread in silence and lose the rows.
            wrapped = DatasetError(
                f"the dataset raised {error!r} in a worker thread, for one of the indices "
                f"{self._indices[start:stop].tolist()}"
            )
            wrapped.__cause__ = error
            return Outcome(None, wrapped)

    def _fill(self, start: int, stop: int) -> None:
        raise NotImplementedError

    def _result(self) -> Any:
        raise NotImplementedError

    def abort(self) -> None:
        """Take no more rows, and wake up who waits."""
        with self._lock:
            self._n_rows = self._n_taken
            self._is_aborted = True
        self._finished.set()

    def wait(self) -> Outcome:
        """Block until all rows are there, or an error is.

        Returns
        -------
        Outcome
            The result, or the first failing row's error.

        Raises
        ------
        RuntimeError
            If the job was aborted in the meantime. KeyboardInterrupt leaves it as it is.
        """
        self._finished.wait()
        if self._is_aborted:
            raise RuntimeError("the iterator was finalized or reset while next() was waiting")
        return Outcome(self._result() if self._error is None else None, self._error)


class ExamplesJob(Job):
    """The examples of a batch, as a list.

    Parameters
    ----------
    fetch : callable
        ``fetch(indices)`` gives the list of the examples at some of the indices.
    indices, n_threads
        As in `Job`.
    """

    def __init__(
        self, fetch: Callable[[Indices], list[Any]], indices: Indices, n_threads: int
    ) -> None:
        super().__init__(indices, n_threads)
        self._fetch = fetch
        self._examples: list[Any] = [None] * len(indices)

    def _fill(self, start: int, stop: int) -> None:
        self._examples[start:stop] = self._fetch(self._indices[start:stop])

    def _result(self) -> list[Any]:
        return self._examples


class ColumnsJob(Job):
    """The columns of a batch, gathered from a dataset of arrays without making examples.

    The result is None if an array has changed, so that it cannot be gathered any more.

    Parameters
    ----------
    reader : ColumnReader
        Whose columns can be gathered.
    outputs : list of array
        From ``reader.outputs(len(indices))``.
    indices, n_threads
        As in `Job`.
    """

    def __init__(
        self,
        reader: ColumnReader,
        outputs: list[npt.NDArray[Any]],
        indices: Indices,
        n_threads: int,
    ) -> None:
        super().__init__(indices, n_threads)
        self._reader = reader
        self._outputs = outputs
        n_bytes = sum(output.nbytes for output in outputs)
        self._least = max(1, _LEAST_BYTES * len(indices) // max(n_bytes, 1))
        self._is_complete = True

    def _share(self, rest: int) -> int:
        return min(rest, max(self._least, super()._share(rest)))

    def _fill(self, start: int, stop: int) -> None:
        if not self._reader.gather_part(self._outputs, start, self._indices[start:stop]):
            self._is_complete = False

    def _result(self) -> Any:
        return self._reader.assembled(self._outputs) if self._is_complete else None


class Threads:
    """A fixed number of daemon threads that run jobs in order, all threads on each job."""

    def __init__(self, n_threads: int) -> None:
        self.pid = os.getpid()  #: the process that has the threads; a forked child has none
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for number in range(n_threads):
                thread = threading.Thread(
                    target=_run_jobs, args=(self._jobs,), name=f"fastiter-{number}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> None:
        """Have all threads run ``job``, after the jobs submitted before."""
        for _ in self._threads:
            self._jobs.put(job)

    def close(self) -> None:
        """Let each thread end when it is through with the job in its hands. Does not block."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the threads to end, ``timeout`` seconds in total."""
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _run_jobs(jobs: queue.SimpleQueue[Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.run()
        del job  # while waiting for the next one, keep no batch alive
