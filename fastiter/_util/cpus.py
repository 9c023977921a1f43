"""Number of CPUs that this process may use, by its affinity mask and its control groups."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cpus(proc: Path = _PROC, mount: Path = _GROUPS) -> float:
    """CPUs that this process may use at a time: those of its affinity mask, limited by its CPU
    quota, which may be a fraction."""
    return min(float(allowed_cpus()), cgroup_quota(proc, mount))


def whole_cpus(proc: Path = _PROC, mount: Path = _GROUPS) -> int:
    """`usable_cpus`, rounded up: the number of workers or threads that keep the CPUs busy."""
    return max(1, math.ceil(usable_cpus(proc, mount)))


def allowed_cpus() -> int:
    """CPUs of this process' affinity mask, whatever a quota grants of their time."""
    with contextlib.suppress(OSError):  # refused by a sandbox
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(proc: Path = _PROC, mount: Path = _GROUPS) -> float:
    """CPUs whose time the control groups grant to a process; infinity without a limit."""
    return min(map(_quota_of, _control_groups(proc, mount)), default=math.inf)


def _control_groups(proc: Path, mount: Path) -> Iterator[Path]:
    """Directories of the control groups, of version 1 or 2, that may limit a process's CPUs, by its
    directory under ``/proc`` and what is mounted."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = mount / "cpu" if controllers else mount  # version 2 names no controllers
        # In a container the path may be the host's, of which only the top is mounted.
        parts = PurePosixPath(group).parts[1:]
        for depth in range(len(parts) + 1):
            yield root.joinpath(*parts[:depth])


def _quota_of(group: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return int(limit) / int(period)  # "max" is no number
    with contextlib.suppress(OSError, ValueError):
        granted = int((group / "cpu.cfs_quota_us").read_text())
        if granted > 0:
            return granted / int((group / "cpu.cfs_period_us").read_text())
    return math.inf
