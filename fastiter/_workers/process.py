"""A worker process as the program knows it: its start, its state, its stack, and its end."""

from __future__ import annotations

import contextlib
import errno
import logging
import multiprocessing
import os
import select
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator
from multiprocessing import popen_fork, util
from pathlib import Path
from typing import Any, NamedTuple

from fastiter._clib import status
from fastiter._ring.lease import this_thread
from fastiter._util import fds
from fastiter._util.concurrency import WeakObjects
from fastiter._util.start_default import default_method_kept
from fastiter._workers import forkserver
from fastiter._workers.main import STACK_SIGNAL, ForkedWorker, SpawnedWorker, WorkerArguments, main
from fastiter._workers.start_method import Start

logger = logging.getLogger("fastiter")

_CLOSING_SECONDS = 0.1  # between the moment that a dying process has closed its files and its end
#: That SIGKILL takes at most, but for processes that nothing ends.
STUCK_SECONDS = 0.25

# How a worker ended, as `WorkerProcess.exit_reason` says it.
LEFT = "exited with status 0"
UNKNOWN_END = "ended with an unknown status"

NO_STACK = "  not available"  # begins what stands in place of a worker's stack
STOPPED, TRACED = "is stopped", "is traced"
_WAITS_SECONDS = 0.4  # between two looks at a worker that waits for ever
_SWITCHES = b"\nvoluntary"  # begins the context switches in `status` of proc(5)
_WATCH = b"fastiter-watch\n"  # the thread that watches the program, in each worker
# Numbers of the system call, and of its first parts: see futex(2).
_FUTEX = {"x86_64": b"202", "aarch64": b"98", "riscv64": b"98", "ppc64le": b"221", "s390x": b"238"}
_PRIVATE, _COMMAND, _WAIT_COMMANDS = 0x80, 0x7F, (0, 6, 9, 13)
# Letters of proc(5). In D the process waits for a page or a disk.
_STATES = {b"T": STOPPED, b"t": TRACED, b"D": "waits for the kernel", b"R": "runs"}

_processes: WeakObjects[Any] = WeakObjects()  # of all groups
_unkillable: WeakObjects[Any] = WeakObjects()


class Overrun(NamedTuple):
    """A step that took longer than `dataset_timeout`, and whose worker was ended."""

    step: int  # the dataset index; status.LOADING, FINISHING or STARTING; NO_STEP
    seconds: float
    limit: float  # dataset_timeout
    stack: str
    attempts: int = 1  # of the same row, or loading


NO_STEP = -100  # in place of an index: the worker does not go on between two steps


