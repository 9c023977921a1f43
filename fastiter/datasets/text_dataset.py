"""The lines of text files as a dataset, with random access to them."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_callable, checked_path, iterated
from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin, out_of_range
from fastiter.datasets._files import SharedFile
from fastiter.datasets._parts import common_length

__all__ = ["TextDataset"]

_CHUNK_BYTES = 1 << 20

# Encodings in which the bytes \r and \n are always these characters, and a line can be decoded by
# itself: one byte is one character, or (UTF-8) longer characters have bytes above 127 only.
_SELF_CONTAINED = re.compile(r"utf-8|ascii|iso8859-\d+|cp125\d|koi8-[ru]")

# Error handlers that make no newlines; "ignore" can drop the bytes between \r and \n.
_KEEPS_NEWLINES = {"strict", "replace", "backslashreplace", "surrogateescape", "surrogatepass"}


class TextDataset(Closing, DatasetMixin):
    """The lines of a text file, or tuples of the lines of several text files.

    The constructor reads the files once, and notes where their lines begin. A fetch reads the
    line from the file: a str, with its newline if it has one. Threads read at the same time. A
    pickle holds the positions of the lines, but not the lines: where it is loaded, the same files
    must be at the same paths.

    Parameters
    ----------
    paths : str, path-like, or sequence of these
        The file, or the files, which must have the same number of lines. Relative paths are
        resolved at once.
    encoding, errors, newline : str or None, or sequence of these
        As in `open`; a sequence has one for each file. By default the encoding is that of the
        locale, and ``\\n``, ``\\r`` and ``\\r\\n`` all end a line, which then ends in ``\\n``.
    filter_func : callable, optional
        Predicate, called by the constructor with lines (one argument for each file). An
        example for which it returns a false value is left out.

    Raises
    ------
    OSError, TypeError, ValueError, LookupError
        Errors of `open` and of decoding; also if no file is given, or the numbers of files, lines
        or options differ.
    """

    def __init__(
        self,
        paths: Any,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        filter_func: Callable[..., Any] | None = None,
    ) -> None:
        listed = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
        listed = iterated("paths", "a path or a sequence of paths", listed)
        paths = [checked_path("paths", path) for path in listed]
        if not paths:
            raise ValueError("no paths are given: name at least one text file")
        options = {"encoding": encoding, "errors": errors, "newline": newline}
        lists = [_for_each(name, value, len(paths)) for name, value in options.items()]
        self._files = [open_lines(*each) for each in zip(paths, *lists, strict=True)]
        lengths = [(str(path), len(file)) for path, file in zip(paths, self._files, strict=True)]
        self._length = common_length(lengths, "the files, counted in lines,")
        self._lines: Any = None  # the lines that are examples; None: all
        if (chooses := checked_callable("filter_func", filter_func)) is not None:
            chosen = [n for n in range(self._length) if chooses(*self._texts(n))]
            self._lines = np.array(chosen, dtype=np.int64)
            self._length = len(chosen)

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> Any:
        """Read the line, or tuple of lines, of index ``i``.

        Raises IndexError if ``i`` is negative or not below the length, ValueError if the dataset
        has been closed, OSError if a file cannot be read or has become shorter.
        """
        if not 0 <= i < self._length:
            raise out_of_range(i, self._length)
        texts = self._texts(i if self._lines is None else self._lines.item(i))
        return texts[0] if len(texts) == 1 else texts

    def _texts(self, number: int) -> tuple[str, ...]:
        return tuple([file.line(number) for file in self._files])

    def close(self) -> None:
        """Close the files. Later fetches raise ValueError; a pickle opens the files again."""
        for file in self._files:
            file.close()


def _for_each(name: str, value: Any, n_files: int) -> list[Any]:
    """Return an option as a list with one entry for each file."""
    if value is None or isinstance(value, str):
        return [value] * n_files
    values = list(iterated(name, "a str, None, or a sequence with one for each file", value))
    if len(values) != n_files:
        raise ValueError(
            f"{name} has {len(values)} entries for {n_files} files: give one, or one for each"
        )
    return values


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
