"""Threads that work on the batches of one iterator.

They are daemon threads, since a thread cannot be ended from outside: an example that hangs would
keep the program from ending. An exit handler ends all threads that do not hang, before the
interpreter is taken down. concurrent.futures would wait for its threads at exit without a limit.

If an interrupt (Ctrl-C) loses a wake-up, the next call of `Threads.wake` makes up for it.
"""

from __future__ import annotations

import atexit
import contextlib
import operator
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fastiter._stats.stats import WorkerStats
from fastiter._stats.timer import now
from fastiter._threads.batch_buffer import Position
from fastiter._util import shutdown
from fastiter._util.concurrency import WeakObjects, start_thread

if TYPE_CHECKING:
    from fastiter._ring.parent import Event
    from fastiter._threads.tasks import BatchTask

# Of a wait: a signal just before it does not interrupt it.
_CHECK_SECONDS = 0.25
_JOIN_SECONDS = 1.0  # that finalize() and exit wait for threads that fetch an example

_living: WeakObjects[Threads] = WeakObjects()


class ThreadCounters:
    """Counters of one thread, and then of the thread that replaces it."""

    def __init__(self) -> None:
        self.rows = 0
        self.fetch = 0  # ns
        self.finish = 0  # ns
        self.since = 0  # ns, the start of the present fetch or finish; 0 between them
        self.cpu = self.delay = 0.0  # seconds on a CPU, or ready without one, of ended threads
        self.at_start = (0.0, 0.0, 0.0, 0.0)
        self.native_id = 0  # of the running thread
        self.events: deque[Event] | None = None  # while a trace is recorded

    def stats(self, number: int, seconds: float) -> WorkerStats:
        """The counters as those of a worker in the last ``seconds``."""
        since = self.since
        present = (now() - since) / 1e9 if since else 0.0
        fetch, finish, cpu, delay = map(operator.sub, self._times(), self.at_start)
        return WorkerStats(
            number=number,
            pid=0,
            rows=self.rows,
            bytes_written=0,
            spills=0,
            seconds=seconds,
            busy_seconds=fetch + finish + present,
            fetch_seconds=fetch,
            write_seconds=0.0,
            finish_seconds=finish,
            cpu_seconds=cpu,
            cpu_wait_seconds=delay,
        )

    def record(self, kind: str, began: int, ended: int, index: int = 0, rows: int = 0) -> None:
        """Note an event, if a trace is recorded."""
        events = self.events
        if events is not None:
            events.append((kind, began, ended - began, index, rows, 0))

    def end(self) -> None:
        """Called in the thread when it ends."""
        cpu, delay = thread_times(self.native_id)
        self.native_id = 0
        self.cpu += cpu
        self.delay += delay

    def note_start(self) -> None:
        """The first batch was delivered: the time spent on it belongs to the start."""
        self.at_start = self._times()

    def _times(self) -> tuple[float, float, float, float]:
        cpu, delay = thread_times(self.native_id)
        return self.fetch / 1e9, self.finish / 1e9, self.cpu + cpu, self.delay + delay


class Claim(NamedTuple):
    """The work of a thread: rows of a task, then perhaps its converter (`at.row` is -1)."""

    task: BatchTask
    start: int
    stop: int
    at: Position
    thread: threading.Thread
    counters: ThreadCounters

    @property
    def what(self) -> str:
        if self.at.row < 0:
            return "the converter"
        return f"dataset index {self.task.indices[self.at.row]}"


def thread_times(native_id: int) -> tuple[float, float]:
    """Seconds that a thread of this process was on a CPU, and that it waited for one; 0 if
    unknown."""
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/self/task/{native_id}/schedstat") as file:
            cpu, delay, _ = map(int, file.read().split())
        return cpu / 1e9, delay / 1e9
    return 0.0, 0.0


