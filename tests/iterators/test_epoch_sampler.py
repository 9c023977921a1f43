"""Samplers of users that give epochs by number: exact resume, ranks, addresses, clear errors."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import random
import re
import threading
from typing import Any

import numpy as np
import pytest
from inside import planner_of

from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
)
from fastiter.iterators import Epoch, EpochSampler
from fastiter.random import example_rng
from fastiter.tokens import TokenDataset

N = 47
CLASSES = np.arange(N) % 3


class Curriculum(EpochSampler):
    """Each epoch has more of the examples, shuffled, up to all of them."""

    varies = True

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        rng = np.random.default_rng([*self.seed, number])
        return Epoch(rng.permutation(min(n_examples, 20 + 9 * number)))


class Draws(EpochSampler):
    """As many draws in each epoch, with repetitions."""

    def __init__(self, seed: int, count: int = 30) -> None:
        super().__init__(seed)
        self.count = count

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        rng = np.random.default_rng([*self.seed, number])
        return Epoch(rng.integers(0, n_examples, self.count, dtype=np.int32))


class Rotation(EpochSampler):
    """Without a seed. The same array each time, changed in place."""

    permutes = True

    def __init__(self, seed: int) -> None:
        self.kept = np.zeros(0, int)

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        if len(self.kept) != n_examples:
            self.kept = np.zeros(n_examples, int)
        self.kept[:] = np.roll(np.arange(n_examples), 5 * number)
        return Epoch(self.kept)


class Steps:
    """An order that is computed where it is sliced."""

    def __init__(self, n: int, step: int) -> None:
        self.n, self.step = n, step

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, part: slice) -> Any:
        return np.arange(self.n)[part] * self.step % self.n


class Strides(EpochSampler):
    """Computed orders, and arguments that a state tells."""

    permutes = True

    def __init__(self, seed: int, steps: tuple[int, ...] = (2, 3, 5, 7)) -> None:
        super().__init__(seed)
        self.steps = steps

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(Steps(n_examples, self.steps[(number + self.seed[0]) % len(self.steps)]))

    def arguments(self) -> Any:
        return self.steps


class Balanced(EpochSampler):
    """Batches with as many of each class; what is left over is left out."""

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        rng = np.random.default_rng([*self.seed, number])
        least = np.bincount(CLASSES[:n_examples]).min()
        columns = [
            rng.permutation(np.flatnonzero(CLASSES[:n_examples] == k))[:least] for k in range(3)
        ]
        order = np.stack(columns, axis=1).ravel()
        return Epoch(order, list(range(0, len(order) + 1, 3)))


class Budget(EpochSampler):
    """Batches of a size that may change in mid-epoch: cut anew behind each `start`."""

    def __init__(self, seed: int, rows: int = 5) -> None:
        super().__init__(seed)
        self.rows = rows

    def limits(self) -> tuple[int]:
        return (self.rows,)

    def arguments(self) -> Any:
        return ()

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        order = np.random.default_rng([*self.seed, number]).permutation(n_examples)
        starts = [*(cutting.start for cutting in cuttings), n_examples]
        parts = [
            np.arange(start, stop, cutting.limits[0])
            for cutting, start, stop in zip(cuttings, starts, starts[1:], strict=False)
        ]
        return Epoch(order, np.concatenate([*parts, [n_examples]]))


ORDERS: list[type[Any]] = [Curriculum, Draws, Rotation, Strides]
BATCHES: list[type[Any]] = [Balanced, Budget]


@pytest.fixture(params=ORDERS + BATCHES)
def kind(request):
    return request.param


def of(sampler: Any) -> dict[str, Any]:
    """The arguments of an iterator that takes the sampler."""
    if type(sampler) in BATCHES:
        return {"batch_size": None, "batch_sampler": sampler}
    return {"batch_size": 4, "order_sampler": sampler}


def serial(sampler: Any, **arguments: Any) -> SerialIterator:
    return SerialIterator(range(N), **{**of(sampler), **arguments})


def batches(iterator: Any, count: int) -> list[list[int]]:
    return list(itertools.islice(iterator, count))


def orders(kind: type[Any], count: int) -> list[list[int]]:
    sampler = kind(7)
    cuttings = planner_of(serial(sampler)).cuttings_of(0)
    return [np.array(sampler.epoch(k, N, cuttings).order[:]).tolist() for k in range(count)]


def delivered(ranks: list[Any], n_steps: int = 10**9) -> list[int]:
    """The rows of all ranks' next steps that are no repetitions, in their order."""
    rows: list[int] = []
    for _ in range(n_steps):
        step = [(next(rank, None), rank.valid) for rank in ranks]
        if step[0][0] is None:
            break
        rows += [int(row) for batch, valid in step for row in np.array(batch)[valid]]
    return rows


