"""CPU seconds and memory of a whole tree of processes, from Linux' /proc."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PERIOD = 0.02  # seconds between two looks at the memory
REST = 5.0  # and this many times the duration of a look, which is long where much memory is mapped


def process_tree(root: int) -> list[int]:
    """`root` and all its descendants that run now (an instant's view; none is waited for)."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # ended meanwhile
            continue
        # The command stands in parentheses and may hold anything; the parent is the second word
        # after it.
        parent = int(text.rpartition(")")[2].split()[1])
        children.setdefault(parent, []).append(int(stat.parent.name))
    tree = [root]
    for pid in tree:
        tree.extend(children.get(pid, ()))
    return tree


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of the processes `pids`, all their threads, to the nanosecond."""
    total = 0.0
    for pid in pids:
        try:
            # A process' CPU clock has the number ~pid << 3 | 2 (clock_getcpuclockid(3)).
            total += time.clock_gettime(~pid << 3 | 2)
        except OSError:  # ended meanwhile
            continue
    return total


def pss_bytes(pids: list[int]) -> int:
    """Proportional set size of `pids`: memory that n processes share counts 1/n in each."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += 1024 * int(line.split()[1])
    return total


def own_cpu_seconds() -> float:
    """CPU time of this process and all its descendants so far, those waited for included."""
    own = time.process_time()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own + cpu_seconds(process_tree(os.getpid())[1:]) + ended.ru_utime + ended.ru_stime


class Watcher:
    """A process beside this one that looks at the memory of this one and all its descendants."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.harness.procs", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).resolve().parents[2],
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    @contextlib.contextmanager
    def watching(self) -> Iterator[list[int]]:
        """The list holds, after the block, by how many bytes PSS was higher at its peak."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        peak: list[int] = []
        self._process.stdin.write("begin\n")
        self._process.stdout.readline()  # it has looked once
        try:
            yield peak
        finally:
            self._process.stdin.write("end\n")
            peak.append(int(self._process.stdout.readline()))


def _watch(root: int) -> None:
    """A `Watcher`'s process: between "begin" and "end" it looks all the time."""

    def memory() -> int:
        return pss_bytes([pid for pid in process_tree(root) if pid != os.getpid()])

    while sys.stdin.readline():
        begin = time.perf_counter()
        before = peak = memory()
        took = time.perf_counter() - begin
        print("begun", flush=True)
        while not select.select([sys.stdin], [], [], max(PERIOD, REST * took))[0]:
            begin = time.perf_counter()
            peak = max(peak, memory())
            took = time.perf_counter() - begin
        sys.stdin.readline()
        print(max(peak, memory()) - before, flush=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
