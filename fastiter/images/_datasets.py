"""Datasets of image files, and images of any other source."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_path, iterated
from fastiter.dataset.mixin import DatasetMixin, row_at
from fastiter.datasets._packed import pack
from fastiter.errors import ImageError
from fastiter.images._decoding import Decoder
from fastiter.images._transforms import ImageTransform

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class ImageFiles(DatasetMixin):
    """Arrays of image files, with labels or without.

    Parameters
    ----------
    paths : iterable of str or path-like
        The files, whose content decides about their format. Relative paths are resolved at once.
    transform : RandomResizedCrop, ResizeCenterCrop or Resize
    labels : sequence or array, optional
        A label for each path. Examples are then (array, label).
    callable : callable, optional
        Is called with each array last, which it may keep and change, and may return anything.
    decoder : {"auto", "pillow", "simplejpeg"}
        "auto": simplejpeg, if it is installed, for JPEG files of grey or YCbCr colours; Pillow for
        all else. "simplejpeg": the same, but it must be installed.
    scaled : bool
        Whether JPEG files are decoded at 1/2, 1/4 or 1/8 of their size, where the part that is
        wanted stays at least as large as the array: faster, with slightly other values.
    exif : bool
        Whether images are turned upright first, as by `PIL.ImageOps.exif_transpose`.

    Raises
    ------
    ImportError
        If Pillow is not installed, or simplejpeg, if that is asked for.
    TypeError, ValueError
        If an argument is of a wrong type or out of range.

    Notes
    -----
    Files that are missing, damaged, or of more than twice `PIL.Image.MAX_IMAGE_PIXELS` raise
    `fastiter.errors.ImageError` when they are fetched. All modes become RGB as by Pillow's
    ``convert``; of several frames the first is taken.

    Random crops draw from `fastiter.random.example_rng` of the example that is fetched. Where no
    iterator of fastiter's fetches, 128 bits of torch's default generator seed the draws or, where
    torch is not loaded, of NumPy's.
    """

    def __init__(
        self,
        paths: Iterable[Any],
        transform: ImageTransform,
        labels: Any = None,
        *,
        callable: Callable[[Any], Any] | None = None,
        decoder: str = "auto",
        scaled: bool = True,
        exif: bool = False,
    ) -> None:
        self._decoder = Decoder(transform, callable, decoder, scaled, exif)
        if isinstance(paths, (str, bytes, os.PathLike)):
            raise TypeError(f"paths must be a list of paths, not the one path {paths!r:.80}")
        here, listed = os.getcwd(), iterated("paths", "a list of paths", paths)
        # Without the rest of `os.path.abspath`: "a/../b" is another file if a is a link.
        self._paths = pack([os.path.join(here, checked_path("paths", path)) for path in listed])
        labels = None if labels is None else [*iterated("labels", "one for each path", labels)]
        if labels is not None and len(labels) != len(self):
            raise ValueError(f"labels must be one for each of {len(self)} paths, not {len(labels)}")
        self._labels: Any = None if labels is None else pack(labels)

    def __len__(self) -> int:
        return len(self._paths)

    def get_example(self, i: int) -> Any:
        """Get the array of image ``i``, or (array, label). Raises IndexError, or ImageError."""
        return ImageFiles.__fastiter_into__(self, i, ())  # a subclass's may call this

    def __fastiter_into__(self, i: int, out: Any) -> Any:
        """Get example ``i`` as `get_example` does, with its array in the first of ``out``, if that
        has its shape and dtype."""
        row = row_at(i, len(self))
        path = self._paths[row]
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except (OSError, ValueError) as error:  # of a name with a zero byte
            raise ImageError.of(path, str(error)) from error
        image = self._decoder.array(data, path, out=out[0] if len(out) else None)
        return image if self._labels is None else (image, self._labels[row])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} files, {self._decoder.transform!r})"


class ImageFolder(ImageFiles):
    """Images in a folder for each class, as `torchvision.datasets.ImageFolder`; (array, label).

    Labels number the folders in ``root`` by their names, from 0. Files lie in them at any depth.

    Parameters
    ----------
    root : str or path-like
        Resolved at once, if it is relative.
    transform, callable, decoder, scaled, exif
        As for `ImageFiles`, as are the errors.
    extensions : sequence of str
        Ends of the names of image files, in any case. By default torchvision's.

    Attributes
    ----------
    classes : list of str
        Names of the classes.
    class_to_idx : dict of str to int
        Their labels.

    Raises
    ------
    FileNotFoundError
        If there is no such folder, no class, or a class without a file.

    Examples
    --------
    >>> ImageFolder("train", RandomResizedCrop(224, flip=0.5))  # doctest: +SKIP
    """

    def __init__(
        self,
        root: Any,
        transform: ImageTransform,
        *,
        extensions: Sequence[str] | str = _EXTENSIONS,
        **options: Any,
    ) -> None:
        folder = os.path.join(os.getcwd(), os.path.expanduser(checked_path("root", root)))
        self.classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        if not self.classes:
            raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        listed = [extensions] if isinstance(extensions, str) else extensions
        named = iterated("extensions", "a list of ends of names", listed)
        ends = tuple(checked_path("extensions", end).lower() for end in named)
        of_class: dict[str, list[str]] = {name: [] for name in self.classes}
        for name, paths in of_class.items():
            for place, _, files in sorted(os.walk(os.path.join(folder, name), followlinks=True)):
                found = sorted(file for file in files if file.lower().endswith(ends))
                paths += [os.path.join(place, file) for file in found]
        if empty := [name for name, paths in of_class.items() if not paths]:
            raise FileNotFoundError(
                f"Found no valid file for the classes {', '.join(empty)}. Supported extensions "
                f"are: {', '.join(ends)}"
            )
        labels = [self.class_to_idx[name] for name, paths in of_class.items() for _ in paths]
        super().__init__(itertools.chain(*of_class.values()), transform, labels, **options)

    @property
    def samples(self) -> list[tuple[str, int]]:
        """Path and label of each image: a new list."""
        return list(zip(self._paths.values(0, len(self)), self.targets, strict=True))

    @property
    def targets(self) -> list[int]:
        """The label of each image: a new list."""
        labels: list[int] = self._labels.values(0, len(self))
        return labels


def decode(
    data: Any, transform: ImageTransform, *, rng: np.random.Generator | None = None, **options: Any
) -> Any:
    """Make an array of an image, given as the bytes of its file.

    Parameters
    ----------
    data : bytes-like
        Bytes of a JPEG, PNG or other file that Pillow knows.
    transform, callable, decoder, scaled, exif
        As for `ImageFiles`, as are the errors.
    rng : numpy.random.Generator, optional
        Source of the random numbers. By default those of the example that is fetched, as for
        `ImageFiles`: two calls in one example draw the same, as for an image and its mask. Several
        calls with one generator draw one after the other.

    Returns
    -------
    uint8 or float32 [3, height, width] or [height, width, 3], or what ``callable`` returns

    Examples
    --------
    >>> import functools
    >>> image = functools.partial(decode, transform=RandomResizedCrop(224))
    >>> dataset = ArrowDataset("train.parquet", decode={"image": image})  # doctest: +SKIP
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator or None, not {rng!r:.80}")
    try:
        view = memoryview(data).cast("B")
    except TypeError:
        raise TypeError(
            f"data must be the contiguous bytes of an image's file, not {type(data).__qualname__}"
        ) from None
    return Decoder(transform, **options).array(view, None, rng)
