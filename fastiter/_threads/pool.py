"""Threads that work on the batches of one iterator.

They are daemon threads, since one example that hangs would otherwise keep the program from ending:
no thread can be made to end. But none is left to run while the interpreter is taken down, unless
it hangs: an exit handler, which runs while threads still can, ends them. Not concurrent.futures,
which waits for its threads at exit without a limit.

Nothing here is woken by what may be lost: what an interrupt (Ctrl-C) leaves undone, the next call
of `Threads.wake` does.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastiter._stats.stats import WorkerStats
from fastiter._stats.timer import now
from fastiter._util import shutdown
from fastiter._util.concurrency import WeakObjects

if TYPE_CHECKING:
    from fastiter._ring.parent import Event
    from fastiter._threads.tasks import BatchTask
    from fastiter._util.failures import Failure

_JOIN_SECONDS = 1.0  # finalize() and exit wait so long for threads that are amid an example

_living: WeakObjects[Threads] = WeakObjects()


class ThreadCounters:
    """What one thread has done. Another one that takes its number goes on with it."""

    __slots__ = (
        "at_start",
        "cpu",
        "delay",
        "events",
        "fetch",
        "finish",
        "native_id",
        "rows",
        "since",
    )

    def __init__(self) -> None:
        self.rows = 0
        self.fetch = 0  # ns with rows in hand
        self.finish = 0  # ns with the end of a batch in hand
        self.since = 0  # when what is in hand was begun, ns; 0 if nothing is
        self.cpu = self.delay = 0.0  # seconds running, or able to, of threads that have ended
        self.at_start = (0.0, 0.0, 0.0, 0.0)
        self.native_id = 0  # of the running one
        self.events: deque[Event] | None = None  # while a trace is recorded

    def stats(self, number: int, seconds: float) -> WorkerStats:
        """As a worker's, of which so many seconds are known."""
        since = self.since
        under_way = (now() - since) / 1e9 if since else 0.0
        spent = map(operator.sub, self._times(), self.at_start)
        fetch, finish, cpu, delay = spent
        return WorkerStats(
            number=number,
            pid=0,
            rows=self.rows,
            bytes_written=0,
            spills=0,
            seconds=seconds,
            busy_seconds=fetch + finish + under_way,
            fetch_seconds=fetch,
            write_seconds=0.0,
            finish_seconds=finish,
            cpu_seconds=cpu,
            cpu_wait_seconds=delay,
        )

    def record(self, kind: str, began: int, ended: int, index: int = 0, rows: int = 0) -> None:
        """Note an event of a trace, if there is one."""
        events = self.events
        if events is not None:
            events.append((kind, began, ended - began, index, rows, 0))

    def begin(self) -> None:
        """In the thread, when it begins."""
        self.native_id = threading.get_native_id()

    def end(self) -> None:
        """In the thread, when it ends."""
        cpu, delay = _thread_times(self.native_id)
        self.native_id = 0
        self.cpu += cpu
        self.delay += delay

    def note_start(self) -> None:
        """The first batch was delivered: what was done for it belongs to the start."""
        self.at_start = self._times()

    def _times(self) -> tuple[float, float, float, float]:
        cpu, delay = _thread_times(self.native_id)
        return self.fetch / 1e9, self.finish / 1e9, self.cpu + cpu, self.delay + delay


def _thread_times(native_id: int) -> tuple[float, float]:
    """Seconds for which a thread of this process has run, and could have run but had no CPU; 0
    where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        text = Path(f"/proc/self/task/{native_id}/schedstat").read_text()
        cpu, delay, _ = map(int, text.split())
        return cpu / 1e9, delay / 1e9
    return 0.0, 0.0


class _Board:
    """What the threads of one iterator share: it does not keep the iterator alive.

    Parameters
    ----------
    n_threads : int
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._lock = threading.Lock()
        self._tasks: deque[BatchTask] = deque()  # those with rows to take, the oldest one first
        self._n_idle = 0
        # One for each idle thread that shall look for work. Its put() may be called amid any other
        # call, by a garbage collection or a signal handler.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closed = False

    def submit(self, task: BatchTask) -> None:
        # Without the lock, which an interrupt might leave locked: nothing else appends.
        self._tasks.append(task)

    def wake(self) -> None:
        """Have idle threads look for work, if there is any."""
        if self._tasks:
            for _ in range(self._n_idle - self._bell.qsize()):
                self._bell.put(None)

    def close(self) -> None:
        """Let each thread end when it is through with what it has in hand. Takes no lock: a
        garbage collection may call it in a thread that holds the lock."""
        self._is_closed = True
        for _ in range(self._n_threads):
            self._bell.put(None)

    def work(self, counters: ThreadCounters) -> None:
        """What each thread runs."""
        counters.begin()
        while (claim := self._claim(counters)) is not None:
            task, start, stop = claim
            del claim
            counters.since = began = now()
            failure = task.run(start, stop)
            ended = now()
            counters.fetch += ended - began
            counters.rows += stop - start
            if counters.events is not None:
                counters.record("fetch", began, ended, task.index_of(start), stop - start)
            if self._is_last(task, start, stop, failure):
                counters.since = ended
                task.finish()
                finished = now()
                counters.finish += finished - ended
                counters.record("finish", ended, finished, rows=task.size)
                # Last, so that whoever is given the batch finds its finish counted and traced.
                task.open()
            counters.since = 0
            del task, failure  # while waiting for the next one, keep no batch alive
        counters.end()

    def _claim(self, counters: ThreadCounters) -> tuple[BatchTask, int, int] | None:
        """Wait for work; None when there will be no more."""
        while not self._is_closed:
            with self._lock:
                claim = self._take()
                if claim is not None:
                    return claim
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

    def _is_last(self, task: BatchTask, start: int, stop: int, failure: Failure | None) -> bool:
        with self._lock:
            return task.note(start, stop, failure)


class Threads:
    """Threads, one for each counters, which share each task: the oldest one that has rows left.

    Parameters
    ----------
    all_counters : sequence of ThreadCounters
    lock : RLock
        The iterator's, which the caller holds.
    """

    def __init__(self, all_counters: Sequence[ThreadCounters], lock: Any) -> None:
        n_threads = len(all_counters)
        self.pid = os.getpid()  #: the process that has the threads; a forked child has none
        self._board = _Board(n_threads)
        self._threads: list[threading.Thread] = []
        _living.add(self)
        shutdown.block_if_exiting(lock)  # nothing would end threads that begin later
        try:
            for number, counters in enumerate(all_counters):
                thread = threading.Thread(
                    target=self._board.work,
                    args=(counters,),
                    name=f"fastiter-{number}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def submit(self, task: BatchTask) -> None:
        """Have the threads work on ``task``, after the tasks submitted before."""
        self._board.submit(task)
        self._board.wake()

    def wake(self) -> None:
        """Repair what an interrupted `submit` has left."""
        self._board.wake()

    def close(self) -> None:
        """Let each thread end when it is through with the rows in its hands. Does not block."""
        self._board.close()

    def join(self, timeout: float = _JOIN_SECONDS) -> None:
        """Wait for the threads to end, ``timeout`` seconds in total."""
        if self.pid != os.getpid():
            return
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


@atexit.register
def _close_all() -> None:
    shutdown.begin()
    living = [threads for threads in _living if threads.pid == os.getpid()]
    for threads in living:
        threads.close()
    deadline = time.monotonic() + _JOIN_SECONDS
    for threads in living:
        threads.join(max(0.0, deadline - time.monotonic()))
