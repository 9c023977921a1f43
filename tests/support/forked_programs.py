"""Programs that run in forks of an interpreter which has imported fastiter: most of the time of a
short program is that of its imports. They end as programs do, by the interpreter's own exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import programs


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Server:
    """The interpreter, with these options. Its programs run one after the other."""

    def __init__(self, *options: str) -> None:
        command = [
            sys.executable,
            *options,
            "-c",
            "import forked_programs; forked_programs.serve()",
        ]
        self._process = subprocess.Popen(
            command,
            env=programs.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, path: Path, cwd: Path, env: dict[str, str]) -> Ended:
        """As `programs.run`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            request = [str(path), str(cwd), env, out.name, err.name]
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            if not select.select([self._process.stdout], [], [], 100)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(str(path), 100, out.read(), err.read())
            status = int(self._process.stdout.readline())
            return Ended(status, out.read().decode(), err.read().decode())

    def close(self) -> None:
        with self._process:  # which closes the pipes, so that it ends, and waits
            pass


@contextlib.contextmanager
def server(*options: str) -> Iterator[Server]:
    made = Server(*options)
    try:
        yield made
    finally:
        made.close()


def serve() -> None:
    """Run each program that is asked for, in a fork."""
    import fastiter  # noqa: F401

    for line in sys.stdin:
        path, *surroundings = json.loads(line)
        process = os.fork()
        if not process:
            _enter(path, *surroundings)
            return
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _enter(path: str, cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Become the program of this path."""
    for number, name in enumerate((os.devnull, out, err)):
        opened = os.open(name, os.O_RDWR | os.O_APPEND)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    tempfile.tempdir = None  # that of the environment
    sys.argv, sys.path[0] = [path], str(Path(path).parent)
    # In the module that is there, which lives until the interpreter exits.
    names: dict[str, Any] = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __file__=path, __doc__=None, __spec__=None)
    exec(compile(Path(path).read_text(), path, "exec"), names)
