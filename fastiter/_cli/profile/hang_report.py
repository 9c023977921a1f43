"""Tells of users' code that does not come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

PATIENCE = 10.0  # seconds

T = TypeVar("T")


class Waiting(Generic[T]):
    """What users' code is at, in which thread, since when.

    Who calls it says `begin` and `end`; `told` tells of what takes long.

    Parameters
    ----------
    text : callable
        What is at work, and at what, of what `begin` was given; it is called only if that takes
        long. "the converter has been at 3 examples" becomes "... at 3 examples for 10.0 s".
    """

    def __init__(self, text: Callable[[T], str]) -> None:
        self._text = text
        self._open: dict[int, tuple[float, T]] = {}

    def begin(self, what: T) -> None:
        self._open[threading.get_ident()] = (time.perf_counter(), what)

    def end(self) -> None:
        del self._open[threading.get_ident()]

    @contextmanager
    def told(self, say: Callable[[str], None], seconds: float = PATIENCE) -> Iterator[None]:
        """While the block runs, say what has been under way for ``seconds``, and again whenever
        that time has doubled. Needs a thread, which ends with the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(say, seconds, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, say: Callable[[str], None], seconds: float, done: threading.Event) -> None:
        told: dict[float, float] = {}  # after how long, by the time at which it began
        while not done.wait(seconds / 10):
            now = time.perf_counter()
            running = list(self._open.values())
            told = {begin: told.get(begin, 0.0) for begin, _ in running}
            for begin, what in running:
                elapsed = now - begin
                if elapsed >= max(seconds, 2 * told[begin]):
                    told[begin] = elapsed
                    say(f"{self._text(what)} for {elapsed:.1f} s")
