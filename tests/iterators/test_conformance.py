"""Behaviour of every iterator, whoever wrote it and however it fetches.

Tests with ``make_any`` run over Chainer's iterators too, where Chainer imports: it is the oracle.
Those with ``make`` are about ours alone.
"""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import statistics
import threading
import time
from typing import Any

import numpy as np
import pytest
from epochs import Step, sampler_calls, steps

SIZES = [(6, 2), (6, 3), (7, 2), (7, 3), (5, 5), (4, 9), (1, 1), (2, 7), (3, 1)]


def seen(iterator: Any, batch: list[Any]) -> Step:
    return Step(
        [int(example) for example in batch],
        iterator.current_position,
        iterator.epoch,
        iterator.is_new_epoch,
        pytest.approx(iterator.epoch_detail, rel=1e-12),
        pytest.approx(iterator.previous_epoch_detail, rel=1e-12),
    )


class Sampler:
    """Gives prepared orders, of any size, and notes what it was asked with."""

    def __init__(self, size: int, order_size: int | None = None) -> None:
        self._random = np.random.RandomState(size)
        self._size = size
        self._order_size = size if order_size is None else order_size
        self.given: list[np.ndarray] = []
        self.calls: list[tuple[list[int], int]] = []

    def __call__(self, current_order: np.ndarray, current_position: int) -> np.ndarray:
        self.calls.append((list(map(int, current_order)), current_position))
        self.given.append(self._random.randint(0, self._size, self._order_size))
        return self.given[-1]


# -- order, epochs, attributes ----------------------------------------------------------------


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize(("size", "batch_size"), SIZES)
def test_in_order_of_indices(make_any, size, batch_size, repeat):
    iterator = make_any(range(size), batch_size, shuffle=False, repeat=repeat)
    assert iterator.batch_size == batch_size
    assert iterator.repeat is repeat
    assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (0, 0, False)
    assert iterator.previous_epoch_detail is None
    expected = steps(itertools.repeat(range(size)), batch_size, repeat)
    for step in itertools.islice(expected, 20):
        assert seen(iterator, next(iterator)) == step
    if not repeat:
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)
            assert (iterator.epoch, iterator.current_position) == (1, 0)
            assert iterator.is_new_epoch
            assert iterator.epoch_detail == iterator.previous_epoch_detail == 1.0


