"""How many CPUs this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")
_GROUPS = Path("/sys/fs/cgroup")


def usable_cpus(proc: Path = _PROC, mount: Path = _GROUPS) -> float:
    """CPUs this process may use at a time: those of its affinity mask, and no more than the CPU
    quota of any control group above it grants. A quota may be a fraction.

    Parameters
    ----------
    proc, mount : Path
        As of `cgroup_quota`.
    """
    return min(float(allowed_cpus()), cgroup_quota(proc, mount))


def whole_cpus(proc: Path = _PROC, mount: Path = _GROUPS) -> int:
    """The same as a number of workers or threads that keep them busy: a fraction is rounded up."""
    return max(1, math.ceil(usable_cpus(proc, mount)))


def allowed_cpus() -> int:
    """CPUs of this process' affinity mask, whatever a quota grants of their time."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def cgroup_quota(proc: Path = _PROC, mount: Path = _GROUPS) -> float:
    """CPUs that the control groups of a process leave it; infinity where none sets a limit.

    Parameters
    ----------
    proc : Path
        The process' directory under ``/proc``.
    mount : Path
        Where control groups are mounted.
    """
    quota = float("inf")
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "cgroup").read_text().splitlines():
            number, controllers, group = line.split(":", 2)
            if number == "0":
                root = mount
            elif "cpu" in controllers.split(","):
                root = mount / "cpu"
            else:
                continue
            # Inside of a container the path may be the host's, of which only the end is mounted.
            parts = PurePosixPath(group).relative_to("/").parts
            for depth in range(len(parts) + 1):
                quota = min(quota, _quota_of(root.joinpath(*parts[:depth])))
    return quota


def _quota_of(group: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return float("inf") if limit == "max" else int(limit) / int(period)
    with contextlib.suppress(OSError, ValueError):
        granted = int((group / "cpu.cfs_quota_us").read_text())
        return granted / int((group / "cpu.cfs_period_us").read_text()) if granted > 0 else _NONE
    return _NONE


_NONE = float("inf")
