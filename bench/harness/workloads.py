"""The datasets of the pipeline benchmarks, W1 to W7 and W9, and of `bench.jobs.startup`, W8.

Each dataset class stands at module level, so that it can be pickled for workers that are spawned.
Content is random but fixed by a seed. Beside ``__len__`` and ``__getitem__`` those of
pipelines have what the verification needs: ``reference(i)`` (the example that index ``i`` must
give, never slow on purpose), ``distinct`` (the content of index ``i`` is that of ``i % distinct``)
and ``index_field`` (which of the example's values, nested ones counted in order, is its index).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

N_PREFETCH = 4


class _Indexed:
    """``length`` examples with the index in the field ``index_field``."""

    length: int
    index_field = 1

    def __len__(self) -> int:
        return self.length

    def reference(self, i: int) -> Any:
        """Example `i`, without a wait."""
        return self[i]  # type: ignore[index]


class Images(_Indexed):
    """W1: 20,480 indices over 1,024 images of 224x224x3 uint8 in one array, with the index."""

    distinct = 1_024
    length = 20_480

    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        shape = (self.distinct, 224, 224, 3)
        self._array = generator.integers(0, 256, size=shape, dtype=np.uint8)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self._array[i % 1024], i


class ReadyTuples(_Indexed):
    """W2: a list of 102,400 ready tuples of float32[16] and the index."""

    distinct = 102_400
    length = 102_400

    def __init__(self) -> None:
        rows = np.random.default_rng(2).random((self.distinct, 16), dtype=np.float32)
        self._items = [(row.copy(), i) for i, row in enumerate(rows)]

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self._items[i]


class CompressedImages(_Indexed):
    """W3: 2,048 indices over 64 images under zlib level 1, normalised to CHW float32; the index.

    Noise summed along the rows keeps neighbours alike as in a photograph; it compresses to about
    half.
    """

    distinct = 64
    length = 2_048

    def __init__(self) -> None:
        noise = np.random.default_rng(3).integers(0, 4, size=(self.distinct, 224, 224, 3))
        images = (np.cumsum(noise, axis=2) // 4).astype(np.uint8)
        self._mean = images.mean(axis=(0, 1, 2), dtype=np.float64).astype(np.float32)[:, None, None]
        self._std = images.std(axis=(0, 1, 2), dtype=np.float64).astype(np.float32)[:, None, None]
        self._compressed = [zlib.compress(image.tobytes(), 1) for image in images]

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        pixels = np.frombuffer(zlib.decompress(self._compressed[i % 64]), dtype=np.uint8)
        image = pixels.reshape(224, 224, 3).transpose(2, 0, 1).astype(np.float32, order="C")
        image -= self._mean
        image /= self._std
        return image, i


class RaggedSequences(_Indexed):
    """W4: 40,960 int64 slices of one pool, lengths lognormal(ln 64, 0.8) in 8..512; the index."""

    distinct = 40_960
    length = 40_960

    def __init__(self) -> None:
        generator = np.random.default_rng(4)
        lengths = generator.lognormal(np.log(64), 0.8, size=self.distinct)
        stops = np.cumsum(np.clip(lengths, 8, 512).astype(np.int64))
        self._bounds = [0, *stops.tolist()]
        self._pool = generator.integers(0, 50_000, size=self._bounds[-1], dtype=np.int64)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self._pool[self._bounds[i] : self._bounds[i + 1]], i


class Records(_Indexed):
    """W5: 20,480 indices, dicts of six views of arrays of 4,096 rows; int32[1] is the index."""

    distinct = 4_096
    length = 20_480
    index_field = 5

    def __init__(self) -> None:
        generator = np.random.default_rng(5)
        n = self.distinct
        self._image = generator.integers(0, 256, size=(n, 64, 64, 3), dtype=np.uint8)
        self._features = generator.random((n, 1024), dtype=np.float32)
        self._mask = generator.integers(0, 2, size=(n, 64, 64), dtype=np.uint8).astype(np.bool_)
        self._tokens = generator.integers(0, 50_000, size=(n, 128), dtype=np.int64)
        self._pose = generator.random((n, 4))
        self._index = np.arange(len(self), dtype=np.int32)[:, None]

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        row = i % 4096
        return {
            "image": self._image[row],
            "features": self._features[row],
            "mask": self._mask[row],
            "tokens": self._tokens[row],
            "pose": self._pose[row],
            "index": self._index[i],
        }


class LargeArrays(_Indexed):
    """W6: 512 indices over 16 arrays of float32[3,1024,1024], with the index."""

    distinct = 16
    length = 512

    def __init__(self) -> None:
        generator = np.random.default_rng(6)
        shape = (3, 1024, 1024)
        self._arrays = [generator.random(shape, dtype=np.float32) for _ in range(self.distinct)]

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self._arrays[i % 16], i


class SlowRows(_Indexed):
    """W7: 2,048 indices, 2 ms of waiting each as for a network, then float32[256] and the index."""

    distinct = 2_048
    length = 2_048

    def __init__(self) -> None:
        self._rows = np.random.default_rng(7).random((self.distinct, 256), dtype=np.float32)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        time.sleep(0.002)
        return self._rows[i], i

    def reference(self, i: int) -> tuple[np.ndarray, int]:
        return self._rows[i], i


class ManyImages:
    """W8: as many images of 224x224x3 uint8 as there are indices, in one array; the index.

    512 different ones, since random numbers for 1 GiB take seconds.
    """

    def __init__(self, n: int) -> None:
        generator = np.random.default_rng(8)
        images = generator.integers(0, 256, size=(min(n, 512), 224, 224, 3), dtype=np.uint8)
        self.images = images.take(np.arange(n) % len(images), axis=0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.images[i], i


class NestedExamples(_Indexed):
    """W9: a list of 20,480 ready dicts of tensors, numbers and texts, of 4,096 contents.

    ``meta.id`` is the index.
    """

    distinct = 4_096
    length = 20_480

    def __init__(self) -> None:
        import torch

        generator = np.random.default_rng(9)
        images = generator.random((self.distinct, 3, 32, 32), dtype=np.float32)
        labels = generator.integers(0, 1_000, size=(self.distinct, 8))
        tensors = [
            (torch.from_numpy(image).clone(), torch.from_numpy(label).clone())
            for image, label in zip(images, labels, strict=True)
        ]
        self._items = []
        for i in range(self.length):
            row = i % self.distinct
            image, label = tensors[row]
            meta = {"id": i, "name": f"image {row:05}"}
            self._items.append({"image": image, "meta": meta, "target": (label, row / 7)})

    def __getitem__(self, i: int) -> dict[str, Any]:
        return self._items[i]


@dataclass(frozen=True)
class Workload:
    """One pipeline: a dataset and how it is loaded."""

    name: str
    title: str
    make: Callable[[], Any]  # the dataset; seconds at most
    batch_size: int  # divides its length
    # Rows of memory that the examples are copied from, for the machine's limit: what __getitem__
    # produces afresh lies in cache, what it looks up does not.
    source_rows: int
    n_workers: int = 2  # processes, or threads, of every candidate that has them
    padding: tuple[int | None, ...] | None = None  # as concat_examples takes it
    ours: str = "fastiter.mp"  # the row that the others are compared with
    only: tuple[str, ...] = ()  # the candidates that can load it, if not all can


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W1", "images 224x224x3 uint8 + label, from memory", Images, 64, 1_024),
        Workload("W2", "ready tuples (float32[16], int)", ReadyTuples, 256, 102_400),
        Workload("W3", "zlib + normalise to float32 (CPU bound)", CompressedImages, 32, 2),
        Workload(
            "W4", "ragged int64 8..512, padded", RaggedSequences, 128, 40_960, padding=(-1, None)
        ),
        Workload("W5", "dict of 6 arrays", Records, 64, 4_096),
        Workload("W6", "float32 3x1024x1024", LargeArrays, 4, 16),
        Workload("W7", "2 ms of waiting per example, 8 workers", SlowRows, 32, 2_048, n_workers=8),
        Workload(
            "W9",
            "nested dict of tensors, numbers and texts",
            NestedExamples,
            128,
            4_096,
            ours="fastiter.mp-torch-loader",
            only=(
                "fastiter.mp-torch-loader",
                "torch.mp",
                "torch.mp-files",
                "torch.serial",
                "torchdata.mp",
            ),
        ),
    )
}
