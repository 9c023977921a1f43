"""Batches that threads copy into arrays row by row: the same as concat_examples makes them."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
from typing import Any

import numpy as np
import pytest
from batches import WITH_PADDING, WITHOUT_PADDING, Point
from comparison import assert_same, outcome
from failing import Failing

from fastiter._collate.collate import collate
from fastiter._collate.padding import Padding
from fastiter._threads.batch_buffer import BatchBuffer, Position
from fastiter._threads.collator import Assembler

EXAMPLES = {
    **{(name, None): list(batch) for name, batch in WITHOUT_PADDING.items() if type(batch) is list},
    **{(name, 0): list(batch) for name, (batch, _) in WITH_PADDING.items()},
}
BATCHES = {name: batch for name, batch in EXAMPLES.items() if batch}


def assembled(assembler: Assembler, examples: list[Any], first_part: int = 1) -> Any:
    rows = assembler.start(len(examples))
    rows.put(first_part, examples[first_part:])
    rows.put(0, examples[:first_part])
    return assembler.finish(rows)


def assert_same_outcome(result: Any, expected: Any) -> None:
    if isinstance(expected, Exception):
        assert (type(result), str(result)) == (type(expected), str(expected))
    else:
        assert_same(result, expected)


PADDINGS = [None, 0, 1.5, -1, (0, None), {"x": 0, "y": None}]


@pytest.mark.parametrize("n_after", [8, pytest.param(len(BATCHES), marks=pytest.mark.stress)])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_whatever_was_learnt_the_result_is_that_of_concat_examples(padding, n_after):
    choices = random.Random(str(padding))
    rule = Padding(padding)
    expected = {name: outcome(lambda b=b: collate(b, rule)) for name, b in BATCHES.items()}
    for learnt in BATCHES.values():
        assembler = Assembler(rule, False, 4)
        outcome(assembled, assembler, learnt)
        for name in choices.sample(list(BATCHES), n_after):
            assert_same_outcome(outcome(assembled, assembler, BATCHES[name]), expected[name])


OPTIONS = [
    {"max_length": 2},
    {"max_length": 9, "padding": 0},
    {"padding": 0, "pad_to_multiple": 4},
    {"padding": 0, "return_lengths": True},
    {"return_lengths": True},
    {"padding": (0, None), "return_lengths": (True, None)},
    {"padding": 0, "max_length": {"x": 1}, "return_lengths": {"x": True}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_give_what_they_give_to_concat_examples(options):
    rule = Padding(**options)
    equal = [np.arange(4) + i for i in range(3)]
    ragged = [np.arange(4 + i) for i in range(3)]
    for rows in (equal, ragged):
        for batch in (
            rows,
            [(row, i) for i, row in enumerate(rows)],
            [{"x": row, "y": float(i)} for i, row in enumerate(rows)],
            [{"y": row[0], "x": row} for row in rows],
            [Point(row, row[:2]) for row in rows],
        ):
            assembler = Assembler(rule, False, 3)
            expected = outcome(lambda batch=batch: collate(batch, rule))
            for _ in range(3):
                assert_same_outcome(outcome(assembled, assembler, batch), expected)


def test_rows_of_one_shape_are_copied_and_not_kept():
    assembler = Assembler(Padding(), False, 3)
    examples = [(np.full((200, 300), i, dtype=np.float32), i, np.float32(i)) for i in range(3)]
    assembled(assembler, examples)
    batch = assembler.start(3)
    images = [example[0] for example in examples]
    counts = [sys.getrefcount(image) for image in images]
    batch.put(0, examples)
    assert [sys.getrefcount(image) for image in images] == counts
    assert batch.is_complete
    assert batch.irregular() == []
    result = assembler.finish(batch)
    assert result[0] is batch.fields[0]
    for field, name in zip(result, ("float32", "int64", "float32"), strict=True):
        assert field.dtype == name
        assert np.all(field.reshape(3, -1) == np.arange(3)[:, np.newaxis])


def test_many_copies_of_any_size_are_right():
    shapes = [(3,), (64,), (200,), (5_000,), (40_000,), (0,)]
    random_rows = np.random.default_rng(0)
    examples = [
        tuple(random_rows.integers(0, 255, shape, dtype=np.uint8) for shape in shapes)
        for _ in range(70)
    ]
    for example in examples[::3]:  # some that are not contiguous
        assert example[4].size
    examples = [
        (*e[:4], np.repeat(e[4], 2)[::2], e[5]) if i % 3 == 0 else e for i, e in enumerate(examples)
    ]
    assembler = Assembler(Padding(), False, 70)
    assembled(assembler, examples)
    assert_same(assembled(assembler, examples, 33), collate(examples, Padding()))


def test_few_strange_rows_do_not_change_what_is_learnt():
    assembler = Assembler(Padding(), False, 32)
    usual: list[Any] = [(np.zeros(3), i) for i in range(32)]
    strange = [*usual[:31], (np.zeros(3), 2.5)]
    assembled(assembler, usual)
    assert_same(assembled(assembler, strange), collate(strange, Padding()))
    batch = assembler.start(32)
    batch.put(0, usual)
    assert batch.is_complete
    assembler.finish(batch)
    many = [*usual[:16], *[(np.zeros(3), 2.5)] * 16]
    assert_same(assembled(assembler, many), collate(many, Padding()))
    batch = assembler.start(32)
    batch.put(0, many)
    assert batch.is_complete  # the numbers are joined at the end


def test_fetch_tells_which_row_failed_and_keeps_those_before():
    error = LookupError("no five")
    dataset = Failing({5: error})
    rows = BatchBuffer(4)
    indices = np.array([3, 4, 5, 6])
    assert rows.fetch(dataset, indices, 0, 4, Position()) == (2, error)
    assert rows.examples()[:2] == [3, 4]
    assert rows.fetch(dataset, indices, 3, 4, Position()) is None
    assert rows.examples() == [3, 4, 6]


def test_fetch_stops_when_told():
    asked = []

    class Stopping:
        def __getitem__(self, index):
            asked.append(index)
            rows.stopped = True

    rows = BatchBuffer(3)
    assert rows.fetch(Stopping(), np.arange(3), 0, 3, Position()) is None
    assert asked == [0]


def test_dict_that_another_thread_changes_stays_whole():
    keys = ("x", "y")
    assembler = Assembler(Padding(), False, 64)
    shared = {key: np.full(30_000, 7, dtype=np.uint8) for key in keys}
    assembled(assembler, [shared] * 64)
    done = threading.Event()

    def change() -> None:
        for number in itertools.count():
            if done.is_set():
                return
            shared["x"] = np.full(30_000, number % 200, dtype=np.uint8)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(4):
            result = assembled(assembler, [shared] * 64)
            assert all(len(np.unique(row)) == 1 for row in result["x"])
    finally:
        done.set()
        changing.join()


def test_nothing_is_leaked():
    assembler = Assembler(Padding(0), False, 8)
    choices = random.Random(1)

    def once() -> None:
        for _ in range(200):
            batch = choices.choice(list(BATCHES.values()))
            outcome(assembled, assembler, batch)
            assembler_of_one = Assembler(Padding(), False, 8)
            for _ in range(2):
                outcome(assembled, assembler_of_one, batch)

    once()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        once()
    gc.collect()
    assert len(gc.get_objects()) - before < 100
