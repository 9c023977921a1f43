"""Images in files, with labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastiter.datasets._images import LabeledImages, listed_pairs
from fastiter.datasets.image_dataset import ImageDataset

__all__ = ["LabeledImageDataset"]


class LabeledImageDataset(LabeledImages):
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
        paths, labels = listed_pairs(pairs)
        super().__init__(labels, label_dtype)
        self._images = ImageDataset(paths, root, dtype)
