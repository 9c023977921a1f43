"""Whatever changes between the parts of a run, its rows are those of a run in one piece."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
from drawn import draw_examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.grid_kinds import KINDS, Gated, N, logged, make, run_with_a_log

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator

PROCESSES = functools.partial(MultiprocessIterator, context="fork")

#: settings of the parts of a run: class, number of ranks, arguments
CHANGES: dict[str, list[tuple[Any, int, dict[str, Any]]]] = {
    "workers": [(PROCESSES, 1, {"n_processes": n}) for n in (4, 1)],
    "ranks": [
        (PROCESSES, 2, {"n_processes": 1}),
        (SerialIterator, 3, {}),
        (PROCESSES, 1, {"n_processes": 1}),
    ],
    "batch size": [(PROCESSES, 1, {"n_processes": 2, "batch_size": n}) for n in (32, 48)],
    "prefetch": [(PROCESSES, 1, {"n_processes": 2, "n_prefetch": n}) for n in (7, 1)],
    "start method": [
        (MultiprocessIterator, 1, {"n_processes": 1, "context": context})
        for context in ("fork", "forkserver")
    ],
    "kind of workers": [
        (PROCESSES, 1, {"n_processes": 2}),
        (MultithreadIterator, 1, {"n_threads": 3}),
        (SerialIterator, 1, {}),
    ],
}

_MOST = 14  # steps of a part: more than an epoch has


def rows_of(kind: str, parts: list[tuple[Any, int, dict[str, Any]]], cuts: list[int]) -> list[Any]:
    """The rows of all steps and ranks, one after another; the parts have so many steps."""
    rows, state = [], None
    for (iterator_class, n_ranks, arguments), n_steps in zip(parts, cuts, strict=True):
        iterators = [
            make(kind, iterator_class, rank=rank, num_ranks=n_ranks, **arguments)
            for rank in range(n_ranks)
        ]
        for iterator in iterators:
            if state is not None:
                iterator.load_state_dict(state)
        for _ in range(n_steps):
            for iterator in iterators:
                rows += next(iterator)
        states = [iterator.state_dict() for iterator in iterators]
        state = json.loads(json.dumps(states[0]))
        for each in states:
            assert {**each, "skipped": 0} == {**states[0], "skipped": 0}
        for iterator in iterators:
            iterator.finalize()
    return rows


@functools.cache
def uninterrupted(kind: str) -> list[Any]:
    """The rows of a run in one thread."""
    iterator = make(kind, SerialIterator)
    return [row for _ in range(6 * _MOST) for row in next(iterator)]


def cuts_of(change: str) -> st.SearchStrategy[list[int]]:
    n = len(CHANGES[change])
    return st.lists(st.integers(0, _MOST), min_size=n, max_size=n)


def check(kind: str, change: str, cuts: list[int]) -> None:
    rows = rows_of(kind, CHANGES[change], cuts)
    if kind == "buckets" and change in ("ranks", "batch size"):
        # Batches under other cuts are others: each epoch has each row once all the same.
        for epoch in range(len(rows) // N):
            assert sorted(row[0] for row in rows[epoch * N : (epoch + 1) * N]) == list(range(N))
        left = [row[0] for row in rows[len(rows) // N * N :]]
        assert len({*left}) == len(left)
    else:
        assert rows == uninterrupted(kind)[: len(rows)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.processes
def test_rows_stay_the_same(kind: str, change: str) -> None:
    chance = random.Random(kind + change)
    check(kind, change, [chance.randint(0, _MOST) for _ in CHANGES[change]])


@pytest.mark.parametrize(
    "kind",
    ["map", *(pytest.param(kind, marks=pytest.mark.stress) for kind in KINDS if kind != "map")],
)
def test_rows_stay_the_same_with_spawned_workers(kind: str) -> None:
    part = MultiprocessIterator, 1, {"n_processes": 2, "context": "spawn"}
    rows = rows_of(kind, [(PROCESSES, 1, {"n_processes": 1}), part], [5, 9])
    assert rows == uninterrupted(kind)[: len(rows)]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_stay_the_same_in_the_order_of_their_completion(kind: str) -> None:
    gate = multiprocessing.get_context("fork").Event()
    serial = make(kind, SerialIterator)
    is_stream = kind == "stream"  # whose batches come in order
    start, expected = serial.state_dict(), [next(serial) for _ in range(20)]

    @settings(max_examples=3, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 9))
    def run(slow: int, before: int, after: int) -> None:
        index = 0 if is_stream else int(serial.batch_at(slow).indices[0])

        def wrap(dataset: Any) -> Any:
            return dataset if is_stream else Gated(dataset, index, gate)

        gate.clear()
        batches, state = [], start
        for n_processes, n_steps in (3, before), (2, after):
            arguments = {"n_processes": n_processes, "in_order": False}
            with make(kind, PROCESSES, wrap=wrap, **arguments) as iterator:
                iterator.load_state_dict(state)
                batches += [next(iterator) for _ in range(n_steps)]
                state = json.loads(json.dumps(iterator.state_dict()))
                if not gate.is_set() and not is_stream and before > slow:
                    assert state["missing"]["delivered"]
                gate.set()
        last = make(kind, SerialIterator)
        last.load_state_dict(state)
        while "missing" in last.state_dict():
            batches.append(next(last))
        assert sorted(batches) == sorted(expected[: len(batches)])

    run()


@pytest.mark.stress
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_rows_stay_the_same_at_any_cut(kind: str, change: str) -> None:
    @draw_examples(30, suppress_health_check=list(HealthCheck))
    @given(cuts_of(change))
    def run(cuts: list[int]) -> None:
        check(kind, change, cuts)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_that_is_killed_goes_on(kind: str, tmp_path: Path) -> None:
    chance = random.Random(kind)
    context, path = multiprocessing.get_context("fork"), tmp_path / "log"
    for is_last in (False, False, True):
        report, told = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            program = context.Process(target=run_with_a_log, args=(kind, path, 25, told))
            program.start()
        os.close(told)
        for _ in range(99 if is_last else chance.randrange(11)):
            if not os.read(report, 1):
                break
        if not is_last:
            program.join(chance.random() * 0.02)  # some instant, from its start to a few steps on
            program.kill()
        program.join()
        os.close(report)
    rows = [tuple(row) for batch, _ in logged(path) for row in batch]
    assert len(logged(path)) == 25
    assert rows == uninterrupted(kind)[: len(rows)]


@pytest.mark.parametrize("kind", ["map", "mixture", "buckets"])
def test_addresses_are_what_was_delivered(kind: str) -> None:
    """1,000 of each."""
    iterators = [
        make(kind, SerialIterator, rank=rank, num_ranks=3, batch_size=4) for rank in range(3)
    ]
    first = {"mixture": [0, 150, 250]}.get(kind, [0])
    delivered = [[next(iterator) for _ in range(200)] for iterator in iterators]
    chance = random.Random(5)
    for _ in range(1000):
        step, rank = chance.randrange(200), chance.randrange(3)
        address = iterators[chance.randrange(3)].batch_at(step, rank=rank)
        rows = [first[row[0] // 1000] + row[0] % 1000 for row in delivered[rank][step]]
        assert (address.step, address.rank, address.indices.tolist()) == (step, rank, rows)
