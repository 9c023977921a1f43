"""Interpreters of the libraries, and versions of both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

_PROBE = """
import importlib, importlib.metadata, json, sys
name, distribution = sys.argv[1:]
try:
    if name != "numpy":
        importlib.import_module(name)
    import numpy
    if distribution == "python":
        facts = {"version": sys.version.split()[0]}
    else:
        facts = {"version": importlib.metadata.version(distribution)}
except importlib.metadata.PackageNotFoundError:
    facts = {"version": "in place"}
except Exception as error:
    facts = {"reason": f"{type(error).__name__}: {error}"}
else:
    facts["numpy"] = numpy.__version__
facts.setdefault("numpy", getattr(sys.modules.get("numpy"), "__version__", None))
facts["python"] = sys.version.split()[0]
print("\\n" + json.dumps(facts))
"""
# What a family's candidates import, and the distribution that its version is read from.
MODULES = {
    "fastiter": ("fastiter.iterators", "fastiter-loader"),
    "torch": ("torch", "torch"),
    "torchdata": ("torchdata.stateful_dataloader", "torchdata"),
    "dataloader_rs": ("dataloader_rs", "dataloader-rs"),
    "chainer": ("chainer.iterators", "chainer"),
    "grain": ("grain", "grain"),
    "trl": ("trl.data_utils", "trl"),
    "spdl": ("spdl.pipeline", "spdl-core"),
    "paddle": ("paddle.reader", "paddlepaddle"),
    "numpy": ("numpy", "numpy"),
    "pillow": ("PIL.Image", "pillow"),
    "opencv": ("cv2", "opencv-python-headless"),
    "python": ("multiprocessing", "python"),
}
FAMILIES = tuple(MODULES)


@dataclass(frozen=True)
class Interpreter:
    """A library under an interpreter; `reason` says why it cannot be used, None when it can."""

    path: str
    version: str | None
    numpy: str | None
    python: str | None
    reason: str | None

    @property
    def label(self) -> str:
        return f"{self.python}, NumPy {self.numpy}"


def parse_interpreters(choices: list[str]) -> dict[str, str]:
    """``["chainer=/path/to/python"]`` as a dict of family to path; ValueError for anything else."""
    paths = dict.fromkeys(FAMILIES, sys.executable)
    for choice in choices:
        family, _, path = choice.partition("=")
        if family not in FAMILIES or not path:
            raise ValueError(
                f"--python {choice!r}: expected FAMILY=PATH, FAMILY one of {', '.join(FAMILIES)}"
            )
        paths[family] = path
    return paths


def probe(family: str, path: str, root: str) -> Interpreter:
    """Imports the library of `family` in a process of interpreter `path` (seconds)."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [path, "-c", _PROBE, *MODULES[family]]
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=environment, timeout=120
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Interpreter(path, None, None, None, str(error))
    facts = json.loads(done.stdout.splitlines()[-1])
    return Interpreter(
        path, facts.get("version"), facts["numpy"], facts["python"], facts.get("reason")
    )
