"""Epochs of a folder of JPEG files, by fastiter.images and by other loaders of images, in turns.

`python -m bench.thirdparty.image_loaders FOLDER --rounds 3 [--only NAME...]`

FOLDER has a folder of images for each class; without it, 1,000 synthetic photographs of 500 x 375
are made. Each loader reads, decodes, crops at random, resizes to 224 and mirrors, in batches of 64
by 2 workers. Batches are uint8, and float32, normalised, where the name says so. TurboLoader has
float32 alone and decodes only what a crop needs; datago crops nothing, and gives images one by one;
lists hold crops of varying shape, which Pillow has decoded. dataloader-rs, which needs Python 3.13,
runs torchvision's transforms of tensors in threads. ``decoder`` is no loader: two processes that
read and decode all files by simplejpeg, or by Pillow. What is not installed is left out.

Printed are medians: images a second; the share of the decoder's rate; milliseconds of CPU time an
image, of the whole program and of the training process alone; seconds until the first batch; and
the memory that one more epoch added at its peak (PSS).
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import math
import multiprocessing
import os
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.harness import procs
from bench.thirdparty import photographs

Epoch = Callable[[], Iterator[int]]  # the number of images of each batch

_SIDE = 224
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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

    def run() -> Iterator[int]:
        random.shuffle(rows)
        builder = PipelineBuilder().add_source(rows).pipe(decoded, concurrency=workers)
        builder = builder.aggregate(batch_size).pipe(collated).add_sink(4)
        pipeline = builder.build(num_threads=workers + 1)
        with pipeline.auto_stop():
            yield from (len(y) for _, y in pipeline.get_iterator())

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

    def run() -> Iterator[int]:
        return (len(np.asarray(pipeline.run()[0].as_tensor())) for _ in range(n_batches))

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

    def run() -> Iterator[int]:
        nonlocal epoch
        loader.set_epoch(epoch)
        epoch += 1
        return (len(batch[0] if isinstance(batch, tuple) else batch) for batch in loader)

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

    def run() -> Iterator[int]:
        rows = grain.MapDataset.range(len(paths)).shuffle(seed=random.getrandbits(31)).map(example)
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=workers)
        batches = rows.to_iter_dataset().batch(batch_size).mp_prefetch(options)
        return (len(y) for _, y in batches)

    return run


def datago(folder: str, batch_size: int, workers: int) -> Epoch:
    """datago's threads: decoding alone."""
    import datago

    n = len(_files(folder)[0])
    files = {"root_path": folder, "random_sampling": False}
    settings = {"source_type": "file", "source_config": files, "limit": n}

    def run() -> Iterator[int]:
        client = datago.DatagoClient(
            json.dumps({**settings, "samples_buffer_size": 2 * batch_size})
        )
        try:
            for _ in range(n):
                yield int(len(client.get_sample().image.to_numpy_array()) > 1)
        finally:
            client.stop()

    return run


def decoder(folder: str, batch_size: int, workers: int, by_pillow: bool = False) -> Epoch:
    """Processes that read and decode, without a loader."""
    paths, _ = _files(folder)
    decoded = _decoded_by_pillow if by_pillow else _decoded

    def run() -> Iterator[int]:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            parts = [paths[at : at + batch_size] for at in range(0, len(paths), batch_size)]
            yield from pool.imap(decoded, parts)

    return run


def _decoded(paths: list[str]) -> int:
    import simplejpeg

    return sum(len(simplejpeg.decode_jpeg(Path(path).read_bytes())) > 1 for path in paths)


def _decoded_by_pillow(paths: list[str]) -> int:
    import numpy as np
    from PIL import Image

    return sum(len(np.asarray(Image.open(path).convert("RGB"))) > 1 for path in paths)


def _epochs(loader: Any) -> Epoch:
    return lambda: (len(y) for _, y in loader)


def _torchvisions(folder: str, decoder: str, dtype: str = "uint8") -> Any:
    """torchvision's dataset of a folder, with its transforms."""
    import torch
    import torchvision
    import torchvision.transforms.v2 as v2

    steps = [v2.RandomResizedCrop(_SIDE, antialias=True), v2.RandomHorizontalFlip()]
    options: dict[str, Any] = {}
    if decoder == "decode_image":
        options["loader"] = functools.partial(torchvision.io.decode_image, mode="RGB")
    else:
        steps.append(v2.PILToTensor())
    if dtype == "float32":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
    return torchvision.datasets.ImageFolder(folder, v2.Compose(steps), **options)


def torchs(folder: str, batch_size: int, workers: int, decoder: str, dtype: str = "uint8") -> Epoch:
    """torch's loader with torchvision's transforms."""
    from torch.utils.data import DataLoader

    dataset = _torchvisions(folder, decoder, dtype)
    return _epochs(DataLoader(dataset, batch_size, shuffle=True, num_workers=workers))