def flat(parts: Any) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def test_epochs_come_in_the_order_of_their_numbers(make, kind):
    iterator = make(range(N), **of(kind(7)))
    expected = flat(orders(kind, 5))
    seen = flat(batches(iterator, 30))
    assert seen == expected[: len(seen)] and iterator.epoch >= 1


def test_it_resumes_exactly(make, save, load, kind):
    iterator = make(range(N), **of(kind(7)))
    for n_batches in (0, 3, 14):
        batches(iterator, n_batches)
        stored, state = save(iterator), json.loads(json.dumps(iterator.state_dict()))
        assert len(json.dumps(state)) <= 512
        expected = batches(iterator, 40)
        resumed = serial(kind(7))
        batches(resumed, 2)
        load(resumed, stored)
        assert batches(resumed, 40) == expected
        resumed.load_state_dict(state)
        assert batches(resumed, 40) == expected
        load(iterator, stored)
        assert batches(iterator, 40) == expected


@pytest.mark.parametrize("n_resets", [0, 1])
def test_an_endless_run_goes_on_where_a_single_epoch_has_ended(kind, save, load, n_resets):
    once = serial(kind(7), repeat=False)
    for _ in range(n_resets):
        list(once)
        once.reset()
    list(once)
    endless, expected = serial(kind(7)), orders(kind, n_resets + 4)[n_resets + 1 :]
    on_two = serial(kind(7), repeat=False, rank=1, num_ranks=2)  # the end by other arguments
    load_plain(on_two, once)
    ways = (lambda: load(endless, save(once)), lambda: load_plain(endless, once))
    for transport in (*ways, lambda: load_plain(endless, on_two)):
        transport()
        assert (endless.epoch, endless.current_position) == (1, 0)
        resumed = serial(kind(7))
        resumed.load_state_dict(endless.state_dict())
        seen = flat(batches(endless, 20))
        assert seen[:60] == flat(expected)[:60]
        assert flat(batches(resumed, 20)) == seen
    again = serial(kind(7), repeat=False)
    load_plain(again, once)
    assert next(again, None) is None
    again.reset()
    assert flat(again) == expected[0]


def load_plain(iterator: Any, of_other: Any) -> None:
    iterator.load_state_dict(json.loads(json.dumps(of_other.state_dict())))


def test_copies_pickles_and_resets_go_on(make, kind):
    iterator = make(range(N), **of(kind(7)))
    batches(iterator, 7)
    copied, pickled = copy.copy(iterator), pickle.loads(pickle.dumps(iterator))
    expected = batches(iterator, 20)
    assert batches(make.keep(copied), 20) == expected
    assert batches(make.keep(pickled), 20) == expected
    iterator.reset()
    resumed = serial(kind(7))
    resumed.load_state_dict(iterator.state_dict())
    assert batches(resumed, 20) == batches(iterator, 20)


