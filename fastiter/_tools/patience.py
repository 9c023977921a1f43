"""Tells of a dataset that does not come back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

_SECONDS = 10.0

Indices = NDArray[np.int64]


class Waiting:
    """What is being fetched, by which thread, since when.

    Fetching says `begin` and `end`; `told` tells of what takes long.
    """

    def __init__(self) -> None:
        self._open: dict[int, tuple[float, Indices]] = {}

    def begin(self, indices: Indices) -> None:
        self._open[threading.get_ident()] = (time.perf_counter(), indices)

    def end(self) -> None:
        del self._open[threading.get_ident()]

    @contextmanager
    def told(self, say: Callable[[str], None], seconds: float = _SECONDS) -> Iterator[None]:
        """While the block runs, say what has been fetched for ``seconds``, and again whenever that
        time has doubled. Needs a thread, which ends with the block."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(say, seconds, done), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, say: Callable[[str], None], seconds: float, done: threading.Event) -> None:
        told: dict[float, float] = {}  # after how long, by the time at which the fetch began
        while not done.wait(seconds / 10):
            now = time.perf_counter()
            running = list(self._open.values())
            told = {begin: told.get(begin, 0.0) for begin, _ in running}
            for begin, indices in running:
                elapsed = now - begin
                if elapsed >= max(seconds, 2 * told[begin]):
                    told[begin] = elapsed
                    say(f"the dataset has been fetching {_names(indices)} for {elapsed:.1f} s")


def _names(indices: Indices) -> str:
    if len(indices) == 1:
        return f"index {indices[0]}"
    return f"the {len(indices)} indices {', '.join(map(str, indices[:4]))}, ..."
