"""Ordinary random numbers: ``seed_examples`` seeds the global generators for each example."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastiter import (
    LengthBucketBatchSampler,
    MixtureOrderSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    WeightedOrderSampler,
)
from fastiter.datasets import TransformDataset, TupleDataset

N = 23


class Drawing:
    """Examples that draw from all generators that there are."""

    def __init__(self, n: int = N) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> tuple[float, ...]:
        return i, random.random(), random.gauss(0, 1), float(np.random.rand()), np.random.randn()


class InCalls:
    def __len__(self) -> int:
        return N

    def __getitems__(self, indices: list[int]) -> list[tuple[float, ...]]:
        assert len(indices) == 1
        return [Drawing()[i] for i in indices]


def drawn_too(examples: list[Any]) -> tuple[list[Any], float]:
    return examples, random.random() + np.random.rand()


def repeating(epoch: int) -> list[np.ndarray]:
    return [np.array([epoch, 1, 1]), np.array([2, 1, 7, 7])]


def samplers() -> dict[str, dict[str, Any]]:
    lengths = np.arange(N) % 7 + 1
    mixture = MixtureOrderSampler([20, 3], [0.5, 0.5], 1, schedule=[(31, [0.2, 0.8])])
    buckets = LengthBucketBatchSampler(lengths, batch_size=4, seed=0)
    return {
        "shuffle": {"order_sampler": ShuffleOrderSampler(3), "batch_size": 5},
        "mixture": {"order_sampler": mixture, "batch_size": 5},
        "weights": {"order_sampler": WeightedOrderSampler(np.ones(N), 2), "batch_size": 5},
        "larger than an epoch": {"order_sampler": ShuffleOrderSampler(3), "batch_size": 50},
        "buckets": {"batch_sampler": buckets},
        "function": {"batch_sampler": repeating},
    }  # fmt: skip


def rows(batch: Any) -> list[Any]:
    return batch[0] if isinstance(batch, tuple) else batch


@pytest.mark.parametrize("kind", samplers())
def test_all_iterators_give_the_same_numbers_and_no_two_draws_have_equal_ones(kind):
    def make(cls: Any, **more: Any) -> Any:
        converter = None if kind == "shuffle" else drawn_too
        return cls(Drawing(), **samplers()[kind], seed_examples=True, converter=converter, **more)

    iterators = [
        make(SerialIterator),
        make(MultithreadIterator, n_threads=3),
        make(MultiprocessIterator, n_processes=0),
        make(MultiprocessIterator, n_processes=2, context="fork"),
    ]
    states = random.getstate(), np.random.get_state(legacy=False)
    seen = []
    for step in range(14):
        first, *others = [next(iterator) for iterator in iterators]
        assert all(other == first for other in others)
        seen += [row[1:] for row in rows(first)]
        for iterator in iterators:
            address = iterator.batch_at(step)
            assert iterator.address.seeds.tolist() == address.seeds.tolist()
        for row, seed in zip(rows(first), address.seeds.tolist(), strict=True):
            assert row[1] == random.Random(seed).random()
            assert row[3] == np.random.RandomState(seed & 0xFFFFFFFF).rand()
    assert random.getstate() == states[0]
    np.testing.assert_equal(np.random.get_state(legacy=False), states[1])
    assert len(set(seen)) == len(seen)
    for iterator in iterators:
        iterator.close()


def test_the_same_after_a_resume_in_copies_and_with_other_ranks():
    def make(cls: Any = SerialIterator, batch_size: int = 6, **more: Any) -> Any:
        sampler = WeightedOrderSampler(np.ones(N), 2)
        return cls(Drawing(), batch_size, order_sampler=sampler, seed_examples=True, **more)

    whole = make()
    for _ in range(3):
        next(whole)
    state = whole.state_dict()
    expected = [row for _ in range(6) for row in next(whole)]
    on_ranks = [make(batch_size=2, rank=rank, num_ranks=3) for rank in range(3)]
    for iterator in on_ranks:
        iterator.load_state_dict(state)
    assert [row for _ in range(6) for it in on_ranks for row in next(it)] == expected
    ahead = make(MultiprocessIterator, batch_size=4, n_processes=1, context="spawn", n_prefetch=3)
    with ahead:
        ahead.load_state_dict(state)
        found = next(ahead)
        copied = pickle.loads(pickle.dumps(ahead))
        assert found + [row for _ in range(8) for row in next(copied)] == expected
        copied.close()


def test_a_dataset_that_fetches_many_is_asked_for_one_at_a_time():
    iterators = [
        cls(data, 5, order_sampler=ShuffleOrderSampler(0), seed_examples=True)
        for data in (Drawing(), InCalls())
        for cls in (SerialIterator, MultithreadIterator)
    ]
    for _ in range(8):
        first, *others = [next(iterator) for iterator in iterators]
        assert all(other == first for other in others)


class Failing(Drawing):
    """One example fails; another kills the first worker that fetches it."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker

    def __getitem__(self, i: int) -> tuple[float, ...]:
        example = super().__getitem__(i)
        if i == 3:
            raise KeyError(i)
        if i == 7 and not self.marker.exists():
            self.marker.touch()
            os._exit(1)
        return example


