"""Batches that several threads fetch together.

A task is one batch. Threads take ranges of its rows, ever smaller ones, so that a slow example
delays its own range only. The thread that completes the last rows finishes the batch.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastiter._collate.collate import collate
from fastiter._collate.columns import collate_columns, examples_of, join_columns
from fastiter._device.cupy import synchronize
from fastiter._order.example_context import ExampleContext
from fastiter._stats.timer import now
from fastiter._threads.batch_buffer import BatchBuffer, CallCost, Position
from fastiter._util.failures import Failure, RowCountError, annotate, merged
from fastiter.errors import DatasetTimeoutError

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._fetch.dataset_access import ColumnGatherer
    from fastiter._fetch.gather import ColumnReader
    from fastiter._fetch.row_groups import RowClaims
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan
    from fastiter._threads.collator import Assembler
    from fastiter.iterators._batch_maker import BatchMaker

    Origin = tuple[Seed, Plan]

# Least time for a range of rows: taking one costs microseconds and, often, a wait for the GIL.
_LEAST_NS = 200_000


class RowCost:
    """Time that a row of the dataset takes; shared by the tasks of an iterator."""

    def __init__(self) -> None:
        self._ns = float(_LEAST_NS)  # per row

    def note(self, rows: int, nanoseconds: int) -> None:
        self._ns = 0.75 * self._ns + 0.25 * nanoseconds / rows

    @property
    def least(self) -> int:
        """The least number of rows that a thread takes."""
        return int(_LEAST_NS / max(self._ns, 1.0)) or 1


class Attempts:
    """Limits of time and attempts to fetch a row; shared by the tasks of an iterator."""

    def __init__(self, seconds: float, n_retries: int) -> None:
        self.seconds = seconds
        self.n_retries = n_retries
        self.given_up: set[int] = set()  # indices, when they came last

    def allowed(self, index: int) -> int:
        return 1 if index in self.given_up else 1 + self.n_retries


class TaskSettings(NamedTuple):
    """Facts that the tasks of an iterator have in common."""

    batch_maker: BatchMaker
    n_threads: int
    row_cost: RowCost
    call_cost: CallCost  #: where one call of the dataset fetches many rows
    limit: Attempts | None  #: of the time for an example
    converts: bool  #: whether the threads call a converter that is not concat_examples
    tolerates: bool  #: whether the iterator decides about rows that fail
    claims: RowClaims | None  #: of a dataset of row groups


class BatchTask:
    """One batch, whose rows threads fetch.

    A subclass defines ``_fetch(start, stop, at)``, which fetches rows by one call of the dataset
    and keeps them if it ``at.may_write``, or its own ``_fill``; ``_make()``, which makes the batch
    of the rows that have not failed; and, where it has fetched them, ``_examples()``, which returns
    the examples of these rows.
    ``origin`` is the iteration's seed and the plan of the batch.
    """

    _in_one_call = False  #: whether one call of the dataset fetches all rows that a thread takes

    def __init__(self, settings: TaskSettings, origin: Origin) -> None:
        indices = origin[1].indices
        self._settings = settings
        self._origin = origin
        self.plan = origin[1]
        self.indices = indices
        self._n_rows = len(indices)  # to be taken; fewer after an error
        self._n_taken = 0
        self._n_done = 0
        self._returned: Sequence[tuple[int, int]] = ()  # taken away from threads that hang
        if settings.limit is not None:
            self._attempts = [0] * self._n_rows  # by row, likewise
            self.overruns: dict[Position, tuple[float, str]] = {}  # seconds, the thread's stack
        self._failure: Failure | None = None
        self._tolerated: list[Failure] = []
        self._batch: Any = None  # or its failure
        self._found: list[Any] | None = None  # by `_examples`
        self.is_ready = False  #: whether the batch, or its failure, is there
        self._is_aborted = False
        # Locked until the batch is there. A thread that acquires it releases it for the next one.
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def row_claims(self) -> RowClaims | None:
        """Of a dataset of row groups, what all threads fetch."""
        return self._settings.claims

    # -- by the threads, under their lock ------------------------------------------------------

    def take(self, n_jobs: int, n_takers: int) -> tuple[int, int] | None:
        """Take a range of rows: start and stop; None if there is none left.

        ``n_takers`` threads look for work, in ``n_jobs`` tasks that have rows left.
        """
        if self._is_aborted:
            return None
        if self._returned:
            rows, self._returned = self._returned[-1], self._returned[:-1]
            return rows
        start = self._n_taken
        rest = self._n_rows - start
        if rest <= 0:
            return None
        settings = self._settings
        share = min(rest, max(settings.row_cost.least, rest // (2 * settings.n_threads)))
        if self._in_one_call:
            size = len(self.indices)
            even = -(-size * n_jobs // n_takers)  # leaves as many for each thread
            share = min(rest, settings.call_cost.claim(size, rest, share, even))
        self._n_taken = start + share
        return start, self._n_taken

    def note(self, start: int, stop: int, failure: Failure | None, nanoseconds: int) -> bool:
        """Note that a range is done, and how long it took; True if that was the last one.

        After an error no more rows are taken. Those taken before are fetched, so the error kept is
        that of the first failing row, whatever the order of the threads.
        """
        if stop > start:
            self._settings.row_cost.note(stop - start, nanoseconds)
        if failure is not None:
            self._n_rows = self._n_taken
            if self._failure is None or failure.row < self._failure.row:
                self._failure = failure
        self._n_done += stop - start
        return self._n_done == self._n_rows

    def take_back(self, start: int, stop: int, at: Position) -> bool:
        """Offer the rows of a claim that was taken away to other threads, or fail the one that has
        been fetched too often; True if the batch is to be opened, since its converter hangs."""
        limit = self._settings.limit
        assert limit is not None
        seconds, stack = self.overruns.pop(at)
        text = f"took longer than dataset_timeout={limit.seconds} s"
        if at.row < 0:
            error = DatasetTimeoutError.of(
                f"the converter {text} ({self._facts()}).", None, seconds, 1, stack
            )
            self._batch, self.is_ready = Failure(error, f"converter, {self._facts()}"), True
            return True
        self._n_done += at.row - start
        if at.rows > 1:  # it is not known which of them hangs
            rows = [(row, row + 1) for row in range(at.row, stop)]
            self._returned = [*self._returned, *rows]
            return False
        row, index = at.row, int(self.indices[at.row])
        self._attempts[row] += 1
        attempts = self._attempts[row]
        if attempts < limit.allowed(index):
            self._returned = [*self._returned, (row, stop)]
            return False
        limit.given_up.add(index)
        facts = f"dataset index {index}, {self._facts()}"
        error = DatasetTimeoutError.of(
            f"dataset index {index} {text} in {attempts} of {attempts} attempts.",
            index,
            seconds,
            attempts,
            stack,
        )
        failure = Failure(error, facts, row, is_skippable=True)
        if self._settings.tolerates:
            self._tolerated.append(failure)
            self.note(row, row + 1, None, 0)
        else:
            self.note(row, row + 1, failure, 0)
        if row + 1 < stop or self._n_done == self._n_rows:  # else another thread finishes
            self._returned = [*self._returned, (row + 1, stop)]
        return False

    # -- by one thread -------------------------------------------------------------------------

    def run(self, start: int, stop: int, at: Position) -> Failure | None:
        """Fetch a range of rows. Raises nothing."""
        try:
            return self._fill(start, stop, at)
        except BaseException as error:
            return self._failed(start, error)

    def finish(self, at: Position) -> None:
        """Make the batch of its rows; `open` comes next. Raises nothing."""
        result: Any = None
        if self._failure is not None:
            result = self._failure
        elif len(self._tolerated) < len(self.indices):
            at.begin(-1, 1)
            try:
                result = self._make()
                synchronize(result)
            except BaseException as error:
                result = Failure.of(error, f"converter, {self._facts()}")
        if at.may_write():
            self._batch, self.is_ready = result, True

    def _fetch(self, start: int, stop: int, at: Position) -> None:
        raise NotImplementedError

    def _make(self) -> Any:
        raise NotImplementedError

    def _fill(self, start: int, stop: int, at: Position) -> Failure | None:
        """Fetch rows by one call; if that fails, one by one, to find the row that fails. Return the
        first failure that ``_fail`` returns for them."""
        if start == stop:
            return None
        since = now()
        at.begin(start, stop - start)
        try:
            self._fetch(start, stop, at)
            self._settings.call_cost.note(stop - start, now() - since)
            return None
        except BaseException as error:
            if not at.may_write():
                return None
            if stop - start == 1:
                return self._fail(start, error)
            if isinstance(error, RowCountError):
                raise
        for row in range(start, stop):
            if (failure := self._fill(row, row + 1, at)) is not None:
                return failure
            if at.is_lost:
                break
        return None

    def _failed(self, row: int, error: BaseException) -> Failure:
        return Failure.of(error, f"dataset index {self.indices[row]}, {self._facts()}", row)

    def _fail(self, row: int, error: BaseException) -> Failure | None:
        """Return the failure of a row, or keep it for the iterator to decide; in any thread."""
        failure = self._failed(row, error)
        if not self._settings.tolerates:
            return failure
        self._tolerated.append(failure)
        return None

    def _facts(self) -> str:
        return f"{self.plan.label}, worker thread {threading.current_thread().name}"

    def _examples(self) -> list[Any]:
        """The examples that have not failed: those of columns that cannot be gathered. Fetched
        once, by the thread that makes the batch."""
        if self._found is None:
            reader = self._settings.batch_maker.reader()
            found, failures = reader.examples(self.indices, self._origin, self._settings.tolerates)
            for failure in failures:
                failure.facts = f"dataset index {self.indices[failure.row]}, {self._facts()}"
            self._tolerated += failures
            self._found = found
        return self._found

    def open(self) -> None:
        """Wake up the thread that waits for the batch."""
        with contextlib.suppress(RuntimeError):  # it is open
            self._gate.release()

    # -- by the iterator -----------------------------------------------------------------------

    def abort(self) -> None:
        """Have no more rows fetched, and wake up the thread that waits.

        Takes no lock: a garbage collection may call it while this very thread holds one.
        """
        self._is_aborted = True
        self.open()

    @property
    def is_clean(self) -> bool:
        """Whether the batch is there, and no row has failed."""
        return self.is_ready and not isinstance(self._batch, Failure) and not self._tolerated

    @property
    def failures(self) -> list[Failure]:
        """Copies of the failed rows that the iterator decides about, in order."""
        if self._failure is not None:  # which ends the batch
            return []
        return sorted(map(copy.copy, self._tolerated), key=lambda failure: failure.row)

    def rebuild(self, replaced: dict[int, Any]) -> Any:
        """Make the batch once more, with examples in the place of some rows that have failed."""
        has_good = len(self._tolerated) < len(self.indices)
        good = self._examples() if has_good else []
        return self._convert(merged(good, self._tolerated, replaced))

    def _convert(self, examples: list[Any]) -> Any:
        converter, concat = self._settings.batch_maker.converter, self._settings.batch_maker.concat
        if concat is None:
            if converter is None or not self._settings.converts:
                return examples
            return converter(examples, None)
        return collate(examples, concat.padding, copy=concat.copy, indices=self.indices)

    def wait(self, check: Callable[[], float]) -> Any:
        """Block until the batch, or its `Failure`, is there, and return it; RuntimeError if the
        task was aborted in the meantime. ``check`` is called now and then, and says when again."""
        if not self.is_ready and not self._is_aborted:
            while not self._gate.acquire(timeout=check()):
                pass
            self.open()
        if self._is_aborted:
            raise RuntimeError("the iterator was finalized or reset while next() was waiting")
        # Not earlier: a dataset may raise one object for several batches.
        failures = [each for each in (self._batch, *self._tolerated) if isinstance(each, Failure)]
        for failure in failures:
            annotate(failure.error, failure.facts)
        return self._batch

    def forget(self) -> None:
        """Let go of the batch and its failures, since the batch was taken."""
        self._batch = self._failure = None
        for failure in self._tolerated:
            failure.clear()
        self._tolerated = []


class RowsTask(BatchTask):
    """The rows of any dataset. ``assembler`` makes concat_examples' arrays of them."""

    def __init__(self, settings: TaskSettings, origin: Origin, assembler: Assembler | None) -> None:
        super().__init__(settings, origin)
        self._assembler = assembler
        self._rows = (
            BatchBuffer(self._n_rows) if assembler is None else assembler.start(self._n_rows)
        )
        reader = settings.batch_maker.reader()
        self._in_one_call = reader.columns is not None or reader.getter is not None

    def _fill(self, start: int, stop: int, at: Position) -> Failure | None:
        if self._in_one_call:
            return super()._fill(start, stop, at)
        return ExampleContext(*self._origin, at).run(self._fill_each, start, stop, at)

    def _fill_each(self, start: int, stop: int, at: Position) -> Failure | None:
        while start < stop:
            failed = self._rows.fetch(
                self._settings.batch_maker.dataset, self.indices, start, stop, at
            )
            if failed is None:
                break
            start, failure = failed[0] + 1, self._fail(*failed)
            del failed  # the exception refers to this frame
            if failure is not None:
                return failure
        return None

    def _fetch(self, start: int, stop: int, at: Position) -> None:
        reader = self._settings.batch_maker.reader()
        examples, _ = reader.examples(self.indices, self._origin, False, start, stop)
        if at.may_write():
            self._rows.put(start, examples)

    def abort(self) -> None:
        self._rows.stopped = True
        super().abort()

    def _make(self) -> Any:
        if self._assembler is not None:
            return self._assembler.finish(self._rows, self.indices)
        return self._convert(self._rows.examples())

    def _examples(self) -> list[Any]:
        return self._rows.examples()


