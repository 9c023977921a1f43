"""What the operating system tells about this machine and the limits of this process.

Files are read below `root`, so that a tree of files stands for another machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/")


class MemoryLimit(NamedTuple):
    """A control group's limit."""

    nbytes: int
    group: str


def text_of(path: Path) -> str:
    """The content of a small file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _numbers(path: Path) -> list[int]:
    """The numbers in a file, without "max" and "-1", which mean no limit."""
    return [int(word) for word in text_of(path).split() if word.isdecimal()]


def _memory_groups(root: Path) -> list[Path]:
    """Directories of the control groups that may limit the memory of this process, and of those
    above them: of version 2, and of version 1."""
    found = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        place = top / path.lstrip("/")
        # In a container the path may be the host's, of which only the top is mounted here.
        while place != top:
            found.append(place)
            place = place.parent
        found.append(top)
    return found


def memory(root: Path = _ROOT) -> dict[str, int]:
    """The machine's memory in bytes: keys as in /proc/meminfo."""
    pattern = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)
    return {
        name: int(kilobytes) * 1024
        for name, kilobytes in pattern.findall(text_of(root / "proc/meminfo"))
    }


def memory_limit(root: Path = _ROOT) -> MemoryLimit | None:
    """The smallest limit of the control groups, if it is below the machine's memory."""
    limits = [
        MemoryLimit(numbers[0], str(group.relative_to(root / "sys/fs/cgroup")))
        for group in _memory_groups(root)
        for name in ("memory.max", "memory.limit_in_bytes")
        if (numbers := _numbers(group / name))
    ]
    smallest = min(limits, default=None)
    if smallest is None or smallest.nbytes >= memory(root).get("MemTotal", 0):
        return None
    return smallest


def huge_pages(root: Path = _ROOT) -> str | None:
    """What the kernel does about huge pages in shared memory: the choice of shmem_enabled."""
    path = root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    chosen = re.search(r"\[(\w+)\]", text_of(path))
    return chosen[1] if chosen else None


def load(root: Path = _ROOT) -> float | None:
    """Processes that ran or wanted to, on the average of the last minute."""
    words = text_of(root / "proc/loadavg").split()
    return float(words[0]) if words else None


def is_open_to_writing(path: str) -> bool:
    """Whether files can be made below `path`, which need not exist yet."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
