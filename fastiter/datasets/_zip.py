"""Zip archives whose files many threads and processes read at the same time."""

from __future__ import annotations

import bz2
import lzma
import struct
import sys
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np

from fastiter.datasets._files import SharedFile
from fastiter.datasets._packed import pack

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_EXTRA_BYTES = 128  # read with the data, for the name and the extra field before it
_ENCRYPTED = 1


class Entry(NamedTuple):
    """A file in an archive, as its directory describes it."""

    header_offset: int
    compress_size: int
    file_size: int
    compress_type: int
    flag_bits: int
    crc: int

    @classmethod
    def of(cls, info: zipfile.ZipInfo) -> Entry:
        return cls(*(getattr(info, "CRC" if name == "crc" else name) for name in cls._fields))


class ZipArchive:
    """An archive, whose directory is read once into a few arrays.

    Threads need no lock, because files are read at offsets. It is pickled as its path and these
    arrays, so that no other process reads the directory again. Raises what `directory` raises.
    """

    def __init__(self, path: Any) -> None:
        self.file = SharedFile(path)
        infos = [info for info in directory(self.file) if not info.filename.endswith("/")]
        names = [info.filename for info in infos]
        # The last of several files of one name counts, as in zipfile.
        last = {info.filename: Entry.of(info) for info in infos}
        entries = [last[name] for name in names]
        self.names = pack(names)
        self._entries = np.array(entries, np.int64).reshape(len(names), len(Entry._fields))
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
        entry = Entry(*self._entries[number].tolist())
        if entry.flag_bits & _ENCRYPTED:
            raise RuntimeError(f"{self.named(number)} is encrypted, which is not supported")
        start, data = _raw(self.file, entry)
        try:
            content = _decompress(data[start : start + entry.compress_size], entry)
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, struct.error) as error:
            raise zipfile.BadZipFile(f"{self.named(number)} is damaged: {error}") from error
        if content is None:
            raise NotImplementedError(
                f"{self.named(number)} is compressed by method {entry.compress_type}, which is "
                "not supported"
            )
        if len(content) != entry.file_size or zlib.crc32(content) != entry.crc:
            raise zipfile.BadZipFile(f"{self.named(number)} is damaged: its checksum is wrong")
        return content

    def named(self, number: int) -> str:
        """The name of a file and its archive, for messages."""
        return f"{self.names[number]} in {self.file.name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_numbers": None}


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
        if max(Entry.of(info)) > sys.maxsize:
            raise zipfile.BadZipFile(
                f"{info.filename} in {file.name} is damaged: it has {info.file_size} bytes, "
                f"compressed {info.compress_size}, according to the archive"
            )
    return infos


def data_start(file: SharedFile, entry: Entry) -> int:
    """Return the offset of a file's data in the archive."""
    return entry.header_offset + _raw(file, entry._replace(compress_size=0))[0]


def _raw(file: SharedFile, entry: Entry) -> tuple[int, memoryview]:
    """Read an entry from its local header on; return where its data starts, and the bytes."""
    at, header = entry.header_offset, _LOCAL_HEADER.size
    guess = header + _EXTRA_BYTES + entry.compress_size
    data = file.read(at, min(guess, file.size - at)) if 0 <= at < file.size else b""
    if len(data) < header or data[:4] != b"PK\3\4":
        raise zipfile.BadZipFile(f"{file.name} has no file at byte {at}")
    _, name_size, extra_size = _LOCAL_HEADER.unpack_from(data)
    start = header + name_size + extra_size
    if at + start + entry.compress_size > file.size:
        raise zipfile.BadZipFile(
            f"{file.name} ends after {file.size} bytes, within the {entry.compress_size} bytes of "
            f"the file at byte {at}"
        )
    if start + entry.compress_size > len(data):
        data = file.read(at, start + entry.compress_size)
    return start, memoryview(data)


def _decompress(data: memoryview, entry: Entry) -> bytes | None:
    if entry.compress_type == zipfile.ZIP_STORED:
        return bytes(data)
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        # A damaged size must not allocate much: Deflate makes 1032 bytes of one at most.
        size = min(entry.file_size, 1032 * len(data) + 1032)
        return zlib.decompress(data, -zlib.MAX_WBITS, size)
    if entry.compress_type == zipfile.ZIP_BZIP2:
        return bz2.decompress(data)
    if entry.compress_type == zipfile.ZIP_LZMA:
        return _lzma(bytes(data), entry.file_size)
    return None


def _lzma(data: bytes, size: int) -> bytes:
    """Decompress LZMA (APPNOTE 5.8.8): version, size of the properties, properties, stream."""
    (n_properties,) = struct.unpack_from("<2xH", data)
    properties, dict_size = struct.unpack_from("<BI", data, 4)
    rest, lc = divmod(properties, 9)
    pb, lp = divmod(rest, 5)
    dict_size = min(dict_size, max(size, 4096))  # a damaged one must not allocate much
    chain = [{"id": lzma.FILTER_LZMA1, "dict_size": dict_size, "lc": lc, "lp": lp, "pb": pb}]
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=chain)
    return decompressor.decompress(data[4 + n_properties :], size)