class GetExamplesTask(BatchTask):
    """The columns of a dataset that has ``get_examples``, for one part of the rows after the other.

    ``getter(indices)`` returns all columns of some rows. The converter is concat_examples.
    """

    _in_one_call = True

    def __init__(
        self, settings: TaskSettings, origin: Origin, getter: Callable[[list[int]], tuple[Any, ...]]
    ) -> None:
        super().__init__(settings, origin)
        self._getter = getter
        self._parts: dict[int, tuple[int, tuple[Any, ...]]] = {}  # rows, by the first of them

    def _fetch(self, start: int, stop: int, at: Position) -> None:
        part = stop - start, self._getter(self.indices[start:stop].tolist())
        if at.may_write():
            self._parts[start] = part

    def _make(self) -> Any:
        counts, parts = zip(*(self._parts[start] for start in sorted(self._parts)), strict=True)
        columns = parts[0] if len(parts) == 1 else join_columns(list(parts))
        if columns is None:
            return self._convert(self._examples())
        maker, n_rows = self._settings.batch_maker, sum(counts)
        assert maker.concat is not None
        indices = self.indices if n_rows == len(self.indices) else None
        own = len(parts) > 1
        return collate_columns(
            maker.dataset, columns, n_rows, *maker.concat, own=own, indices=indices
        )

    def _examples(self) -> list[Any]:
        examples: list[Any] = []
        for start in sorted(self._parts):
            n_rows, columns = self._parts[start]
            examples += examples_of(self._settings.batch_maker.dataset, columns, n_rows)
        return examples


