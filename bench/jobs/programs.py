"""Datasets as programs have them, unchanged, in torch's loader and in fastiter's.

A call takes a number of examples, by 2 workers that persist, or without workers. ``bare`` is no
loader: two processes that make the examples, and drop them. The collate functions are the program's
own, but for images of one shape, tables and tensors, which `default_collate` stacks.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import random
import tempfile
import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import Case, Goal, WrongResult
from bench.jobs.images import folder_of, loop

NAME = "programs"
TITLE = "datasets as programs have them: the change of the import alone"

_WORKERS = 2
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _rgb(path: str) -> Any:
    from PIL import Image

    with Image.open(path) as image:
        return image.convert("RGB")


class Photographs:
    """JPEG files of 500 x 375 by Pillow, and torchvision's transforms."""

    def __init__(self, quick: bool, is_float: bool) -> None:
        import torch
        from torchvision.transforms import v2

        self.paths = folder_of("500x375", quick)
        steps: list[Any] = [v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip()]
        steps.append(v2.PILToTensor())
        if is_float:
            steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(_MEAN, _STD)]
        self.transform = v2.Compose(steps)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.transform(_rgb(self.paths[i])), i


class Crops:
    """The same files by Pillow and NumPy alone, normalised."""

    def __init__(self, quick: bool) -> None:
        self.paths = folder_of("500x375", quick)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        pixels = np.asarray(_rgb(self.paths[i]))
        top, left = (random.randint(0, side - 224) for side in pixels.shape[:2])
        crop = pixels[top : top + 224, left : left + 224].astype(np.float32)
        return ((crop / 255 - _MEAN) / _STD).astype(np.float32).transpose(2, 0, 1).copy(), i


class Detection(Crops):
    """Images of many shapes, and the boxes in them."""

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        import torch

        pixels = np.array(_rgb(self.paths[i]))
        height, width = (random.randint(side * 4 // 5, side) for side in pixels.shape[:2])
        image = torch.from_numpy(pixels[:height, :width].copy()).permute(2, 0, 1).float().div_(255)
        n = random.randint(1, 8)
        boxes = {"boxes": torch.rand(n, 4), "labels": torch.ones(n, dtype=torch.int64)}
        return image, boxes


class Speech:
    """WAV files of 4 to 16 seconds in memory, as the logarithm of their spectrogram."""

    def __init__(self, quick: bool) -> None:
        dice = np.random.default_rng(0)
        self.files = []
        for _ in range(32):
            file = io.BytesIO()
            with wave.open(file, "wb") as out:
                out.setparams((1, 2, 16_000, 0, "NONE", ""))
                length = int(dice.integers(4 * 16_000, 16 * 16_000))
                out.writeframes(dice.integers(-3000, 3000, length, np.int16).tobytes())
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> Any:
        import torch

        with wave.open(io.BytesIO(self.files[i % len(self.files)])) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        wanted = torch.from_numpy(samples.astype(np.float32) / 32768)
        window = torch.hann_window(400)
        spectrum = torch.stft(wanted, 400, 160, window=window, return_complex=True)
        return torch.log(spectrum.abs().pow(2) + 1e-6).T.contiguous()


class Compressed:
    """Arrays of 3 x 256 x 256 float32 in compressed .npz files."""

    def __init__(self, quick: bool) -> None:
        folder = Path(tempfile.gettempdir(), "fastiter-bench-npz")
        folder.mkdir(exist_ok=True)
        dice = np.random.default_rng(0)
        self.paths = [folder / f"{number}.npz" for number in range(64)]
        for path in self.paths:
            if not path.exists():
                array = dice.integers(0, 50, (3, 256, 256)).astype(np.float32)
                np.savez_compressed(path, array=array)

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return np.load(self.paths[i % len(self.paths)])["array"], i


class Words:
    """Sentences of 20 to 300 words, as numbers."""

    def __init__(self, quick: bool) -> None:
        dice = random.Random(0)
        self.numbers = {f"word{number}": number for number in range(5000)}
        words = list(self.numbers)
        self.texts = [" ".join(dice.choices(words, k=dice.randint(20, 300))) for _ in range(5000)]

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, i: int) -> dict[str, Any]:
        text = self.texts[i % len(self.texts)]
        return {"input_ids": [self.numbers[word] for word in text.split()], "label": i % 3}


class Table:
    """Rows of a table in memory, as arrays of 16 float32 and a number."""

    def __init__(self, quick: bool) -> None:
        self.rows = np.random.default_rng(0).random((60_000, 16), np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.rows[i], i


def tensors(quick: bool) -> Any:
    """60,000 images of 28 x 28 in memory, and their labels: a `TensorDataset`."""
    import torch

    labels = torch.randint(0, 10, (60_000,))
    return torch.utils.data.TensorDataset(torch.rand(60_000, 28, 28), labels)


def unzipped(examples: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*examples, strict=True))


def padded(examples: list[Any]) -> tuple[Any, Any]:
    import torch

    lengths = torch.tensor([len(example) for example in examples])
    return torch.nn.utils.rnn.pad_sequence(examples, batch_first=True), lengths


def padded_words(examples: list[Any]) -> dict[str, Any]:
    import torch

    most = max(len(example["input_ids"]) for example in examples)
    rows = [example["input_ids"] + [0] * (most - len(example["input_ids"])) for example in examples]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor([e["label"] for e in examples])}


