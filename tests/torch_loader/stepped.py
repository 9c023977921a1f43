"""Programs that cannot get more than one line ahead of the test that reads their lines."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from programs import environment

_PATIENCE = 60  # seconds without a line


class Stepped:
    """A program in a process group of its own.

    Its output is a pipe that holds one write: the program waits in ``print(..., flush=True)`` until
    the line before has been read. So what it has done after line k is known, on a busy machine too.
    """

    def __init__(self, arguments: list[Any], errors: Path, **variables: str) -> None:
        self._errors = errors
        self._fd, out = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
        fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, 4096)
        # Whole lines at once, and no threads that wait for each other on a busy machine.
        variables = {"PYTHONUNBUFFERED": "", "OMP_NUM_THREADS": "1", **variables}
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=stderr,
                env=environment(**variables),
                start_new_session=True,
            )
        os.close(out)

    def line(self) -> str | None:
        """The next line that tells of a batch; None at the end of the output."""
        while select.select([self._fd], [], [], _PATIENCE)[0]:
            line = os.read(self._fd, 4096).decode()
            if not line or line.startswith("epoch "):
                return line or None
        raise TimeoutError(f"no line for {_PATIENCE} s\n{self.errors()}")

    def errors(self) -> str:
        return self._errors.read_text()

    def wait(self) -> None:
        """Wait for the end of a program that succeeds."""
        assert self._process.wait(_PATIENCE) == 0, self.errors()

    def n_ring_workers(self) -> int:
        """Number of its processes that share a ring with it."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        return sum(map(_maps_a_ring, children)) if _maps_a_ring(self._process) else 0

    def kill(self) -> None:
        """Kill the whole process group, at whatever it does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.wait(_PATIENCE) == -signal.SIGKILL, self.errors()

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        os.close(self._fd)


def _maps_a_ring(process: Any) -> bool:
    """Whether a process has mapped memory that fastiter shares, with or without memfd."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return "/memfd:fastiter" in maps or "/dev/shm/fastiter" in maps


def read_until(programs: list[Stepped], part: str) -> list[list[str]]:
    """Read programs in step: the lines of each up to the first with ``part`` in it."""
    return _read(programs, lambda line: part in line, False)


def read_to_end(programs: list[Stepped]) -> list[list[str]]:
    """Read programs in step, to their successful ends: all lines of each."""
    lines = _read(programs, lambda line: False, True)
    for program in programs:
        program.wait()
    return lines


def _read(programs: list[Stepped], is_last: Callable[[str], bool], ends: bool) -> list[list[str]]:
    lines: list[list[str]] = [[] for _ in programs]
    left = list(zip(programs, lines, strict=True))
    while left:
        for program, own in list(left):
            line = program.line()
            if line is not None:
                own.append(line)
            assert line is not None or ends, program.errors()
            if line is None or is_last(line):
                left = [pair for pair in left if pair[0] is not program]
    return lines
