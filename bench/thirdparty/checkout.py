"""Copies of another project's checkout, in which one file takes its loader from elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

TORCH, FASTITER = "torch.utils.data.DataLoader", "fastiter.torch.DataLoader"
#: The loaders that take turns, by the names that tables give them.
LOADERS = {"torch": TORCH, "fastiter": FASTITER}


def replaced(source: str, was: str, becomes: str) -> str:
    """The source of a module that takes one loader from elsewhere.

    Parameters
    ----------
    source
        The module's text. It imports the loader in a line of its own kind, `from torch.utils.data
        import DataLoader, Dataset`, or calls it by its full name once.
    was, becomes
        Full names of the former loader and of the one to take instead.

    Raises ValueError unless exactly one such import or call is found.
    """
    module, _, name = was.rpartition(".")
    new_module, _, new_name = becomes.rpartition(".")
    line = f"from {new_module} import {new_name}" + (f" as {name}" if new_name != name else "")
    imports = re.compile(
        rf"^( *)from {re.escape(module)} import ((?:\w+, )*){name}((?:, \w+)*)(?: *#.*)?$", re.M
    )
    found = imports.findall(source)
    calls = re.compile(rf"\b{re.escape(was)}\(")
    if not found and len(calls.findall(source)) == 1:
        # Behind the first import of the package that has the former loader.
        first = re.compile(rf"^import {module.partition('.')[0]}\b.*$", re.M)
        source, n = first.subn(rf"\g<0>\n{line}", source, count=1)
        if n:
            return calls.sub(f"{name}(", source)
    if len(found) != 1:
        raise ValueError(f"the file has {len(found)} imports of {was}, expected one")

    def one(match: re.Match[str]) -> str:
        indent, before, after = match.groups()
        others = f"{before}{after.removeprefix(', ')}".removesuffix(", ")
        lines = [f"{indent}from {module} import {others}"] if others else []
        return "\n".join([*lines, f"{indent}{line}"])

    return imports.sub(one, source)


@contextlib.contextmanager
def copies(
    checkout: Path, file: str, loaders: dict[str, str] = LOADERS, was: str = TORCH
) -> Iterator[dict[str, Path]]:
    """Folders with a copy of the checkout for each loader, its file changed; gone at the end."""
    if not (checkout / file).is_file():
        raise SystemExit(f"{checkout} has no {file}: expected a checkout of the project")
    with tempfile.TemporaryDirectory() as folder:
        trees = {}
        for name, loader in loaders.items():
            trees[name] = Path(folder, name)
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(checkout, trees[name], ignore=ignored)
            changed = trees[name] / file
            changed.write_text(replaced(changed.read_text(), was, loader))
        yield trees


def describe(checkout: Path, *others: str) -> str:
    """The machine, and the versions of what takes part: of these distributions, too."""
    import fastiter  # which has no metadata where it was built in place

    found = [f"fastiter {fastiter.__version__}"]
    for name in ("torch", "numpy", *others):
        with contextlib.suppress(PackageNotFoundError):
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


def table(
    title: str, rates: dict[str, dict[str, list[float]]], *, lower: bool = False, width: int = 34
) -> None:
    """Print the medians of each case, a column for each loader, and fastiter's gains.

    Parameters
    ----------
    title
        Unit of the figures, such as "images/s".
    rates
        Figures of each round, by case and loader.
    lower
        Whether less is better, as of CPU time; else more is.
    """
    names = [*next(iter(rates.values()))]
    others = [name for name in names if name != "fastiter"]
    head = "".join(f"{name:>14}" for name in names)
    print(f"{title:{width}}{head}" + "".join(f"{'over ' + name:>20}" for name in others))
    for case, found in rates.items():
        medians = {name: statistics.median(values) for name, values in found.items()}
        line = "".join(f"{medians[name]:>14.1f}" for name in names)
        ratios = [medians["fastiter"] / medians[name] for name in others]
        gains = "".join(f"{1 / ratio if lower else ratio:>19.2f}x" for ratio in ratios)
        print(f"{case:{width}}{line}{gains}")