class WorkerProcess:
    """A running worker, and the descriptors that signal its death."""

    def __init__(self, number: int, start: int, process: Any, stacks: int, method: str):
        self.number = number
        self.start = start
        self.process = process
        self.pid: int = process.pid
        self.pidfd = -1  # -1 before `open_pidfd`, and where the system has none
        self.stacks = stacks  # where it writes its Python stacks on `STACK_SIGNAL`
        # False: the fork server may have reaped the process before its pidfd was opened. The pidfd
        # is known to be right once the worker has passed the start barrier, which opens after it.
        self.proven = method != "forkserver"
        self.is_forked = method == "fork"
        # False: the pipe that tells of its end was closed before, and tells nothing any more.
        self.has_sentinel = True
        self.has_begun = False  # its own start is over, and code of the user runs
        self.is_beside = False  # forked beside other threads, which may have held locks
        self.done_before = -1  # what its report says was done before its first row; -1: it has one
        self.hang = ""  # where it waited for a lock for ever, for which it was ended
        self._waits: dict[str, bytes] = {}
        self._waits_since = 0.0
        self.is_late = False  # the log has told of its long start
        self.leaves = False  # it was told to
        # For `Timeouts`: when the step began that was warned of; what was done when the worker came
        # to rest, and since when it rests.
        self.warned_since = 0.0
        self.warnings = 0
        self.done = -1
        self.rests_since = 0.0
        self.overrun: Overrun | None = None  # for which it was ended
        self.ended = 0.0  # when
        self.is_abandoned = False  # it does not end by SIGKILL
        self.number_pipe = -1  # of a spare: where `tell_number` writes
        self.born = status.now()
        self.allowed = 0.0  # when it was let into its start; 0: not yet

    def open_pidfd(self) -> None:
        """Opens the descriptor that signals its end. If there is none (an old kernel, another
        system), the process' own status is used."""
        with contextlib.suppress(AttributeError, OSError), fds.lock():
            self.pidfd = os.pidfd_open(self.pid)
            self.pidfd = fds.above_stdio(self.pidfd)
            fds.held.add(self.pidfd)

    def tell_number(self) -> None:
        """Has a spare take its number and begin. Only the first call has an effect."""
        if self.number_pipe >= 0:
            with contextlib.suppress(BrokenPipeError), fds.unless_closed():  # it has died
                os.write(self.number_pipe, b"%d" % self.number)
            self.close_number_pipe()

    def close_number_pipe(self) -> None:
        with status.HandlersDeferred():  # closed once more, it might be a file of the program's
            fds.close([self.number_pipe])
            self.number_pipe = -1

    def is_dead(self) -> bool:
        """Whether all its threads have ended."""
        if self.pidfd >= 0:
            events = fds.events(self.pidfd, 0)
            if not events & select.POLLNVAL:
                return bool(events)
            self._lose_pidfd()
        if self._has_exited():
            return True
        if self.has_sentinel and fds.events(self.process.sentinel, 0):
            # A process that ends closes its files a moment before. If it lives on, its dataset has
            # closed descriptors of the worker.
            end = status.now() + _CLOSING_SECONDS
            while not self._has_exited():
                if status.now() > end:
                    self.has_sentinel = False
                    return False
                select.poll().poll(1)
            return True
        return False

    def _has_exited(self) -> bool:
        return self.process.exitcode is not None or not _exists(self.pid)

    def send(self, number: int) -> None:
        """Sends a signal, if the worker lives and the program may."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.pidfd >= 0:
                with fds.unless_closed():
                    signal.pidfd_send_signal(self.pidfd, number)
                    return
                self._lose_pidfd()
            os.kill(self.pid, number)

    def end(self) -> None:
        self.ended = self.ended or status.now()
        self.send(signal.SIGKILL)

    @property
    def is_stuck(self) -> bool:
        """Whether it still lives some time after SIGKILL: another process takes its place."""
        return self.is_abandoned or 0 < self.ended <= status.now() - STUCK_SECONDS

    def _lose_pidfd(self) -> None:
        """The program has closed it. Its number may now belong to another file."""
        fds.held.discard(self.pidfd)
        self.pidfd = -1

    def state(self) -> str:
        """Its state as the system reports it, for messages."""
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/stat", "rb") as line:
            return _STATES.get(line.read().rpartition(b") ")[2][:1], "waits")
        return "waits"

    def waits_for_ever(self) -> bool:
        """Whether no thread of it goes on, by this check and an earlier one.

        Between the two checks, each of its threads has waited in the same private futex (as locks
        of Python and of C libraries do) without a time limit. Only another thread of the same
        process can end such a wait, and all of them wait. False if the system does not report it.
        """
        return self._waited(self._endless_waits()) > _WAITS_SECONDS

    def waited_in_start(self) -> float:
        """Seconds for which its main thread has been in one and the same wait, of any kind, by this
        look and earlier ones; 0 if it does not wait."""
        facts = b""
        with contextlib.suppress(OSError):
            facts = Path(f"/proc/{self.pid}/status").read_bytes()
        return self._waited({"": facts.partition(_SWITCHES)[2]} if b"\nState:\tS" in facts else {})

    def _waited(self, waits: dict[str, bytes]) -> float:
        now = status.now()
        if not waits or waits != self._waits:
            self._waits, self._waits_since = waits, now
        return now - self._waits_since

    def _endless_waits(self) -> dict[str, bytes]:
        """System call and context switches of each waiting thread; {} if a thread may go on."""
        waits = {}
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{self.pid}/task"):
                folder = f"/proc/{self.pid}/task/{task}"
                if Path(folder, "comm").read_bytes() == _WATCH:
                    continue
                call = Path(folder, "syscall").read_bytes()
                if not _is_endless_wait(call):
                    return {}
                waits[task] = call + Path(folder, "status").read_bytes().partition(_SWITCHES)[2]
            return waits
        return {}

    def exit_reason(self) -> str:
        """The reason of its end, for messages. A fork server may report its status late."""
        self.process.join(1)
        code = self.process.exitcode
        if code is None:
            return UNKNOWN_END
        if code >= 0:
            return f"exited with status {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def abandon(self) -> None:
        """Gives it up: it does not end by SIGKILL, and nothing waits for it any more."""
        self.is_abandoned = True
        _unkillable.add(self.process)
        # After `shutdown.end_at_exit`, which may find more.
        util.Finalize(None, _disown, (_unkillable,), exitpriority=5)
        logger.warning("worker process %d does not end, even by SIGKILL", self.pid)

    def release(self) -> None:
        """Reaps the process and closes what belongs to it. The process is dead."""
        self.process.join(1)
        popen = self.process._popen
        if popen.poll() is None:  # other code has reaped it, or the kernel
            popen.returncode = 255
        with fds.unless_closed():
            popen.close()  # the process itself can be asked for its end further on
        self.process.join()  # multiprocessing forgets it
        self.close()

    def close(self) -> None:
        """Closes what belongs to it here."""
        fds.close((self.pidfd, self.stacks, self.number_pipe))
        self.pidfd = self.stacks = self.number_pipe = -1


def _is_endless_wait(call: bytes) -> bool:
    """Whether proc_pid_syscall(5) shows a wait in a private futex without a time limit."""
    words = call.split()
    if words[0] != _FUTEX.get(os.uname().machine):
        return False
    operation, timeout = int(words[2], 16), int(words[4], 16)
    return not timeout and operation & _PRIVATE != 0 and operation & _COMMAND in _WAIT_COMMANDS


def _exists(pid: int) -> bool:
    """Whether the process exists. It may have been reaped already, by the kernel where the program
    ignores SIGCHLD."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # the program has changed its user
    return True


