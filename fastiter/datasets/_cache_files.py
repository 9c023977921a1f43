"""Files of caches: how they are made, opened and recognized."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import stat
import struct
import tempfile
import time
from typing import Any, NamedTuple

from fastiter._clib import status
from fastiter._clib.file_locks import FileLocks
from fastiter._fetch.cache_table import ALL_ROWS, CacheTable, start_of
from fastiter._util.warn import warn_caller

_MAGIC = b"fastiter cache 1"
_DESCRIPTION_BYTES = 1024  # before the words that change
_HEAD = struct.Struct("<16sQQ16sQ")  # magic, checksum, rows, number of the file, bytes of the rest
_SUMMED = 24  # where what the checksum covers begins
_MOST_TEXT = 200
_POLL_SECONDS = 0.001
_LONG_SECONDS = 10.0  # of a wait that is told of


class Meaning(NamedTuple):
    """The meaning of the rows of a file: they are examples of such a dataset."""

    length: int
    kind: str  # the dataset's class
    key: str | None

    @classmethod
    def of(cls, dataset: Any, length: int, key: Any) -> Meaning:
        kind = type(dataset)
        # The main module of a program is called otherwise in the processes that it spawns.
        module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
        text = f"{module}.{kind.__qualname__}"
        return cls(length, _short(text), None if key is None else _short(repr(key)))

    def __str__(self) -> str:
        key = "no key" if self.key is None else f"key {self.key}"
        return f"{self.length} rows of {self.kind} with {key}"


def _short(text: str) -> str:
    """A text that fits into a description; another one for another text."""
    if len(text.encode(errors="surrogatepass")) <= _MOST_TEXT:
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return f"{text[: _MOST_TEXT // 4]}... ({digest})"


class OpenedFile(NamedTuple):
    table: CacheTable
    number: bytes  # other files have another one
    is_filled: bool  # whether it had rows


def open_table(path: str, meaning: Meaning, disk: float, number: bytes | None = None) -> OpenedFile:
    """Opens the file of a cache, which is made if there is none. `disk`: its limit in bytes; a
    float is a share of what its file system has free. `number`: that of the only right file."""
    if not isinstance(disk, float):
        require_index("disk", disk, meaning.length)
    opened = None
    try:
        while opened is None:
            fd, is_read_only = _descriptor(path, meaning, number)
            try:
                opened = _opened(fd, is_read_only, path, meaning, disk, number)
            finally:
                os.close(fd)  # the table has a duplicate, and with it the lock
    except OSError as error:
        error.filename = error.filename or path  # none where a call took the descriptor
        raise
    return opened


def _descriptor(path: str, meaning: Meaning, number: bytes | None) -> tuple[int, bool]:
    """A descriptor of the file, which is made if there is none; and whether it is read-only."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK), False
        except FileNotFoundError:
            if number is not None:
                raise ValueError(f"the cache {path} was deleted since it was pickled") from None
            _make(path, meaning)
        except OSError as error:
            if error.errno == errno.EISDIR:
                raise ValueError(f"{path} is a folder, and path= expects a file") from None
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), True


def _opened(
    fd: int, is_read_only: bool, path: str, meaning: Meaning, disk: float, number: bytes | None
) -> OpenedFile | None:
    """The cache in a file; None of a damaged one, which is made anew."""
    found = _description(fd, path)
    if number is not None and (isinstance(found, str) or found[1] != number):
        raise ValueError(f"the cache {path} was replaced since it was pickled")
    if not isinstance(found, str):
        if meaning != found[0]:
            raise ValueError(
                f"the cache {path} holds {found[0]}, and this one is of {meaning}: pass another "
                "path=, or delete the file"
            )
        table = _table(fd, meaning, disk, is_read_only)
        return OpenedFile(table, found[1], bool(table.present().any()))
    if is_read_only:
        raise ValueError(f"the cache {path} {found}, and it is read-only")
    # The process that has this lock, and finds the same file again, replaces it. Processes that use
    # the file have another lock.
    locks = FileLocks(fd, ALL_ROWS + 1, "replacing a cache")
    turn = locks.alone(ALL_ROWS, f"its turn to replace {path}")
    with turn, contextlib.suppress(FileNotFoundError):
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            if os.fstat(fd).st_size > 0:
                warn_caller(f"the cache {path} {found}: it is made anew")
            _make(path, meaning, replaces=True)
    return None


