"""The benchmark's side of one candidate process, which runs `runner` or `micro_runner`.

Each candidate of a pipeline runs each workload in one fresh process that lives through all rounds.
A process per round would spend most of a run on imports and warm-ups, a common process would let
one candidate's threads, heap and page cache touch another's figures. A candidate that is not asked
for batches is asleep: its workers have filled their prefetch depth, which each slice's warm-up uses
up again before the clock starts; `idle_cores` measures that this is so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from typing import Any

from bench.harness.procs import PERIOD, REST, cpu_seconds, process_tree, pss_bytes

START_LIMIT = 120.0
ANSWER_LIMIT = 60.0
STDERR_SHOWN = 300


class CandidateError(Exception):
    """The candidate gave no figure; `kind` is ``WRONG``, ``FAILED``, ``HUNG`` or ``skipped``."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


class Remote:
    """Starts a candidate's process, puts requests to it and ends it with all its workers."""

    def __init__(self, python: str, root: str, module: str, *arguments: str) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in end())
        # One thread for each numeric library: candidates are compared by their processes, and
        # thread pools of BLAS or OpenMP in each of them would only fight for the cores.
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, (root, os.environ.get("PYTHONPATH")))
        )
        self._process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            cwd=root,
            start_new_session=True,  # so that its workers can be ended with it
        )
        self._pending = b""
        self._peak = 0

    def started(self) -> dict[str, Any]:
        """Waits until the dataset is made; facts of the interpreter. Raises CandidateError."""
        return self._answer(START_LIMIT)

    def ask(self, do: str, *, watched: bool = False, **fields: Any) -> dict[str, Any]:
        """Puts one request and waits for its answer. Raises CandidateError.

        With `watched`, `peak` takes in the memory meanwhile.
        """
        self.put(do, **fields)
        return self._answer(ANSWER_LIMIT + fields.get("seconds", 0.0), watched)

    def put(self, do: str, **fields: Any) -> None:
        """Puts one request, whose answer `take` waits for."""
        assert self._process.stdin is not None
        request = json.dumps({"do": do, **fields}) + "\n"
        with contextlib.suppress(BrokenPipeError):  # its death is told by the missing answer
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()

    def take(self, limit: float = ANSWER_LIMIT) -> dict[str, Any]:
        """The answer to the request that was put, within `limit` seconds. Raises CandidateError."""
        return self._answer(limit)

    def memory(self) -> int:
        """Proportional set size of the process and all its workers now, in bytes."""
        return pss_bytes(process_tree(self._process.pid))

    @property
    def peak(self) -> int:
        """The most that `memory` was during watched requests, looked at up to 50 times a second."""
        return self._peak

    def idle_cores(self, seconds: float) -> float:
        """Cores that the process and its workers keep busy while no batch is requested."""
        tree = process_tree(self._process.pid)
        before = cpu_seconds(tree)
        time.sleep(seconds)
        return (cpu_seconds(tree) - before) / seconds

    def end(self) -> None:
        """Ends the process and every worker of it, whatever state they are in."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._errors.close()

    def _answer(self, limit: float, watched: bool = False) -> dict[str, Any]:
        line = self._line(limit, watched)
        answer = json.loads(line)
        if not answer.pop("ok"):
            raise CandidateError(answer["kind"], answer["reason"])
        return answer

    def _line(self, limit: float, watched: bool) -> bytes:
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        end = time.monotonic() + limit
        while b"\n" not in self._pending:
            # Workers hold the pipe as well, so its end does not tell the death of the process.
            wait = 0.2
            if watched:
                begin = time.monotonic()
                self._peak = max(self._peak, self.memory())
                wait = max(PERIOD, REST * (time.monotonic() - begin))
            readable, _, _ = select.select([stdout], [], [], wait)
            data = os.read(stdout, 65536) if readable else b""
            self._pending += data
            if not data and self._process.poll() is not None:
                raise CandidateError(
                    "FAILED", f"ended with status {self._process.returncode}; {self._last_words()}"
                )
            if time.monotonic() > end:
                raise CandidateError(
                    "HUNG", f"no answer within {limit:.0f} s; {self._last_words()}"
                )
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - STDERR_SHOWN))
        return "its stderr ends: " + repr(self._errors.read().decode(errors="replace").strip())
