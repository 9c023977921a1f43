"""Limits the thread pools of native libraries in worker processes to one thread.

The workers are the parallelism. A forked worker also has to do without the pools of the program,
since a fork copies none of their threads.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from threadpoolctl import ThreadpoolController

from fastiter._clib import status
from fastiter._util import shutdown
from fastiter._util.concurrency import lock_of_child, renew_in_child

logger = logging.getLogger("fastiter")

# Libraries read these when they are loaded.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)

# The thread of jemalloc, the allocator of pyarrow, which takes its locks before a fork and releases
# them in both processes afterwards, by pthread_atfork.
_JEMALLOC = "jemalloc_bg_thd"
_MOST_NAMES = 20  # of threads, in a message
_CALL_SECONDS = 1.0  # for calls of other threads to end
SPIN_SECONDS = 0.1  # of a thread of OpenBLAS that has nothing to compute


def native_threads() -> int:
    """Number of threads of this process that Python does not know, without threads that are
    harmless to forks; 0 if the system does not report them."""
    return sum(name != _JEMALLOC for name in names_of_native_threads())


def has_threads() -> bool:
    """Whether this process has several threads; False if the system does not report them."""
    return len(_tasks()) > 1


def names_of_threads() -> str:
    """The other threads of this process, for messages."""
    this = threading.current_thread()
    names = [repr(thread.name) for thread in threading.enumerate() if thread is not this]
    native = names_of_native_threads()
    names += [
        f"{count} named {name!r} of native libraries" for name, count in Counter(native).items()
    ]
    return ", ".join(names[:_MOST_NAMES]) + ", ..." * (len(names) > _MOST_NAMES)


def names_of_native_threads() -> list[str]:
    """System's names of the threads of this process that Python does not know; empty if the system
    does not report them."""
    names = []
    for task in _tasks() - {thread.native_id for thread in threading.enumerate()}:
        with contextlib.suppress(OSError):  # it has ended
            names.append(Path(f"/proc/self/task/{task}/comm").read_text().rstrip("\n"))
    return names


def _tasks() -> set[int]:
    """Ids of the threads of this process; empty if the system does not report them."""
    with contextlib.suppress(OSError):
        return {int(name) for name in os.listdir("/proc/self/task")}
    return set()


def threads_that_end_before_forks(pools: ThreadpoolController | None = None) -> int:
    """Threads of OpenBLAS: it ends them before a fork, and starts them when it needs them."""
    return sum(
        pool["num_threads"] - 1 for pool in (pools or _pools()).info() if _restarts_threads(pool)
    )


def _restarts_threads(pool: dict[str, Any]) -> bool:
    """Whether a pool is OpenBLAS with threads of its own."""
    return bool(pool["internal_api"] == "openblas" and pool["threading_layer"] != "openmp")


def threads_lost_in_forks(harmless: int = 0) -> int:
    """Native threads but the harmless ones, if there are more than those that OpenBLAS ends.

    Blocks for up to 0.02 seconds: the system lists a thread of Python still for a moment after it
    was joined.
    """
    native = native_threads() - harmless
    if native <= 0:
        return 0
    ended = threads_that_end_before_forks()
    give_up = time.monotonic() + 0.02
    while native > ended and time.monotonic() < give_up:
        time.sleep(0.001)
        native = native_threads() - harmless
    return native if native > ended else 0


def limit_threads(is_forked: bool = False) -> None:
    """Makes native libraries of this worker process compute in the calling thread alone.

    Libraries that are loaded later find the limit in the environment, unless the program has set
    these variables. A worker that is forked from the program inherits the limits of
    `ready_to_fork`: it must not call OpenBLAS, of which another thread may have held a lock at the
    fork.
    """
    for variable in _VARIABLES:
        os.environ.setdefault(variable, "1")
    if not is_forked:
        _parallel_pools().limit(limits=1)
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)  # 1 would wait for the threads that a fork does not copy
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)  # it keeps numbers of its own for OpenMP and MKL


class _OwnPools:
    """The limits of the program's own pools, while any of its threads forks workers."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forking: set[object] = set()  # one for each thread that forks workers now
        self._limits: list[tuple[contextlib.ExitStack, int]] = []  # and the threads to start again
        renew_in_child(self)

    def limit(self, forking: object, workers: int) -> None:
        with self._lock:
            self._forking.add(forking)
            pools = _parallel_pools()
            threads = threads_that_end_before_forks(pools)
            # An earlier fork may have ended them.
            if not _can_start(threads - native_threads(), workers):
                return
            for restarts in (True, False):  # lifted in reverse
                paths = [p["filepath"] for p in pools.info() if _restarts_threads(p) is restarts]
                limits = contextlib.ExitStack()
                with status.HandlersDeferred():  # an interrupt would leave it limited for ever
                    limits.enter_context(pools.select(filepath=paths).limit(limits=1))
                    self._limits.append((limits, threads if restarts else 0))
            if threads:
                _await_calls()

    def release(self, forking: object) -> None:
        """Ends the fork, and all limits but those of OpenBLAS, which `lift` ends."""
        with self._lock:
            self._forking.discard(forking)
            if not self._forking:
                for limits, threads in reversed(self._limits):
                    if not threads:
                        limits.close()
                self._limits = [entry for entry in self._limits if entry[1]]

    def lift(self, forking: object = None, workers: int = 0, *, ends_threads: bool = True) -> bool:
        """Lifts the limits if no other thread forks, and their threads can be started.

        Without `forking`: when workers have ended, which may leave room for the threads. A garbage
        collection may call that, in a thread for which another one waits in here: so it does not
        wait. Returns whether threads spin now, which is never with `ends_threads`.
        """
        with status.Acquired(self._lock, forking is not None) as is_held:
            if not is_held:
                return False
            self._forking.discard(forking)
            if self._forking:
                return False
            spins = False
            while self._limits:
                entry = limits, threads = self._limits[-1]
                if not _can_start(threads - native_threads(), workers):
                    break
                if entry in self._limits:  # else a garbage collection has lifted it meanwhile
                    with status.HandlersDeferred():
                        self._limits.remove(entry)
                        limits.close()
                    spins = spins or threads > 0
            if spins and ends_threads:
                end_spinning_threads()
                spins = False
            if self._limits and not shutdown.has_begun():
                logger.warning(
                    "OpenBLAS computes in one thread until workers start or end: its threads "
                    "cannot be started now (a limit of processes or memory: ulimit -a)"
                )
            return spins

    def _after_fork(self) -> None:
        self._lock = lock_of_child(self._lock)
        self._forking = set()


