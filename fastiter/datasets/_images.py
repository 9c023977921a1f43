"""Images as arrays, by Pillow, and lists of them in text files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastiter.datasets._packed import Column, pack
from fastiter.datasets._parts import iterated

_FILE = "the name of a text file that has one in a line"


def pillow() -> Any:
    """The module ``PIL.Image``, imported when it is first needed.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "datasets of images need Pillow, which is not installed: "
            f"pip install 'fastiter[image]' ({error})"
        ) from error
    return Image


def read_image(source: Any, name: str, dtype: Any) -> np.ndarray[Any, Any]:
    """Decode an image into an array of its own, (channels, height, width).

    Raises
    ------
    OSError
        If it cannot be read, or is no image that Pillow knows.
    """
    opened = pillow().open
    try:
        with opened(source) as image:
            image.load()  # here an error is raised as what it is
            pixels = np.asarray(image)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # of a damaged image, nearly any
        raise OSError(
            f"{name} cannot be decoded as an image: {type(error).__name__}: {error}"
        ) from error
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    pixels = pixels.transpose(2, 0, 1)
    # Channels move to the front and numbers change their type in one pass.
    return pixels.astype(dtype, order="C", copy=True)


def checked_dtype(dtype: Any) -> np.dtype[Any]:
    """The dtype of images; float32 by default."""
    return np.dtype(np.float32 if dtype is None else dtype)


def listed_paths(paths: Any) -> Column:
    """A list of paths, packed; read from a text file, one in a line, if its name is given."""
    if not isinstance(paths, (str, os.PathLike)):
        return pack(list(iterated("paths", f"a list of paths, or {_FILE}", paths)))
    with open(paths) as file:
        lines = [line.strip() for line in file]
    for number, line in enumerate(lines, 1):
        if not line:
            raise ValueError(f"line {number} of {os.fspath(paths)} is empty: it must be a path")
    return pack(lines)


def _pair(number: int, pair: Any) -> tuple[Any, Any]:
    try:
        path, label = pair
    except (TypeError, ValueError):
        raise ValueError(f"entry {number} of pairs must be (path, label), not {pair!r}") from None
    return path, label


def listed_pairs(pairs: Any) -> Column:
    """A list of (path, label), packed; read from a text file if its name is given."""
    if not isinstance(pairs, (str, os.PathLike)):
        listed = iterated("pairs", f"a list of (path, label), or {_FILE}", pairs)
        return pack([_pair(number, pair) for number, pair in enumerate(listed)])
    found = []
    with open(pairs) as file:
        for number, line in enumerate(file, 1):
            words = line.split()
            try:
                path, label = words[0], int(words[1])
                if len(words) != 2:
                    raise ValueError
            except (IndexError, ValueError):
                raise ValueError(
                    f"line {number} of {os.fspath(pairs)} must be a path and an integer, "
                    f"parted by a blank, not {line.rstrip()!r}"
                ) from None
            found.append((path, label))
    return pack(found)


def place(column: Any, i: int) -> int:
    """``i`` as a place in ``column``, with negative indices counted from its end.

    Raises
    ------
    IndexError
        If there is no such place.
    """
    size = len(column)
    if not -size <= i < size:
        raise IndexError(f"index {i} is outside of a dataset of {size} examples")
    return int(i) % size
