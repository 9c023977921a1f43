"""Imports modules in a fork server, once for all of its workers; limits native threads there."""

from __future__ import annotations

import atexit
import base64
import contextlib
import gc
import importlib
import multiprocessing.forkserver
import os
import pickle
import signal
import socket
import sys
from multiprocessing import process, spawn
from types import FrameType
from typing import Any

from fastiter._util import fds
from fastiter._workers import forkserver, start_method, thread_limits
from fastiter._workers import main as worker


def _preload(text: str) -> bool:
    """Imports the main module, as `__mp_main__`, and other modules. False if an import has failed:
    libraries that were half imported cannot be imported again in this process, or in its children.
    The workers try it anew and report the error."""
    data, modules = pickle.loads(base64.b64decode(text))
    process.current_process()._inheriting = True  # type: ignore[attr-defined]
    try:
        spawn.prepare(data)
        for name in modules:  # __main__ is one, and is there already
            _import(name)
    except BaseException:
        return False
    finally:
        del process.current_process()._inheriting  # type: ignore[attr-defined]
        worker.flush_streams()  # or each worker would print it again
    return True


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Nothing was imported of one that the program has made itself.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise


def _names_in_server() -> dict[str, Any]:
    """Local variables of the server's main function."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not multiprocessing.forkserver.main.__code__:
        frame = frame.f_back
    # A copy: from CPython 3.13 on f_locals is no dict, and its keys() are a list.
    return {} if frame is None else dict(frame.f_locals)


def _give_key_again() -> None:
    """From CPython 3.14 on a server begins by reading a key from a pipe of the program."""
    names = _names_in_server()
    key, fd = names.get("authkey"), names.get("authkey_r")
    if key and fd is not None:
        read, write = os.pipe()
        os.write(write, key)
        os.dup2(read, fd)
        os.set_inheritable(fd, True)  # where it is `read`, too


def _remove_address(server: int, alive: int, path: str) -> None:
    """At the server's end, removes what multiprocessing leaves if the program is killed: the name
    of the server's socket, and its temporary folder. `alive`: a pipe that ends with the program."""
    if os.getpid() != server or not fds.events(alive, 0.0):  # a worker; the program needs both
        return
    with contextlib.suppress(OSError, ValueError):  # the latter of a socket that has no file
        os.unlink(path)
        os.rmdir(os.path.dirname(path))


def _begin() -> None:
    if {"listener_fd", "alive_r"} <= (names := _names_in_server()).keys():
        with socket.socket(fileno=os.dup(names["listener_fd"])) as listener:
            path = listener.getsockname()
        atexit.register(_remove_address, os.getpid(), names["alive_r"], path)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})  # which tells it of workers' ends
    text = os.environ.pop(forkserver.PRELOAD, "")
    thread_limits.limit_threads()
    if not text:
        return
    threads, files = thread_limits.native_threads(), start_method.open_files()
    is_complete = _preload(text)
    thread_limits.limit_threads()
    if (
        not is_complete
        or start_method.why_not_fork(threads) is not None
        or start_method.open_files() - files
    ):
        # Workers would lack these threads, and share the positions of these files: start the server
        # again without these imports.
        _give_key_again()
        os.execv(sys.executable, sys.orig_argv)


_begin()
gc.freeze()  # or a collection in a worker copies the pages of all modules' objects
