"""Properties of iterators: arguments, position, the examples of batches, statistics."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from fastiter._engine.executor import Executor
from fastiter._fetch.dataset_access import epochs_of
from fastiter._plan.epoch_store import EpochStore
from fastiter._plan.epochs import Planner
from fastiter._plan.state import Skipped
from fastiter._stats.autotune import Tuner
from fastiter._stats.iterator_stats import IteratorStats
from fastiter._stats.timer import Timer
from fastiter._stats.trace import Call, Trace, WorkerTraces
from fastiter._util.arguments import checked_int
from fastiter.dataset.iterator import Iterator
from fastiter.iterators._addresses import Address, Preview, address_of
from fastiter.iterators._arguments import SeedExamples

T_co = TypeVar("T_co", covariant=True)


class Given(Protocol[T_co]):
    """A property, for type checkers."""

    def __get__(self, instance: Any, owner: Any, /) -> T_co: ...


def given(path: str, doc: str) -> Any:
    """A property that is the attribute at a dotted path."""
    return property(operator.attrgetter(path), doc=doc)


class IteratorProperties(Iterator):
    """The arguments and the progress of an iterator, for reading; `PlannedIterator` sets the
    attributes that are declared here."""

    _dataset: Any
    _executor: Executor
    _tuner: Tuner | None
    _timer: Timer
    _row_groups: Any
    _n_decoded: int
    _batch_size: int | None
    _converter: Any
    _lock: Any
    _planner: Planner
    _epochs: EpochStore

    _seed: Given[Any] = given("_planner.seed", "The seed of the order.")
    dataset: Given[Any] = given("_dataset", "The dataset.")
    batch_size: Given[int | None] = given(
        "_batch_size", "Examples in a batch of this rank; None with a ``batch_sampler``."
    )
    repeat: Given[bool] = given("_repeat", "Whether the iteration continues after the first epoch.")
    shuffle: Given[bool | None] = given("_shuffle", "The argument ``shuffle``.")
    order_sampler: Given[Callable[[Any, int], Any] | None] = given(
        "_order_sampler", "The sampler that gives each epoch's order; None if there is no order."
    )
    drop_last: Given[bool] = given(
        "_planner.drop_last", "Whether an epoch's last examples are left out if they fill no batch."
    )
    batch_sampler: Given[Any] = given("_batch_sampler", "The argument ``batch_sampler``.")
    rank: Given[int] = given("_planner.rank", "Number of this rank, from 0.")
    num_ranks: Given[int] = given("_planner.num_ranks", "Number of ranks that share each step.")
    tail: Given[str] = given("_planner.tail", "The argument ``tail``.")
    converter: Given[Callable[[Any, Any], Any] | None] = given(
        "_converter", "The argument ``converter``."
    )
    device: Given[Any] = given("_device", "The argument ``device``.")
    on_error: Given[Any] = given("_on_error", "The argument ``on_error``.")
    seed_examples: Given[SeedExamples] = given("_seed_examples", "The argument ``seed_examples``.")
    in_order: Given[bool] = given("_in_order", "The argument ``in_order``.")
    skip_limit: Given[int | float | None] = given("_skip_limit", "The argument ``skip_limit``.")

    current_position: Given[int] = given(
        "_planner.state.position", "Examples of the current epoch delivered so far."
    )
    epoch: Given[int] = given("_planner.state.epoch", "Completed epochs.")
    epoch_detail: Given[float] = given(
        "_planner.state.epoch_detail", "Completed epochs, with the fraction of the current one."
    )
    previous_epoch_detail: Given[float | None] = given(
        "_planner.state.previous_epoch_detail",
        "``epoch_detail`` one batch before; None before the first batch.",
    )
    is_new_epoch: Given[bool] = given(
        "_planner.state.is_new_epoch", "Whether the last batch completed an epoch."
    )
    _epoch_size: Given[int] = given(
        "_planner.state.whole_size",
        "Examples in the current epoch. Chainer's progress bars read it.",
    )

    @property
    def valid(self) -> npt.NDArray[np.bool_] | None:
        """True for the examples of the last batch that are to be counted: bool[batch].

        False only with ``tail='mask'``, for repetitions of the epoch's first examples that give all
        ranks equally many. None before the first batch, and after a state was loaded.
        """
        plan = self._planner.delivered
        if plan is None or plan.indices is None:
            return None
        return np.arange(len(plan.indices) - plan.n_dropped) < plan.n_valid - plan.n_valid_dropped

    @property
    def step(self) -> int:
        """The number of the next batch: steps made since the start, of all epochs and resets.

        Batches that were skipped count. With ``in_order=False``, it is the oldest batch that was
        not delivered. After a state with missing batches was loaded, it does not change until the
        last of these was delivered (`address` identifies them). A `StreamDataset` has no steps and
        no addresses.
        """
        self._refuse_of_stream("step")
        return self._planner.state.step

    @property
    def address(self) -> Address | None:
        """The address of the last batch; None before the first batch, and after a state was loaded.

        It includes examples that ``on_error`` has left out of the batch.
        """
        self._refuse_of_stream("address")
        plan = self._planner.delivered
        if plan is None:
            return None
        step, rank = self._planner.place_of(plan)
        return address_of(plan, rank, self._seed, epochs_of(self._dataset))._replace(step=step)

    def batch_at(self, step: int, *, rank: int | None = None) -> Address:
        """Return the address of the batch of a step, without fetching or moving.

        The step may be any since the present arguments hold: since the start, the last `reset`,
        or the loading of a state with other arguments.

        Parameters
        ----------
        step : int
            Number of the step, from 0; see `step`.
        rank : int, optional
            Number of the rank; by default this process's.

        Raises
        ------
        LookupError
            If the step is earlier, or after the end (``repeat=False``).
        ValueError
            If the order sampler has no seed.
        """
        self._refuse_of_stream("batch_at()")
        step = checked_int("step", step, minimum=0)
        rank = self.rank if rank is None else checked_int("rank", rank, minimum=0)
        if rank >= self.num_ranks:
            raise ValueError(f"rank must be below num_ranks={self.num_ranks}, not {rank}")
        with self._lock:
            preview = Preview(self._planner, rank, self._epochs)
            plan = preview.advance(preview.before(step))
            return address_of(plan, rank, self._seed, epochs_of(self._dataset))

    @property
    def skipped(self) -> list[Skipped]:
        """The indices whose examples were skipped, one `Skipped` for each: at most 10,000 of them.

        In the order in which they were skipped first. `reset` leaves them, snapshots hold them.
        """
        skips = self._planner.progress
        return [] if skips is None else list(skips.records.values())

    def _refuse_of_stream(self, what: str) -> None:
        if not self._planner.has_addresses:
            raise TypeError(
                f"{what} is not known of a StreamDataset, whose shards are read until they end"
            )

    # -- statistics --------------------------------------------------------------------------

    def stats(self) -> IteratorStats:
        """Return statistics of the iterator: its work, and the time that the loop waited for it.

        They count from the first ``next()``; the difference of two statistics describes the time
        between them. Does not block, and may be called in any state, from any thread; copies and
        unpickled iterators count from zero.

        Returns
        -------
        IteratorStats
            ``print()`` shows its `~IteratorStats.summary`.
        """
        from fastiter.datasets.stream_dataset import shard_counts

        return IteratorStats.of(
            self._timer,
            self._executor.stats,
            () if self._tuner is None else self._tuner.changes,
            iterator=type(self).__name__,
            batch_size=self._batch_size,
            has_converter=self._converter is not None,
            row_groups_decoded=self._row_groups.n_decoded - self._n_decoded
            if self._row_groups is not None
            else 0,
            **shard_counts(self._dataset),
        )

    def trace(self, path: str | os.PathLike[str] | None = None) -> Trace:
        """Record what the loop and the workers do during a ``with`` block.

        Parameters
        ----------
        path : path, optional
            The file that the block's end writes, a trace that https://ui.perfetto.dev opens.

        Returns
        -------
        Trace
            A context manager; after the block, ``events()`` returns the recorded events and
            ``save(path)`` writes them.

        Raises
        ------
        RuntimeError
            When the block begins, if the iterator is traced already.
        MemoryError
            When it begins, or workers start within, if there is no memory for the records: 1 MiB
            for each worker process.
        """
        return Trace(self, path)

    def _start_trace(self, note: Callable[[Call], None]) -> None:
        if self._timer.trace is not None:
            raise RuntimeError("the iterator is traced already, by another with block")
        self._executor.trace(True)
        self._timer.trace = note

    def _stop_trace(self) -> WorkerTraces:
        self._timer.trace = None
        self._executor.trace(False)
        return self._executor.traces()
