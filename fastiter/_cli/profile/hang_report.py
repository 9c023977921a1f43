"""Reports calls of the user's code that do not return."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS = 10.0


class HangReport:
    """Reports, from a thread of its own, each call that takes ``seconds``, and again whenever its
    time has doubled: "fetching index 7 has taken 10.0 s"."""

    def __init__(self, report: Callable[[str], None], seconds: float = _SECONDS) -> None:
        self._report = report
        self._seconds = seconds
        self._calls: dict[int, tuple[float, Callable[[], str]]] = {}  # by thread

    def begin(self, text: Callable[[], str]) -> None:
        """This thread begins a call; ``text`` describes it, if it takes long."""
        self._calls[threading.get_ident()] = (time.perf_counter(), text)

    def end(self) -> None:
        """The call of this thread has returned."""
        del self._calls[threading.get_ident()]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch calls while the block runs."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        reported: dict[float, float] = {}  # seconds, by the time at which the call began
        while not done.wait(self._seconds / 10):
            for begin, text in list(self._calls.values()):
                elapsed = time.perf_counter() - begin
                if elapsed >= max(self._seconds, 2 * reported.get(begin, 0.0)):
                    reported[begin] = elapsed
                    self._report(f"{text()} has taken {elapsed:.1f} s")
