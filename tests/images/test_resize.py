"""Crop and resize in one pass: as Pillow and torchvision do, the same by each instruction set."""

from __future__ import annotations

import hashlib
import math
import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import example, given
from hypothesis import strategies as st

from fastiter.images import _resize
from fastiter.images._resize import ISA
from fastiter.images._transforms import CropWindow

try:
    import PIL.Image as pillow
except ImportError:
    pillow = None
try:
    import torch
    from torchvision.transforms.v2 import functional as torchvision
except ImportError:
    torchvision = None

needs_pillow = pytest.mark.skipif(pillow is None, reason="Pillow is not installed")
needs_torchvision = pytest.mark.skipif(torchvision is None, reason="torchvision is not installed")


class Task(NamedTuple):
    shape: tuple[int, int]  # of the image
    box: tuple[int, int, int, int]
    size: tuple[int, int]
    content: str = "noise"
    seed: int = 0

    def pixels(self) -> np.ndarray:
        random = np.random.default_rng(self.seed)
        h, w = self.shape
        if self.content == "noise":
            return random.integers(0, 256, (h, w, 3), np.uint8)
        if self.content == "edges":
            return random.integers(0, 2, (h, w, 3), np.uint8) * np.uint8(255)
        rows, columns = np.mgrid[:h, :w] / 9  # soft waves, as photographs have them
        waves = [np.sin(rows * k + self.seed) + np.cos(columns * (k + 1)) for k in range(3)]
        return (127 + 60 * np.stack(waves, 2)).astype(np.uint8)


def resized(
    pixels: np.ndarray,
    box: tuple[float, ...],
    size: tuple[int, int],
    corner: tuple[int, int] = (0, 0),
    window: tuple[int, int] | None = None,
    flip: bool = False,
    planes: bool = False,
    isa: int = ISA,
) -> np.ndarray:
    """The window of the result, as (h, w, 3)."""
    h, w = window or size
    out = np.full((3, h, w) if planes else (h, w, 3), 7, np.uint8)
    crop = CropWindow(box, size, corner, (h, w), flip)
    found = _resize.resized(pixels, crop, out, planes=planes, isa=isa)
    assert found is out
    return out.transpose(1, 2, 0) if planes else out


def by_pillow(task: Task) -> np.ndarray:
    image = pillow.fromarray(task.pixels()).crop(task.box)
    return np.asarray(image.resize(task.size[::-1], pillow.Resampling.BILINEAR))


def by_torchvision(task: Task) -> np.ndarray:
    left, top, right, bottom = task.box
    planes = torch.from_numpy(task.pixels()).permute(2, 0, 1)
    place = (top, left, bottom - top, right - left)
    return (
        torchvision.resized_crop(planes, *place, list(task.size), antialias=True)
        .permute(1, 2, 0)
        .numpy()
    )


def check_like(task: Task, due: np.ndarray) -> None:
    off = np.abs(resized(task.pixels(), task.box, task.size).astype(int) - due)
    assert off.max() <= 1
    if off.size >= 3_000:  # of a few pixels, chance decides
        assert off.mean() < 0.3


@st.composite
def tasks(draw: Any, most: int = 60) -> Task:
    sides = st.integers(1, most)
    shape = draw(st.tuples(sides, sides))
    (left, right), (top, bottom) = (
        sorted(draw(st.lists(st.integers(0, side), min_size=2, max_size=2, unique=True)))
        for side in reversed(shape)
    )
    size = draw(st.tuples(sides, sides))
    content = draw(st.sampled_from(["noise", "edges", "waves"]))
    return Task(shape, (left, top, right, bottom), size, content, draw(st.integers(0, 99)))


HARD = [
    Task((375, 500), (31, 17, 402, 333), (224, 224)),
    Task((375, 500), (0, 0, 500, 375), (224, 224), "waves"),
    Task((333, 222), (4, 1, 205, 330), (32, 500), "edges"),
    Task((4000, 3), (0, 0, 3, 4000), (1, 3)),
    Task((3, 4000), (0, 0, 4000, 3), (3, 1), "edges"),
    Task((4000, 40), (0, 0, 40, 4000), (1, 1), "waves"),
    Task((1, 1), (0, 0, 1, 1), (70, 50)),
    Task((9, 9), (3, 4, 4, 5), (40, 1)),
    Task((112, 157), (108, 11, 114, 59), (216, 28), "edges", 1),  # exact halves
]


@needs_pillow
@pytest.mark.parametrize("task", HARD, ids=str)
def test_like_pillow_in_hard_cases(task):
    check_like(task, by_pillow(task))


@needs_torchvision
@pytest.mark.parametrize("task", HARD, ids=str)
def test_like_torchvision_in_hard_cases(task):
    check_like(task, by_torchvision(task))


