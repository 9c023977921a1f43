"""The next epoch of buckets is planned by a thread while the current one is delivered."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from typing import Any

import numpy as np
import pytest

from fastiter import LengthBucketBatchSampler, MultiprocessIterator, SerialIterator
from fastiter._workers import start_method, thread_limits

N = 1 << 18  # from which on it is worth a thread
SIZE = 1 << 14
STEPS = N // SIZE
LENGTHS = np.random.RandomState(0).randint(1, 99, N)


class Watched(LengthBucketBatchSampler):
    """Notes which threads plan which epochs; those beside the main thread wait for `may_plan`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(LENGTHS, batch_size=SIZE, seed=0, **arguments)
        self.planned: list[tuple[int, bool]] = []  # the epoch, and whether in the main thread
        self.may_plan = threading.Event()

    def _plan_batches(self, rows: Any, n_examples: int, number: int, cutting: Any) -> Any:
        is_main = threading.current_thread() is threading.main_thread()
        self.planned.append((number, is_main))
        assert is_main or self.may_plan.wait(60)
        return super()._plan_batches(rows, n_examples, number, cutting)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "may_plan": None}


class Rows:
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: Any) -> list[int]:
        return list(indices)


def iterator_of(sampler: Any, kind: Any = SerialIterator, **arguments: Any) -> Any:
    return kind(Rows(), batch_sampler=sampler, **arguments)


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    small = LengthBucketBatchSampler(LENGTHS, batch_size=SIZE, seed=0)
    iterator = iterator_of(small)
    return [list(iterator.batch_at(step).indices) for step in range(3 * STEPS)]


def test_the_next_epoch_is_planned_beside_the_loop(expected: list[Any]) -> None:
    sampler = Watched()
    sampler.may_plan.set()
    iterator = iterator_of(sampler)
    assert [list(next(iterator)) for _ in range(STEPS // 2)] == expected[: STEPS // 2]
    assert sampler.planned == [(0, True)]  # a short run plans nothing that it does not need
    rest = expected[STEPS // 2 :]
    assert [list(next(iterator)) for _ in rest] == rest
    assert sampler.planned == [(0, True), (1, False), (2, False), (3, False)]
    # Loaded in the second half, and at an address of the next epoch.
    state = iterator.state_dict()
    iterator.seek(STEPS - 3)
    assert [list(next(iterator)) for _ in range(2)] == expected[STEPS - 3 : STEPS - 1]
    sampler.planned.clear()
    assert list(iterator.batch_at(STEPS + 2).indices) == expected[STEPS + 2]
    assert [list(next(iterator)) for _ in range(9)] == expected[STEPS - 1 : STEPS + 8]
    assert (1, True) not in sampler.planned
    iterator.load_state_dict(state)
    assert iterator.step == 3 * STEPS


def test_each_loop_over_one_epoch_plans_it_once(expected: list[Any]) -> None:
    sampler = Watched()
    sampler.may_plan.set()
    iterator = iterator_of(sampler, repeat=False)
    for epoch in range(3):
        rows = [list(batch) for batch in iterator]
        assert rows == expected[epoch * STEPS : (epoch + 1) * STEPS]
    planned = [number for number, _ in sampler.planned]
    assert planned in ([0, 1, 2], [0, 1, 2, 3])  # the last one by a thread


def test_forks_copies_and_ends_while_a_thread_plans(
    expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(threading.enumerate())
    sampler = Watched()
    with iterator_of(sampler, MultiprocessIterator, n_processes=1, context="fork") as iterator:
        rows = [list(next(iterator)) for _ in range(STEPS - 4)]
        assert (1, False) in sampler.planned
        with monkeypatch.context() as patch:
            # Threads that other tests have left, native ones too, are no matter of this one.
            ours = [thread for thread in threading.enumerate() if thread not in before]
            assert [thread.name for thread in ours] == ["fastiter-epoch"]
            patch.setattr(threading, "enumerate", lambda: [threading.current_thread(), *ours])
            assert start_method.why_not_fork(thread_limits.native_threads()) is None
        following = expected[STEPS - 4 : STEPS + 2]
        sampler.planned.clear()
        twins = copy.copy(iterator), pickle.loads(pickle.dumps(iterator))
        sampler.may_plan.set()
        for twin in twins:
            with twin:
                assert [list(next(twin)) for _ in following] == following
    assert rows == expected[: STEPS - 4]
    # A child has no such thread, and plans the epoch itself.
    sampler = Watched()
    serial = iterator_of(sampler)
    rows = [list(next(serial)) for _ in range(STEPS - 1)]
    assert sampler.planned[-1] == (1, False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if [list(next(serial)) for _ in range(3)] == expected[STEPS - 1 :][:3] else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # A state that is left while its next epoch is planned, and an end: nothing waits.
    serial.seek(0)
    serial.finalize()
    sampler.may_plan.set()
    for thread in threading.enumerate():
        if thread.name == "fastiter-epoch":
            thread.join(60)
            assert not thread.is_alive()
