"""Memory, limits and load of this machine, as the operating system reports them.

Files are read below ``root``, so that tests can describe another machine by a tree of files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from fastiter._util.cpus import control_groups

_ROOT = Path("/")


def text_of(path: Path) -> str:
    """The content of a small file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def memory(root: Path = _ROOT) -> dict[str, int]:
    """The machine's memory in bytes: keys as in /proc/meminfo."""
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text_of(root / "proc/meminfo"), re.MULTILINE)
    return {name: int(kilobytes) * 1024 for name, kilobytes in found}


def memory_limit(root: Path = _ROOT) -> tuple[int, str] | None:
    """The smallest limit of the control groups and which one's it is, if it is below the machine's
    memory."""
    mount = root / "sys/fs/cgroup"
    limits = [
        (int(text), str(group.relative_to(mount)))
        for group in control_groups("memory", root / "proc/self", mount)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (text := text_of(group / name).strip()).isdecimal()  # "max" means no limit
    ]
    smallest = min(limits, default=None)
    if smallest is None or smallest[0] >= memory(root).get("MemTotal", 0):
        return None
    return smallest


def is_open_to_writing(path: str) -> bool:
    """Whether files can be created below ``path``, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
