"""Images in a zip archive."""

from __future__ import annotations

import io
from typing import Any

from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets._closing import Closing
from fastiter.datasets._images import checked_dtype, pillow, place, read_image
from fastiter.datasets._zip import ZipArchive

__all__ = ["ZippedImageDataset"]


class ZippedImageDataset(Closing, DatasetMixin):
    """Images in a zip archive, which holds nothing else, in the archive's order.

    Examples are as of `ImageDataset`. Threads read and decode at the same time; the archive's
    directory is read once, and shared by worker processes. Needs the extra ``image``.

    Parameters
    ----------
    zipfilename : str or path-like
        The archive; a relative path is resolved at once.
    dtype : dtype, optional
        Of the images; by default float32. Values are not scaled.

    Raises
    ------
    ImportError
        If Pillow is not installed.
    OSError, zipfile.BadZipFile
        If the archive cannot be read, or is none.
    """

    def __init__(self, zipfilename: Any, dtype: Any = None) -> None:
        pillow()
        self._archive = ZipArchive(zipfilename)
        self._dtype = checked_dtype(dtype)

    def __len__(self) -> int:
        return len(self._archive)

    def get_example(self, i: int | str) -> Any:
        """Read image ``i``, or the one of that name; negative indices count from the end.

        Raises
        ------
        IndexError, KeyError
            If there is no such image.
        OSError, zipfile.BadZipFile
            If it cannot be read, is no image that Pillow knows, or is damaged.
        RuntimeError, NotImplementedError
            If it is encrypted, or compressed by an unknown method.
        ValueError
            If the dataset has been closed.
        """
        if isinstance(i, str):
            number = self._archive.numbers().get(i)
            if number is None:
                raise self._archive.missing(i)
        else:
            number = place(self._archive, i)
        content = io.BytesIO(self._archive.read(number))
        return read_image(content, self._archive.named(number), self._dtype)

    def close(self) -> None:
        """Close the archive. What is fetched from then on is a ValueError."""
        self._archive.file.close()
