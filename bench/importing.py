"""How long a library takes to import, beyond the NumPy that all of them need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

from bench.interpreters import MODULES
from bench.micro import AtMost, Case, Measured, WrongResult

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
    module = {"fastiter": "fastiter"}.get(family, MODULES[family][0])

    def run(program: str) -> Measured:
        command = [sys.executable, "-c", program, module]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ImportError(done.stderr.strip().rpartition("\n")[2])
        return Measured(float(done.stdout.split()[-1]), module)

    return lambda: run


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
