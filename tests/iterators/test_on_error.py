"""Examples that fail, where that is no reason to stop: ``on_error`` and ``skip_limit``."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import logging
import os
import pickle
import random
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
from epochs import Step, steps

from fastiter import (
    Epoch,
    EpochSampler,
    MultiprocessIterator,
    Replacement,
    SerialIterator,
    SkipLimitError,
    Skipped,
    concat_examples,
)
from fastiter.dataset.tabular import from_data


class Broken:
    """Pairs of an array and its index; raises at some of them."""

    def __init__(self, size: int, bad: Any, error: type[BaseException] = ValueError) -> None:
        self.size, self.bad, self.error = size, frozenset(bad), error

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        if index in self.bad:
            raise self.error(f"file {index} is broken")
        return self.example(index)

    def example(self, index: int) -> Any:
        return np.full((2, 3), index, dtype=np.float32), index


class BrokenNames(Broken):
    """Pairs of which one part has to be pickled."""

    def example(self, index: int) -> Any:
        return {"x": np.full(4, index), "name": f"name {index}"}


class BrokenMixture(Broken):
    """Now and then an example is unlike the first ones."""

    def example(self, index: int) -> Any:
        return (np.full((3, 1), index), index) if index % 5 == 4 else super().example(index)


class BrokenRagged(Broken):
    """Arrays of several lengths."""

    def example(self, index: int) -> Any:
        return np.full(1 + index % 4, index, dtype=np.int32), index


class BrokenTogether(Broken):
    """Many at once: the whole call fails with one of them."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class MyBase(BaseException):
    """Like what a decoder written in Rust raises when it panics."""


def numbers(batch: list[Any]) -> list[int]:
    """The indices of a batch's examples; checks that each example is all of that index."""
    found = []
    for example in batch:
        if isinstance(example, dict):
            array, index = example["x"], int(example["name"].split()[1])
        else:
            array, index = example
        assert (array == index).all()
        assert array.flags.writeable
        found.append(index)
    return found


class Seen(NamedTuple):
    numbers: list[int]
    position: int
    epoch: int
    is_new_epoch: bool
    previous_detail: float


def seen(iterator: Any, found: list[int]) -> Seen:
    return Seen(
        found,
        iterator.current_position,
        iterator.epoch,
        iterator.is_new_epoch,
        pytest.approx(iterator.previous_epoch_detail, rel=1e-12),
    )


def without(expected: Any, bad: frozenset[int]) -> Any:
    """The rows left of batches; a batch without any counts to the next."""
    pending: list[Step] = []
    for step in expected:
        pending.append(step)
        left = [index for index in step.indices if index not in bad]
        if left:
            is_new_epoch = any(step.is_new_epoch for step in pending)
            previous = pending[0].previous_detail
            yield Seen(left, step.position, step.epoch, is_new_epoch, previous)
            pending = []


# -- what is delivered -------------------------------------------------------------------------

BAD: dict[str, tuple[Any, int, int, bool]] = {  # dataset, size of batches, of an epoch, repeat
    "one": (Broken(7, [4]), 3, 7, True),
    "a whole batch": (Broken(12, [3, 4, 5]), 3, 12, False),
    "the last batch": (Broken(12, [9, 10, 11]), 3, 12, False),
    "the first and the last batch": (BrokenTogether(12, [0, 1, 2, 9, 10, 11]), 3, 12, True),
    "whole batches and more": (BrokenTogether(15, [2, 3, 4, 5, 6, 7, 8, 14]), 3, 15, True),
    "all but one": (Broken(9, [0, 1, 2, 3, 4, 5, 6, 8]), 2, 9, True),
    "longer than an epoch": (Broken(5, [1, 3]), 13, 5, True),
    "every second": (BrokenTogether(20, range(0, 20, 2)), 8, 20, False),
    "batches of one": (Broken(6, [2, 3, 5]), 1, 6, False),
}


@pytest.mark.parametrize("case", BAD)
def test_batches_keep_their_places_and_lose_their_broken_examples(make, case):
    dataset, batch_size, size, repeat = BAD[case]
    iterator = make(
        dataset, batch_size, shuffle=False, repeat=repeat, on_error="skip", skip_limit=None
    )
    plain = steps(itertools.repeat(range(size)), batch_size, repeat)
    for expected in itertools.islice(without(plain, dataset.bad), 12):
        assert seen(iterator, numbers(next(iterator))) == expected
    if not repeat:
        with pytest.raises(StopIteration):
            next(iterator)
        assert (iterator.epoch, iterator.current_position, iterator.is_new_epoch) == (1, 0, True)
    assert {record.index for record in iterator.skipped} == dataset.bad


