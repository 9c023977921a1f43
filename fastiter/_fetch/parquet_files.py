"""Facts about a Parquet file that need no decoding.

pyarrow's getters of column chunks end the process over encrypted or damaged metadata, so columns
without nulls are found in the footer itself:
https://parquet.apache.org/docs/file-format/metadata/, in Thrift's compact protocol,
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

from fastiter._fetch.file_signs import Sign, another_file, sign_of

_VARINT_BYTES = 10
# Fields: of the file, its row groups; of these, their chunks; of a chunk, what follows; of its
# metadata, the path of the column, and the statistics; of these, the number of nulls.
_ROW_GROUPS, _CHUNKS, _METADATA, _KEY, _ENCRYPTED_METADATA = 4, 1, 3, 8, 9
_PATH, _STATISTICS, _N_NULLS = 3, 12, 3
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class FileFacts(NamedTuple):
    """Facts that tell a file from another one written in its place later."""

    sign: Sign
    footer: bytes  # a digest of its metadata, which hold the schema and where all pages are


def _footer(file: BinaryIO, size: int) -> bytes:
    file.seek(max(0, size - 8))
    length, magic = struct.unpack("<I4s", file.read(8).rjust(8, b"\0"))
    if magic != b"PAR1" or length > size - 12:
        raise ValueError("it does not end with the metadata of a Parquet file")
    file.seek(size - 8 - length)
    return file.read(length)


def open_again(path: str, facts: FileFacts, metadata: Any) -> tuple[Any, FileFacts]:
    """pyarrow's ParquetFile of a file that was looked at before, and its facts now.

    `metadata`: as it was read then, or None. ValueError if the file is another one.
    """
    import pyarrow.parquet as parquet

    try:
        file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False, metadata=metadata)
    except ValueError as error:  # of pyarrow, without the path
        raise ValueError(f"{path} is no complete Parquet file: {error}") from error
    # After it was opened: one that takes its place later does not matter.
    if sign_of(path) != facts.sign:
        with open(path, "rb") as opened:
            facts = checked_facts(path, opened, facts)
    return file, facts


def checked_facts(path: str, file: BinaryIO, before: FileFacts | None) -> FileFacts:
    """The facts of an open file; ValueError if it is neither the file that was read before nor a
    copy of it."""
    sign = sign_of(file.fileno())
    try:
        footer = _footer(file, sign.size)
    except ValueError as error:
        raise ValueError(f"{path} is no complete Parquet file: {error}") from error
    import hashlib  # with the first file: it loads OpenSSL

    facts = FileFacts(sign, hashlib.blake2b(footer, digest_size=16).digest())
    if before is not None and (facts.sign.size, facts.footer) != (before.sign.size, before.footer):
        raise another_file(path, "its size or its metadata differ")
    return facts


# ---- nulls -------------------------------------------------------------------------------------


def without_nulls(path: str) -> list[set[str]]:
    """Names of the columns of each row group that have no nulls, nor has anything below them, by
    the metadata of a file; ValueError if these are damaged."""
    with open(path, "rb") as file:
        reader = _Compact(_footer(file, os.fstat(file.fileno()).st_size))
    found: list[set[str]] = []
    try:
        for field, kind in reader.fields():
            if field == _ROW_GROUPS:
                found += map(_without_nulls, reader.items())
            else:
                reader.readers[kind]()
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"the metadata of {path} are damaged") from error
    return found


def _without_nulls(group: dict[int, Any]) -> set[str]:
    names: set[str] = set()
    others: set[str] = set()
    for chunk in group.get(_CHUNKS, ()):
        column = chunk.get(_METADATA, {})
        if _PATH not in column:  # whose name is encrypted
            return set()
        has_none = column.get(_STATISTICS, {}).get(_N_NULLS) == 0
        is_encrypted = _KEY in chunk or _ENCRYPTED_METADATA in chunk
        name = column[_PATH][0].decode()
        (names if has_none and not is_encrypted else others).add(name)
    return names - others


class _Compact:
    """Reads values one after another. LookupError where they end too early, or have no type."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        #: by type, what reads a value of a field: structs become dicts by the numbers of fields
        self.readers: dict[int, Callable[[], Any]] = {
            _TRUE: lambda: True,
            _FALSE: lambda: False,
            _BYTE: self._byte,
            **dict.fromkeys((_I16, _I32, _I64), self._integer),
            _DOUBLE: lambda: self._bytes(8),
            _BINARY: lambda: self._bytes(self._varint()),
            _LIST: self._list,
            _SET: self._list,
            _MAP: self._map,
            _STRUCT: self._struct,
        }
        self._item_readers = {**self.readers, _TRUE: self._byte, _FALSE: self._byte}

    def _bytes(self, n: int) -> bytes:
        start, self._at = self._at, self._at + n
        if self._at > len(self._data):
            raise IndexError(self._at)
        return self._data[start : self._at]

    def _byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift >= 7 * _VARINT_BYTES:
                raise ValueError("an integer of more than 64 bits")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; the caller reads its value."""
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            yield number, head & 0x0F

    def _struct(self) -> dict[int, Any]:
        # Not by `fields`, a generator, which takes a third longer: there may be 100,000s of these.
        data, readers = self._data, self.readers
        found: dict[int, Any] = {}
        number = 0
        while True:
            head = data[self._at]
            self._at += 1
            if head == 0:
                return found
            number = number + (head >> 4) if head >> 4 else self._integer()
            found[number] = readers[head & 0x0F]()

    def items(self) -> Iterator[Any]:
        """Values of a list, each read when it is asked for."""
        head = self._byte()
        length = self._varint() if head >> 4 == 15 else head >> 4
        return (self._item_readers[head & 0x0F]() for _ in range(length))

    def _list(self) -> list[Any]:
        return list(self.items())

    def _map(self) -> list[Any]:
        length = self._varint()
        kinds = self._byte() if length else 0
        readers = self._item_readers
        return [(readers[kinds >> 4](), readers[kinds & 0x0F]()) for _ in range(length)]
