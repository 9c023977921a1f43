"""Batches as they are complete: ``in_order=False``."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import numpy as np
import pytest

from fastiter import (
    LengthBucketBatchSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
)

N, BATCH = 12, 2
FORK = multiprocessing.get_context("fork")


class Gated:
    """One example waits until the gate is open."""

    def __init__(self, slow: int) -> None:
        self.slow = slow
        self.gate = FORK.Event()

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> int:
        if i == self.slow and not self.gate.wait(20):
            raise TimeoutError
        return i


def iterate(data: Any, cls: Any = MultiprocessIterator, **more: Any) -> Any:
    arguments = {"batch_size": BATCH, "order_sampler": ShuffleOrderSampler(4), "in_order": False}
    if cls is MultiprocessIterator:
        arguments |= {"n_processes": 2, "n_prefetch": 3, "context": "fork"}
    return cls(data, **{**arguments, **more})


def planned(n: int, **more: Any) -> list[list[int]]:
    serial = iterate(range(N), SerialIterator, **more)
    return [next(serial) for _ in range(n)]


@pytest.mark.parametrize("cut", ["batch_size", "buckets"])
def test_an_epoch_goes_on_without_a_slow_batch_and_ends_with_it(cut):
    def more() -> dict[str, Any]:
        sampler = LengthBucketBatchSampler(np.ones(N, int), batch_size=BATCH, seed=1)
        return {"batch_size": None, "order_sampler": None, "batch_sampler": sampler}

    arguments = more if cut == "buckets" else dict
    expected = planned(12, **arguments())
    data = Gated(expected[1][0])
    with iterate(data, **arguments()) as iterator:
        others = [next(iterator)]
        steps = [iterator.address.step]
        for _ in range(4):
            others.append(next(iterator))
            steps.append(iterator.address.step)
            assert (iterator.epoch, iterator.is_new_epoch) == (0, False)
            assert iterator.batch_at(steps[-1]).indices.tolist() == others[-1]
        assert others == [expected[step] for step in steps]
        assert sorted(steps) == [0, 2, 3, 4, 5]
        assert (iterator.step, iterator.current_position) == (1, BATCH)
        data.gate.set()
        assert next(iterator) == expected[1]
        assert (iterator.epoch, iterator.is_new_epoch, iterator.step) == (1, True, 6)
        assert sorted(next(iterator) for _ in range(6)) == sorted(expected[6:])
        assert (iterator.epoch, iterator.is_new_epoch) == (2, True)


def test_a_state_with_holes_gives_the_others_once_and_first():
    expected = planned(13)
    data = Gated(expected[1][0])
    with iterate(data) as iterator:
        taken = [next(iterator) for _ in range(4)]
        state = json.loads(json.dumps(iterator.state_dict()))
        with pytest.raises(ValueError, match=r"use state_dict\(\)"):
            iterator.serialize(lambda key, value: None)
        data.gate.set()
        copied = iterator.__getstate__()
    rest = [batch for batch in expected if batch not in taken]
    for in_order, cls in ((True, SerialIterator), (False, MultithreadIterator), (True, None)):
        other = iterate(range(N), cls or MultiprocessIterator, in_order=in_order)
        other.load_state_dict(state)
        assert next(other) == expected[1]
        again = iterate(range(N), SerialIterator)
        again.load_state_dict(other.state_dict())
        assert [next(other) for _ in range(8)] == rest[1:]
        assert [next(again) for _ in range(8)] == rest[1:]
        other.close()
    clone = MultiprocessIterator.__new__(MultiprocessIterator)
    clone.__setstate__(copied)
    with clone:
        assert sorted(next(clone) for _ in range(2)) == sorted(rest[:2])
        assert sorted(next(clone) for _ in range(6)) == sorted(rest[2:8])
        assert clone.is_new_epoch
    damaged = {**state, "cut": {**state["cut"], "repeat": False}, "missing": {"delivered": 1 << 30}}
    once = iterate(range(N), SerialIterator, repeat=False)
    before = once.state_dict()
    with pytest.raises(ValueError, match="no step"):
        once.load_state_dict(damaged)
    assert once.state_dict() == before
    assert [next(once) for _ in range(6)] == expected[:6]


def test_each_batch_comes_once_when_the_loop_is_left_with_holes_and_steps_are_skipped():
    expected = planned(6)
    data = Gated(expected[0][0])
    with iterate(data, repeat=False, skip_steps=[(2, 4)]) as iterator:
        taken = [next(iterator)]
        state = iterator.state_dict()
        data.gate.set()
        taken += list(iterator)
    assert sorted(taken) == sorted([*expected[:2], *expected[4:]])
    other = iterate(range(N), SerialIterator, repeat=False, skip_steps=[(2, 4)])
    other.load_state_dict(state)
    assert [taken[0], *other] == [expected[1], expected[0], *expected[4:]]
    other.load_state_dict(state)
    other.seek(4)
    assert next(other) == expected[4]
    other.reset()
    assert len(list(other)) == 6


def test_without_a_seed_a_batch_of_two_epochs_waits_for_the_first_one():
    data = Gated(0)
    with iterate(data, order_sampler=None, shuffle=False, batch_size=5) as iterator:
        first = next(iterator)
        assert first == [5, 6, 7, 8, 9]
        data.gate.set()
        assert next(iterator) == [0, 1, 2, 3, 4]
        assert next(iterator) == [10, 11, 0, 1, 2]
        assert iterator.is_new_epoch
