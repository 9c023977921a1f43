"""KeyboardInterrupt at each line of the package, and at any moment of a call."""

from __future__ import annotations

import contextlib
import linecache
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from steps import at_step

import fastiter

PACKAGE = str(Path(fastiter.__file__).parent)


class Interrupts:
    """Raises KeyboardInterrupt at lines of the package, but for finalizers, which would lose it:
    at each one when it is first run, or at some thirds of these, or with a seed at random ones, a
    share of them."""

    def __init__(
        self, seed: int | None = None, share: float = 0.02, thirds: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        self.random = None if seed is None else random.Random(seed)
        self.share, self.thirds = share, thirds
        self.seen: set[tuple[CodeType, int]] = set()
        self.count, self.pid = 0, os.getpid()

    def __enter__(self) -> None:
        self.former = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.former)

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        # It has Ctrl-C blocked itself, and unblocks it in its last line.
        if code.co_name == "interrupts_blocked":
            return None
        if not code.co_filename.startswith(PACKAGE) or is_finalizing(frame):
            return None
        if event != "line" or os.getpid() != self.pid:
            return self
        # No signal handler runs there, and the block around would be left without its `__exit__`,
        # so that a lock stays locked, or Ctrl-C deferred: tracing meets a `with` again at the end
        # of its block, and a `try` as an instruction that no table of exceptions has.
        line = linecache.getline(code.co_filename, frame.f_lineno).lstrip()
        if line.startswith(("with ", "try:")):
            return self
        place = code, frame.f_lineno
        if place not in self.seen if self.random is None else self.random.random() < self.share:
            self.seen.add(place)
            if len(self.seen) % 3 not in self.thirds:
                return self
            self.count += 1
            raise KeyboardInterrupt
        return self


def interrupt_at(
    function: Callable[..., Any], caller: Callable[..., Any], event: str = "call", number: int = 0
) -> contextlib.AbstractContextManager[list[int]]:
    """Have Ctrl-C come when ``caller``, directly or not, calls ``function``, or at the "return": at
    the first one, or that ``number``. Give a list that has an item from then on. A signal: it waits
    where handlers do."""
    return at_step(function, number, lambda: signal.raise_signal(signal.SIGINT), event, caller)


def n_interrupts_of(iterator: Iterator[Any], is_over: Callable[[Any], bool], seconds: float) -> int:
    """Take batches until ``is_over(iterator)``, for at most these seconds; return the number of
    interrupts."""
    n_interrupts, end = 0, time.monotonic() + seconds
    while not is_over(iterator):
        assert time.monotonic() < end
        try:
            next(iterator)
        except KeyboardInterrupt:
            n_interrupts += 1
    return n_interrupts


def is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupted_by_timer(call: Callable[[], object], count: int, longest: float) -> Iterator[int]:
    """Make the call again and again, until a signal handler raises KeyboardInterrupt after a random
    time of up to ``longest`` seconds; yield after each of ``count`` interrupts."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    generator = random.Random(0)
    try:
        for number in range(count):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, longest))
                while True:
                    call()
            signal.setitimer(signal.ITIMER_REAL, 0)
            yield number
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
