"""Images in files."""

from __future__ import annotations

import os
from typing import Any

from fastiter._util.arguments import checked_path
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._images import image_dtype, listed_paths, read_image

__all__ = ["ImageDataset"]


class ImageDataset(DatasetMixin):
    """Images in files, decoded by Pillow when they are fetched.

    An example is a new array (channels, height, width). It has the channels of the file, a
    grayscale image one: images of different modes have different shapes. Needs the extra ``image``;
    ImportError without it.

    Parameters
    ----------
    paths : sequence of str, or str or path-like
        The files, relative to ``root``; or the name of a text file with one path in each line
        (ValueError if one is empty). The paths are packed, so that worker processes share them.
    root : str or path-like
        The directory of the files; a relative one is resolved at once.
    dtype : dtype, optional
        The dtype of the arrays, by default float32. Values are not scaled.
    """

    def __init__(self, paths: Any, root: Any = ".", dtype: Any = None) -> None:
        self._dtype = image_dtype(dtype)
        self._paths = listed_paths(paths)
        self._root = os.path.abspath(checked_path("root", root))

    def __len__(self) -> int:
        return len(self._paths)

    def get_example(self, i: int) -> Any:
        """Read image ``i``; negative indices count from the end.

        Raises IndexError if there is no such image, OSError if the file cannot be read or is not an
        image that Pillow knows.
        """
        path = os.path.join(self._root, self._paths[row_at(i, len(self._paths))])
        return read_image(path, path, self._dtype)
