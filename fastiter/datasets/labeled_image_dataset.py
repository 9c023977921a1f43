"""Images in files, with labels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets._images import checked_dtype, listed_pairs, pillow, place, read_image

__all__ = ["LabeledImageDataset"]


class LabeledImageDataset(DatasetMixin):
    """Images in files, with labels: tuples of an image as of `ImageDataset` and an array.

    Needs the extra ``image``.

    Parameters
    ----------
    pairs : sequence of (str, label), or str or path-like
        Files, relative to ``root``, and their labels; or the name of a text file with a file, a
        blank and an integer in each line. They are packed, so that worker processes share them.
    root : str or path-like
        Directory that paths are relative to; itself resolved at once.
    dtype : dtype, optional
        Of the images; by default float32. Values are not scaled.
    label_dtype : dtype
        Of the labels.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    OSError, ValueError
        If the text file cannot be read, or a line is of another form.
    """

    def __init__(
        self, pairs: Any, root: Any = ".", dtype: Any = None, label_dtype: Any = np.int32
    ) -> None:
        pillow()
        self._pairs = listed_pairs(pairs)
        self._root = os.path.abspath(root)
        self._dtype = checked_dtype(dtype)
        self._label_dtype = label_dtype

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> Any:
        """Read image ``i`` and its label; negative indices count from the end.

        Raises
        ------
        IndexError
            If there is no such image.
        OSError
            If the file cannot be read, or is no image that Pillow knows.
        """
        path, label = self._pairs[place(self._pairs, i)]
        path = os.path.join(self._root, path)
        image = read_image(path, path, self._dtype)
        return image, np.array(label, dtype=self._label_dtype)
