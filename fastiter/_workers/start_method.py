"""Chooses how worker processes start: as the program's own multiprocessing would start them.

A fork copies one thread. The threads of native libraries are missing in the child, and locks that
other threads held stay locked. So ``context='safe'`` avoids forks beside threads where that is
possible. Forked workers do without pools of threads (`fastiter._workers.thread_limits`), and those
that wait for such a lock are found (`fastiter._workers.process_group`).
"""

from __future__ import annotations

import ast
import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fastiter._util.concurrency import ThreadOfNoLocks
from fastiter._util.loaded import loaded
from fastiter._util.warn import warn_caller
from fastiter._workers import thread_limits

logger = logging.getLogger("fastiter")

#: The value of ``context=`` that takes the fork server instead of an unsafe fork.
SAFE = "safe"
# Names in a condition that makes a part of the main module run in the program alone: it asks for
# the name of the module, or of the process (`multiprocessing.current_process().name`).
_GUARDS = {"__name__", "current_process"}
_CUDA_ARRAY = "__cuda_array_interface__"
_DEEPEST = 4  # datasets in datasets that are looked at for memory of a GPU

_warned = False  # whether this program was warned of an unsafe fork


class Caller(NamedTuple):
    """The code that starts workers, in words for the advice in messages."""

    context: str = "context"  # its argument that takes the start method, if it has one
    early: str = "iterator.start()"  # the call that starts the workers
    instead: str = "use threads (MultithreadIterator)"  # what needs no worker processes

    @property
    def to_fork(self) -> str:
        call = "call multiprocessing.set_start_method('fork') before"
        return f"pass {self.context}='fork'" if self.context else call


class Start(NamedTuple):
    context: Any  # of multiprocessing
    caller: Caller
    is_safe: bool = False  # whether the fork server takes the place of an unsafe fork
    why: str = ""  # what keeps it from that; "": nothing is known
    fallback: Any = None  # context to take where the dataset does not pickle; None: an error

    @property
    def method(self) -> str:
        name: str = self.context.get_start_method()
        return name

    def now(self) -> Start:
        """Start method of the next worker, given the present threads of this process. If it
        `is_safe`, the fork server replaces a fork that would be unsafe; if it cannot, there is a
        warning, once."""
        reason = why_not_fork() if self.is_safe and self.method == "fork" else None
        if reason is None:
            return self
        why = self.why or _why_no_server()
        if why:
            _tell_of_fork(reason, why, self.caller)
            return self
        logger.info("workers are started by a fork server, since %s", reason)
        return self.without_fork()

    def without_fork(self) -> Start:
        """The fork server instead of a fork, if it `is_safe` and a fork server is possible."""
        if not self.is_safe or self.method != "fork" or _why_no_server():
            return self
        server = multiprocessing.get_context("forkserver")
        return Start(server, self.caller, fallback=self.context)


def default_method() -> str:
    """Method set by `multiprocessing.set_start_method`, else the interpreter's default. Asking
    multiprocessing itself would set this default."""
    return (
        multiprocessing.get_start_method(allow_none=True)
        or multiprocessing.get_all_start_methods()[0]
    )


def choose(context: str | None, caller: Caller) -> Start:
    """The start method for `context`, the argument of an iterator, reader or loader: a method's
    name, "safe", or None for the default of multiprocessing."""
    method = default_method() if context in (None, SAFE) else context
    if method not in ("fork", "spawn", "forkserver"):
        raise ValueError(
            f"workers cannot start by {method!r}, the start method that a library has set in this "
            f"process, as joblib does in its own workers: {caller.to_fork}, or 'spawn'"
        )
    return Start(multiprocessing.get_context(method), caller, context == SAFE).now()


def why_not_fork(harmless: int = 0) -> str | None:
    """Reason why a fork of this process may be unsafe at this moment; None if none is known.
    ``harmless`` native threads are known to be harmless."""
    native = thread_limits.threads_lost_in_forks(harmless)
    if native:
        return f"{native} threads of native libraries live in this process"
    this = threading.current_thread()
    # Threads of tqdm, for its progress bars, only wait.
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not this
        and not isinstance(thread, ThreadOfNoLocks)
        and type(thread).__module__.partition(".")[0] != "tqdm"
    ]
    if others:
        return f"the thread {others[0]!r} runs beside this one"
    if any(" /dev/nvidia" in each for each in open_files()):
        return "CUDA is initialised in this process"
    return None


def open_files() -> set[str]:
    """Open descriptors, each with its file, as far as the system tells."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return {entry for entry in found if "/proc/" not in entry}


def _why_no_server() -> str:
    """Reason why a fork server cannot start workers; "" if none is known."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "this system has no fork server"
    if _main_file() is None:
        return "the main module has no file that a worker could import"
    if not main_is_importable():
        return (
            "the main module has no if __name__ == '__main__' guard around its running code: a "
            "worker that imports it would run the program again"
        )
    return ""


