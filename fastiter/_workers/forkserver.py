"""Starts workers by a fork server that belongs to fastiter alone.

The fork server of multiprocessing belongs to the program: modules to import and a mask of signals
would be set for all other processes of the program, too. So a second server of the same kind runs
here. Ctrl-C is blocked in it, and in each of its workers from the first instruction on. It imports
the modules of all workers once (`fastiter._workers.forkserver_preload`): fastiter, the main module,
modules that the pickle of the dataset names, and the arguments of `set_forkserver_preload`.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import functools
import importlib.machinery
import io
import os
import pickle
import resource
import signal
import site
import socket
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import (
    forkserver,
    popen_forkserver,
    process,
    reduction,
    resource_tracker,
    spawn,
    util,
)
from multiprocessing.context import ForkServerProcess, set_spawning_popen
from pathlib import Path
from typing import Any, NamedTuple

import fastiter.errors
from fastiter._clib import status
from fastiter._util import fds
from fastiter._util.start_default import default_method_kept
from fastiter._workers import start_method

#: The environment variable that tells a server what to import.
PRELOAD = "_FASTITER_PRELOAD"
_MOST_TEXT = 100_000  # characters of it; Linux takes 128 KiB
_PRELOAD_SECONDS = 60.0  # for these imports; what takes longer is left to each worker
_STILL_IMPORTS = "the fork server still imports the modules of the program"
_HASH_SEED = "PYTHONHASHSEED"
# Those settings of multiprocessing for a new process that it needs to import the main module.
_NEEDED = ("name", "sys_path", "sys_argv", "init_main_from_name", "init_main_from_path")

_MOST_DESCRIPTORS = forkserver.MAXFDS_TO_SEND - 5  # it sends four of its own

_server = forkserver.ForkServer()
_preloads = True  # until a start has failed


@contextlib.contextmanager
def interrupts_blocked(needs_tracker: bool = True) -> Iterator[None]:
    """Blocks Ctrl-C in this process, and in processes that start within the block. A terminal sends
    it to all processes of a program: a worker gets it when it is ready to ignore it."""
    if needs_tracker:
        resource_tracker.ensure_running()  # its start would unblock SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # may raise what came before it
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def ensure_running(modules: Iterable[str] = ()) -> None:
    """Starts the server, if it does not run, and waits for nothing. It imports `modules`, and the
    main module, unless the program has asked multiprocessing for a server that does not."""
    theirs = list(forkserver._forkserver._preload_modules)  # type: ignore[attr-defined]
    # One that has died at once may break the pipe of its key: the start of a worker tells of it.
    with contextlib.suppress(BrokenPipeError), interrupts_blocked(), default_method_kept():
        if _preloads and _is_found_by_others():
            _server.set_forkserver_preload(["fastiter._workers.forkserver_preload"])
            wanted = theirs if "__main__" not in theirs else [*theirs, *modules]
            _ensure_running({PRELOAD: _preload_text(wanted)})
        else:
            _server.set_forkserver_preload(theirs)
            _ensure_running({})


def _ensure_running(variables: dict[str, str]) -> None:
    """Starts the server with the hash seed of this process, where its environment had one. Sets and
    strings are in the same order then."""
    variables = {**variables, **_initial_hash_seed()}
    before = {name: os.environ.get(name) for name in variables}
    before = {name: value for name, value in before.items() if value != variables[name]}
    os.environ.update({name: variables[name] for name in before})
    try:
        try:
            _server.ensure_running()
        except ChildProcessError:  # it has died, and a handler of SIGCHLD, or the kernel, knows how
            _forget_server()
            _server.ensure_running()
    except OSError as error:
        if error.errno is None:  # the name of its socket is too long
            raise OSError(f"{error}, in {tempfile.gettempdir()}: set a shorter TMPDIR") from None
        if error.errno == errno.ENOENT:
            error.filename = error.filename or util.get_temp_dir()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    address = _server._forkserver_address  # type: ignore[attr-defined]
    if address[0] != "\0" and not os.path.exists(address):  # no file before 3.10.9, 3.11.1
        raise FileNotFoundError(
            errno.ENOENT,
            "the fork server's socket is gone, so that no worker can start: something has emptied "
            "the folder of temporary files. Set TMPDIR to one that stays, or use the start method "
            "'spawn' or 'fork'",
            address,
        )


@functools.cache
def _initial_hash_seed() -> dict[str, str]:
    """The variable as the interpreter has found it, whatever the program has set since."""
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            name, _, value = os.fsdecode(entry).partition("=")
            if name == _HASH_SEED:
                return {name: value}
    return {}


def _preload_text(modules: list[str]) -> str:
    """Text for `forkserver_preload`: a dict for `spawn.prepare`, and names of modules."""
    data = spawn.get_preparation_data("fastiter-forkserver")
    needed = {key: data[key] for key in _NEEDED if key in data}
    if "__main__" not in modules or not start_method.main_is_importable():
        needed = {key: value for key, value in needed.items() if not key.startswith("init_main")}
    text = base64.b64encode(pickle.dumps((needed, modules))).decode()
    return text if len(text) <= _MOST_TEXT else ""


def _is_found_by_others() -> bool:
    """Whether a fresh interpreter would find this copy of the package. A server does not know
    the program's changes of `sys.path`, and must not import another copy."""
    places = [] if sys.flags.isolated or getattr(sys.flags, "safe_path", False) else [""]
    if not sys.flags.ignore_environment:
        places += os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    for packages in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        places += [packages, *_pth_folders(packages)]
    spec = importlib.machinery.PathFinder.find_spec("fastiter", places)
    if spec is None or spec.origin is None:
        return False
    return os.path.dirname(spec.origin) == os.path.dirname(fastiter.errors.__file__)