@pytest.mark.parametrize("repeat", [True, False])
@pytest.mark.parametrize(("size", "batch_size"), [(12, 4), (13, 4), (5, 11)])
def test_three_shuffled_epochs_of_a_seed(make_any, size, batch_size, repeat):
    np.random.seed(0)
    iterator = make_any(range(size), batch_size, repeat=repeat)
    random = np.random.RandomState(0)
    orders = (random.permutation(size) for _ in itertools.count())
    n_batches = -(-3 * size // batch_size)
    for step in itertools.islice(steps(orders, batch_size, repeat), n_batches):
        assert seen(iterator, next(iterator)) == step


@pytest.mark.parametrize("order_size", [7, 3, 11])
@pytest.mark.parametrize("batch_size", [2, 7, 9])
def test_order_sampler(make_any, order_size, batch_size):
    sampler = Sampler(7, order_size)
    iterator = make_any(range(7), batch_size, order_sampler=sampler)
    orders = Sampler(7, order_size)
    expected = steps((orders([], 0) for _ in itertools.count()), batch_size, repeat=True)
    n_batches = 9
    for step in itertools.islice(expected, n_batches):
        assert seen(iterator, next(iterator)) == step
    positions = [position for _, position in sampler.calls]
    due = sampler_calls(order_size, batch_size, n_batches)
    assert positions[: len(due)] == due  # what is fetched ahead may have asked for more
    assert sampler.calls[0] == (list(range(7)), 0)
    for (current, _), before in zip(sampler.calls[1:], sampler.given, strict=False):
        assert current == before.tolist()


def test_order_sampler_is_asked_in_the_callers_thread(make):
    """Also for the epochs that are fetched ahead."""
    asked = []

    def sampler(order, position):
        asked.append((os.getpid(), threading.get_ident()))
        return np.arange(5)

    iterator = make(range(5), 2, order_sampler=sampler)
    for _ in range(9):
        next(iterator)
    assert set(asked) == {(os.getpid(), threading.get_ident())}
    assert len(asked) >= 4


def test_order_sampler_is_asked_at_the_end_without_repeat_too(make_any):
    sampler = Sampler(6)
    iterator = make_any(range(6), 4, order_sampler=sampler, repeat=False)
    assert len(sampler.calls) == 1
    assert sum(len(batch) for batch in iterator) == 6
    assert [position for _, position in sampler.calls] == [0, 4]


def test_batches_are_exact_lists_in_a_plain_loop(make_any):
    iterator = make_any(range(5), 2, shuffle=False, repeat=False)
    assert iter(iterator) is iterator
    batches = list(iterator)
    assert batches == [[0, 1], [2, 3], [4]]
    assert all(type(batch) is list for batch in batches)


def test_next_is_a_method_too(make_any):
    iterator = make_any(range(3), 2, shuffle=False)
    assert [iterator.next(), iterator.next()] == [[0, 1], [2, 0]]


def test_shuffle_with_order_sampler_is_an_error(make):
    for shuffle in (True, False):
        with pytest.raises(ValueError, match="shuffle"):
            make(range(3), 1, shuffle=shuffle, order_sampler=Sampler(3))


# -- reset, copies, pickles ----------------------------------------------------------------------


@pytest.mark.parametrize("n_before", [0, 1, 3, 4])
def test_reset(make_any, n_before):
    iterator = make_any(range(7), 2, shuffle=False, repeat=False)
    for _ in range(n_before):
        next(iterator)
    iterator.reset()
    assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (0, 0, False)
    assert iterator.previous_epoch_detail is None
    assert list(iterator) == [[0, 1], [2, 3], [4, 5], [6]]


def test_reset_draws_a_new_order(make_any):
    sampler = Sampler(6)
    iterator = make_any(range(6), 3, order_sampler=sampler)
    next(iterator)
    iterator.reset()
    order = sampler.given[-1].tolist()
    assert sampler.calls[-1] == (list(range(6)), 0)
    assert next(iterator) == order[:3]


def test_reset_after_finalize(make_any):
    iterator = make_any(range(4), 3, shuffle=False)
    next(iterator)
    iterator.finalize()
    if make_any.kind.is_reopenable:
        iterator.reset()
        assert next(iterator) == [0, 1, 2]
    else:
        with pytest.raises(NotImplementedError):
            iterator.reset()


@pytest.mark.parametrize("n_before", [0, 1, 4, 9])
def test_copy_has_the_same_future(make, n_before):
    iterator = make(range(7), 2, order_sampler=Sampler(7))
    for _ in range(n_before):
        next(iterator)
    other = make.keep(copy.copy(iterator))
    assert other is not iterator
    assert other.order_sampler is iterator.order_sampler
    # One batch each: beyond the orders already drawn the two share a sampler.
    assert next(other) == next(iterator)
    assert seen(other, []) == seen(iterator, [])


@pytest.mark.parametrize("n_before", [0, 1, 4, 9])
def test_pickle_has_the_same_future_and_disturbs_nothing(make, n_before):
    iterator = make(range(7), 2, order_sampler=Sampler(7))
    for _ in range(n_before):
        next(iterator)
    other = make.keep(pickle.loads(pickle.dumps(iterator)))
    for _ in range(10):
        batch = next(iterator)
        assert next(other) == batch
        assert seen(other, batch) == seen(iterator, batch)


def test_copies_carry_the_orders_drawn_ahead(make):
    sampler = Sampler(6)
    iterator = make(range(6), 3, order_sampler=sampler)
    next(iterator)
    n_calls = len(sampler.calls)
    future = [next(make.keep(copy.copy(iterator))) for _ in range(3)]
    assert future == [sampler.given[0].tolist()[3:]] * 3
    if n_calls > 1:  # the boundary was planned already, so no copy asked for that order again
        first = sampler.given[0].tolist()
        assert all(current != first for current, _ in sampler.calls[n_calls:])


def test_ended_iterator_copies_and_pickles_as_ended(make):
    iterator = make(range(3), 2, shuffle=False, repeat=False)
    assert list(iterator) == [[0, 1], [2]]
    for other in (copy.copy(iterator), pickle.loads(pickle.dumps(iterator))):
        make.keep(other)
        with pytest.raises(StopIteration):
            next(other)
        assert other.epoch == 1


def test_each_for_is_an_epoch(make):
    """Without `repeat`: after the end, told or not, but not after a break; and in a copy, too."""
    iterator = make(range(5), 2, order_sampler=Sampler(5), repeat=False)
    for _ in range(3):
        assert [len(batch) for batch in iterator] == [2, 2, 1]
        assert iterator.epoch == 1
    for _ in range(2):
        for _ in iterator:
            if iterator.is_new_epoch:
                break
        assert iterator.current_position == 0 and iterator.epoch == 1
    other = make.keep(copy.copy(iterator))
    assert [len(list(other)) for _ in range(3)] == [0, 3, 3]  # the first one is ended as this is
    for _ in iterator:
        break
    assert [len(batch) for batch in iterator] == [2, 1]


def test_for_in_another_thread_begins_no_epoch(make):
    """Threads may share an epoch; one that comes late has no batch of it."""
    iterator = make(range(5), 2, shuffle=False, repeat=False)
    assert len(list(iterator)) == 3
    found = []
    thread = threading.Thread(target=lambda: found.append([list(iterator), len(list(iterator))]))
    thread.start()
    thread.join(60)
    assert found == [[[], 3]]


def test_for_after_a_state_at_the_end_is_loaded(make, save, load):
    """The first one is the rest of the epoch in which it was saved, and has no batch."""
    ended = make(range(5), 2, shuffle=False, repeat=False)
    assert len(list(ended)) == 3
    for put in (load, lambda iterator, _: iterator.load_state_dict(ended.state_dict())):
        iterator = make(range(5), 2, shuffle=False, repeat=False)
        put(iterator, save(ended))
        assert list(make.keep(copy.copy(iterator))) == []
        assert [len(list(iterator)) for _ in range(3)] == [0, 3, 3]
        put(iterator, save(ended))
        iterator.reset()
        assert len(list(iterator)) == 3


def test_for_does_not_open_what_was_closed(make):
    iterator = make(range(5), 2, repeat=False)
    assert len(list(iterator)) == 3
    iterator.close()
    with pytest.raises(RuntimeError, match="closed"):
        list(iterator)


def test_copy_of_a_finalized_iterator_is_open(make):
    iterator = make(range(4), 2, shuffle=False)
    next(iterator)
    iterator.finalize()
    assert next(make.keep(copy.copy(iterator))) == [2, 3]
    assert next(make.keep(pickle.loads(pickle.dumps(iterator)))) == [2, 3]


# -- end of life ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_before", [0, 1, 5])
def test_finalize_any_number_of_times(make_any, n_before):
    iterator = make_any(range(7), 2)
    for _ in range(n_before):
        next(iterator)
    for _ in range(3):
        iterator.finalize()


def test_context_manager(make_any):
    with make_any(range(4), 4, shuffle=False) as iterator:
        assert next(iterator) == [0, 1, 2, 3]


def test_next_after_finalize_is_an_error(make):
    iterator = make(range(4), 2)
    next(iterator)
    iterator.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="finalized"):
            next(iterator)
    assert iterator.current_position == 2
    assert len(iterator) == 2


