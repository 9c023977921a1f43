"""The worker processes of one iterator: how they start, die, and end."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence

import numpy as np

from fastiter._clib import status
from fastiter._ring.arena import Arena
from fastiter._ring.lease import begin_anew, fork_begins, fork_ended
from fastiter._ring.parent import ParentRing
from fastiter._util import fds
from fastiter._util.concurrency import WeakObjects
from fastiter._workers import forkserver, start_method, thread_limits
from fastiter._workers.main import Descriptor, Job, WorkerArguments
from fastiter._workers.process import (
    NO_STACK,
    WorkerProcess,
    own_frames,
    require_directory,
    stacks_of,
    start_process,
    wait_for,
)
from fastiter._workers.shared_object import Later, Shared, image_of, instead_of
from fastiter._workers.start_method import Start
from fastiter.errors import WorkerDiedError

logger = logging.getLogger("fastiter")

#: Seconds that a forked worker may wait in its own start, before any code of the user runs; three
#: times as long in each further attempt. The start imports nothing and takes some milliseconds. A
#: worker waits there only for a lock that another thread of the program held at the fork. Time does
#: not count in which it runs, is ready to run, or waits for a disk or for memory.
HUNG_SECONDS = 0.1
LOOK_SECONDS = 0.5  # the longest time between two looks at the workers
_MOST_FORKS = 4  # forks in a row of one worker that may wait for a lock that nothing releases
_HUNG_STACK_SECONDS = 0.5  # for a worker to write its stack, under load; not all can
_STARTS_SECONDS = 2.0  # for all that `await_starts` waits for
_STARTS_PAUSE = 0.002
#: Seconds of the start of any other worker, with all that it imports, until the log tells of it.
IMPORT_SECONDS = 60.0

_TERM_GRACE_SECONDS = 0.5  # for a worker to end by SIGTERM
_DESCRIPTORS_OF_A_START = 16  # more than multiprocessing opens on the way, in any start method
SLOW_IMAGE_SECONDS = 2.0  # to pickle the dataset and write its image: the log tells of more
_has_told_of_time = False
_KILL_SECONDS = 3.0  # for the kernel to end what was killed

_rings: WeakObjects[ParentRing] = WeakObjects()


# These hooks look at no ring: another thread may be changing it. A child of the program keeps the
# batches that the program holds. A worker reads its own dataset only, and a batch in there is alive
# in this process, too.
os.register_at_fork(before=fork_begins, after_in_parent=fork_ended, after_in_child=begin_anew)


class WorkerGroup:
    """Starts, watches and ends the workers of a ring: `wanted` of them, at most `count`. As many as
    `spares` can be abandoned, and replaced by others with higher numbers.

    With `spares`, and unless workers are forked, there is a spare process: it has loaded the
    dataset, waits, and takes the number of the next worker that has ended. Until then it has the
    number `count` for the reports of its start. Nothing waits for it: if it has died, or is not
    ready, another process is started as without it."""

    _life = (-1, -1)  # the parent-death pipe

    def __init__(
        self,
        ring: ParentRing,
        count: int,
        job: Job,
        start: Start,
        wanted: int | None = None,
        spares: int = 0,
    ):
        self.count = count + spares  # numbers
        self.most = count
        self.wanted = count if wanted is None else wanted  # may be set, see `Pool.set_workers`
        self.workers: dict[int, WorkerProcess] = {}  # by number
        self._spare: WorkerProcess | None = None
        self.has_spare = spares > 0 and ring.bell_pipe(0) < 0  # it could not get another's bell
        self._ring = ring
        self._job = job
        self.helper = job.helper
        self._start = start
        self._may_change = start.is_safe  # from a fork to the fork server
        self.hung_starts = 0
        self._hung = [0] * self.count  # of each worker, how many in a row before a row
        self._last_hung: WorkerProcess | None = None
        self._beside = ""  # the threads beside which the last fork was repeated
        self._starts = 0
        self._image: Shared[Job] | None = None
        self._image_seconds = 0.0  # that it took to make
        # From the states of the program's generators, which do not advance; repr would take ms.
        states = random.getstate(), np.random.get_state(legacy=False)
        self._seed = hashlib.blake2b(pickle.dumps(states), digest_size=32).digest()
        self._self_pidfd = -1
        self._workers_own: set[int] = set()
        self._pid = os.getpid()

    def __del__(self) -> None:
        """An interrupt may come when it is open, and nothing that would close it has it yet."""
        if self._life[0] >= 0 and self._pid == os.getpid():
            with status.HandlersDeferred():
                self.close()

    # ---- start

    def open(self, lifts: bool = True) -> None:
        """Opens what all workers share, and starts them all. `lifts` as in `ready_to_fork`.

        Unless they are forked, they wait at the start barrier until the dataset's image is written:
        writing it, and the imports meanwhile, take most of the time of a start.
        """
        start_method.refuse_daemons(self._start.caller)
        _rings.add(self._ring)
        try:
            self._open(lifts)
        except BaseException:
            with status.HandlersDeferred():  # a second Ctrl-C must not keep this from its end
                self.close()
            raise

    def _open(self, lifts: bool) -> None:
        with status.HandlersDeferred(), fds.lock():
            self._open_shared()
        start_method.require_guard(self._start)
        if self._method != "fork":
            self._prepare(self._start)
        elif not self._start.is_safe:
            start_method.warn_of_fork(self._job.names.values(), self._start.caller)
        with self._ready(lifts):
            for number in self.numbers:
                worker = self._launch(number)
                if self._method == "fork":  # it waits for nothing
                    self._allow_start(worker)
        if self._method == "spawn" and self._image is not None:
            began = status.now()
            self._image.write()
            self._tell_of_time(self._image, status.now() - began)
        if self._method != "fork":
            for worker in list(self.workers.values()):
                self._allow_start(worker)
        self.await_starts()

    def _open_shared(self) -> None:
        fds.require(_DESCRIPTORS_OF_A_START, self._ring.arena.fd)  # before others find none
        self._life = fds.pipe()
        with contextlib.suppress(AttributeError, OSError):
            self._self_pidfd = fds.above_stdio(os.pidfd_open(os.getpid()))
        self._workers_own = {self._life[0], self._self_pidfd}
        self._workers_own |= self._ring.arena.descriptors
        fds.held.update(self._workers_own, (self._life[1],))

    def _tell_of_time(self, image: Shared[Job], seconds: float) -> None:
        """Logs, once a program, that an image takes long to make."""
        global _has_told_of_time
        self._image_seconds += seconds
        if self._image_seconds > SLOW_IMAGE_SECONDS and not _has_told_of_time:
            _has_told_of_time = True
            logger.warning(
                "%s, of %.1f MiB, took %.1f s to make, as it does whenever workers start, and "
                "each worker loads it. Let workers live longer (persistent workers), keep the data "
                "in arrays or files, or pass %s='fork', which needs no image",
                self._job.image,
                image.nbytes / 2**20,
                self._image_seconds,
                self._start.caller.context,
            )

    @property
    def numbers(self) -> list[int]:
        """Numbers of the workers that are wanted, those first that workers have. A number is used
        again when the process that had it has ended."""
        living, unused = [], []
        for number in range(self.count):
            worker = self.workers.get(number)
            if worker is None:
                unused.append(number)
            elif not (worker.leaves or worker.is_stuck):
                living.append(number)
        return sorted((living + unused)[: self.wanted])

    @property
    def _method(self) -> str:
        return self._start.method

    def _prepare(self, start: Start) -> None:
        """Makes the image of the job, runs the fork server, and uses `start` from now on. Where
        the fork server only took the place of a fork, and cannot, workers are forked after all."""
        image = None
        try:
            require_directory(start)
            began = status.now()
            image = image_of(self._job, start.caller)
            seconds = status.now() - began
            if start.method == "forkserver":
                # Its workers have little to import once the server has.
                forkserver.ensure_running(image.modules())
                began = status.now()
                image.write()
                seconds += status.now() - began
            self._image_seconds = 0.0
            self._tell_of_time(image, seconds)
        except Exception as error:
            if image is not None:
                image.close()
            no_room = not self._starts and isinstance(error, (MemoryError, OSError))
            if start.fallback is None or no_room:
                raise
            self._may_change = False
            why = f"the fork server cannot start them ({error})"
            self._start = Start(start.fallback, start.caller, True, why).now()
        else:
            self._start, self._image = start, image

    def start(self, number: int) -> None:
        """Starts a worker with this number, which no process has now. `WorkerDiedError` if its
        forks hung again and again, and no fork server may take their place."""
        if self._may_change:
            # A fork may have become unsafe: by threads, or CUDA, that the program uses since.
            is_hung = max(self._hung) >= _MOST_FORKS
            start = self._start.without_fork() if is_hung else self._start.now()
            if start.method != self._method:
                self._prepare(start)
        if self._hung[number] >= _MOST_FORKS and self._method == "fork":
            self._hung[number] = 0
            raise self._hung_error()
        worker = self._engage_spare(number)
        if worker is None:
            with self._ready():
                worker = self._launch(number)
        self._allow_start(worker)
        worker.tell_number()

    def _hung_error(self) -> WorkerDiedError:
        caller, last = self._start.caller, self._last_hung
        assert last is not None
        error = WorkerDiedError(
            f"{_MOST_FORKS} worker processes in a row were forked and then waited for a lock "
            "that another thread of this program held at that moment. In a forked process no "
            f"thread releases it. Threads at the last fork: {self._beside or 'unknown'}. Pass "
            f"{caller.context}={start_method.SAFE!r} (for a fork server; the dataset has to "
            "pickle, the main module needs an if __name__ == '__main__' guard), or start the "
            f"workers before there are other threads, by {caller.early}. Where the last one "
            f"waited:\n{last.hang}"
        )
        error.pid, error.exit_reason = last.pid, "was killed by SIGKILL"
        return error

    @property
    def wants_spare(self) -> bool:
        """Whether to `start_spare`, once all workers have loaded the dataset."""
        is_there = self._spare is not None and self._spare.allowed  # else its start was interrupted
        return self.has_spare and not is_there and self._method != "fork"

    def start_spare(self) -> None:
        """Starts the process that replaces the next worker that ends."""
        ends: list[int] = []
        try:
            if self._spare is None:
                self._open_pipe(ends, 1)
                self._launch(self.count, ends)
            self._allow_start(self._spare)  # type: ignore[arg-type]
        except OSError:
            self.has_spare = False  # no room for it: workers are replaced without
        finally:
            with status.HandlersDeferred():
                fds.close(ends if self._spare is None else ends[:1])

    def _engage_spare(self, number: int) -> WorkerProcess | None:
        """Gives the spare a number that no process has now; None if it is not ready."""
        spare = self._spare
        if spare is None or not spare.is_dead():
            if spare is None or self._ring.report(self.count)["ready"] != spare.start:
                return None
            self._ring.clear_stat(number)
            with status.HandlersDeferred():  # it is the spare, or a worker
                spare.number, spare.born = number, status.now()
                self.workers[number], self._spare = spare, None
        else:
            with status.HandlersDeferred():
                spare.release()
                self._spare = None
        return self.workers.get(number)

    def _allow_start(self, worker: WorkerProcess) -> None:
        self._ring.allow_start(worker.number, worker.start)
        worker.allowed = status.now()

    def _ready(self, lifts: bool = True) -> contextlib.AbstractContextManager[None]:
        if self._method != "fork":
            return contextlib.nullcontext()
        return thread_limits.ready_to_fork(self.most, lifts=lifts)

    @staticmethod
    def _open_pipe(ends: list[int], own: int) -> None:
        """Opens a pipe, of which the end ``own`` is this process' alone."""
        with status.HandlersDeferred(), fds.lock():
            ends += fds.pipe()
            fds.held.add(ends[own])

    def _launch(self, number: int, number_pipe: Sequence[int] = (-1, -1)) -> WorkerProcess:
        """Starts a process, which waits at the start barrier. With a pipe it is the spare."""
        stacks: list[int] = []
        # An interrupt would lose the process, for which its caller then waits. The wait for a fork
        # server may be long: a process of it that is lost ends at its start barrier.
        has_server = self._method == "forkserver"
        with contextlib.nullcontext() if has_server else status.HandlersDeferred():
            try:
                self._open_pipe(stacks, 0)
                os.set_blocking(stacks[0], False)
                os.set_blocking(stacks[1], False)
                return self._launch_with(number, stacks[0], stacks[1], number_pipe)
            except BaseException:
                known = self._spare if number == self.count else self.workers.get(number)
                if known is None or known.stacks not in stacks:  # else interrupted when started
                    fds.close(stacks[:1])
                raise
            finally:
                fds.close(stacks[1:])

    def _launch_with(
        self, number: int, read_stacks: int, write_stacks: int, number_pipe: Sequence[int]
    ) -> WorkerProcess:
        self._starts += 1
        is_spare, forks = number == self.count, self._method == "fork"
        arena = self._ring.arena
        is_main = threading.current_thread() is threading.main_thread()
        arguments = WorkerArguments(
            number=number,
            workers=self.most,
            start=self._starts,
            arena=arena if forks else None,
            geometry=arena.geometry,
            memory=Descriptor(arena.fd),
            event=Descriptor(arena.event_fd),
            bell_pipe=Descriptor(-1 if is_spare else self._ring.bell_pipe(number)),
            number_pipe=Descriptor(number_pipe[0]),
            parent_death_pipe=Descriptor(self._life[0]),
            parent_pidfd=Descriptor(self._self_pidfd),
            stacks=Descriptor(write_stacks),
            parent=os.getpid() if is_main and self._method != "forkserver" else 0,
            inherited=fds.held if forks else set(),
            own=self._workers_own if forks else set(),
            others=self._unused_arenas() if forks else (),
            job=Later(self._job if self._image is None else self._image),
            seed=self._seed,
            advice=instead_of(self._start.caller),
        )
        self._ring.clear_stat(number)
        if not forks:
            require_directory(self._start)
        fds.require(_DESCRIPTORS_OF_A_START, self._life[0])
        is_beside = forks and thread_limits.has_threads()
        if forks and self._hung[number]:
            self._beside = thread_limits.names_of_threads()
        try:
            process = start_process(self._method, arguments)
        except (EOFError, ConnectionError):
            # The fork server has died: its limit of descriptors was too low, or a module that it
            # imported has ended it. The next start begins another server.
            forkserver.give_up(_KILL_SECONDS)
            try:
                process = start_process(self._method, arguments)
            except (EOFError, ConnectionError) as error:
                raise ConnectionError(
                    f"the fork server has not started a worker, twice ({error}). Likely causes: it "
                    "was killed, there is no memory, or it may start no process (RLIMIT_NPROC). "
                    f"{self._start.caller.context}='spawn' starts workers without it"
                ) from error
        worker = WorkerProcess(number, self._starts, process, read_stacks, self._method)
        worker.is_beside, worker.done_before = is_beside, self._done(number)
        if is_spare:
            self._spare, worker.number_pipe = worker, number_pipe[1]
        else:
            self.workers[number] = worker
        worker.open_pidfd()  # after the group knows it: an interrupt loses no descriptor
        return worker

    def _unused_arenas(self) -> tuple[Arena, ...]:
        """Arenas of other iterators that a forked worker has no use for. A dataset may well be
        made of another iterator's batches: those arenas stay."""
        return tuple(ring.arena for ring in _rings if ring is not self._ring and not ring.has_views)

    def reopen_barrier(self) -> None:
        """Opens the start barrier again: the word that says so may have been overwritten."""
        for worker in list(self.workers.values()):
            self._ring.allow_start(worker.number, worker.start)
            worker.tell_number()  # an interrupt may have come before

    # ---- watch

    def descriptors(self) -> list[int]:
        """The descriptors that become readable when a worker dies."""
        found = []
        for worker in list(self.workers.values()):
            if worker.pidfd >= 0:
                found.append(worker.pidfd)
            if not worker.proven:
                worker.proven = self._ring.report(worker.number)["ready"] == worker.start
            if (worker.pidfd < 0 or not worker.proven) and worker.has_sentinel:
                found.append(worker.process.sentinel)
        return found

    def dead(self) -> list[WorkerProcess]:
        """The workers whose death is known."""
        return [worker for worker in list(self.workers.values()) if self._has_died(worker)]

    def _has_died(self, worker: WorkerProcess) -> bool:
        if worker.is_dead():
            return True
        if worker.proven or worker.process.exitcode is None:
            return False
        # The fork server says that it ended, and it never passed the start barrier: it owns no row,
        # and the pidfd may be that of another process.
        return self._ring.report(worker.number)["ready"] != worker.start

    def await_starts(self) -> None:
        """Waits for the own starts of forked workers where one may well hang, and replaces those.

        That is beside threads that may draw from torch's default generator: `free_lock_at_fork`
        leaves them a moment in which they take its lock, and the next call of the program, which
        would look after the starts, may come late. A start takes some milliseconds.
        """
        if "torch" not in sys.modules or threading.active_count() == 1 or self._method != "fork":
            return
        end = status.now() + _STARTS_SECONDS
        while not all(map(self._has_begun, self.workers.values())) and status.now() < end:
            self.watch_starts()
            time.sleep(_STARTS_PAUSE)

    def watch_starts(self) -> float:
        """Ends forked workers that wait for a lock which another thread held at the fork. Returns
        seconds until the next look, 0 if no worker is left to watch. Errors are those of `start`.

        In its own start a worker waits for nothing else, so it is ended by its state, and another
        takes its place. Later, code of the user runs, which may wait for anything: it is ended only
        if `WorkerProcess.waits_for_ever`, and found by `dead` with its `hang`. Where the job does
        not repeat what is lost, workers are watched until their first row is done.
        """
        pauses, hung = [], []
        for worker in list(self.workers.values()):
            if self._has_begun(worker):
                is_new = not self._has_done(worker)
                if worker.is_beside:
                    pauses += [LOOK_SECONDS] * is_new
                    if (is_new or self._job.repeats) and worker.waits_for_ever():
                        hung.append(worker)
                continue
            if not worker.allowed:  # an interrupt came before
                self._allow_start(worker)
            seconds = status.now() - worker.allowed
            limit = HUNG_SECONDS * 3 ** self._hung[worker.number]
            pauses.append(min(limit, LOOK_SECONDS) if worker.is_forked else LOOK_SECONDS)
            if worker.is_forked and worker.waited_in_start() > limit:
                # Asked after that look: else it may have begun, and have waited for work.
                if not self._has_begun(worker) and not worker.is_dead():
                    hung.append(worker)
            elif seconds > IMPORT_SECONDS and not worker.is_late:
                worker.is_late = True
                logger.warning(
                    "worker process %d has been starting for %.0f s: it imports the main module",
                    worker.pid,
                    seconds,
                )
        if hung:
            self._end_hung(hung)
        return min(pauses, default=0.0)

    def _end_hung(self, hung: list[WorkerProcess]) -> None:
        stacks = stacks_of(hung, _HUNG_STACK_SECONDS)
        for worker in hung:
            worker.send(signal.SIGKILL)
        wait_for(hung, _KILL_SECONDS)
        starting = []
        for worker in hung:
            if not worker.has_begun and self._has_begun(worker):
                continue  # it began at the last moment, and has died as any other
            worker.hang = own_frames(stacks[worker.number])
            if not worker.has_begun and worker.hang.startswith(NO_STACK):
                worker.hang = "  unknown: in a handler that libraries run after a fork"
            self._last_hung = worker
            self.hung_starts += 1
            self._hung[worker.number] += 1
            logger.info(
                "worker process %d waited for a lock that another thread of this program held when "
                "the worker was forked. It was ended, and another takes its place. Its Python "
                "stack:\n%s",
                worker.pid,
                worker.hang,
            )
            if not worker.has_begun:
                self.dismiss(worker)
                starting.append(worker.number)
        for number in starting:
            self.start(number)

    def _has_begun(self, worker: WorkerProcess) -> bool:
        """Whether the worker's own start is over, and code of the user runs."""
        if not worker.has_begun:
            report = self._ring.report(worker.number)
            is_in = report["pid"] == worker.pid and report["since"] != 0
            worker.has_begun = report["ready"] == worker.start or (
                is_in and report["index"] != status.STARTING
            )
        return worker.has_begun

    def _has_done(self, worker: WorkerProcess) -> bool:
        if worker.done_before >= 0 and self._done(worker.number) != worker.done_before:
            worker.done_before = -1
            self._hung[worker.number] = 0
        return worker.done_before < 0

    def _done(self, number: int) -> int:
        """Rows and ranges that workers with this number have completed."""
        report = self._ring.report(number)
        return report["rows"] + report["claims"]

    # ---- end

    def dismiss(self, worker: WorkerProcess) -> None:
        with status.HandlersDeferred():  # an interrupt would leave its descriptors open
            self.workers.pop(worker.number, None)
            worker.release()

    def close(self) -> None:
        """Ends all workers, hung and stopped ones too, within a few seconds in total."""
        self._ring.stop()
        if self._spare is not None:
            self.workers[self._spare.number] = self._spare
            self._spare = None
        workers = list(self.workers.values())
        for worker in workers:  # one at its start barrier leaves
            self._ring.allow_start(worker.number, self._starts + 1)
            worker.close_number_pipe()
            if worker.is_stuck and not worker.is_abandoned:
                worker.abandon()
        left = wait_for([w for w in workers if not w.is_abandoned], self._job.end_seconds)
        for worker in left:
            worker.send(signal.SIGTERM)
        left = wait_for(left, _TERM_GRACE_SECONDS)
        # As the program's death would: a program that has changed its user may send no signals.
        with status.HandlersDeferred():
            fds.close([self._life[1]])
            self._life = self._life[0], -1
        for worker in left:
            worker.send(signal.SIGKILL)
        for worker in wait_for(left, _KILL_SECONDS):
            worker.abandon()
        # Only now, so that Ctrl-C on the way here leaves something to close again. A garbage
        # collection in here may drop the iterator, which closes too.
        with status.HandlersDeferred():
            for worker in workers:
                if self.workers.pop(worker.number, None) is worker:
                    if worker.is_abandoned and not worker.is_dead():
                        worker.close()
                    else:
                        worker.release()
            with fds.lock():
                fds.held.difference_update(self._workers_own)
                fds.close((*self._life, self._self_pidfd))
            self._life = (-1, -1)
            self._self_pidfd = -1
            self._workers_own = set()
        if self._image is not None:
            self._image.close()
            self._image = None
        thread_limits.own_pools.lift()  # those whose threads had no room beside the workers
