"""Checks of arguments. Each error names the parameter, what was seen, and what was expected."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def checked_int(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; a bool is a TypeError."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, not the bool {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, not {value!r} of type {type(value).__qualname__}"
        ) from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, not {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum}, not {number}")
    return number


def checked_optional_int(name: str, value: Any, **limits: Any) -> int | None:
    """Like `checked_int`, or None."""
    return None if value is None else checked_int(name, value, **limits)


def checked_seconds(name: str, value: Any) -> float | None:
    """``value`` as seconds above 0. None and infinity mean no limit, which is None."""
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{name} must be a number of seconds or None, not {value!r}")
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a number of seconds or None, not {value!r} of type "
            f"{type(value).__qualname__}"
        ) from None
    if not seconds > 0:
        raise ValueError(f"{name} must be above 0 seconds, not {value!r}; None sets no limit")
    return None if math.isinf(seconds) else seconds


def checked_flag(name: str, value: Any) -> bool:
    """``value``, a bool or 0 or 1, as a bool."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(
        f"{name} must be True or False, not {value!r} of type {type(value).__qualname__}"
    )


def checked_names(name: str, value: Any, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """``value``, a sequence of str, none of them twice, as a tuple."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of names, not {value!r}: pass [{value!r}]")
    names = tuple(value)
    for each in names:
        if known is not None and each not in known:
            raise ValueError(f"{name} must be of {', '.join(known)}, not {each!r}")
    if len(set(names)) < len(names):
        raise ValueError(f"{name} must name each once, not {names!r:.200}")
    return names


def iterated(name: str, expected: str, value: Any) -> Iterator[Any]:
    """Return an iterator over an argument of that name; TypeError if it is not iterable."""
    try:
        return iter(value)
    except TypeError:
        raise TypeError(
            f"{name} must be {expected}, not {value!r} of type {type(value).__qualname__}"
        ) from None


def checked_choice(name: str, value: Any, choices: Iterable[Any]) -> Any:
    if not isinstance(value, str | None) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value


def checked_callable(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    raise TypeError(f"{name} must be callable or None, not {value!r}")


def checked_path(name: str, value: Any) -> str:
    try:
        return os.fsdecode(value)
    except TypeError:
        raise TypeError(
            f"{name} must be a str or path-like, not {value!r} of type {type(value).__qualname__}"
        ) from None
