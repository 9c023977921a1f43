"""Batches that worker processes make in shared memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastiter._engine.executor import Executor, capture_in
from fastiter._stats.stats import LoaderStats
from fastiter._util import shutdown
from fastiter._util.failures import Failure, FailurePolicy, capture, failure_of
from fastiter._workers.delivery import from_rows

if TYPE_CHECKING:
    from fastiter._order.example_context import Seed
    from fastiter._order.plan import Plan, PlanQueue
    from fastiter._ring.arena import Arena
    from fastiter._ring.lease import Lease
    from fastiter._stats.timer import Timer
    from fastiter._stats.trace import WorkerTraces
    from fastiter._workers.pool import Pool


class ProcessExecutor(Executor):
    """An `Executor` whose workers are processes: those of a `Pool`, which starts with the first
    batch, or with `start`.

    ``new_pool()(n_rows, n_workers, n_prefetch)`` returns a pool with room for batches of
    ``n_rows``, and may start its workers; else `start` does. None: `use` brings the pool.
    """

    def __init__(
        self,
        new_pool: Callable[[], Callable[[int, int, int], Pool] | None] | None,
        lock: Any,  # of the loop
        timer: Timer,
        *,
        policy: FailurePolicy | None = None,
        is_seeded: bool = False,  # whether what is converted in the caller has seeds of its own
        seed: Seed = (0, 0),
        n_workers: int = 0,  # of the first pool, as n_prefetch, the batches made ahead
        n_prefetch: int = 0,
        finish: Callable[[Any], Any] | None = None,  # makes, in the caller, what is delivered
    ) -> None:
        self.pool: Pool | None = None
        self._new_pool = new_pool
        self._lock = lock
        self._timer = timer
        self._policy = policy
        self._is_seeded = is_seeded
        self._seed = seed
        self._finish = finish
        #: of a pool that is gone, or before there is one
        self._last = LoaderStats("processes", n_workers, n_prefetch)
        self._traces: WorkerTraces = {}

    @property
    def n_workers(self) -> int:
        pool = self.pool
        return self._last.n_workers if pool is None else pool.n_workers

    @property
    def n_prefetch(self) -> int:
        pool = self.pool
        return self._last.n_prefetch if pool is None else pool.ring.n_prefetch

    @property
    def arena(self) -> Arena | None:
        return None if self.pool is None else self.pool.ring.arena

    def running(self, plans: PlanQueue, n_rows: int = 0) -> Pool:
        """The pool, with room for batches of ``n_rows``."""
        pool = self.pool
        if pool is not None:
            if pool.pid != os.getpid():
                self.check_own()
            if n_rows > pool.rows:
                pool.close()
            if not pool.closed:
                if pool.needs_check and pool.is_open:
                    pool.check()
                return pool
        shutdown.block_if_exiting(self._lock)
        # Not started yet, or the last start failed and said why.
        plans.rewind()
        new_pool: Any = self._new_pool and self._new_pool()
        return self.use(new_pool(n_rows, self.n_workers, self.n_prefetch))

    @property
    def seed(self) -> Seed:
        """Seed of the examples' random numbers."""
        return self._seed

    @seed.setter
    def seed(self, seed: Seed) -> None:
        self._seed = seed
        if self.pool is not None:
            self.pool.ring.seed = seed

    def use(self, pool: Pool) -> Pool:
        self.pool = pool
        pool.ring.seed = self.seed
        self._timer.open(pool.note_start)
        if self._timer.trace is not None:
            pool.ring.start_trace()
        return pool

    def check_own(self) -> None:
        """RuntimeError if the workers are those of another process, of which this is a fork."""
        if self.pool is not None and not self.pool.is_own:
            raise RuntimeError(
                f"this iterator belongs to process {self.pool.pid}; in a child, iterate over a "
                "copy (copy.copy) of a MultiprocessIterator, or over a new DataLoader"
            )

    def start(self, plans: PlanQueue, opens_first: bool = False) -> None:
        """As in `Executor`. Batches are planned before the workers start, so that the first worker
        is busy while the others are forked; with ``opens_first`` after all have started."""
        pool = self.running(plans)
        if opens_first and not pool.is_open:
            pool.open(lifts=False)
        pool.ring.top_up(plans, False)
        if not pool.is_open:
            pool.open(lifts=False)

    def make(self, plans: PlanQueue, plan: Plan, begins: bool = True) -> Plan:
        """As in `Executor`; with ``begins``, have the workers also begin the batches ahead."""
        pool = self.running(plans, len(plan.indices))
        ring = pool.ring
        if begins:
            ring.top_up(plans)
        overtaking = plans if plans.overtakes() else None
        if overtaking is not None and ring.overtake(plans):
            plan = plans.peek()
        lease = ring.take(plan)
        if lease is not None:
            plan.outcome = self._from_rows(pool, plan, lease)
            return plan
        self._timer.block()
        while not ring.holds(plan):
            pool.wait_until(ring.has_free_slot)  # one that drains
            ring.top_up(plans)
        pool.wait(overtaking)
        self._timer.unblock()
        if overtaking is not None:
            plan = plans.peek()
        plan.outcome = self._finished(plan, pool.deliver, plan, self._policy)
        return plan

    def ready(self, plans: PlanQueue) -> Plan | None:
        pool = self.pool
        if pool is None or not (pool.ring.scheduled and pool.ring.ready()):
            return None
        plan = pool.ring.scheduled[0]
        lease = pool.ring.take(plan)
        if lease is not None:
            plan.outcome = self._from_rows(pool, plan, lease)
            return plan
        if self._policy is not None:
            return None
        pool.wait()  # an overwritten word may have taken it back
        plan.outcome = self._finished(plan, pool.deliver, plan, None)
        return plan

    def _from_rows(self, pool: Pool, plan: Plan, lease: Lease) -> Any:
        converter = pool.job.batch_converter
        if self._is_seeded or self._finish is not None:
            return self._finished(plan, from_rows, lease, plan, {}, converter)
        try:
            return from_rows(lease, plan, {}, converter)
        except Exception as error:
            return failure_of(error)

    def _finished(self, plan: Plan, function: Callable[..., Any], *arguments: Any) -> Any:
        """Result, or `Failure`, of a function that may have to convert the batch."""
        batch = capture_in(self.seed if self._is_seeded else None, plan, function, *arguments)
        if self._finish is None or isinstance(batch, Failure):
            return batch
        return capture(self._finish, batch)

    # ---- settings, statistics

    def adjust(self, name: str, count: int) -> None:
        assert self.pool is not None
        self.pool.adjust(name, count)

    def is_steady(self) -> bool:
        return self.pool is not None and self.pool.is_steady()

    def bytes_each(self, name: str) -> int:
        assert self.pool is not None
        return self.pool.bytes_each(name)

    def stats(self, seconds: float) -> LoaderStats:
        pool = self.pool
        return self._last if pool is None else pool.statistics(seconds)

    def trace(self, on: bool) -> None:
        pool = self.pool
        if pool is not None and not pool.closed:  # one whose start failed is closed
            (pool.ring.start_trace if on else pool.ring.stop_trace)()

    def traces(self) -> WorkerTraces:
        pool = self.pool
        if pool is None:
            return self._traces
        return {f"worker {n}": pool.ring.trace_events(n) for n in range(pool.n_workers)}

    # ---- end

    def drop(self, begun: list[Any]) -> None:
        pool = self.pool
        if pool is not None and pool.is_own:
            pool.ring.reset()

    def interrupt(self) -> None:
        if (pool := self.pool) is not None and pool.is_own:
            pool.interrupt()

    def after_fork(self, lock: Any) -> None:
        self._lock = lock  # the pool stays, whose workers are the parent's

    def close(self) -> None:
        if (pool := self.pool) is None or not pool.is_own:
            return
        with self._lock:
            pool = self.pool  # `make` in another thread may have started one meanwhile
            if pool is None:
                return
            pool.close()
            self._timer.opened = None
            # The memory goes with the pool, unless a batch is alive.
            _, inside, _, between, _ = self._timer.read()
            self._traces = {} if self._timer.trace is None else self.traces()
            self._last = pool.statistics(inside + between)
            self.pool = None
