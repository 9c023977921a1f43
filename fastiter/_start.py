"""How worker processes start, where the program leaves it open, and thread pools beside forks.

A fork copies one thread. Pools of native threads (OpenMP's, OpenCV's, CUDA's) are gone in the
child, which does not know it and waits for them for ever; locks that other threads held stay
locked. So a fork is avoided where it can be, and what cannot be avoided gets along without pools.
"""

from __future__ import annotations

import ast
import ctypes
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

logger = logging.getLogger("fastiter")

# Functions that set the number of threads, and tell it, by a part of the library's file name.
_SETTERS = {
    "openblas": [
        f"{prefix}openblas_set_num_threads{suffix}"
        for prefix in ("scipy_", "")
        for suffix in ("64_", "")
    ],
    "libgomp": ["omp_set_num_threads"],
    "libomp": ["omp_set_num_threads"],
    "libiomp": ["omp_set_num_threads"],
    "libmkl_rt": ["MKL_Set_Num_Threads"],
}
# What such libraries ask when they are loaded later.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_PTHREADS = 1  # what OpenBLAS answers if its threads are neither none nor OpenMP's


class Start(NamedTuple):
    """How to start workers."""

    context: Any  # of multiprocessing
    fallback: Any = None  # to take where the dataset does not pickle; None: that is an error


def choose(context: Any) -> Start:
    """The start method for `context`, the argument of an iterator.

    What the program has set is never overridden: neither that argument, nor
    `multiprocessing.set_start_method`. Otherwise it is the interpreter's default, except that a
    fork which is unsafe now gives way to the fork server, if the main module can be imported.
    """
    chosen = context or multiprocessing.get_start_method(allow_none=True)
    if chosen is not None:
        return Start(multiprocessing.get_context(chosen))
    methods = multiprocessing.get_all_start_methods()
    default = multiprocessing.get_context(methods[0])
    if methods[0] != "fork" or "forkserver" not in methods:
        return Start(default)
    reason = why_not_fork()
    if reason is None:
        return Start(default)
    if not main_is_importable():
        logger.info("workers are forked although %s: the main module cannot be imported", reason)
        return Start(default)
    logger.info("workers are started by a fork server, since %s", reason)
    return Start(multiprocessing.get_context("forkserver"), default)


def why_not_fork() -> str | None:
    """What makes a fork of this process unsafe at this moment; None if nothing is known."""
    try:
        tasks = {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return None
    threads = threading.enumerate()
    native = len(tasks - {thread.native_id for thread in threads})
    if native > 0 and native > _threads_that_see_forks():
        return f"{native} threads of native libraries live in this process"
    others = [t.name for t in threads if t is not threading.current_thread() and not _is_idle(t)]
    if others:
        return f"the thread {others[0]!r} runs beside this one"
    if _uses_cuda():
        return "CUDA is initialised in this process"
    return None


def main_is_importable() -> bool:
    """Whether the main module has a file and a guard, so that importing it again does not run the
    program again."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None:
        return False
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.If) and _is_guard(node.test) for node in tree.body)


def _is_guard(test: ast.expr) -> bool:
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    values = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    return "__name__" in names and "__main__" in values


def _is_idle(thread: threading.Thread) -> bool:
    """A progress bar's thread, which does nothing but wait."""
    return type(thread).__module__.partition(".")[0] == "tqdm"


def _uses_cuda() -> bool:
    try:
        links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd")]
    except OSError:
        return False
    return any(link.startswith("/dev/nvidia") for link in links)


def _threads_that_see_forks() -> int:
    """OpenBLAS's: it ends them before a fork, and starts them again when it needs them."""
    count = 0
    for kind, library in _libraries():
        if kind != "openblas":
            continue
        for prefix in ("scipy_", ""):
            for suffix in ("64_", ""):
                name = f"{prefix}openblas_get_{{}}{suffix}"
                if hasattr(library, name.format("num_threads")):
                    parallel = getattr(library, name.format("parallel"), None)
                    if parallel is None or parallel() == _PTHREADS:
                        count += max(0, library[name.format("num_threads")]() - 1)
    return count


def _number_of_lost_threads(library: ctypes.CDLL) -> ctypes.c_int | None:
    """Where OpenBLAS keeps its number of threads, if a fork has ended them; otherwise None.

    Its own function starts all of them again before it sets that number, one for each processor,
    and each spins for some twenty milliseconds before it sleeps.
    """
    try:
        is_there = ctypes.c_int.in_dll(library, "blas_server_avail").value
        return None if is_there else ctypes.c_int.in_dll(library, "blas_cpu_number")
    except ValueError:  # another build, which hides them
        return None


def _libraries() -> Iterator[tuple[str, ctypes.CDLL]]:
    """The libraries with thread pools in this process, as (key of _SETTERS, handle)."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for path in {line[line.index("/") :] for line in lines if "/" in line and ".so" in line}:
        name = path.rpartition("/")[2]
        kind = next((kind for kind in _SETTERS if kind in name), None)
        if kind is not None:
            try:
                yield kind, ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:
                continue


def limit_pools() -> None:
    """Has native libraries of this worker process compute in the calling thread alone.

    In a forked process their pools are gone; in any other, the workers together would have more
    threads than the machine has processors. Libraries that are loaded later find it in the
    environment, unless the program has set these variables.
    """
    for variable in _VARIABLES:
        os.environ.setdefault(variable, "1")
    for kind, library in _libraries():
        lost = _number_of_lost_threads(library) if kind == "openblas" else None
        if lost is not None:
            lost.value = 1
            continue
        for name in _SETTERS[kind]:
            if hasattr(library, name):
                library[name](1)
    cv2 = sys.modules.get("cv2")
    if cv2 is not None and hasattr(cv2, "setNumThreads"):
        cv2.setNumThreads(0)  # not 1: that waits for the lost pool
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        torch.set_num_threads(1)  # it counts for itself what OpenMP and MKL may use
