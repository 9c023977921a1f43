"""Iterators of each kind of state: order, sampler, tokens and streams."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from fastiter import (
    BlockShuffleOrderSampler,
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    WeightedOrderSampler,
)
from fastiter.datasets import StreamDataset
from fastiter.tokens import TokenBatchSampler, TokenDataset

N, BATCH = 40, 3


class Failing:
    """Each seventh example fails."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if index % 7 == 3:
            raise ValueError(f"broken: {index}")
        return index


class Resumable:
    """A shard that tells where it is."""

    def __init__(self, shard: int) -> None:
        self.at, self.stop = 10 * shard, 10 * shard + 9

    def __iter__(self) -> Iterator[int]:
        while self.at < self.stop:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def halves(epoch: int) -> list[list[int]]:
    """The batches of a function."""
    order = np.random.default_rng(epoch).permutation(N).tolist()
    return [order[i : i + 2] for i in range(0, N, 2)]


def documents() -> list[list[int]]:
    return [[100 * i + k for k in range(1 + i % 6)] for i in range(60)]


def over(sampler: Callable[[], Any], **given: Any) -> Callable[[Any], Any]:
    """A function that makes an iterator with a sampler."""
    return lambda kind: kind(range(N), BATCH, order_sampler=sampler(), **given)


def of_tokens(**given: Any) -> Callable[[Any], Any]:
    return lambda kind: kind(TokenDataset(documents(), **given), BATCH, shuffle=False)


def of_token_batches(kind: Any) -> Any:
    dataset = TokenDataset(documents(), 8, packing="bfd", seed=1, window=16)
    return kind(dataset, batch_sampler=TokenBatchSampler(dataset, 2))


def of_stream(shard: Any, **given: Any) -> Callable[[Any], Any]:
    return lambda kind: kind(StreamDataset(range(6), shard, **given), BATCH)


def of_lists(kind: Any) -> Any:
    pa = pytest.importorskip("pyarrow")
    return kind(pa.table({"x": range(N)}), BATCH, order_sampler=ShuffleOrderSampler(1))


#: functions that make an iterator of a class
CASES: dict[str, Callable[[Any], Any]] = {
    "in order": lambda kind: kind(range(N), BATCH, shuffle=False),
    "without a seed": lambda kind: kind(range(N), BATCH),
    "function": over(lambda: lambda order, position: order[::-1]),
    "shuffle": over(lambda: ShuffleOrderSampler(7)),
    "virtual": over(lambda: VirtualShuffleOrderSampler(7)),
    "block": over(lambda: BlockShuffleOrderSampler(7, block_size=4, window=3)),
    "weighted": over(lambda: WeightedOrderSampler(np.arange(1, N + 1), 7)),
    "mixture": over(lambda: MixtureOrderSampler([30, 10], [0.7, 0.3], 7, schedule=[(9, [1, 1])])),
    "buckets": lambda kind: kind(
        range(N), batch_sampler=LengthBucketBatchSampler(np.arange(N), batch_size=3, seed=7)
    ),
    "batches": lambda kind: kind(range(N), batch_sampler=halves),
    "seeds": over(lambda: ShuffleOrderSampler(7), seed_examples=True),
    "limits": over(lambda: ShuffleOrderSampler(7), drop_last=True),
    "ranks": over(lambda: ShuffleOrderSampler(7), rank=1, num_ranks=2, tail="mask"),
    "skipped": lambda kind: kind(
        Failing(), BATCH, order_sampler=ShuffleOrderSampler(7), on_error="skip", skip_limit=None
    ),
    "table": of_lists,
    "windows": of_tokens(length=4),
    "documents": of_tokens(),
    "concat": of_tokens(length=8, packing="concat"),
    "packed": of_tokens(length=8, packing="bfd"),
    "packed with a seed": of_tokens(length=8, packing="bfd", seed=3, window=20),
    "token batches": of_token_batches,
    "stream": of_stream(lambda shard: iter(range(10 * shard, 10 * shard + 9))),
    "stream with a seed": of_stream(
        lambda shard: iter(range(10 * shard, 10 * shard + 9)), seed=1, window=5, interleave=2
    ),
    "stream of states": of_stream(Resumable, interleave=2),
}


def rows_of(batches: list[Any]) -> list[Any]:
    """Batches as lists that compare."""
    return json.loads(json.dumps(batches, default=lambda value: np.asarray(value).tolist()))


def taken(iterator: Any, count: int) -> list[Any]:
    return rows_of([next(iterator) for _ in range(count)])
