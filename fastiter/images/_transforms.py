"""Transforms: values that say which part of an image becomes an array, and how that is laid out."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._util.arguments import checked_choice, checked_int
from fastiter._util.concurrency import made_once

_MOST = 65_535  # pixels of a side, as of a JPEG
_TRIES = 10  # torchvision's


class CropWindow(NamedTuple):
    """The array that an image becomes: a window of a part of it, resized."""

    box: tuple[float, float, float, float]  #: left, top, right and bottom of the part, in pixels
    size: tuple[int, int]  #: height and width of the resized part
    corner: tuple[int, int]  #: top and left of the window in it
    shape: tuple[int, int]  #: height and width of the window
    flip: bool = False  #: whether the window is mirrored, left to right


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ImageTransform:
    """Base of the transforms: the layout and the dtype of the array."""

    layout: str = "chw"
    dtype: str = "uint8"
    mean: tuple[float, ...] | float | None = None
    std: tuple[float, ...] | float | None = None
    interpolation: str = "bilinear"
    draws: ClassVar[bool] = False  #: whether `window` takes random numbers

    def __post_init__(self) -> None:
        # Values are put into the dictionary, which is not frozen, in one form each.
        checked_choice("layout", self.layout, ("chw", "hwc"))
        checked_choice("interpolation", self.interpolation, ("bilinear",))
        name = getattr(self.dtype, "__name__", str(self.dtype)).removeprefix("torch.")
        vars(self).update(dtype=checked_choice("dtype", name, ("uint8", "float32")))
        for name in ("mean", "std"):
            value = getattr(self, name)
            if value is not None and self.dtype == "uint8":
                raise ValueError(f"{name}={value!r} needs dtype='float32', not 'uint8'")
            if value is not None:
                vars(self)[name] = _numbers(name, value, 3, is_one_enough=True)
        if isinstance(self.std, tuple) and min(self.std) <= 0:
            raise ValueError(f"std must be above 0, not {self.std!r}")

    def __repr__(self) -> str:
        shown = []
        for field in sorted(dataclasses.fields(self), key=lambda field: bool(field.kw_only)):
            value = getattr(self, field.name)
            if value != field.default:
                shown.append(f"{field.name}={value!r}" if field.kw_only else repr(value))
        return f"{type(self).__name__}({', '.join(shown)})"

    @made_once
    def table(self) -> npt.NDArray[np.float32] | None:
        """float32 (3, 256): what a byte of each channel becomes; None if it stays a byte."""
        if self.dtype == "uint8":
            return None
        table = (np.arange(256)[:, None] / 255 - (self.mean or (0.0,) * 3)) / (self.std or 1.0)
        return np.ascontiguousarray(table.T, np.float32)

    def window(self, height: int, width: int, rng: np.random.Generator) -> CropWindow:
        """The window of an image of this size. It draws from ``rng``, if `draws`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, repr=False)
class RandomResizedCrop(ImageTransform):
    """A random part of the image, resized; as `torchvision.transforms.v2.RandomResizedCrop`.

    Parameters
    ----------
    size : int or (int, int)
        Side of a square, or height and width of the array.
    scale, ratio : (float, float)
        Least and greatest share of the area, and ratio of width to height.
    flip : float
        Probability with which the array is mirrored, left to right.
    layout : {"chw", "hwc"}
        Order of the array's axes: channels, height, width, or height, width, channels.
    dtype : {"uint8", "float32"}
        "float32": each byte ``v`` of channel ``c`` becomes ``(v / 255 - mean[c]) / std[c]``.
    mean, std : float or (float, float, float), optional
        For float32, of the red, green and blue channel; by default 0 and 1.
    interpolation : {"bilinear"}
        Filter, with antialiasing as torchvision and Pillow have it.

    Raises
    ------
    TypeError, ValueError
        If an argument is of a wrong type or out of range, or ``mean`` or ``std`` given for uint8.

    Examples
    --------
    >>> RandomResizedCrop(224, flip=0.5)
    RandomResizedCrop((224, 224), flip=0.5)
    """

    draws: ClassVar[bool] = True
    size: tuple[int, int] | int
    scale: tuple[float, ...] = dataclasses.field(default=(0.08, 1.0), kw_only=True)
    ratio: tuple[float, ...] = dataclasses.field(default=(3 / 4, 4 / 3), kw_only=True)
    flip: float = dataclasses.field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        (flip,) = _numbers("flip", self.flip, 1, is_one_enough=True)
        vars(self).update(size=_both("size", self.size), flip=flip)
        for name in ("scale", "ratio"):
            least, most = found = _numbers(name, getattr(self, name), 2)
            if not 0 <= least <= most or most == 0 or (name == "ratio" and least == 0):
                raise ValueError(f"{name} must be (least, most) of positive numbers, not {found!r}")
            vars(self)[name] = found
        if not 0 <= flip <= 1:
            raise ValueError(f"flip must be a probability, from 0 to 1, not {flip!r}")

    def window(self, height: int, width: int, rng: np.random.Generator) -> CropWindow:
        # All at once: as many numbers for each image, whichever of the tries fits.
        *tries, y, x, coin = rng.random(2 * _TRIES + 3).tolist()
        (least, most), (low, high) = self.scale, map(math.log, self.ratio)
        for share, stretch in zip(tries[::2], tries[1::2], strict=True):
            area = height * width * (least + (most - least) * share)
            ratio = math.exp(low + (high - low) * stretch)
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(y * (height - h + 1)), int(x * (width - w + 1))
                break
        else:
            w = min(width, max(1, round(height * self.ratio[1])))
            h = min(height, max(1, round(width / self.ratio[0])))
            top, left = (height - h) // 2, (width - w) // 2
        size: Any = self.size
        return CropWindow((left, top, left + w, top + h), size, (0, 0), size, coin < self.flip)


