"""Images as arrays, decoded by Pillow, and lists of images in text files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_dtype, iterated
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._packed import Column, pack

_FILE = "the name of a text file with one in each line"


def pillow() -> Any:
    """Import the module ``PIL.Image``; the ImportError says what to install."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "datasets of images need Pillow, which is not installed: "
            f"pip install pillow simplejpeg ({error})"
        ) from error
    return Image


def read_image(source: Any, name: str, dtype: Any) -> np.ndarray[Any, Any]:
    """Decode an image into a new array (channels, height, width).

    Raises OSError if the image cannot be read, or Pillow does not know its format.
    """
    opened = pillow().open
    try:
        with opened(source) as image:
            image.load()  # np.asarray would hide errors
            pixels = np.asarray(image)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged bytes may cause nearly any error
        raise OSError(
            f"{name} cannot be decoded as an image: {type(error).__name__}: {error}"
        ) from error
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    # One pass moves the channels to the front and converts the numbers.
    return pixels.transpose(2, 0, 1).astype(dtype, order="C", copy=True)


def image_dtype(dtype: Any) -> np.dtype[Any]:
    """Return the dtype of images, by default float32; ImportError if they cannot be read."""
    pillow()
    return checked_dtype("dtype", np.float32 if dtype is None else dtype)


def listed_paths(paths: Any) -> Column:
    """Pack a list of paths, or the lines of a text file if its name is given."""
    if not isinstance(paths, (str, bytes, os.PathLike)):
        return pack(list(iterated("paths", f"a list of paths, or {_FILE}", paths)))
    with open(paths) as file:
        lines = [line.strip() for line in file]
    if "" in lines:
        raise ValueError(f"line {lines.index('') + 1} of {os.fsdecode(paths)} is empty, not a path")
    return pack(lines)


def listed_pairs(pairs: Any, name: str = "pairs") -> tuple[list[Any], list[Any]]:
    """The paths and the labels of a list of (path, label), or of a text file by its name."""
    found: list[tuple[Any, Any]] = []
    is_file = isinstance(pairs, (str, bytes, os.PathLike))
    if is_file:
        with open(pairs) as file:
            listed: Any = file.readlines()
    else:
        listed = iterated(name, f"a list of (path, label), or {_FILE}", pairs)
    for number, entry in enumerate(listed):
        try:
            path, label = entry.split() if is_file else entry
            found.append((path, int(label) if is_file else label))
        except (TypeError, ValueError):
            raise ValueError(
                f"line {number + 1} of {os.fsdecode(pairs)} must be a path and an integer, "
                f"separated by a space, not {entry.rstrip()!r}"
                if is_file
                else f"entry {number} of {name} must be (path, label), not {entry!r}"
            ) from None
    return [path for path, _ in found], [label for _, label in found]


class LabeledImages(DatasetMixin):
    """Pairs of an image, which a subclass reads, and an array of its label."""

    _images: Any  # a dataset

    def __init__(self, labels: list[Any], dtype: Any) -> None:
        self._labels = pack(labels)
        self._label_dtype = dtype

    def __len__(self) -> int:
        return len(self._labels)

    def _image(self, row: int) -> Any:
        return self._images.get_example(row)

    def get_example(self, i: int) -> Any:
        """Read image ``i`` and get its label; negative indices count from the end.

        Raises IndexError if there is no such example, KeyError if an archive lacks its image, and
        the errors of `ImageDataset` or `ZippedImageDataset`.
        """
        row = row_at(i, len(self._labels))
        return self._image(row), np.array(self._labels[row], dtype=self._label_dtype)
