"""A file on its way into the cache: beside its place until it is whole."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator

_log = logging.getLogger("fastiter")

#: Seconds after which the folder of a process on another machine counts as left behind.
_FORGOTTEN = 7 * 24 * 3600


class Place:
    """Where a file may be written before it is kept."""

    def __init__(self, path: str, target: str) -> None:
        self.path = path  #: with the last part of the target's, since some writers look at it
        self._target = target

    def keep(self) -> None:
        """Puts the file, safely on disk by then, in its place at once.

        A file that is there is replaced; whoever has it open keeps what he has.
        """
        if not os.path.lexists(self.path):
            folder, name = os.path.split(self.path)
            raise FileNotFoundError(
                errno.ENOENT,
                f"no file was created under the name {name!r}, but {sorted(os.listdir(folder))}",
                self._target,
            )
        _sync(self.path)
        os.replace(self.path, self._target)
        _sync_one(os.path.dirname(self._target))


@contextlib.contextmanager
def temporary_place(target: str) -> Iterator[Place]:
    """Gives a place in a new folder beside the target, and removes the folder at the end.

    To be called with the target's lock held: folders that dead processes left of it are removed.
    """
    directory, name = os.path.split(target)
    start = f"{hidden_name(target)}-"
    with contextlib.suppress(OSError):
        _remove_leftovers(directory, start)
    pid = os.getpid()
    owner = f"{_kernel()}-{pid}-{_start_of(pid) or 0}-"
    folder = tempfile.mkdtemp(prefix=start + owner, dir=directory)
    try:
        yield Place(os.path.join(folder, name), target)
    finally:
        if os.getpid() == pid:  # else this is a fork's end, and the folder is its parent's
            shutil.rmtree(folder, ignore_errors=True)
            if os.path.lexists(folder):
                _log.warning("The temporary folder %s could not be removed.", folder)


def hidden_name(target: str) -> str:
    """What names of files that accompany the target begin with: short, whatever its own name."""
    name = os.fsencode(os.path.basename(target))
    return f".fastiter-{hashlib.blake2b(name, digest_size=8).hexdigest()}"


def _remove_leftovers(directory: str, start: str) -> None:
    with os.scandir(directory) as entries:
        found = [entry.path for entry in entries if entry.name.startswith(start)]
    for folder in found:
        if _is_left_behind(folder, os.path.basename(folder)[len(start) :]):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(folder: str, owner: str) -> bool:
    """Whether the process that made the folder is gone: what locks say may not be true here."""
    parts = re.match(r"(\w+)-(\d+)-(\d+)-", owner)
    if parts is None:
        return False
    kernel, pid, start = parts.groups()
    if kernel == _kernel() and start != "0":
        return _start_of(int(pid)) != start
    # Of another machine, container or boot, whose processes cannot be seen from here.
    with os.scandir(folder) as entries:
        stats = [os.stat(folder), *(entry.stat(follow_symlinks=False) for entry in entries)]
    changes = [found.st_mtime for found in stats]
    return time.time() - max(changes) > _FORGOTTEN


def _kernel() -> str:
    """Tells apart what pids belong to: the machine since its start, and the container."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            facts = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:  # no Linux: pids say nothing
        return "unknown"
    return hashlib.blake2b(facts.encode(), digest_size=6).hexdigest()


def _start_of(pid: int) -> str | None:
    """When a process started, in clock ticks since the boot; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return None


def _sync(path: str) -> None:
    """Has a file, or all of a directory, written to disk."""
    _sync_one(path)
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for folder, folders, names in os.walk(path):
            for name in folders + names:
                _sync_one(os.path.join(folder, name))


def _sync_one(path: str) -> None:
    mode = os.lstat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return  # a link may lead nowhere, and a pipe that nobody writes to never opens
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # the creator may have made it unreadable: the system writes it in its own time
    try:
        os.fsync(fd)
    except OSError:
        if stat.S_ISREG(mode):  # content is lost; not every file system syncs directories
            raise
    finally:
        os.close(fd)