def _tell_of_fork(reason: str, why: str, caller: Caller) -> None:
    if _main_file() is None:
        # A notebook: it always has threads, and only a fork is possible.
        logger.info("workers are forked although %s: %s", reason, why)
    else:
        _warn_once(
            f"worker processes are forked although {reason}: they may hang, since what other "
            f"threads hold locked stays locked in a forked process. They are forked because {why}. "
            "A fork server needs a dataset that pickles, and a main module with a guard. Or start "
            f"the workers before there are such threads ({caller.early})"
        )


def warn_of_fork(datasets: Iterable[Any], caller: Caller) -> None:
    """Warn, once in a program, of two things that fail in forked workers: threads of gRPC, and
    GPU memory in one of `datasets`.

    Other threads are no reason to warn. Most programs have threads, and most forks beside them
    succeed; a worker that waits for a lock of such a thread is found, and replaced.
    """
    if _warned:
        return
    if any(name.startswith("grpc") for name in thread_limits.names_of_native_threads()):
        what = "gRPC has threads in this process, and cannot be used in a forked one"
    elif any(map(_holds_gpu_memory, datasets)):
        what = "the dataset holds arrays of a GPU, which a forked process cannot use"
    else:
        return
    _warn_once(
        f"worker processes are forked, and {what}. Pass {caller.context}={SAFE!r}: a fork server "
        "starts the workers then (the dataset has to pickle, and the main module needs an if "
        "__name__ == '__main__' guard)"
    )


def _holds_gpu_memory(dataset: Any) -> bool:
    """Whether an attribute of a dataset, or of a wrapped dataset, is an array of a GPU."""
    tensor = loaded("torch", "Tensor")
    for _ in range(_DEEPEST):
        attributes = getattr(dataset, "__dict__", {})
        for value in list(attributes.values()):
            for item in value if type(value) in (list, tuple) and len(value) < 16 else (value,):
                if isinstance(item, tensor):
                    if item.is_cuda:
                        return True
                # Of CuPy or Numba. JAX has it too, and raises where the array is not on a GPU.
                elif all(hasattr(it, _CUDA_ARRAY) for it in (type(item), item)):
                    return True
        dataset = attributes.get("dataset")
    return False


def _warn_once(text: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warn_caller(text, RuntimeWarning)


# ---- the main module -----------------------------------------------------------------------------


def main_is_importable() -> bool:
    """Whether the main module has a file and a guard, so that importing it again does not run the
    program again."""
    tree = _main_tree()
    return (
        tree is not None
        and any(isinstance(node, ast.If) and _is_guard(node.test) for node in tree.body)
        and _unguarded_line(tree, {"__name__"}) is None
    )


def refuse_daemons(caller: Caller) -> None:
    """RuntimeError in a daemonic process, which may have no children."""
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            "worker processes cannot be started in a daemonic process: create that process with "
            f"daemon=False, or {caller.instead}"
        )


def require_guard(start: Start) -> None:
    """RuntimeError if workers that import the main module would run its present line, too, or could
    not import it."""
    imports, path = start.method != "fork" and _is_imported_by_workers(), _main_file()
    if imports and path is not None and not os.path.exists(path):
        raise RuntimeError(
            f"workers that start by {start.method!r} import the program's main module, and {path} "
            f"is no file: put the program into one, or {start.caller.to_fork}, or "
            f"{start.caller.instead}"
        )
    tree = _main_tree() if imports else None
    line = None if tree is None else _unguarded_line(tree, _GUARDS)
    if line is not None:
        raise RuntimeError(
            f"worker processes are started by line {line} of {path}, which has no guard: "
            f"workers that start by {start.method!r} import this file, and would run that line, "
            f"too. Put the program's code under if __name__ == '__main__':, or "
            f"{start.caller.to_fork}, or {start.caller.instead}"
        )


def _is_imported_by_workers() -> bool:
    """Whether multiprocessing imports the main module at all: not for `python -m package`, nor for
    a frozen program, whose workers run its executable again, up to ``freeze_support()``."""
    if getattr(sys, "frozen", False):
        return False
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    name: str = getattr(spec, "name", None) or ""
    return not (name == "__main__" or name.endswith(".__main__"))


def _main_file() -> str | None:
    return getattr(sys.modules.get("__main__"), "__file__", None)


def _main_tree() -> ast.Module | None:
    path = _main_file()
    if path is None:
        return None
    try:
        return ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def _unguarded_line(tree: ast.Module, guards: set[str]) -> int | None:
    """The line of the main module that the main thread runs, if no condition around it names one of
    `guards`; None if the module has ended."""
    namespace = vars(sys.modules["__main__"])
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals is namespace:
            break
        frame = frame.f_back
    if frame is None or Path(frame.f_code.co_filename).name != Path(_main_file() or "").name:
        return None
    line = frame.f_lineno
    around = (
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp))
        and node.lineno <= line <= (node.end_lineno or 0)
    )
    is_guarded = any(guards & _names_in(getattr(node, "test", node)) for node in around)
    return None if is_guarded else line


def _names_in(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _is_guard(test: ast.expr) -> bool:
    values = {node.value for node in ast.walk(test) if isinstance(node, ast.Constant)}
    return "__name__" in _names_in(test) and "__main__" in values
