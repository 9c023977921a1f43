"""Epochs of a folder of JPEG files, by fastiter.images and by other loaders of images, in turns.

`python -m bench.thirdparty.image_loaders FOLDER --rounds 3 [--only NAME...]`

FOLDER has a folder of images for each class; without it, 1,000 synthetic photographs of 500 x 375
are made. Each loader reads, decodes, crops at random, resizes to 224 and mirrors, in batches of 64
by 2 workers. Batches are uint8, but those of TurboLoader, which has float32 alone and decodes only
what a crop needs; datago crops nothing, and gives images one by one. What is not installed is left
out.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.thirdparty import photographs

Epoch = Callable[[], int]

_SIDE = 224
_SCALE, _RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def _files(folder: str) -> tuple[list[str], list[int]]:
    """Paths, and the number of each one's class."""
    paths = sorted(Path(folder).glob("*/*"))
    names = sorted({path.parent.name for path in paths})
    return [str(path) for path in paths], [names.index(path.parent.name) for path in paths]


def spdl(folder: str, batch_size: int, workers: int) -> Epoch:
    """SPDL's threads, and FFmpeg's decoder and filters."""
    import spdl.io
    from PIL import Image
    from spdl.pipeline import PipelineBuilder

    def part(width: int, height: int) -> tuple[int, int, int, int]:
        for _ in range(10):
            area = width * height * random.uniform(*_SCALE)
            ratio = math.exp(random.uniform(*map(math.log, _RATIO)))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return w, h, random.randint(0, width - w), random.randint(0, height - h)
        return width, height, 0, 0

    def decoded(item: tuple[str, int, tuple[int, int]]) -> tuple[Any, int]:
        path, label, size = item
        w, h, x, y = part(*size)
        mirror = ",hflip" if random.random() < 0.5 else ""
        steps = f"crop={w}:{h}:{x}:{y},scale={_SIDE}:{_SIDE}:flags=bilinear{mirror},format=rgb24"
        packets = spdl.io.demux_image(path)
        return spdl.io.decode_packets(packets, filter_desc=steps), label

    def collated(items: list[tuple[Any, int]]) -> tuple[Any, list[int]]:
        buffer = spdl.io.convert_frames([frames for frames, _ in items])
        return spdl.io.to_torch(buffer), [label for _, label in items]

    paths, labels = _files(folder)
    rows = list(zip(paths, labels, [Image.open(path).size for path in paths], strict=True))

    def run() -> int:
        random.shuffle(rows)
        builder = PipelineBuilder().add_source(rows).pipe(decoded, concurrency=workers)
        builder = builder.aggregate(batch_size).pipe(collated).add_sink(4)
        pipeline = builder.build(num_threads=workers + 1)
        with pipeline.auto_stop():
            return sum(len(y) for _, y in pipeline.get_iterator())

    return run


def dali(folder: str, batch_size: int, workers: int) -> Epoch:
    """NVIDIA DALI on the CPU: its decoder crops while it decodes."""
    import numpy as np
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(
        batch_size=batch_size, num_threads=workers, device_id=None, prefetch_queue_depth=2
    )
    def images() -> Any:
        files, labels = fn.readers.file(file_root=folder, random_shuffle=True)
        crops = fn.decoders.image_random_crop(
            files, device="cpu", random_area=_SCALE, random_aspect_ratio=_RATIO
        )
        resized = fn.resize(
            crops, size=[_SIDE, _SIDE], antialias=True, interp_type=types.INTERP_LINEAR
        )
        mirrored = fn.flip(resized, horizontal=fn.random.coin_flip())
        return fn.transpose(mirrored, perm=[2, 0, 1]), labels

    pipeline = images()
    pipeline.build()
    n_batches = len(_files(folder)[0]) // batch_size

    def run() -> int:
        return sum(len(np.asarray(pipeline.run()[0].as_tensor())) for _ in range(n_batches))

    return run


def turboloader(folder: str, batch_size: int, workers: int) -> Epoch:
    """TurboLoader over a tar file of the same images."""
    import turboloader

    archive = f"{folder.rstrip('/')}.tar"
    if not os.path.exists(archive):
        with tarfile.open(archive, "w") as tar:
            for path in _files(folder)[0]:
                tar.add(path, os.path.relpath(path, folder))
    loader = turboloader.DataLoader(
        archive,
        batch_size=batch_size,
        num_workers=workers,
        shuffle=True,
        image_size=_SIDE,
        train_aug=True,
        output_format="numpy_chw",
    )
    epoch = 0

    def run() -> int:
        nonlocal epoch
        loader.set_epoch(epoch)
        epoch += 1
        return sum(len(batch[0] if isinstance(batch, tuple) else batch) for batch in loader)

    return run


