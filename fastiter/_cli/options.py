"""Types of command-line options."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An integer of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, not {text!r}")
    return number


def positives(text: str) -> list[int]:
    """Integers of at least 1, separated by commas."""
    return [positive(part) for part in text.split(",")]


def seconds(text: str) -> float:
    """A number of seconds below a million."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 1,000,000, not {text!r}")
    return number
