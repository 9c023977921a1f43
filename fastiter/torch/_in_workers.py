"""Fetches in worker processes: each batch is made by one worker, in turn, as in torch's loader."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import BatchSampler, IterDataPipe, MapDataPipe, _utils
from torch.utils.data import dataloader as torch_dataloader

from fastiter._clib import status
from fastiter._engine.processes import ProcessExecutor
from fastiter._fetch.dataset_access import is_stateful, offered, plain_columns
from fastiter._fetch.reader import can_share_rows
from fastiter._order.plan import Plan
from fastiter._stats.autotune import first_workers
from fastiter._stats.timer import Timer
from fastiter._util.cpus import usable_cpus
from fastiter._util.failures import AllSkipped, Failure, capture, load, reraise
from fastiter._workers.delivery import CONVERTED_HERE
from fastiter._workers.pool import Pool
from fastiter._workers.start_method import Caller, choose
from fastiter.errors import DatasetError, DatasetTimeoutError, WorkerDiedError, WorkerTraceback
from fastiter.iterators._arguments import checked_context
from fastiter.torch._batches.collate import collate_of, converter_for, shared_converter
from fastiter.torch._batches.columns import TensorRows
from fastiter.torch._device.copies import Pending
from fastiter.torch._device.pinned import pinned_slots
from fastiter.torch._examples import decided
from fastiter.torch._iterator import LoaderIterator
from fastiter.torch._keys import keys_of
from fastiter.torch._plans import MOST_ROWS, Delivered, Plans, asks_state, index_array
from fastiter.torch._state import Resume, hold_state, is_own, may_change_data
from fastiter.torch._statistics import Adjustment, ahead
from fastiter.torch._worker import LoaderJob, Reply, plain_attributes

logger = logging.getLogger("fastiter")
_CALLER = Caller("multiprocessing_context", "iter(loader)", "pass num_workers=0")
# Batches that a GPU may read while others are made; more are copied out of the ring.
_MOST_COPIES = 8
_REPEATED = (
    "a worker process has died, and another one has begun with the dataset as it was when the "
    "workers started. A state of the dataset's own is that of then; of an IterableDataset the "
    "worker reads its part again, and leaves out as many examples as were delivered. These are "
    "right if the dataset gives the same ones again when it is new, with the seeds of its first "
    "loop"
)
_UNKNOWN_ROWS = 4096  # of a batch that is made from columns, if the sampler does not tell


class _BatchTimeout:
    """The loader's ``timeout``: seconds that ``next()`` may wait for one batch, above 0."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = 0.0

    def begin(self) -> None:
        self._end = status.now() + self.seconds

    def slice(self, most: float) -> float:
        return max(0.0, min(most, self._end - status.now()))

    def is_due(self) -> bool:
        return status.now() >= self._end

    def check(self, goal: str) -> None:
        raise RuntimeError(f"DataLoader timed out after {self.seconds} seconds")

    def end(self) -> None:
        """The wait has ended."""


