"""Checks of arguments. Each error names the parameter, what was seen, and what was expected."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np


def wrong_type(name: str, expected: str, value: Any) -> TypeError:
    kind = type(value).__qualname__
    return TypeError(f"{name} must be {expected}, not {value!r:.200} of type {kind}")


def checked_int(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; a bool is a TypeError."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, not the bool {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise wrong_type(name, "an integer", value) from None
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
    try:
        seconds = float("" if isinstance(value, (bool, np.bool_, str, bytes)) else value)
    except (TypeError, ValueError):
        raise wrong_type(name, "a number of seconds or None", value) from None
    if not seconds > 0:
        raise ValueError(f"{name} must be above 0 seconds, not {value!r}; None sets no limit")
    return None if math.isinf(seconds) else seconds


def checked_flag(name: str, value: Any) -> bool:
    """``value``, a bool or 0 or 1, as a bool."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise wrong_type(name, "True or False", value)


def checked_names(name: str, value: Any, known: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """``value``, a sequence of str, none of them twice, as a tuple."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of names, not {value!r}: pass [{value!r}]")
    names = tuple(iterated(name, "a list of names", value))
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
        raise wrong_type(name, expected, value) from None


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
        raise wrong_type(name, "a str or path-like", value) from None


def checked_dtype(name: str, value: Any) -> np.dtype[Any]:
    try:
        found: np.dtype[Any] = np.dtype(value)
    except TypeError:
        raise wrong_type(name, "a dtype of NumPy's", value) from None
    return found
