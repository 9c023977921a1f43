"""Images in files, with labels."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._images import image_dtype, listed_pairs, read_image

__all__ = ["LabeledImageDataset"]


class LabeledImageDataset(DatasetMixin):
    """Images in files, with labels.

    An example is a tuple of an image, like those of `ImageDataset`, and an array.

    Parameters
    ----------
    pairs : sequence of (str, label), or str or path-like
        The files, relative to ``root``, and their labels; or the name of a text file with a path
        and an integer, separated by a space, in each line; ValueError if one has another form.
    root, dtype
        See `ImageDataset`, also for the errors.
    label_dtype : dtype
        The dtype of the labels.
    """

    def __init__(
        self, pairs: Any, root: Any = ".", dtype: Any = None, label_dtype: Any = np.int32
    ) -> None:
        self._dtype = image_dtype(dtype)
        self._pairs = listed_pairs(pairs)
        self._root = os.path.abspath(root)
        self._label_dtype = label_dtype

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> Any:
        """Read image ``i`` as `ImageDataset.get_example` does, and get its label."""
        path, label = self._pairs[row_at(i, len(self._pairs))]
        path = os.path.join(self._root, path)
        image = read_image(path, path, self._dtype)
        return image, np.array(label, dtype=self._label_dtype)
