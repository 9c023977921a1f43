"""Files, and zip archives, that many threads and processes read at the same time."""

from __future__ import annotations

import contextlib
import io
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_path
from fastiter.datasets._packed import pack

_LOCAL_HEADER = struct.Struct("<4s22xHH")

# Facts that a directory has about a file: attributes of `zipfile.ZipInfo`.
_FIELDS = ("header_offset", "compress_size", "file_size", "compress_type", "flag_bits", "CRC")


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
            if not (more := os.pread(handle.fd, size - len(data), offset + len(data))):
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


# ---- zip archives ------------------------------------------------------------------------------


class ZipArchive:
    """An archive, whose directory is read once into a few arrays.

    Threads need no lock, because files are read at offsets. It is pickled as its path and these
    arrays, so that no other process reads the directory again. Raises what `directory` raises.
    """

    def __init__(self, path: object) -> None:
        self.file = SharedFile(path)
        infos = [info for info in directory(self.file) if not info.filename.endswith("/")]
        names = [info.filename for info in infos]
        # The last of several files of one name counts, as in zipfile.
        last = {info.filename: _entry(info) for info in infos}
        entries = [last[name] for name in names]
        self.names = pack(names)
        self._entries = np.array(entries, np.int64).reshape(len(names), len(_FIELDS))
        self._numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def numbers(self) -> dict[str, int]:
        """Return the number of each file by its name."""
        if self._numbers is None:
            self._numbers = {self.names[i]: i for i in range(len(self))}
        return self._numbers

    def read(self, number: int) -> bytes:
        """Read a file, in any thread. The errors are those of `ZippedImageDataset`."""
        name = self.named(number)
        info = zipfile.ZipInfo(name)
        for field, value in zip(_FIELDS, self._entries[number].tolist(), strict=True):
            setattr(info, field, value)
        if info.flag_bits & 1:
            raise RuntimeError(f"{name} is encrypted, which is not supported")
        start = data_start(self.file, info.header_offset, info.compress_size)
        stored = self.file.read(start, info.compress_size)
        if info.compress_type == zipfile.ZIP_LZMA:
            # The dictionary is allocated at once: a damaged size of it must not take much.
            size = min(int.from_bytes(stored[5:9], "little"), max(info.file_size, 4096))
            stored = stored[:5] + size.to_bytes(4, "little") + stored[9:]
        try:
            with zipfile.ZipExtFile(io.BytesIO(stored), "r", info) as file:
                content = file.read()
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{name} is compressed by method {info.compress_type}, which is not supported"
            ) from error
        except MemoryError:
            raise
        except Exception as error:  # damaged bytes may cause nearly any error
            raise zipfile.BadZipFile(f"{name} is damaged: {error}") from error
        if len(content) != info.file_size:
            raise zipfile.BadZipFile(
                f"{name} is damaged: it has {len(content)} bytes, expected {info.file_size}"
            )
        return content

    def named(self, number: int) -> str:
        """The name of a file and its archive, for messages."""
        return f"{self.names[number]} in {self.file.name}"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_numbers": None}


def _entry(info: zipfile.ZipInfo) -> list[int]:
    return [getattr(info, field) for field in _FIELDS]


def directory(file: SharedFile) -> list[zipfile.ZipInfo]:
    """Read the directory of an archive.

    Raises OSError if the file cannot be read, BadZipFile if it is not an archive, or is damaged.
    """
    try:
        with zipfile.ZipFile(file.stream(1 << 16)) as archive:
            infos = archive.infolist()
    except OSError:
        raise
    except Exception as error:  # damaged bytes may cause nearly any error
        raise zipfile.BadZipFile(f"{file.name} cannot be read as a zip archive: {error}") from error
    for info in infos:
        if max(_entry(info)) > sys.maxsize:
            raise zipfile.BadZipFile(
                f"{info.filename} in {file.name} is damaged: it has {info.file_size} bytes, "
                f"compressed {info.compress_size}, according to the archive"
            )
    return infos


def data_start(file: SharedFile, at: int, size: int) -> int:
    """Return where the `size` bytes of an entry start, whose local header is at `at`."""
    length = _LOCAL_HEADER.size
    header = file.read(at, length) if 0 <= at <= file.size - length else bytes(length)
    magic, name_size, extra_size = _LOCAL_HEADER.unpack(header)
    if magic != b"PK\3\4":
        raise zipfile.BadZipFile(f"{file.name} has no file at byte {at}")
    start = at + length + int(name_size) + int(extra_size)
    if start + size > file.size:
        raise zipfile.BadZipFile(
            f"{file.name} ends after {file.size} bytes, within the {size} bytes of the file at "
            f"byte {at}"
        )
    return start
