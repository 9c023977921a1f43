"""Random access to the lines of one text file."""

from __future__ import annotations

import codecs
import io
import re
from typing import Any

import numpy as np

from fastiter.datasets._files import SharedFile

_CHUNK_BYTES = 4 << 20
_CR, _LF = 13, 10

# Encodings in which the bytes \r and \n are always these characters, and a line can be decoded by
# itself: one byte is one character, or (UTF-8) longer characters have bytes above 127 only.
_SELF_CONTAINED = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[ru]")

# Error handlers that make no newlines; "ignore" can drop the bytes between \r and \n.
_KEEPS_NEWLINES = {"strict", "replace", "backslashreplace", "surrogateescape", "surrogatepass"}


def open_lines(path: Any, encoding: Any, errors: Any, newline: Any) -> ByteLines | CookieLines:
    """Index the lines of a file. Arguments and errors are those of `open` and of reading."""
    with open(path, encoding=encoding, errors=errors, newline=newline) as text:
        name = codecs.lookup(text.encoding).name
    errors = errors or "strict"
    if _SELF_CONTAINED.fullmatch(name) and errors in _KEEPS_NEWLINES:
        return ByteLines(SharedFile(path), name, errors, newline)
    return CookieLines(SharedFile(path), name, errors, newline)


class ByteLines:
    """Lines in an encoding in which each line can be decoded by itself."""

    def __init__(self, file: SharedFile, encoding: str, errors: str, newline: str | None) -> None:
        self._file = file
        self._encoding = encoding
        self._errors = errors
        self._newline = newline
        self._bounds = np.concatenate([np.zeros(1, np.int64), *self._line_ends()])
        if self._bounds[-1] != file.size:  # the last line does not end in a newline
            self._bounds = np.append(self._bounds, file.size)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def line(self, number: int) -> str:
        """Return a line with its newline."""
        start = self._bounds.item(number)
        data = self._file.read(start, self._bounds.item(number + 1) - start)
        line = data.decode(self._encoding, self._errors)
        if self._newline is None and line.endswith(("\r", "\r\n")):
            line = line.rstrip("\r\n") + "\n"
        return line

    def close(self) -> None:
        self._file.close()

    def _line_ends(self) -> list[np.ndarray[Any, Any]]:
        """Return the offsets after the lines, for each chunk; raise what decoding raises."""
        ends = []
        decoder = codecs.getincrementaldecoder(self._encoding)(self._errors)
        for start in range(0, self._file.size, _CHUNK_BYTES):
            # One byte more on both sides, to see a \r\n that two chunks share.
            first = max(0, start - 1)
            stop = min(start + _CHUNK_BYTES, self._file.size)
            data = self._file.read(first, min(stop + 1, self._file.size) - first)
            chunk = data[start - first : stop - first]
            try:
                decoder.decode(chunk, stop == self._file.size)
            except UnicodeDecodeError as error:
                error.reason += f" (in {self._file.name}, near byte {start + error.start})"
                raise
            found = _ends_in(np.frombuffer(data, np.uint8), self._newline)
            found = found[(found >= start - first) & (found < stop - first)]
            ends.append(found + (first + 1))
        return ends


def _ends_in(data: np.ndarray[Any, Any], newline: str | None) -> np.ndarray[Any, Any]:
    """Return the positions of the last bytes of lines in ``data`` (uint8)."""
    if newline == "\r":
        return np.flatnonzero(data == _CR)
    is_lf = data == _LF
    if newline == "\n":
        return np.flatnonzero(is_lf)
    is_cr = data == _CR
    if newline == "\r\n":
        return np.flatnonzero(is_cr[:-1] & is_lf[1:]) + 1
    is_end = is_lf.copy()
    is_end[:-1] |= is_cr[:-1] & ~is_lf[1:]
    is_end[-1:] |= is_cr[-1:]
    return np.flatnonzero(is_end)


class CookieLines:
    """Lines in any encoding, also if its decoder has a state: UTF-16, UTF-7, ISO-2022.

    The position of a line is the result of a text file's ``tell()``, which includes that state.
    """

    def __init__(self, file: SharedFile, encoding: str, errors: str, newline: str | None) -> None:
        self._file = file
        self._encoding = encoding
        self._errors = errors
        self._newline = newline
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

    def close(self) -> None:
        self._file.close()

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(
            self._file.stream(), self._encoding, self._errors, newline=self._newline
        )
