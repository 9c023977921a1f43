"""A Parquet file with images as bytes, decoded by Pillow in worker processes.

The example writes the file itself: a column of JPEG images, and one of labels. `decode=` names what
a worker calls with the bytes of an image. Row groups are shuffled, and so are the rows of three of
them at a time: each group is read once::

    python examples/table_of_images.py
"""

from __future__ import annotations

import io
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fastiter import BlockShuffleOrderSampler, MultiprocessIterator, concat_examples
from fastiter.datasets import ArrowDataset

N, SIZE = 120, 48


def write_table(path: str) -> None:
    """JPEG images that are bright in the left (0) or right (1) half, and these labels."""
    images = []
    for i in range(N):
        image = np.random.default_rng(i).integers(0, 80, (SIZE, SIZE, 3), dtype=np.uint8)
        image[:, i % 2 * SIZE // 2 :][:, : SIZE // 2] += 100
        encoded = io.BytesIO()
        Image.fromarray(image).save(encoded, "JPEG")
        images.append(encoded.getvalue())
    table = pa.table({"image": images, "label": [i % 2 for i in range(N)]})
    pq.write_table(table, path, row_group_size=15)


def to_pixels(data: bytes) -> np.ndarray:
    """An image of (height, width, 3), uint8."""
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/images.parquet"
        write_table(path)
        dataset = ArrowDataset(path, decode={"image": to_pixels})
        order = BlockShuffleOrderSampler(0, dataset.row_group_ends, window=3)
        n_right = 0
        with MultiprocessIterator(
            dataset, 20, repeat=False, order_sampler=order, n_processes=2, converter=concat_examples
        ) as iterator:
            for batch in iterator:  # image: uint8 (20, 48, 48, 3); label: int64 (20,)
                left, right = np.split(batch["image"].mean(axis=(1, 3)), 2, axis=1)
                guesses = right.mean(axis=1) > left.mean(axis=1)
                n_right += (guesses == batch["label"]).sum()
            n_decoded = iterator.stats().row_groups_decoded
        print(f"epoch 1: {n_decoded} row groups decoded, {n_right} of {N} right")


if __name__ == "__main__":
    main()