@dataclasses.dataclass(frozen=True, repr=False)
class ResizeCenterCrop(ImageTransform):
    """The middle of the resized image, and no more than that is computed; as torchvision's
    ``Resize(resize)`` and ``CenterCrop(size)``.

    Parameters
    ----------
    resize : int or (int, int)
        Length of the shorter side of the resized image, or its height and width.
    size : int or (int, int)
        Side of a square, or height and width of the array; at most those of the resized image.
    layout, dtype, mean, std, interpolation
        As for `RandomResizedCrop`, as are the errors.
    """

    resize: tuple[int, int] | int
    size: tuple[int, int] | int

    def __post_init__(self) -> None:
        super().__post_init__()
        size, whole = _both("size", self.size), _both("resize", self.resize)
        if size[0] > whole[0] or size[1] > whole[1]:
            raise ValueError(f"size must be at most resize={self.resize!r}, not {self.size!r}")
        vars(self).update(size=size, resize=whole[0] if np.ndim(self.resize) == 0 else whole)

    def window(self, height: int, width: int, rng: np.random.Generator) -> CropWindow:
        shape: Any = self.size
        size = _resized(height, width, self.resize)
        corner = round((size[0] - shape[0]) / 2), round((size[1] - shape[1]) / 2)
        return CropWindow((0, 0, width, height), size, corner, shape)


@dataclasses.dataclass(frozen=True, repr=False)
class Resize(ImageTransform):
    """The whole image, resized; as `torchvision.transforms.v2.Resize`.

    Parameters
    ----------
    size : int or (int, int)
        Length of the shorter side, so that arrays of other ratios have other shapes; or height and
        width.
    layout, dtype, mean, std, interpolation
        As for `RandomResizedCrop`, as are the errors.
    """

    size: tuple[int, int] | int

    def __post_init__(self) -> None:
        super().__post_init__()
        both = _both("size", self.size)
        vars(self).update(size=both[0] if np.ndim(self.size) == 0 else both)

    def window(self, height: int, width: int, rng: np.random.Generator) -> CropWindow:
        size = _resized(height, width, self.size)
        return CropWindow((0, 0, width, height), size, (0, 0), size)


def _resized(height: int, width: int, size: tuple[int, int] | int) -> tuple[int, int]:
    """Height and width of a resized image, rounded as torchvision does."""
    if isinstance(size, tuple):
        return size
    longer = int(size * max(height, width) / min(height, width))
    return (size, longer) if height <= width else (longer, size)


def _both(name: str, value: Any) -> tuple[int, int]:
    """Height and width; the same, if they are one number."""
    sides = value if isinstance(value, (tuple, list)) else (value, value)
    if len(sides) != 2:
        raise ValueError(f"{name} must be a number or (height, width), not {value!r:.80}")
    height, width = (checked_int(name, side, maximum=_MOST) for side in sides)
    return height, width


def _numbers(name: str, value: Any, count: int, is_one_enough: bool = False) -> tuple[float, ...]:
    """``value`` as ``count`` finite floats; with ``is_one_enough`` also one number for all."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        found = (value,) * count if is_one_enough and np.ndim(value) == 0 else value
        if len(found) == count and bool not in map(type, found) and all(map(math.isfinite, found)):
            return tuple(map(float, found))
    what = f"{count} finite numbers" if count > 1 else "a finite number"
    raise ValueError(f"{name} must be {what}, not {value!r:.80}")
