"""Samples of several readers, each in a process of its own, merged as they come.

A merge belongs to one pass and one process. All of it runs in the thread that iterates; there is no
thread beside it. Only the interpreter's exit may close it from another thread, the main thread.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from fastiter._clib import system
from fastiter._ring import arena as _arena
from fastiter._ring.stream import StreamRing
from fastiter._util import shutdown
from fastiter._util.failures import Failure, load, load_start_error, reraise
from fastiter._workers.process import WorkerProcess
from fastiter._workers.process_group import WorkerGroup
from fastiter._workers.start_method import Start
from fastiter.errors import DatasetError, OverwrittenError, WorkerDiedError
from fastiter.reader._opening import Reader
from fastiter.reader._reading import ReadingJob, name_of

_SLOTS = 16  # of each reader
_ROWS = 256  # of a block, at most
_MOST_TAKEN = 64  # samples at a time
_SLICE = 0.5  # seconds; the longest time without a look at who lives


class Merge:
    """The processes of one pass, and the arena between them and the caller.

    Parameters
    ----------
    readers : tuple of callables
    queue_size : int
        Samples that may be in flight.
    start : Start
        How the processes are started.
    """

    def __init__(self, readers: tuple[Reader, ...], queue_size: int, start: Start):
        self.pid = os.getpid()
        self._readers = readers
        self._taken = [0] * len(readers)  # samples
        # Who has died, and how; all that came before is due first.
        self._fallen: dict[int, str] = {}
        self._failure: Failure | None = None
        self._most = max(1, min(_MOST_TAKEN, queue_size // 4))
        self._released = False
        self._is_exiting = False
        # Held while the thread that iterates is in here: the exit must not close what it uses.
        self._in_use = threading.Lock()
        self._looked = 0.0
        arena = _arena.Arena.create(_SLOTS * len(readers), len(readers), _ROWS, 1)
        self._end = StreamRing.create(arena, queue_size)
        self._group = WorkerGroup(self._end, len(readers), ReadingJob(readers), start)
        try:
            with self._in_use:
                self._at_exit = shutdown.end_at_exit(self, self._in_use)
                self._open()
        except BaseException:
            shutdown.block_if_exiting()
            raise

    def _open(self) -> None:
        try:
            self._group.open()
        except BaseException:
            self._release()
            raise

    def take(self) -> list[Any] | None:
        """Blocks until there are samples, of one reader and in its order; None at the end.

        Raises
        ------
        Exception
            What a reader raised, after all its samples; `WorkerDiedError` if its process died;
            KeyboardInterrupt while waiting.
        """
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

    def _wait_for_samples(self) -> list[Any] | None:
        self._raise_failure()
        while not self._is_exiting:
            now = system.now()
            if now - self._looked > _SLICE:
                self._looked = now
                self._look_at_deaths()
            samples = self._ready()
            if samples:
                return samples
            if all(self._end.has_ended(reader) for reader in range(len(self._readers))):
                return None
            self._sleep()
        return None

    def grant(self, samples: int) -> None:
        """So many of the samples taken have been delivered: readers may publish as many more."""
        with self._in_use:
            if not self._is_exiting:
                self._end.grant(samples)

    def _ready(self) -> list[Any] | None:
        for reader in [r for r in self._fallen if self._end.is_drained(r)]:
            end = self._fallen.pop(reader)
            if not self._end.has_ended(reader):
                raise self._death_of(reader, end)
        try:
            taken = self._end.take_samples(self._most)
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
            if not samples:
                self._raise_failure()
        return samples

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            reraise(failure)

    def _label(self, reader: int) -> str:
        return f"reader {reader} of {len(self._readers)} ({name_of(self._readers[reader])})"

    def _death_of(self, reader: int, end: str) -> WorkerDiedError:
        return WorkerDiedError(
            f"the process of {self._label(reader)} {end} after {self._taken[reader]} samples. "
            "Likely causes: out of memory (SIGKILL), a crash in native code (SIGSEGV, SIGBUS, "
            "SIGABRT), or a call of os._exit in the reader; under context='spawn' or 'forkserver' "
            "also a main module without an if __name__ == '__main__' guard"
        )

    # ---- wait

    def _sleep(self) -> None:
        """Sleeps until a reader rings, a process dies, a signal comes, or a slice is over."""
        end = self._end
        woken: list[int] = []
        try:
            end.doze(True)
            if not end.is_ready():
                woken = end.wait(self._group.descriptors(), _SLICE)
        finally:
            end.wake()
        # After a silence too, as in `Pool`: without pidfds a pipe may be held open.
        if not woken or any(position >= 0 for position in woken):
            self._look_at_deaths()

    def _look_at_deaths(self) -> None:
        self._group.end_hung_starts()
        for member in self._group.dead():
            if member.has_hung:  # it has read nothing
                self._group.dismiss(member)
                self._group.start(member.number)
            else:
                self._note_death(member)

    def _note_death(self, member: WorkerProcess) -> None:
        """Who has died has published all that it ever will, which is delivered first."""
        number, report = member.number, self._end.report(member.number)
        note = self._end.note(number) if report["ready"] == member.start else b""
        failure = load_start_error(note, f"loading {self._label(number)}")
        end = f"(pid {member.pid}) {member.exit_reason()}"
        self._group.dismiss(member)
        if failure is not None:
            reraise(failure)
        self._fallen[number] = end

    # ---- end

    def close(self) -> None:
        """Ends the processes and closes the descriptors. The memory stays while a sample lives.

        A garbage collection may call it in any thread, so it never waits for the lock: whoever
        holds it is closing.
        """
        # Once: called again while the interpreter ends, it would find modules already emptied.
        if self._released or os.getpid() != self.pid or not self._in_use.acquire(blocking=False):
            return
        try:
            self._release()
        finally:
            self._in_use.release()

    def interrupt(self) -> None:
        """When the interpreter exits: makes a `take` in a daemon thread give up."""
        self._is_exiting = True
        self._end.interrupt()

    def _release(self) -> None:
        self.end_workers()
        self._at_exit.cancel()

    def end_workers(self) -> None:
        """Ends the processes and closes the descriptors, under the lock."""
        if self._released:
            return
        self._group.close()
        self._end.forget_blocks()
        self._end.close_descriptors()
        self._released = True
