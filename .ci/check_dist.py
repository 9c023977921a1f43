"""Check what an sdist and a wheel contain: ``python .ci/check_dist.py dist/*``."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

# By gcc 12 that of CPython 3.11 has 2.06 million, those of 3.12 and 3.13 somewhat more.
WHEEL_BYTES = 2_200_000


def sdist_faults(path: Path) -> list[str]:
    """Faults of an sdist: anything but the files that git tracks, and what setuptools adds."""
    with tarfile.open(path) as archive:
        names = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    names = {name for name in names if not name.startswith("fastiter_loader.egg-info/")}
    command = ["git", "ls-files", "-z"]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    tracked = set(listing.split("\0")) - {""}
    faults = [f"lacks {name}" for name in sorted(tracked - names)]
    faults += [f"holds {name}" for name in sorted(names - tracked - {"PKG-INFO", "setup.cfg"})]
    return faults


def wheel_faults(path: Path) -> list[str]:
    """Faults of a wheel: it lacks a compiled module, stub or data, holds sources, or is too big."""
    names = zipfile.ZipFile(path).namelist()
    faults = []
    for module in sorted(str(source.with_suffix("")) for source in Path("fastiter").rglob("*.pyx")):
        if not any(n.startswith(f"{module}.") and n.endswith(".so") for n in names):
            faults.append(f"lacks the extension module {module}")
        if f"{module}.pyi" not in names:
            faults.append(f"lacks {module}.pyi")
    for file in Path("fastiter").rglob("*.*"):
        if (
            file.suffix not in (".md", ".pyx", ".pxd", ".pxi", ".so", ".pyc")
            and str(file) not in names
        ):
            faults.append(f"lacks {file}")
    if not any(n.endswith("LICENSE") and ".dist-info/" in n for n in names):
        faults.append("lacks the licence")
    for name in names:
        if not name.startswith(("fastiter/", "fastiter_loader-")):
            faults.append(f"holds {name}, which is outside the package")
        if name.endswith((".c", ".h", ".pyx", ".pxd", ".pxi", ".o")):
            faults.append(f"holds the source {name}")
        if not {"tests", "bench", "docs", "csrc"}.isdisjoint(name.split("/")):
            faults.append(f"holds {name}, which is not for users")
    if path.stat().st_size > WHEEL_BYTES:
        faults.append(f"is {path.stat().st_size} bytes, more than {WHEEL_BYTES}")
    return faults


def main(paths: list[str]) -> int:
    status = 0
    for path in map(Path, paths):
        faults = wheel_faults(path) if path.suffix == ".whl" else sdist_faults(path)
        print(f"{path.name}: {path.stat().st_size} bytes, {len(faults)} faults")
        for fault in faults:
            print(f"  {fault}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