# -- attributes and arguments --------------------------------------------------------------------


def test_attributes_are_read_only(make):
    dataset = [1, 2, 3]
    iterator = make(dataset, 2, shuffle=False)
    assert iterator.dataset is dataset
    assert (iterator.shuffle, iterator.order_sampler) == (False, None)
    for name in ("batch_size", "repeat", "epoch", "current_position", "is_new_epoch", "dataset"):
        with pytest.raises(AttributeError):
            setattr(iterator, name, 1)


@pytest.mark.parametrize(("size", "batch_size", "length"), [(6, 2, 3), (7, 2, 4), (2, 9, 1)])
def test_len_is_batches_per_epoch(make, size, batch_size, length):
    assert len(make(range(size), batch_size)) == length


@pytest.mark.parametrize(
    ("error", "name", "arguments"),
    [
        (ValueError, "batch_size", {"batch_size": 0}),
        (ValueError, "batch_size", {"batch_size": -1}),
        (TypeError, "batch_size", {"batch_size": 2.0}),
        (TypeError, "batch_size", {"batch_size": None}),
        (TypeError, "batch_size", {"batch_size": "2"}),
        (TypeError, "batch_size", {"batch_size": True}),
        (TypeError, "repeat", {"repeat": None}),
        (TypeError, "repeat", {"repeat": "no"}),
        (TypeError, "shuffle", {"shuffle": "yes"}),
        (TypeError, "converter", {"converter": 1}),
        (TypeError, "device", {"converter": len, "device": 1.5}),
        (ValueError, "converter", {"device": -1}),
    ],
)
def test_arguments_are_checked_by_the_constructor(make, error, name, arguments):
    with pytest.raises(error, match=name):
        make(range(3), **{"batch_size": 1, **arguments})


