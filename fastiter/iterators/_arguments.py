"""Checks of iterators' arguments; each error names the parameter, what was seen and expected."""

from __future__ import annotations

import multiprocessing
from typing import Any, Literal

import numpy as np

from fastiter import _device
from fastiter._arguments import checked_int

# What the shared segment has room for; far beyond what is of any use.
MOST_ROWS = 1 << 30  # in a batch
MOST_WORKERS = 1 << 14
MOST_PREFETCH = 1 << 14


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
