"""KeyboardInterrupt at each line of the package."""

from __future__ import annotations

import linecache
import os
import random
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import fastiter

PACKAGE = str(Path(fastiter.__file__).parent)


class Interrupts:
    """Raises KeyboardInterrupt at lines of the package, but for finalizers, which would lose it:
    at each one when it is first run, or with a seed at random ones, a share of them."""

    def __init__(self, seed: int | None = None, share: float = 0.02) -> None:
        self.random = None if seed is None else random.Random(seed)
        self.share = share
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
        # Tracing meets such a line again at the end of its block, before `__exit__`, where no
        # signal handler runs: a lock would stay locked.
        if linecache.getline(code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            return self
        place = code, frame.f_lineno
        if place not in self.seen if self.random is None else self.random.random() < self.share:
            self.seen.add(place)
            self.count += 1
            raise KeyboardInterrupt
        return self


def is_finalizing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None
