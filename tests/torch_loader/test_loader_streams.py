"""Streams in loaders of torch: the order of the serial iterator, and states that go on anywhere."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastiter import SerialIterator
from fastiter.datasets import StreamDataset

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import default_collate  # noqa: E402

from fastiter.torch import DataLoader  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

SIZES = [7, 0, 5, 12, 1, 9]


def examples(shard: int) -> Iterator[tuple[np.float32, int]]:
    for number in range(100 * shard, 100 * shard + SIZES[shard]):
        if number == 305 and os.environ.get("FASTITER_TEST_FAILS"):
            raise OSError("a broken archive")
        yield np.float32(number), number


def stream(**arguments: Any) -> StreamDataset:
    return StreamDataset(range(len(SIZES)), examples, seed=3, window=4, interleave=2, **arguments)


def rows_of(batch: Any) -> list[int]:
    values, numbers = batch
    assert values.dtype == torch.float32 and values.tolist() == numbers.tolist()
    return numbers.tolist()


def epochs(batch_size: int, n_epochs: int, **arguments: Any) -> list[list[list[int]]]:
    """Rows of the batches of the serial iterator."""
    found = []
    with SerialIterator(stream(), batch_size, repeat=False, **arguments) as iterator:
        for _ in range(n_epochs):
            found.append([[int(number) for _, number in batch] for batch in iterator])
            iterator.reset()
    return found


@pytest.mark.parametrize("n_workers", [0, 1, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "rank", "num_replicas", "tail", "drop_last"),
    [
        (4, 0, 1, "pad", False),
        (5, 0, 1, "pad", True),
        (3, 1, 2, "drop", False),
        (4, 2, 3, "mask", False),
        (5, 1, 2, "pad", True),
    ],
)
def test_batches_are_those_of_the_serial_iterator(
    n_workers, persistent, batch_size, rank, num_replicas, tail, drop_last
):
    loader = DataLoader(
        stream(lengths=SIZES),
        batch_size,
        num_workers=n_workers,
        persistent_workers=persistent and n_workers > 0,
        drop_last=drop_last,
        rank=rank,
        num_replicas=num_replicas,
        tail=tail,
    )
    expected = epochs(
        batch_size, 3, rank=rank, num_ranks=num_replicas, tail=tail, drop_last=drop_last
    )
    for rows in expected:
        assert [rows_of(batch) for batch in loader] == rows
    assert len(loader) == len(expected[0])


def test_each_loop_is_an_epoch_whatever_the_last_one_left():
    loader = DataLoader(stream(), 4, num_workers=1)
    first, second, third, *_ = epochs(4, 4)
    assert [rows_of(batch) for batch in itertools.islice(loader, 2)] == first[:2]
    assert [rows_of(batch) for batch in loader] == second
    iter(loader)  # takes no batch
    assert [rows_of(batch) for batch in loader] == third


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("n_batches", [0, 3, 9, 10, 12])
def test_a_state_goes_on_with_other_workers_batches_and_ranks(n_workers, n_batches):
    """10 batches are an epoch and the first one of the next; at 9 the loop has not been told of the
    end, so that the next one is empty."""
    loader, delivered = DataLoader(stream(), 4, num_workers=n_workers), 0
    for batch in itertools.islice(
        itertools.chain.from_iterable(itertools.repeat(loader)), n_batches
    ):
        delivered += len(rows_of(batch))
    state = json.loads(json.dumps(loader.state_dict()))
    rest = list(itertools.chain.from_iterable(epochs(1, 4)))[delivered:]
    for other_workers, size, num_replicas in [(0, 4, 1), (2, 3, 1), (1, 5, 2)]:
        per_rank = []
        for rank in range(num_replicas):
            other = DataLoader(
                stream(), size, num_workers=other_workers, rank=rank, num_replicas=num_replicas
            )
            other.load_state_dict(state)
            assert other.state_dict() == state
            loops = [[rows_of(batch) for batch in other] for _ in range(2)]
            assert (loops[0] == []) == (n_batches == 9)
            per_rank.append(list(itertools.chain.from_iterable(loops)))
        steps = [list(itertools.chain(*step)) for step in zip(*per_rank, strict=True)]
        # Of what an epoch leaves over, ranks repeat its first rows.
        flat: list[int] = []
        for step in steps:
            if len(step) < size * num_replicas:
                break
            flat += step
        assert [[row] for row in flat] == rest[: len(flat)] and len(flat) >= 8


@pytest.mark.parametrize("n_workers", [0, 1])
def test_after_a_rest_without_a_full_batch_comes_the_next_epoch(n_workers):
    loader = DataLoader(stream(), 4, num_workers=n_workers)
    for _ in itertools.islice(loader, 8):  # of 9
        pass
    state, (_, second, *_) = loader.state_dict(), epochs(4, 2)
    loader = DataLoader(stream(), 4, num_workers=n_workers, drop_last=True)
    loader.load_state_dict(state)
    assert list(loader) == []
    other = DataLoader(stream(), 4, num_workers=n_workers)
    other.load_state_dict(loader.state_dict())
    assert [rows_of(batch) for batch in other] == second


def test_workers_that_persist_go_on_from_a_loaded_state():
    loader = DataLoader(stream(), 4, num_workers=1, persistent_workers=True)
    first, second = epochs(4, 2)
    iterator = iter(loader)
    assert [rows_of(next(iterator)) for _ in range(3)] == first[:3]
    state = loader.state_dict()
    assert [rows_of(batch) for batch in iterator] == first[3:]
    loader.load_state_dict(state)
    assert [rows_of(batch) for batch in loader] == first[3:]
    assert [rows_of(batch) for batch in loader] == second


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_the_loop_though_its_iterator_is_kept(persistent):
    loader = DataLoader(stream(), 4, num_workers=2, persistent_workers=persistent)
    for epoch in epochs(4, 2):
        iterator = iter(loader)
        assert [rows_of(batch) for batch in iterator] == epoch
        n_left = len(multiprocessing.active_children())
        assert n_left == (2 if persistent else 0)
        assert next(iterator, None) is None  # starts none
        assert len(multiprocessing.active_children()) == n_left
    assert loader.stats().batches == 18


def test_states_of_ranks_are_equal_and_small():
    states = []
    for rank in range(2):
        loader = DataLoader(stream(), 3, rank=rank, num_replicas=2)
        next(iter(loader))
        states.append(loader.state_dict())
    assert states[0] == states[1]
    assert len(json.dumps(states[0])) <= 1024
    loader = DataLoader(stream(), 3)
    states.append(loader.state_dict())
    loader.load_state_dict(states[:2])
    with pytest.raises(ValueError, match="states of the ranks of a StreamDataset differ"):
        loader.load_state_dict(states)
    with pytest.raises(ValueError, match="or are none"):
        loader.load_state_dict([])
    assert loader.state_dict() == states[0]


def test_what_is_left_of_a_killed_workers_shards_comes():
    loader = DataLoader(stream(), 4, num_workers=2)
    first, _ = epochs(4, 2)
    iterator = iter(loader)
    found = [rows_of(next(iterator))]
    for worker in loader.stats().workers:
        os.kill(worker.pid, signal.SIGKILL)
    assert found + [rows_of(batch) for batch in iterator] == first


@pytest.mark.parametrize("n_workers", [0, 2])
@pytest.mark.parametrize("lengths", [None, SIZES])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_a_shard_that_fails_is_told_of_and_ends(n_workers, lengths, batch_size, monkeypatch):
    monkeypatch.setenv("FASTITER_TEST_FAILS", "1")
    loader = DataLoader(
        stream(lengths=lengths),
        batch_size,
        collate_fn=None if batch_size else lambda row: default_collate([row]),
        num_workers=n_workers,
        on_error="skip",
        skip_limit=3,
    )
    rows = list(itertools.chain.from_iterable(map(rows_of, loader)))
    every = {100 * shard + at for shard, size in enumerate(SIZES) for at in range(size)}
    assert sorted(rows) == sorted(every - set(range(305, 312)))
    assert [(record.index, record.epoch) for record in loader.skipped] == [(3, 0)]
    again = DataLoader(stream(), 4, on_error="skip", skip_limit=3)
    again.load_state_dict(loader.state_dict())
    assert again.skipped == loader.skipped
    with pytest.raises(OSError, match="a broken archive"):
        list(DataLoader(stream(), 4, num_workers=n_workers))


def test_rows_that_fill_up_a_batch_are_told():
    loader = DataLoader(stream(), 5, rank=1, num_replicas=2, tail="mask")
    assert loader.valid is None
    counted = []
    for batch in loader:
        assert loader.valid.dtype == torch.bool and loader.valid.shape == batch[1].shape
        counted.append(int(loader.valid.sum()))
    assert counted == [5, 5, 5, 2]


class Stopped(BaseException):
    """As a signal handler raises it, in the dataset."""


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("lengths", [None, [5, 5]])
def test_without_workers_the_exception_of_a_handler_loses_nothing(lengths, on_error):
    for number in range(5):
        coming = [Stopped()]

        def opened(shard, number=number, coming=coming):
            for i in range(5):
                if shard == 0 and i == number and coming:
                    raise coming.pop()
                yield 5 * shard + i

        shards = StreamDataset(range(2), opened, lengths=lengths)
        iterator, found = iter(DataLoader(shards, 3, on_error=on_error)), []
        with pytest.raises(Stopped):
            while True:
                found += next(iterator).tolist()
        assert found + torch.cat([*iterator]).tolist() == list(range(10))


def test_without_batches_and_with_a_collate_fn_of_ones_own():
    (expected,) = epochs(1, 1)
    assert [[number] for _, number in DataLoader(stream(), None, num_workers=1)] == expected
    loader = DataLoader(stream(), 3, collate_fn=lambda rows: sum(number for _, number in rows))
    assert sum(loader) == sum(row for (row,) in expected)
    assert loader.stats().examples == len(expected)
    assert loader.stats().interleave == loader.dataset.interleave


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": True},
        {"sampler": [1]},
        {"batch_sampler": [[1]]},
        {"timeout": 3, "num_workers": 1},
        {"hedge": 0.1, "num_workers": 1},
        {"return_indices": True},
        {"on_timeout": "retry", "num_workers": 1},
        {"dataset_timeout": 1.0},
    ],
)
def test_arguments_without_effect_are_refused(arguments):
    with pytest.raises(ValueError, match=next(iter(arguments))):
        DataLoader(stream(), **arguments)


def test_what_has_no_length_says_so():
    with pytest.raises(TypeError, match="lengths="):
        len(DataLoader(stream()))


def test_states_of_other_loaders_are_refused():
    loader, rows = DataLoader(stream(), 4), DataLoader(range(40), 4)
    with pytest.raises(ValueError, match="no StreamDataset"):
        loader.load_state_dict(rows.state_dict())
    with pytest.raises(ValueError, match="StreamDataset"):
        rows.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="another stream"):
        DataLoader(StreamDataset(range(6), examples, seed=4), 4).load_state_dict(
            loader.state_dict()
        )
