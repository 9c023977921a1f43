"""Files that many threads and processes read at the same time."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any

from fastiter._util.arguments import checked_path


class _Handle:
    """An open descriptor, which closes when the last reference is gone.

    A thread that reads has a reference, so that the number cannot be reused for another file.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def of(cls, path: Any) -> _Handle:
        with io.FileIO(path) as file:  # which refuses directories
            return cls(os.dup(file.fileno()))

    # An argument, because module globals may be None while the interpreter exits.
    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        _close(self.fd)


class SharedFile:
    """A file that is read at given offsets; OSError if it cannot be opened.

    It has no position: threads read at the same time without a lock, and a forked process uses the
    descriptor that it inherits. It is pickled as its absolute path, and opened at the first read.
    """

    def __init__(self, path: Any, handle: _Handle | None = None) -> None:
        if handle is None:
            path = os.path.abspath(checked_path("path", path))
            handle = _Handle.of(path)
        self.path = path  #: None if it is unknown
        self.size = os.fstat(handle.fd).st_size  #: bytes
        self._is_closed = False
        self._handle: _Handle | None = handle

    @classmethod
    def adopted(cls, reader: Any) -> SharedFile | None:
        """Return the file that a plain binary file object has open; None for other objects.

        The result is independent of the object. It can be pickled if its name leads to the file.
        """
        raw = getattr(reader, "raw", reader)
        plain = type(reader) in (io.BufferedReader, io.BufferedRandom, io.FileIO)
        if not plain or type(raw) is not io.FileIO or not reader.readable():
            return None
        reader.flush()
        handle = _Handle(os.dup(raw.fileno()))
        path = None
        if isinstance(raw.name, (str, bytes)):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(raw.name), os.fstat(handle.fd)):
                    path = os.path.abspath(raw.name)
        return cls(path, handle)

    def read(self, offset: int, size: int) -> bytes:
        """Read ``size`` bytes at ``offset``, in any thread.

        Raises ValueError if the file has been closed, OSError if it has become shorter.
        """
        handle = self._handle or self._open_again()
        data = b""
        while len(data) < size:
            more = os.pread(handle.fd, size - len(data), offset + len(data))
            if not more:
                raise OSError(
                    f"{self.name} ends at byte {offset + len(data)}, expected {size} bytes at "
                    f"byte {offset}: it has become shorter since it was opened"
                )
            data += more
        return data

    def stream(self, buffer_bytes: int = 8192) -> io.BufferedReader:
        """Return a file object with its own position, which need not be closed."""
        return io.BufferedReader(Cursor(self), buffer_bytes)

    @property
    def name(self) -> str:
        """The path, for messages."""
        return "a file without a name" if self.path is None else os.fsdecode(self.path)

    def close(self) -> None:
        """Close the file in this process, after the reads of other threads."""
        self._is_closed = True
        self._handle = None

    def _open_again(self) -> _Handle:
        if self._is_closed:
            raise ValueError(f"{self.name} has been closed")
        handle = _Handle.of(self.path)
        size = os.fstat(handle.fd).st_size
        if size < self.size:
            raise OSError(
                f"{self.name} has {size} bytes, but had {self.size} when the dataset was made: "
                "make the dataset again"
            )
        self._handle = handle
        return handle

    def __getstate__(self) -> dict[str, Any]:
        if self.path is None:
            raise TypeError(
                "cannot pickle a dataset whose file has no name: open the file by its path"
            )
        return {"path": self.path, "size": self.size}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _is_closed=False, _handle=None)


class Cursor(io.RawIOBase):
    """A file object: a `SharedFile` and a position."""

    def __init__(self, file: SharedFile) -> None:
        self.file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.file.size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        size = max(0, min(view.nbytes, self.file.size - self._position))
        view[:size] = self.file.read(self._position, size)
        self._position += size
        return size
