"""The decorators `buffered` and `xmap_readers`: threads that read and map samples ahead.

The threads are daemons, so that a reader that hangs cannot keep the program from exiting. They end
with the pass that they belong to.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fastiter._util import shutdown
from fastiter._util.concurrency import start_thread
from fastiter._util.failures import Failure, reraise
from fastiter.reader._opening import (
    Reader,
    checked_count,
    close_samples,
    open_reader,
    require_readers,
)

# A signal that arrives just before the wait does not interrupt it: return to Python now and then.
_WAIT_SECONDS = 0.25
_JOIN_SECONDS = 1.0  # for threads that are in the reader or the mapper when the pass ends

_END = object()
_running: set[Ahead] = set()


class Ahead:
    """One pass over a reader by threads.

    ``limit`` is the most samples that are read and not yet delivered. If ``ordered``, samples are
    delivered in the order of the reader, else as they become ready.
    """

    def __init__(
        self,
        reader: Reader,
        mapper: Callable[[Any], Any] | None,
        n_threads: int,
        limit: int,
        ordered: bool,
    ) -> None:
        self._reader = reader
        self._mapper = mapper
        self._n_threads = n_threads
        self._limit = limit
        self._ordered = ordered
        self._pid = os.getpid()
        self._reading = threading.Lock()  # held by the thread that is in the reader
        self._source: Iterator[Any] | None = None  # from here: changed under that lock
        self._n_read = 0
        self._is_exhausted = False
        self._error: BaseException | None = None  # of a thread's own work, which ends the pass
        # Wakes the thread that holds `_reading` and waits for room. Not a Condition: a garbage
        # collection may call `stop` in any thread, also in one that would hold its lock.
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._n_delivered = 0  # changed by the consumer
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        # Samples, or the failure that ends the pass, and _END.
        self._ready: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._next: Any = None  # what `wait` has taken of them
        self._lock = threading.Lock()
        self._early: dict[int, Any] = {}  # from here: changed under that lock
        self._n_queued = 0
        self._n_alive = 0

    # ---- consumer

    def start(self) -> None:
        _running.add(self)
        shutdown.block_if_exiting()  # nothing would end threads that start later
        for number in range(self._n_threads):
            thread = threading.Thread(
                target=self._run, name=f"fastiter-reader-{number}", daemon=True
            )
            with self._lock:
                self._n_alive += 1
            try:
                start_thread(thread)
            except BaseException:
                self._leave()
                raise
            self._threads.append(thread)

    def wait(self) -> bool:
        """Block until `pop` has a sample; False at the end."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "this pass over a reader belongs to the process that forked this one: call the "
                "reader again here"
            )
        self._next = _END
        while not self._is_closed:
            with contextlib.suppress(queue.Empty):
                self._next = self._ready.get(timeout=_WAIT_SECONDS)
                break
        if self._is_closed:
            shutdown.block_if_exiting()  # only the exit closes a pass while its consumer waits
        if self._next is _END and self._error is not None:
            raise self._error
        return self._next is not _END

    def pop(self) -> Any:
        """The next sample; raises the exception of the reader or the mapper instead."""
        sample, self._next = self._next, None
        self._n_delivered += 1
        if self._room.empty():
            self._room.put(None)
        if isinstance(sample, Failure):
            reraise(sample)
        return sample

    def close(self) -> None:
        """End the threads, and wait up to a second for those that are in the reader or mapper.

        A garbage collection may call it in any thread. A thread of the pass does not wait: it may
        hold the lock that the others need to end.
        """
        _running.discard(self)
        if os.getpid() != self._pid:
            return
        self.stop()
        self._ready = queue.SimpleQueue()
        self._early.clear()
        if threading.get_ident() not in [thread.ident for thread in self._threads]:
            self.join(time.monotonic() + _JOIN_SECONDS)

    def stop(self) -> None:
        """Tell the threads to end, without a lock and without blocking."""
        self._is_closed = True
        self._room.put(None)

    def join(self, deadline: float) -> None:
        """Wait for the threads until a time of `time.monotonic`."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # ---- threads

    def _run(self) -> None:
        try:
            while (read := self._read()) is not None:
                number, sample = read
                if self._mapper is not None and not isinstance(sample, Failure):
                    try:
                        sample = self._mapper(sample)
                    except BaseException as error:
                        sample = Failure(error)
                self._put(number, sample)
                del read, sample  # keep nothing alive while waiting for the next one
        except BaseException as error:  # it found no memory, as a rule
            self._error, self._is_exhausted = error, True
        finally:
            self._leave()

    def _read(self) -> tuple[int, Any] | None:
        """Number and sample, or the reader's failure; None if there is no more to read."""
        with self._reading:
            while not (self._is_closed or self._is_exhausted) and (
                self._n_read - self._n_delivered >= self._limit
            ):
                self._room.get()
            if self._is_closed or self._is_exhausted:
                return None
            number = self._n_read
            self._n_read += 1
            try:
                if self._source is None:
                    self._source = open_reader(self._reader)
                return number, next(self._source)
            except BaseException as error:
                self._is_exhausted = True
                return None if isinstance(error, StopIteration) else (number, Failure(error))

    def _put(self, number: int, sample: Any) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._early[number if self._ordered else self._n_queued] = sample
            # `close` may clear it at any moment.
            while (following := self._early.pop(self._n_queued, _END)) is not _END:
                self._ready.put(following)
                self._n_queued += 1

    def _leave(self) -> None:
        """The last thread closes the reader, and tells the consumer."""
        with self._lock:
            self._n_alive -= 1
            if self._n_alive:
                return
        try:
            if self._source is not None:
                close_samples(self._source)
        finally:
            self._ready.put(_END)


@atexit.register
def _close_all() -> None:
    shutdown.begin()
    running = [ahead for ahead in list(_running) if ahead._pid == os.getpid()]
    for ahead in running:
        ahead.stop()
    deadline = time.monotonic() + _JOIN_SECONDS
    for ahead in running:
        ahead.join(deadline)


def _read_ahead(*arguments: Any) -> Iterator[Any]:
    exits = sys.is_finalizing
    ahead = Ahead(*arguments)
    try:
        ahead.start()
        while ahead.wait():
            yield ahead.pop()
    finally:
        if not exits():  # modules have lost their globals then; `_close_all` has closed all passes
            ahead.close()


def buffered(reader: Reader, size: int) -> Reader:
    """Read ahead in a thread.

    Parameters
    ----------
    reader : callable
        Reader, run in a thread that ends with the pass, also if the loop leaves it early. Its
        exception arrives after the samples before.
    size : int
        The most samples that are read ahead of the consumer; with 0 there is no thread.
    """
    require_readers((reader,))
    size = checked_count("size", size, minimum=0)
    if size == 0:
        return partial(open_reader, reader)
    return partial(_read_ahead, reader, None, 1, size, True)


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """Map samples in threads.

    An exception of `mapper` or `reader` ends the pass. The threads end with the pass, also if the
    loop leaves it early.

    Parameters
    ----------
    mapper : callable
        Function of a sample, called in several threads at once.
    reader : callable
        Reader that runs in these threads, one at a time.
    process_num : int
        Number of threads.
    buffer_size : int
        The most mapped samples that wait for the consumer, besides one of each thread.
    order : bool
        Whether to keep the order of the reader; else samples arrive as they become ready.
    """
    require_readers((reader,))
    process_num = checked_count("process_num", process_num, minimum=1)
    limit = process_num + checked_count("buffer_size", buffer_size, minimum=0)
    return partial(_read_ahead, reader, mapper, process_num, limit, bool(order))