class WorkersIterator(LoaderIterator):
    """Has worker processes make the batches, and delivers them in the sampler's order."""

    _executor: ProcessExecutor
    _adjustment: Adjustment | None = None  # of the number of workers
    _has_told = False  # that a worker's part of a stream is read again
    _last_workers: Any = ()  # when the pool was closed

    def __init__(self, loader: Any, resume: Resume | None) -> None:
        super().__init__(loader, resume)
        if not loader.prefetch_factor:
            raise AssertionError("prefetch_factor must be greater than 0 where there are workers")
        # What is delivered out of order can be told at that time only.
        self._interval = loader._own_arguments.snapshot_every_n_steps if loader.in_order else 1
        self._asks_first = self._is_iterable or is_stateful(self._dataset)
        self._shares_rows = loader._shares_rows
        if loader._adjusts_workers:
            # Batches whose rows workers cannot share are theirs in turns: of those that stay.
            self._num_workers = min(loader.num_workers, first_workers(usable_cpus()))
            self._adjustment = Adjustment(loader, self._num_workers)
        rows, self._converter = self._rows_of(loader)
        self._planner = Plans(self._num_workers, rows, loader.in_order, self._auto_collation)
        self._planner.shares_rows = self._shares_rows
        with self._lock:  # which the exit of the interpreter waits for
            self._use_new_pool(loader, resume)
            self._begin(resume)

    def _rows_of(self, loader: Any) -> tuple[int, Any]:
        """Most examples in a batch from columns, and its converter; 0 if whole batches have to be
        made one by one."""
        rows, is_batch = self._most_rows(), self._auto_collation
        tolerates = self._policy is not None
        converter: Any
        if self._shares_rows:
            converter = shared_converter(loader.collate_fn, self._dataset, tolerates, is_batch)
            return rows if is_batch else 1, converter
        if not is_batch or self._asks_first or isinstance(self._dataset, MapDataPipe):
            return 0, None
        converter = converter_for(loader.collate_fn, self._dataset, tolerates)
        return (0, None) if converter is None else (rows, converter)

    def _most_rows(self) -> int:
        """Most examples in a batch, as far as the sampler tells."""
        rows = offered(self._index_sampler, "batch_size")
        return max(1, min(rows, MOST_ROWS)) if type(rows) is int else _UNKNOWN_ROWS

    def _use_new_pool(self, loader: Any, resume: Resume | None) -> None:
        """Make the pool, whose workers `_begin` starts."""
        self._n_spilled = 0
        executor = ProcessExecutor(None, self._lock, self._timer, policy=self._policy)
        self._executor = self._counted.executor = executor
        executor.use(self._new_pool(loader, resume))

    def _new_pool(self, loader: Any, resume: Resume | None) -> Pool:
        states: list[Any] = [None] * self._num_workers
        if resume is not None and resume.has_worker_state:
            states = [
                (resume.of_worker(number), made)
                for number, made in enumerate(resume.keys_by_worker(self._num_workers))
            ]
        own, init_fn = loader._own_arguments, loader.worker_init_fn
        if isinstance(self._dataset, (IterDataPipe, MapDataPipe)):
            shards = torch_dataloader._sharding_worker_init_fn  # before the program's function
            init_fn = functools.partial(shards, init_fn, self._world_size, self._rank)
        job = LoaderJob(
            dataset=self._dataset,
            batch_converter=self._converter,
            worker_init=init_fn,
            claims=None,
            retries=own.on_timeout == "retry",
            hedges=own.hedge is not None,
            kind=self._dataset_kind,
            auto_collation=self._auto_collation,
            collate_fn=collate_of(self._collate_fn, self._dataset, self._auto_collation),
            drop_last=self._drop_last,
            base_seed=self._base_seed,
            states=states,
            seed_examples=self._seeds_examples,
            tolerates=None if self._policy is None else self._policy.mode,
            learns_columns=self._shares_rows,
        )
        most = 0 if self._adjustment is None else self._adjustment.most_workers
        # Batches are made again row by row where the policy decides about rows that kill workers.
        is_by_row = self._policy is not None and self._auto_collation
        pool = Pool(
            job=job,
            workers=loader.num_workers,
            most_workers=most,
            most_prefetch=most * loader.prefetch_factor,
            rows=max(1, self._planner.rows, self._most_rows() if is_by_row else 0),
            n_prefetch=ahead(loader),
            n_held=2 + (_MOST_COPIES + own.n_device_prefetch if self._pin_memory else 0),
            shared_mem=None,
            dataset_timeout=own.dataset_timeout,
            n_retries=own.n_retries if own.on_timeout == "retry" else None,
            start=choose(checked_context(loader.multiprocessing_context), _CALLER),
            lock=self._lock,
            limits=[_BatchTimeout(self._timeout)] if self._timeout else [],
        )
        pool.ring.set_hedge(own.hedge or 0.0)
        # Of another batch sampler the batch_size may be tokens, or the most that there can be.
        is_known = not self._auto_collation or is_own(self._index_sampler, BatchSampler)
        plain = plain_columns(self._dataset) if self._planner.rows and is_known else None
        if plain is not None and (plain.is_arrow or type(self._dataset) is TensorRows):
            pool.use_columns(plain, min(pool.rows, len(self._dataset)) or 1)
            self._planner.use_schema(pool.ring.schema)
        elif self._shares_rows and self._iterations.schema is not None:
            pool.use_schema(self._iterations.schema)
        if self._pin_memory:
            pool.ring.registration = pinned_slots(pool.ring.arena)
        return pool

    def _begin(self, resume: Resume | None) -> None:
        """Begin an epoch, or continue a loaded one."""
        plans, n_workers = self._planner, self._num_workers
        plans.shared_seed = self._shared_seed
        self._set_seeds()
        plans.wants_state = self._asks_first and bool(self._interval)
        self._sampler_iter.n_states = sys.maxsize
        plans.is_overtaking = False  # not yet: what comes first has an order
        begun = {"dataset_iter_state": None, "fetcher_ended": False} if self._is_iterable else None
        states = tuple(
            {"worker_id": number, "fetcher_state": begun and {**begun}, "dataset_state": None}
            for number in range(n_workers)
        )
        n_yielded = self._first_yielded if resume is None else resume.n_yielded
        progress = Delivered(n_yielded, states, (True,) * n_workers, {}, self._skips)
        plans.begin(self._sampler_iter, self._planned(resume), progress, self._asks_first)
        self._every = 1  # the sampler's state is known for each batch
        opens_first = self._owner is None and may_change_data(self._index_sampler, self._generators)
        self._executor.start(plans, opens_first)
        self._takes_snapshots = self._sampler_iter.is_stateful  # or its iterator, made by now
        if self._asks_first:
            self._ask_first()
        if self._takes_snapshots:
            plans.progress = plans.progress._replace(snapshot=self._snapshot_now(plans.progress))
        if not self._interval:
            self._sampler_iter.n_states = 0
        self._fetch_again(resume)
        plans.is_overtaking = not plans.in_order and not self._sampler_iter.is_filling

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        with self._lock:
            pool = self._executor.pool
            if pool is None or pool.closed:  # it ended by an error, or was closed
                self._planner.epoch = -1
                self._planner.by_indices = False
                self._timer = Timer()
                self._counted = loader._iterations.begin(self)
                self._use_new_pool(loader, None)
                self._is_closed = False
            elif not (self._seeds_examples or self._shares_rows):
                # As torch's workers do: each has then drawn as many of its random numbers, however
                # early the loop was left.
                try:
                    pool.wait_until(pool.ring.all_ready)
                except WorkerDiedError as error:
                    raise _died(error, str(error)) from error
            super()._reset(loader, first_iter)
            self._planner.epoch += 1
            self._executor.drop([])
            self._begin(None)

    # ---- batches

    def _read(self, plan: Plan, before: Delivered) -> tuple[Delivered, Any] | None:
        pool, plans, reply = self._executor.pool, self._planner, plan.outcome
        assert pool is not None
        if self._asks_first and pool.restarts and not self._has_told:
            self._has_told = True
            logger.warning(_REPEATED)
        if isinstance(reply, Failure):
            if type(reply) is AllSkipped:
                return self._passed(before, plan), reply
            return before, Failure(_error_of(reply, plan))
        if plan.request is None:
            # The examples have changed.
            if pool.spilled_rows > self._n_spilled and not self._shares_rows:
                plans.ask_schema()
                self._n_spilled = pool.spilled_rows
        else:
            reply = reply[0]
            if plans.lacks_room(plan.request.keys):
                plans.ask_schema(len(plan.request.keys))
        after = before
        if type(reply) is Reply:
            if isinstance(reply.batch, ExceptionWrapper):
                return before, Failure(_raised_by(reply.batch))
            after = self._note_reply(plan, reply, before)
            if reply.is_end or asks_state(plan):
                plan.progress = after
                return None
            reply = reply.batch
            if isinstance(reply, Failure):
                if type(reply) is not AllSkipped:
                    reply = Failure(_error_of(reply, plan))
                return self._passed(after, plan), reply
        if self._pin_memory and not isinstance(reply, Pending):
            reply = capture(_utils.pin_memory.pin_memory, reply, self._pin_memory_device)
            if type(reply) is Failure:
                return before, reply
        counts = after.n_yielded + 1, *after[1:-1], after.n_more_keys + plan.state.size
        after = tuple.__new__(Delivered, counts)  # as `Delivered(*counts)`, in C
        if self._takes_snapshots and self._interval and after.n_yielded % self._every == 0:
            after = after._replace(snapshot=self._snapshot_now(after, plan), n_more_keys=0)
        return after, reply

    def _note_reply(self, plan: Plan, reply: Reply, before: Delivered) -> Delivered:
        """Note what a worker has told beside its batch; the progress with it."""
        after, number, plans = before, plan.worker, self._planner
        if reply.state is not None:
            states = (*before.states[:number], reply.state, *before.states[number + 1 :])
            after = after._replace(states=states)
        if reply.is_end:
            is_active = (*before.is_active[:number], False, *before.is_active[number + 1 :])
            after = after._replace(is_active=is_active)
        if reply.n_rows is not None:
            plan.n_valid = reply.n_rows
        pool = self._executor.pool
        if pool is not None and reply.schema is not None and not plans.by_indices:
            pool.ring.use_schema(reply.schema)
            plans.use_schema(pool.ring.schema)
        return after

    def _passed(self, after: Delivered, plan: Plan) -> Delivered:
        """The progress with a batch of which nothing comes."""
        if self._takes_snapshots and self._interval:
            return after._replace(snapshot=self._snapshot_now(after, plan), n_more_keys=0)
        return after

    def _decide(self, plan: Plan) -> Plan:
        policy, outcome = self._policy, plan.outcome
        assert policy is not None
        if plan.request is None:
            if type(outcome) is list and self._converter is None:  # of `_row_by_row`
                plan.outcome = Reply(self._collated(outcome))
            return plan
        if type(outcome) is Failure and isinstance(outcome.error, WorkerDiedError):
            return self._row_by_row(plan)
        reply = outcome[0] if type(outcome) is list else None
        if type(reply) is not Reply or not reply.failures:
            return plan
        plan.progress = self._planner.progress
        keys = keys_of(plan, self._auto_collation, self._sampler_iter.rows)
        failures = []
        for row, dumped in reply.failures:
            key = keys[row] if self._auto_collation else keys
            failures.append(load(dumped, f"key {key!r:.200}, {plan.label}", row))
        left = reply.batch
        if policy.mode == "ask":
            left = capture(decided, policy, plan, failures, left)
            if not isinstance(left, Failure):
                left = self._collated(left)
        elif isinstance(failure := policy.decide(plan, failures), Failure):
            left = failure
        plan.outcome = [reply._replace(batch=left, failures=())]
        return plan

    def _collated(self, examples: list[Any]) -> Any:
        collate_fn = collate_of(self._collate_fn, self._dataset, self._auto_collation)
        return capture(collate_fn, examples if self._auto_collation else examples[0])

    def _row_by_row(self, plan: Plan) -> Plan:
        """The plan in place of one whose batch kills each worker: the workers share its rows, so
        that each death has one row."""
        pool, request = self._executor.pool, plan.request
        keys = request.keys if self._auto_collation else [request.keys]
        assert pool is not None
        if not can_share_rows(keys, pool.rows):
            return plan
        indices = index_array(keys, pool.rows) if type(keys) is list else None
        places = {"first": plan.first, "number": plan.number, "seeds": request.seeds}
        origin = plan.epoch, len(keys), 1
        alone = Plan(indices, plan.state, origin=origin, keys=keys, **places)
        self._planner.plans[0] = alone
        return alone

    def _fetch(self, plan: Plan) -> Plan:
        if self._adjustment is not None:
            self._adjustment.tune(self._executor, self._counted)
        try:
            return self._executor.make(self._planner, plan)
        except WorkerDiedError as error:
            raise _died(error, _named(str(error), plan)) from error

    def _copy_ahead(self) -> None:
        assert self._copies is not None
        if self._planner.in_order:
            are_collated = self._converter is not None
            self._copies.begin_ahead(self._executor, self._planner, are_collated)

    # ---- state

    def _ask_first(self) -> None:
        """Receive the state of each worker at the start of the epoch."""
        plans = self._planner
        before = plans.progress.states
        while plans.state.n_asked < self._num_workers:
            plan = plans.peek()
            if plan.outcome is None:
                plan = self._fetch(plan)
            found = self._read(plan, plans.progress)
            plans.deliver()
            if found is not None:
                reraise(found[1])
        has_state = plans.progress.states is not before
        if has_state and self._interval:
            self._every = self._interval
        plans.wants_state = bool(self._interval) and has_state
        # With the batches, because it cannot be told afterwards.
        self._takes_snapshots |= has_state

    def _snapshot_now(self, progress: Delivered, delivered: Plan | None = None) -> dict[str, Any]:
        """The state with this progress; ``delivered`` is the plan of the last batch in it."""
        plans = self._planner
        last_worker = (plans.state if delivered is None else delivered.state).last_worker
        main = {
            **self._sampler_state(progress.n_yielded, delivered),
            "_num_workers": self._num_workers,
            "_keys_by_worker": plans.keys_by_worker(delivered),
        }
        states = progress.states
        if self._owner is not None and not hold_state(states):  # equal on all ranks
            del main["_keys_by_worker"]
            states = ()
        return {
            "_snapshot_step": progress.n_yielded,
            "_last_yielded_worker_id": last_worker if last_worker >= 0 else self._num_workers - 1,
            "_main_snapshot": main,
            "_worker_snapshots": {f"worker_{number}": state for number, state in enumerate(states)},
        }

    def _own_state(self) -> dict[str, Any]:
        snapshot = (progress := self._planner.progress).snapshot
        if not self._takes_snapshots:
            snapshot = self._snapshot_now(progress)
        n_steps = progress.n_yielded - snapshot["_snapshot_step"]
        return {
            "_facts": self._facts,
            "_snapshot": snapshot,
            "_steps_since_snapshot": n_steps,
            "_keys_since_snapshot": progress.n_more_keys if n_steps else 0,
            "_iterator_finished": self._finished,
            **self._skips_state(),
        }

    # ---- end

    @property
    def _workers(self) -> list[Any]:
        """The processes, which programs look at in torch's iterator; at the end the last ones."""
        pool = self._executor.pool
        return self._last_workers if pool is None else pool.processes

    def close(self) -> None:
        if "_executor" in self.__dict__:  # else the constructor has failed
            pool = self._executor.pool
            self._last_workers = self._workers
            self._executor.interrupt()
            self._executor.close()
            if pool is not None and self._shares_rows:  # behind what another thread may be at
                self._iterations.schema = pool.ring.schema  # or the next pool would learn it anew
            self._is_closed = self._executor.pool is None  # not in a fork of its process

    _shutdown_workers = close  # which programs call on torch's iterator


