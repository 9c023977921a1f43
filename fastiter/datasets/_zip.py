"""Zip archives whose files many threads and processes read at the same time."""

from __future__ import annotations

import io
import struct
import sys
import zipfile

import numpy as np

from fastiter.datasets._files import SharedFile
from fastiter.datasets._packed import pack

_LOCAL_HEADER = struct.Struct("<4s22xHH")

# What a directory says of a file: attributes of `zipfile.ZipInfo`.
_FIELDS = ("header_offset", "compress_size", "file_size", "compress_type", "flag_bits", "CRC")


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
