"""Readers: checks of arguments, and opening and closing of passes."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastiter._util.arguments import checked_int

Reader = Callable[[], Iterable[Any]]
"""Called without arguments, returns an iterable of samples: a new one at each call."""


def require_readers(readers: tuple[Any, ...]) -> None:
    """Raise TypeError if one of ``readers`` cannot be called."""
    for number, reader in enumerate(readers):
        if not callable(reader):
            hint = ""
            if hasattr(reader, "__next__"):
                hint = "; pass the function itself, not its result"
            raise TypeError(
                f"reader {number} is a {type(reader).__name__}, expected a callable without "
                f"arguments that returns an iterable of samples{hint}"
            )


def checked_count(name: str, value: Any, *, minimum: int) -> int:
    """``value`` as a number of samples or threads, at least ``minimum``.

    Paddle only compares such numbers; so whole floats such as 1e4, and infinity, are accepted.
    Raises TypeError or ValueError.
    """
    if isinstance(value, float):
        if value == math.inf:
            return sys.maxsize
        if value.is_integer():
            value = int(value)
    return min(checked_int(name, value, minimum=minimum), sys.maxsize)


def name_of(reader: Reader) -> str:
    """A reader's name in messages."""
    return getattr(reader, "__qualname__", None) or type(reader).__qualname__


def open_reader(reader: Reader) -> Iterator[Any]:
    """An iterator over a new pass of ``reader``; TypeError if that cannot be iterated over."""
    samples = reader()
    try:
        return iter(samples)
    except TypeError:
        raise TypeError(
            f"the reader {reader!r} returned a {type(samples).__name__} when it was called, "
            "expected an iterable of samples: does its function lack a yield, or a return?"
        ) from None


def close_samples(samples: Iterator[Any]) -> None:
    """End a generator now, in this thread, so that its ``finally`` clauses run."""
    close = getattr(samples, "close", None)
    if close is not None:
        close()


@contextlib.contextmanager
def opened(*readers: Reader) -> Iterator[list[Iterator[Any]]]:
    """Open all readers, and close them when the block ends, also by an exception."""
    with contextlib.ExitStack() as stack:
        passes = []
        for reader in readers:
            samples = open_reader(reader)
            stack.callback(close_samples, samples)
            passes.append(samples)
        yield passes
