"""How worker processes start, where the program leaves it open.

A fork copies one thread. Pools of native threads (OpenMP's, OpenCV's, CUDA's) are gone in the
child, which does not know it and waits for them for ever; locks that other threads held stay
locked. So a fork is avoided where it can be, and what cannot be avoided gets along without pools
(`fastiter._pools`).
"""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from fastiter import _pools

logger = logging.getLogger("fastiter")


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
    native = _pools.native_threads()
    if native > 0 and native > _pools.threads_that_see_forks():
        return f"{native} threads of native libraries live in this process"
    this = threading.current_thread()
    others = [t.name for t in threading.enumerate() if t is not this and not _is_idle(t)]
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
