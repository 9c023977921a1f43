"""Folders of synthetic photographs, for harnesses that read a data set of images."""

from __future__ import annotations

from pathlib import Path


def write(folder: Path, n: int, classes: list[str], suffix: str = "jpg") -> None:
    """Write n JPEG files of 500 x 375 into folders of the classes, one class after the other."""
    from bench.jobs.images import photograph

    for number in range(n):
        path = folder / classes[number % len(classes)] / f"{number:05}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(375, 500, number))
