"""Random numbers of an example: the same whoever fetches it, and after a resume."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import sys

import numpy as np
import pytest
from failing import Calling

from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    ShuffleOrderSampler,
    concat_examples,
)
from fastiter.datasets import ConcatenatedDataset, SubDataset, TransformDataset
from fastiter.random import example_rng

N = 10


class Draws:
    """Examples of an index and numbers of its own."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i, example_rng().integers(2**62)


class Squares:
    """Gives many at once."""

    def __len__(self):
        return N

    def __getitem__(self, i):
        return i

    def __getitems__(self, indices):
        return list(indices)


def with_noise(i):
    return i, example_rng().integers(2**62)


KINDS = {
    "serial": (SerialIterator, {}),
    "threads": (MultithreadIterator, {"n_threads": 3, "n_prefetch": 2}),
    "in-process": (MultiprocessIterator, {"n_processes": 0}),
    "one process": (MultiprocessIterator, {"n_processes": 1, "context": "fork"}),
    "processes": (MultiprocessIterator, {"n_processes": 3, "n_prefetch": 3, "context": "fork"}),
    "short-lived processes": (
        MultiprocessIterator,
        {"n_processes": 2, "maxtasksperchild": 2, "context": "fork"},
    ),
}


@pytest.fixture(params=KINDS)
def make(request):
    made = []
    cls, fixed = KINDS[request.param]

    def build(dataset, batch_size, **arguments):
        made.append(cls(dataset, batch_size, **{**fixed, **arguments}))
        return made[-1]

    build.keep = made.append
    yield build
    for iterator in made:
        iterator.finalize()


def taken(iterator, n_batches):
    return [row for _ in range(n_batches) for row in next(iterator)]


def expected(seed, batch_size, n_batches):
    """The right numbers of a seeded sampler's iterator, by the arguments of each row."""
    sampler = ShuffleOrderSampler(seed)
    order, rows = range(N), []
    for epoch in range(n_batches * batch_size // N + 1):
        order = sampler(order, 0)
        rows += [(i, example_rng(seed, epoch, i).integers(2**62)) for i in order.tolist()]
    return rows[: n_batches * batch_size]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("batch_size", [3, 5, 34])
def test_every_iterator_gives_the_numbers_of_seed_epoch_and_index(make, batch_size):
    iterator = make(Draws(), batch_size, order_sampler=ShuffleOrderSampler(5))
    assert taken(iterator, 9) == expected(5, batch_size, 9)


def test_spawned_workers():
    arguments = {"order_sampler": ShuffleOrderSampler(5), "n_processes": 2, "context": "spawn"}
    with MultiprocessIterator(Draws(), 3, **arguments) as iterator:
        assert taken(iterator, 9) == expected(5, 3, 9)


def test_workers_that_an_example_forks_have_their_own_numbers():
    def nest(i):
        arguments = {"order_sampler": ShuffleOrderSampler(5), "n_processes": 2, "context": "fork"}
        with MultiprocessIterator(Draws(), 3, **arguments) as iterator:
            return taken(iterator, 9)

    nested = Calling(nest, 2)
    with SerialIterator(nested, 2, order_sampler=ShuffleOrderSampler(7)) as iterator:
        assert next(iterator) == [expected(5, 3, 9)] * 2


def test_a_batch_that_ends_the_iteration(make):
    iterator = make(Draws(), 4, repeat=False, order_sampler=ShuffleOrderSampler(5))
    assert [row for batch in iterator for row in batch] == expected(5, 1, N)


def test_functions_of_many_examples(make):
    base = TransformDataset(Squares(), with_noise)
    iterator = make(base, 4, order_sampler=ShuffleOrderSampler(5))
    assert taken(iterator, 8) == expected(5, 4, 8)


TEXTS = TransformDataset(Squares(), str)


def with_a_window(i):
    """Reads as many examples as a batch has, by one call."""
    for dataset in (TEXTS, ConcatenatedDataset(TEXTS, TEXTS)):
        dataset.__getitems__([i, 0, 1, 2])
    return i, example_rng().integers(2**62)


def test_an_example_may_read_many_others(make):
    base = TransformDataset(Squares(), with_a_window)
    iterator = make(base, 4, order_sampler=ShuffleOrderSampler(5))
    assert taken(iterator, 8) == expected(5, 4, 8)


def test_without_a_seed_the_generator_tells(make):
    kinds = [
        {"shuffle": False},
        {"shuffle": True},
        {"order_sampler": lambda order, position: order},
    ]
    for arguments in kinds:
        found = []
        for seed in (1, 1, 2):
            np.random.seed(seed)
            other = SerialIterator(Draws(), 4, **arguments)
            np.random.seed(seed)
            found.append(taken(make(Draws(), 4, **arguments), 2))  # within the first epoch
            assert found[-1] == taken(other, 2)
        assert found[0] == found[1] != found[2]


def test_the_global_generator_does_not_move(make):
    np.random.seed(3)
    make(Draws(), 4, shuffle=False)
    assert np.random.random_sample() == np.random.RandomState(3).random_sample()


@pytest.mark.parametrize("generator", [np.random.RandomState, np.random.default_rng])
def test_a_generator_of_the_samplers_own_tells(generator):
    found = []
    for seed in (1, 1, 2):
        np.random.seed()
        sampler = ShuffleOrderSampler(generator(seed))
        found.append(taken(SerialIterator(Draws(), 4, order_sampler=sampler), 6))
    assert found[0] == found[1] != found[2]


# An order without a seed is an array, which JSON does not take.
@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("way", "shuffle"),
    [("json", False), *((w, s) for w in ("dict", "copy") for s in (False, True))]
    + [("serializer", True), ("pickle", False)],
)
def test_what_is_resumed_goes_on_with_the_same_numbers(make, save, load, way, shuffle):
    iterator = make(Draws(), 4, shuffle=shuffle)
    taken(iterator, 3)
    if way == "pickle":
        resumed = pickle.loads(pickle.dumps(iterator))
    elif way == "copy":
        resumed = copy.copy(iterator)
    else:
        np.random.seed()
        resumed = SerialIterator(Draws(), 4, shuffle=shuffle)
        if way == "serializer":
            load(resumed, save(iterator))
        else:
            state = iterator.state_dict()
            resumed.load_state_dict(json.loads(json.dumps(state)) if way == "json" else state)
    make.keep(resumed)
    n_batches = 1 if shuffle else 6  # the order that follows is the global generator's
    assert taken(resumed, n_batches) == taken(iterator, n_batches)


