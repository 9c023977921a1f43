"""Plans of batches: keys, worker, and the position of the iteration after each batch."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch.reader import can_share_rows
from fastiter._order.plan import Plan
from fastiter._order.turn_plans import TurnPlanQueue
from fastiter._plan.state import SkipState
from fastiter._ring.infer_schema import room_for
from fastiter._ring.schema import Schema
from fastiter.torch._keys import SamplerKeys
from fastiter.torch._orders.keys import EpochKeys
from fastiter.torch._worker import Request

_ENDLESS = 1 << 60  # examples in an epoch, where their number is not known
_MOST_SCHEMAS = 8  # of one pool
MOST_ROWS = 1 << 16  # of a batch that is made from columns


class PlanCounts(NamedTuple):
    """The state of a plan: counts up to this plan. `TurnPlanQueue` knows the first eleven."""

    position: int = 0  #: batches of the sampler
    epoch: int = 0
    is_new_epoch: bool = False
    order: None = None
    epoch_size: int = _ENDLESS
    previous_epoch_detail: None = None
    n_drawn: int = 0
    last_worker: int = -1  #: that makes the batch; -1: none has made one
    n_made: tuple[int, ...] = ()  #: keys of each worker's batches
    n_keys: int = 0  #: of all batches
    size: int = 0  #: keys of the last one
    n_asked: int = 0  #: workers that were asked for their first state
    n_schemas: int = 0  #: times that a batch was asked for columns
    is_finished: bool = False  #: whether the epoch has ended


class Delivered(NamedTuple):
    """State of the iteration after the batch delivered last."""

    n_yielded: int  #: batches
    states: tuple[dict[str, Any], ...]  #: of the workers
    is_active: tuple[bool, ...]  #: for each worker, whether its dataset goes on
    snapshot: dict[str, Any]  #: the last one that was saved with a batch
    skips: SkipState | None = None  #: where examples may be skipped
    dropped: tuple[int, ...] = ()  #: rows of the last batch that were skipped
    n_more_keys: int = 0  #: of the batches delivered after the snapshot


class Plans(TurnPlanQueue):
    """Plans one batch for each of the sampler's keys, and assigns it to the next active worker; if
    not `in_order`, to the one of them that has the fewest to make.

    `rows` is the most examples in a batch from columns, 0 if there are no such batches. Unless
    `is_batched`, a batch is the example of one key.
    """

    progress: Delivered
    state: PlanCounts
    planned: PlanCounts

    def __init__(self, n_workers: int, rows: int, in_order: bool, is_batched: bool) -> None:
        super().__init__(PlanCounts(), n_workers, rows)
        self.most = rows  # keys of a batch that is planned by indices: room of the columns
        self.n_largest = 1  # keys of the largest batch that is known of
        self.in_order = in_order
        self.is_batched = is_batched
        self.shares_rows = False  # whether all workers fetch rows of a batch
        # Whether batches are planned by indices: rows fit into columns, or an order is known.
        self.by_indices = False
        self.n_schemas = min(1, rows)  # times that columns were wanted
        self.epoch = 0
        self.wants_state = False
        self.shared_seed: int | None = None
        self.example_seed: tuple[int, int] | None = None  # of the global generators
        self.row_seed = 0, 0  # of the examples' own numbers
        self.is_stream = False  # whose examples each worker numbers in its part

    def begin(
        self,
        keys: SamplerKeys | EpochKeys,
        start: PlanCounts,
        progress: Delivered,
        asks_first: bool,  # each worker for its state, before the first batch
    ) -> None:
        """Begin an epoch, at the position of ``start`` and ``progress``."""
        self.keys = keys
        self.order = None
        self.counts_rows = keys.counts_rows
        n_asked = 0 if asks_first else self.n_workers
        n_schemas = self.n_schemas
        if not self.by_indices and n_schemas < _MOST_SCHEMAS:  # the answer may not have come
            n_schemas = max(0, n_schemas - 1)
        self.restart(start._replace(n_asked=n_asked, n_schemas=n_schemas), progress)

    def _advance(self, state: Any) -> Plan:
        """Plan the next batch; without indices at the end of the epoch. Nothing else changes, but
        `order`, with which the next batches have the same plans."""
        if state.n_asked < self.n_workers:
            worker = state.n_asked
            request = Request(None, self.epoch, -1, True, 0, self.shared_seed, None, None)
            state = state._replace(n_asked=worker + 1)
            return Plan(np.array([-1 - worker], np.int64), state, None, request, worker)
        if (worker := self._next_worker(state.last_worker)) is None:
            return Plan(None, state._replace(is_finished=True))
        try:
            number, first, size, keys = self.keys.draw(state.position, state.n_keys)
        except StopIteration:
            return Plan(None, state._replace(is_finished=True))
        epoch, place = self.keys.origin(number, first)
        seeds = None
        if self.example_seed is not None:
            seeds = self.keys.seeds(self.example_seed, number, first, keys)
        row_keys = keys if self.is_batched else [keys]
        is_given = type(keys) is np.ndarray and not self.keys.makes_arrays  # by the program
        rows = None
        if (self.shares_rows or self.by_indices) and not is_given:
            rows = index_array(row_keys, self.most)
        is_of_rows = rows is not None or (self.shares_rows and can_share_rows(row_keys, self.rows))
        made = state.n_made[worker]
        after = PlanCounts(  # takes half the time of `_replace`
            number + 1,
            epoch,
            last_worker=worker,
            n_made=(*state.n_made[:worker], made + size, *state.n_made[worker + 1 :]),
            n_keys=first + size,
            size=size,
            n_asked=state.n_asked,
            n_schemas=state.n_schemas if is_of_rows else self.n_schemas,
            is_finished=state.is_finished,  # by a loaded state, whose last batches come again
        )
        n = len(keys) if self.is_batched else 1
        facts: dict[str, Any] = {"origin": (epoch, n, 1), "first": place, "number": number}
        if is_of_rows:
            if not self.shares_rows and self.in_order and seeds is None:
                self.order, self.cutter = self.keys.order_after(number), self.keys.cutter
            worker = -1 if self.shares_rows else worker  # -1: of no one worker
            return Plan(rows, after, worker=worker, seeds=seeds, keys=row_keys, **facts)
        if type(keys) is np.ndarray and not is_given:
            keys = keys.tolist()
        row_origin = (self.row_seed, epoch, 0) if place < 0 else (self.row_seed, place, 1)
        if self.is_stream:
            row_origin = ((self.row_seed[0] + worker) % 2**64, self.row_seed[1]), made, 1
        asks_schema = self.n_schemas > state.n_schemas
        room = room_for(max(n, self.n_largest), self.rows) if asks_schema else 0
        request = Request(
            keys, self.epoch, made, self.wants_state, room, self.shared_seed, seeds, row_origin
        )
        numbers = np.array([number], np.int64)
        return Plan(numbers, after, None, request, worker, n_valid=n, **facts)

    def use_schema(self, schema: Schema | None) -> None:
        """Plan batches that have room in these columns by indices."""
        self.by_indices = schema is not None
        self.most = self.rows if schema is None else schema.rows

    def lacks_room(self, keys: Any) -> bool:
        """Whether columns could be made that have room for a batch, which those of now have not."""
        if not self.by_indices or not self.is_batched or len(keys) <= self.most:
            return False
        return self.n_schemas < _MOST_SCHEMAS and index_array(keys, self.rows) is not None

    def ask_schema(self, n_rows: int = 1) -> None:
        """Have the worker of the next batch report columns into which the rows would fit, in
        batches of ``n_rows``, too."""
        self.n_largest = max(self.n_largest, n_rows)
        self.by_indices = False
        self.order = None
        self.n_schemas = min(self.n_schemas + 1, _MOST_SCHEMAS)

    def _next_worker(self, last_worker: int) -> int | None:
        if self.in_order and self.progress.is_active[(last_worker + 1) % self.n_workers]:
            return (last_worker + 1) % self.n_workers
        following = range(last_worker + 1, last_worker + 1 + self.n_workers)
        workers = (number % self.n_workers for number in following)
        active = (worker for worker in workers if self.progress.is_active[worker])
        if self.in_order:
            return next(active, None)
        pending = Counter(plan.state.last_worker for plan in self._batches(None))
        return min(active, key=pending.__getitem__, default=None)

    def pending(self, delivered: Plan | None = None) -> list[tuple[int, int, int]]:
        """The batches that were planned and not delivered: number of each, the keys before it, and
        its keys; ``delivered`` counts as delivered."""
        states = [plan.state for plan in self._batches(delivered)]
        return [(one.position - 1, one.n_keys - one.size, one.size) for one in states]

    def keys_by_worker(self, delivered: Plan | None = None) -> list[int]:
        """Number of keys in each worker's delivered batches, ``delivered`` among them."""
        counts = list(self.planned.n_made)
        for plan in self._batches(delivered):
            counts[plan.state.last_worker] -= plan.state.size
        return counts

    def _batches(self, delivered: Plan | None) -> list[Plan]:
        return [
            plan
            for plan in self.plans
            if plan is not delivered and plan.indices is not None and not asks_state(plan)
        ]


def asks_state(plan: Plan) -> bool:
    """Whether a plan asks a worker for its first state alone."""
    return plan.request is not None and plan.request.number < 0


def index_array(keys: Any, most: int) -> npt.NDArray[np.int64] | None:
    """The keys of a batch as dataset indices; None if they are no list of Python's integers or
    array of integers, or more than ``most``."""
    if not isinstance(keys, (list, np.ndarray)) or not 0 < len(keys) <= most:
        return None
    if type(keys) is np.ndarray:
        if keys.dtype == np.int64 and keys.ndim == 1:
            return np.ascontiguousarray(keys)
        keys = keys.tolist()
    if type(keys) is not list or set(map(type, keys)) != {int}:
        return None
    try:
        return np.array(keys, np.int64)
    except OverflowError:
        return None