def _named(text: str, plan: Plan) -> str:
    """The text of an error, with the keys of a batch that was made as a whole: the ring knows only
    its number."""
    if plan.request is None:
        return text
    keys = plan.request.keys
    is_of_stream = keys is None or (type(keys) is list and keys[:1] == [None])
    batch = plan.label if is_of_stream else f"the batch of {keys!r:.200}"
    return text.replace(f"dataset index {plan.indices[0]}", batch)


def _died(error: WorkerDiedError, text: str) -> RuntimeError:
    """The error of workers that die, with the words of torch's."""
    end = error.exit_reason
    by_signal = end.removeprefix("was killed by ")
    said = "exited unexpectedly" if by_signal == end else f"is killed by signal: {by_signal}"
    return RuntimeError(f"DataLoader worker (pid {error.pid}) {said}: {text}")


def _error_of(failure: Failure, plan: Plan) -> Any:
    """Exception for an example's failure: as in torch's loader, its type, with the worker's
    traceback as its text. It may be asked for again."""
    error = failure.error
    if isinstance(error, WorkerDiedError):
        return _died(error, _named(str(error), plan))
    if isinstance(error, (DatasetError, DatasetTimeoutError)) and plan.request is not None:
        error.args = (_named(str(error), plan),)
        if isinstance(error, DatasetTimeoutError):
            error.index = None
    is_remote = isinstance(error.__cause__, WorkerTraceback)
    if not is_remote and failure.facts != CONVERTED_HERE:  # by torch, that is done in the worker
        return error
    where = f"in DataLoader worker process {plan.worker}".removesuffix(" -1")  # several share it
    wrapper = ExceptionWrapper((failure.kind, error, error.__traceback__), where)
    if is_remote:
        facts, _, text = str(error.__cause__).partition("\n")
        wrapper.exc_msg = f"{text.rstrip()} ({_named(facts, plan)})"
    wrapper.facts = plain_attributes(error)
    return _raised_by(wrapper)


def _raised_by(wrapper: ExceptionWrapper) -> Exception:
    """Exception that torch raises for an exception of a worker: of its class if the class takes a
    text, else a RuntimeError. An error of the class' own that torch lets through would hide the
    text."""
    error: Exception = capture(wrapper.reraise).error
    if type(error) is wrapper.exc_type or isinstance(error, RuntimeError):
        for name, value in wrapper.facts.items():
            with contextlib.suppress(Exception):  # the class may have one of its own
                BaseException.__setattr__(error, name, value)
        return error
    name, where = wrapper.exc_type.__name__, wrapper.where
    return RuntimeError(f"Caught {name} {where}.\nOriginal {wrapper.exc_msg}")
