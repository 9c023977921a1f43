"""Waits for batches, delivers those that need more than the fast path, and repairs the ring when
workers die.

The pool belongs to one iterator and one process. All of it runs in the thread that calls the
iterator, under the iterator's lock; there is no thread beside it.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from fastiter._clib import status
from fastiter._order.plan import Plan, PlanQueue
from fastiter._ring.arena import Arena
from fastiter._ring.infer_schema import ColumnLearner
from fastiter._ring.scheduler import BatchScheduler
from fastiter._ring.schema import MOST_FIELDS, Schema
from fastiter._stats.autotune import private_bytes
from fastiter._stats.stats import LoaderStats, worker_stats
from fastiter._util import shutdown
from fastiter._util.cpus import allowed_cpus
from fastiter._util.failures import Failure, FailurePolicy, load_start_error, reraise
from fastiter._workers import thread_limits
from fastiter._workers.crash_counts import CrashCounts, Exit
from fastiter._workers.delivery import assemble, crash_error, drop_failed, read_irregular
from fastiter._workers.main import BatchJob
from fastiter._workers.process import LEFT, UNKNOWN_END, Overrun, WorkerProcess
from fastiter._workers.process_group import LOOK_SECONDS, WorkerGroup
from fastiter._workers.start_method import Start
from fastiter._workers.timeouts import UNKILLABLE_SECONDS, Timeouts, WaitLimit, step_text
from fastiter.errors import DatasetTimeoutError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fastiter._fetch.gather import ColumnReader
    from fastiter._ring.parent import Report

_SPARES = 32  # slots that replace those retired by forks of the program
_SCHEMAS = 16
_SPIN = 100  # pauses, about 2 us


class Pool:
    """Workers, the ring between them and the caller, and the arena that holds it.

    For the usual work on each batch, topping up and taking batches, the iterator uses the pool's
    `ring` itself.

    A batch has at most `rows` examples; a loop that goes on holds `n_held` slots. `most_workers`
    and `most_prefetch` are the limits of `adjust`, by default the present numbers. `lock` is the
    iterator's. `limits` are those of waits, beside `dataset_timeout`. With `n_retries`, workers
    that take too long are ended, and their rows fetched again up to `n_retries` times. The other
    arguments are those of MultiprocessIterator.
    """

    def __init__(
        self,
        *,
        job: BatchJob,
        workers: int,
        rows: int,
        n_prefetch: int,
        n_held: int,
        shared_mem: int | None,
        dataset_timeout: float | None,
        start: Start,
        lock: Any,
        most_workers: int = 0,
        most_prefetch: int = 0,
        limits: Sequence[WaitLimit] = (),
        n_retries: int | None = None,
    ):
        self.pid = os.getpid()
        self.is_open = False
        self._is_limiting = False  # OpenBLAS, to one thread
        self._spin_end = 0.0  # until when threads spin that it has started since
        self.closed = False
        self._released = False
        self._lock = lock
        self.copied_out = 0  # batches copied to the heap for want of slots
        self.spilled_rows = 0
        self.restarts = 0  # of workers that died
        self.replacements = 0  # planned ones
        self._at_start: dict[int, Report] = {}  # what workers had done when the first batch came
        self._joined: dict[int, float] = {}  # when workers joined that were not there at first
        self.job = job
        self._learner = ColumnLearner(rows, _SCHEMAS - 1)
        self._context = start.caller.context
        self._retries = n_retries is not None
        self._n_retries = n_retries or 0
        self._crash_counts = CrashCounts(self._n_retries)
        self._slow_starts: dict[int, int] = {}  # by number of the worker, how many in a row
        self._hints_restored = False  # since the last batch came
        self.is_starting = True  # there are workers whose start is to be watched
        self.needs_check = True  # at each `next()`, at these or at what takes too long
        self._next_check = 0.0  # at these
        # Batches ahead and the one waited for; the consumer's; and each worker may pin one of an
        # old generation.
        most = max(workers, most_workers)
        # For each worker that does not end, a number and a slot that take the place of its own.
        spares = most if self._retries else 0
        slots = max(n_prefetch, most_prefetch) + 1 + n_held + most + spares + _SPARES
        self.rows = rows
        arena = Arena.create(slots, most + spares + self._retries, rows, _SCHEMAS)
        self.ring = BatchScheduler(arena, _SPARES, n_prefetch)
        self.ring.least_bytes = (shared_mem or 0) * rows
        self.ring.reserved = spares
        self._group = WorkerGroup(self.ring, most, job, start, workers, spares)
        self._engage()
        self._timeouts: Timeouts | None = None
        self._wait_limits = [*limits]
        if dataset_timeout is not None:
            self._timeouts = Timeouts(dataset_timeout, self.ring, self._group, self._retries)
            self._wait_limits.insert(0, self._timeouts)
        self._at_exit = shutdown.end_at_exit(self, lock)

    def open(self, lifts: bool = True) -> None:
        """Start the workers. They find batches that were scheduled before.

        Without ``lifts`` the first batch does not wait for the program's threads of OpenBLAS, which
        are to start after the forks: they start when it is complete, and `check` ends them with the
        next one.
        """
        self.is_open = True
        self._is_limiting = not lifts
        try:
            self._group.open(lifts)
        except BaseException:
            self.close()
            shutdown.block_if_exiting(self._lock)
            raise

    # ---- take

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made the pool, not a forked child."""
        return self.pid == os.getpid()

    def wait(self, overtaking: PlanQueue | None = None) -> None:
        """Blocks until the first batch is complete; or, if plans are given, until any batch is
        complete, which becomes the first.

        Raises TimeoutWarning and KeyboardInterrupt, which lose no batch: the next call waits
        for the same batch; and an error if the dataset cannot be loaded in the workers, or they die
        before they work.
        """
        ready = self.ring.ready
        if overtaking is not None:
            ready = functools.partial(self.ring.overtake, overtaking)
        while not ready():  # an overwritten word may take it back
            self._sleep(ready, any_event=overtaking is not None)
        self._lift_limits()

    def _lift_limits(self) -> None:
        """Let OpenBLAS compute in all threads from now on."""
        if self._is_limiting:
            self._is_limiting = False
            if thread_limits.own_pools.lift(ends_threads=False):
                self._spin_end = status.now() + thread_limits.SPIN_SECONDS

    def _end_spinning(self) -> None:
        if self._spin_end:
            if status.now() < self._spin_end:
                thread_limits.end_spinning_threads()
            self._spin_end = 0.0

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Blocks until ``done()``, which is asked after each event in the ring."""
        self._sleep(done, any_event=True)

    def deliver(self, plan: Plan, policy: FailurePolicy | None) -> Any:
        """Take the first batch, that of `plan`, out of the ring, and return it or its `Failure`.

        `policy` decides about rows that have failed; without it the first is the batch's failure.
        Raises errors of the batch, too: a field cannot be loaded, or the converter raises.
        """
        indices, lease = plan.indices, None
        try:
            lease, codes = self.ring.take_irregular()
            tolerates = policy is not None
            spilled, failures = read_irregular(lease, plan, codes, self._crash_counts, tolerates)
            poison = (row for row, code in codes if code == status.ROW_POISON)
            self._crash_counts.clear(indices if plan.keys is None else map(repr, plan.keys), poison)
            examples = spilled
            if failures:
                if policy is None:
                    return failures[0]
                replaced = policy.resolve(plan, failures)
                if isinstance(replaced, Failure):
                    return replaced
                examples, is_finished = drop_failed(lease, spilled, failures, replaced, codes)
                if not is_finished:
                    lease.flags &= status.FINISH_POISON
            if lease.flags & status.FINISH_POISON:
                end = self._crash_counts.last_exit(plan.q)
                raise crash_error("the converter", end, plan.label)
            self._learn(plan, spilled)
            converter = self.job.batch_converter if plan.request is None else None
            return assemble(lease, plan, examples, converter)
        finally:
            self.copied_out += lease is not None and lease.is_copied
            del lease  # or it lives as long as the traceback of what is raised
            self._crash_counts.delivered(plan.q, self.ring.scheduled)
            self._hints_restored = False
            if plan.q >= self.ring.single_until:
                self.ring.single_until = -1
            self.ring.fast_path_ok = not self._crash_counts and self.ring.single_until < 0

    def use_columns(self, plain: ColumnReader, rows: int) -> None:
        """Let batches of up to ``rows`` have a dataset's own columns from the first one on, unless
        these are too many."""
        specs = plain.specs()
        if len(specs) <= MOST_FIELDS:
            self.use_schema(Schema(plain.container, plain.keys, specs, rows))

    def use_schema(self, schema: Schema) -> None:
        """Let batches have these columns from the first one on, if the pool has room for as many
        rows."""
        if schema.rows <= self.rows:
            self.ring.use_schema(schema)
            self._learner.use(self.ring.schema)

    def _learn(self, plan: Plan, irregular: dict[int, Any]) -> None:
        """Lets later batches have the columns that this one would have needed."""
        self.spilled_rows += len(irregular) if plan.schema is not None else 0
        if self.job.learns_columns:
            examples = [*irregular.values()]
            schema = self._learner.learn(plan.schema, len(plan.indices), examples)
            if schema is not None:
                self.ring.use_schema(schema)

    # ---- wait

    def _sleep(self, done: Any, any_event: bool) -> None:
        """Sleeps until `done`, for the doorbell, deaths, timeouts and signals at once."""
        ring = self.ring
        for limit in self._wait_limits:
            limit.begin()
        silence = 0.0
        while True:
            if self.closed:
                shutdown.block_if_exiting(self._lock)
                raise RuntimeError("the iterator was finalized while next() waited")
            if done():
                for limit in self._wait_limits:
                    limit.end()
                return
            if self.is_starting:
                self._check_starts()
            self._start_missing()
            left = self._next_check - status.now() if self.is_starting else LOOK_SECONDS
            seconds = min(LOOK_SECONDS, max(0.0, left))
            for limit in self._wait_limits:
                seconds = limit.slice(seconds)
            try:
                woken = ring.wait(done, any_event, self._group.descriptors(), seconds)
            except OSError:
                if not self.closed:  # by a signal handler that came before the wait
                    raise
                continue
            if woken is None or done() or self.closed:
                continue
            # After a silence too: where the system has no pidfds, a pipe's end tells of a death,
            # and what the dataset has forked may hold that open.
            if not woken or any(position >= 0 for position in woken):
                self._recover_dead()
            for limit in self._wait_limits:
                if limit.is_due():
                    limit.check(ring.scheduled[0].label if ring.scheduled else "a free slot")
                    if self._retries:
                        self._take_from_ended()
            silence = 0.0 if woken else silence + seconds
            if silence >= LOOK_SECONDS:
                self.is_starting, silence = True, 0.0  # a check finds who waits for a lock
                self._check_hints()

    def _check_hints(self) -> None:
        """Handles, after a silent period, overwritten words that make workers sleep or wait for
        their start. First all hints are restored, at the cost of a look for work in vain. If all
        workers sleep again, the batches that are not complete are given up (OverwrittenError)."""
        self.ring.fast_path_ok = False  # until a batch has been delivered
        self._group.reopen_barrier()
        if self._hints_restored and self.ring.stalled:
            self.ring.give_up()
        else:
            self._hints_restored = True
            self.ring.restore_hints()

    # ---- settings that change

    def _engage(self) -> None:
        """Sets the number of workers that the ring counts with."""
        numbers = self._group.numbers
        self.ring.set_worker_count(
            max(numbers, default=0) + 1, _SPIN if len(numbers) < allowed_cpus() else 0
        )

    def set_workers(self, count: int) -> None:
        """Changes the number of workers. Surplus ones leave when they have done the rows that they
        hold; nothing waits for them."""
        self._recover_dead()  # a surplus worker of an earlier change, for example
        self._group.wanted = count
        numbers = self._group.numbers
        for number in numbers:
            if not self.ring.report(number)["ready"]:  # no worker has had it yet
                self._joined.setdefault(number, status.now())
        for worker in self._group.workers.values():
            worker.leaves = worker.leaves or worker.number not in numbers
        self._engage()
        self._start_missing()

    def adjust(self, name: str, count: int) -> None:
        """Changes ``n_processes``, or ``n_prefetch`` from the next top-up on."""
        if name == "n_processes":
            self.set_workers(count)
        else:
            self.ring.n_prefetch = count

    def is_steady(self) -> bool:
        """Whether all workers that are wanted have loaded the dataset."""
        return all(
            (worker := self._group.workers.get(number)) is not None
            and self.ring.report(number)["ready"] == worker.start
            for number in self._group.numbers
        )

    @property
    def processes(self) -> list[Any]:
        """The worker processes of now, by number: those of multiprocessing."""
        return [worker.process for _, worker in sorted(self._group.workers.items())]

    def bytes_each(self, name: str) -> int:
        """Memory that a worker shares with no other process, or that a slot takes."""
        if name == "n_processes":
            return next((private_bytes(w.pid) for w in self._group.workers.values()), 0)
        schema = self.ring.schema
        return max(self.ring.recent_bytes, 0 if schema is None else schema.bytes)

    # ---- statistics

    def note_start(self) -> None:
        """Counts all that workers have done so far as a part of the start. Called when the first
        batch is delivered."""
        self._at_start = {n: self.ring.report(n) for n in range(self._group.count)}

    @property
    def n_workers(self) -> int:
        """Number of workers, including replacements of dead workers that are still to start."""
        return self._group.wanted

    def statistics(self, seconds: float) -> LoaderStats:
        """Counters of the workers for the last `seconds`. Takes no lock: any thread may call it,
        also while another thread waits for a batch, and after the end."""
        ring, living = self.ring, not self.closed
        now = status.now()
        workers = []
        for number in range(self._group.count):
            worker = self._group.workers.get(number)
            pid = worker.pid if living and worker is not None else 0
            report, before = ring.report(number), self._at_start.get(number)
            if number >= self._group.wanted and worker is None and not report["rows"]:
                continue  # no worker has had it
            lived = min(seconds, now - self._joined[number]) if number in self._joined else seconds
            workers.append(worker_stats(number, pid, report, before, lived, now))
        return LoaderStats(
            workers_are="processes",
            n_workers=self._group.wanted,
            n_prefetch=ring.n_prefetch,
            bytes_written=sum(worker.bytes_written for worker in workers),
            ready=ring.count_ready if living else 0,
            slots=ring.arena.geometry[0] - _SPARES,
            calls=ring.calls,
            ready_sum=ring.ready_sum,
            spills=self.spilled_rows,
            copied_out=self.copied_out,
            retired=ring.slots["retired"],
            deaths=self.restarts + self._group.hung_starts,
            timeouts=0 if self._timeouts is None else self._timeouts.n_ended,
            hedged=ring.hedged[0],
            won=ring.hedged[1],
            abandoned=sum(w.is_abandoned for w in list(self._group.workers.values())),
            replacements=self.replacements,
            workers=tuple(workers),
        )

    # ---- deaths

    def _start_missing(self) -> None:
        numbers = self._group.numbers
        missing = [number for number in numbers if number not in self._group.workers]
        if missing:
            self.is_starting = self.needs_check = True
            if self._retries:  # it may have another number than the one before
                self._engage()
            for number in missing:
                self._group.start(number)
            self._group.await_starts()
        elif not numbers and all(w.is_abandoned for w in self._group.workers.values()):
            raise WorkerDiedError(
                f"no worker process is left: {len(self._group.workers)} of them take longer than "
                "dataset_timeout, and SIGKILL does not end them. Likely causes: a file system that "
                "does not answer, or a frozen control group"
            )
        elif self._group.wants_spare and self.is_steady():
            self._group.start_spare()

    def check(self) -> None:
        """Called at each `next()`, also while it does not wait, where `needs_check`."""
        self._end_spinning()
        if self.ring.ready():
            self._lift_limits()
        if self.is_starting:
            self._check_starts()
        self.needs_check = bool(
            self.is_starting or self._retries or self._is_limiting or self._spin_end
        )
        if self._retries and self._timeouts is not None and self._timeouts.is_due():
            self._recover_dead()
            self._timeouts.check("the next batch")
            self._take_from_ended()
            self._start_missing()

    def _check_starts(self) -> None:
        """Replaces workers that hang in their start, or before their first row. While the other
        workers keep up, `next()` does not wait, and would not notice that one is missing."""
        now = status.now()
        if now < self._next_check:
            return
        pause = self._group.watch_starts()
        self.is_starting, self._next_check = pause > 0, now + pause
        self._recover_dead()
        self._start_missing()

    def _recover_dead(self) -> None:
        for worker in self._group.dead():
            self._recover(worker)

    def _recover(self, worker: WorkerProcess) -> None:
        """Gives back the rows that a dead worker held, and frees its number for another."""
        # A worker that a thread starts after the end of the main module may die of that.
        shutdown.block_if_exiting(self._lock)
        self.ring.fast_path_ok = False
        ring = self.ring
        was_ready = ring.report(worker.number)["ready"] == worker.start
        note = ring.start_error(worker.number) if was_ready else b""
        last = Exit(worker.pid, worker.exit_reason())
        cause = worker.overrun or last
        losses = ring.losses(worker.number)
        suspects = [loss for loss in losses if loss[1] >= 0]
        while losses_left := ring.losses(worker.number):
            self._give_back(worker, losses_left, cause, len(suspects))
        ring.rewind(worker.number)
        if len(suspects) > 1 and not worker.hang:
            ring.offer_singly()
        self._group.dismiss(worker)
        ring.ring_all()
        if worker.hang:
            return  # `WorkerGroup` has ended and counted it
        steps = self.job.loading
        if self.job.worker_init is not None:
            steps += f" or {next(iter(self.job.names))}"
        if (failure := load_start_error(note, steps)) is not None:
            self.close()
            reraise(failure)
        if was_ready:
            self._slow_starts.pop(worker.number, None)
        if worker.overrun is not None:
            if not was_ready:
                self._count_slow_start(worker.number, worker.overrun)
            return
        leaves = (self.job.claims or worker.leaves) and not losses
        # Where the kernel reaps the program's children (SIGCHLD ignored), the status is unknown.
        planned = leaves and (last.reason == LEFT or (last.reason == UNKNOWN_END and was_ready))
        self.restarts += not planned
        self.replacements += planned and worker.number in self._group.numbers
        if losses or planned or not self._crash_counts.count_idle(self._group.wanted):
            return
        when = "without a row" if was_ready else "before they have loaded the dataset"
        error = WorkerDiedError(
            f"worker processes die again and again {when}; the last one, {last.pid}, "
            f"{last.reason}. "
            "Likely causes: out of memory, or a crash while the main module or the dataset is "
            f"imported; under {self._context}='spawn' or 'forkserver' the main module needs an "
            "if __name__ == '__main__' guard"
        )
        error.pid, error.exit_reason = last
        raise error

    def _give_back(
        self,
        worker: WorkerProcess,
        losses: list[tuple[int, int, int]],
        end: Exit | Overrun,
        suspects: int,
        is_dead: bool = True,
    ) -> None:
        for slot, row, q in losses:
            is_poison = self._is_poison(worker, slot, row, q, end, suspects)
            self.ring.give_back(worker.number, slot, row, q, is_poison, is_dead)

    def _is_poison(
        self, worker: WorkerProcess, slot: int, row: int, q: int, end: Exit | Overrun, suspects: int
    ) -> bool:
        """Counts a death for the one index, or finish, that must have caused it."""
        if worker.hang:
            return False  # the fork has caused it
        plan = next((s for s in self.ring.scheduled if s.q == q and s.slot == slot), None)
        if plan is None:
            return False  # of a batch that was reset or moved
        index: Any = int(plan.indices[row]) if row >= 0 and suspects == 1 else None
        step = index if row >= 0 else status.FINISHING
        if isinstance(end, Overrun) and step != end.step:
            return False  # it was ended for something else
        if index is not None and plan.keys is not None:
            index = repr(plan.keys[row])
        return self._crash_counts.count(q, row, index, worker.start, end)

    def _count_slow_start(self, number: int, overrun: Overrun) -> None:
        """Notes that a worker was ended before it had loaded the dataset."""
        attempts = self._slow_starts[number] = self._slow_starts.get(number, 0) + 1
        if attempts <= self._n_retries:
            return
        del self._slow_starts[number]
        raise DatasetTimeoutError.of(
            f"worker processes do not begin to work: {step_text(overrun.step)} for longer than "
            f"dataset_timeout={overrun.limit} s allows, {attempts} times. Raise dataset_timeout: "
            "it limits how long a worker loads the dataset, too.",
            None,
            overrun.seconds,
            attempts,
            overrun.stack,
        )

    def _take_from_ended(self) -> None:
        """Has other workers fetch at once the rows of workers that took too long. Rows that these
        own stay theirs until they end; if SIGKILL does not end them, their batches move to
        other slots."""
        for worker in list(self._group.workers.values()):
            if worker.overrun is None:
                continue
            if worker.is_dead():
                self._recover(worker)
                continue
            losses = self.ring.losses(worker.number)
            suspects = [loss for loss in losses if loss[1] >= 0]
            self._give_back(worker, losses, worker.overrun, len(suspects), is_dead=False)
            if self.ring.losses(worker.number) != losses:
                self.ring.fast_path_ok = False
                if len(suspects) > 1:
                    self.ring.offer_singly()
                self.ring.restore_hints()
            if status.now() < worker.ended + UNKILLABLE_SECONDS:
                continue
            if not worker.is_abandoned:
                worker.abandon()
            losses = self.ring.losses(worker.number)
            for plan in list(self.ring.scheduled):
                rows = [row for slot, row, q in losses if q == plan.q and slot == plan.slot]
                if rows:
                    self.ring.fast_path_ok = False
                    overrun = worker.overrun
                    given_up = [
                        row
                        for row in rows
                        if self._is_poison(worker, plan.slot, row, plan.q, overrun, len(suspects))
                    ]
                    self.ring.move(plan, [row for row in given_up if row >= 0])

    # ---- reset, end

    def interrupt(self) -> None:
        """Makes a `wait` in another thread give up."""
        self.closed = True
        self.ring.interrupt()

    def close(self) -> None:
        """Ends the workers and closes the descriptors. The memory stays while a batch lives."""
        self.closed = True
        # Only once: a second call while the interpreter ends would find modules emptied.
        if self._released or not self.is_own:
            return
        self._end_spinning()
        self._group.close()
        self.ring.close()
        self._at_exit.cancel()
        self._released = True

    def end_workers(self) -> None:
        """When the interpreter exits. A daemon thread may still be in `next()`: the ring and its
        descriptors stay until the process ends."""
        if not self._released and self.is_own:
            self._group.close()
            self._released = True