def test_a_reset_brings_other_numbers(make):
    iterator = make(Draws(), N, repeat=False, shuffle=False)
    passes = []
    for _ in range(3):
        passes.append(taken(iterator, 1))
        iterator.reset()
    assert len({row for rows in passes for row in rows}) == 3 * N


def test_a_snapshot_without_a_seed_leaves_it(save, load):
    iterator = SerialIterator(Draws(), 4, shuffle=False)
    stored = save(iterator)
    del stored["example_seed"]
    other = SerialIterator(Draws(), 4, shuffle=False)
    load(other, stored, strict=False)
    state = iterator.state_dict()
    del state["seed"]
    other.load_state_dict(state)


@pytest.mark.parametrize("wrong", [3, [1, 2, 3], [1.5, 2.5], ["a", "b"], [[1, 2]]])
def test_a_seed_that_is_none_is_refused(wrong):
    iterator = SerialIterator(Draws(), 4, shuffle=False)
    next(iterator)
    before = iterator.state_dict()
    with pytest.raises(ValueError, match="seed is"):
        iterator.load_state_dict({**before, "position": 0, "seed": wrong})
    assert iterator.state_dict() == before


def test_datasets_within_datasets():
    def pair(i):
        inner = taken(SerialIterator(Draws(), 2, order_sampler=ShuffleOrderSampler(9)), 1)
        return inner, example_rng().integers(2**62)

    iterator = SerialIterator(Calling(pair, N), 3, shuffle=False)
    seed = iterator.state_dict()["seed"]
    for inner, _ in taken(iterator, 4):
        assert inner == expected(9, 2, 1)
    assert len({number for _, number in taken(iterator, 3)}) == 9
    assert iterator.state_dict()["seed"] == seed


def test_the_index_is_the_one_that_the_iterator_asked_for():
    parts = ConcatenatedDataset(SubDataset(Draws(), 0, 5), SubDataset(Draws(), 0, 5))
    rows = taken(SerialIterator(parts, N, shuffle=False), 1)
    assert [row[0] for row in rows] == [*range(5), *range(5)]
    assert len({row[1] for row in rows}) == N


def draw_in_converter(batch, device):
    return example_rng().random()


class Many(Squares):
    def __getitems__(self, indices):
        return [example_rng().random() for _ in indices]


def test_where_no_example_is_fetched_it_is_an_error(make):
    with pytest.raises(RuntimeError, match="__getitem__"):
        example_rng()
    with pytest.raises(RuntimeError, match="a converter"):
        next(make(Squares(), 4, converter=draw_in_converter))
    with pytest.raises(RuntimeError, match="__getitems__"):
        next(make(Many(), 4))
    iterator = make(Draws(), 4, converter=concat_examples)
    next(iterator)
    with pytest.raises(RuntimeError, match="__getitem__"):
        example_rng()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators
@pytest.mark.parametrize(
    ("dataset", "on_error"), [(Draws, "raise"), (Draws, "skip"), (Squares, "raise")]
)
@pytest.mark.parametrize(
    "make",
    # What replaces a worker has hundreds of lines.
    [
        pytest.param(k, marks=[pytest.mark.stress] if k == "short-lived processes" else [])
        for k in KINDS
    ],
    indirect=True,
)
def test_an_interrupt_leaves_no_example_behind(make, dataset, on_error):
    iterator = make(dataset(), 2, on_error=on_error)
    next(iterator)
    countdown, program = 0, os.getpid()

    def interrupt(frame, event, argument):  # at one line of the package after the other
        nonlocal countdown
        is_ours = frame.f_globals.get("__name__", "").startswith("fastiter.")
        if not is_ours or os.getpid() != program:  # else a forked worker would die of it
            return None
        if event == "line":
            countdown -= 1
            if countdown == 0:
                raise KeyboardInterrupt
        return interrupt

    for number in itertools.count(1):
        countdown = number
        former = sys.gettrace()
        sys.settrace(interrupt)
        try:
            next(iterator)
            break  # it has fewer lines
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(former)
        with pytest.raises(RuntimeError, match="__getitem__"):
            example_rng()
    assert number > 5


def test_half_of_the_arguments_is_an_error():
    for arguments in ({"seed": 1}, {"epoch": 1, "index": 2}, {"seed": 1, "epoch": 2}):
        with pytest.raises(TypeError):
            example_rng(**arguments)