def _description(fd: int, path: str) -> tuple[Meaning, bytes] | str:
    """Meaning and number of a file; of a damaged one, its damage. ValueError if it is no cache."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{path} is no file, and path= expects the file of a cache")
    data = os.pread(fd, _DESCRIPTION_BYTES, 0)
    if not data:
        return "is empty"
    if not data.startswith(_MAGIC):
        raise ValueError(
            f"{path} is a file that is not fastiter's cache; it begins with {data[:16]!r}. Pass "
            "another path="
        )
    if len(data) < _DESCRIPTION_BYTES:
        return f"was cut: it has {facts.st_size} bytes"
    _, checksum, length, number, size = _HEAD.unpack_from(data)
    if checksum != status.checksum(data, _SUMMED, _DESCRIPTION_BYTES, 0):
        return "has a damaged header"
    if facts.st_size < start_of(length):
        return f"was cut: it has {facts.st_size} bytes, and its index alone {start_of(length)}"
    kind, key = json.loads(data[_HEAD.size : _HEAD.size + size])
    return Meaning(length, kind, key), number


def _make(path: str, meaning: Meaning, replaces: bool = False) -> None:
    """Makes a file, which gets its name when it is complete."""
    path = os.path.realpath(path)  # a link stays
    text = json.dumps([meaning.kind, meaning.key]).encode()
    head = bytearray(_DESCRIPTION_BYTES)
    _HEAD.pack_into(head, 0, _MAGIC, 0, meaning.length, os.urandom(16), len(text))
    head[_HEAD.size : _HEAD.size + len(text)] = text
    struct.pack_into("<Q", head, 16, status.checksum(head, _SUMMED, len(head), 0))
    fd, temporary = _nameless(os.path.dirname(path))
    try:
        os.write(fd, head)
        os.posix_fallocate(fd, 0, start_of(meaning.length))
        os.fsync(fd)
        if replaces:
            os.unlink(path)
        with contextlib.suppress(FileExistsError):  # another process was faster
            # With a folder it is linkat, which finds the file behind its descriptor.
            os.link(temporary or f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)
    finally:
        os.close(fd)
        if temporary:
            os.unlink(temporary)


def _nameless(folder: str) -> tuple[int, str]:
    """A descriptor of a new file of mode 0600 without a name, of which nothing is left if this
    process is killed; and "". On file systems that have no such files, a name that it has."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600), ""
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    return tempfile.mkstemp(prefix=".fastiter.", dir=folder)


def _table(fd: int, meaning: Meaning, disk: float, is_read_only: bool) -> CacheTable:
    start = start_of(meaning.length)
    facts = os.fstat(fd)
    used = facts.st_blocks * 512
    limit = disk
    if isinstance(limit, float):
        free = os.statvfs(fd)
        limit = used + int(limit * free.f_bavail * free.f_frsize)
        require_index("disk", limit, meaning.length)
    is_first = False
    # A process that cannot write takes no lock: with it, the next would not begin an opening.
    if not is_read_only:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_first = True
            os.posix_fallocate(fd, 0, start)  # a copy may have holes, and the disk be full later
    table = CacheTable(fd, meaning.length, limit, _is_in_memory(facts.st_dev), True, is_read_only)
    if is_first or is_read_only:
        facts = os.fstat(fd)
        table.begin(max(facts.st_size, start), facts.st_blocks * 512)
    if not is_read_only:
        _share(fd)
    return table


def _share(fd: int) -> None:
    """Take the lock of all processes that use the file, once no process begins an opening."""
    began = said = status.now()
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        time.sleep(_POLL_SECONDS)
        if status.now() - said > _LONG_SECONDS:
            said = status.now()
            warn_caller(
                f"opening a cache has waited {said - began:.0f} s for another process, which opens "
                "it as well: is that process stopped?",
                RuntimeWarning,
            )


def require_index(name: str, limit: float, length: int) -> None:
    """Raise ValueError if an argument of that name is fewer bytes than the index needs."""
    if limit < start_of(length):
        raise ValueError(
            f"{name} is {limit} bytes, and the index of {length} rows alone takes "
            f"{start_of(length)}: raise it"
        )


def _is_in_memory(device: int) -> bool:
    """Whether a file system is memory."""
    name = f"{os.major(device)}:{os.minor(device)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo") as file:
        for line in file:
            fields, _, kind = line.partition(" - ")
            if fields.split()[2] == name:
                return kind.split()[0] in ("tmpfs", "ramfs")
    return False
