"""Sizes and times: how large a value is, and how figures are shown to users."""

from __future__ import annotations

from typing import Any


def nbytes_of(value: Any) -> int:
    """About how many bytes the arrays, numbers and texts of an example or a batch take.

    All items of a list count as much as the first one.
    """
    if isinstance(value, list):
        return len(value) * nbytes_of(value[0]) if value else 0
    if isinstance(value, (tuple, dict)):
        return sum(map(nbytes_of, value.values() if isinstance(value, dict) else value))
    if isinstance(value, (str, bytes)):
        return len(value)
    return int(getattr(value, "nbytes", 8))


def as_bytes(number: float) -> str:
    """A number of bytes: ``1.5 GiB``."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    digits = 0 if number >= 10 or units[0] == "bytes" else 1
    return f"{number:.{digits}f} {units[0]}"


def as_seconds(seconds: float) -> str:
    """A time: ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"
