"""Checks that a file has not been replaced since a dataset was made."""

from __future__ import annotations

import os
import platform
from typing import NamedTuple


class Sign(NamedTuple):
    """Facts that tell a file from another one written in its place."""

    size: int
    mtime_ns: int
    inode: int
    machine: str  #: on which others may have copies


def sign_of(path: str | int) -> Sign:
    found = os.stat(path)
    return Sign(found.st_size, found.st_mtime_ns, found.st_ino, platform.node())


def check_same(path: str, before: Sign) -> None:
    """Raise ValueError if a file has been replaced."""
    now = sign_of(path)
    if now == before or (now.machine != before.machine and now.size == before.size):
        return
    raise another_file(path, f"it has {now.size} bytes, and had {before.size}, or was written anew")


def another_file(path: str, difference: str) -> ValueError:
    """The error of a file that has been replaced."""
    return ValueError(
        f"{path} is another file than when the dataset was made: {difference}; make the dataset "
        "again"
    )
