"""States are plain data: whatever transports them, the rest of the batches is the same."""

from __future__ import annotations

import functools
import json
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.grid_kinds import Gated
from support.transports import TRANSPORTS

from fastiter import (
    BlockShuffleOrderSampler,
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    VirtualShuffleOrderSampler,
    WeightedOrderSampler,
)
from fastiter.datasets import StreamDataset
from fastiter.tokens import TokenBatchSampler, TokenDataset

N, BATCH = 40, 3
BEFORE, AFTER = 4, 6  # batches, of one epoch
PLAIN = (dict, list, int, float, bool, str, type(None))

ITERATORS: dict[str, Any] = {
    "serial": SerialIterator,
    "threads": functools.partial(MultithreadIterator, n_threads=2),
    "processes": functools.partial(MultiprocessIterator, n_processes=1, context="fork"),
}


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
    """What makes an iterator with a sampler."""
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


#: what makes an iterator of a class
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


def check_plain(value: Any, where: str = "state") -> None:
    assert type(value) in PLAIN, (where, type(value), value)
    if isinstance(value, dict):
        for key, each in value.items():
            assert type(key) is str, (where, key)
            check_plain(each, f"{where}[{key!r}]")
    if isinstance(value, list):
        for each in value:
            check_plain(each, where)


def rows_of(batches: list[Any]) -> list[Any]:
    """Batches as lists that compare."""
    return json.loads(json.dumps(batches, default=lambda value: np.asarray(value).tolist()))


def taken(iterator: Any, count: int) -> list[Any]:
    return rows_of([next(iterator) for _ in range(count)])


def check_transported(state: Any, make: Callable[[], Any], expected: list[Any], way: str) -> None:
    check_plain(state)
    with make() as resumed:
        resumed.load_state_dict(TRANSPORTS[way](state))
        check_plain(resumed.state_dict())
        assert taken(resumed, len(expected)) == expected


def transported() -> Iterator[Any]:
    """Each kind of order by each transport from a serial iterator, from others by one; the rest
    nightly."""
    for kind in ITERATORS:
        for number, case in enumerate(CASES):
            for turn, way in enumerate(TRANSPORTS):
                nightly = kind != "serial" and turn != number % len(TRANSPORTS)
                yield pytest.param(kind, case, way, marks=[pytest.mark.stress] if nightly else [])


@pytest.mark.parametrize(("kind", "case", "way"), list(transported()))
def test_a_state_goes_on_after_any_transport(kind: str, case: str, way: str) -> None:
    def make() -> Any:
        return CASES[case](ITERATORS[kind])

    with make() as iterator:
        taken(iterator, BEFORE)
        state, expected = iterator.state_dict(), taken(iterator, AFTER)
    check_transported(state, make, expected, way)


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("seed", [7, None])
def test_a_state_goes_on_after_a_dataset_has_grown(seed: int | None, way: str) -> None:
    def make(n: int) -> Any:
        sampler = None if seed is None else ShuffleOrderSampler(seed)
        return SerialIterator(range(n), BATCH, order_sampler=sampler)

    former, grown = make(N // 2), make(N)
    taken(former, BEFORE)
    grown.load_state_dict(TRANSPORTS[way](former.state_dict()), strict=False)
    assert taken(grown, 2) == taken(former, 2)  # within the epoch that was begun
    taken(grown, 2)
    state, expected = grown.state_dict(), taken(grown, AFTER)
    check_transported(state, lambda: make(N), expected, way)


@pytest.mark.parametrize("way", TRANSPORTS)
@pytest.mark.parametrize("case", ["shuffle", "without a seed", "buckets"])
def test_a_state_with_holes_goes_on_after_any_transport(case: str, way: str) -> None:
    gate = multiprocessing.get_context("fork").Event()

    def make(slow: int | None = None) -> Any:
        def iterator_of(dataset: Any, *args: Any, **given: Any) -> Any:
            if slow is not None:
                dataset = Gated(dataset, slow, gate)
            options = {"n_processes": 3, "context": "fork", "in_order": False, "repeat": False}
            return MultiprocessIterator(dataset, *args, **given, **options)

        np.random.seed(5)  # of the order without a seed
        return CASES[case](iterator_of)

    with CASES[case](SerialIterator) if case != "without a seed" else make() as first:
        slow = next(first)[0]
    with make(slow) as iterator:
        taken(iterator, 2)
        state = iterator.state_dict()
        assert state["cuts"]["delivered"]
        gate.set()
        expected = sorted(rows_of(list(iterator)))
    with make() as resumed:
        resumed.load_state_dict(TRANSPORTS[way](state))
        found = taken(resumed, 1)
        for each in state, resumed.state_dict():
            check_plain(each)
        assert sorted(found + rows_of(list(resumed))) == expected


def test_a_state_is_small() -> None:
    """With a seed a few numbers; without one, a little more than three bytes for each of up to
    2**24 examples."""
    for case, make in CASES.items():
        state = make(SerialIterator).state_dict()
        if case not in ("without a seed", "function"):
            assert len(json.dumps(state)) <= 512, case
    state = SerialIterator(range(100_000), 4).state_dict()
    assert len(json.dumps(state)) < 4.1 * 100_000


def test_a_damaged_order_is_refused() -> None:
    iterator = SerialIterator(range(N), BATCH)
    state = iterator.state_dict()
    for order in ("", "1", "0:AAAA", "9:AAAA", "x:AAAA", "1:A", "8:////////", state["order"][:-8]):
        with pytest.raises(ValueError, match="order"):
            iterator.load_state_dict({**state, "order": order})
