"""Images in several zip archives."""

from __future__ import annotations

from typing import Any

from fastiter._util.arguments import iterated
from fastiter._util.context import Closing
from fastiter.datasets.concatenated_dataset import ConcatenatedDataset
from fastiter.datasets.zipped_image_dataset import ZippedImageDataset

__all__ = ["MultiZippedImageDataset"]


class MultiZippedImageDataset(Closing, ConcatenatedDataset):
    """Concatenates the images of several zip archives; see `ZippedImageDataset`.

    Parameters
    ----------
    zipfilenames : sequence of str or path-like
        The archives.
    dtype : dtype, optional
        See `ZippedImageDataset`, also for the errors.
    """

    def __init__(self, zipfilenames: Any, dtype: Any = None) -> None:
        names = iterated("zipfilenames", "a sequence of paths", zipfilenames)
        super().__init__(*(ZippedImageDataset(name, dtype) for name in names))

    def close(self) -> None:
        """Close the archives. Later fetches raise ValueError."""
        for archive in self._datasets:
            archive.close()
