"""Warnings that point at the code that called fastiter."""

from __future__ import annotations

import sys
import warnings


def warn_caller(message: Warning | str, category: type[Warning] = UserWarning) -> None:
    """``warnings.warn`` at the line that called into fastiter, however deep this call is.

    `category` is for a message that is a text.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] == "fastiter"