def test_only_what_was_delivered_moves_the_number(kind):
    sampler = kind(7)
    iterator = serial(sampler, repeat=False)
    iterator.batch_at(0)
    assert sampler.number == 1  # of an iterator that is made now
    first = list(iterator)
    assert [list(serial(sampler, repeat=False)) for _ in range(2)] != [first, first]


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_ranks_share_each_step(kind, num_ranks):
    alone = serial(kind(7), repeat=False)
    rows = flat(alone)
    ranks = [
        serial(kind(7), rank=r, num_ranks=num_ranks, repeat=False, tail="mask")
        for r in range(num_ranks)
    ]
    assert len({len(rank) for rank in ranks}) == 1
    assert delivered(ranks) == rows


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5)])
def test_a_state_loads_on_other_ranks_and_with_another_batch_size(kind, before, after):
    def made(count: int, **arguments: Any) -> list[SerialIterator]:
        given = arguments if kind in ORDERS else {}
        other = {"rows": 3} if kind is Budget and arguments else {}
        return [
            serial(kind(7, **other), rank=r, num_ranks=count, repeat=False, tail="mask", **given)
            for r in range(count)
        ]

    rows = flat(serial(kind(7), repeat=False))
    first, second = made(before), made(after, batch_size=3)
    seen = delivered(first, 1)
    states = [iterator.state_dict() for iterator in first]
    assert states == states[:1] * before
    for iterator in second:
        iterator.load_state_dict(states[0])
    assert seen == rows[: len(seen)] and seen + delivered(second) == rows


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}], ids=["all", "full"])
def test_the_address_of_any_step_is_known(kind, num_ranks, options):
    options = options if kind in ORDERS else {}
    iterators = [serial(kind(7), rank=r, num_ranks=num_ranks, **options) for r in range(num_ranks)]
    asked, (first, *_) = serial(kind(7), num_ranks=num_ranks, rank=0, **options), iterators
    n_steps, expected = len(first), {}
    for step in range(40):
        for rank, iterator in enumerate(iterators):
            expected[step, rank] = next(iterator)
            assert iterator.address.indices.tolist() == expected[step, rank]
        if first.epoch == 0:
            assert step < n_steps
    for step, rank in [*expected][::-7]:
        assert asked.batch_at(step, rank=rank).indices.tolist() == expected[step, rank]
        asked.seek(step)
        assert next(asked) == expected[step, 0]
    assert len(asked.batch_at(2000).indices) > 0


def test_seeds_of_examples_follow_from_the_samplers_seed():
    def seeds(sampler: Any, **arguments: Any) -> list[int]:
        iterator = serial(sampler, **arguments)
        return flat(iterator.address.seeds.tolist() for _ in zip(range(20), iterator, strict=False))

    for each in (Curriculum, Draws, Balanced):
        first = seeds(each(7), seed_examples=True)
        assert len({*first}) == len(first)  # also where an index comes twice in an epoch
        assert seeds(each(7), seed_examples=True) == first
        assert not {*seeds(each(8), seed_examples=True)} & {*first}
        with pytest.raises(ValueError, match="a second seed, besides that of the sampler"):
            serial(each(7), seed_examples=3)
    assert seeds(Rotation(7), seed_examples=3) == seeds(Rotation(7), seed_examples=3)


# -- states that do not fit ------------------------------------------------------------------------


class Another(Strides):
    """Another class, of the same seed and arguments."""


class Zeros(Draws):
    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(super().epoch(number, n_examples).order * (number < 1))


class Backwards(ShuffleOrderSampler):
    """Another epoch than that of its base, which a state tells of by the seed alone."""

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(super().epoch(number, n_examples).order[::-1])


class Ordered:
    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(np.arange(n_examples))


class Mixed(Ordered, ShuffleOrderSampler):
    """The same by a second base."""


def test_a_subclass_with_another_epoch_goes_on_exactly():
    iterator, resumed = serial(Backwards(7)), serial(Backwards(7))
    assert (
        flat(batches(iterator, 11))[::-1] == flat(batches(serial(ShuffleOrderSampler(7)), 12))[3:47]
    )
    resumed.load_state_dict(iterator.state_dict())
    assert batches(resumed, 20) == batches(iterator, 20)


