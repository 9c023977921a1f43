"""Types of command-line options."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path


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


def output_file(text: str) -> Path:
    """A file that can be written."""
    path = Path(text)
    try:
        is_there = path.exists()
        path.open("ab").close()
        if not is_there:
            path.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot be written: {error}") from error
    return path


def output_folder(text: str) -> Path:
    """A folder in which files can be written; it is made if it is not there."""
    with contextlib.suppress(OSError):  # the error of a file in it tells
        Path(text).mkdir(parents=True, exist_ok=True)
    return output_file(f"{text}/.fastiter-can-write").parent