def test_what_is_fetched_again_or_beside_a_failure_draws_the_same(tmp_path):
    arguments: dict[str, Any] = {
        "order_sampler": None, "shuffle": False, "seed_examples": 5, "on_error": "skip",
        "converter": drawn_too,
    }  # fmt: skip
    with MultiprocessIterator(
        Failing(tmp_path / "died"), 6, n_processes=2, context="fork", **arguments
    ) as iterator:
        found = [next(iterator) for _ in range(5)]
    assert (tmp_path / "died").exists()
    serial = SerialIterator(Failing(tmp_path / "died"), 6, **arguments)
    assert [next(serial) for _ in range(5)] == found


def test_a_callable_is_called_with_the_seed_and_an_int_is_the_seed():
    seeds: list[int] = []
    iterator = SerialIterator(
        Drawing(), 4, order_sampler=ShuffleOrderSampler(1), seed_examples=seeds.append
    )
    next(iterator)
    assert seeds == iterator.address.seeds.tolist()
    assert iterator.seed_examples == seeds.append
    seven, same, eight = (
        SerialIterator(Drawing(), 4, shuffle=False, seed_examples=seed) for seed in (7, 7, 8)
    )
    first = next(seven)
    assert first == next(same) != next(eight)
    assert seven.batch_at(9).seeds.tolist() == same.batch_at(9).seeds.tolist()


def test_generators_are_kept_when_the_dataset_raises_or_is_interrupted():
    class Interrupted(Drawing):
        def __getitem__(self, i: int) -> tuple[float, ...]:
            if i == 2:
                raise KeyboardInterrupt
            return super().__getitem__(i)

    random.seed(0)
    random.gauss(0, 1)  # which keeps a second number
    states = random.getstate(), np.random.get_state()[1].tolist()
    iterator = SerialIterator(Interrupted(), 4, shuffle=False, seed_examples=1)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states
    assert iterator.step == 0


def noisy(example: Any) -> tuple[int, float]:
    return int(example[0]), random.random()


def test_datasets_of_columns_stay_columns_and_transforms_of_them_draw():
    columns = TupleDataset(np.arange(N), np.arange(N) * 2.0)
    for data in (columns, TransformDataset(columns, noisy)):
        iterators = [
            SerialIterator(data, 4, shuffle=False, seed_examples=1),
            MultithreadIterator(data, 4, shuffle=False, seed_examples=1),
            MultiprocessIterator(data, 4, shuffle=False, seed_examples=1, n_processes=2),
        ]
        for _ in range(8):
            first, *others = [next(iterator) for iterator in iterators]
            assert all(other == first for other in others)
        iterators[-1].close()


def test_torch_draws_the_same_numbers():
    torch = pytest.importorskip("torch")

    class Random(Drawing):
        def __getitem__(self, i: int) -> float:  # type: ignore[override]
            return float(torch.rand(()))

    before = torch.get_rng_state()
    arguments: dict[str, Any] = {"shuffle": False, "seed_examples": 2}
    serial = SerialIterator(Random(), 5, **arguments)
    with MultiprocessIterator(Random(), 5, n_processes=2, context="fork", **arguments) as iterator:
        for _ in range(6):
            assert next(serial) == next(iterator)
    assert torch.equal(torch.get_rng_state(), before)


def test_wrong_arguments_say_what_to_give():
    sampler = ShuffleOrderSampler(0)
    with pytest.raises(ValueError, match="use seed_examples=True"):
        SerialIterator(Drawing(), 4, order_sampler=sampler, seed_examples=3)
    with pytest.raises(TypeError, match="seed_examples must be True, a seed or a function"):
        SerialIterator(Drawing(), 4, seed_examples="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use MultiprocessIterator"):
        MultithreadIterator(Drawing(), 4, dataset_timeout=1, on_timeout="retry", seed_examples=True)