own_pools = _OwnPools()
_known: tuple[int, Any] = (-1, None)  # library changes, and the pools at that time


@contextlib.contextmanager
def ready_to_fork(workers: int, *, lifts: bool = True) -> Iterator[None]:
    """Limits the program's own pools to one thread while the block forks one of so many `workers`,
    which inherit that. To limit them in a worker would start all threads of OpenBLAS there, one for
    each processor, each of which spins for `SPIN_SECONDS`. Here they start after the block, and end
    at once. Unless it `lifts`: OpenBLAS is limited until ``own_pools.lift()`` then.
    """
    forking = object()
    try:
        own_pools.limit(forking, workers)
        yield
    finally:
        if lifts:
            own_pools.lift(forking, workers)
        else:
            own_pools.release(forking)


def end_spinning_threads() -> None:
    """Ends the threads of OpenBLAS until the program needs them. Not beside another thread of
    Python: a call of it that they compute for would never return."""
    if threading.active_count() == 1:
        status.run_fork_handlers()


def _await_calls() -> None:
    """Waits for calls that other threads of Python have begun in several threads of OpenBLAS.

    A fork ends these threads, and such a call would never return. Calls that begin later compute in
    one thread. A thread that waits for its call runs, by what the system says; those of OpenBLAS
    do for `SPIN_SECONDS` after it.
    """
    this, give_up = threading.get_native_id(), time.monotonic() + _CALL_SECONDS
    while time.monotonic() < give_up:
        others = {thread.native_id for thread in threading.enumerate()} - {this, None}
        native = _tasks() - others - {this}
        if not (any(map(_runs, others)) and any(map(_runs, native))):
            return
        time.sleep(0.002)


def _runs(task: int | None) -> bool:
    with contextlib.suppress(OSError):  # it has ended
        stat = Path(f"/proc/self/task/{task}/stat").read_bytes()
        return stat.rpartition(b") ")[2][:1] == b"R"
    return False


def _pools() -> ThreadpoolController:
    """All pools, looked for anew only where libraries have been loaded since."""
    global _known
    if (changes := status.library_changes()) != _known[0]:
        _known = changes, ThreadpoolController()
    return _known[1]


def _parallel_pools() -> ThreadpoolController:
    """The pools that have more than one thread. To set the number of any other to one is not
    needed, and would start the threads that OpenBLAS had before."""
    pools = _pools()
    paths = [pool["filepath"] for pool in pools.info() if (pool["num_threads"] or 1) > 1]
    return pools.select(filepath=paths)


def _can_start(count: int, workers: int) -> bool:
    """Whether this process can start so many threads now, even if each of the workers starts one
    meanwhile: tried, since OpenBLAS sends the process SIGINT where it cannot start a thread."""
    return count <= 0 or status.can_start_threads(count + workers)
