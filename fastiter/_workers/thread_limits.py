"""Native libraries' pools of threads, beside forks and in workers.

A fork leaves them behind. In a worker they compute in one thread: the workers are the parallelism.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_log = logging.getLogger("fastiter")

# Parts of libraries' file names.
_OPENBLAS = "openblas"
_SETTERS = {  # with the function that sets the number of threads
    "libgomp": "omp_set_num_threads",
    "libomp": "omp_set_num_threads",
    "libiomp": "omp_set_num_threads",
    "libmkl_rt": "MKL_Set_Num_Threads",
}
# What such libraries ask when they are loaded later.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_PTHREADS = 1  # what OpenBLAS answers if its threads are neither none nor OpenMP's


def native_threads() -> int:
    """Threads of this process that Python does not know of; 0 where the system does not tell."""
    try:
        tasks = {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return 0
    return len(tasks - {thread.native_id for thread in threading.enumerate()})


def threads_that_see_forks() -> int:
    """OpenBLAS's: it ends them before a fork, and starts them again when it needs them."""
    found = (OpenBlas.of(library) for kind, library in _libraries() if kind == _OPENBLAS)
    return sum(max(0, blas.get() - 1) for blas in found if blas is not None and blas.sees_forks)


class OpenBlas(NamedTuple):
    """One copy of OpenBLAS.

    Attributes
    ----------
    get, set : callable
        For the number of threads. To set it starts the threads that a fork has ended, all of them,
        one for each processor, and each spins for some twenty milliseconds before it sleeps. Where
        one cannot be started, OpenBLAS sends the process SIGINT: `change` looks before.
    sees_forks : bool
        Whether it ends its threads before a fork.
    is_there, number : ctypes.c_int or None
        Its own words for whether there are threads, and how many; None in builds that hide them.
    """

    get: Callable[[], int]
    set: Callable[[int], None]
    sees_forks: bool
    is_there: ctypes.c_int | None
    number: ctypes.c_int | None

    @classmethod
    def of(cls, library: ctypes.CDLL) -> OpenBlas | None:
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                name = f"{prefix}openblas_{{}}{suffix}"
                if not all(
                    hasattr(library, name.format(f"{verb}_num_threads")) for verb in ("get", "set")
                ):
                    continue
                parallel = getattr(library, name.format("get_parallel"), None)
                return cls(
                    library[name.format("get_num_threads")],
                    library[name.format("set_num_threads")],
                    parallel is None or parallel() == _PTHREADS,
                    _word(library, "blas_server_avail"),
                    _word(library, "blas_cpu_number"),
                )
        return None

    def change(self, number: int) -> bool:
        """Set the number of threads; False if those that it takes cannot be started."""
        if not _can_start(max(number, self.get()) - 1 - native_threads()):
            return False
        self.set(number)
        return True

    def limit(self) -> None:
        """Have it compute in the calling thread alone, and start no threads for that if its words
        are not hidden, or one thread is what it has been told before."""
        if self.is_there is not None and self.number is not None and not self.is_there.value:
            self.number.value = 1
        elif self.get() != 1:
            self.change(1)


def _can_start(threads: int) -> bool:
    """Whether so many threads can be started now, beside those there are: tried."""
    started, end = [], threading.Event()
    try:
        for _ in range(threads):
            thread = threading.Thread(target=end.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        end.set()
        for thread in started:
            thread.join()
    return True


def _word(library: ctypes.CDLL, name: str) -> ctypes.c_int | None:
    try:
        return ctypes.c_int.in_dll(library, name)
    except ValueError:
        return None


_held_back: list[tuple[OpenBlas, int]] = []  # numbers that could not be set back


@contextlib.contextmanager
def ready_to_fork() -> Iterator[None]:
    """While the block forks workers, OpenBLAS computes in one thread where its words are hidden: so
    each worker finds it limited, and need not start all its threads to say so. They start once,
    here, when the block ends, as they would with the next use; if there is no room for them, when
    the next block ends."""
    libraries = (OpenBlas.of(library) for kind, library in _libraries() if kind == _OPENBLAS)
    hidden = [blas for blas in libraries if blas is not None and blas.number is None]
    before = [(blas, number) for blas in hidden if (number := blas.get()) > 1]
    try:
        before = [(blas, number) for blas, number in before if blas.change(1)]
        yield
    finally:
        before += _held_back
        _held_back[:] = [
            (blas, number) for blas, number in before if blas.get() == 1 and not blas.change(number)
        ]
        if _held_back:
            _log.warning(
                "OpenBLAS computes in one thread until workers are started again: its threads "
                "cannot be started now (a limit of processes or memory: ulimit -a)"
            )


def _libraries() -> Iterator[tuple[str, ctypes.CDLL]]:
    """The libraries with thread pools in this process, as (part of the name, handle)."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for path in {line[line.index("/") :] for line in lines if "/" in line and ".so" in line}:
        name = path.rpartition("/")[2]
        kind = next((kind for kind in (_OPENBLAS, *_SETTERS) if kind in name), None)
        if kind is not None:
            try:
                yield kind, ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue


def limit_threads() -> None:
    """Has native libraries of this worker process compute in the calling thread alone.

    In a forked process their pools are gone; in any other, the workers together would have more
    threads than the machine has processors. Libraries that are loaded later find it in the
    environment, unless the program has set these variables.
    """
    for variable in _VARIABLES:
        os.environ.setdefault(variable, "1")
    for kind, library in _libraries():
        if kind == _OPENBLAS:
            blas = OpenBlas.of(library)
            if blas is not None:
                blas.limit()
        elif hasattr(library, _SETTERS[kind]):
            library[_SETTERS[kind]](1)
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)  # not 1: that waits for the lost pool
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)  # it counts for itself what OpenMP and MKL may use
