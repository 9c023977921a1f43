"""Readers of datasets, and learners of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastiter._fetch.reader import ColumnsReader, DatasetReader, ManyReader, reader_of
from fastiter._order.plan import Plan
from fastiter._ring.infer_schema import ColumnLearner
from fastiter.datasets import TupleDataset


class Singles:
    """Raises for the indices of `failing`."""

    def __init__(self, failing: dict[int, BaseException] | None = None) -> None:
        self.failing = failing or {}
        self.calls: list[Any] = []

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.calls.append(index)
        if index in self.failing:
            raise self.failing[index]
        return 10 * index


class Many(Singles):
    def __getitems__(self, indices: list[int]) -> list[int]:
        found = [Singles.__getitem__(self, index) for index in indices]
        return found[:-1] if 99 in indices and len(indices) > 1 else found


def examples(dataset: Any, indices: list[int], tolerates: bool, *part: int) -> Any:
    array = np.array(indices, np.int64)
    origin = (0, 0), Plan(array, None, origin=(0, len(array), 100))
    found, failures = reader_of(dataset).examples(array, origin, tolerates, *part)
    return found, {failure.row: type(failure.error) for failure in failures}


def test_the_reader_is_chosen_by_what_the_dataset_offers():
    assert type(reader_of(Singles())) is DatasetReader
    assert type(reader_of(Many())) is ManyReader
    assert type(reader_of(TupleDataset(np.arange(3), np.arange(3.0)))) is ColumnsReader


@pytest.mark.parametrize("kind", [Singles, Many])
def test_the_other_rows_are_read_where_failures_are_tolerated(kind):
    dataset = kind({3: ValueError(), 7: KeyError()})
    assert examples(dataset, [1, 3, 5, 7], True) == ([10, 50], {1: ValueError, 3: KeyError})
    assert examples(dataset, [1, 3, 5, 7], True, 2, 4) == ([50], {3: KeyError})


@pytest.mark.parametrize("kind", [Singles, Many])
def test_the_first_failure_is_raised_where_none_is_tolerated(kind):
    dataset = kind({3: ValueError(), 7: KeyError()})
    with pytest.raises(ValueError):
        examples(dataset, [1, 3, 5, 7], False)
    assert dataset.calls == [1, 3]


@pytest.mark.parametrize("kind", [Singles, Many])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_ends_the_program_is_never_tolerated(kind, error):
    with pytest.raises(error):
        examples(kind({3: error()}), [1, 3, 5], True)


def test_a_wrong_number_of_examples_fails_the_call_and_nothing_is_read_again():
    dataset = Many()
    found, failures = examples(dataset, [1, 99, 5], True)
    assert found == []
    assert [*failures] == [0]
    assert dataset.calls == [1, 99, 5]


def test_of_columns_the_dataset_itself_says_which_row_does_not_exist():
    dataset = TupleDataset(np.arange(3), np.arange(3.0))
    assert examples(dataset, [2, 0], True) == ([(2, 2.0), (0, 0.0)], {})
    assert examples(dataset, [2, 3, 0], True) == ([(2, 2.0), (0, 0.0)], {1: IndexError})


def test_columns_change_when_an_eighth_of_the_rows_did_not_fit():
    learner = ColumnLearner(32)
    first = learner.learn(None, 16, [np.zeros(3)] * 16)
    assert first is learner.schema is not None
    assert learner.learn(first, 16, [np.zeros(4)]) is None
    assert learner.learn(first, 16, []) is None
    wider = learner.learn(first, 16, [np.zeros(4)] * 2)
    assert wider is learner.schema is not first
    assert wider.has_lists  # which fits both shapes
    # Of a batch that was begun with the columns of before:
    assert learner.learn(first, 16, [1] * 16) is None


def test_columns_change_a_few_times_at_most():
    learner = ColumnLearner(32, 1)
    assert learner.learn(None, 1, [1]) is not None
    assert learner.learn(learner.schema, 1, ["text"]) is None
