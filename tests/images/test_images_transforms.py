"""Transforms: their values, their errors, and the parts of images that they draw."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastiter.images import RandomResizedCrop, Resize, ResizeCenterCrop

TRANSFORMS = [
    RandomResizedCrop(224, flip=0.5),
    RandomResizedCrop((10, 20), scale=(0.5, 1), ratio=(1, 1), layout="hwc"),
    ResizeCenterCrop(256, 224),
    ResizeCenterCrop((30, 40), (30, 20), dtype="float32", mean=0.5, std=(1, 2, 3)),
    Resize(7),
    Resize((7, 9), dtype=np.float32),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)
def test_transforms_are_values(transform):
    for other in (
        pickle.loads(pickle.dumps(transform)),
        copy.copy(transform),
        eval(repr(transform)),
    ):
        assert other == transform
        assert hash(other) == hash(transform)
    assert [other for other in TRANSFORMS if other == transform] == [transform]
    with pytest.raises(AttributeError):
        transform.size = 3


def test_a_repr_has_what_is_not_the_default():
    assert repr(RandomResizedCrop(224, flip=0.5)) == "RandomResizedCrop((224, 224), flip=0.5)"
    assert repr(ResizeCenterCrop(256, 224)) == "ResizeCenterCrop(256, (224, 224))"
    assert repr(Resize([3, 4], layout="hwc")) == "Resize((3, 4), layout='hwc')"
    numbers = ResizeCenterCrop(np.int64(9), np.int64(4), dtype=np.dtype("float32"), std=np.ones(3))
    expected = "ResizeCenterCrop(9, (4, 4), dtype='float32', std=(1.0, 1.0, 1.0))"
    assert repr(numbers) == expected


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: RandomResizedCrop(0), ValueError, "size"),
        (lambda: RandomResizedCrop(2.5), TypeError, "size"),
        (lambda: RandomResizedCrop((1, 2, 3)), ValueError, "size"),
        (lambda: RandomResizedCrop(True), TypeError, "size"),
        (lambda: RandomResizedCrop(9, scale=(0.5, 0.1)), ValueError, "scale"),
        (lambda: RandomResizedCrop(9, scale=(-0.5, 0.1)), ValueError, "scale"),
        (lambda: RandomResizedCrop(9, scale=0.5), ValueError, "scale"),
        (lambda: RandomResizedCrop(9, scale=(0, math.nan)), ValueError, "scale"),
        (lambda: RandomResizedCrop(9, ratio=(0, 1)), ValueError, "ratio"),
        (lambda: RandomResizedCrop(9, ratio=(2, 1)), ValueError, "ratio"),
        (lambda: RandomResizedCrop(9, flip=1.5), ValueError, "flip"),
        (lambda: RandomResizedCrop(9, flip="yes"), ValueError, "flip"),
        (lambda: ResizeCenterCrop(10, 11), ValueError, "size"),
        (lambda: ResizeCenterCrop((10, 20), (11, 20)), ValueError, "size"),
        (lambda: Resize(9, layout="CHW"), ValueError, "layout"),
        (lambda: Resize(9, dtype="float16"), ValueError, "dtype"),
        (lambda: Resize(9, interpolation="nearest"), ValueError, "interpolation"),
        (lambda: Resize(9, mean=0.5), ValueError, "mean"),
        (lambda: Resize(9, std=(1, 1, 1)), ValueError, "std"),
        (lambda: Resize(9, dtype="float32", std=0), ValueError, "std"),
        (lambda: Resize(9, dtype="float32", mean=(1, 2)), ValueError, "mean"),
        (lambda: Resize(9, dtype="float32", mean="grey"), ValueError, "mean"),
        (lambda: Resize(9, dtype="float32", mean=[[1], [2, 3], 4]), ValueError, "mean"),
        (lambda: Resize(9, dtype="float32", mean=10**400), ValueError, "mean"),
        (lambda: Resize(9, dtype="float32", mean=(True, 1, 1)), ValueError, "mean"),
        (lambda: Resize(9, dtype="float32", std=math.inf), ValueError, "std .* not inf"),
        (lambda: RandomResizedCrop(9, scale=iter((0.1, 1))), ValueError, "scale"),
        (lambda: Resize(9, dtype=3), ValueError, "dtype"),
        (lambda: Resize(9, dtype=None), ValueError, "dtype"),
    ],
)
def test_arguments_are_checked(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_floats_are_of_a_table():
    table = Resize(3, dtype="float32", mean=(0.1, 0.2, 0.3), std=(1, 2, 4)).table
    v = np.arange(256)
    assert table.dtype == np.float32
    for row, mean, std in zip(table, (0.1, 0.2, 0.3), (1, 2, 4), strict=True):
        assert np.array_equal(row, ((v / 255 - mean) / std).astype(np.float32))
    assert np.array_equal(Resize(3, dtype="float32").table[1], (v / 255).astype(np.float32))
    assert Resize(3).table is None


NO_RNG: Any = object()  # from which nothing can be drawn


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(1, 300), st.data())
def test_sizes_are_those_of_torchvision(height, width, resize, data):
    """As its code has them, for the longer side and the place of the middle."""
    short, long = sorted((height, width))
    if resize * long / short < 60_000:
        window = Resize(resize).window(height, width, NO_RNG)
        longer = int(resize * long / short)
        assert window.size == window.shape
        assert window.size == ((resize, longer) if height <= width else (longer, resize))
    size = data.draw(st.integers(1, resize))
    window = ResizeCenterCrop(resize, size).window(height, width, NO_RNG)
    assert window.shape == (size, size)
    assert window.box == (0, 0, width, height)
    for corner, whole in zip(window.corner, window.size, strict=True):
        assert corner == round((whole - size) / 2.0)
        assert 0 <= corner <= whole - size


def crops(transform, height, width, n, seed=0):
    """Top, left, height, width and flip of crops, an array (n, 5)."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        (left, top, right, bottom), *_, flip = transform.window(height, width, rng)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        found.append((top, left, bottom - top, right - left, flip))
    return np.array(found)


