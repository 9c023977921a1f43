"""The lines of text files as a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin, out_of_range
from fastiter.datasets._parts import common_length, iterated
from fastiter.datasets._text_lines import open_lines

__all__ = ["TextDataset"]


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
        Called in the constructor with the lines (one argument for each file). An example for which
        it returns a false value is left out.

    Raises
    ------
    OSError, TypeError, ValueError, LookupError
        Those of `open` and of decoding; also if no file is given, or the numbers of files, lines or
        options differ.
    """

    def __init__(
        self,
        paths: Any,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        filter_func: Callable[..., Any] | None = None,
    ) -> None:
        if isinstance(paths, (str, bytes, os.PathLike)):
            paths = [paths]
        paths = list(iterated("paths", "a path or a sequence of paths", paths))
        if not paths:
            raise ValueError("no paths are given: name at least one text file")
        options = {"encoding": encoding, "errors": errors, "newline": newline}
        lists = [_for_each(name, value, len(paths)) for name, value in options.items()]
        self._files = [open_lines(*each) for each in zip(paths, *lists, strict=True)]
        lengths = [(str(path), len(file)) for path, file in zip(paths, self._files, strict=True)]
        self._length = common_length(lengths, "the files, counted in lines,")
        self._lines: Any = None  # the lines that are examples; None: all
        if filter_func is not None:
            chosen = [n for n in range(self._length) if filter_func(*self._texts(n))]
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
    values = list(value)
    if len(values) != n_files:
        raise ValueError(
            f"{name} has {len(values)} entries for {n_files} files: give one, or one for each"
        )
    return values
