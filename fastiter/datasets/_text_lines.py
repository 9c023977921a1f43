"""Random access to the lines of one text file."""

from __future__ import annotations

import codecs
import io
import re
from itertools import accumulate
from typing import Any

import numpy as np

from fastiter.datasets._files import SharedFile

_CHUNK_BYTES = 1 << 20

# Encodings in which the bytes \r and \n are always these characters, and a line can be decoded by
# itself: one byte is one character, or (UTF-8) longer characters have bytes above 127 only.
_SELF_CONTAINED = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[ru]")

# Error handlers that make no newlines; "ignore" can drop the bytes between \r and \n.
_KEEPS_NEWLINES = {"strict", "replace", "backslashreplace", "surrogateescape", "surrogatepass"}


def open_lines(path: Any, encoding: Any, errors: Any, newline: Any) -> CookieLines:
    """Index the lines of a file. Arguments and errors are those of `open` and of reading."""
    with open(path, encoding=encoding, errors=errors, newline=newline) as text:
        name = codecs.lookup(text.encoding).name
    errors = errors or "strict"
    is_simple = _SELF_CONTAINED.fullmatch(name) and errors in _KEEPS_NEWLINES
    kind = ByteLines if is_simple else CookieLines
    return kind(SharedFile(path), name, errors, newline)


class CookieLines:
    """Lines in any encoding, also if its decoder has a state: UTF-16, UTF-7, ISO-2022.

    The position of a line is the result of a text file's ``tell()``, which includes that state.
    """

    def __init__(self, file: SharedFile, encoding: str, errors: str, newline: str | None) -> None:
        self._file = file
        self._encoding = encoding
        self._errors = errors
        self._newline = newline
        self._find_lines()

    def _find_lines(self) -> None:
        text = self._text()
        self._places = [text.tell()]
        while text.readline():
            self._places.append(text.tell())

    def __len__(self) -> int:
        return len(self._places) - 1

    def line(self, number: int) -> str:
        """Return a line with its newline."""
        text = self._text()
        text.seek(self._places[number])
        return text.readline()

    def _text(self) -> io.TextIOWrapper:
        stream = self._file.stream()
        return io.TextIOWrapper(stream, self._encoding, self._errors, newline=self._newline)

    def close(self) -> None:
        self._file.close()


class ByteLines(CookieLines):
    """Lines in an encoding in which each line can be decoded by itself."""

    def _find_lines(self) -> None:
        decoder = codecs.getincrementaldecoder(self._encoding)(self._errors)
        for start in range(0, self._file.size, _CHUNK_BYTES):
            stop = min(start + _CHUNK_BYTES, self._file.size)
            try:
                decoder.decode(self._file.read(start, stop - start), stop == self._file.size)
            except UnicodeDecodeError as error:
                error.reason += f" (in {self._file.name}, near byte {start + error.start})"
                raise
        # In Latin-1 each byte is a character: the lengths of the lines are in bytes.
        stream = self._file.stream(_CHUNK_BYTES)
        lines = io.TextIOWrapper(stream, "latin-1", newline=self._newline or "")
        self._bounds = np.fromiter(accumulate(map(len, lines), initial=0), np.int64)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def line(self, number: int) -> str:
        start = self._bounds.item(number)
        data = self._file.read(start, self._bounds.item(number + 1) - start)
        line = data.decode(self._encoding, self._errors)
        if self._newline is None and line.endswith(("\r", "\r\n")):
            line = line.rstrip("\r\n") + "\n"
        return line
