"""Fetches in worker processes: each batch is made by one worker, in turn, as in torch's loader."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from torch._utils import ExceptionWrapper
from torch.utils.data import IterDataPipe, MapDataPipe, _DatasetKind, _utils
from torch.utils.data import dataloader as torch_dataloader

from fastiter._clib import status
from fastiter._fetch.dataset_access import plain_columns
from fastiter._order.plan import Plan, PlanQueue
from fastiter._ring.schema import Schema
from fastiter._util.failures import Failure, capture, reraise
from fastiter._workers.delivery import from_rows
from fastiter._workers.pool import Pool
from fastiter._workers.start_method import Caller, choose
from fastiter.errors import WorkerDiedError, WorkerTraceback
from fastiter.iterators._arguments import checked_context
from fastiter.iterators._state import State
from fastiter.torch._collate import collate_of, converter_for
from fastiter.torch._iterator import MOST_ROWS, Keys, LoaderIterator, index_array
from fastiter.torch._pinned import pinned_slots
from fastiter.torch._state import Resume, is_stateful, other_workers, program_state
from fastiter.torch._worker import LoaderJob, Reply, Request

if TYPE_CHECKING:
    from fastiter.torch._loader import DataLoader

_ENDLESS = 1 << 60  # examples in an epoch, where their number is not known
_MOST_SCHEMAS = 8  # of one pool
_CALLER = Caller("multiprocessing_context", "iter(loader)", "pass num_workers=0")
# Batches that a GPU may read while others are made; more are copied out of the ring.
_MOST_COPIES = 8


class _Plans(PlanQueue):
    """Plans one batch for each of the sampler's keys, and assigns it to the next active worker; if
    not `in_order`, to the one of them that has the fewest to make.

    `rows` is how many examples a batch from columns has at most, 0 if there are no such batches.
    """

    def __init__(self, keys: Keys, n_workers: int, rows: int, in_order: bool) -> None:
        super().__init__(State(0, 0, False, None, _ENDLESS, None), 1, False)
        self.in_order = in_order
        self.n_workers = n_workers
        self.rows = rows
        self.has_columns = False  # whether the rows of a batch are known to fit into columns
        self.asks_schema = False
        self.n_schemas_left = _MOST_SCHEMAS if rows else 0
        self.wants_state = False
        self.shared_seed: int | None = None
        self.example_seed: tuple[int, int] | None = None
        self.begin(keys, -1, -1, [0] * n_workers, False)
        self.ask_schema()

    def begin(
        self,
        keys: Keys,
        epoch: int,
        last_worker: int,
        n_made: list[int],
        asks_first: bool,
    ) -> None:
        """Begin an epoch.

        Parameters
        ----------
        keys : the sampler's keys.
        epoch : number of the epoch in this process.
        last_worker : that has made the batch before; -1 for none.
        n_made : batches that each worker has made before.
        asks_first : whether each worker is asked for its state before the first batch.
        """
        self.keys = keys
        self.epoch = epoch
        self.last_worker = last_worker
        self.n_made = n_made
        self.is_active = [True] * self.n_workers
        self.n_asked = 0 if asks_first else self.n_workers

    def advance(self, state: State) -> Plan:
        """Plan the next batch; without indices at the end of the epoch. The position in its state
        counts the sampler's batches up to this one."""
        if self.n_asked < self.n_workers:
            request = Request(None, self.epoch, -1, True, False, self.shared_seed, None)
            self.n_asked += 1
            index = np.array([-self.n_asked], np.int64)
            return Plan(index, state._replace(position=0), None, request, self.n_asked - 1)
        worker = self._next_worker()
        if worker is None:
            return Plan(None, state)
        try:
            keys = next(self.keys)
        except StopIteration:
            return Plan(None, state)
        number = self.keys.n_drawn - 1
        after = state._replace(position=number + 1)
        self.last_worker = worker
        made = self.n_made[worker]
        self.n_made[worker] += 1
        if self.has_columns:
            rows = index_array(keys, self.rows)
            if rows is not None:
                return Plan(rows, after, None, None, worker)
        if type(keys) is np.ndarray:
            keys = keys.tolist()
        seed = None if self.example_seed is None else (*self.example_seed, number + 1)
        request = Request(
            keys, self.epoch, made, self.wants_state, self.asks_schema, self.shared_seed, seed
        )
        self.asks_schema = False
        return Plan(np.array([number], np.int64), after, None, request, worker)

    def ask_schema(self) -> None:
        """Have the next batch tell which columns the rows would fit into."""
        self.has_columns = False
        self.asks_schema = self.n_schemas_left > 0
        self.n_schemas_left -= 1

    def _note(self, state: State) -> None:
        """Nothing depends on the state."""

    def _next_worker(self) -> int | None:
        following = range(self.last_worker + 1, self.last_worker + 1 + self.n_workers)
        workers = (number % self.n_workers for number in following)
        active = (worker for worker in workers if self.is_active[worker])
        if self.in_order:
            return next(active, None)
        return min(active, key=self.pending_by_worker().__getitem__, default=None)

    def pending(self) -> list[int]:
        """The numbers of batches that were planned and not delivered."""
        return [plan.state.position - 1 for plan in self._batches()]

    def pending_by_worker(self) -> list[int]:
        """How many of these each worker has."""
        counts = [0] * self.n_workers
        for plan in self._batches():
            counts[plan.worker] += 1
        return counts

    def _batches(self) -> list[Plan]:
        return [plan for plan in self.plans if plan.indices is not None and plan.state.position]