def _loader(
    kind: Callable[[bool], Any], quick: bool, n: int, workers: int, library: str, **options: Any
) -> Any:
    def make() -> Any:
        import torch

        import fastiter.torch

        torch.set_num_threads(1)
        module: Any = fastiter.torch if library == "fastiter" else torch.utils.data
        settings = {"num_workers": workers, "persistent_workers": workers > 0, "shuffle": True}
        return module.DataLoader(kind(quick), drop_last=True, **settings, **options)

    return loop(make, n // options["batch_size"])


_dataset: Any = None  # of the processes that are forked


def _make_all(numbers: range) -> None:
    for i in numbers:
        _dataset[i % len(_dataset)]


@contextlib.contextmanager
def _bare(kind: Callable[[bool], Any], quick: bool, n: int) -> Iterator[Any]:
    global _dataset
    import torch

    torch.set_num_threads(1)
    _dataset = kind(quick)
    parts = [range(k, n, _WORKERS) for k in range(_WORKERS)]
    with multiprocessing.get_context("fork").Pool(_WORKERS) as pool:
        yield lambda _: pool.map(_make_all, parts, chunksize=1)


def _check(batch_size: int, result: Any, source: Any) -> None:
    if result == [None] * _WORKERS:
        return
    values = list(result.values()) if isinstance(result, dict) else list(result)
    if len(values) != 2 or any(len(value) != batch_size for value in values):
        raise WrongResult(f"a batch has {[len(value) for value in values]} rows")


def cases(quick: bool) -> Iterator[Case]:
    bind = functools.partial
    chosen: dict[str, tuple[Callable[[bool], Any], int, int, int, Any]] = {
        "JPEG by torchvision, uint8": (bind(Photographs, is_float=False), 20, 240, _WORKERS, None),
        "JPEG by torchvision, float32": (bind(Photographs, is_float=True), 20, 240, _WORKERS, None),
        "JPEG by Pillow and NumPy": (Crops, 20, 240, _WORKERS, None),
        "detection, lists of images": (Detection, 16, 240, _WORKERS, unzipped),
        "speech, padded spectrograms": (Speech, 16, 160, _WORKERS, padded),
        "compressed .npz files": (Compressed, 20, 240, _WORKERS, None),
        "words, padded": (Words, 64, 6400, _WORKERS, padded_words),
        "rows of a table, without workers": (Table, 256, 51_200, 0, None),
        "TensorDataset, without workers": (tensors, 64, 12_800, 0, None),
        "TensorDataset": (tensors, 64, 51_200, _WORKERS, None),
    }
    for name, (kind, batch_size, n, workers, collate) in list(chosen.items())[
        : 1 if quick else None
    ]:
        n = 2 * batch_size if quick else n
        options = {"batch_size": batch_size, "collate_fn": collate}
        bare = {"fastiter.bare": bind(_bare, kind, quick, n)} if workers else {}
        yield Case(
            name=name,
            sources=lambda: [None],
            candidates={
                "fastiter": bind(_loader, kind, quick, n, workers, "fastiter", **options),
                **bare,
                "torch": bind(_loader, kind, quick, n, workers, "torch", **options),
            },
            check=bind(_check, batch_size),
            items=n,
            item="example",
            goals=[Goal("torch", 1.2)],
        )
