"""Number of CPUs that this process may use, by its affinity mask and its control groups."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import TypeAlias

_Folder: TypeAlias = "str | os.PathLike[str]"

_PROC = "/proc/self"
_GROUPS = "/sys/fs/cgroup"


def usable_cpus(proc: _Folder = _PROC, mount: _Folder = _GROUPS) -> float:
    """CPUs that this process may use at a time: those of its affinity mask, limited by its CPU
    quota, which may be a fraction."""
    return min(float(allowed_cpus()), cgroup_quota(proc, mount))


def whole_cpus(proc: _Folder = _PROC, mount: _Folder = _GROUPS) -> int:
    """`usable_cpus`, rounded up: the number of workers or threads that keep the CPUs busy."""
    return max(1, math.ceil(usable_cpus(proc, mount)))


def allowed_cpus() -> int:
    """CPUs of this process' affinity mask, whatever a quota grants of their time."""
    with contextlib.suppress(OSError):  # refused by a sandbox
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_quota(proc: _Folder = _PROC, mount: _Folder = _GROUPS) -> float:
    """CPUs whose time the control groups grant to a process; infinity without a limit."""
    return min(map(_quota_of, _control_groups(proc, mount)), default=math.inf)


def _control_groups(proc: _Folder, mount: _Folder) -> Iterator[str]:
    """Directories of the control groups, of version 1 or 2, that may limit a process's CPUs, by its
    directory under ``/proc`` and what is mounted."""
    try:
        lines = _text(proc, "cgroup").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = os.path.join(mount, "cpu" if controllers else "")  # version 2 names no controllers
        # In a container the path may be the host's, of which only the top is mounted.
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts) + 1):
            yield os.path.join(root, *parts[:depth])


def _quota_of(group: str) -> float:
    with contextlib.suppress(OSError, ValueError):
        limit, period = _text(group, "cpu.max").split()
        return int(limit) / int(period)  # "max" is no number
    with contextlib.suppress(OSError, ValueError):
        if (granted := int(_text(group, "cpu.cfs_quota_us"))) > 0:
            return granted / int(_text(group, "cpu.cfs_period_us"))
    return math.inf


def _text(folder: _Folder, name: str) -> str:
    with open(os.path.join(folder, name)) as file:
        return file.read()
