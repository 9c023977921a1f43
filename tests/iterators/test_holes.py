"""States of ``in_order=False``, loaded with another batch size and other ranks."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from support.grid_kinds import N, make

from fastiter import MultiprocessIterator, SerialIterator

SIZE = 8


def ranks_of(kind: str, n: int, size: int = SIZE, **more: Any) -> list[Any]:
    return [
        make(kind, SerialIterator, rank=rank, num_ranks=n, batch_size=size, **more)
        for rank in range(n)
    ]


def with_holes(iterators: list[Any], delivered: list[set[int]]) -> tuple[list[Any], dict[Any, Any]]:
    """The states of ranks that have delivered these steps, as ``in_order=False`` saves them, and
    all batches by step and rank."""
    batches, states = {}, []
    for rank, iterator in enumerate(iterators):
        step = min({*range(99)} - delivered[rank])
        for k in range(30):
            if k == step:
                states.append(json.loads(json.dumps(iterator.state_dict())))
            batches[k, rank] = next(iterator)
        if bits := sum(1 << (k - step) for k in delivered[rank] if k > step):
            states[-1]["missing"] = {"delivered": bits}
    return states, batches


def load(iterators: list[Any], state: Any) -> None:
    for iterator in iterators:
        iterator.load_state_dict(state)


def is_missing(state: dict[str, Any]) -> bool:
    return "missing" in state


@pytest.mark.parametrize("kind", ["map", "mixture", "buckets", "filtered", "transformed"])
def test_batches_that_are_missing_come_first_on_any_numbers_of_ranks(kind: str) -> None:
    serial = make(kind, SerialIterator)
    rows = [row for _ in range(60) for row in next(serial)]
    sizes = st.sampled_from([SIZE, 5, 12])

    @draw_examples(15)
    @given(st.data(), st.integers(1, 3), st.lists(st.tuples(st.integers(1, 4), sizes), min_size=2))
    def run(data: Any, n_ranks: int, later: list[tuple[int, int]]) -> None:
        start, count = data.draw(st.integers(0, 13)), data.draw(st.integers(1, 6))
        steps = st.sets(st.integers(start, start + count + 3), min_size=count, max_size=count)
        delivered = [{*range(start), *data.draw(steps)} for _ in range(n_ranks)]
        states, batches = with_holes(ranks_of(kind, n_ranks), delivered)
        if not any(is_missing(state) for state in states):
            return
        given = [(step, rank) for rank, each in enumerate(delivered) for step in each]
        missing = [key for key in sorted(batches) if key not in {*given}]
        saved, at = states, 0
        for place, (n_ranks, size) in enumerate(later):
            iterators = ranks_of(kind, n_ranks, size)
            load(iterators, saved)
            most = 99 if place == len(later) - 1 else data.draw(st.integers(0, 3))
            for _ in range(most):
                if not is_missing(iterators[0].state_dict()):
                    break
                for iterator in iterators:
                    assert next(iterator) == batches[missing[at]]
                    assert (iterator.address.step, iterator.address.rank) == missing[at]
                    at += 1
            states = [iterator.state_dict() for iterator in iterators]
            assert all({**each, "skipped": 0} == {**states[0], "skipped": 0} for each in states)
            if not is_missing(states[0]):
                break
            saved = json.loads(json.dumps(data.draw(st.sampled_from([states[0], states]))))
        first = [row for key in sorted([*given, *missing[:at]]) for row in batches[key]]
        following = []
        while len(following) < 2 * N:
            ahead = iterators[0].step
            addresses = [iterators[-1].batch_at(ahead, rank=k).indices for k in range(n_ranks)]
            now = [next(iterator) for iterator in iterators]
            if kind not in ("filtered", "mixture"):
                assert [list(each) for each in addresses] == [[r[0] for r in b] for b in now]
            following += [row for batch in now for row in batch]
        if kind == "buckets":
            assert all(len(batch) <= size for batch in now)
            epoch = first[len(first) - len(first) % N :] + following
            assert sorted(row[0] for row in epoch[:N]) == list(range(N))
        else:
            assert following == rows[len(first) :][: len(following)]

    run()


def test_ranks_that_went_on_from_different_steps_of_a_later_epoch() -> None:
    """Each from its own state; the states that they save then are still those of all ranks."""
    one = make("buckets", SerialIterator, batch_size=SIZE)
    next(one)
    states = [one.state_dict()] * 2
    for epoch in (1, 0):
        first, second = ranks_of("buckets", 2)
        first.load_state_dict(states[0])
        second.load_state_dict(states[1])
        while first.epoch < epoch:
            next(first), next(second)
        next(first)
        states = [json.loads(json.dumps(each.state_dict())) for each in (first, second)]
        states[1]["missing"] = {"delivered": 2}  # the step after the one that it is to deliver
    assert states[0]["cut"]["anchor"] != states[1]["cut"]["anchor"]
    iterator = make("buckets", SerialIterator, batch_size=5)
    iterator.load_state_dict(states)
    assert next(iterator) == next(second)


def test_ranks_of_which_one_has_delivered_more() -> None:
    """The others' batches of its last steps are those that are missing."""
    states, batches = with_holes(ranks_of("map", 2), [{0, 1}, {0, 1, 2}])
    iterator = make("map", SerialIterator, batch_size=SIZE)
    iterator.load_state_dict(states)
    assert [next(iterator) for _ in range(3)] == [batches[2, 0], batches[3, 0], batches[3, 1]]


