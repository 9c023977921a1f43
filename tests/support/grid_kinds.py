"""The kinds of data whose order has to be exact, whatever changes."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastiter import (
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    MultiprocessIterator,
    ShuffleOrderSampler,
)
from fastiter.datasets import ConcatenatedDataset, StreamDataset
from fastiter.random import example_rng

N = 300
LENGTHS = np.random.default_rng(3).integers(1, 90, N)


class Noisy:
    """Examples with random numbers of their own, as tuples that compare bit for bit."""

    def __init__(self, first: int = 0, size: int = N) -> None:
        self.first, self.size = first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, float]:
        return self.first + index, float(example_rng().standard_normal())


class Gated:
    """A dataset of whose examples one waits until the gate, an event, is open."""

    def __init__(self, dataset: Any, slow: int, gate: Any) -> None:
        self.dataset, self.slow, self.gate = dataset, slow, gate

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if index == self.slow and not self.gate.wait(20):
            raise TimeoutError
        return self.dataset[index]


class Transformed(Noisy):
    """Examples that draw from the global generators."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.standard_normal())


class Filtered(Noisy):
    """Some examples fail."""

    def __getitem__(self, index: int) -> tuple[int, float]:
        if index % 7 == 3:
            raise ValueError(f"broken: {index}")
        return super().__getitem__(index)


def open_shard(number: int) -> Iterator[tuple[int, int]]:
    """A shard of a stream."""
    for i in range(7 * number % 50):
        yield number, i


def _map(size: int) -> tuple[Any, dict[str, Any]]:
    return Noisy(), {"batch_size": size, "order_sampler": ShuffleOrderSampler(1)}


def _mixture(size: int) -> tuple[Any, dict[str, Any]]:
    sizes = [150, 100, 50]
    parts = ConcatenatedDataset(*(Noisy(1000 * i, n) for i, n in enumerate(sizes)))
    sampler = MixtureOrderSampler(sizes, [0.5, 0.2, 0.3], 1)
    return parts, {"batch_size": size, "order_sampler": sampler}


def _buckets(size: int) -> tuple[Any, dict[str, Any]]:
    sampler = LengthBucketBatchSampler(LENGTHS, batch_size=size, seed=1, window=150)
    return Noisy(), {"batch_sampler": sampler}


def _stream(size: int) -> tuple[Any, dict[str, Any]]:
    stream = StreamDataset(range(13), open_shard, seed=1, interleave=3, window=40)
    return stream, {"batch_size": size}


def _filtered(size: int) -> tuple[Any, dict[str, Any]]:
    arguments = {"order_sampler": ShuffleOrderSampler(1), "on_error": "skip", "skip_limit": None}
    return Filtered(), {"batch_size": size, **arguments}


def _transformed(size: int) -> tuple[Any, dict[str, Any]]:
    arguments = {"order_sampler": ShuffleOrderSampler(1), "seed_examples": True}
    return Transformed(), {"batch_size": size, **arguments}


#: dataset and arguments of an iterator, for a batch size
KINDS: dict[str, Callable[[int], tuple[Any, dict[str, Any]]]] = {
    "map": _map,
    "mixture": _mixture,
    "buckets": _buckets,
    "stream": _stream,
    "filtered": _filtered,
    "transformed": _transformed,
}


def make(
    kind: str,
    iterator_class: Any,
    batch_size: int = 32,
    wrap: Callable[[Any], Any] = lambda dataset: dataset,
    **arguments: Any,
) -> Any:
    """An iterator over a kind of data."""
    dataset, given = KINDS[kind](batch_size)
    return iterator_class(wrap(dataset), **given, **arguments)


def run_with_a_log(kind: str, path: Path, steps: int, report: int) -> None:
    """A program that writes each batch and the state after it to a file, and goes on from what is
    there. It tells of each step by a byte."""
    iterator = make(kind, MultiprocessIterator, n_processes=2, context="fork")
    done = logged(path)
    if done:
        iterator.load_state_dict(done[-1][1])
    with path.open("w") as file:
        for line in done:
            file.write(json.dumps(line) + "\n")
        for _ in range(steps - len(done)):
            file.write(json.dumps([next(iterator), iterator.state_dict()]) + "\n")
            file.flush()
            os.write(report, b".")
    iterator.finalize()


def logged(path: Path) -> list[Any]:
    """Batches and states of a log, up to the last whole line."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(True) if line.endswith("\n")]
