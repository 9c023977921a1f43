"""Decoded images that are kept by `fastiter.cache`, and in the ways of other projects.

``python -m bench.thirdparty.caches`` needs torch and Pillow; MONAI and diskcache if they are to
take part. Images are of 500 x 375 pixels (JPEG of quality 90), decoded to arrays of 562 KB. Epochs:
batches of 20, 2 workers that stay; epoch 2 is the median of rounds in turns. Memory: two ranks with
8 workers each and batches of 2, after four epochs, above that of the same loader without a cache,
in copies of all images. Start: from a new process whose imports are done to the first batch, for
what outlives a program.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.harness.procs import process_tree, pss_bytes
from bench.jobs.cache import Decoded

BATCH = 20
BYTES = 375 * 500 * 3


class Managed:
    """A dict of a manager's process, which torch's documentation recommends against copies."""

    def __init__(self, images: Any) -> None:
        import multiprocessing

        self._images = images
        self._manager = multiprocessing.Manager()
        self._kept = self._manager.dict()

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Any:
        found = self._kept.get(i)
        if found is None:
            self._kept[i] = found = self._images[i]
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_manager": None}


class Listed:
    """A list, as Ultralytics' ``cache="ram"`` has it: each worker fills its own."""

    def __init__(self, images: Any) -> None:
        self._images, self._kept = images, [None] * len(images)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Any:
        if self._kept[i] is None:
            self._kept[i] = self._images[i]
        return self._kept[i].copy()  # type: ignore[attr-defined]


class Stored:
    """A `diskcache.Cache`."""

    def __init__(self, images: Any, folder: str) -> None:
        import diskcache

        self._images = images
        self._kept = diskcache.Cache(folder, size_limit=1 << 40, eviction_policy="none")

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, i: int) -> Any:
        found = self._kept.get(i)
        if found is None:
            self._kept[i] = found = self._images[i]
        return found


def _monai(images: Any, folder: str) -> Any:
    from monai.data import CacheDataset
    from monai.transforms import Transform

    class Decode(Transform):  # type: ignore[misc, unused-ignore]
        def __call__(self, i: int) -> Any:
            return images[i]

    return CacheDataset(range(len(images)), Decode(), num_workers=2, progress=False)


def _memory(images: Any, folder: str) -> Any:
    import fastiter

    return fastiter.cache(images, memory=2 << 30)


def _file(images: Any, folder: str) -> Any:
    import fastiter

    return fastiter.cache(images, path=os.path.join(folder, "cache"), key=1)


def _stored(images: Any, folder: str) -> Any:
    return Stored(images, os.path.join(folder, "diskcache"))


def _plain(images: Any, folder: str) -> Any:
    return images


WAYS: dict[str, Callable[[Any, str], Any]] = {
    "no cache": _plain,
    "fastiter.cache(memory=)": _memory,
    "fastiter.cache(path=)": _file,
    "torch, no cache": _plain,
    "torch, Manager().dict()": lambda images, folder: Managed(images),
    "torch, MONAI CacheDataset": _monai,
    "torch, a list per worker": lambda images, folder: Listed(images),
    "torch, diskcache": _stored,
}
OUTLIVES = ("no cache", "fastiter.cache(path=)", "torch, diskcache")


def _loader(way: str, images: Any, folder: str, workers: int, batch: int = BATCH) -> Any:
    import torch.utils.data

    import fastiter.torch

    kind = torch.utils.data.DataLoader if way.startswith("torch") else fastiter.torch.DataLoader
    dataset = WAYS[way](images, folder)
    return kind(
        dataset,
        batch,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        multiprocessing_context="fork",
    )


def _epoch(loader: Any) -> float:
    began = time.perf_counter()
    rows = sum(len(batch) for batch in loader)
    assert rows == len(loader.dataset)
    return time.perf_counter() - began


def _ways() -> list[str]:
    found = []
    for way in WAYS:
        try:
            if "MONAI" in way:
                import monai  # noqa: F401
            if "diskcache" in way:
                import diskcache  # noqa: F401
        except ImportError:
            print(f"{way}: not installed", file=sys.stderr)
        else:
            found.append(way)
    return found


