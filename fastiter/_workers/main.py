"""The main function of a worker process."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import faulthandler
import functools
import hashlib
import io
import os
import random
import signal
import sys
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import ForkProcess, SpawnProcess
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.random import MT19937, mtrand  # by now, so that a fork server has them for its workers

from fastiter._clib.status import die_with_parent, exit_within, keep_freed_memory, watch_parent
from fastiter._fetch import row_groups
from fastiter._fetch.seeded import SeededExamples
from fastiter._order import example_context
from fastiter._ring.arena import Arena, WorkerRing
from fastiter._util import fds
from fastiter._util.failures import dump_start_error
from fastiter._util.worker_info import WorkerInfo, set_worker_info
from fastiter._workers import forkserver, row_writer, thread_limits
from fastiter._workers.batch_converter import BatchConverter
from fastiter._workers.shared_object import Later, Shared, WithImage

#: Has a worker write its Python stacks: a real-time signal that nothing common uses.
STACK_SIGNAL = signal.SIGRTMIN + 7
_LAST_SECONDS = 1.0  # for exit handlers, and threads that the dataset has left behind


class Descriptor:
    """A file descriptor that travels to a child process, whatever starts that child."""

    def __init__(self, fd: Any):  # in the child: multiprocessing's duplicate
        self.fd: int = fd if isinstance(fd, int) else fd.detach()

    def __reduce__(self) -> tuple[Any, ...]:
        return Descriptor, (reduction.DupFd(self.fd) if self.fd >= 0 else -1,)


class ForkedWorker(ForkProcess):
    """A forked process without the descriptors of other iterators.

    It does not close the program's `sys.stdin`. multiprocessing closes it in each child, and waits
    for its lock. If a thread of the program reads from the stream, in `input()` for example, the
    lock is held in the child for ever.
    """

    def _bootstrap(self, parent_sentinel: Any = None) -> int:
        arguments: WorkerArguments = self._args[0]  # type: ignore[attr-defined]
        # Before a file is opened: a garbage collection may have closed some of these already.
        fds.close(arguments.inherited - arguments.own)
        self._inherited_stdin = sys.stdin  # kept: freeing it closes it, too
        sys.stdin = io.StringIO()
        return super()._bootstrap(parent_sentinel)  # type: ignore[misc,no-any-return]


class SpawnedWorker(SpawnProcess):
    """A spawned process that does not take its interpreter and modules apart at its end, which
    takes longer than the rest of the end. Finalizers and exit handlers run, and streams are
    flushed, as multiprocessing does it."""

    def _bootstrap(self, parent_sentinel: Any = None) -> int:
        status: int = super()._bootstrap(parent_sentinel)  # type: ignore[misc]
        atexit._run_exitfuncs()
        flush_streams()
        os._exit(status)


class Job(WithImage, Protocol):
    """The work of a worker group: the same for all workers."""

    repeats: bool = True
    """Whether another worker repeats what one that is ended has not completed."""
    helper: int = -1
    """Number of a worker that waits for others, so that no time limit is for it; -1: none."""
    end_seconds: float = 0.5
    """Seconds that a worker may take to end by itself."""

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        """In the worker: gets ready, and gives the function that does the work. `seed` is this
        start's own."""


@dataclasses.dataclass(eq=False)
class BatchJob(Job):
    """Fills batches, and has `batch_converter` convert complete ones. `worker_init` is called
    first, with the worker's number. Where workers may be ended for time, they own no row while they
    fetch it; where they hedge, slow rows are fetched twice, too."""

    dataset: Any
    batch_converter: BatchConverter | None
    worker_init: Callable[[int], Any] | None
    claims: int | None  # ranges that a worker completes before it leaves, to be replaced
    retries: bool = False
    hedges: bool = False

    #: whether the columns of later batches follow the rows that do not fit those of now
    learns_columns = True
    image = "the dataset's image"
    loading = "loading the dataset"  # what a worker does first, in messages

    @property
    def names(self) -> dict[str, Any]:
        return {
            "worker_init": self.worker_init,
            "the converter": self.batch_converter,
            "the dataset": self.dataset,
        }

    def prepare(self, end: WorkerRing, arguments: WorkerArguments, seed: int) -> Callable[[], None]:
        introduce(self.dataset, self.worker_init, arguments.number, arguments.workers, seed)
        two_steps = self.retries or self.hedges
        rows = row_writer.RowWriter(end, self.dataset, None, two_steps, self.hedges)
        example_context.set_worker(rows)
        return functools.partial(rows.run, self.batch_converter, self.claims or 0)


def introduce(dataset: Any, worker_init: Any, number: int, workers: int, seed: int) -> None:
    """Tells the dataset, and `worker_init`, about the worker that runs here."""
    plain = dataset.dataset if isinstance(dataset, SeededExamples) else dataset
    set_worker_info(WorkerInfo(number, workers, seed, plain))
    if worker_init is not None:
        worker_init(number)


class WorkerArguments(NamedTuple):
    number: int
    workers: int  # how many there are
    start: int  # counts the starts of this pool; the start barrier compares it
    arena: Arena | None  # inherited by a fork, else attached
    geometry: tuple[int, ...]
    memory: Descriptor
    event: Descriptor
    bell_pipe: Descriptor
    number_pipe: Descriptor  # where a spare reads its number in the end; -1 for others
    parent_death_pipe: Descriptor  # read end; its write end is the parent's alone
    parent_pidfd: Descriptor
    stacks: Descriptor  # where Python stacks are written on `STACK_SIGNAL`
    parent: int  # pid to die with, 0 if the parent's starting thread may end before it
    inherited: set[int]  # what all iterators hold open, as it is when a fork inherits it
    own: set[int]  # descriptors of them that are this worker's
    others: tuple[Arena, ...]  # arenas of other iterators, inherited likewise
    job: Later[Job | Shared[Job]]  # inherited, or an image of it
    seed: bytes
    advice: str  # what to do where the image cannot be loaded


