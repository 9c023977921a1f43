"""Checks of readers' arguments."""

from __future__ import annotations

import math
import sys
from typing import Any

from fastiter._util.arguments import checked_int


def checked_count(name: str, value: Any, *, minimum: int) -> int:
    """``value`` as a number of samples or threads; like Paddle, which only compares it, this takes
    whole floats such as 1e4, and infinity.

    Raises
    ------
    TypeError
        If it is no such number.
    ValueError
        If it is below ``minimum``.
    """
    if isinstance(value, float):
        if value == math.inf:
            return sys.maxsize
        if value.is_integer():
            value = int(value)
    return min(checked_int(name, value, minimum=minimum), sys.maxsize)
