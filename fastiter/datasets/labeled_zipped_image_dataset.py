"""Images in a zip archive, with labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastiter._util.context import Closing
from fastiter.datasets._files import ZipArchive
from fastiter.datasets._images import LabeledImages, listed_pairs
from fastiter.datasets._packed import pack
from fastiter.datasets.zipped_image_dataset import ZippedImageDataset

__all__ = ["LabeledZippedImageDataset"]


class LabeledZippedImageDataset(Closing, LabeledImages):
    """Images in a zip archive, with labels: tuples of an image and an array.

    Parameters
    ----------
    zipfilename : str or path-like
        The archive.
    labelfilename : str or path-like
        A text file with the name of an image in the archive and an integer, separated by a space,
        in each line: the examples. ValueError if a line has another form.
    dtype : dtype, optional
        See `ZippedImageDataset`, also for the errors.
    label_dtype : dtype
        The dtype of the labels.
    """

    def __init__(
        self, zipfilename: Any, labelfilename: Any, dtype: Any = None, label_dtype: Any = np.int32
    ) -> None:
        names, labels = listed_pairs(labelfilename, "labelfilename")
        super().__init__(labels, label_dtype)
        self._names = pack(names)
        self._images = ZippedImageDataset(zipfilename, dtype)
        # Looked up once, so that workers need no table of names.
        numbers = ZipArchive(zipfilename).numbers()
        self._numbers = np.array([numbers.get(name, -1) for name in names], np.int64)

    def _image(self, row: int) -> Any:
        number = self._numbers.item(row)
        return self._images.get_example(self._names[row] if number < 0 else number)

    def close(self) -> None:
        """Close the archive. Later fetches raise ValueError."""
        self._images.close()