def grain(folder: str, batch_size: int, workers: int) -> Epoch:
    """Grain's processes, and torchvision's transforms over Pillow."""
    import grain
    import torchvision.transforms.v2 as v2
    from PIL import Image

    paths, labels = _files(folder)
    steps = [v2.RandomResizedCrop(_SIDE, antialias=True), v2.RandomHorizontalFlip()]
    transform = v2.Compose([*steps, v2.PILToTensor()])

    def example(i: int) -> tuple[Any, int]:
        with Image.open(paths[i]) as image:
            return transform(image.convert("RGB")).numpy(), labels[i]

    def run() -> int:
        rows = grain.MapDataset.range(len(paths)).shuffle(seed=random.getrandbits(31)).map(example)
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
        batches = rows.to_iter_dataset().batch(batch_size).mp_prefetch(options)
        return sum(len(y) for _, y in batches)

    return run


def datago(folder: str, batch_size: int, workers: int) -> Epoch:
    """datago's threads: decoding alone."""
    import datago

    n = len(_files(folder)[0])
    files = {"root_path": folder, "random_sampling": False}
    settings = {"source_type": "file", "source_config": files, "limit": n}

    def run() -> int:
        client = datago.DatagoClient(
            json.dumps({**settings, "samples_buffer_size": 2 * batch_size})
        )
        try:
            return sum(len(client.get_sample().image.to_numpy_array()) > 1 for _ in range(n))
        finally:
            client.stop()

    return run


def torchs(folder: str, batch_size: int, workers: int, decoder: str) -> Epoch:
    """torch's loader with torchvision's transforms."""
    import torchvision
    import torchvision.transforms.v2 as v2
    from torch.utils.data import DataLoader

    steps = [v2.RandomResizedCrop(_SIDE, antialias=True), v2.RandomHorizontalFlip()]
    options: dict[str, Any] = {"transform": v2.Compose([*steps, v2.PILToTensor()])}
    if decoder == "decode_image":
        load = functools.partial(torchvision.io.decode_image, mode="RGB")
        options = {"transform": v2.Compose(steps), "loader": load}
    dataset = torchvision.datasets.ImageFolder(folder, **options)
    return lambda: sum(
        len(y) for _, y in DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)
    )


def fastiter(folder: str, batch_size: int, workers: int, dtype: str = "uint8") -> Epoch:
    """fastiter.torch.DataLoader over fastiter.images."""
    from fastiter.images import ImageFolder, RandomResizedCrop
    from fastiter.torch import DataLoader

    dataset = ImageFolder(folder, RandomResizedCrop(_SIDE, flip=0.5, dtype=dtype))
    return lambda: sum(
        len(y) for _, y in DataLoader(dataset, batch_size, shuffle=True, num_workers=workers)
    )


LOADERS: dict[str, Callable[[str, int, int], Epoch]] = {
    "fastiter": fastiter,
    "fastiter.float32": functools.partial(fastiter, dtype="float32"),
    "torch.pillow": functools.partial(torchs, decoder="pillow"),
    "torch.decode_image": functools.partial(torchs, decoder="decode_image"),
    "spdl": spdl,
    "dali": dali,
    "turboloader": turboloader,
    "grain": grain,
    "datago": datago,
}


def _made(folder: str) -> str:
    """A folder of synthetic photographs, which is kept for later runs."""
    if len(_files(folder)[0]) < 1000:
        photographs.write(Path(folder), 1000, [f"class{number}" for number in range(10)])
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=LOADERS, default=[*LOADERS])
    options = parser.parse_args()
    folder = options.folder or _made(os.path.join(tempfile.gettempdir(), "fastiter-image-folder"))
    epochs: dict[str, Epoch] = {}
    for name in options.only:
        try:
            epochs[name] = LOADERS[name](folder, 64, 2)
            epochs[name]()
        except ImportError as error:
            epochs.pop(name, None)
            print(f"{name:20} left out: {error}")
    rates: dict[str, list[float]] = {name: [] for name in epochs}
    for _ in range(options.rounds):
        for name, epoch in epochs.items():
            since = time.perf_counter()
            n = epoch()
            rates[name].append(n / (time.perf_counter() - since))
    for name, found in rates.items():
        print(f"{name:20} {statistics.median(found):7.0f} images/s  {[round(r) for r in found]}")


if __name__ == "__main__":
    main()
