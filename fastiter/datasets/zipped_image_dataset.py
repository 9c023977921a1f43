"""Images in a zip archive."""

from __future__ import annotations

import io
from typing import Any

from fastiter._util.arguments import checked_path
from fastiter._util.context import Closing
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._files import ZipArchive
from fastiter.datasets._images import image_dtype, read_image

__all__ = ["ZippedImageDataset"]


class ZippedImageDataset(Closing, DatasetMixin):
    """All files of a zip archive, which must be images, in the order of the archive.

    Examples are like those of `ImageDataset`. Threads read and decode at the same time. The
    directory of the archive is read once, and shared by worker processes.

    Parameters
    ----------
    zipfilename : str or path-like
        The archive; a relative path is resolved at once. OSError if it cannot be read, BadZipFile
        if it is no zip archive.
    dtype : dtype, optional
        See `ImageDataset`.
    """

    def __init__(self, zipfilename: Any, dtype: Any = None) -> None:
        self._dtype = image_dtype(dtype)
        self._archive = ZipArchive(checked_path("zipfilename", zipfilename))

    def __len__(self) -> int:
        return len(self._archive)

    def get_example(self, i: int | str) -> Any:
        """Read an image by index or name; negative indices count from the end.

        Raises IndexError or KeyError if there is no such image; OSError or BadZipFile if it cannot
        be read, is damaged, or is not an image that Pillow knows; RuntimeError if it is encrypted;
        NotImplementedError if the method of compression is unknown; ValueError if the dataset has
        been closed.
        """
        if isinstance(i, str):
            if (number := self._archive.numbers().get(i, -1)) < 0:
                raise KeyError(f"there is no file {i!r} in {self._archive.file.name}")
        else:
            number = row_at(i, len(self._archive))
        content = io.BytesIO(self._archive.read(number))
        return read_image(content, self._archive.named(number), self._dtype)

    def close(self) -> None:
        """Close the archive. Later fetches raise ValueError."""
        self._archive.file.close()
