"""Facts about a Parquet file that need no decoding.

pyarrow's getters of column chunks end the process over encrypted or damaged metadata, so nulls are
counted from the footer itself: https://parquet.apache.org/docs/file-format/metadata/, in Thrift's
compact protocol, https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from fastiter._fetch.file_signs import Sign, another_file, sign_of

_UNKNOWN = -1
_VARINT_BYTES = 10
# Types of the compact protocol.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class FileFacts(NamedTuple):
    """Facts that tell a file from another one written in its place later."""

    sign: Sign
    footer: bytes  # a digest of its metadata, which hold the schema and where all pages are


class NullCounts(NamedTuple):
    """Numbers of nulls in the columns of each row group."""

    groups: list[dict[str, int]]  # by the names of columns; `_UNKNOWN` where no one has counted
    unknown: frozenset[int]  # groups with columns whose names are encrypted

    def of(self, group: int, name: str) -> int:
        """Nulls in a column and all that lies below it; -1 if that is not known."""
        return _UNKNOWN if group in self.unknown else self.groups[group].get(name, _UNKNOWN)


def facts_of(file: BinaryIO) -> FileFacts:
    """The facts of an open file; `ValueError` if it does not end as a Parquet file."""
    sign = sign_of(file.fileno())
    return FileFacts(sign, hashlib.blake2b(_footer(file, sign.size), digest_size=16).digest())


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

    file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False, metadata=metadata)
    # After it was opened: one that takes its place later does not matter.
    if sign_of(path) != facts.sign:
        with open(path, "rb") as opened:
            facts = checked_facts(path, opened, facts)
    return file, facts


def checked_facts(path: str, file: BinaryIO, before: FileFacts | None) -> FileFacts:
    """The facts of an open file; ValueError if it is neither the file that was read before nor a
    copy of it."""
    try:
        facts = facts_of(file)
    except ValueError as error:
        raise ValueError(f"{path} is no complete Parquet file: {error}") from error
    if before is not None and (facts.sign.size, facts.footer) != (before.sign.size, before.footer):
        raise another_file(path, "its size or its metadata differ")
    return facts


# ---- nulls -------------------------------------------------------------------------------------


def null_counts(path: str) -> NullCounts:
    """Count the nulls of all columns of a file by its metadata; ValueError if these are damaged."""
    with open(path, "rb") as file:
        data = _footer(file, os.fstat(file.fileno()).st_size)
    counts: list[dict[str, int]] = []
    unknown: set[int] = set()
    try:
        reader = _Compact(data)
        for field, kind in reader.fields():
            if field != 4:
                reader.skip(kind)
                continue
            for group in range(reader.list_length()):
                counts.append({})
                for name, n_nulls in _columns(reader):
                    if name is None:
                        unknown.add(group)
                        continue
                    total = counts[-1].get(name, 0)
                    is_known = total != _UNKNOWN and n_nulls != _UNKNOWN
                    counts[-1][name] = total + n_nulls if is_known else _UNKNOWN
    except (IndexError, RecursionError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"the metadata of {path} are damaged") from error
    return NullCounts(counts, frozenset(unknown))


def _columns(reader: _Compact) -> Iterator[tuple[str | None, int]]:
    """Of the RowGroup that is read: for each leaf the name of its column, and how many nulls."""
    for field, kind in reader.fields():
        if field != 1:
            reader.skip(kind)
            continue
        for _ in range(reader.list_length()):
            found: dict[str, Any] = {"name": None, "n_nulls": _UNKNOWN}
            is_encrypted = False
            for part, part_kind in reader.fields():
                if part == 3:
                    _read_column(reader, found)
                else:
                    is_encrypted |= part in (8, 9)
                    reader.skip(part_kind)
            yield found["name"], _UNKNOWN if is_encrypted else found["n_nulls"]


def _read_column(reader: _Compact, found: dict[str, Any]) -> None:
    """Of the ColumnMetaData that is read."""
    for field, kind in reader.fields():
        if field == 3:
            names = [reader.binary() for _ in range(reader.list_length())]
            found["name"] = names[0].decode()
        elif field == 12:
            for part, part_kind in reader.fields():
                if part == 3:
                    found["n_nulls"] = reader.integer()
                else:
                    reader.skip(part_kind)
        else:
            reader.skip(kind)


class _Compact:
    """Reads values one after another."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

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

    def integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def binary(self) -> bytes:
        length = self._varint()
        self._move(length)
        return self._data[self._at - length : self._at]

    def _move(self, n: int) -> None:
        self._at += n
        if self._at > len(self._data):
            raise IndexError(self._at)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and type of each field of a struct; the caller reads or skips its value."""
        number = 0
        while True:
            head = self._data[self._at]
            self._at += 1
            if head == 0:
                return
            number = number + (head >> 4) if head >> 4 else self.integer()
            yield number, head & 0x0F

    def list_length(self) -> int:
        """Length of a list whose items, structs or binaries, the caller reads."""
        return self._list_head()[0]

    def _list_head(self) -> tuple[int, int]:
        head = self._data[self._at]
        self._at += 1
        return (self._varint() if head >> 4 == 15 else head >> 4), head & 0x0F

    def skip(self, kind: int, is_item: bool = False) -> None:
        """Skip a value of a field, or of a list, where a bool takes a byte."""
        if kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _BINARY:
            self._move(self._varint())
        elif kind in (_TRUE, _FALSE, _BYTE):
            self._move(kind == _BYTE or is_item)
        elif kind == _DOUBLE:
            self._move(8)
        elif kind == _STRUCT:
            for _, part in self.fields():
                self.skip(part)
        elif kind in (_LIST, _SET):
            length, item = self._list_head()
            for _ in range(length):
                self.skip(item, True)
        elif kind == _MAP:
            length = self._varint()
            kinds = self._data[self._at] if length else 0
            self._move(length > 0)
            for _ in range(length):
                self.skip(kinds >> 4, True)
                self.skip(kinds & 0x0F, True)
        else:
            raise ValueError(f"a value of type {kind}")
