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
import os
import queue
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from fastiter import _exit

if TYPE_CHECKING:
    from fastiter.iterators._jobs import Failure, Job

_JOIN_SECONDS = 1.0  # finalize() and exit wait so long for threads that are amid an example

_living: weakref.WeakSet[Threads] = weakref.WeakSet()


class _Board:
    """What the threads of one iterator share: it does not keep the iterator alive.

    Parameters
    ----------
    n_threads : int
    """

    def __init__(self, n_threads: int) -> None:
        self._n_threads = n_threads
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()  # those with rows to take, the oldest one first
        self._n_idle = 0
        # One for each idle thread that shall look for work. Its put() may be called amid any other
        # call, by a garbage collection or a signal handler.
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_closed = False

    def submit(self, job: Job) -> None:
        with self._lock:
            self._jobs.append(job)

    def wake(self) -> None:
        """Have idle threads look for work, if there is any."""
        if self._jobs:
            for _ in range(self._n_idle - self._bell.qsize()):
                self._bell.put(None)

    def close(self) -> None:
        """Let each thread end when it is through with what it has in hand. Takes no lock: a
        garbage collection may call it in a thread that holds the lock."""
        self._is_closed = True
        for _ in range(self._n_threads):
            self._bell.put(None)

    def work(self) -> None:
        """What each thread runs."""
        while (claim := self._claim()) is not None:
            job, start, stop = claim
            del claim
            failure = job.run(start, stop)
            if self._is_last(job, start, stop, failure):
                job.finish()
            del job, failure  # while waiting for the next one, keep no batch alive

    def _claim(self) -> tuple[Job, int, int] | None:
        """Wait for work; None when there will be no more."""
        while not self._is_closed:
            with self._lock:
                claim = self._take()
                if claim is not None:
                    return claim
                self._n_idle += 1
            self._bell.get()
            with self._lock:
                self._n_idle -= 1
        return None

    def _take(self) -> tuple[Job, int, int] | None:
        while self._jobs:
            job = self._jobs[0]
            rows = job.take()
            if rows is not None:
                return job, *rows
            self._jobs.popleft()
        return None

    def _is_last(self, job: Job, start: int, stop: int, failure: Failure | None) -> bool:
        with self._lock:
            return job.note(start, stop, failure)


class Threads:
    """A fixed number of threads, which share each job: the oldest one that has rows left."""

    def __init__(self, n_threads: int) -> None:
        self.pid = os.getpid()  #: the process that has the threads; a forked child has none
        self._board = _Board(n_threads)
        self._threads: list[threading.Thread] = []
        _living.add(self)
        try:
            for number in range(n_threads):
                thread = threading.Thread(
                    target=self._board.work, name=f"fastiter-{number}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> None:
        """Have the threads work on ``job``, after the jobs submitted before."""
        self._board.submit(job)
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
    _exit.begin()
    living = [threads for threads in _living if threads.pid == os.getpid()]
    for threads in living:
        threads.close()
    deadline = time.monotonic() + _JOIN_SECONDS
    for threads in living:
        threads.join(max(0.0, deadline - time.monotonic()))
