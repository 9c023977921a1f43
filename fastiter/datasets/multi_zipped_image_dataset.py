"""Images in several zip archives."""

from __future__ import annotations

from typing import Any

from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets.concatenated_dataset import ConcatenatedDataset
from fastiter.datasets.zipped_image_dataset import ZippedImageDataset

__all__ = ["MultiZippedImageDataset"]


class MultiZippedImageDataset(Closing, DatasetMixin):
    """Concatenates the images of several zip archives; see `ZippedImageDataset`.

    Parameters
    ----------
    zipfilenames : sequence of str or path-like
        The archives.
    dtype : dtype, optional
        See `ZippedImageDataset`, also for the errors.
    """

    def __init__(self, zipfilenames: Any, dtype: Any = None) -> None:
        self._archives = [ZippedImageDataset(name, dtype) for name in zipfilenames]
        self._all = ConcatenatedDataset(*self._archives)

    def __len__(self) -> int:
        return len(self._all)

    def get_example(self, i: int) -> Any:
        """Read image ``i``; IndexError if it is negative, or not below the length."""
        return self._all[i]

    def close(self) -> None:
        """Close the archives. Later fetches raise ValueError."""
        for archive in self._archives:
            archive.close()
