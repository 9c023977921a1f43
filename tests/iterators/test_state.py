"""The planner: the rule of epochs, and batches planned ahead."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from epochs import steps
from hypothesis import given
from hypothesis import strategies as st

from fastiter._order.plan import Plan
from fastiter._plan.drawing import checked_order
from fastiter._plan.epochs import Planner, initial_state
from fastiter._plan.state import State

sizes = st.integers(1, 12)


class Reversing:
    """Gives the reversed order each time, and notes the positions it was asked at."""

    def __init__(self) -> None:
        self.positions: list[int] = []

    def __call__(self, current_order: Any, current_position: int) -> np.ndarray:
        self.positions.append(current_position)
        return np.asarray(current_order)[::-1]


def length(size: int) -> int:
    return size


def make_planner(
    size: int, batch_size: int, *, repeat: bool = True, sampler: Any = None, state: Any = None
):
    dataset_len = functools.partial(length, size)
    return Planner(
        initial_state(sampler, dataset_len) if state is None else state,
        batch_size=batch_size,
        repeat=repeat,
        order_sampler=sampler,
        dataset_len=dataset_len,
    )


def begin(planner: Planner) -> Plan:
    """Begins some work for the next batch."""
    plan = planner.ahead()
    if plan.indices is not None:
        plan.work = object()
    return plan


@given(size=sizes, batch_size=st.integers(1, 30), repeat=st.booleans(), shuffled=st.booleans())
def test_the_rule_of_epochs(size, batch_size, repeat, shuffled):
    planner = make_planner(
        size, batch_size, repeat=repeat, sampler=Reversing() if shuffled else None
    )
    first = range(size)[::-1] if shuffled else range(size)
    orders = itertools.cycle([first, range(size)] if shuffled else [first])
    for step in itertools.islice(steps(orders, batch_size, repeat), 10):
        indices, state = planner.deliver().indices, planner.state
        assert type(state) is State
        assert [type(item) for item in state[:3]] == [int, int, bool]
        assert indices.dtype == np.int64
        assert indices.flags.c_contiguous and indices.flags.writeable
        assert state.order is None or not np.shares_memory(indices, state.order)
        assert indices.tolist() == step.indices
        assert (state.position, state.epoch, state.is_new_epoch) == step[1:4]
        assert state.epoch_detail == pytest.approx(step.detail)
        assert state.previous_epoch_detail == pytest.approx(step.previous_detail)
    if not repeat and planner.state.epoch:
        before = planner.state
        with pytest.raises(StopIteration):
            planner.deliver()
        assert planner.state == before._replace(previous_epoch_detail=1.0)


def test_a_plan_changes_nothing_that_it_is_made_of():
    order = np.arange(5)[::-1].copy()
    state = State(3, 0, False, order, 5, 0.2)
    make_planner(5, 4, sampler=Reversing(), state=state).deliver()
    assert order.tolist() == [4, 3, 2, 1, 0]
    assert state.order is order


def shuffle_in_place(current_order: np.ndarray, current_position: int) -> np.ndarray:
    current_order[:] = np.roll(current_order, 1)
    return current_order


def test_sampler_may_change_the_order_it_is_given_in_place():
    planner = make_planner(3, 2, sampler=shuffle_in_place)
    delivered = planner.deliver()
    for _ in range(5):
        begin(planner)
    assert delivered.state.order.tolist() == planner.state.order.tolist() == [2, 0, 1]
    batches = [planner.deliver().indices.tolist() for _ in range(3)]
    assert batches == [[1, 1], [2, 0], [0, 1]]


class KeepsItsBuffer:
    """Gives the same array each time, with other content."""

    def __init__(self) -> None:
        self._order = np.arange(3)

    def __call__(self, current_order: Any, current_position: int) -> np.ndarray:
        self._order[:] = np.roll(self._order, 1)
        return self._order


def test_sampler_may_keep_the_order_that_it_gives():
    planner = make_planner(3, 3, sampler=KeepsItsBuffer())
    planner.deliver()
    order = planner.state.order.tolist()
    for _ in range(4):
        begin(planner)
    assert planner.state.order.tolist() == order


def test_orders_in_states_are_read_only():
    state = initial_state(Reversing(), lambda: 4)
    with pytest.raises(ValueError, match="read-only"):
        state.order[0] = 1


class Virtual:
    """An order that computes its slices; a wrong one, if it is told so."""

    def __init__(self, size: int, give: Any = None) -> None:
        self._size = size
        self._give = give

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> Any:
        indices = np.arange(part.start, part.stop)
        return self._size - 1 - indices if self._give is None else self._give(indices)


def test_virtual_orders_are_only_measured_and_sliced():
    planner = make_planner(5, 2, sampler=lambda order, position: Virtual(5))
    batches = [planner.deliver().indices for _ in range(3)]
    assert [batch.tolist() for batch in batches] == [[4, 3], [2, 1], [0, 4]]
    assert all(batch.dtype == np.int64 for batch in batches)


@pytest.mark.parametrize(
    "give",
    [lambda i: i + 5, lambda i: i - 9, lambda i: i[:1], lambda i: i * 1.0, lambda i: None],
)
def test_slices_of_virtual_orders_are_checked(give):
    planner = make_planner(5, 2, sampler=lambda order, position: Virtual(5, give))
    with pytest.raises(ValueError, match="order"):
        planner.deliver()


@pytest.mark.parametrize("order", [[2, 0, 1], (2, 0, 1), np.array([2, 0, 1], dtype=">u2")])
def test_orders_of_other_kinds_become_int64(order):
    checked = checked_order(order, 3)
    assert checked.dtype == np.int64
    assert checked.tolist() == [2, 0, 1]


# -- planner -------------------------------------------------------------------------------------


huge = st.integers(0, 1 << 62)


@given(size=huge.map(lambda n: n + 31), batch_size=st.integers(1, 30), data=st.data())
def test_positions_beyond_what_a_float_holds(size, batch_size, data):
    position = data.draw(st.integers(0, size - 1))
    state = State(position, data.draw(huge), False, None, size, None)
    plan = make_planner(size, batch_size, state=state).deliver()
    rows = [(position + row) % size for row in range(batch_size)]
    assert plan.indices.tolist() == rows
    ends = position + batch_size >= size
    assert plan.state[:3] == ((position + batch_size) % size, state.epoch + ends, ends)
    assert plan.state.previous_epoch_detail == state.epoch_detail


@pytest.mark.parametrize(
    "order", [np.arange(8)[::-2], np.arange(4, dtype=">i8"), Virtual(4)], ids=["steps", "big", "v"]
)
def test_orders_that_are_no_plain_arrays(order):
    state = State(1, 0, False, order, 4, None)
    plan = make_planner(8, 2, sampler=Reversing(), state=state).deliver()
    assert plan.indices.tolist() == np.asarray(order[0:4])[1:3].tolist()
    assert plan.indices.dtype == np.dtype(np.int64)
    assert plan.state.order is order


@given(
    size=sizes,
    batch_size=st.integers(1, 15),
    repeat=st.booleans(),
    actions=st.lists(st.sampled_from(["ahead", "deliver", "copy", "pickle", "peek"]), max_size=40),
)
def test_whatever_is_planned_ahead_the_same_is_delivered(size, batch_size, repeat, actions):
    orders = itertools.cycle([range(size)[::-1], range(size)])
    expected = steps(orders, batch_size, repeat)
    planner = make_planner(size, batch_size, repeat=repeat, sampler=Reversing())
    handed_out: list[Any] = []
    for action in actions:
        if action == "deliver":
            due = next(expected, None)
            if due is None:
                with pytest.raises(StopIteration):
                    planner.deliver()
                continue
            before = planner.peek()
            plan = planner.deliver()
            assert plan is before
            assert not handed_out or handed_out.pop(0) is plan
            assert plan.indices.tolist() == due.indices
            assert planner.state is plan.state
        elif action == "ahead":
            plan = begin(planner)
            if plan.indices is not None:
                handed_out.append(plan)
        elif action == "peek":
            assert not handed_out or planner.peek() is handed_out[0]
        else:
            planner = (
                copy.copy(planner) if action == "copy" else pickle.loads(pickle.dumps(planner))
            )
            handed_out.clear()  # the copy hands its plans out again


def test_end_is_planned_once():
    sampler = Reversing()
    planner = make_planner(3, 2, repeat=False, sampler=sampler)
    plans = [begin(planner) for _ in range(5)]
    assert [plan.indices is not None for plan in plans] == [True, True, False, False, False]
    assert plans[2] is plans[3] is plans[4]
    assert sampler.positions == [0, 2]
    planner.deliver()
    planner.deliver()
    for _ in range(3):
        with pytest.raises(StopIteration):
            planner.deliver()
    assert sampler.positions == [0, 2]


class FailsOnce:
    def __init__(self) -> None:
        self.n_calls = 0

    def __call__(self, current_order: Any, current_position: int) -> np.ndarray:
        self.n_calls += 1
        if self.n_calls == 2:
            raise LookupError("once")
        return np.arange(3)


def test_error_is_kept_until_its_batch_is_due():
    sampler = FailsOnce()
    planner = make_planner(3, 2, sampler=sampler)
    plans = [begin(planner) for _ in range(4)]
    assert plans[1] is plans[2] is plans[3]
    assert isinstance(plans[1].error, LookupError)
    assert sampler.n_calls == 2
    planner.deliver()
    state = planner.state
    with pytest.raises(LookupError, match="once"):
        planner.deliver()
    assert planner.state is state
    assert planner.deliver().indices.tolist() == [2, 0]
    assert sampler.n_calls == 3


def test_interrupt_of_the_sampler_is_not_kept():
    def interrupt(current_order, current_position):
        if current_position:
            raise KeyboardInterrupt
        return np.arange(2)

    planner = make_planner(2, 1, sampler=interrupt)
    begin(planner)
    with pytest.raises(KeyboardInterrupt):
        begin(planner)
    assert planner.deliver().indices.tolist() == [0]


def test_restart_forgets_plans_and_sets_the_state():
    sampler = Reversing()
    planner = make_planner(4, 4, sampler=sampler)
    old = begin(planner)
    planner.restart(planner.state)
    assert old.work is None
    again = begin(planner)
    assert again is not old
    assert again.indices.tolist() == old.indices.tolist()
    assert sampler.positions == [0, 0, 0]
    planner.restart(State(2, 5, False, None, 4, 5.0))
    assert planner.deliver().indices.tolist() == [2, 3, 0, 1]


def test_rewind_has_the_same_plans_begun_again():
    planner = make_planner(4, 3)
    plans = [begin(planner) for _ in range(3)]
    assert planner.begun_work() == [plan.work for plan in plans]
    planner.rewind()
    assert planner.begun_work() == []
    again = [begin(planner) for _ in range(3)]
    assert all(a is b for a, b in zip(plans, again, strict=True))


def test_a_delivered_plan_leaves_its_work_and_outcome():
    planner = make_planner(4, 3)
    plan = begin(planner)
    plan.outcome = ("batch", None)
    assert planner.deliver() is plan
    assert (plan.work, plan.outcome) == (None, None)
