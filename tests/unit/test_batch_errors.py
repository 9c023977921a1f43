"""Errors of datasets and converters: what every iterator raises, and how it goes on."""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import time
import weakref
from typing import Any

import pytest
from failing import Failing

from fastiter import Replacement, SkipLimitError, concat_examples


def test_error_of_the_dataset_comes_as_itself_and_the_iteration_goes_on(make):
    iterator = make(Failing({3: KeyError("gone")}), 2, shuffle=False, repeat=False)
    assert next(iterator) == [0, 1]
    with pytest.raises(KeyError, match="gone"):
        next(iterator)
    assert iterator.current_position == 4
    assert list(iterator) == [[4, 5], [6, 7]]


def test_stop_iteration_of_the_dataset_is_no_end(make):
    iterator = make(Failing({0: StopIteration()}), 4, shuffle=False, repeat=False)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    assert list(iterator) == [[4, 5, 6, 7]]


MOVES = {
    "next": next,
    "reset": lambda iterator: iterator.reset(),
    "load_state_dict": lambda iterator: iterator.load_state_dict(iterator.state_dict()),
}


@pytest.mark.parametrize("move", [*MOVES, "serialize"])
def test_what_would_move_the_iterator_amid_next_is_refused(make, save, load, move):
    """A callable that the iterator calls may look and save, and `next()` does what it would do."""

    def decide(index, error):
        asked.append((index, iterator.current_position))
        with pytest.raises(RuntimeError, match="inside another call"):
            load(iterator, save(iterator)) if move == "serialize" else MOVES[move](iterator)
        return "skip"

    asked = []
    iterator = make(
        Failing({3: KeyError("gone")}), 2, shuffle=False, on_error=decide, skip_limit=None
    )
    for _ in range(2):
        assert [next(iterator) for _ in range(4)] == [[0, 1], [2], [4, 5], [6, 7]]
    assert asked == [(3, 2), (3, 2)]
    iterator.reset()
    assert next(iterator) == [0, 1]


class NoSuchRow(LookupError):
    """Can be referred to weakly."""


class Missing:
    """A new exception each time: the dataset keeps none of them."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise NoSuchRow(index)
        return index


class MissingMany(Missing):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


class MissingRun(Missing):
    """A whole batch of which nothing is left."""

    def __getitem__(self, index: int) -> int:
        if index >= 4:
            raise NoSuchRow(index)
        return index


class MissingRunOfMany(MissingRun, MissingMany):
    pass


class Tag:
    """Put into a list, it tells how long that lives: lists take no weak references."""


@contextlib.contextmanager
def all_die(iterator: Any) -> Any:
    """Gives a list of weak references to what has to die without a garbage collection."""
    alive: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        yield alive
        assert alive
        # Without a GIL, what one thread made and another lets go of dies when the first runs again.
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            iterator.finalize()
        end = time.monotonic() + 10
        while any(ref() is not None for ref in alive):  # a thread may not be through with it yet
            assert time.monotonic() < end
            time.sleep(0.001)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [Missing, MissingMany])
@pytest.mark.parametrize("converter", [None, concat_examples])
def test_error_that_nobody_keeps_is_gone(make, kind, converter):
    """And what its frames hold with it: no reference cycle has to be collected."""

    def raised(iterator: Any) -> Any:
        try:
            next(iterator)
        except NoSuchRow as error:
            return weakref.ref(error)

    iterator = make(kind(), 4, shuffle=False, converter=converter)
    next(iterator)
    with all_die(iterator) as alive:
        alive.append(raised(iterator))


@pytest.mark.parametrize("kind", [Missing, MissingMany, MissingRun, MissingRunOfMany])
@pytest.mark.parametrize("limit", [0, None])
def test_skipped_errors_are_gone(make, kind, limit):
    """Those that a SkipLimitError had as its cause too."""

    def skip(index: int, error: Exception) -> str:
        alive.append(weakref.ref(error))
        return "skip"

    def loop(iterator: Any) -> None:
        for _ in range(6):
            with contextlib.suppress(SkipLimitError):
                next(iterator)

    iterator = make(kind(), 4, shuffle=False, on_error=skip, skip_limit=limit)
    with all_die(iterator) as alive:
        loop(iterator)


def decide(decision: str, index: int, error: Exception) -> Any:
    return Replacement(-index) if decision == "replace" else decision


@pytest.mark.parametrize("kind", [Missing, MissingMany, MissingRun, MissingRunOfMany])
@pytest.mark.parametrize("decision", ["skip", "replace", "raise"])
def test_error_about_which_is_decided_keeps_no_batch(make, kind, decision):
    """The frames of what was skipped lead to the loop, and to its batches: memory of devices."""
    on_error = functools.partial(decide, decision)
    iterator = make(kind(), 4, shuffle=False, on_error=on_error, skip_limit=None)
    with all_die(iterator) as alive:
        for _ in range(6):
            try:
                batch = next(iterator)
            except NoSuchRow:
                continue
            batch.append(Tag())
            alive.append(weakref.ref(batch[-1]))
            del batch


def refuse_twos(batch: list[int], device: Any) -> list[int]:
    if 2 in batch:
        raise LookupError("a two")
    return batch


def test_error_of_the_converter_belongs_to_its_batch(make):
    iterator = make(range(6), 2, shuffle=False, repeat=False, converter=refuse_twos)
    assert next(iterator) == [0, 1]
    with pytest.raises(LookupError, match="a two"):
        next(iterator)
    assert iterator.current_position == 4
    assert next(iterator) == [4, 5]


def test_error_of_the_dataset_under_each_start_method(make_started):
    iterator = make_started(Failing({3: KeyError("gone")}), 4, shuffle=False, repeat=False)
    with pytest.raises(KeyError, match="gone"):
        next(iterator)
    assert next(iterator) == [4, 5, 6, 7]