def _pth_folders(packages: str) -> Iterator[str]:
    """The folders that `packages` adds to the path of a fresh interpreter, as an editable install
    does: lines of its ``.pth`` files that are no comments or statements."""
    for file in sorted(Path(packages).glob("*.pth")):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            for line in file.read_text().splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield os.path.join(packages, line.rstrip())


def _forget_server() -> None:
    """Begins anew: the server has ended; or, in a forked child, it is the parent's."""
    global _server
    before: Any = _server
    _server = forkserver.ForkServer()
    _server.set_forkserver_preload(before._preload_modules)
    if before._forkserver_alive_fd is not None:
        os.close(before._forkserver_alive_fd)


os.register_at_fork(after_in_child=_forget_server)


class _Popen(popen_forkserver.Popen):
    """As multiprocessing's, with another server."""

    def _launch(self, process_obj: Any) -> None:
        message = io.BytesIO()
        data = spawn.get_preparation_data(process_obj.name)
        main = {key: data.pop(key) for key in list(data) if key.startswith("init_main")}
        process_obj.origin = ProcessSettings.of_this(main)
        set_spawning_popen(self)
        try:
            reduction.dump(data, message)
            reduction.dump(process_obj, message)
        finally:
            set_spawning_popen(None)
            del process_obj.origin
        descriptors = self._fds  # type: ignore[attr-defined]
        if len(descriptors) > _MOST_DESCRIPTORS:
            raise ValueError(
                f"the dataset holds {len(descriptors)} queues, connections or tensors in shared "
                f"memory, and a fork server takes {_MOST_DESCRIPTORS} at most: have one tensor in "
                "the place of many, torch.multiprocessing.set_sharing_strategy('file_system'), or "
                "the start method 'spawn'"
            )
        with interrupts_blocked():
            _ensure_running({})
        _wait_for_answer()
        with interrupts_blocked(), _sigpipe_ignored():
            self.sentinel, pipe = _server.connect_to_new_process(descriptors)
            # The child takes the closing of this duplicate for the end of its parent.
            ends = (os.dup(pipe), self.sentinel)
            self.finalizer = util.Finalize(self, util.close_fds, ends)  # type: ignore[attr-defined]
            # A child that has died already is noticed as one that dies later.
            with contextlib.suppress(BrokenPipeError), open(pipe, "wb") as stream:
                stream.write(message.getbuffer())
        # The server may still import; Ctrl-C is heard meanwhile.
        if not fds.events(self.sentinel, _PRELOAD_SECONDS):
            raise ConnectionError(_STILL_IMPORTS)
        self.pid = forkserver.read_signed(self.sentinel)


