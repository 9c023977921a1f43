"""Types of command-line options."""

from __future__ import annotations

import argparse
import contextlib


def positive(text: str) -> int:
    """An integer of at least 1."""
    with contextlib.suppress(ValueError):
        if (number := int(text)) >= 1:
            return number
    raise argparse.ArgumentTypeError(f"expected an integer of at least 1, not {text!r}")


def positives(text: str) -> list[int]:
    """Integers of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def seconds(text: str) -> float:
    """A number of seconds below a million."""
    with contextlib.suppress(ValueError):
        if 0 <= (number := float(text)) < 1e6:
            return number
    raise argparse.ArgumentTypeError(f"expected seconds from 0 to 1,000,000, not {text!r}")
