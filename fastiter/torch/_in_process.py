"""Fetches in the program's own process: ``num_workers=0``."""

from __future__ import annotations

import collections
import sys
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data import IterDataPipe, MapDataPipe, _utils

from fastiter._engine.caller import CallerExecutor
from fastiter._fetch.dataset_access import ColumnGatherer, plain_columns
from fastiter._order.example_context import keep_generators
from fastiter._order.plan import Plan
from fastiter._util.failures import AllSkipped, Failure
from fastiter._workers.batch_converter import ConcatConverter
from fastiter.torch._batches.collate import (
    CollateBy,
    ColumnsCollate,
    collate,
    collate_of,
    is_default,
    stack_again,
    table_now,
)
from fastiter.torch._batches.columns import TensorRows
from fastiter.torch._examples import KeyPolicy, Numbered, Seeded, decided
from fastiter.torch._iterator import LoaderIterator
from fastiter.torch._keys import cut_off, is_cut_off
from fastiter.torch._plans import MOST_ROWS, Delivered, Plans, index_array
from fastiter.torch._state import Resume, begin_fetching, is_any_stateful, state_of

_FAILURES = (Failure, AllSkipped)
_default_collate = CollateBy(stack_again)
_END = object()  # in place of a batch, where the dataset has ended


class WholeBatches:
    """Makes each batch of its keys in the calling thread: the source of a `CallerExecutor`.

    The iterator, whose settings are taken over, is not kept, so that it ends with its last
    reference. ``state``: of the dataset to go on from, or None.
    """

    gather = None

    def __init__(self, iterator: Any, state: Any) -> None:
        self.dataset, self._rows = iterator._dataset, None
        if type(self.dataset) is TensorRows:
            self.dataset, self._rows = self.dataset.dataset, self.dataset
        self._table = table_now()  # with another one, batches of rows may differ from torch's
        self._kind = iterator._dataset_kind
        self._is_iterable = iterator._is_iterable
        self._auto_collation = iterator._auto_collation
        self._collate_fn = collate_of(iterator._collate_fn, self.dataset, self._auto_collation)
        self._has_default = self._auto_collation and is_default(self._collate_fn)
        self._drop_last = iterator._drop_last
        self._pin_memory = iterator._pin_memory
        self._pin_memory_device = iterator._pin_memory_device
        self._loaded = state
        self.is_cut_off = False  #: whether an interrupt has ended the dataset's generator
        self.fetcher = begin_fetching(
            self._kind, self.dataset, self._auto_collation, self._drop_last, state
        )
        #: whether the dataset, or its iterator, has a state
        self.is_stateful = is_any_stateful(self.fetcher, self.dataset)
        self._columns: ColumnGatherer | None = None
        if isinstance(self._collate_fn, ConcatConverter):
            plain = plain_columns(self.dataset)
            if plain is not None and plain.is_arrow:
                self._columns = ColumnGatherer(plain, self._collate_fn.padding)
        if iterator._seeds_examples:
            self.fetcher.dataset = Seeded(self.dataset)

    def state(self) -> dict[str, Any]:
        """The state of the dataset now; until it has begun, the loaded one, since what a generator
        tells then may be of another time."""
        return self._loaded or state_of(0, self._kind, self.fetcher, self.dataset)

    def batch(self, plan: Plan, seed: Any, policy: KeyPolicy | None) -> Any:
        """The batch of a plan; `_END` where the dataset has ended."""
        request, self._loaded = plan.request, None
        if request is None:
            self._keys, seeds, origin = plan.indices.tolist(), plan.seeds, (seed, plan.first, 1)
            self._keys = self._keys if self._auto_collation else self._keys[0]
        else:
            self._keys, seeds, origin = request.keys, request.seeds, request.origin
        try:
            if (data := self._gathered(plan)) is not None:
                pass
            elif self._is_iterable:
                data = self._fetched_of_stream(self._keys, plan, origin)
            elif seeds is None:
                data = self._fetched_of_map(plan, policy, origin)
            else:
                self.fetcher.dataset.begin(seeds)
                data = keep_generators(self._fetched_of_map, plan, policy, origin)
        except StopIteration:
            if not self._is_iterable:
                raise
            return _END
        if self._pin_memory and not isinstance(data, Failure):
            data = _utils.pin_memory.pin_memory(data, self._pin_memory_device)
        return data

    def _gathered(self, plan: Plan) -> Any:
        """The batch of Arrow columns or tensors; None if it has to be made of examples."""
        rows, columns = self._rows, self._columns
        if rows is None and columns is None:
            return None
        indices = plan.indices if plan.request is None else index_array(self._keys, MOST_ROWS)
        if indices is None:
            return None
        if rows is not None:
            return rows.batch(indices) if table_now() == self._table else None
        batch = None if columns is None else columns.gather(indices)
        if batch is not None and isinstance(self._collate_fn, ColumnsCollate):
            return self._collate_fn.tensors_of(batch)
        return batch

    def _fetched_of_map(self, plan: Plan, policy: KeyPolicy | None, origin: Any) -> Any:
        numbered = Numbered(self._keys, self._auto_collation, origin)
        if policy is None:
            return self._collate(numbered.fetch(self.fetcher))
        examples, failed = numbered.tolerant(self.fetcher.dataset)
        if failed:
            failures = [Failure.of(error, row=row) for row, error in failed]
            failed.clear()
            left = decided(policy, plan, failures, examples)
            if isinstance(left, Failure):
                return left
            examples = left
            self._keys = [None] * len(examples)
        return self._collate(examples if self._auto_collation else examples[0])

    def _fetched_of_stream(self, keys: Any, plan: Plan, origin: Any) -> Any:
        """Result of torch's fetcher. Examples that an interrupted call has drawn are kept."""
        fetcher, examples = self.fetcher, plan.work.examples
        size = len(keys) if self._auto_collation else 1
        if not fetcher.ended:
            iterator, (seed, first, _) = fetcher.dataset_iter, origin
            origin = seed, first + len(examples), 1
            try:
                numbered = Numbered([iterator] * (size - len(examples)), True, origin)
                numbered.draw(examples.extend)
            except BaseException as error:
                self.is_cut_off = is_cut_off(iterator, error)
                raise
            fetcher.ended = len(examples) < size
        if not examples or (self._drop_last and len(examples) < size):
            raise StopIteration
        if plan.request is None and plan.indices is not None:
            plan.indices = plan.indices[: len(examples)]
        plan.n_valid = len(examples)
        self._keys = ()  # an error names no index
        return self._collate([*examples] if self._auto_collation else examples[0])

    def _collate(self, examples: Any) -> Any:
        if self._has_default:
            return collate(_default_collate, examples, self._keys)
        return self._collate_fn(examples)


