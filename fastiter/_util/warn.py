"""Warnings that point at the code that called fastiter."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: Warning | str, category: type[Warning] = UserWarning) -> None:
    """Call ``warnings.warn`` for the line that called fastiter, at any depth of calls.

    ``category`` is used if the message is a text.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "fastiter":
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)