@needs_pillow
@given(tasks())
@draw_examples(100)
def test_like_pillow(task):
    check_like(task, by_pillow(task))


@needs_torchvision
@given(tasks())
@draw_examples(100)
def test_like_torchvision(task):
    try:
        due = by_torchvision(task)
    except RuntimeError:  # some of its releases fail at sizes of 1
        return
    check_like(task, due)


@given(tasks(), st.booleans(), st.booleans(), st.data())
@draw_examples(100)
def test_every_way_gives_the_same(task, planes, flip, data):
    """By each instruction set, for a window, as planes, mirrored, and by a table."""
    pixels, (h, w) = task.pixels(), task.size
    due = resized(pixels, task.box, task.size, isa=0)
    top, left = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    window = data.draw(st.integers(1, h - top)), data.draw(st.integers(1, w - left))
    due = due[top : top + window[0], left : left + window[1]]
    due = due[:, ::-1] if flip else due
    for isa in range(ISA + 1):
        found = resized(pixels, task.box, task.size, (top, left), window, flip, planes, isa)
        np.testing.assert_array_equal(found, due)
    table = np.random.default_rng(0).random((3, 256), np.float32)
    out = np.empty((3, *window) if planes else (*window, 3), np.float32)
    crop = CropWindow(task.box, task.size, (top, left), window, flip)
    _resize.resized(pixels, crop, out, table, planes=planes)
    due = np.stack([table[c][due[..., c]] for c in range(3)], axis=0 if planes else 2)
    np.testing.assert_array_equal(out, due)


def triangle(begin: float, end: float, size: int, count: int) -> np.ndarray:
    """Weights (size, count) of the pixels of a side, in exact numbers."""
    scale = (end - begin) / size
    centres = begin + (np.arange(size)[:, None] + 0.5) * scale
    weights = 1 - np.abs(np.arange(count) + 0.5 - centres) / max(scale, 1)
    weights[:, : math.floor(begin)] = weights[:, math.ceil(end) :] = 0
    weights = np.maximum(weights, 0)
    return weights / weights.sum(1, keepdims=True)


@given(tasks(), st.lists(st.floats(0, 0.999), min_size=4, max_size=4))
@example(Task((40, 50), (3, 4, 31, 29), (20, 20)), [0.25, 0.5, 0.75, 0.125])
@draw_examples(100)
def test_edges_within_pixels(task, shares):
    """The filter in exact numbers, and no pixel that the box does not touch."""
    left, top, right, bottom = (
        edge + share if k < 2 else edge - share
        for k, (edge, share) in enumerate(zip(task.box, shares, strict=True))
    )
    left, right = min(left, right), max(left, right)
    top, bottom = min(top, bottom), max(top, bottom)
    if right - left < 1e-6 or bottom - top < 1e-6:
        return
    pixels, (h, w) = task.pixels(), task.shape
    down = triangle(top, bottom, task.size[0], h)
    across = triangle(left, right, task.size[1], w)
    due = np.einsum("yj,jic,xi->yxc", down, pixels.astype(float), across, optimize=True)
    found = resized(pixels, (left, top, right, bottom), task.size)
    assert np.abs(found - due).max() <= 0.55
    pixels[: math.floor(top)] ^= 255
    pixels[:, math.ceil(right) :] ^= 255
    np.testing.assert_array_equal(resized(pixels, (left, top, right, bottom), task.size), found)


@given(tasks())
@draw_examples(100)
def test_the_same_size_is_a_copy(task):
    left, top, right, bottom = task.box
    pixels = task.pixels()
    found = resized(pixels, task.box, (bottom - top, right - left))
    np.testing.assert_array_equal(found, pixels[top:bottom, left:right])


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (300, 400), (4000, 2)])
@pytest.mark.parametrize("size", [(1, 1), (224, 224), (3, 1000)])
def test_one_colour_stays(shape, size):
    for colour in ([0, 255, 1], [254, 127, 128]):
        pixels = np.full((*shape, 3), colour, np.uint8)
        assert (resized(pixels, (0, 0, shape[1], shape[0]), size) == colour).all()


def test_always_the_same_bits():
    """On each processor, and in each release."""
    digest = hashlib.sha256()
    for (h, w), box, size in [
        *(task[:3] for task in HARD),
        ((40, 50), (0.125, 3.3, 47.7, 39.5), (19, 97)),
    ]:
        numbers = np.arange(3 * h * w, dtype=np.uint32) * np.uint32(2654435761)
        pixels = (numbers >> np.uint32(24)).astype(np.uint8).reshape(h, w, 3)
        digest.update(resized(pixels, box, size).tobytes())
    assert digest.hexdigest() == "86312a3b1d70b0d9f8ace70d893c4e2ee999a72570510027d4582a014e20dc3a"


