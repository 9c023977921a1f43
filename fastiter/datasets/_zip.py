"""Files in a zip archive that many threads and processes read from at once."""

from __future__ import annotations

import bz2
import lzma
import struct
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np

from fastiter.datasets._files import SharedFile
from fastiter.datasets._packed import pack

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_MOST_EXTRA = 128  # bytes beyond name and header that are read along with the data
_ENCRYPTED = 1


class Entry(NamedTuple):
    """A file in an archive; numbers as in the archive's directory."""

    header_offset: int
    compress_size: int
    file_size: int
    compress_type: int
    flag_bits: int
    crc: int

    @classmethod
    def of(cls, info: zipfile.ZipInfo) -> Entry:
        return cls(
            info.header_offset,
            info.compress_size,
            info.file_size,
            info.compress_type,
            info.flag_bits,
            info.CRC,
        )


class ZipArchive:
    """An archive whose directory is read once, into few arrays.

    Threads need no lock, since files are read at offsets. Pickles as the archive's path and these
    arrays, so that no other process reads the directory again.

    Raises
    ------
    OSError
        If the archive cannot be opened.
    zipfile.BadZipFile
        If it is none.
    """

    def __init__(self, path: Any) -> None:
        self.file = SharedFile(path)
        with zipfile.ZipFile(self.file.stream(1 << 16)) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
            # Of several files of one name the last one counts, as for zipfile.
            entries = [Entry.of(archive.getinfo(name)) for name in names]
        self.names = pack(names)
        self._entries = np.array(entries, np.int64).reshape(len(names), len(Entry._fields))
        self._numbers: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def numbers(self) -> dict[str, int]:
        """The number of each file, by its name."""
        if self._numbers is None:
            self._numbers = {self.names[i]: i for i in range(len(self))}
        return self._numbers

    def missing(self, name: str) -> KeyError:
        """The error for a name that the archive has not."""
        return KeyError(f"there is no file {name!r} in {self.file.name}")

    def read(self, number: int) -> bytes:
        """The content of file ``number``; from any thread.

        Raises
        ------
        zipfile.BadZipFile
            If it is damaged.
        RuntimeError, NotImplementedError
            If it is encrypted, or compressed by an unknown method.
        ValueError, OSError
            If the archive has been closed, or cannot be read.
        """
        entry = Entry(*self._entries[number].tolist())
        if entry.flag_bits & _ENCRYPTED:
            raise RuntimeError(f"{self._named(number)} is encrypted, which is not supported")
        start, data = _raw(self.file, entry)
        try:
            content = _decompress(data[start : start + entry.compress_size], entry)
        except (zlib.error, OSError, EOFError, lzma.LZMAError) as error:
            raise zipfile.BadZipFile(f"{self._named(number)} is damaged: {error}") from error
        if content is None:
            raise NotImplementedError(
                f"{self._named(number)} is compressed by method {entry.compress_type}, which is "
                "not supported"
            )
        if len(content) != entry.file_size or zlib.crc32(content) != entry.crc:
            raise zipfile.BadZipFile(f"{self._named(number)} is damaged: its checksum is wrong")
        return content

    def _named(self, number: int) -> str:
        return f"{self.names[number]} in {self.file.name}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_numbers": None}


def data_start(file: SharedFile, entry: Entry) -> int:
    """The offset of a file's data in the archive."""
    return entry.header_offset + _raw(file, entry._replace(compress_size=0))[0]


def _raw(file: SharedFile, entry: Entry) -> tuple[int, memoryview]:
    """Bytes from an entry's local header to the end of its data, and where in them that begins."""
    at, header = entry.header_offset, _LOCAL_HEADER.size
    guess = header + _MOST_EXTRA + entry.compress_size
    data = file.read(at, min(guess, file.size - at))
    if len(data) < header or data[:4] != b"PK\3\4":
        raise zipfile.BadZipFile(f"{file.name} has no file at byte {at}")
    _, name_size, extra_size = _LOCAL_HEADER.unpack_from(data)
    start = header + name_size + extra_size
    if start + entry.compress_size > len(data):
        data = file.read(at, start + entry.compress_size)
    return start, memoryview(data)


def _decompress(data: memoryview, entry: Entry) -> bytes | None:
    if entry.compress_type == zipfile.ZIP_STORED:
        return bytes(data)
    if entry.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompress(data, -zlib.MAX_WBITS, entry.file_size)
    if entry.compress_type == zipfile.ZIP_BZIP2:
        return bz2.decompress(data)
    if entry.compress_type == zipfile.ZIP_LZMA:
        return _lzma(bytes(data), entry.file_size)
    return None


def _lzma(data: bytes, size: int) -> bytes:
    """LZMA as zip has it (APPNOTE 5.8.8): version, size of the properties, properties, stream."""
    (n_properties,) = struct.unpack_from("<2xH", data)
    properties, dict_size = struct.unpack_from("<BI", data, 4)
    rest, lc = divmod(properties, 9)
    pb, lp = divmod(rest, 5)
    chain = [{"id": lzma.FILTER_LZMA1, "dict_size": dict_size, "lc": lc, "lp": lp, "pb": pb}]
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=chain)
    return decompressor.decompress(data[4 + n_properties :], size)
