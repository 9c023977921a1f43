"""A copy of another project's checkout, in which one file imports its loader from elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

LOADERS = {"torch": "torch.utils.data", "fastiter": "fastiter.torch"}
#: An import of torch's class, alone or with other names, which stay where they are.
IMPORT = re.compile(
    r"^( *)from torch\.utils\.data import ((?:\w+, )*)DataLoader((?:, \w+)*)$", re.M
)


def replaced(source: str, loader: str) -> str:
    """The source of a module that imports its `DataLoader` from the loader's module.

    Raises ValueError unless there is exactly one such import.
    """
    found = IMPORT.findall(source)
    if len(found) != 1:
        raise ValueError(f"the file has {len(found)} imports of torch's DataLoader, expected one")

    def one(match: re.Match[str]) -> str:
        indent, before, after = match.groups()
        others = f"{before}{after.removeprefix(', ')}".removesuffix(", ")
        lines = [f"{indent}from torch.utils.data import {others}"] if others else []
        return "\n".join([*lines, f"{indent}from {LOADERS[loader]} import DataLoader"])

    return IMPORT.sub(one, source)


@contextlib.contextmanager
def copies(checkout: Path, file: str) -> Iterator[dict[str, Path]]:
    """Folders with a copy of the checkout for each loader, its file changed; gone at the end."""
    if not (checkout / file).is_file():
        raise SystemExit(f"{checkout} has no {file}: expected a checkout of the project")
    with tempfile.TemporaryDirectory() as folder:
        trees = {}
        for loader in LOADERS:
            trees[loader] = Path(folder, loader)
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(checkout, trees[loader], ignore=ignored)
            changed = trees[loader] / file
            changed.write_text(replaced(changed.read_text(), loader))
        yield trees


def describe(checkout: Path) -> str:
    """The machine, and the versions of what takes part."""
    names = ["fastiter-loader", "torch", "numpy"]
    found = []
    for name in names:
        with contextlib.suppress(Exception):  # in place, a package has no metadata
            found.append(f"{name} {version(name)}")
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    head = f"{cpu}, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{head}\n  {', '.join(found)}; the harness at {commit or 'an unknown commit'}"


def arguments(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="folder of the other project's sources")
    parser.add_argument("--rounds", type=int, default=3, help="loaders take turns in each round")
    return parser


def run(command: list[str], cwd: Path, paths: list[Path]) -> str:
    """The output of a command whose modules come from these folders first."""
    inherited = os.environ.get("PYTHONPATH", "")
    env = {**os.environ, "PYTHONPATH": ":".join([*map(str, paths), inherited]).rstrip(":")}
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return done.stdout
