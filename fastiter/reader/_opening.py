"""What a reader is, and how the decorators open and close the readers that they stand on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Reader = Callable[[], Iterable[Any]]
"""Called without arguments, gives an iterable of samples: anew at each call."""


def require_readers(readers: tuple[Any, ...]) -> None:
    """Refuses early what only looks like a reader.

    Raises
    ------
    TypeError
        If one of `readers` cannot be called.
    """
    for number, reader in enumerate(readers):
        if not callable(reader):
            hint = ""
            if hasattr(reader, "__next__"):
                hint = "; pass the function itself, not what calling it gives"
            raise TypeError(
                f"reader {number} is a {type(reader).__name__}, expected a callable without "
                f"arguments that gives an iterable of samples{hint}"
            )


def open_reader(reader: Reader) -> Iterator[Any]:
    """An iterator over a fresh pass of `reader`.

    Raises
    ------
    TypeError
        If it gives nothing that can be iterated over.
    """
    samples = reader()
    try:
        return iter(samples)
    except TypeError:
        raise TypeError(
            f"the reader {reader!r} gave a {type(samples).__name__} when it was called, expected "
            "an iterable of samples: does its function lack a yield, or a return?"
        ) from None


def close_samples(samples: Iterator[Any]) -> None:
    """Ends a generator now, in this thread, so that its `finally` clauses run."""
    close = getattr(samples, "close", None)
    if close is not None:
        close()


@contextlib.contextmanager
def opened(*readers: Reader) -> Iterator[list[Iterator[Any]]]:
    """Opens all readers, and closes them when the block is left, however that happens."""
    with contextlib.ExitStack() as stack:
        passes = []
        for reader in readers:
            samples = open_reader(reader)
            stack.callback(close_samples, samples)
            passes.append(samples)
        yield passes