def wait_for(workers: Iterable[WorkerProcess], seconds: float) -> list[WorkerProcess]:
    """Waits until all have ended; returns those that have not after `seconds`, by a monotonic C
    clock that tools such as freezegun cannot stop."""
    end = status.now() + seconds
    while (left := [w for w in workers if not w.is_dead()]) and (rest := end - status.now()) > 0:
        poll = select.poll()
        others = [worker for worker in left if worker.pidfd < 0]
        descriptors = [worker.pidfd for worker in left if worker.pidfd >= 0]
        descriptors += [worker.process.sentinel for worker in others if worker.has_sentinel]
        for descriptor in descriptors:
            poll.register(descriptor)
        poll.poll(min(rest, 0.05 if others else rest) * 1000)
    return left


def stacks_of(workers: list[WorkerProcess], seconds: float) -> dict[int, str]:
    """The workers' present Python stacks, by number, also of hanging workers. All are requested
    at once, and `seconds` limits the wait for all of them."""
    texts = {worker.stacks: b"" for worker in workers}
    poll = select.poll()
    for worker in workers:
        with contextlib.suppress(OSError):  # there is nothing left of an earlier one
            while os.read(worker.stacks, 65536):
                pass
        worker.send(STACK_SIGNAL)
        if worker.state() in (STOPPED, TRACED):
            texts[worker.stacks] = NO_STACK.encode() + b": the process is stopped"
        else:
            poll.register(worker.stacks, select.POLLIN)
    end = status.now() + seconds
    while (rest := end - status.now()) > 0:
        is_complete = all(texts.values())
        found = poll.poll(min(rest, 0.02 if is_complete else rest) * 1000)
        if not found and is_complete:
            break
        for fd, _ in found:
            text = b""
            try:
                text = os.read(fd, 65536)
            except BlockingIOError:
                continue
            except OSError:
                pass  # the program has closed it
            texts[fd] += text
            if not text:  # the worker has died
                poll.unregister(fd)
                texts[fd] += b"  "
    return {
        worker.number: texts[worker.stacks].decode(errors="replace").rstrip()
        or NO_STACK + ": the process is stopped, or waits in the kernel"
        for worker in workers
    }


