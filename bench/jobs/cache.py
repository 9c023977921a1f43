"""Epochs of images from `fastiter.cache`, beside decoding them and beside the same rows in a file.

Each call is an epoch of JPEG images, 500 x about 375, of quality 90, in batches of 25 by 2 workers.
Caches are filled before; that of the candidate ``fastiter.first`` is cleared before each epoch.
"""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult

NAME = "cache"
TITLE = "an epoch of decoded images from fastiter.cache, and decoding them"

_BATCH = 25
_FILES = 20  # different ones


def _jpeg(seed: int, height: int) -> bytes:
    from PIL import Image

    dice = np.random.default_rng(seed)
    coarse = Image.fromarray(dice.integers(0, 256, (height // 8, 62, 3), np.uint8))
    smooth = np.asarray(coarse.resize((500, height), Image.Resampling.BICUBIC)).astype(int)
    noisy = (smooth + dice.integers(-18, 18, smooth.shape)).clip(0, 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noisy).save(file, "JPEG", quality=90)
    return file.getvalue()


class Decoded:
    """Images as arrays, of one shape or of several."""

    def __init__(self, rows: int, shapes: int, as_array: bool = True) -> None:
        self._files = [_jpeg(i, 375 + i % shapes) for i in range(_FILES)]
        self._rows, self._as_array = rows, as_array

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> Any:
        from PIL import Image

        image = Image.open(io.BytesIO(self._files[i % _FILES]))
        image.load()
        return np.asarray(image) if self._as_array else image


class Cropped:
    """A random part of each image, half of them mirrored."""

    def __init__(self, images: Any) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> np.ndarray:
        image, dice = self._images[i], np.random.default_rng(i)
        y, x = dice.integers(0, 375 - 224), dice.integers(0, 500 - 224)
        if not isinstance(image, np.ndarray):
            return np.asarray(image.crop((x, y, x + 224, y + 224)))
        part = image[y : y + 224, x : x + 224]
        return part[:, ::-1] if i % 2 else part


def _epoch(iterator: Any, before: Callable[[], Any], _: Any) -> int:
    before()
    return sum(len(next(iterator)) for _ in range(len(iterator.dataset) // _BATCH))


@contextlib.contextmanager
def _opened(
    dataset: Any,
    wrap: Callable[[Any], Any],
    clears: bool = False,
    **arguments: Any,
) -> Iterator[Callable[[Any], int]]:
    import fastiter

    images = dataset if not arguments else fastiter.cache(dataset, **arguments)
    before = images.clear if clears else lambda: None
    with fastiter.MultiprocessIterator(
        wrap(images), _BATCH, shuffle=True, n_processes=2, n_prefetch=1, context="fork"
    ) as iterator:
        if not clears:
            _epoch(iterator, before, None)
        yield functools.partial(_epoch, iterator, before)


@contextlib.contextmanager
def _mapped(dataset: Any) -> Iterator[Callable[[Any], int]]:
    from fastiter.datasets import NpyDataset

    with tempfile.NamedTemporaryFile(suffix=".npy", dir="/dev/shm") as file:
        np.save(file, np.stack([dataset[i] for i in range(len(dataset))]))
        file.flush()
        with NpyDataset(file.name) as images, _opened(images, lambda same: same) as epoch:
            yield epoch


def _check(rows: int, result: int, source: Any) -> None:
    if result != rows:
        raise WrongResult(f"{result} rows in an epoch of {rows}")


def cases(quick: bool) -> Iterator[Case]:
    rows = 50 if quick else 300
    memory = {"memory": 1 << 30}
    kinds: dict[str, tuple[int, bool, Callable[[Any], Any], float]] = {
        "images of one shape": (1, True, lambda images: images, 20),
        "images of 8 shapes": (8, True, lambda images: images, 10),
        "parts of arrays": (1, True, Cropped, 8),
        "parts of PIL images": (1, False, Cropped, 6),
    }
    for name, (shapes, as_array, wrap, gain) in list(kinds.items())[: 1 if quick else None]:
        try:
            dataset = Decoded(rows, shapes, as_array)
        except ImportError:  # Pillow
            return
        opened = functools.partial(_opened, dataset, wrap)
        candidates: dict[str, Callable[[], Any]] = {
            "fastiter": functools.partial(opened, **memory),
            "fastiter.without": opened,
        }
        if wrap is not Cropped:
            candidates["fastiter.first"] = functools.partial(opened, clears=True, **memory)
        elif as_array:
            candidates["fastiter.views"] = functools.partial(opened, copy=False, **memory)
        goals = [Goal("fastiter.without", gain)]
        if name == "images of one shape":
            candidates["fastiter.npy"] = functools.partial(_mapped, dataset)
            goals.append(Goal("fastiter.npy", 0.8))
        yield Case(
            name=f"{name}, epochs of {rows}",
            sources=lambda: [None],
            candidates=candidates,
            check=functools.partial(_check, rows),
            items=rows,
            item="example",
            goals=goals,
            processes=True,
        )