def _wait_for_answer() -> None:
    """Waits until the server answers connections, and so has imported its modules; Ctrl-C is heard.

    From CPython 3.14 on a request for a process begins with the server's proof that it has the key.
    Before, the server takes requests while it imports.
    """
    if getattr(_server, "_forkserver_authkey", None) is None:
        return
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(_server._forkserver_address)  # type: ignore[attr-defined]
            if not fds.events(connection.fileno(), _PRELOAD_SECONDS):
                raise ConnectionError(_STILL_IMPORTS)
        finally:
            # The server takes a closed connection for a program that has vanished. But one closed
            # with bytes that were not read is an error, which would end the server.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                connection.recv(4096)


@contextlib.contextmanager
def _sigpipe_ignored() -> Iterator[None]:
    """Makes a write to a pipe without a reader an error, whatever the program does at SIGPIPE."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in mask and signal.SIGPIPE in signal.sigpending():
            signal.sigwait({signal.SIGPIPE})
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def give_up(seconds: float) -> None:
    """Ends a server that has failed to start a worker, and waits for its end: it may still be on
    its way out, and would break off the next start too. The next server imports no modules of the
    program, since these imports may have failed."""
    global _preloads
    _preloads = False
    pid = _server._forkserver_pid  # type: ignore[attr-defined]
    end = status.now() + seconds
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # It stays to be waited for: that is the business of multiprocessing.
    options = os.WEXITED | os.WNOWAIT | os.WNOHANG
    with contextlib.suppress(ChildProcessError, AttributeError):  # AttributeError: no os.waitid
        while pid is not None and os.waitid(os.P_PID, pid, options) is None and status.now() < end:
            time.sleep(0.005)


class ProcessSettings(NamedTuple):
    """Settings that a forked worker would inherit from the program, and that a worker of the server
    inherits as they were at the server's start."""

    environment: dict[bytes, bytes]
    umask: int | None
    limits: dict[int, tuple[int, int]]  # soft and hard
    cpus: set[int] | None
    niceness: int
    main_module: dict[str, Any]  # what `spawn.prepare` takes to import it

    @classmethod
    def of_this(cls, main_module: dict[str, Any]) -> ProcessSettings:
        cpus = None
        with contextlib.suppress(AttributeError, OSError):  # not there, or refused by a sandbox
            cpus = os.sched_getaffinity(0)
        limits = {kind: resource.getrlimit(kind) for kind in _LIMITS}
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        return cls(dict(os.environb), _umask(), limits, cpus, niceness, main_module)

    def apply(self) -> None:
        """Gives this process the same, as far as it may."""
        for name in set(os.environb) - set(self.environment):
            del os.environb[name]
        os.environb.update(self.environment)
        if self.umask is not None:
            os.umask(self.umask)
        for kind, limits in self.limits.items():
            if limits != resource.getrlimit(kind):
                with contextlib.suppress(ValueError, OSError):
                    resource.setrlimit(kind, limits)
        if self.cpus is not None and self.cpus != os.sched_getaffinity(0):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, self.cpus)
        if self.niceness != os.getpriority(os.PRIO_PROCESS, 0):
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, self.niceness)


def _umask() -> int | None:
    """The mask of new files, which the system's own functions tell only by setting another."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return None


_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name[:7] == "RLIMIT_"})


class ForkServerWorker(ForkServerProcess):
    origin: ProcessSettings

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)

    def run(self) -> None:
        self.origin.apply()
        super().run()


def import_main_module() -> BaseException | None:
    """In a worker of the server, imports the program's main module; returns what it raises."""
    this: Any = process.current_process()
    origin: ProcessSettings | None = getattr(this, "origin", None)
    if origin is None:
        return None
    this._inheriting = True  # the module may start no processes
    try:
        spawn.prepare(origin.main_module)
    except BaseException as error:
        return error
    finally:
        del this._inheriting
    return None
