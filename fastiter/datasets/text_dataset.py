"""Lines of text files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets._closing import Closing
from fastiter.datasets._text_lines import open_lines

__all__ = ["TextDataset"]


class TextDataset(Closing, DatasetMixin):
    """The lines of a text file; of several files, the tuples of their lines.

    The constructor reads the files once, and notes where their lines begin. An example is read
    from the file when it is asked for: a str with its newline, if it has one. Threads read at
    the same time. A pickle holds the places of the lines, but not the lines: the files must be
    under the same path where it is loaded, and unchanged.

    Parameters
    ----------
    paths : str, path-like, or sequence of these
        The file, or the files, which must have the same number of lines. Relative ones are
        resolved at once.
    encoding, errors, newline : str or None, or sequence of these
        As in `open`; a sequence has one for each file. By default the encoding is that of the
        locale, and any of ``\\n``, ``\\r`` and ``\\r\\n`` ends a line and is given as ``\\n``.
    filter_func : callable, optional
        Called in the constructor with the lines (one argument for each file); those for which
        it gives something false are left out.

    Raises
    ------
    OSError
        If a file cannot be read.
    TypeError
        If ``paths`` is neither a path nor a sequence.
    ValueError
        If no file is given, the files or the other arguments differ in number, or ``newline`` is
        none of those that `open` takes.
    UnicodeDecodeError, LookupError
        If a file cannot be decoded, or there is no such encoding.
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
        if not isinstance(paths, Iterable):
            raise TypeError(
                f"paths must be a path or a sequence of paths, not {paths!r} of type "
                f"{type(paths).__qualname__}"
            )
        paths = list(paths)
        if not paths:
            raise ValueError("no paths are given: name at least one text file")
        options = [
            _for_each("encoding", encoding, len(paths)),
            _for_each("errors", errors, len(paths)),
            _for_each("newline", newline, len(paths)),
        ]
        self._files = [open_lines(*each) for each in zip(paths, *options, strict=True)]
        lengths = [len(file) for file in self._files]
        if len(set(lengths)) > 1:
            raise ValueError(
                "the files must have the same number of lines, but have "
                + ", ".join(f"{n} ({path})" for n, path in zip(lengths, paths, strict=True))
            )
        self._length = lengths[0]
        self._lines: Any = None  # numbers of the lines that are examples; None: all
        if filter_func is not None:
            chosen = [n for n in range(self._length) if filter_func(*self._texts(n))]
            self._lines = np.array(chosen, dtype=np.int64)
            self._length = len(chosen)

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> Any:
        """Get the line, or tuple of lines, of index ``i``.

        Raises
        ------
        IndexError
            If it is negative, or not below the length.
        ValueError
            If the dataset has been closed.
        OSError
            If a file cannot be read, or has become shorter.
        """
        if not 0 <= i < self._length:
            raise IndexError(f"index {i} is outside of a dataset of {self._length} examples")
        texts = self._texts(i if self._lines is None else self._lines.item(i))
        return texts[0] if len(texts) == 1 else texts

    def _texts(self, number: int) -> tuple[str, ...]:
        return tuple([file.line(number) for file in self._files])

    def close(self) -> None:
        """Close the files. What is fetched from then on is a ValueError; pickles stay good."""
        for file in self._files:
            file.close()


def _for_each(name: str, value: Any, n_files: int) -> list[Any]:
    """``value`` as a list with one entry for each file."""
    if value is None or isinstance(value, str):
        return [value] * n_files
    values = list(value)
    if len(values) != n_files:
        raise ValueError(
            f"{name} has {len(values)} entries for {n_files} files: give one, or one for each"
        )
    return values
