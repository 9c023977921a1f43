"""What is wrong is said where it is given: what was seen, what was expected, which parameter."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fastiter
from fastiter import (
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    concat_examples,
    datasets,
)
from fastiter.reader import multiprocess_reader

ITERATORS = [SerialIterator, MultithreadIterator, MultiprocessIterator]


class OfLength:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def raises(error, text):
    return pytest.raises(error, match=re.escape(text))


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize(
    ("length", "error", "seen"),
    [
        (-1, ValueError, "OfLength raised ValueError: __len__() should return >= 0"),
        (2.5, TypeError, "OfLength raised TypeError: 'float' object cannot be interpreted"),
        (1 << 70, ValueError, "OfLength raised OverflowError: cannot fit 'int'"),
    ],
)
def test_a_dataset_whose_length_is_none(kind, length, error, seen):
    with raises(error, seen) as caught:
        kind(OfLength(length), 2)
    assert "dataset must have a length from 0 to " in str(caught.value)


def test_an_array_without_an_axis_has_no_length():
    with raises(TypeError, "len() of this ndarray raised TypeError: len() of unsized object"):
        SerialIterator(np.array(5), 2)


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize("shuffle", [None, False])
def test_an_empty_dataset(kind, shuffle):
    with raises(ValueError, "an epoch must have at least one example: dataset is empty"):
        kind([], 2, shuffle=shuffle)


def test_an_empty_order_of_a_dataset_that_is_not():
    with raises(ValueError, "at least one example: order_sampler returned an empty order"):
        SerialIterator([1, 2], 1, order_sampler=lambda order, position: [])


@pytest.mark.parametrize("kind", ITERATORS)
def test_a_batch_beyond_counting(kind):
    with raises(ValueError, "batch_size must be at most 1073741824, not 1099511627776"):
        kind([1, 2], 1 << 40)


def test_no_memory_for_the_indices_of_a_batch():
    """Nothing is lost by it: the same batch is tried again, and a smaller one is there at once."""
    iterator = SerialIterator([1, 2, 3], 2, shuffle=False)
    with pytest.raises(MemoryError):
        fastiter.iterators._state.advance(iterator._planner.state, 1 << 58, True, None, lambda: 3)
    assert next(iterator) == [1, 2] and next(iterator) == [3, 1]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MultiprocessIterator, "n_processes"),
        (MultiprocessIterator, "n_prefetch"),
        (MultiprocessIterator, "n_device_prefetch"),
        (MultithreadIterator, "n_threads"),
        (MultithreadIterator, "n_prefetch"),
        (MultithreadIterator, "n_device_prefetch"),
    ],
)
def test_more_than_the_shared_segment_has_room_for(kind, name):
    with raises(ValueError, f"{name} must be at most 16384, not 16385"):
        kind([1, 2], 1, **{name: 16385})


def test_a_limit_that_is_neither_count_nor_share():
    with raises(TypeError, "skip_limit must be a count (an int), a share from 0.0 to 1.0, or None"):
        SerialIterator([1], 1, on_error="skip", skip_limit="half")


def test_a_state_that_is_no_mapping():
    with raises(TypeError, "state_dict must be a dict, as state_dict() returns it, not None"):
        SerialIterator([1], 1).load_state_dict(None)


# ---- concat_examples -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        ([(1, 2), (1,)], IndexError, "example 1 has no field 1, which example 0 has: it is (1,)"),
        ([{"a": 1}, {"b": 1}], KeyError, "example 1 has no field 'a', which example 0 has"),
        ([(1, 2), {"a": 1}], KeyError, "example 1 has no field 0, which example 0 has"),
        ([(1, 2), 3], TypeError, "example 1 has no field 0, which example 0 has: it is 3"),
        (["a", "b"], TypeError, "must hold arrays or numbers, not 'a' of type str"),
        ([None, None], TypeError, "must hold arrays or numbers, not None of type NoneType"),
        (
            [({"a": 1},), ({"a": 1},)],
            KeyError,
            "must hold arrays or numbers, not {'a': 1} of type dict",
        ),
        (5, TypeError, "batch must be a list of examples, not int"),
        (
            [np.zeros(2), np.zeros(2), np.zeros(3)],
            ValueError,
            "(2,) is that of example 0, (3,) that of example 2; set padding to fill them up",
        ),
        ([np.zeros(2), np.zeros((2, 2))], ValueError, "(2, 2) that of example 1; set padding"),
    ],
)
def test_examples_that_make_no_batch(batch, error, text):
    with raises(error, text):
        concat_examples(batch)


def test_padding_for_other_fields():
    with raises(IndexError, "padding has 1 entries for 2 fields: (0,)"):
        concat_examples([(np.zeros(2), 1), (np.zeros(3), 2)], padding=(0,))
    with raises(KeyError, "padding has no entry for the field 'b': {'a': 0}"):
        concat_examples([{"a": 1, "b": 2}], padding={"a": 0})


# ---- datasets and readers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: datasets.TupleDataset(), ValueError, "no datasets are given"),
        (lambda: datasets.TupleDataset([1], 5), TypeError, "dataset 1 must be a sequence with a"),
        (lambda: datasets.TupleDataset([1, 2], [1]), ValueError, "dataset 1 has 1 examples where"),
        (lambda: datasets.DictDataset(a=5), TypeError, "dataset 'a' must be a sequence with a"),
        (lambda: datasets.ConcatenatedDataset([1], None), TypeError, "dataset 1 must be a sequen"),
        (lambda: datasets.TransformDataset([1], None), TypeError, "transform must be callable"),
        (lambda: datasets.NpyDataset(5), TypeError, "paths must be a path, several of them, or a"),
        (lambda: datasets.ImageDataset(5), TypeError, "paths must be a list of paths, or the name"),
        (
            lambda: datasets.LabeledImageDataset(5),
            TypeError,
            "pairs must be a list of (path, label)",
        ),
        (
            lambda: datasets.LabeledImageDataset([("a", 0), ("b",)]),
            ValueError,
            "entry 1 of pairs must be (path, label), not ('b',)",
        ),
        (lambda: multiprocess_reader(None), TypeError, "readers must be a list of callables"),
    ],
)
def test_what_makes_no_dataset(make, error, text):
    with raises(error, text):
        make()