@pytest.mark.parametrize("kind", [BrokenNames, BrokenMixture, BrokenRagged])
def test_examples_of_every_sort(make, kind):
    bad = {1, 2, 9, 12, 13, 14, 30}
    iterator = make(kind(31, bad), 4, shuffle=False, on_error="skip", skip_limit=None)
    held = [next(iterator) for _ in range(24)]
    found = [index for batch in held for index in numbers(batch)]
    expected = [index for _ in range(4) for index in range(31) if index not in bad]
    assert found == expected[: len(found)]
    assert len(found) > 60


def test_a_shuffled_epoch_has_each_good_index_once_in_the_samplers_order(make):
    np.random.seed(3)
    orders = [np.random.RandomState(3).permutation(50)]
    bad = set(random.Random(1).sample(range(50), 12))
    iterator = make(Broken(50, bad), 7, repeat=False, on_error="skip", skip_limit=12)
    found = [index for batch in iterator for index in numbers(batch)]
    assert found == [index for index in orders[0].tolist() if index not in bad]


def test_every_example_of_an_epoch_failing_is_an_error(make):
    iterator = make(Broken(5, range(5)), 2, shuffle=False, on_error="skip", skip_limit=None)
    for _ in range(2):
        with pytest.raises(SkipLimitError, match="nothing to deliver") as caught:
            next(iterator)
        assert str(caught.value.__cause__) == f"file {iterator.current_position - 1} is broken"


@pytest.mark.parametrize("error", [KeyError, StopIteration, MyBase, MemoryError])
def test_what_counts_as_an_examples_failure(make, error):
    iterator = make(
        Broken(9, [1, 5], error), 3, shuffle=False, repeat=False, on_error="skip", skip_limit=2
    )
    assert [numbers(batch) for batch in iterator] == [[0, 2], [3, 4], [6, 7, 8]]
    assert all(error.__name__ in record.error for record in iterator.skipped)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_who_asks_the_program_to_stop_is_never_skipped(make, error):
    iterator = make(Broken(6, [1], error), 3, shuffle=False, on_error="skip", skip_limit=None)
    raised: Any = error if make.kind.name == "serial" else RuntimeError
    with pytest.raises(raised) as caught:
        next(iterator)
    assert error.__name__ in repr(caught.value)
    assert iterator.skipped == []


class TooFew(BrokenTogether):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return super().__getitems__(indices)[1:]


def test_a_dataset_that_gives_too_few_is_never_skipped(make):
    iterator = make(TooFew(6, []), 3, shuffle=False, on_error="skip", skip_limit=None)
    with pytest.raises(ValueError, match="__getitems__"):
        next(iterator)
    assert iterator.skipped == []


# -- the limit ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "allowed"), [(0, 0), (2, 2), (0.29, 2), (0.01, 1)])
def test_the_limit_counts_in_each_epoch(make, limit, allowed):
    bad = [1, 4, 7, 9]
    iterator = make(Broken(10, bad), 5, shuffle=False, on_error="skip", skip_limit=limit)
    for epoch in range(3):
        for first in (0, 5):
            batch = [i for i in range(first, first + 5) if i not in bad]
            failed = sum(i < first + 5 for i in bad)
            if failed <= allowed:
                assert numbers(next(iterator)) == batch
                continue
            with pytest.raises(
                SkipLimitError, match=f"epoch {epoch} .* skip_limit={limit}"
            ) as caught:
                next(iterator)
            index = bad[max(allowed, 2 if first else 0)]
            assert type(caught.value.__cause__) is ValueError
            assert str(caught.value.__cause__) == f"file {index} is broken"
            assert iterator.current_position == (first + 5) % 10
    assert [record.index for record in iterator.skipped] == bad[:allowed]
    assert {record.times for record in iterator.skipped} <= {3}


def test_the_limit_in_batches_that_span_epochs(make):
    iterator = make(Broken(4, [3]), 10, shuffle=False, on_error="skip", skip_limit=1)
    for _ in range(4):
        next(iterator)
    assert iterator.skipped == [Skipped(3, 9, 10, "ValueError: file 3 is broken")]


class Longer(EpochSampler):
    """Each epoch has ten examples more than the one before."""

    varies = True

    def epoch(self, number: int, n_examples: int, cuttings: Any = ()) -> Epoch:
        return Epoch(np.arange(10 * number + 10))


def test_a_share_of_epochs_that_differ_in_length(make):
    arguments = {"order_sampler": Longer(), "on_error": "skip", "skip_limit": 0.1}
    iterator = make(Broken(500, [3, 5, 7]), 100, **arguments)
    for _ in range(3):  # of epochs 0 to 3, then 4 and 5, then 5 to 7
        next(iterator)
    assert [(each.index, each.times) for each in iterator.skipped] == [(3, 8), (5, 8), (7, 8)]