class ListsTask(BatchTask):
    """The columns of a batch whose rows differ in size: gathered by one thread, as the longest list
    of all rows has to be known. The converter is concat_examples."""

    def __init__(self, settings: TaskSettings, origin: Origin, gatherer: ColumnGatherer) -> None:
        super().__init__(settings, origin)
        self._gatherer = gatherer
        self._made: Any = None

    def take(self, n_jobs: int, n_takers: int) -> tuple[int, int] | None:
        if self._n_taken or self._is_aborted:
            return None
        self._n_taken = self._n_rows
        return 0, self._n_rows

    def _fill(self, start: int, stop: int, at: Position) -> Failure | None:
        self._made = self._gatherer.gather(self.indices)
        return None

    def _make(self) -> Any:
        return self._convert(self._examples()) if self._made is None else self._made


class ColumnsTask(BatchTask):
    """The columns of a batch, gathered from a dataset of arrays without making examples.

    The converter is concat_examples. ``outputs`` are those of the ``reader`` for the batch;
    ``n_batches`` are filled ahead of their use.
    """

    def __init__(
        self,
        settings: TaskSettings,
        origin: Origin,
        reader: ColumnReader,
        outputs: list[npt.NDArray[Any]],
        n_batches: int,
    ) -> None:
        super().__init__(settings, origin)
        self._reader = reader
        self._outputs = outputs
        self._n_batches = n_batches
        self._is_complete = True

    def _fill(self, start: int, stop: int, at: Position) -> Failure | None:
        rows = self.indices[start:stop]
        if not self._reader.gather_part(self._outputs, start, rows, self._n_batches):
            self._is_complete = False
        return None

    def _make(self) -> Any:
        if self._is_complete:
            return self._reader.batch(self._outputs)
        # An array has changed, so that it cannot be gathered any more.
        return self._convert(self._examples())
