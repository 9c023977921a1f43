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
from support.state_cases import BATCH, CASES, N, rows_of, taken
from support.transports import TRANSPORTS

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, ShuffleOrderSampler

BEFORE, AFTER = 4, 6  # batches, of one epoch
PLAIN = (dict, list, int, float, bool, str, type(None))

ITERATORS: dict[str, Any] = {
    "serial": SerialIterator,
    "threads": functools.partial(MultithreadIterator, n_threads=2),
    "processes": functools.partial(MultiprocessIterator, n_processes=1, context="fork"),
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
        assert state["missing"]["delivered"]
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


def test_an_order_that_is_no_permutation_is_refused() -> None:
    for sampler in (None, ShuffleOrderSampler(1)):
        saved = SerialIterator(range(8), 2, order_sampler=ShuffleOrderSampler()).state_dict()
        iterator = SerialIterator(range(8), 2, order_sampler=sampler)
        with pytest.raises(ValueError, match="no permutation"):
            iterator.load_state_dict({**saved, "order": [0] * 8})