def own_frames(stack: str) -> str:
    """The frames of a worker's stack without those of the program, which forked it."""
    lines = stack.split("\n")
    for number, line in enumerate(lines):
        if line.endswith((" in _run", " in _bootstrap", " in _launch")):
            return "\n".join(lines[: number + 1])
    return stack


# ---- start

_PROCESS_TYPES: dict[str, Any] = {
    "fork": ForkedWorker,
    "spawn": SpawnedWorker,
    "forkserver": forkserver.ForkServerWorker,
}


_SHORTAGES = {
    errno.EAGAIN: "no process is left for a worker process: raise that limit (ulimit -u, pids.max)",
    errno.ENOMEM: "no memory is left for a worker process: raise that of the control group (memory."
    "max), end other programs, see vm.overcommit_memory",
}


def start_process(method: str, arguments: WorkerArguments) -> Any:
    """Starts a process by a start method, which waits at the start barrier."""
    name = f"fastiter-worker-{arguments.number}"
    process = _PROCESS_TYPES[method](target=main, args=(arguments,), name=name, daemon=True)
    _processes.add(process)
    with default_method_kept(), _start_guard(method):
        this_thread.starts_worker = True
        try:
            process.start()
        except BaseException as error:
            _close_pipes_of_no_process(error)
            if isinstance(error, OSError) and error.errno in _SHORTAGES:
                error.strerror = f"{_SHORTAGES[error.errno]}, or have fewer workers"
            raise
        finally:
            this_thread.starts_worker = False
    return process


@contextlib.contextmanager
def _start_guard(method: str) -> Iterator[None]:
    """Blocks Ctrl-C while a worker starts. A fork server has it blocked already, and the wait
    for that server may be long."""
    forks = method == "fork"
    with contextlib.ExitStack() as stack:
        if method != "forkserver":
            stack.enter_context(forkserver.interrupts_blocked(not forks))
        if forks:
            stack.enter_context(fds.lock())
            # None: torch is not imported, or another thread is importing it.
            generator = getattr(sys.modules.get("torch"), "default_generator", None)
            if generator is not None:
                stack.callback(status.free_lock_at_fork, None)  # later forks may have no GIL
                status.free_lock_at_fork(generator.get_state)
        yield


def _close_pipes_of_no_process(error: BaseException) -> None:
    """Closes the pipes that multiprocessing leaves open where a fork fails."""
    if sys.version_info >= (3, 16):
        return  # not checked there: they may be closed already
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is popen_fork.Popen._launch.__code__:  # type: ignore[attr-defined]
            names = frame.f_locals
            if not hasattr(names.get("self"), "pid"):  # the fork did not return
                for name in ("parent_r", "child_w", "child_r", "parent_w"):
                    if name in names:
                        os.close(names[name])


def require_directory(start: Start) -> None:
    """Raises where the current directory is gone, in which multiprocessing starts new processes:
    its own error would not name the directory."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        context = start.caller.context
        raise FileNotFoundError(
            error.errno,
            f"the current directory is gone, and worker processes under {context}={start.method!r} "
            f"start in it: os.chdir() into one that exists, or pass {context}='fork'",
        ) from None


def _disown(processes: WeakObjects[Any]) -> None:
    """Has multiprocessing not end these, nor wait for them, when the interpreter exits."""
    getattr(multiprocessing.process, "_children", set()).difference_update(processes)


# A child of the program would take the program's workers for its own.
os.register_at_fork(after_in_child=lambda: _disown(_processes))