def test_numpy_integers_are_integers(make):
    iterator = make(range(3), np.int64(2), shuffle=np.bool_(False))
    assert next(iterator) == [0, 1]
    assert type(iterator.batch_size) is int


@pytest.mark.thinned(16)
@pytest.mark.parametrize("code", "bHiIlLqQ")
@pytest.mark.parametrize("byte_order", "=>")
def test_orders_of_any_dtype_of_integers(make, code, byte_order):
    """Also of C's long long, which is an int64 of another number than long."""

    def backwards(order, position):
        return np.arange(7)[::-1].astype(byte_order + code)

    iterator = make(range(7), 3, order_sampler=backwards)
    assert [next(iterator) for _ in range(3)] == [[6, 5, 4], [3, 2, 1], [0, 6, 5]]


# -- errors ----------------------------------------------------------------------------------------

WRONG_ORDERS = {
    "longer": np.arange(7),
    "shorter": np.arange(5),
    "negative": np.array([0, 1, 2, 3, 4, -1]),
    "beyond": np.array([0, 1, 2, 3, 4, 6]),
    "huge": np.array([0, 1, 2, 3, 4, 2**63], dtype=np.uint64),
    "float": np.arange(6.0),
    "bool": np.ones(6, dtype=bool),
    "2-D": np.arange(6).reshape(6, 1),
    "none": None,
    "text": "012345",
    "objects": np.arange(6).astype(object),
    "ragged": [[1], [2, 3]],
}


class WrongOnce:
    """A sampler whose second answer is wrong."""

    def __init__(self, wrong: Any) -> None:
        self._answers = [np.arange(6), wrong]

    def __call__(self, current_order: np.ndarray, current_position: int) -> Any:
        return self._answers.pop(0) if self._answers else np.arange(6)


@pytest.mark.thinned(16)
@pytest.mark.parametrize("wrong", WRONG_ORDERS)
def test_wrong_order_is_an_error_of_the_batch_that_needs_it(make, wrong):
    iterator = make(range(6), 2, order_sampler=WrongOnce(WRONG_ORDERS[wrong]))
    assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="order"):
        next(iterator)  # it ends exactly on the boundary
    assert iterator.current_position == 4
    assert [next(iterator), next(iterator)] == [[4, 5], [0, 1]]
    assert iterator.epoch == 1


