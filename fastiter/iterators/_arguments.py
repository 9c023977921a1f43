"""Checks of constructor arguments; each error names the parameter, what was seen and expected."""

from __future__ import annotations

import math
import multiprocessing
import operator
from typing import Any, Literal

import numpy as np

from fastiter import _device

# What the shared segment has room for; far beyond what is of any use.
MOST_ROWS = 1 << 30  # in a batch
MOST_WORKERS = 1 << 14
MOST_PREFETCH = 1 << 14


def checked_int(name: str, value: Any, *, minimum: int = 1, maximum: int | None = None) -> int:
    """``value`` as an int.

    Raises
    ------
    TypeError
        If it is no integer; a bool is none.
    ValueError
        If it is below ``minimum``, or above ``maximum``.
    """
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


def checked_optional_int(name: str, value: Any, *, minimum: int = 1) -> int | None:
    """Like `checked_int`, but None stays None."""
    return None if value is None else checked_int(name, value, minimum=minimum)


def checked_prefetch(value: Any, device: Any) -> int | Literal["auto"]:
    """``n_prefetch``, maybe 'auto'; None for 2 if batches go to a GPU, where one of them is on its
    way, else 1.

    Raises
    ------
    TypeError, ValueError
        If it is neither 'auto' nor an integer of at least 1, or ``device`` is none.
    """
    if value is not None:
        return checked_auto("n_prefetch", value, maximum=MOST_PREFETCH)
    return 2 if isinstance(_device.resolve(device), _device.GpuDevice) else 1


def checked_device_prefetch(value: Any) -> int:
    """``n_device_prefetch``, 0 or more."""
    return checked_int("n_device_prefetch", value, minimum=0, maximum=MOST_PREFETCH)


def checked_auto(
    name: str, value: Any, *, minimum: int = 1, maximum: int | None = None
) -> int | Literal["auto"]:
    """Like `checked_int`, but 'auto' stays 'auto'."""
    if isinstance(value, str):
        if value == "auto":
            return "auto"
        raise ValueError(f"{name} must be an integer or 'auto', not {value!r}")
    return checked_int(name, value, minimum=minimum, maximum=maximum)


def checked_seconds(name: str, value: Any) -> float | None:
    """``value`` as a time in seconds above 0, or None.

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is not above 0, or NaN. Infinity means no limit, as None does.
    """
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
    """``value`` as a bool.

    Raises
    ------
    TypeError
        If it is neither a bool nor 0 or 1.
    """
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise TypeError(
        f"{name} must be True or False, not {value!r} of type {type(value).__qualname__}"
    )


def checked_callable(name: str, value: Any) -> Any:
    """``value`` itself, a callable or None.

    Raises
    ------
    TypeError
        If it is neither.
    """
    if value is None or callable(value):
        return value
    raise TypeError(f"{name} must be callable or None, not {value!r}")


def checked_on_error(value: Any) -> Any:
    """``value`` itself, 'raise', 'skip' or a callable.

    Raises
    ------
    TypeError, ValueError
        If it is none of these.
    """
    if callable(value):
        return value
    if not isinstance(value, str):
        raise TypeError(f"on_error must be 'raise', 'skip' or a callable, not {value!r}")
    if value not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise', 'skip' or a callable, not {value!r}")
    return value


def checked_share(name: str, value: Any) -> int | float | None:
    """``value`` as a count (an int), a share (a float from 0 to 1), or None.

    Raises
    ------
    TypeError
        If it is no number.
    ValueError
        If it is below 0, or a float above 1, or NaN.
    """
    if value is None:
        return None
    if isinstance(value, (float, np.floating)):
        if not 0 <= value <= 1:
            raise ValueError(
                f"{name} must be a count (an int) or a share from 0.0 to 1.0, not {value!r}"
            )
        return float(value)
    try:
        return checked_int(name, value, minimum=0)
    except TypeError:
        raise TypeError(
            f"{name} must be a count (an int), a share from 0.0 to 1.0, or None, not {value!r} of "
            f"type {type(value).__qualname__}"
        ) from None


def checked_dataset(dataset: Any) -> Any:
    """``dataset`` itself.

    Raises
    ------
    TypeError
        If it has neither ``__getitem__`` nor ``__getitems__``. Its length is asked elsewhere.
    """
    if hasattr(type(dataset), "__getitem__") or hasattr(dataset, "__getitems__"):
        return dataset
    raise TypeError(
        "dataset must be indexable (__getitem__ or __getitems__), but "
        f"{type(dataset).__qualname__} is not"
    )


def checked_context(context: Any) -> str | Any | None:
    """The name of a start method, a context, or None.

    Raises
    ------
    ValueError, TypeError
        If this system has no such start method, or it is no context.
    """
    if context is None or hasattr(context, "Process"):
        # A context itself does not pickle; its name does, and stands for it.
        return None if context is None else context.get_start_method()
    if not isinstance(context, str):
        raise TypeError(f"context must be a start method's name or a context, not {context!r}")
    known = multiprocessing.get_all_start_methods()
    if context not in known:
        raise ValueError(f"context must be one of {known}, not {context!r}")
    return context
