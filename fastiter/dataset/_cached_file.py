"""Locks between threads and processes, and atomic replacement, for one file of the cache.

Locks only save work. Where a file system has no locks, or grants every lock, several processes may
create the same file; each of them puts a complete file in its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator

_log = logging.getLogger("fastiter")

#: Age after which the temporary folder of a process on another machine is removed.
_ABANDONED_SECONDS = 7 * 24 * 3600

#: By thread: the paths of the locks that it holds.
_held = threading.local()


@contextlib.contextmanager
def locked(target: str) -> Iterator[None]:
    """Hold the lock of a file, whose directory exists; wait until it is free."""
    path = f"{_hidden_path(target)}.lock"
    held = vars(_held).setdefault("paths", set())
    if path in held:
        raise RuntimeError(
            f"the creator of {target} needs that file itself and would wait for ever: a creator "
            "may use the cache for other files only"
        )
    with contextlib.ExitStack() as stack:
        try:
            # NFS demands that the file is open for writing.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, fd)  # gives the lock back
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as error:
            _log.info("Continuing without the lock %s: %s", path, error)
        held.add(path)
        stack.callback(held.discard, path)
        yield


@contextlib.contextmanager
def new_file(target: str, *, replace: bool) -> Iterator[str]:
    """Give a temporary path, and move the file written there to `target` if the block succeeds.

    The path lies in a new folder beside the target, which makes the move atomic. The folder is
    removed at the end, as are the folders of processes that have died. Called with the lock held;
    `replace` says what to do if another process has created the target despite the lock.
    """
    directory, name = os.path.split(target)
    prefix = f"{_hidden_path(target)}-"
    with contextlib.suppress(OSError):
        _remove_abandoned(prefix)
    pid = os.getpid()
    folder = tempfile.mkdtemp("", f"{prefix}{'-'.join(_identity(pid))}-", directory)
    path = os.path.join(folder, name)  # np.savez looks at the end of the name
    try:
        yield path
        if replace or not os.path.exists(target):
            if not os.path.lexists(path):
                reason = f"no file {name!r} was created, but {sorted(os.listdir(folder))}"
                raise FileNotFoundError(errno.ENOENT, reason, target)
            _sync(path)
            os.replace(path, target)
    finally:
        if os.getpid() == pid:  # a child that the block has forked leaves the folder alone
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                _log.warning("The temporary folder %s could not be removed.", folder)


def _hidden_path(target: str) -> str:
    """Return what the paths of the lock file and the temporary folders of a file begin with."""
    directory, name = os.path.split(target)
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8)  # short, whatever the name
    return os.path.join(directory, f".fastiter-{digest.hexdigest()}")


def _remove_abandoned(prefix: str) -> None:
    """Remove the temporary folders of processes that have died."""
    for folder in glob.glob(f"{glob.escape(prefix)}*"):
        kernel, pid, start, _ = folder.removeprefix(prefix).split("-")
        if start != "0" and kernel == _identity(os.getpid())[0]:
            is_abandoned = _identity(int(pid)) != (kernel, pid, start)
        else:  # of another machine, container or boot: its processes are invisible here
            paths = [folder, *(os.path.join(folder, inner) for inner in os.listdir(folder))]
            newest = max(os.lstat(path).st_mtime for path in paths)
            is_abandoned = time.time() - newest > _ABANDONED_SECONDS
        if is_abandoned:
            shutil.rmtree(folder, ignore_errors=True)


def _identity(pid: int) -> tuple[str, str, str]:
    """Identify a process: its kernel and PID namespace, its PID, its start time ("0" if dead)."""
    kernel, start = "unknown", "0"
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id") as file:
            facts = file.read() + os.readlink("/proc/self/ns/pid")
        kernel = hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()
        with open(f"/proc/{pid}/stat", "rb") as stat:
            start = stat.read().rpartition(b")")[2].split()[19].decode()
    return kernel, str(pid), start


def _sync(path: str) -> None:
    """Write a file, or a directory with its content, to disk."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            _sync(os.path.join(path, name))
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # a link, a socket, or a file that the creator has made unreadable
    try:
        os.fsync(fd)
    except OSError:
        if os.path.isfile(path):  # content is lost; pipes and some directories cannot be synced
            raise
    finally:
        os.close(fd)