@pytest.mark.thinned(16)
@pytest.mark.parametrize("wrong", WRONG_ORDERS)
def test_wrong_first_order_is_an_error_of_the_constructor(make, wrong):
    # Of the first order any size but none is right.
    first = np.empty(0, dtype=int) if wrong in ("longer", "shorter") else WRONG_ORDERS[wrong]
    with pytest.raises(ValueError, match="order"):
        make(range(6), 2, order_sampler=lambda order, position: first)


class Interrupted(Exception):
    """An exception of the sampler's own."""


class RaisesAtBoundary:
    def __init__(self, error: type[Exception]) -> None:
        self._error = error
        self._n_calls = 0

    def __call__(self, current_order: np.ndarray, current_position: int) -> np.ndarray:
        self._n_calls += 1
        if self._n_calls == 2:
            raise self._error("from the sampler")
        return np.arange(len(current_order))


def test_error_of_the_sampler_comes_as_itself_and_in_time(make):
    iterator = make(range(5), 2, order_sampler=RaisesAtBoundary(Interrupted))
    assert [next(iterator), next(iterator)] == [[0, 1], [2, 3]]
    with pytest.raises(Interrupted, match="from the sampler"):
        next(iterator)
    assert next(iterator) == [4, 0]


def test_stop_iteration_of_the_sampler_is_no_end(make):
    iterator = make(range(4), 4, order_sampler=RaisesAtBoundary(StopIteration))
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert next(iterator) == [0, 1, 2, 3]


class Growing:
    """A dataset whose length changes between epochs."""

    def __init__(self) -> None:
        self.size = 3

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        return index


def test_length_is_taken_once_an_epoch(make):
    dataset = Growing()
    iterator = make(dataset, 1, shuffle=False)
    dataset.size = 5
    batches = [next(iterator)[0] for _ in range(8)]
    assert batches == [0, 1, 2, 0, 1, 2, 3, 4]
    assert iterator.epoch == 2


def test_length_that_fails_reaches_the_caller(make):
    dataset = Growing()
    iterator = make(dataset, 2, shuffle=False)
    dataset.size = -1
    with pytest.raises(ValueError, match="len"):
        [next(iterator) for _ in range(2)]


# -- what the dataset is asked -------------------------------------------------------------------


class Types:
    """Gives the type of its index."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> str:
        return type(index).__name__


class Batched(Types):
    """Fetches several examples at a time; one too few if it is told so."""

    def __init__(self, missing: int = 0) -> None:
        self._missing = missing

    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert type(indices) is list
        return [(index, type(index).__name__) for index in indices][self._missing :]


def test_dataset_gets_python_ints(make):
    assert next(make(Types(), 4)) == ["int"] * 4


def test_getitems_is_used(make):
    batch = next(make(Batched(), 3, shuffle=False))
    assert batch == [(0, "int"), (1, "int"), (2, "int")]
    assert type(batch) is list


class Query(Types):
    """A call takes 3 ms, however many rows it fetches; each example tells how many those were."""

    def __len__(self) -> int:
        return 60 * 64

    def __getitems__(self, indices: list[int]) -> list[Any]:
        time.sleep(0.003)
        return [(index, len(indices)) for index in indices]


def test_calls_with_a_fixed_cost_fetch_whole_batches(make):
    rows = [row for batch in make(Query(), 64, shuffle=False, repeat=False) for row in batch]
    assert [index for index, _ in rows] == list(range(60 * 64))
    assert statistics.median(size for _, size in rows) > 32


def test_getitems_that_gives_too_few_is_an_error(make):
    with pytest.raises(ValueError, match="__getitems__"):
        next(make(Batched(missing=1), 3, shuffle=False))


# -- start methods ---------------------------------------------------------------------------------


def test_two_epochs_under_each_start_method(make_started):
    iterator = make_started(range(7), 3, shuffle=False)
    expected = itertools.islice(steps(itertools.repeat(range(7)), 3, True), 5)
    assert [seen(iterator, next(iterator)) for _ in range(5)] == list(expected)