def test_by_default_one_percent_is_allowed(make):
    iterator = make(Broken(200, [3, 10, 150]), 100, shuffle=False, on_error="skip")
    assert len(next(iterator)) == 98
    with pytest.raises(SkipLimitError, match=r"skip_limit=0.01, 2 of 200, allows"):
        next(iterator)


def test_a_share_that_is_whole_but_for_its_rounding(make):
    assert 0.29 * 100 < 29
    options = {"shuffle": False, "on_error": "skip", "skip_limit": 0.29}
    assert len(next(make(Broken(100, range(29)), 100, **options))) == 71


@pytest.mark.parametrize(
    ("error", "name", "arguments"),
    [
        (ValueError, "on_error", {"on_error": "ignore"}),
        (TypeError, "on_error", {"on_error": None}),
        (TypeError, "on_error", {"on_error": True}),
        (ValueError, "skip_limit", {"on_error": "skip", "skip_limit": -1}),
        (ValueError, "skip_limit", {"on_error": "skip", "skip_limit": 1.5}),
        (ValueError, "skip_limit", {"on_error": "skip", "skip_limit": float("nan")}),
        (TypeError, "skip_limit", {"on_error": "skip", "skip_limit": True}),
        (TypeError, "skip_limit", {"on_error": "skip", "skip_limit": "1 %"}),
        (ValueError, "on_error='skip'", {"skip_limit": 3}),
    ],
)
def test_arguments_are_checked_by_the_constructor(make, error, name, arguments):
    with pytest.raises(error, match=name):
        make(range(3), 1, **arguments)


def test_attributes(make):
    iterator = make(range(3), 1)
    assert (iterator.on_error, iterator.skip_limit, iterator.skipped) == ("raise", 0.01, [])
    iterator = make(range(3), 1, on_error="skip", skip_limit=np.int64(3))
    assert (iterator.on_error, iterator.skip_limit) == ("skip", 3)


# -- records and the log -------------------------------------------------------------------------


@pytest.mark.no_stuck_rows("nothing else is to be logged")
def test_skipped_indices_are_listed_and_logged_once(make, caplog):
    caplog.set_level(logging.WARNING, "fastiter")
    iterator = make(Broken(6, [1, 4]), 3, shuffle=False, on_error="skip", skip_limit=2)
    for _ in range(5):
        next(iterator)
    assert iterator.skipped == [
        Skipped(1, 2, 3, "ValueError: file 1 is broken"),
        Skipped(4, 1, 2, "ValueError: file 4 is broken"),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "skipped dataset index 1 in epoch 0: ValueError: file 1 is broken",
        "skipped dataset index 4 in epoch 0: ValueError: file 4 is broken",
    ]
    iterator.reset()
    assert len(iterator.skipped) == 2


class LongStory(Broken):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("several\nlines " + "x" * 100_000)


def test_ten_thousand_indices_are_listed_at_most(caplog):
    caplog.set_level(logging.WARNING, "fastiter")
    n = 10_020
    dataset = Broken(n, range(1, n))
    iterator = SerialIterator(dataset, n, shuffle=False, on_error="skip", skip_limit=10_010)
    with pytest.raises(SkipLimitError, match="skip_limit=10010"):
        next(iterator)
    assert [record.index for record in iterator.skipped] == list(range(1, 10_001))
    assert caplog.messages[9_999].startswith("skipped dataset index 10000 in epoch 0: ")
    assert caplog.messages[10_000:] == ["10000 indices were skipped; no more are listed"]


def test_texts_are_cut_to_one_short_line(make):
    iterator = make(
        LongStory(3, []),
        1,
        shuffle=False,
        on_error=lambda index, error: Replacement(index) if index else "skip",
        skip_limit=2,
    )
    assert next(iterator) == [1]
    (record,) = iterator.skipped
    assert record.error.startswith("ValueError: several lines xxx")
    assert len(record.error) == 200


# -- a callable decides --------------------------------------------------------------------------


