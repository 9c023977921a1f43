"""Check what an sdist and a wheel contain: ``python .ci/check_dist.py dist/*``."""

from __future__ import annotations

import sys
import tarfile
import zipfile
from pathlib import Path

WHEEL_BYTES = 2 * 2**20
SDIST_DIRECTORIES = [
    "csrc",
    "fastiter",
    "tests",
    "tests/c",
    "tests/process",
    "bench",
    "docs",
    "examples",
    ".ci",
]
SDIST_FILES = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "setup.py",
    "pyproject.toml",
]


def sdist_faults(path: Path) -> list[str]:
    """Faults of an sdist: it lacks what the tree has, or holds what a build makes."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults = [f"lacks {name}" for name in SDIST_FILES if name not in names]
    for directory in SDIST_DIRECTORIES:
        for file in Path(directory).glob("*.*"):
            if file.suffix not in (".so", ".pyc") and str(file) not in names and file.is_file():
                faults.append(f"lacks {file}")
    faults += [f"holds the build product {n}" for n in names if n.endswith((".so", ".o", ".pyc"))]
    return faults


def wheel_faults(path: Path) -> list[str]:
    """Faults of a wheel: it lacks a compiled module, stub or data, holds sources, or is too big."""
    names = zipfile.ZipFile(path).namelist()
    faults = []
    for module in sorted(source.stem for source in Path("fastiter").glob("*.pyx")):
        if not any(n.startswith(f"fastiter/{module}.") and n.endswith(".so") for n in names):
            faults.append(f"lacks the extension module {module}")
        if f"fastiter/{module}.pyi" not in names:
            faults.append(f"lacks fastiter/{module}.pyi")
    for file in Path("fastiter").rglob("*.*"):
        if file.suffix not in (".pyx", ".pxd", ".so", ".pyc") and str(file) not in names:
            faults.append(f"lacks {file}")
    if not any(n.endswith("LICENSE") and ".dist-info/" in n for n in names):
        faults.append("lacks the licence")
    for name in names:
        if not name.startswith(("fastiter/", "fastiter-")):
            faults.append(f"holds {name}, which is outside the package")
        if name.endswith((".c", ".h", ".pyx", ".pxd", ".o")):
            faults.append(f"holds the source {name}")
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