@pytest.mark.parametrize(
    ("saved", "here", "match"),
    [
        (Draws(7), Draws(8), "the seed differs"),
        (Draws(7), Draws(7, 31), r"Draws.epoch\(0\) gives another epoch"),
        (Strides(7), Strides(7, (3, 5)), r"arguments are \[2, 3, 5, 7\], here they are \[3, 5\]"),
        (Strides(7), Another(7), "another order sampler than this Another"),
        (Draws(7), Zeros(7), "another order sampler than this Zeros"),
        (Draws(7), ShuffleOrderSampler(7), "it is of another kind: a class of your own"),
        (ShuffleOrderSampler(7), Draws(7), "it is of another kind"),
        (ShuffleOrderSampler(7), Backwards(7), "it is of another kind"),
        (ShuffleOrderSampler(7), Mixed(7), "it is of another kind"),
        (Backwards(7), Mixed(7), "another order sampler than this Mixed"),
        (Balanced(7), Balanced(8), "the seed differs"),
        (Balanced(7), Budget(7), "'cut' cannot be read"),
        (Draws(7), Balanced(7), "saved without a batch_sampler"),
    ],
)
def test_states_of_other_samplers_are_refused(saved, here, match):
    iterator, other = serial(saved), serial(here)
    batches(iterator, 3)
    before = str(other.state_dict())
    with pytest.raises(ValueError, match=match):
        other.load_state_dict(iterator.state_dict())
    assert str(other.state_dict()) == before


def test_a_later_epoch_may_be_another_where_no_arguments_are_told():
    """The same rows came: the state is one of both."""
    iterator, other = serial(Draws(7)), serial(Zeros(7))
    assert batches(iterator, 3) == batches(other, 3)
    resumed = serial(Zeros(7))
    resumed.load_state_dict(other.state_dict())
    assert batches(resumed, 30) == batches(other, 30)


def test_a_dataset_that_has_grown():
    iterator = SerialIterator(range(10), 4, order_sampler=Rotation(7))
    seen = next(iterator)
    grown = SerialIterator(range(15), 4, order_sampler=Rotation(7))
    with pytest.raises(ValueError, match="load with strict=False"):
        grown.load_state_dict(iterator.state_dict())
    grown.load_state_dict(iterator.state_dict(), strict=False)
    seen += flat(batches(grown, 6))
    assert sorted(seen[:10]) == list(range(10)) and sorted(seen[10:25]) == list(range(15))
    iterator = SerialIterator(range(10), 4, order_sampler=Draws(7))
    grown = SerialIterator(range(15), 4, order_sampler=Draws(7))
    with pytest.raises(ValueError, match="Draws cannot go on with others"):
        grown.load_state_dict(iterator.state_dict(), strict=False)


# -- what a sampler may not give -------------------------------------------------------------------


class Given(EpochSampler):
    """Gives other orders from an epoch on."""

    def __init__(self, given: Any, since: int = 0) -> None:
        super().__init__(0)
        self.given, self.since = given, since

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Any:
        if number >= self.since:
            return self.given
        return Epoch(np.arange(n_examples), [0, n_examples] if cuttings else None)


WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.arange(6), TypeError, "must return fastiter.iterators.Epoch(order)"),
    (None, TypeError, "must return fastiter.iterators.Epoch(order)"),
    (Epoch(np.ones(6)), ValueError, "of integers, not of dtype float64"),
    (Epoch(np.ones((2, 3), int)), ValueError, "not ndarray of shape (2, 3)"),
    (Epoch(np.arange(1, 7)), ValueError, "gave the index 6, outside 0 .. 5"),
    (Epoch([0, -1, 2, 3, 4, 5]), ValueError, "gave the index -1, outside 0 .. 5"),
    (Epoch(7), ValueError, "one-dimensional array of integers, not int"),
]
OF_ORDERS = [
    *WRONG,
    (Epoch(np.arange(5)), ValueError, "an order of 5 indices where 6 were expected"),
    (Epoch(np.zeros(0, int)), ValueError, "an order of 0 indices where 6 were expected"),
    (Epoch(np.arange(6), [0, 6]), TypeError, "gives batches: pass it as batch_sampler="),
]
EMPTY = "gave an empty order (dataset length 6)"
CUTS = "must ascend from 0 to the length of the order, 6"
OF_BATCHES = [
    *(
        (given._replace(cuts=[0, 6]) if isinstance(given, Epoch) else given, *error)
        for given, *error in WRONG
    ),
    (Epoch(np.arange(6)), TypeError, "gave no cuts: return Epoch(order, cuts), or pass a sam"),
    (Epoch(np.zeros(0, int), [0, 0]), ValueError, EMPTY),
    (Epoch(np.arange(6), [0, 5]), ValueError, CUTS),
    (Epoch(np.arange(6), [1, 6]), ValueError, CUTS),
    (Epoch(np.arange(6), [0, 3, 3, 6]), ValueError, CUTS),
    (Epoch(np.arange(6), [6]), ValueError, CUTS),
    (Epoch(np.arange(6), [0.0, 6.0]), ValueError, "one-dimensional array of integers"),
    (Epoch(np.arange(6), 6), ValueError, "one-dimensional array of integers"),
]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("order_sampler", wrong) for wrong in OF_ORDERS),
        *(("batch_sampler", wrong) for wrong in OF_BATCHES),
    ],
)
def test_an_epoch_that_is_none_is_an_error_that_names_the_sampler(name, wrong):
    given, error, match = wrong
    size = {"batch_size": 2 if name == "order_sampler" else None}
    if "were expected" not in match:
        with pytest.raises(error, match=re.escape(match)) as caught:
            SerialIterator(range(6), **size, **{name: Given(given)})
        assert "Given" in str(caught.value)
    # Of a later epoch, the step that needs it: what comes before is delivered.
    iterator = SerialIterator(range(6), **size, **{name: Given(given, 1)})
    n_whole = len(iterator) - 1
    assert flat(batches(iterator, n_whole)) == list(range(6))[: 2 * n_whole]
    for _ in range(2):
        with pytest.raises(error, match=re.escape(match)) as caught:
            next(iterator)
        assert "Given" in str(caught.value)
        assert name == "batch_sampler" or iterator.current_position == 4


def test_a_computed_order_is_checked_where_it_is_sliced():
    class Wrong(Steps):
        def __getitem__(self, part: slice) -> Any:
            return super().__getitem__(part) + 1

    iterator = SerialIterator(range(6), 2, order_sampler=Given(Epoch(Wrong(6, 1))))
    assert batches(iterator, 2) == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="gave the index 6"):
        next(iterator)


def test_an_epoch_of_other_length_is_one_with_varies():
    class Varying(Given):
        varies = True

    iterator = SerialIterator(range(6), 2, order_sampler=Varying(Epoch(np.arange(5)), 1))
    assert flat(batches(iterator, 8)) == [*range(6), *range(5), *range(5)]
    with pytest.raises(ValueError, match="gave an empty order"):
        SerialIterator(range(6), 2, order_sampler=Varying(Epoch(np.zeros(0, int))))
    assert iterator.batch_at(4).indices.tolist() == [2, 3]


