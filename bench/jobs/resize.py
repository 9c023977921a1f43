"""Crop and resize of decoded images, to planes of uint8: the crops of RandomResizedCrop(224).

Images of 500x375 and 2000x1500, a crop of another image in each call, on one thread. Ours writes
planes into an output that is there; the peers make theirs: torchvision a tensor of what its decoder
gives (planes that lie interleaved), Pillow and OpenCV interleaved pixels. OpenCV's INTER_AREA is
another filter.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, Prepared, WrongResult

NAME = "resize"
TITLE = "one crop of an image, resized to 224x224"

SIDE, CROPS, IMAGES = 224, 24, 3
WINDOW = (SIDE, SIDE), (0, 0), (SIDE, SIDE), False  # all of the result
Box = tuple[int, int, int, int]  # left, top, right, bottom


def _image(height: int, width: int, seed: int) -> np.ndarray:
    """Soft waves with a little noise."""
    random = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width] * (6 / height)
    waves = [np.sin(rows * k + seed) + np.cos(columns * (k + 1)) for k in range(1, 4)]
    noise = random.integers(-10, 11, (height, width, 3))
    return (np.stack(waves, 2) * 50 + 127 + noise).astype(np.uint8)


def _box(height: int, width: int, random: np.random.Generator) -> Box:
    """A crop with the area and the ratio that RandomResizedCrop draws."""
    while True:
        area = height * width * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = random.integers(height - h + 1), random.integers(width - w + 1)
            return int(left), int(top), int(left) + w, int(top) + h


def _crops(height: int, width: int) -> list[tuple[np.ndarray, Box]]:
    random = np.random.default_rng(0)
    images = [_image(height, width, seed) for seed in range(IMAGES)]
    return [(images[k % IMAGES], _box(height, width, random)) for k in range(CROPS)]


def _fastiter(generic: bool = False) -> Callable[[Any], Any]:
    from fastiter.images._resize import ISA, resized

    out = np.zeros((3, SIDE, SIDE), np.uint8)
    isa = 0 if generic else ISA

    def run(crop: Any) -> np.ndarray:
        pixels, box = crop
        resized(pixels, (box, *WINDOW), out, planes=True, isa=isa)
        return out

    return run


def _fastiter_floats() -> Callable[[Any], Any]:
    from fastiter.images._resize import resized

    out = np.zeros((3, SIDE, SIDE), np.float32)
    table = np.tile(np.arange(256, dtype=np.float32), (3, 1))

    def run(crop: Any) -> np.ndarray:
        pixels, box = crop
        resized(pixels, (box, *WINDOW), out, table, planes=True)
        return out

    return run


def _torchvision() -> Prepared:
    import torch
    from torchvision.transforms.v2 import functional

    torch.set_num_threads(1)

    def prepare(crop: Any) -> Any:
        pixels, (left, top, right, bottom) = crop
        tensor = torch.from_numpy(pixels).permute(2, 0, 1)
        return tensor, top, left, bottom - top, right - left

    return Prepared(
        prepare, lambda crop: functional.resized_crop(*crop, [SIDE, SIDE], antialias=True)
    )


def _pillow() -> Prepared:
    from PIL import Image

    def run(crop: Any) -> Any:
        image, box = crop
        return image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)

    return Prepared(lambda crop: (Image.fromarray(crop[0]), crop[1]), run)


def _opencv() -> Callable[[Any], Any]:
    import cv2

    cv2.setNumThreads(1)

    def run(crop: Any) -> Any:
        pixels, (left, top, right, bottom) = crop
        part = pixels[top:bottom, left:right]
        return cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    return run


def _weights(begin: int, end: int) -> np.ndarray:
    """Those of the filter, in exact numbers: (SIDE, end - begin)."""
    scale = (end - begin) / SIDE
    centres = (np.arange(SIDE)[:, None] + 0.5) * scale
    weights = 1 - np.abs(np.arange(end - begin) + 0.5 - centres) / max(scale, 1)
    weights = np.maximum(weights, 0)
    normed: np.ndarray = weights / weights.sum(1, keepdims=True)
    return normed


def _check(result: Any, source: Any) -> None:
    pixels, (left, top, right, bottom) = source
    part = pixels[top:bottom, left:right].transpose(2, 0, 1).astype(float)
    due = _weights(top, bottom) @ part @ _weights(left, right).T
    found = np.asarray(result)
    found = found if found.shape[0] == 3 else found.transpose(2, 0, 1)
    off = np.abs(found - due).mean()  # rounding alone: 0.25; another filter: about 1
    if off > 3:
        raise WrongResult(f"pixels are {off:.2f} off in the mean")


def cases(quick: bool) -> Iterator[Case]:
    for width, height in ((500, 375), (2000, 1500)):
        yield Case(
            name=f"{width} x {height}",
            sources=functools.partial(_crops, height, width),
            candidates={
                "fastiter": _fastiter,
                "fastiter.generic": functools.partial(_fastiter, generic=True),
                "fastiter.float32": _fastiter_floats,
                "torch.torchvision": _torchvision,
                "pillow": _pillow,
                "opencv.area": _opencv,
            },
            check=_check,
            item="image",
            nbytes=3 * SIDE * SIDE,
            goals=[Goal("torch.torchvision", 2.5), Goal("pillow", 3)],
        )
        if quick:
            break
