"""Images from a folder, by `fastiter.images` or decoded by OpenCV in worker processes.

The example makes the folder itself. `ImageFiles` decodes, resizes and lays out in one pass;
`OpenCvImages` is how a dataset with another decoder looks: any class with `__len__` and
`__getitem__`. In workers fastiter switches OpenCV's own threads off, which do not survive a fork::

    python examples/images.py
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fastiter import MultiprocessIterator, concat_examples
from fastiter.images import ImageFiles, Resize

SIZE = 48


def write_images(folder: Path, n: int = 60) -> list[tuple[str, int]]:
    """JPEG files with a bright square in the left (0) or right (1) half; returns names, labels."""
    pairs = []
    for i in range(n):
        rng = np.random.default_rng(i)
        image = rng.integers(0, 80, (SIZE, SIZE, 3), dtype=np.uint8)
        top, left = rng.integers(0, SIZE - 12), rng.integers(0, SIZE // 2 - 12) + i % 2 * SIZE // 2
        image[top : top + 12, left : left + 12] = 255
        Image.fromarray(image).save(folder / f"{i}.jpg", quality=95)
        pairs.append((f"{i}.jpg", i % 2))
    return pairs


def by_fastiter(folder: Path, pairs: list[tuple[str, int]]) -> Any:
    """A dataset of float32 images (3, height, width) from 0 to 1, and labels."""
    paths = [folder / name for name, _ in pairs]
    labels = [label for _, label in pairs]
    return ImageFiles(paths, Resize((SIZE, SIZE), dtype="float32"), labels)


class OpenCvImages:
    """The same, decoded by OpenCV."""

    def __init__(self, folder: Path, pairs: list[tuple[str, int]]) -> None:
        self.paths = [str(folder / name) for name, _ in pairs]
        self.labels = np.array([label for _, label in pairs], np.int32)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.int32]:
        import cv2

        image = cv2.cvtColor(cv2.imread(self.paths[i]), cv2.COLOR_BGR2RGB)
        return image.transpose(2, 0, 1).astype(np.float32) / 255, self.labels[i]


def guesses(dataset: Any) -> Iterator[np.ndarray]:
    """For each batch, whether the brighter half is the label."""
    with MultiprocessIterator(
        dataset, 20, repeat=False, shuffle=False, n_processes=2, converter=concat_examples
    ) as iterator:
        for images, labels in iterator:
            halves = images.reshape(-1, 3 * SIZE, 2, SIZE // 2).sum(axis=(1, 3))
            yield halves.argmax(axis=1) == labels


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pairs = write_images(Path(folder))
        datasets = {"fastiter.images": by_fastiter(Path(folder), pairs)}
        if importlib.util.find_spec("cv2") is not None:
            datasets["OpenCV"] = OpenCvImages(Path(folder), pairs)
        for decoder, dataset in datasets.items():
            right = np.concatenate(list(guesses(dataset)))
            print(f"{decoder}: {right.sum()} of {len(right)} right")


if __name__ == "__main__":
    main()
