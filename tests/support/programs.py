"""Programs that tests run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastiter


def environment(**more: str) -> dict[str, str]:
    """Variables for a program, which imports the fastiter that is tested."""
    root = str(Path(fastiter.__file__).parent.parent)
    path = os.pathsep.join([root, *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, **more}


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this interpreter to the end of the program; ``options`` are those of `subprocess.run`."""
    options = {"env": environment(), "timeout": 100, **options}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)
