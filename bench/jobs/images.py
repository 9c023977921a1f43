"""Images of JPEG files for training: fastiter.images beside torchvision in torch's own loader.

A call takes a number of images, in batches of 20 by 2 workers, from files in the page cache:
photographs of 500 x 375 and of 2000 x 1500, synthetic, of quality 90. Crops are those of
`RandomResizedCrop(224, flip=0.5)`, the same for all, or the middle of 224 x 224 of the image with a
shorter side of 256. The peers have torchvision's transforms v2, over Pillow and over
`torchvision.io.decode_image`. ``fastiter.bare`` is no loader: two processes that read, decode and
crop, without batches.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, Measured, WrongResult

NAME = "images"
TITLE = "images of JPEG files: decoded, cropped, resized to 224 x 224"

_BATCH, _WORKERS = 20, 2
AHEAD = 8  # batches, until the workers of a loader that has rested work as in the middle of a run
_SEED = 7
_SIZES = {"500x375": (375, 500, 1000), "2000x1500": (1500, 2000, 200)}  # height, width, files
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photograph(height: int, width: int, seed: int) -> bytes:
    """Shapes over smooth noise at some scales, of as many bytes as a photograph takes: 109 KB on
    average at 500 x 375."""
    import io

    from PIL import Image, ImageDraw

    dice = np.random.default_rng(seed)
    scales = [(64, 90.0), (16, 40.0)]  # pixels, depth
    scales += [(4, 18.0)] if width > 1000 else [(4, 36.0), (2, 30.0)]
    pixels = np.full((height, width, 3), 128.0)
    for step, depth in scales:
        coarse = dice.integers(0, 256, (height // step + 1, width // step + 1, 3), np.uint8)
        smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        pixels += (np.asarray(smooth) - 128.0) * (depth / 128)
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image, "RGBA")
    for number in range(24):
        x, y = dice.integers(0, (width, height)).tolist()
        radii = (dice.uniform(0.01, 0.15, 2) * width).tolist()
        colour = (*dice.integers(0, 256, 3).tolist(), int(dice.integers(60, 200)))
        if number % 3 == 0:
            draw.ellipse((x - radii[0], y - radii[1], x + radii[0], y + radii[1]), colour)
        elif number % 3 == 1:
            draw.polygon((dice.normal(0, radii[0], (5, 2)) + (x, y)).ravel().tolist(), colour)
        else:
            draw.line((x, y, x + 2 * radii[0], y + 2 * radii[1]), colour, width // 200)
    grain = dice.normal(0, 5 if width > 1000 else 12, (height, width, 1))
    file = io.BytesIO()
    grainy = (np.asarray(image) + grain).clip(0, 255).astype(np.uint8)
    Image.fromarray(grainy).save(file, "JPEG", quality=90)
    return file.getvalue()


def folder_of(size: str, quick: bool) -> list[str]:
    """The paths of the files, which are kept for later runs."""
    height, width, n = _SIZES[size]
    n = 60 if quick else n
    folder = Path(tempfile.gettempdir(), f"fastiter-bench-photographs-{size}")
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.jpg" for number in range(n)]
    for number, path in enumerate(paths):
        if not path.exists():
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(photograph(height, width, number))
            new.replace(path)
        path.read_bytes()
    return [str(path) for path in paths]


def _transform(kind: str) -> Any:
    from fastiter.images import RandomResizedCrop, ResizeCenterCrop

    options: dict[str, Any] = {}
    if "float32" in kind:
        options = {"dtype": "float32", "mean": _MEAN, "std": _STD}
    if "validation" in kind:
        return ResizeCenterCrop(256, 224, **options)
    return RandomResizedCrop(224, flip=0.5, **options)


class _Torchvision:
    """The same images by torchvision's transforms v2."""

    def __init__(self, paths: list[str], size: str, kind: str, decoder: str) -> None:
        from fastiter.random import example_rng

        height, width, _ = _SIZES[size]
        transform = _transform(kind)
        self._paths, self._is_float = paths, "float32" in kind
        self._is_crop, self._by_pillow = "validation" not in kind, decoder == "pillow"
        self._crops = [
            transform.window(height, width, example_rng(_SEED, 0, i)) for i in range(len(paths))
        ]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        import torch
        from PIL import Image
        from torchvision.io import ImageReadMode, decode_image
        from torchvision.transforms.v2 import functional as v2

        if self._by_pillow:
            image = Image.open(self._paths[i]).convert("RGB")
        else:
            image = decode_image(self._paths[i], ImageReadMode.RGB)
        if self._is_crop:
            (left, top, right, bottom), *_, flip = self._crops[i]
            image = v2.resized_crop(
                image, top, left, bottom - top, right - left, [224, 224], antialias=True
            )
            image = v2.horizontal_flip(image) if flip else image
        else:
            image = v2.center_crop(v2.resize(image, [256], antialias=True), [224, 224])
        image = v2.pil_to_tensor(image) if self._by_pillow else image
        if self._is_float:
            image = v2.normalize(v2.to_dtype(image, torch.float32, scale=True), _MEAN, _STD)
        return image, i