class Threads:
    """Threads, one for each of the counters, that share each task: the oldest that has rows left.

    Does not refer to the iterator, which could not be deleted while the threads run; ``lock`` is
    the iterator's, which the caller holds. Where they are ``is_limited``, a claim may be taken away
    from a thread that hangs: another thread takes its place.
    """

    def __init__(
        self, all_counters: Sequence[ThreadCounters], lock: Any, is_limited: bool = False
    ) -> None:
        self.pid = os.getpid()  #: the process that has the threads; a forked child has none
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._tasks: deque[BatchTask] = deque()  # those with rows to take, the oldest one first
        self._n_idle = 0
        # An item for each idle thread that has to look for work. A garbage collection or a signal
        # handler may call its put() in the middle of any other call.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closed = False
        self.error: BaseException | None = None  #: of a thread's own work, with whose rows it ended
        self._is_limited = is_limited
        self._count = len(all_counters)
        self._claims: dict[threading.Thread, Claim] = {}  # where they are limited
        self._abandoned: list[threading.Thread] = []
        _living.add(self)
        shutdown.block_if_exiting(lock)  # nothing would end threads that begin later
        try:
            for counters in all_counters:
                self._start(counters)
        except BaseException:
            shutdown.block_if_exiting(lock)  # at the exit, start() raises on CPython 3.12
            self.close()
            raise

    def _start(self, counters: ThreadCounters, lost: Claim | None = None) -> None:
        number = len(self._threads) + len(self._abandoned)
        thread = threading.Thread(
            target=self._run, args=(counters, lost), name=f"fastiter-{number}", daemon=True
        )
        start_thread(thread)
        self._threads.append(thread)

    # -- threads that hang, by the thread that waits -------------------------------------------

    def claims(self) -> list[Claim]:
        with self._lock:
            return list(self._claims.values())

    @property
    def n_abandoned(self) -> int:
        return sum(thread.is_alive() for thread in list(self._abandoned))

    def may_replace(self) -> bool:
        """Whether one more thread may be left behind."""
        return self.n_abandoned < self._count

    def replace(self, claim: Claim) -> None:
        """Start a thread in the place of one whose claim was taken away. The claim is given back in
        that thread, where no signal handler runs; twice does no harm."""
        if claim.thread not in self._abandoned:
            self._start(claim.counters, claim)
            self._abandoned.append(claim.thread)
            if claim.thread in self._threads:  # not if its start was interrupted
                self._threads.remove(claim.thread)

    def _give_back(self, lost: Claim) -> bool:
        """False if another thread has done that."""
        with self._lock:
            if self._claims.get(lost.thread) is not lost:
                return False
            del self._claims[lost.thread]
            if lost.task.row_claims is not None:
                lost.task.row_claims.end(lost.thread.ident)
            opens = lost.task.take_back(lost.start, lost.stop, lost.at)
            if lost.task not in self._tasks:
                self._tasks.appendleft(lost.task)
        if opens:
            lost.task.open()
        self.wake()
        return True

    def submit(self, task: BatchTask) -> None:
        """Have the threads work on ``task``, after the tasks submitted before."""
        # Without the lock, which an interrupt might leave locked: nothing else appends.
        self._tasks.append(task)
        self.wake()

    def wake(self) -> None:
        """Have idle threads look for work, if there is any; also after an interrupted `submit`."""
        if self._tasks:
            for _ in range(self._n_idle - self._bell.qsize()):
                self._bell.put(None)

    def close(self) -> None:
        """Let each thread end after the rows that it has taken. Does not block.

        Takes no lock: a garbage collection may call it in a thread that holds the lock.
        """
        self._is_closed = True
        for _ in range(len(self._threads) + 1):  # one more may have started before an exception
            self._bell.put(None)

    def join(self, timeout: float = _JOIN_SECONDS) -> None:
        """Wait for the threads to end, ``timeout`` seconds in total."""
        if self.pid != os.getpid():
            return
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def check(self) -> float:
        """Raise the error by which a thread has ended; return seconds until the next check."""
        if self.error is not None:
            raise self.error
        return _CHECK_SECONDS

    # -- in the threads ------------------------------------------------------------------------

    def _run(self, counters: ThreadCounters, lost: Claim | None) -> None:
        """The function of each thread. ``lost`` is what the one before it hangs in."""
        try:
            self._work(counters, lost)
        except BaseException as error:  # as a rule for want of memory: here only what needs none
            self.error = error

    def _work(self, counters: ThreadCounters, lost: Claim | None) -> None:
        if lost is not None and not self._give_back(lost):
            return
        del lost
        counters.native_id = threading.get_native_id()
        while (claim := self._claim(counters)) is not None:
            task, start, stop, at = claim
            del claim
            counters.since = began = now()
            failure = task.run(start, stop, at)
            if at.is_lost:
                return
            at.end()
            ended = now()
            counters.fetch += ended - began
            counters.rows += stop - start
            if counters.events is not None and stop > start:
                counters.record("fetch", began, ended, int(task.indices[start]), stop - start)
            with self._lock:
                is_last = task.note(start, stop, failure, ended - began)
            if is_last:
                counters.since = ended
                task.finish(at)
                if at.is_lost:
                    return
                finished = now()
                counters.finish += finished - ended
                counters.record("finish", ended, finished, rows=len(task.indices))
                # Last, so that the thread that takes the batch finds its finish counted and traced.
                task.open()
            counters.since = 0
            if task.row_claims is not None:
                task.row_claims.end(None)
            if self._is_limited:
                with self._lock:
                    self._claims.pop(threading.current_thread(), None)
            del task, failure  # so that no batch is kept during the wait for the next one
        counters.end()

    def _claim(self, counters: ThreadCounters) -> tuple[BatchTask, int, int, Position] | None:
        """Wait for work; None after `close`."""
        while not self._is_closed:
            with self._lock:
                rows = self._take()
                if rows is not None:
                    task, start, stop = rows
                    at = Position(self._is_limited)
                    if self._is_limited:
                        thread = threading.current_thread()
                        self._claims[thread] = Claim(task, start, stop, at, thread, counters)
                    if task.row_claims is not None:
                        task.row_claims.begin(task.indices[start:stop])
                    return task, start, stop, at
                self._n_idle += 1
            since = now()
            self._bell.get()
            counters.record("wait", since, now())
            with self._lock:
                self._n_idle -= 1
        return None

    def _take(self) -> tuple[BatchTask, int, int] | None:
        while self._tasks:
            task = self._tasks[0]
            rows = task.take(len(self._tasks), self._n_idle + 1)
            if rows is not None:
                return task, *rows
            self._tasks.popleft()
        return None


@atexit.register
def _close_all() -> None:
    shutdown.begin()
    living = [threads for threads in _living if threads.pid == os.getpid()]
    for threads in living:
        threads.close()
    deadline = time.monotonic() + _JOIN_SECONDS
    for threads in living:
        threads.join(max(0.0, deadline - time.monotonic()))
