"""From the bytes of an image's file to an array, by one pass over the decoded pixels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._order.example_rng import current_generator
from fastiter._util.arguments import checked_callable, checked_choice, checked_flag
from fastiter.datasets._images import pillow
from fastiter.errors import ImageError
from fastiter.images._resize import resized
from fastiter.images._transforms import CropWindow, ImageTransform

_ORIENTATION = 0x0112  # the tag of EXIF
#: Of its values, the steps through rows and columns; from 5 on, these change places then.
_STEPS = {2: (1, -1), 3: (-1, -1), 4: (-1, 1), 6: (-1, 1), 7: (-1, -1), 8: (1, -1)}
_KEPT_BYTES = 64 << 20  # of a thread's decoded pixels

_of_thread = threading.local()


@dataclasses.dataclass(eq=False)
class Decoder:
    """Makes arrays of images. The parameters are those of `ImageFiles`."""

    transform: ImageTransform
    callable: Any = None
    decoder: str = "auto"
    scaled: bool = True
    exif: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.transform, ImageTransform):
            raise TypeError(
                "transform must be a RandomResizedCrop, ResizeCenterCrop or Resize of "
                f"fastiter.images, not {self.transform!r:.80}: pass other functions as callable="
            )
        checked_callable("callable", self.callable)
        checked_choice("decoder", self.decoder, ("auto", "pillow", "simplejpeg"))
        checked_flag("scaled", self.scaled)
        checked_flag("exif", self.exif)
        # Now, so that forked workers have them.
        self._pillow = pillow()
        self._jpeg: Any = None if self.decoder == "pillow" else _simplejpeg()
        if self.decoder == "simplejpeg" and self._jpeg is None:
            raise ImportError(
                "decoder='simplejpeg' needs simplejpeg, which is not installed: "
                "pip install simplejpeg"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return Decoder, (self.transform, self.callable, self.decoder, self.scaled, self.exif)

    def array(
        self, data: Any, path: str | None, rng: np.random.Generator | None = None, out: Any = None
    ) -> Any:
        """Make the array of an image, in ``out``, if that has its shape and dtype, else a new one;
        or what ``callable`` makes of a new one. ImageError if the bytes are no whole image."""
        if rng is None and self.transform.draws:
            rng = current_generator()  # whose error is not the file's
        try:
            array = self._array(data, rng, out if self.callable is None else None)
        except MemoryError:
            raise
        except Exception as error:  # damaged bytes may cause nearly any error
            reason = f"{type(error).__name__}: {error}"
            if type(error) is self._pillow.UnidentifiedImageError:
                reason = f"the {len(data)} bytes are no image that Pillow knows"
            raise ImageError.of(path, reason) from error
        return array if self.callable is None else self.callable(array)

    def _array(self, data: Any, rng: Any, out: Any) -> Any:
        transform = self.transform
        sides = self._sides_of_jpeg(data)
        image: Any = self._pillow.open(io.BytesIO(data)) if sides is None or self.exif else None
        if image is not None and image.format == "TIFF":
            image.load()  # which turns it, whatever is asked for
        turn = image.getexif().get(_ORIENTATION, 1) if image is not None and self.exif else 1
        (down, across), is_turned = _STEPS.get(turn, (1, 1)), turn in (5, 6, 7, 8)
        height, width = image.size[::-1] if sides is None else sides
        upright = (width, height) if is_turned else (height, width)
        window = transform.window(*upright, rng)
        self._check_size(*window.shape)
        scale = _scale(window) if self.scaled else 1
        size = -(-height // scale), -(-width // scale)
        pixels = None if sides is None else self._decoded(data, scale, *size)
        if pixels is None:
            with self._pillow.open(io.BytesIO(data)) if image is None else image as image:
                if scale > 1:
                    image.draft(None, (width // scale, height // scale))
                    scale = scale if image.size == size[::-1] else 1  # not all formats can
                pixels = np.asarray(image.convert("RGB"))
        # Where the image begins: of a scaled one, a pixel may lie half beyond the end.
        y = len(pixels) - height / scale if down < 0 else 0.0
        x = pixels.shape[1] - width / scale if across < 0 else 0.0
        pixels = pixels[::down, ::across]
        if is_turned:
            pixels, x, y = pixels.swapaxes(0, 1), y, x
        pixels = np.ascontiguousarray(pixels)
        left, top, right, bottom = (edge / scale for edge in window.box)
        window = window._replace(box=(x + left, y + top, x + right, y + bottom))
        return resized(pixels, window, out, transform.table, planes=transform.layout == "chw")

    def _sides_of_jpeg(self, data: Any) -> tuple[int, int] | None:
        """Height and width of an image that simplejpeg decodes as Pillow does; None of others."""
        with contextlib.suppress(ValueError):
            if self._jpeg is not None and data[:2] == b"\xff\xd8":
                height, width, colors, _ = self._jpeg.decode_jpeg_header(data)
                if colors in ("Gray", "YCbCr"):  # of CMYK it makes other colours than Pillow
                    self._check_size(height, width)
                    return height, width
        return None

    def _decoded(self, data: Any, scale: int, height: int, width: int) -> Any:
        """The pixels by simplejpeg, in memory of this thread; None if it refuses the file."""
        buffer = _buffer(3 * height * width)
        with contextlib.suppress(ValueError):
            return self._jpeg.decode_jpeg(
                data, min_height=height, min_width=width, min_factor=scale, buffer=buffer
            )
        return None

    def _check_size(self, height: int, width: int) -> None:
        """Raise Pillow's error, as its `open` does, for an image that takes too much memory."""
        most = self._pillow.MAX_IMAGE_PIXELS
        if most is not None and height * width > 2 * most:
            raise self._pillow.DecompressionBombError(
                f"an image of {height} x {width} pixels exceeds Pillow's limit of {2 * most}"
            )


def _scale(window: CropWindow) -> int:
    """Divisor of the sides of an image that is decoded smaller: its part stays large enough."""
    left, top, right, bottom = window.box
    height, width = window.size
    scales = (s for s in (8, 4, 2) if right - left >= s * width and bottom - top >= s * height)
    return next(scales, 1)


def _buffer(size: int) -> npt.NDArray[np.uint8]:
    """Memory for pixels, which this thread keeps: new memory takes a tenth of decoding's time."""
    kept: npt.NDArray[np.uint8] | None = getattr(_of_thread, "buffer", None)
    if kept is None or len(kept) < size:
        kept = np.empty(size, np.uint8)
        if size <= _KEPT_BYTES:
            _of_thread.buffer = kept
    return kept


@functools.cache
def _simplejpeg() -> Any:
    """The module; None if it is not installed: to look for what is missing takes long."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None
