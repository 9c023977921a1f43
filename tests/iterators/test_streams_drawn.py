"""Streams whose examples draw from the global generators, whose shards fail, or take too long."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    Replacement,
    SerialIterator,
    SkipLimitError,
)
from fastiter.datasets import StreamDataset

KINDS = {
    "serial": (SerialIterator, {}),
    "threads": (MultithreadIterator, {"n_threads": 2}),
    "processes": (MultiprocessIterator, {"n_processes": 2, "context": "fork"}),
}


def drawing(shard: int) -> Iterator[tuple[int, int, float, float]]:
    for i in range(random.randrange(5, 60)):
        yield shard, i, random.random(), float(np.random.standard_normal())


class Items(Sequence[Any]):
    """A shard with indices, whose examples draw."""

    def __init__(self, shard: int) -> None:
        self.shard, self.size = shard, random.randrange(5, 60)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: Any) -> tuple[int, int, float]:
        return self.shard, i, random.random()


def drawing_stream(open_shard: Any = drawing, seed: int | None = 3) -> StreamDataset:
    return StreamDataset(range(7), open_shard, seed=seed, interleave=2, window=9 if seed else 1)


def with_noise(examples: list[Any]) -> list[Any]:
    return [*examples, random.random()]


@pytest.mark.parametrize("open_shard", [drawing, Items])
@pytest.mark.processes
def test_global_generators_are_seeded_for_each_example_of_any_shard(open_shard: Any) -> None:
    data = drawing_stream(open_shard)
    arguments: dict[str, Any] = {"seed_examples": True, "converter": with_noise}
    expected: list[Any] = []
    for iterator_class, more in KINDS.values():
        before = random.getstate(), np.random.get_state()[1].tolist()
        with iterator_class(data, 5, **arguments, **more) as iterator:
            batches = [next(iterator) for _ in range(80)]
            iterator.reset()
            batches += [next(iterator) for _ in range(3)]
        assert before == (random.getstate(), np.random.get_state()[1].tolist())
        expected = expected or batches
        assert batches == expected
    first = SerialIterator(data, 5, **arguments)
    for _ in range(37):
        next(first)
    state = json.loads(json.dumps(first.state_dict()))
    ranks = [SerialIterator(data, 2, seed_examples=True, rank=r, num_ranks=2) for r in range(2)]
    for iterator in ranks:
        iterator.load_state_dict(state)
    rows = [row for _ in range(9) for iterator in ranks for row in next(iterator)]
    flat = [row for batch in expected[37:] for row in batch[:-1]]
    assert rows == flat[: len(rows)]
    with pytest.raises(ValueError, match="seed_examples is None"):
        first.load_state_dict(SerialIterator(data, 5).state_dict())


def test_the_seed_of_a_stream_is_that_of_its_examples() -> None:
    with pytest.raises(ValueError, match="second seed, besides that of the StreamDataset"):
        SerialIterator(drawing_stream(), 5, seed_examples=4)
    with pytest.raises(ValueError, match="set seed= of the StreamDataset"):
        SerialIterator(drawing_stream(seed=None), 5, seed_examples=True)
    seeds: list[int] = []
    seeded, again = (
        SerialIterator(drawing_stream(seed=None), 5, seed_examples=seed) for seed in (4, 4)
    )
    assert next(seeded) == next(again)
    next(SerialIterator(drawing_stream(), 1, seed_examples=seeds.append))
    assert len({*seeds}) == len(seeds) > 1


def failing(shard: int) -> Iterator[tuple[int, int]]:
    for i in range(20):
        if (shard, i) in ((2, 7), (3, 0)):
            raise OSError(f"broken at {i}")
        yield shard, i


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lengths", [None, [20] * 5])
def test_what_is_left_of_a_shard_that_fails_is_skipped(kind: str, lengths: Any) -> None:
    iterator_class, more = KINDS[kind]
    data = StreamDataset(range(5), failing, seed=1, interleave=2, window=8, lengths=lengths)
    arguments = {"on_error": "skip", "skip_limit": 2, **more}
    with iterator_class(data, 6, repeat=False, **arguments) as iterator:
        batches = list(iterator)
        rows = [row for batch in batches for row in batch]
        whole = [(shard, i) for shard in (0, 1, 4) for i in range(20)]
        assert sorted(rows) == sorted([*whole, *((2, i) for i in range(7))])
        skipped = iterator.skipped
    assert sorted((each.index, each.epoch, each.times) for each in skipped) == [
        (2, 0, 1),
        (3, 0, 1),
    ]
    # On from anywhere, each of them counts once.
    state, taken = None, []
    while True:
        one = SerialIterator(data, 6, repeat=False, on_error="skip", skip_limit=2)
        if state is not None:
            one.load_state_dict(state)
        try:
            taken.append(next(one))
        except StopIteration:
            break
        state = json.loads(json.dumps(one.state_dict()))
    assert taken == batches
    assert one.skipped == skipped


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_which_a_failed_shard_leaves_nothing_are_passed_over(kind: str) -> None:
    iterator_class, more = KINDS[kind]
    data = StreamDataset(range(4), failing, lengths=[20] * 4)
    arguments: dict[str, Any] = {"on_error": "skip", "skip_limit": 2, "repeat": False, **more}
    rows = [(shard, i) for shard in (0, 1) for i in range(20)] + [(2, i) for i in range(7)]
    with iterator_class(data, 3, converter=np.array, **arguments) as iterator:
        assert [row for batch in iterator for row in batch.tolist()] == [[*row] for row in rows]
    with iterator_class(data, 3, repeat=False, **more) as iterator:
        found: list[Any] = []
        for shard in (2, 3):
            with pytest.raises(OSError) as caught:
                found.extend(iterator)
            facts = f"{getattr(caught.value, '__notes__', '')}{caught.value.__cause__}"
            assert f"shard {shard}" in facts
        assert next(iterator, None) is None
    assert [row for batch in found for row in batch] == rows
    data = StreamDataset([3], failing, lengths=[20])
    iterator = iterator_class(data, 3, **{**arguments, "repeat": True})
    with iterator, pytest.raises(SkipLimitError, match="all of the last 21 examples"):
        next(iterator)


class Seekable:
    """A shard that goes to any of its examples, of which some fail."""

    def __init__(self, shard: int) -> None:
        self.shard, self.at = shard, 0

    def seek(self, at: int) -> None:
        self.at = at

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for i in range(self.at, 20):
            yield Failing(self.shard)[i]


class Failing(Items):
    def __init__(self, shard: int) -> None:
        self.shard, self.size = shard, 20

    def __getitem__(self, i: int) -> tuple[int, int]:
        if (self.shard, i) in ((2, 7), (3, 0)):
            raise OSError(f"broken at {i}")
        return self.shard, i


@pytest.mark.parametrize("open_shard", [Seekable, Failing])
def test_a_shard_that_was_skipped_stays_so_where_a_state_is_behind_it(open_shard: Any) -> None:
    data = StreamDataset(range(4), open_shard, lengths=[20] * 4, interleave=2, seed=1, window=3)
    arguments: dict[str, Any] = {"on_error": "skip", "skip_limit": 2, "repeat": False}
    batches = list(SerialIterator(data, 6, **arguments))
    for n_batches in range(1, len(batches)):
        iterator = SerialIterator(data, 6, **arguments)
        assert [next(iterator) for _ in range(n_batches)] == batches[:n_batches]
        other = SerialIterator(data, 6, **arguments)
        other.load_state_dict(iterator.state_dict())
        assert [*other] == batches[n_batches:]
        assert {each.times for each in other.skipped} == {1}


def unsendable(shard: int) -> Iterator[Any]:
    for i in range(70):
        if (shard, i) == (1, 45):
            yield (each for each in "no generator can be pickled")
        yield shard, i


@pytest.mark.parametrize("lengths", [None, [70, 71, 70]])
@pytest.mark.processes
def test_rows_before_one_that_cannot_be_pickled_are_delivered(lengths: Any) -> None:
    data = StreamDataset(range(3), unsendable, interleave=2, lengths=lengths)
    iterator = MultiprocessIterator(data, 8, repeat=False, n_processes=2, context="fork")
    rows: list[Any] = []
    with iterator:
        with pytest.raises(TypeError, match="generator") as caught:
            for batch in iterator:
                rows += batch
        if hasattr(caught.value, "__notes__"):
            assert "shard 1, example 45" in caught.value.__notes__
        rows += [row for batch in iterator for row in batch]
    count = {0: 70, 1: 45, 2: 70}
    assert sorted(rows) == [(shard, i) for shard in range(3) for i in range(count[shard])]


def test_rows_that_fill_up_a_batch_do_not_count_where_a_shard_fails() -> None:
    data = StreamDataset([0, 2], failing, lengths=[3, 8])  # of which the last is lacking
    arguments: dict[str, Any] = {"repeat": False, "tail": "mask", "num_ranks": 3}
    last: list[Any] = []
    for rank in range(3):
        iterator = SerialIterator(data, 2, on_error="skip", skip_limit=2, rank=rank, **arguments)
        *_, batch = iterator
        assert iterator.valid is not None
        last.append((batch, iterator.valid.tolist()))
    assert last[0] == ([(2, 3), (2, 4)], [True, True])
    assert last[2] == ([(0, 0)], [False])


def test_too_many_shards_that_fail_and_what_a_callable_decides() -> None:
    data = StreamDataset(range(5), failing)
    with pytest.raises(SkipLimitError, match=r"2 shards of epoch 0 .* shard number 3"):
        list(SerialIterator(data, 6, repeat=False, on_error="skip", skip_limit=0.2))
    told: list[tuple[int, str]] = []

    def decide(shard: int, error: Exception) -> Any:
        told.append((shard, str(error)))
        return "skip" if shard == 2 else "raise"

    iterator = SerialIterator(data, 6, repeat=False, on_error=decide)
    rows: list[Any] = []
    with pytest.raises(OSError, match="broken at 0"):
        for batch in iterator:
            rows += batch
    rows += [row for batch in iterator for row in batch]
    assert len(rows) == 67
    assert told == [(2, "broken at 7"), (3, "broken at 0")]
    with pytest.raises(TypeError, match=r"Replacement for shard 2"):
        list(
            SerialIterator(
                data, 6, repeat=False, on_error=lambda shard, error: Replacement((shard, 0))
            )
        )


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_part_that_takes_too_long_is_read_again(kind: str, tmp_path: Path) -> None:
    def open_shard(shard: int) -> Iterator[tuple[int, int]]:
        for i in range(20):
            if (shard, i) == (1, 9) and not (tmp_path / "tried").exists():
                (tmp_path / "tried").touch()
                while not (tmp_path / "over").exists():
                    threading.Event().wait(0.02)
            yield shard, i

    iterator_class, more = KINDS[kind]
    data = StreamDataset(range(3), open_shard, seed=1, interleave=2)
    limits: dict[str, Any] = {"dataset_timeout": 0.02, "on_timeout": "retry", "n_retries": 9}
    expected = [(shard, i) for shard in range(3) for i in range(20)]
    with iterator_class(data, 8, repeat=False, **limits, **more) as iterator:
        rows = [row for batch in iterator for row in batch]
    assert os.listdir(tmp_path) == ["tried"]
    assert sorted(rows) == expected
    assert rows == [row for batch in SerialIterator(data, 8, repeat=False) for row in batch]
    (tmp_path / "over").touch()
    for thread in threading.enumerate():  # also the one that was left behind
        if thread.name.startswith("fastiter-"):
            thread.join(60)
