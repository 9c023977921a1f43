"""Images in a zip archive, with labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._images import listed_pairs
from fastiter.datasets._zip import ZipArchive
from fastiter.datasets.zipped_image_dataset import ZippedImageDataset

__all__ = ["LabeledZippedImageDataset"]


class LabeledZippedImageDataset(Closing, DatasetMixin):
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
        self._pairs = listed_pairs(labelfilename)
        self._images = ZippedImageDataset(zipfilename, dtype)
        self._label_dtype = label_dtype
        # Looked up once, so that workers need no table of names.
        numbers = ZipArchive(zipfilename).numbers()
        pairs = self._pairs.part(0, len(self))
        self._numbers = np.array([numbers.get(name, -1) for name, _ in pairs], np.int64)

    def __len__(self) -> int:
        return len(self._pairs)

    def get_example(self, i: int) -> Any:
        """Read image ``i`` and its label; negative indices count from the end.

        Raises IndexError if there is no such example, KeyError if the archive lacks its image, and
        the errors of `ZippedImageDataset`.
        """
        row = row_at(i, len(self._pairs))
        name, label = self._pairs[row]
        number = self._numbers.item(row)
        image = self._images.get_example(name if number < 0 else number)
        return image, np.array(label, dtype=self._label_dtype)

    def close(self) -> None:
        """Close the archive. Later fetches raise ValueError."""
        self._images.close()
