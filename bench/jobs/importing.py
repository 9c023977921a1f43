"""Seconds that the import of a library takes, beyond the NumPy that all of them need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator

from bench.harness.interpreters import MODULES
from bench.harness.micro import AtMost, Case, Measured, WrongResult

NAME = "import"
TITLE = "importing a library in a fresh interpreter, NumPy not counted"

_PROGRAM = """
import sys, time
import numpy
begin = time.perf_counter()
__import__(sys.argv[1])
print("\\n", time.perf_counter() - begin)
"""


def _importing(family: str) -> Callable[[], Callable[[str], Measured]]:
    module = MODULES[family][0]

    def make() -> Callable[[str], Measured]:
        # Bytecode is there, as after an install, wherever the library lies.
        bytecode = tempfile.mkdtemp(prefix="fastiter-bench-")

        def run(program: str) -> Measured:
            environment = dict(os.environ, PYTHONPYCACHEPREFIX=bytecode)
            environment.pop("PYTHONDONTWRITEBYTECODE", None)
            command = [sys.executable, "-c", program, module]
            done = subprocess.run(command, capture_output=True, text=True, env=environment)
            if done.returncode:
                raise ImportError(done.stderr.strip().rpartition("\n")[2])
            return Measured(float(done.stdout.split()[-1]), module)

        weakref.finalize(run, shutil.rmtree, bytecode)
        run(_PROGRAM)
        return run

    return make


def _check(result: str, source: str) -> None:
    if not result:
        raise WrongResult("nothing was imported")


def cases(quick: bool) -> Iterator[Case]:
    families = ("fastiter", "torch", "chainer", "grain", "spdl")
    yield Case(
        name="import",
        sources=lambda: [_PROGRAM],
        candidates={family: _importing(family) for family in families},
        check=_check,
        goals=[AtMost("seconds", 0.040)],
        processes=True,
    )
