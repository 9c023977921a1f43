"""Readers: callables that return samples, combined by decorators, and run in processes.

A *reader* is a callable without arguments that returns an iterable of samples, a new one at each
call. A decorator takes readers and returns a reader. The interface is that of Paddle's readers.

Each checks its arguments at once: TypeError for a reader that cannot be called and for a number
that is no integer, ValueError for a number that is too small.
"""

from __future__ import annotations

from fastiter.reader._ahead import buffered, xmap_readers
from fastiter.reader._cache import cache
from fastiter.reader._decorators import (
    ComposeNotAligned,
    batch,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
)
from fastiter.reader._multiprocess import multiprocess_reader

__all__ = [
    "ComposeNotAligned",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "shuffle",
    "xmap_readers",
]

_INSTEAD = {
    "creator": "a reader is a function that yields samples: write 'yield from array', or "
    "'for line in open(path): yield line'",
    "Fake": "keep one sample and yield it: itertools.repeat(next(iter(reader())), n)",
    "PipeReader": "yield the lines of subprocess.Popen(command, stdout=subprocess.PIPE).stdout",
}


def __getattr__(name: str) -> object:
    """Name the replacements of Paddle's names that do not exist here."""
    instead = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}")