class Decider:
    """Notes what it is asked, and answers as it is told."""

    def __init__(self, answers: dict[int, Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, str]] = []
        self.where: set[tuple[int, int]] = set()

    def __call__(self, index: int, error: Exception) -> Any:
        self.asked.append((index, repr(error)))
        self.where.add((os.getpid(), threading.get_ident()))
        answer = self.answers.get(index, "skip")
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_callable_decides_in_the_callers_thread_in_the_order_of_delivery(make):
    stand_in = (np.full(7, 50), 50)
    decide = Decider({2: Replacement(stand_in), 5: "raise", 9: LookupError("mine"), 10: None})
    bad = [0, 2, 3, 5, 8, 9, 10]
    iterator = make(Broken(12, bad), 2, shuffle=False, on_error=decide, skip_limit=None)
    got: list[Any] = []
    for _ in range(6):
        try:
            got.append(numbers(next(iterator)))
        except Exception as error:
            got.append((type(error), str(error)[:20]))
    assert got == [
        [1],
        [50],
        (ValueError, "file 5 is broken"),
        [6, 7],
        (LookupError, "mine"),
        (TypeError, "on_error returned No"),
    ]
    assert decide.asked == [(i, f"ValueError('file {i} is broken')") for i in bad]
    assert decide.where == {(os.getpid(), threading.get_ident())}
    assert [record.index for record in iterator.skipped] == [0, 3, 8]


def joined(batch: list[Any], device: Any) -> tuple[list[int], int]:
    return numbers(batch), os.getpid()


CONVERTERS: dict[str, tuple[Any, Any]] = {
    "columns": (Broken, concat_examples),
    "copies": (Broken, functools.partial(concat_examples, copy=True)),
    "unlike": (BrokenMixture, functools.partial(concat_examples, padding=-1)),
    "padded": (
        BrokenRagged,
        functools.partial(concat_examples, padding=-1, max_length=3, return_lengths=(True, False)),
    ),
    "any": (BrokenRagged, joined),
    "in one call": (BrokenTogether, concat_examples),
}


def listed(result: Any) -> list[Any]:
    if isinstance(result[0], list):
        return [result[0]]
    return [(array.dtype, array.tolist()) for array in result]


@pytest.mark.parametrize(
    ("name", "replaces"),
    [*((name, False) for name in CONVERTERS), ("columns", True), ("padded", True), ("any", True)],
)
def test_converters_get_the_examples_that_are_left(make, name, replaces):
    kind, converter = CONVERTERS[name]
    bad = [1, 2, 7, 8, 9, 10, 11, 18]
    dataset = kind(20, bad)
    decide: Any = "skip"
    if replaces:
        decide = Decider({8: Replacement(dataset.example(3)), 18: Replacement(dataset.example(8))})
    arguments: Any = {"shuffle": False, "on_error": decide, "skip_limit": None}
    converted = make(dataset, 4, converter=converter, **arguments)
    plain = SerialIterator(dataset, 4, **arguments)
    held = []
    for _ in range(12):
        result, expected = next(converted), converter(next(plain), None)
        assert listed(result) == listed(expected)
        if name == "any":
            assert result[1] == os.getpid() or make.kind.name == "processes"
            assert result[1] != os.getpid() or make.kind.name != "processes" or replaces
        held.append((result, listed(expected)))
    assert all(listed(result) == expected for result, expected in held)
    assert converted.skipped == plain.skipped


def test_a_column_with_gaps_closed_is_still_shared_memory():
    from fastiter._ring.lease import Lease

    dataset = Broken(40, range(1, 40, 3))
    iterator = MultiprocessIterator(
        dataset,
        10,
        n_processes=2,
        shuffle=False,
        context="fork",
        on_error="skip",
        skip_limit=None,
        converter=concat_examples,
    )
    with iterator:
        for number in range(12):
            array, index = next(iterator)
            left = [i for i in range(10 * number % 40, 10 * number % 40 + 10) if i % 3 != 1]
            assert index.tolist() == left
            assert (array == np.array(left, dtype=np.float32)[:, None, None]).all()
            if number > 4:  # what the examples have in common is known
                assert type(array.base) is Lease
        assert iterator.stats().copied_out == 0


def test_a_dataset_of_columns(make):
    def column(indices: Any) -> Any:
        if indices is None:
            indices = range(12)
        wanted = [indices] if isinstance(indices, int) else list(indices)
        if {3, 4} & set(wanted):
            raise OSError("a page cannot be read")
        found = np.array(wanted) * 10
        return found[0] if isinstance(indices, int) else found

    dataset = from_data((("x", column), np.arange(12)), size=12)
    for converter in (None, concat_examples):
        iterator = make(
            dataset,
            5,
            shuffle=False,
            repeat=False,
            on_error="skip",
            skip_limit=2,
            converter=converter,
        )
        got = list(iterator)
        if converter is None:
            got = [tuple(zip(*batch, strict=True)) for batch in got]
        found = [[int(i) for i in batch[1]] for batch in got]
        assert found == [[0, 1, 2], [5, 6, 7, 8, 9], [10, 11]]
        assert [int(x) for x in got[0][0]] == [0, 10, 20]
        assert [record.index for record in iterator.skipped] == [3, 4]