def test_what_a_state_with_holes_needs() -> None:
    states, batches = with_holes(ranks_of("map", 2), [{1, 2}, {0, 2}])
    other, cut = make("map", SerialIterator, batch_size=5), states[0]["cut"]
    before, state = other.state_dict(), states[0]
    for state, error, message in (
        (states[0], ValueError, "load the states of all ranks"),
        (states[:1], ValueError, "all 2 ranks, .* these 1 differ"),
        ([states[0], {**states[1], "seed": [1, 2]}], ValueError, "differ in more"),
        (
            [{**state, "missing": {"delivered": bits, "of_all_ranks": True}} for bits in (2, 6)],
            ValueError,
            "these 2 differ in more",
        ),
        ([], TypeError, "a list of one for each rank"),
        ([states[0], None], TypeError, "a list of one for each rank"),
        ({**states[0], "cut": {**cut, "num_ranks": "x"}}, ValueError, "'cut' cannot be read"),
        *(
            ({**states[0], "missing": {"delivered": 2, **wrong}}, ValueError, "'missing' cannot")
            for wrong in ({"delivered": -1}, {"of_all_ranks": 1})
        ),
    ):
        with pytest.raises(error, match=message):
            other.load_state_dict(state)
    assert other.state_dict() == before
    # The same arguments: each rank has its own.
    for rank, missing in enumerate((0, 1)):
        iterator = ranks_of("map", 2)[rank]
        iterator.load_state_dict(states[rank])
        assert [next(iterator) for _ in range(3)] == [batches[k, rank] for k in (missing, 3, 4)]
    # While they are being delivered, copies go on, and a snapshot has no room for them.
    other.load_state_dict(states)
    twin = copy.copy(other)
    assert next(other) == next(pickle.loads(pickle.dumps(twin))) == batches[0, 0]
    with pytest.raises(ValueError, match=r"use state_dict\(\)"):
        other.serialize(lambda key, value: None)
    assert [next(twin) for _ in range(2)] == [batches[0, 0], batches[1, 1]]
    other.load_state_dict([before])
    # What is missing may be left out by now.
    iterators = ranks_of("map", 2, skip_steps=[(0, 2)])
    load(iterators, states)
    assert [next(iterator) for iterator in iterators] == [batches[3, rank] for rank in range(2)]
    other.load_state_dict([before])
    assert other.state_dict() == before
    # At the end there is no further batch for the second rank.
    states, _ = with_holes([make("map", SerialIterator, batch_size=100)], [{1}])
    for state in states:
        state["cut"]["repeat"] = False
    last = ranks_of("map", 2, 100, repeat=False)
    states[0]["missing"]["delivered"] = 0b110
    with pytest.raises(ValueError, match=r"1 batches are missing at the end, .* on 1 rank"):
        last[0].load_state_dict(states[0])
    states[0]["missing"]["delivered"] = 1 << 9
    with pytest.raises(ValueError, match=r"there is no step \d+ that was delivered"):
        last[0].load_state_dict(states[0])


def test_each_rank_keeps_the_examples_that_it_has_skipped() -> None:
    states, _ = with_holes(ranks_of("filtered", 2), [{1, 2}, {0, 2}])
    for rank, state in enumerate(states):
        state["skipped"] = {"epoch": 0, "count": 1, "records": [[rank, 0, 1, "an error"]]}
    iterators = ranks_of("filtered", 2)
    load(iterators, states)
    assert [[each.index for each in iterator.skipped] for iterator in iterators] == [[0], [1]]


def test_workers_fill_holes_by_larger_batches_than_their_own() -> None:
    states, batches = with_holes(ranks_of("map", 2), [{1, 2}, {0, 2}])
    arguments = {"n_processes": 2, "context": "fork", "in_order": False, "batch_size": 2}
    with make("map", MultiprocessIterator, **arguments) as iterator:
        iterator.load_state_dict(states)
        assert [next(iterator) for _ in range(2)] == [batches[0, 0], batches[1, 1]]
        assert (iterator.step, iterator.current_position) == (3, 6 * SIZE)
        rows = [row for _ in range(40) for row in next(iterator)]  # later ones may come earlier
        assert len(set(rows)) == len(rows)
        assert set(batches[3, 0] + batches[3, 1]) <= set(rows)
        assert set(rows) <= {row for (k, _), batch in batches.items() if k >= 3 for row in batch}