class _BatchTimeout:
    """The loader's ``timeout``: seconds that ``next()`` may wait for one batch, 0 for no limit."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = 0.0

    def begin(self) -> None:
        self._end = status.now() + self.seconds

    def slice(self, most: float) -> float:
        return most if not self.seconds else max(0.0, min(most, self._end - status.now()))

    def look(self, goal: str) -> None:
        if self.seconds and status.now() >= self._end:
            raise RuntimeError(f"DataLoader timed out after {self.seconds} seconds")


class WorkersIterator(LoaderIterator):
    """Has worker processes make the batches, and delivers them in the sampler's order."""

    def __init__(self, loader: DataLoader[Any], resume: Resume | None) -> None:
        super().__init__(loader, resume)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 where there are workers")
        # What is delivered out of order can be told at that time only.
        self._interval = loader.snapshot_every_n_steps if loader.in_order else 1
        self._is_iterable = self._dataset_kind == _DatasetKind.Iterable
        self._asks_first = self._is_iterable or is_stateful(self._dataset)
        rows, self._converter = self._rows_of(loader)
        self._plans = _Plans(self._sampler_iter, self._num_workers, rows, loader.in_order)
        self._states: list[dict[str, Any]] = []
        self._epoch = 0
        self._n_spilled = 0
        self._pool: Pool | None = None
        self._pool = self._start(loader, resume)
        self._begin(resume)

    def _rows_of(self, loader: DataLoader[Any]) -> tuple[int, Any]:
        """How many examples a batch from columns has at most, and what makes it of them; 0 if
        whole batches have to be made one by one."""
        rows = getattr(self._index_sampler, "batch_size", None)
        if (
            not self._auto_collation
            or self._is_iterable
            or (self._example_seed is not None and hasattr(self._dataset, "__getitems__"))
            or isinstance(self._dataset, MapDataPipe)
            or is_stateful(self._dataset)
            or type(rows) is not int
            or not 0 < rows <= MOST_ROWS
        ):
            return 0, None
        converter = converter_for(loader.collate_fn, self._dataset)
        return (0, None) if converter is None else (rows, converter)

    def _start(self, loader: DataLoader[Any], resume: Resume | None) -> Pool:
        states: list[Any] = [None] * self._num_workers
        if resume is not None and resume.has_worker_state:
            states = [
                (resume.of_worker(number, self._num_workers), made)
                for number, made in enumerate(resume.batches_by_worker(self._num_workers))
            ]
        init_fn = loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            init_fn = _ShardingInit(init_fn, self._world_size, self._rank)
        job = LoaderJob(
            kind=self._dataset_kind,
            dataset=self._dataset,
            auto_collation=self._auto_collation,
            collate_fn=collate_of(self._collate_fn, self._dataset),
            drop_last=self._drop_last,
            init_fn=init_fn,
            base_seed=self._base_seed,
            batch_converter=self._converter,
            rows=self._plans.rows,
            states=states,
            seed_examples=self._example_seed is not None,
        )
        pool = Pool(
            job=job,
            workers=self._num_workers,
            batch_size=1,
            rows=max(1, self._plans.rows),
            n_prefetch=loader.prefetch_factor * self._num_workers - 1,
            n_held=2 + (_MOST_COPIES if self._pin_memory else 0),
            shared_mem=None,
            dataset_timeout=None,
            start=choose(checked_context(loader.multiprocessing_context), _CALLER),
            lock=threading.RLock(),
            timeouts=_BatchTimeout(self._timeout),
        )
        plain = plain_columns(self._dataset) if self._plans.rows else None
        if plain is not None and plain.is_arrow:
            self._plans.has_columns = pool.use_columns(plain)
            self._plans.asks_schema = not self._plans.has_columns
        if self._pin_memory:
            pool.ring.registration = pinned_slots(pool.ring.arena)
        return pool

    def _begin(self, resume: Resume | None) -> None:
        """Begin an epoch, or continue a loaded one."""
        n_workers = self._num_workers
        n_made, last_worker = [0] * n_workers, -1
        if resume is not None and resume.n_workers == n_workers:
            n_made, last_worker = resume.batches_by_worker(n_workers), resume.last_worker
        elif resume is not None and self._is_iterable and resume.n_yielded:
            raise other_workers(resume.n_workers, n_workers)
        self._plans.shared_seed = self._shared_seed
        if self._example_seed is not None:
            assert self._pool is not None
            self._plans.example_seed = self._pool.ring.seed = self._example_seed
        self._plans.wants_state = self._asks_first and bool(self._interval)
        self._plans.begin(self._sampler_iter, self._epoch, last_worker, n_made, self._asks_first)
        self._sampler_iter.keeps_states = self._sampler_iter.is_stateful and bool(self._interval)
        self._overtakes = False  # not yet: what comes first has an order
        self._states = [
            {"worker_id": number, "fetcher_state": None, "dataset_state": None}
            for number in range(n_workers)
        ]
        self._last_worker = n_workers - 1 if last_worker < 0 else last_worker
        self._snapshot = self._snapshot_now(0 if resume is None else resume.n_yielded)
        if self._asks_first:
            self._ask_first()
        n_more = 0 if resume is None else resume.n_more
        for _ in range(n_more):
            next(self)
        self._finished = resume is not None and resume.is_finished
        self._overtakes = not self._plans.in_order

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if self._pool is None or self._pool.closed:  # it ended by an error, or was closed
            self._pool = self._start(loader, None)
            self._epoch = -1
        super()._reset(loader, first_iter)
        self._epoch += 1
        self._pool.ring.reset()
        self._plans.restart(State(0, 0, False, None, _ENDLESS, None))
        self._begin(None)
        self._pool.ring.top_up(self._plans)

    # ---- batches

    def _next_data(self) -> Any:
        while True:
            plan, reply = self._next_reply()
            if type(reply) is Reply:
                if isinstance(reply.batch, ExceptionWrapper):
                    reply.batch.reraise()
                if reply.state is not None:
                    self._states[plan.worker] = reply.state
                if reply.is_end:
                    self._plans.is_active[plan.worker] = False
                    continue
                if reply.schema is not None:
                    self._use_columns(reply.schema)
                reply = reply.batch
            self._last_worker = plan.worker
            step = self._num_yielded + 1
            if self._interval and step % self._interval == 0 and self._takes_snapshots:
                self._snapshot = self._snapshot_now(step)
            return reply

    def _use_columns(self, schema: Schema) -> None:
        """Have later batches made from columns."""
        assert self._pool is not None
        self._pool.ring.use_schema(schema)
        self._plans.has_columns = True

    def _next_reply(self) -> tuple[Plan, Any]:
        """The plan of the next batch, and what its worker has made of it."""
        plans, pool = self._plans, self._pool
        if pool is None:
            raise StopIteration
        plan = plans.peek()
        if plan.indices is None:
            try:
                plans.deliver()
            except StopIteration:
                self._finished = True
                if not self._persistent_workers:
                    self.close()
                raise
        if plan.outcome is None:
            try:
                plan = self._fetch(pool, plan)
            except WorkerDiedError as error:
                raise _died(error, plan) from error
        reply = plan.outcome
        if type(reply) is not Failure:
            reply = reply if plan.request is None else reply[0]
            if self._pin_memory:
                reply = capture(_pinned, reply, self._pin_memory_device)
        plans.deliver()
        if type(reply) is Failure:
            _raise(reply, plan)
        if plan.request is None and pool.spilled_rows > self._n_spilled:
            self._n_spilled = pool.spilled_rows
            plans.ask_schema()  # the examples have changed
        return plan, reply

    def _fetch(self, pool: Pool, plan: Plan) -> Plan:
        """Return this plan, the first one, or one that overtakes it, with its outcome."""
        plans, ring = self._plans, pool.ring
        ring.top_up(plans)
        if pool.is_starting:
            pool.look_at_starts()
        if self._overtakes:
            ring.overtake(plans)
            plan = plans.peek()
        lease = ring.take()
        if lease is not None:
            plan.outcome = capture(from_rows, lease, plan.indices, {}, self._converter)
            return plan
        while not ring.scheduled:
            pool.wait_for_slot()
            ring.top_up(plans)
        pool.wait(plans if self._overtakes else None)
        plan = plans.peek()
        plan.outcome = capture(pool.deliver, plan, None)
        return plan

    # ---- state

    def _ask_first(self) -> None:
        """Receive the state of each worker at the start of the epoch."""
        for number in range(self._num_workers):
            _, reply = self._next_reply()
            if isinstance(reply.batch, ExceptionWrapper):
                reply.batch.reraise()
            self._states[number] = reply.state
        self._plans.wants_state = bool(self._interval) and self._has_worker_state
        self._snapshot = self._snapshot_now(self._num_yielded)

    @property
    def _has_worker_state(self) -> bool:
        return any(
            state["dataset_state"] is not None
            or (state["fetcher_state"] or {}).get("dataset_iter_state") is not None
            for state in self._states
        )

    @property
    def _takes_snapshots(self) -> bool:
        """Whether the state is saved with the batches, because it cannot be told afterwards."""
        return self._has_worker_state or self._sampler_iter.is_stateful

    def _snapshot_now(self, step: int) -> dict[str, Any]:
        plans = self._plans
        pending = plans.pending_by_worker()
        main = {
            **self._sampler_state(plans.pending()),
            "_num_workers": self._num_workers,
            "_batches_by_worker": [
                made - left for made, left in zip(plans.n_made, pending, strict=True)
            ],
        }
        return {
            "_snapshot_step": step,
            "_last_yielded_worker_id": self._last_worker,
            "_main_snapshot": main,
            "_worker_snapshots": {
                f"worker_{number}": state for number, state in enumerate(self._states)
            },
        }

    def state_dict(self) -> dict[str, Any]:
        if not self._takes_snapshots:
            self._snapshot = self._snapshot_now(self._num_yielded)
        snapshot = self._snapshot
        return {
            "_snapshot": snapshot,
            "_steps_since_snapshot": self._num_yielded - snapshot["_snapshot_step"],
            "_iterator_finished": self._finished,
            **program_state(self._draws_globally),
        }

    # ---- end

    def close(self) -> None:
        """End the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            self._kept.state = self.state_dict()
            pool.close()

    _shutdown_workers = close  # which programs call on torch's iterator

    def __del__(self) -> None:
        if getattr(self, "_pool", None) is not None and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()


def _pinned(reply: Any, device: str | None) -> Any:
    """The reply with its batch in pinned memory: what lies in a registered slot stays there."""
    if type(reply) is Reply:
        return reply._replace(batch=_pinned(reply.batch, device))
    return _utils.pin_memory.pin_memory(reply, device)


class _ShardingInit:
    """Calls ``worker_init_fn`` after a data pipe was told its part."""

    def __init__(self, init_fn: Callable[[int], Any] | None, world_size: int, rank: int) -> None:
        self._arguments = init_fn, world_size, rank

    def __call__(self, number: int) -> None:
        torch_dataloader._sharding_worker_init_fn(*self._arguments, number)


def _named(text: str, plan: Plan) -> str:
    """The text of an error, with the keys of a batch that was made as a whole, of which the ring
    knows a number only."""
    if plan.request is None:
        return text
    assert plan.indices is not None
    keys = plan.request.keys
    return text.replace(f"dataset index {plan.indices[0]}", f"the batch of {keys!r:.200}")


def _died(error: WorkerDiedError, plan: Plan) -> RuntimeError:
    return RuntimeError(f"DataLoader worker is killed: {_named(str(error), plan)}")


def _raise(failure: Failure, plan: Plan) -> NoReturn:
    """Raise an example's failure as torch's loader does: by its type, with the worker's traceback
    as its text."""
    error = failure.error
    if isinstance(error, WorkerDiedError):
        raise _died(error, plan)
    if not isinstance(error.__cause__, WorkerTraceback):
        reraise(failure)
    failure.clear()
    where = f"in DataLoader worker process {plan.worker}"
    wrapper = ExceptionWrapper((type(error), error, None), where)
    facts, _, text = str(error.__cause__).partition("\n")
    wrapper.exc_msg = f"{text.rstrip()} ({_named(facts, plan)})"
    wrapper.reraise()
    raise AssertionError("reraise() raises")