# -- snapshots, copies -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_before", [2, 5, 7])
def test_a_resumed_iteration_skips_and_counts_as_the_other(make, save, load, n_before):
    bad = [1, 4, 5, 9]
    arguments: Any = {"shuffle": False, "on_error": "skip", "skip_limit": 3}
    source = make(Broken(11, bad), 2, **arguments)
    resumed = SerialIterator(Broken(11, bad), 2, **arguments)
    for _ in range(n_before):
        try_next(source)
    next(resumed)
    load(resumed, save(source))
    loaded = SerialIterator(Broken(11, bad), 2, **arguments)
    loaded.load_state_dict(json.loads(json.dumps({**source.state_dict(), "order": -1})))
    saved = SerialIterator(Broken(11, bad), 2, **arguments)
    saved.load_state_dict(save(source))
    others = [resumed, loaded, saved, copy.copy(source), pickle.loads(pickle.dumps(source))]
    for _ in range(14):
        assert all(other.skipped == source.skipped for other in others)
        expected = try_next(source)
        assert [try_next(make.keep(other)) for other in others] == [expected] * 5
    back = make(Broken(11, bad), 2, **arguments)
    load(back, save(resumed))
    assert try_next(back) == try_next(source)
    assert back.skipped == source.skipped
    assert sum(record.times for record in source.skipped) > 5


def try_next(iterator: Any) -> Any:
    try:
        return seen(iterator, numbers(next(iterator)))
    except SkipLimitError as error:
        return str(error)


def test_snapshots_without_the_entry_and_iterators_without_skips(make, save, load):
    plain = make(Broken(8, []), 2, shuffle=False)
    next(plain)
    stored = save(plain)
    assert "skipped" not in stored and "skipped" not in plain.state_dict()
    skipping = make(Broken(8, [0, 2]), 2, shuffle=False, on_error="skip", skip_limit=3)
    assert numbers(next(skipping)) == [1]
    with_entry = save(skipping)
    load(skipping, stored)
    assert skipping.skipped == []
    assert numbers(next(skipping)) == [3]
    load(plain, with_entry)
    assert numbers(next(plain)) == [2, 3]


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b"{}",
        b'{"epoch":-1,"count":0,"records":[]}',
        b'{"epoch":0,"count":1.5,"records":[]}',
        b'{"epoch":0,"count":0,"records":[[1,0,1]]}',
        b'{"epoch":0,"count":0,"records":[["1",0,1,"x"]]}',
        b'{"epoch":0,"count":0,"records":[[1,0,1,null]]}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_entry_is_refused_and_changes_nothing(make, save, load, damaged):
    iterator = make(Broken(8, [0]), 2, shuffle=False, on_error="skip", skip_limit=3)
    next(iterator)
    stored = {**save(iterator), "skipped": np.frombuffer(damaged, np.uint8)}
    next(iterator)
    before = iterator.state_dict()
    for loads in (lambda: load(iterator, stored), lambda: iterator.load_state_dict(stored)):
        with pytest.raises(ValueError, match="skipped"):
            loads()
    with pytest.raises(ValueError, match="skipped"):
        iterator.load_state_dict({**before, "skipped": np.int64(3)})
    assert iterator.state_dict() == before
    assert numbers(next(iterator)) == [4, 5]


# -- interrupts ------------------------------------------------------------------------------------


def test_an_interrupted_batch_is_counted_once(make):
    asked: list[int] = []

    def decide(index: int, error: Exception) -> str:
        asked.append(index)
        if index == 5 and asked.count(5) < 3:
            raise KeyboardInterrupt
        return "skip"

    iterator = make(Broken(9, [4, 5]), 3, shuffle=False, on_error=decide, skip_limit=2)
    assert numbers(next(iterator)) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert iterator.current_position == 3
    assert numbers(next(iterator)) == [3]
    assert numbers(next(iterator)) == [6, 7, 8]
    assert [(record.index, record.times) for record in iterator.skipped] == [(4, 1), (5, 1)]


# -- processes ------------------------------------------------------------------------------------


def test_under_each_start_method(make_started):
    iterator = make_started(
        Broken(9, [3, 4, 5, 7]),
        3,
        shuffle=False,
        repeat=False,
        on_error="skip",
        skip_limit=4,
        converter=concat_examples,
    )
    assert [index.tolist() for _, index in iterator] == [[0, 1, 2], [6, 8]]
    assert [record.index for record in iterator.skipped] == [3, 4, 5, 7]
