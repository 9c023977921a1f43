"""Images in files, with labels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._images import checked_dtype, listed_pairs, pillow, read_image

__all__ = ["LabeledImageDataset"]


class LabeledImageDataset(DatasetMixin):
    """Images in files, with labels.

    An example is a tuple of an image, like those of `ImageDataset`, and an array. Needs the extra
    ``image``.

    Parameters
    ----------
    pairs : sequence of (str, label), or str or path-like
        The files, relative to ``root``, and their labels; or the name of a text file with a path
        and an integer, separated by a space, in each line. The pairs are packed, so that worker
        processes share them.
    root, dtype
        See `ImageDataset`.
    label_dtype : dtype
        The dtype of the labels.

    Raises
    ------
    ImportError, OSError, ValueError
        If Pillow is not installed, or the text file cannot be read, or a line has another form.
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

        Raises IndexError if there is no such image, OSError if the file cannot be read or is not an
        image that Pillow knows.
        """
        path, label = self._pairs[row_at(i, len(self._pairs))]
        path = os.path.join(self._root, path)
        image = read_image(path, path, self._dtype)
        return image, np.array(label, dtype=self._label_dtype)