def test_what_a_sampler_tells_of_an_epoch_is_checked():
    class Counted(Balanced):
        wrong = 0

        def n_batches(self, number: int | None, n_examples: int, num_ranks: int) -> int:
            return np.bincount(CLASSES[:n_examples]).min() + self.wrong

    class Sized(Curriculum):
        wrong = 0

        def size(self, number: int, n_examples: int, within: int) -> int:
            return min(n_examples, 20 + 9 * number) + self.wrong

    far = SerialIterator(range(N), batch_sampler=Counted(7), rank=0, num_ranks=3).batch_at(10**6)
    assert far.epochs.tolist() == [10**6 // 5] * 3
    last = SerialIterator(range(N), 4, order_sampler=Sized(7), drop_last=True).batch_at(10**4)
    assert last.epochs[0] == 3 + (10**4 - 5 - 7 - 9) // 11
    counted = SerialIterator(range(N), batch_sampler=Counted(7))
    sized = SerialIterator(range(N), 4, order_sampler=Sized(7))
    Counted.wrong = Sized.wrong = -100  # that of any epoch: nothing waits for more
    with pytest.raises(ValueError, match=r"gave 15 batches, but its n_batches\(\) tells of -85"):
        counted.batch_at(100)
    with pytest.raises(ValueError, match=r"Sized.epoch\(0\) has no examples: size\(\) tells of"):
        sized.batch_at(100)
    Counted.wrong = Sized.wrong = 1
    with pytest.raises(ValueError, match=r"gave 15 batches, but its n_batches\(\) tells of 16"):
        SerialIterator(range(N), batch_sampler=Counted(7))
    with pytest.raises(ValueError, match=r"gave 20 examples, but its size\(\) tells of 21"):
        SerialIterator(range(N), 4, order_sampler=Sized(7))


def test_a_seed_or_arguments_that_tell_nothing_are_refused():
    class Mine(Draws):
        def __init__(self) -> None:
            self.seed, self.count = 7, 5  # type: ignore[assignment]

        def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
            return Epoch(np.arange(5))

    with pytest.raises(TypeError, match=r"seed of .*Mine is 7, .* call super\(\).__init__\(seed\)"):
        serial(Mine())

    class Told(Draws):
        def arguments(self) -> Any:
            return self.told

    for told in ([1], (np.arange(2000),), 3, (1, [2]), (np.float64(3),), (object(),)):
        sampler = Told(7)
        sampler.told = told  # type: ignore[attr-defined]
        with pytest.raises(TypeError, match=r"Told.arguments\(\) must give a tuple of int"):
            serial(sampler).state_dict()
    sampler.told = (1, 2.5, "a", b"b", (None, True))  # type: ignore[attr-defined]
    serial(sampler).load_state_dict(serial(sampler).state_dict() | {"epoch": 0})


def test_an_order_sampler_is_no_batch_sampler():
    for sampler in (Draws(7), ShuffleOrderSampler(7)):
        with pytest.raises(TypeError, match=r"epoch\(0\) gave no cuts: .* a sampler of orders"):
            SerialIterator(range(N), batch_sampler=sampler)
    with pytest.raises(TypeError, match=r"batch_sampler\(0\) must give a list"):
        SerialIterator(range(N), batch_sampler=ShuffleOrderSampler())


def test_what_a_sampler_raises_comes_from_the_step_that_needs_it():
    class Failing(Draws):
        def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
            if number == 1:
                raise OSError("no list of epoch 1")
            return super().epoch(number, n_examples)

    iterator = serial(Failing(7, 8))
    next(iterator)
    for _ in range(2):
        with pytest.raises(OSError, match="no list of epoch 1"):
            next(iterator)


# -- beside the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [Draws, Curriculum, Balanced])
def test_a_thread_draws_ahead(base):
    drawn: list[tuple[int, bool]] = []

    class Ahead(base):  # type: ignore[misc]
        draws_ahead = True

        def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
            drawn.append((number, threading.current_thread() is threading.main_thread()))
            return super().epoch(number, n_examples, cuttings)

    arguments = of(base(7))
    arguments = {k: Ahead(7) if isinstance(v, base) else v for k, v in arguments.items()}
    iterator = SerialIterator(range(N), **arguments)
    assert batches(iterator, 40) == batches(serial(base(7)), 40)
    assert drawn[0] == (0, True) and [number for number, _ in drawn[:3]] == [0, 1, 2]
    assert {is_main for _, is_main in drawn[1:]} == {False}


def test_a_sampler_that_is_called_is_not_numbered():
    """A subclass that has a ``__call__`` of its own, and the epochs of its base."""

    class Called(Draws):
        def __call__(self, order: Any, position: int) -> Any:
            return np.arange(len(order))[::-1]

    assert next(serial(Called(7))) == [46, 45, 44, 43]
    with pytest.raises(ValueError, match="known with a seed only"):
        serial(Called(7)).batch_at(0)


def test_called_by_hand_it_gives_one_epoch_after_the_other():
    sampler = Curriculum(7)
    order = sampler(np.arange(N), 0)
    following = sampler(order, 19)
    assert [order.tolist(), following.tolist()] == orders(Curriculum, 2)
    assert sampler.number == 2
    with pytest.raises(TypeError, match="pass it as batch_sampler="):
        Balanced(7)(np.arange(N), 0)


def test_a_class_without_an_epoch_cannot_be_made():
    with pytest.raises(TypeError, match="epoch"):
        EpochSampler(0)  # type: ignore[abstract]


def test_rows_of_epochs_in_an_order_of_the_users():
    """Of a dataset whose epochs differ, where the orders suit any number of rows."""
    offsets = np.cumsum([0, *np.random.RandomState(0).randint(3, 40, 60)])
    tokens = np.arange(offsets[-1], dtype=np.int32)
    dataset = TokenDataset(tokens, 32, packing="bfd", documents=offsets, seed=4)
    whole = SerialIterator(dataset, 4, order_sampler=Rotation(0))
    assert len(whole) > 3
    addresses = [(next(whole), whole.address.indices.tolist())[1] for _ in range(len(whole) + 3)]
    assert sorted(flat(addresses)[: len(dataset)]) == list(range(len(dataset)))
    assert whole.batch_at(2).indices.tolist() == addresses[2]
    resumed = SerialIterator(dataset, 4, order_sampler=Rotation(0))
    resumed.load_state_dict(whole.state_dict())
    assert [str(next(resumed)) for _ in range(9)] == [str(next(whole)) for _ in range(9)]
    with pytest.raises(ValueError, match="another order sampler"):
        SerialIterator(dataset, 4, order_sampler=ShuffleOrderSampler(0)).load_state_dict(
            whole.state_dict()
        )


class Short(EpochSampler):
    """Epochs of few examples, of different lengths."""

    varies = True

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(list(range((2, 3, 1, 5, 2)[number % 5])))


class DrawsOf:
    """Examples with random numbers by the seeds of examples, or by their generators."""

    def __init__(self, by_generators: bool) -> None:
        self.by_generators = by_generators

    def __len__(self) -> int:
        return 9

    def __getitem__(self, i: int) -> Any:
        return i, example_rng().random() if self.by_generators else random.random()


@pytest.mark.parametrize("by_generators", [False, True])
@pytest.mark.parametrize("kind", [SerialIterator, MultithreadIterator, MultiprocessIterator])
def test_batches_of_several_short_epochs_know_the_epoch_of_each_row(kind, by_generators):
    def run(batch_size, kind=kind):
        rows, epochs = [], []
        dataset = DrawsOf(by_generators)
        sampler = Short(7)
        with kind(
            dataset, batch_size, order_sampler=sampler, seed_examples=not by_generators
        ) as iterator:
            while len(rows) < 40:
                rows += next(iterator)
                epochs += iterator.address.epochs.tolist()
        return rows[:40], epochs[:40]

    expected = run(1, SerialIterator)
    for size in (1, 2, 3, 4, 7, 11):
        try:
            assert run(size) == expected
        except RuntimeError as error:
            # Of workers, which know the epochs of two.
            assert kind is MultiprocessIterator and by_generators and size > 3
            assert "pass a smaller batch_size" in str(error)
