"""A fork server of the workers' own.

multiprocessing's forkserver is the program's: what is set for it, modules to import or a mask of
signals, would be set for all other processes of the program. The server here is a second one of the
same kind. It starts with Ctrl-C blocked, and so does every worker of it, from its first instruction
on; it has imported what workers need, once for all of them; and it imports what the program asked
multiprocessing's to import.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import os
import site
import sys
import sysconfig
import time
from multiprocessing import forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from typing import Any

from fastiter import _system, errors

_server = forkserver.ForkServer()


def ensure_running() -> None:
    """Starts the server, if it does not run, and waits for nothing. The caller has blocked SIGINT,
    and started multiprocessing's resource tracker, which would unblock it."""
    theirs = list(forkserver._forkserver._preload_modules)  # type: ignore[attr-defined]
    ours = ["fastiter._served"] if _is_found_by_others() else []
    _server.set_forkserver_preload(theirs + ours)
    _server.ensure_running()


def _is_found_by_others() -> bool:
    """Whether a fresh interpreter would find this copy of the package. A server does not learn
    what the program has done to its `sys.path`, and must not import another copy."""
    places = [] if sys.flags.isolated or getattr(sys.flags, "safe_path", False) else [""]
    if not sys.flags.ignore_environment:
        places += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    spec = importlib.machinery.PathFinder.find_spec("fastiter", places + packages)
    if spec is None:  # an editable install, whose finder is started by a .pth file beside it
        finders = (finder for finder in sys.meta_path if _place_of(finder) in packages)
        specs = (finder.find_spec("fastiter", None) for finder in finders)
        spec = next(filter(None, specs), None)
    if spec is None or spec.origin is None:
        return False
    return os.path.dirname(spec.origin) == os.path.dirname(errors.__file__)


def _place_of(finder: Any) -> str | None:
    """The directory of the module that a finder comes from."""
    file = getattr(sys.modules.get(finder.__module__), "__file__", None)
    return None if file is None else os.path.dirname(file)


def _forget_server() -> None:
    """In a forked child: the server is the parent's, and ends with it."""
    global _server
    if _server._forkserver_alive_fd is not None:  # type: ignore[attr-defined]
        os.close(_server._forkserver_alive_fd)  # type: ignore[attr-defined]
    _server = forkserver.ForkServer()


os.register_at_fork(after_in_child=_forget_server)


def _close_all(descriptors: tuple[int, ...]) -> None:
    for fd in descriptors:
        os.close(fd)


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's, with another server."""

    def _launch(self, process_obj: Any) -> None:
        message = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), message)
            reduction.dump(process_obj, message)
        finally:
            set_spawning_popen(None)
        descriptors = self._fds  # type: ignore[attr-defined]
        self.sentinel, pipe = _server.connect_to_new_process(descriptors)
        # The child takes the closing of this duplicate for the end of its parent.
        ends = (os.dup(pipe), self.sentinel)
        self.finalizer = util.Finalize(self, _close_all, (ends,))
        with open(pipe, "wb") as stream:
            stream.write(message.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


def wait_for_end(seconds: float) -> None:
    """Waits, `seconds` at most, for the end of a server that has broken off a start: it may still
    be on its way out, and would break off the next start too."""
    pid = _server._forkserver_pid  # type: ignore[attr-defined]
    end = _system.now() + seconds
    # It stays to be waited for: that is the business of multiprocessing.
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    with contextlib.suppress(ChildProcessError, AttributeError):  # AttributeError: no os.waitid
        while pid is not None and os.waitid(os.P_PID, pid, options) is None and _system.now() < end:
            time.sleep(0.005)


class ForkedWorker(ForkServerProcess):
    """A process that this server starts."""

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)