def dataloader_rs(folder: str, batch_size: int, workers: int) -> Epoch:
    """dataloader-rs's threads, with what torch's loader has over decode_image."""
    import torch
    from dataloader_rs import PyDataloader, PyDataset
    from torch.utils.data import default_collate

    images = _torchvisions(folder, "decode_image")

    class Rows(PyDataset):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, i: int) -> Any:
            return images[i]

    options = {"shuffle": True, "num_workers": workers, "collate_fn": default_collate}
    loader = PyDataloader(Rows(), batch_size, **options)

    def run() -> Iterator[int]:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # the workers are the threads
        yield from (len(y) for _, y in loader)
        torch.set_num_threads(before)

    return run


def fastiter(folder: str, batch_size: int, workers: int, dtype: str = "uint8") -> Epoch:
    """fastiter.torch.DataLoader over fastiter.images."""
    from fastiter.images import ImageFolder, RandomResizedCrop
    from fastiter.torch import DataLoader

    means: dict[str, Any] = {"mean": _MEAN, "std": _STD} if dtype == "float32" else {}
    dataset = ImageFolder(folder, RandomResizedCrop(_SIDE, flip=0.5, dtype=dtype, **means))
    return _epochs(DataLoader(dataset, batch_size, shuffle=True, num_workers=workers))


class _Crops:
    """Crops of the size that each draw gives, by Pillow, as arrays."""

    def __init__(self, folder: str) -> None:
        self._paths, self._labels = _files(folder)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        import numpy as np
        from PIL import Image

        with Image.open(self._paths[i]) as image:
            pixels = np.asarray(image.convert("RGB"))
        height, width = random.randint(100, len(pixels)), random.randint(100, pixels.shape[1])
        return pixels[:height, :width], self._labels[i]


def lists(folder: str, batch_size: int, workers: int, is_torchs: bool) -> Epoch:
    """Lists of arrays of varying shape, which no loader can stack, from the same dataset."""
    import torch.utils.data

    import fastiter.torch

    loader = torch.utils.data.DataLoader if is_torchs else fastiter.torch.DataLoader
    made = loader(_Crops(folder), batch_size, shuffle=True, num_workers=workers, collate_fn=list)
    return lambda: map(len, made)


LOADERS: dict[str, Callable[[str, int, int], Epoch]] = {
    "decoder": decoder,
    "decoder.pillow": functools.partial(decoder, by_pillow=True),
    "fastiter": fastiter,
    "fastiter.float32": functools.partial(fastiter, dtype="float32"),
    "torch.pillow": functools.partial(torchs, decoder="pillow"),
    "torch.pillow.float32": functools.partial(torchs, decoder="pillow", dtype="float32"),
    "torch.decode_image": functools.partial(torchs, decoder="decode_image"),
    "dataloader-rs": dataloader_rs,
    "spdl": spdl,
    "dali": dali,
    "turboloader.float32": turboloader,
    "grain": grain,
    "datago": datago,
    "fastiter.lists": functools.partial(lists, is_torchs=False),
    "torch.lists": functools.partial(lists, is_torchs=True),
}


class Taken(NamedTuple):
    """Speed and CPU time of an epoch."""

    rate: float  # images a second
    program: float  # milliseconds of CPU time an image, of all processes
    trainer: float  # and of this one
    first: float  # seconds until the first batch


def taken(epoch: Epoch) -> Taken:
    """Run an epoch, whose processes have ended after it."""
    cpu, own, since = procs.own_cpu_seconds(), time.process_time(), time.perf_counter()
    batches = epoch()
    n = next(batches)
    first = time.perf_counter() - since
    n += sum(batches)
    seconds, trainer = time.perf_counter() - since, time.process_time() - own
    del batches
    gc.collect()
    program = procs.own_cpu_seconds() - cpu
    return Taken(n / seconds, 1e3 * program / n, 1e3 * trainer / n, first)


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
    folder = options.folder or _made(
        os.path.join(tempfile.gettempdir(), "fastiter-photograph-folder")
    )
    epochs: dict[str, Epoch] = {}
    for name in options.only:
        try:
            epochs[name] = LOADERS[name](folder, 64, 2)
            taken(epochs[name])
        except (ImportError, RuntimeError, StopIteration) as error:  # or a library of the system
            epochs.pop(name, None)
            print(f"{name:20} left out: {error}")
    found: dict[str, list[Taken]] = {name: [] for name in epochs}
    for _ in range(options.rounds):
        for name, epoch in epochs.items():
            found[name].append(taken(epoch))
    watcher = procs.Watcher()
    added = {}
    for name, epoch in epochs.items():
        with watcher.watching() as peak:
            taken(epoch)
        added[name] = peak[0] / 1e6
    watcher.close()
    middle = {
        name: Taken(*map(statistics.median, zip(*runs, strict=True)))
        for name, runs in found.items()
    }
    print(f"{'':21}images/s  of decoder  CPU ms  trainer ms  first s  PSS MB  each run's images/s")
    for name, row in middle.items():
        share = f"{row.rate / middle['decoder'].rate:.2f}" if "decoder" in middle else ""
        print(
            f"{name:21}{row.rate:8.0f}{share:>12}{row.program:8.2f}{row.trainer:12.3f}"
            f"{row.first:9.2f}{added[name]:8.0f}  {[round(run.rate) for run in found[name]]}"
        )


if __name__ == "__main__":
    main()