def flush_streams() -> None:
    """Writes what this process has printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def main(arguments: WorkerArguments) -> None:
    """Runs a worker, and ends it when its work has ended: threads that the dataset has left would
    keep the interpreter from exiting, and the replacement waits for that."""
    status = 1
    try:
        status = _run(arguments)
    finally:
        with contextlib.suppress(OSError, MemoryError):
            exit_within(_LAST_SECONDS, status)
        flush_streams()  # `multiprocessing` does it too late
    sys.exit(status)


def _run(arguments: WorkerArguments) -> int:
    """Loads the dataset and works; returns the exit status."""
    _take_signals(arguments)
    for other in arguments.others:
        other.forget()
    watch_parent(arguments.parent_pidfd.fd, arguments.parent_death_pipe.fd)
    if arguments.parent:
        with contextlib.suppress(OSError):  # a sandbox may refuse it, and the watch is enough
            die_with_parent(arguments.parent)
    thread_limits.limit_threads(is_forked=arguments.arena is not None)
    arena = arguments.arena
    if arena is None:
        arena = Arena.attach(arguments.memory.fd, arguments.event.fd, arguments.geometry)
    with contextlib.suppress(OSError, MemoryError):  # as above: what it forks keeps the memory
        arena.dont_fork()
    end = WorkerRing(arena, arguments.number, arguments.bell_pipe.fd)
    failed = forkserver.import_main_module()
    _take_signals(arguments)  # that module may have done so, too
    if not end.enter(arguments.start):
        return 0
    text = arguments.seed + b"%d %d" % (arguments.number, arguments.start)
    digest = hashlib.blake2b(text, digest_size=32).digest()  # no other start has it
    seed_by(digest)
    end.load()
    try:
        if failed is not None:
            raise failed
        job = arguments.job()
        if isinstance(job, Shared):
            job = _value_of(job, arguments.advice)
            thread_limits.limit_threads()  # of what the dataset imported; worker_init may raise it
            _seed_torch(digest)  # the dataset may have imported it
        if arguments.number_pipe.fd >= 0:
            end.loaded(arguments.start)
            if not (number := os.read(arguments.number_pipe.fd, 16)):
                return 0
            os.close(arguments.number_pipe.fd)
            arguments = arguments._replace(number=int(number))
            end = WorkerRing(arena, arguments.number, -1)
            if not end.enter(arguments.start):
                return 0
            end.load()
        run = job.prepare(end, arguments, int.from_bytes(digest[-8:], "little"))
    except BaseException as error:
        end.loaded(arguments.start, dump_start_error(error))
        return 1
    end.loaded(arguments.start)
    keep_freed_memory()  # now: what the dataset keeps for ever has its place
    run()
    # What the worker has worked with goes now: generators of the dataset run their `finally`, and
    # so does the `__del__` of what no frame of the program holds.
    _forget_rows()
    del run, job
    set_worker_info(None)
    return 0


def _value_of(image: Shared[Job], advice: str) -> Job:
    try:
        return image._take()
    except AttributeError as error:
        if "_main__'" not in str(error):
            raise
        raise AttributeError(
            f"{error}. A worker that was not forked imports the main module, without what stands "
            "below its guard, and has nothing of a __main__.py, a notebook or an interactive "
            f"session. Move the definition into a module, or {advice}"
        ) from error
    except RecursionError as error:
        raise RecursionError(
            f"{error} while the dataset was loaded. Its pickle is loaded without __init__: a "
            "__getattr__ that reads an attribute of the object itself has to raise AttributeError "
            f"where that is not set yet, or {advice}"
        ) from error


def _take_signals(arguments: WorkerArguments) -> None:
    # The program handles Ctrl-C. Its handler of SIGTERM, which a fork copies, must not run here.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # as for what a worker starts
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    faulthandler.register(STACK_SIGNAL, arguments.stacks.fd, all_threads=True)


def seed_by(digest: bytes) -> None:
    """Gives this start generators of its own, so that augmentations differ between workers."""
    random.seed(digest)
    # As `np.random.seed`, by a new bit generator: the old one's lock may be held for ever, by a
    # thread of the program that drew numbers at the moment of the fork.
    generator = mtrand._rand
    kind = type(generator._bit_generator)
    seed = np.frombuffer(digest, dtype=np.uint32)
    generator.__init__(seed if kind is MT19937 else kind(seed))  # type: ignore[misc]
    _seed_torch(digest)


def _seed_torch(digest: bytes) -> None:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "manual_seed"):  # else a thread is importing it
        # The lock of torch's generator cannot be replaced. `free_lock_at_fork` has freed it; if
        # another thread took it all the same, `WorkerGroup.watch_starts` replaces this worker.
        seed_torch(torch, int.from_bytes(digest[:8], "little") >> 1)


def seed_torch(torch: ModuleType, seed: int) -> None:
    """As `torch.manual_seed` in a worker that starts: seeds the generators of all devices.

    For each kind of device that has not been used yet, torch keeps the caller's stack as text, for
    a message. The sources that it reads for that take 3 ms; with this limit it reads none.
    """
    limit = getattr(sys, "tracebacklimit", None)
    sys.tracebacklimit = 0
    try:
        torch.manual_seed(seed)
    finally:
        if limit is None:
            del sys.tracebacklimit
        else:
            sys.tracebacklimit = limit


def _forget_rows() -> None:
    """Of a process that a worker has forked, too: the memory of the ring stays with the worker."""
    row_groups.worker = None
    example_context.set_worker(None)


os.register_at_fork(after_in_child=_forget_rows)