def test_read_only_pixels_in_threads():
    pixels = HARD[0].pixels()
    pixels.flags.writeable = False
    due = resized(pixels, HARD[0].box, (224, 224))
    found: list[bool] = []

    def run() -> None:
        outs = [resized(pixels, HARD[0].box, (224, 224)) for _ in range(20)]
        found.append(all(np.array_equal(out, due) for out in outs))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


# ---- what does not fit


PIXELS = np.zeros((4, 5, 3), np.uint8)
OUT = np.zeros((3, 2, 2), np.uint8)
FLOATS = np.zeros((3, 2, 2), np.float32)
TABLE = np.zeros((3, 256), np.float32)
WINDOW = CropWindow((0, 0, 5, 4), (2, 2), (0, 0), (2, 2))
GOOD = {"pixels": PIXELS, "window": WINDOW, "out": OUT, "table": None, "planes": True}


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def unaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    return memory[1:].view(array.dtype).reshape(array.shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": PIXELS.tolist()}, "pixels must be uint8"),
        ({"pixels": PIXELS[:, ::2]}, "pixels must be uint8"),
        ({"pixels": PIXELS[..., 0]}, "pixels must be uint8"),
        ({"pixels": np.zeros((4, 5, 4), np.uint8)}, "pixels must be uint8"),
        ({"pixels": PIXELS.astype(np.int8)}, "pixels must be uint8"),
        ({"pixels": None}, "pixels must be uint8"),
        ({"window": WINDOW[:4]}, None),
        ({"window": None}, None),
        ({"pixels": PIXELS[:0]}, "within the 0 x 5 pixels"),
        ({"shape": (0, 2)}, "the window of 0 x 2"),
        ({"shape": (3, 2)}, "the window of 3 x 2"),
        ({"shape": (-1, 2)}, None),
        ({"shape": (2, 2, 2)}, None),
        ({"shape": 2}, None),
        ({"table": TABLE[:, :-1]}, "table float32"),
        ({"table": TABLE.astype(float)}, "table float32"),
        ({"table": TABLE.tolist()}, "table float32"),
        ({"table": unaligned(TABLE)}, "table float32"),
        ({"box": (0, 0, 5)}, None),
        ({"box": None}, None),
        ({"box": (0, 0, 5.001, 4)}, "box .* must be an area within"),
        ({"box": (-0.001, 0, 5, 4)}, "box .* must be an area within"),
        ({"box": (2, 0, 2, 4)}, "box .* must be an area within"),
        ({"box": (0, 3, 5, 1)}, "box .* must be an area within"),
        ({"box": (0, 0, math.nan, 4)}, "box .* must be an area within"),
        ({"box": (0, 0, math.inf, 4)}, "box .* must be an area within"),
        ({"size": (2, 1)}, "within the result of 2 x 1"),
        ({"size": (2, 1 << 28)}, "sides are 1 to 268435455 pixels"),
        ({"size": (-1, 2)}, None),
        ({"size": (1 << 70, 2)}, None),
        ({"size": 2}, None),
        ({"corner": (0, 1)}, r"the window of 2 x 2 at \(0, 1\)"),
        ({"corner": (-1, 0)}, None),
        ({"corner": (sys.maxsize, 0)}, "within the result"),
        ({"isa": ISA + 1}, "must be"),
        ({"isa": -1}, "must be"),
    ],
)
def test_what_does_not_fit(changes, message):
    _resize.resized(**GOOD)
    if changes.keys() <= set(WINDOW._fields):
        changes = {"window": WINDOW._replace(**changes)}
    with pytest.raises((OverflowError, TypeError, ValueError), match=message):
        _resize.resized(**GOOD | changes)


@pytest.mark.parametrize(
    ("out", "table"),
    [
        (None, None),
        (OUT.tolist(), None),
        (OUT.astype(np.int16), None),
        (read_only(OUT), None),
        (OUT[:, :, ::-1], None),
        (OUT[:2], None),
        (OUT.transpose(1, 2, 0).copy(), None),
        (OUT[:, :0], None),
        (FLOATS, None),
        (OUT, TABLE),
        (FLOATS.astype(">f4"), TABLE),
        (unaligned(FLOATS), TABLE),
    ],
    ids=range(12),
)
def test_a_result_that_does_not_fit_stays_as_it_is(out, table):
    """A new array is made."""
    before = repr(out)
    found = _resize.resized(**GOOD | {"pixels": PIXELS + 1, "out": out, "table": table})
    assert found is not out
    assert repr(out) == before
    assert (found.shape, found.dtype) == ((3, 2, 2), np.uint8 if table is None else np.float32)
    assert (found == (1 if table is None else 0)).all()
