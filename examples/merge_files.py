"""Read files in processes of their own, and merge what they hold into batches.

Two files made by `numpy.savez` hold four and three arrays. One reader for each file gives its
arrays in the order of their names; `multiprocess_reader` runs the readers in two processes and
merges what they give, as it comes; `batch` puts two samples together and drops the one that is left
at the end::

    python examples/merge_files.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fastiter.reader import batch, multiprocess_reader

Sample = tuple[np.ndarray]


def write_files(folder: Path) -> list[Path]:
    """Makes the two files."""
    paths = [folder / "first.npz", folder / "second.npz"]
    rows = np.arange(1, 15).reshape(7, 2)
    np.savez(paths[0], a=rows[0], b=rows[1], c=rows[2], d=rows[3])
    np.savez(paths[1], a=rows[4], b=rows[5], c=rows[6])
    return paths


def arrays_of(path: Path) -> Callable[[], Iterator[Sample]]:
    """A reader of the arrays in a file: a closure, which a forked process inherits."""

    def read() -> Iterator[Sample]:
        with np.load(path) as arrays:
            for name in sorted(arrays.files):
                yield (arrays[name],)

    return read


def batches(paths: list[Path]) -> Iterator[np.ndarray]:
    """Arrays (2, 1, 2): two samples of one row each."""
    merged = multiprocess_reader([arrays_of(path) for path in paths], context="fork")
    for samples in batch(merged, 2, drop_last=True)():
        yield np.stack([np.stack(sample) for sample in samples])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for images in batches(write_files(Path(folder))):
            print(images.tolist())
