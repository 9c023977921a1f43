"""A Ray cluster in a process of its own, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

# The program's own connection and the helper's: as the cluster's, see local_cluster.py.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# All processes of this program's clusters inherit it.
MARK = f"FASTITER_TEST_CLUSTER={os.getpid()}"


class LocalCluster:
    """A cluster in a process of its own."""

    def __init__(self, nodes: int):
        program = Path(__file__).with_name("local_cluster.py")
        self._process = subprocess.Popen(
            [sys.executable, program, str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict([*os.environ.items(), MARK.split("=")]),
        )
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the cluster did not start"

    def ask(self, command: str) -> list[dict[str, list[int]]]:
        """The processes of each node, by their names."""
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)


def processes(name: str) -> list[int]:
    """Numbers of the processes of this program's clusters whose command line begins with a name."""

    def is_one(entry: Path) -> bool:
        if not (entry / "cmdline").read_bytes().startswith(name.encode()):
            return False
        return MARK.encode() in (entry / "environ").read_bytes().split(b"\0")

    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if is_one(entry):
                found.append(int(entry.name))
    return found
