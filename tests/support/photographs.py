"""Synthetic photographs: smooth shapes with some noise, as arrays and as files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np


def photograph(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """uint8 (height, width, 3)."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    pixels = np.zeros((height, width, 3))
    for _ in range(6):
        a, b, phase = rng.normal(0, 12, 2).tolist() + [rng.uniform(0, 6)]
        pixels += rng.uniform(5, 30, 3) * np.sin(a * x + b * y + phase)[..., None]
    pixels += 128 + rng.normal(0, 6, pixels.shape)
    return pixels.clip(0, 255).astype(np.uint8)


def saved(image: Any, kind: str = "JPEG", **options: Any) -> bytes:
    """The bytes of a file of an image of Pillow's, or of an array."""
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(image)
    file = io.BytesIO()
    if kind == "JPEG":
        options = {"quality": 90, **options}
    image.save(file, kind, **options)
    return file.getvalue()