def epochs(rows: int, rounds: int, folder: str) -> dict[str, tuple[float, float]]:
    """Seconds of epochs 1 and 2."""
    images = Decoded(rows, 1)
    loaders, first = {}, {}
    for way in _ways():
        began = time.perf_counter()
        loaders[way] = _loader(way, images, folder, 2)
        _epoch(loaders[way])
        first[way] = time.perf_counter() - began  # MONAI fills when it is made
    later: dict[str, list[float]] = {way: [] for way in loaders}
    for way in [way for _ in range(rounds) for way in loaders]:
        later[way].append(_epoch(loaders[way]))
    return {way: (first[way], statistics.median(later[way])) for way in loaders}


def rank(way: str, rows: int, workers: int, folder: str) -> None:
    """A rank of those whose memory is measured: says when it is ready, and waits for its end."""
    loader = _loader(way, Decoded(rows, 1), folder, workers, 2)  # small beside the cache
    for _ in range(4):
        _epoch(loader)
    print(pss_bytes(process_tree(os.getpid())), flush=True)
    sys.stdin.read()


def first_batch(way: str, rows: int, folder: str) -> None:
    images = Decoded(rows, 1)
    import torch  # noqa: F401

    import fastiter.torch  # noqa: F401

    began = time.perf_counter()
    next(iter(_loader(way, images, folder, 2)))
    print(time.perf_counter() - began, flush=True)


def _child(*arguments: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.thirdparty.caches", "--child", json.dumps(arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)


def memory(rows: int, workers: int, folder: str) -> dict[str, float]:
    """Bytes of two ranks, and of their files, which no process has mapped."""
    found = {}
    for way in _ways():
        place = tempfile.mkdtemp(dir=folder)
        ranks = [_child("rank", way, rows, workers, place) for _ in range(2)]
        for each in ranks:
            assert each.stdout is not None
            each.stdout.readline()
        found[way] = float(sum(pss_bytes(process_tree(each.pid)) for each in ranks))
        files = [os.path.join(top, name) for top, _, names in os.walk(place) for name in names]
        found[way] += sum(os.stat(file).st_blocks * 512 for file in files)
        for each in ranks:
            each.communicate("")
    return found


def starts(rows: int, folder: str) -> dict[str, float]:
    """Seconds to the first batch of a new program, over the caches that `epochs` has filled."""
    found: dict[str, list[float]] = {way: [] for way in OUTLIVES if way in _ways()}
    for way in [way for _ in range(3) for way in found]:
        found[way].append(float(_child("first_batch", way, rows, folder).communicate()[0]))
    return {way: statistics.median(seconds) for way, seconds in found.items()}


def _versions() -> str:
    parts = [f"Python {platform.python_version()}"]
    for name in ("numpy", "pillow", "torch", "monai", "diskcache"):
        try:
            parts.append(f"{name} {version(name)}")
        except ImportError:
            continue
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # arrays that cannot be written, and many workers
    if options.child:
        name, *arguments = json.loads(options.child)
        {"rank": rank, "first_batch": first_batch}[name](*arguments)
        return
    folder = tempfile.mkdtemp()
    try:
        used = memory(options.rows, 8, folder)
        seconds = epochs(options.rows, options.rounds, folder)
        begun = starts(options.rows, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{os.cpu_count()} cores; {_versions()}")
    print(f"{options.rows} images; load {os.getloadavg()[0]:.0f}")
    print()
    head = (
        "epoch 1, us an image",
        "epoch 2",
        "epoch 1 / 2",
        "copies, 2 x 8 workers",
        "first batch, s",
    )
    print(f"{'':28}" + "".join(f"{text:>23}" for text in head))
    for way, (first, later) in seconds.items():
        without = used["torch, no cache" if way.startswith("torch") else "no cache"]
        copies = (used[way] - without) / (options.rows * BYTES)
        figures = [
            f"{1e6 * first / options.rows:,.0f}",
            f"{1e6 * later / options.rows:,.0f}",
            f"{first / later:.1f}",
            f"{copies:.2f}",
            f"{begun[way]:.2f}" if way in begun else "-",
        ]
        print(f"{way:28}" + "".join(f"{text:>23}" for text in figures))


if __name__ == "__main__":
    main()
