"""The worker processes of one pass of `multiprocess_reader`, and how their samples are merged.

A group belongs to one pass and one process, and runs in the thread that iterates. Only the exit of
the interpreter may close it from another thread, the main thread.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from fastiter._clib import status
from fastiter._ring.arena import Arena
from fastiter._ring.stream import StreamRing
from fastiter._util import shutdown
from fastiter._util.failures import Failure, load, load_start_error, reraise
from fastiter._workers.process_group import LOOK_SECONDS, WorkerGroup
from fastiter._workers.start_method import Start
from fastiter.errors import DatasetError, OverwrittenError, WorkerDiedError
from fastiter.reader._opening import Reader, name_of
from fastiter.reader._reading import ReadingJob

_SLOTS = 16  # of each reader
_ROWS = 256  # of a block, at most
_MOST_TAKEN = 64  # samples at a time


class ReaderGroup:
    """The processes of one pass, and the shared memory between them and the caller.

    ``queue_size`` is the most samples in flight, ``start`` how the processes are started.
    """

    def __init__(self, readers: tuple[Reader, ...], queue_size: int, start: Start):
        self.pid = os.getpid()
        self._readers = readers
        self._taken = [0] * len(readers)  # samples
        # Why processes died, by reader; the samples that they published are delivered first.
        self._died: dict[int, str] = {}
        self._failure: Failure | None = None  # of a reader; its samples are delivered first
        self._most = max(1, min(_MOST_TAKEN, queue_size // 4))
        self._released = False
        self._is_exiting = False
        # Held while the thread that iterates is in here: the exit must not close what it uses.
        self._in_use = threading.Lock()
        self._looked, self._pause = 0.0, LOOK_SECONDS  # last look, and seconds until the next one
        arena = Arena.create(_SLOTS * len(readers), len(readers), _ROWS, 1)
        self._ring = StreamRing(arena, 0, queue_size)
        self._group = WorkerGroup(self._ring, len(readers), ReadingJob(readers), start)
        try:
            with self._in_use:
                self._at_exit = shutdown.end_at_exit(self, self._in_use)
                try:
                    self._group.open()
                except BaseException:
                    self.end_workers()
                    self._at_exit.cancel()
                    raise
        except BaseException:
            shutdown.block_if_exiting()
            raise

    def take(self) -> list[Any] | None:
        """Block until there are samples of one reader, in its order; None at the end. Raises the
        exception of a reader, or `WorkerDiedError` if its process died, after all its samples."""
        if os.getpid() != self.pid:
            raise RuntimeError(
                "this pass over readers belongs to the process that forked this one: call the "
                "reader again here"
            )
        try:
            with self._in_use:
                return self._wait_for_samples()
        finally:
            shutdown.block_if_exiting()

    def grant(self, samples: int) -> None:
        """This many samples have been delivered: readers may publish as many more."""
        with self._in_use:
            if not self._is_exiting:
                self._ring.grant(samples)

    def _wait_for_samples(self) -> list[Any] | None:
        while not self._is_exiting:
            if self._failure is not None:
                failure, self._failure = self._failure, None
                reraise(failure)
            now = status.now()
            if now - self._looked > self._pause:
                self._looked = now
                self._check_processes()
            samples = self._take_samples()
            if samples:
                return samples
            if samples is None:
                if all(map(self._ring.has_ended, range(len(self._readers)))):
                    return None
                self._sleep()
        return None

    def _take_samples(self) -> list[Any] | None:
        """Samples of one reader, perhaps none before its failure; None if nothing was published."""
        for reader in [r for r in self._died if self._ring.is_drained(r)]:
            reason = self._died.pop(reader)
            if not self._ring.has_ended(reader):
                raise WorkerDiedError(
                    f"the process of {self._label(reader)} {reason} after {self._taken[reader]} "
                    "samples. Likely causes: out of memory (SIGKILL), a crash in native code "
                    "(SIGSEGV, SIGBUS, SIGABRT), or a call of os._exit in the reader; under "
                    "context='spawn' or 'forkserver' also a main module without an "
                    "if __name__ == '__main__' guard"
                )
        try:
            taken = self._ring.take_samples(self._most)
        except OverwrittenError:
            raise
        except Exception as error:
            raise DatasetError(f"a sample cannot be loaded in the parent: {error!r}") from error
        if taken is None:
            return None
        samples, reader, failure = taken
        self._taken[reader] += len(samples)
        if failure is not None:
            facts = f"{self._label(reader)}, after {self._taken[reader]} samples"
            self._failure = load(failure, facts)
        return samples

    def _label(self, reader: int) -> str:
        return f"reader {reader} of {len(self._readers)} ({name_of(self._readers[reader])})"

    # ---- wait

    def _sleep(self) -> None:
        """Sleep until a reader rings, a process dies, a signal arrives, or a slice is over."""
        ring = self._ring
        woken = ring.wait(ring.is_ready, True, self._group.descriptors(), self._pause)
        # After a timeout too, as in `Pool`: without pidfds a pipe may be held open.
        if not woken or any(position >= 0 for position in woken):
            self._check_processes()

    def _check_processes(self) -> None:
        self._pause = self._group.watch_starts() or LOOK_SECONDS
        for process in self._group.dead():
            number, report = process.number, self._ring.report(process.number)
            if process.hang:  # before its first sample: by a fork at a wrong moment
                self._group.dismiss(process)
                self._group.start(number)
                continue
            note = self._ring.start_error(number) if report["ready"] == process.start else b""
            failure = load_start_error(note, f"loading {self._label(number)}")
            self._died[number] = f"(pid {process.pid}) {process.exit_reason()}"
            self._group.dismiss(process)
            if failure is not None:
                reraise(failure)

    # ---- end

    def close(self) -> None:
        """End the processes and close the descriptors. The memory stays while a sample lives.

        A garbage collection may call it in any thread, so it never waits for the lock: the thread
        that holds it is closing.
        """
        # Once: called again while the interpreter exits, it would find modules already emptied.
        if self._released or os.getpid() != self.pid or not self._in_use.acquire(blocking=False):
            return
        try:
            self.end_workers()
            self._at_exit.cancel()
        finally:
            self._in_use.release()

    def interrupt(self) -> None:
        """When the interpreter exits: make a `take` in a daemon thread return."""
        self._is_exiting = True
        self._ring.interrupt()

    def end_workers(self) -> None:
        """End the processes and close the descriptors, under the lock."""
        if self._released:
            return
        self._group.close()
        self._ring.forget_blocks()
        self._ring.close()
        self._released = True