@contextlib.contextmanager
def loop(make: Callable[[], Any], n_batches: int) -> Iterator[Callable[[Any], Any]]:
    """Takes batches of a loader whose workers persist; those that they have made before are not
    counted."""
    loader = make()

    def endless() -> Iterator[Any]:
        while True:
            yield from loader

    batches = endless()

    def take(_: Any) -> Measured:
        for _ in range(AHEAD):
            next(batches)
        since = time.perf_counter()
        for _ in range(n_batches):
            last = next(batches)
        return Measured(time.perf_counter() - since, last)

    yield take
    batches.close()


def _fastiter(size: str, kind: str, quick: bool, n: int, scaled: bool = True) -> Any:
    def make() -> Any:
        from fastiter import ShuffleOrderSampler
        from fastiter.images import ImageFiles
        from fastiter.torch import DataLoader

        paths = folder_of(size, quick)
        dataset = ImageFiles(paths, _transform(kind), range(len(paths)), scaled=scaled)
        options: dict[str, Any] = {"num_workers": _WORKERS, "persistent_workers": True}
        return DataLoader(dataset, _BATCH, sampler=ShuffleOrderSampler(_SEED), **options)

    return loop(make, n // _BATCH)


def _torch(size: str, kind: str, quick: bool, n: int, decoder: str) -> Any:
    def make() -> Any:
        from torch.utils.data import DataLoader

        dataset = _Torchvision(folder_of(size, quick), size, kind, decoder)
        dataset[0]  # what is missing is told now
        return DataLoader(
            dataset, _BATCH, shuffle=True, num_workers=_WORKERS, persistent_workers=True
        )

    return loop(make, n // _BATCH)


def _decode_all(paths: list[str], transform: Any, scaled: bool) -> None:
    from fastiter.images import decode

    for number, path in enumerate(paths):
        with open(path, "rb") as file:
            data = file.read()
        decode(data, transform, rng=np.random.default_rng(number), scaled=scaled)


@contextlib.contextmanager
def _bare(size: str, kind: str, quick: bool, n: int, scaled: bool = True) -> Iterator[Any]:
    from fastiter.images import decode  # noqa: F401  # before the fork

    paths, transform = folder_of(size, quick), _transform(kind)
    paths = [paths[i % len(paths)] for i in range(n)]
    parts = [(paths[k::_WORKERS], transform, scaled) for k in range(_WORKERS)]
    with multiprocessing.get_context("fork").Pool(_WORKERS) as pool:
        yield lambda _: pool.starmap(_decode_all, parts, chunksize=1)


def _check(kind: str, result: Any, source: Any) -> None:
    if result == [None] * _WORKERS:
        return
    images = result[0]
    seen = tuple(images.shape), str(images.dtype).removeprefix("torch.")
    due = (_BATCH, 3, 224, 224), "float32" if "float32" in kind else "uint8"
    if seen != due:
        raise WrongResult(f"a batch has {seen}, and not {due}")


_GOALS = {
    ("500x375", "uint8"): (1.9, 1.4),
    ("500x375", "float32"): (2.3, 1.6),
    ("500x375", "uint8, validation"): (1.9, 1.4),
    ("2000x1500", "uint8"): (2.1, 1.35),
    ("2000x1500", "float32"): (2.1, 1.4),
    ("2000x1500", "uint8, full"): (1.5, 0.98),
}


def cases(quick: bool) -> Iterator[Case]:
    bind = functools.partial
    chosen = list(_GOALS.items())[:1] if quick else _GOALS.items()
    for (size, kind), (over_pillow, over_decode_image) in chosen:
        n = 60 if quick else 240 if size == "500x375" else 120  # an even number of batches
        arguments = size, kind, quick, n
        scaled = "full" not in kind
        yield Case(
            name=f"{size}, {kind}",
            sources=lambda: [None],
            candidates={
                "fastiter": bind(_fastiter, *arguments, scaled),
                "fastiter.bare": bind(_bare, *arguments, scaled),
                "torch.pillow": bind(_torch, *arguments, "pillow"),
                "torch.decode_image": bind(_torch, *arguments, "decode_image"),
            },
            check=bind(_check, kind),
            items=n,
            item="image",
            goals=[
                Goal("torch.pillow", over_pillow),
                Goal("torch.decode_image", over_decode_image),
                Goal("fastiter.bare", 0.95),
            ],
        )