@pytest.mark.processes  # by importing torch
@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (375, 500, (0.08, 1.0), (3 / 4, 4 / 3)),
        (100, 700, (0.5, 1.0), (3 / 4, 4 / 3)),  # often no draw fits
        (60, 20, (0.2, 0.9), (1.0, 3.0)),
    ],
)
def test_draws_have_the_distribution_of_torchvision(height, width, scale, ratio):
    """Each of the numbers by the statistic of Kolmogorov and Smirnov."""
    v2 = pytest.importorskip("torchvision.transforms.v2", reason="it is what draws are compared to")
    torch = pytest.importorskip("torch")
    n = 4000
    torch.manual_seed(1)
    theirs = v2.RandomResizedCrop(8, scale=scale, ratio=ratio)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    rows = [theirs.make_params([image]) for _ in range(n)]
    expected = np.array([[row[k] for k in ("top", "left", "height", "width")] for row in rows])
    found = crops(RandomResizedCrop(8, scale=scale, ratio=ratio), height, width, n)
    for column in range(4):
        values = np.unique(np.concatenate([expected[:, column], found[:, column]]))
        shares = [
            np.searchsorted(np.sort(a[:, column]), values, "right") / n for a in (expected, found)
        ]
        assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(
            2 / n
        )  # of 1,000 one is above


def test_draws_cover_the_image_and_flip():
    found = crops(RandomResizedCrop(8, flip=0.25), 40, 50, 4000)
    assert 0.22 < found[:, 4].mean() < 0.28
    assert (found[:, :2].min(axis=0) == 0).all()
    assert (found[:, 0] + found[:, 2]).max() == 40
    assert (found[:, 1] + found[:, 3]).max() == 50
    area = found[:, 2] * found[:, 3] / 2000
    assert area.min() < 0.1
    assert 0.9 < area.max() <= 1
    assert not crops(RandomResizedCrop(8), 40, 50, 100)[:, 4].any()
    assert crops(RandomResizedCrop(8, flip=1), 40, 50, 100)[:, 4].all()


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(10, 1000, (0, 493, 10, 13)), (1000, 10, (493, 0, 13, 10)), (1, 1, (0, 0, 1, 1))],
)
def test_where_no_draw_fits_it_is_the_middle(height, width, expected):
    transform = RandomResizedCrop(8, scale=(0.99, 1.0) if height * width > 1 else (3, 4))
    assert tuple(crops(transform, height, width, 5)[:, :4].max(axis=0)) == expected


def test_as_many_numbers_are_drawn_for_each_image():
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    for height, width in ((375, 500), (1, 1000), (3, 3)):
        RandomResizedCrop(8).window(height, width, rng)
        other.random(23)
        assert rng.bit_generator.state == other.bit_generator.state


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32))
def test_crops_lie_in_images_of_any_size(height, width, seed):
    crops(RandomResizedCrop(8, scale=(0, 1), ratio=(0.01, 100)), height, width, 3, seed)