class Begun(NamedTuple):
    """The work of a plan, which an interrupt may leave."""

    state: Any  #: of the dataset before the batch; None if it has none
    examples: list[Any]  #: that were drawn of an iterable dataset


class InProcessIterator(LoaderIterator):
    """Fetches each batch when it is asked for."""

    def __init__(self, loader: Any, resume: Resume | None) -> None:
        super().__init__(loader, resume)
        self._planner = Plans(1, MOST_ROWS, True, self._auto_collation)
        if self._timeout:
            raise AssertionError("timeout must be 0 where num_workers is 0")
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            torch.utils.data.graph_settings.apply_sharding(
                self._dataset, self._world_size, self._rank
            )
        self._begin(resume)

    @property
    def _dataset_fetcher(self) -> Any:
        """torch's own fetcher, as its iterator has it."""
        return self._batches.fetcher

    def _begin(self, resume: Resume | None) -> None:
        """Make the fetcher; of a loaded state, where that was."""
        state = None if resume is None else resume.of_worker(0)
        self._batches = WholeBatches(self, state)
        self._executor = CallerExecutor(self._batches, self._policy, False, (0, 0))
        self._sampler_iter.n_states = 2  # of a batch that an interrupt has left
        self._planner.by_indices = self._sampler_iter.has_order and not self._is_iterable
        self._set_seeds()
        if resume is not None and self._is_iterable and not resume.has_worker_state:
            n_keys, seed = self._sampler_iter.first[1], self._planner.row_seed
            consume = collections.deque[Any](maxlen=0).extend
            for first in range(0, n_keys, MOST_ROWS):
                keys = [self._batches.fetcher.dataset_iter] * min(MOST_ROWS, n_keys - first)
                Numbered(keys, True, (seed, first, 1)).draw(consume)
        n_yielded = self._first_yielded if resume is None else resume.n_yielded
        progress = Delivered(n_yielded, (), (True,), {}, self._skips)
        self._planner.begin(self._sampler_iter, self._planned(resume), progress, False)
        self._fetch_again(resume)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._begin(None)

    def _fetch(self, plan: Plan) -> Plan:
        batches, planner = self._batches, self._planner
        if batches.is_cut_off:  # here, so that the state stays
            raise cut_off(batches.dataset, "examples")
        if self._is_iterable and planner.order is None and planner.example_seed is None:
            # A stream does not read its keys: after those of the first batch, none are drawn.
            planner.order, planner.cutter = sys.maxsize, self._sampler_iter.cutter
        if plan.work is None and (batches.is_stateful or self._is_iterable):
            plan.work = Begun(batches.state() if batches.is_stateful else None, [])
        return super()._fetch(plan)

    def _read(self, plan: Plan, before: Delivered) -> tuple[Delivered, Any] | None:
        data = plan.outcome
        if data is _END:
            plan.progress = before._replace(is_active=(False,))
            self._planner.order = None
            return None
        if type(data) in _FAILURES:
            return before, data
        return Delivered(before.n_yielded + 1, *before[1:]), data

    def _own_state(self) -> dict[str, Any]:
        begun = next(iter(self._planner.begun_work()), None)  # of a batch that was interrupted
        left = None if begun is None else begun.state
        state = self._batches.state() if left is None else left
        return {
            "_facts": self._facts,
            **self._sampler_state(self._num_yielded),
            "_num_yielded": self._num_yielded,
            "fetcher_state": state["fetcher_state"],
            "dataset_state": state["dataset_state"],
            "_iterator_finished": self._finished,
            **self._skips_state(),
        }
