"""Converters, concat_examples among them: the same in every iterator."""

from __future__ import annotations

import functools
import itertools
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from comparison import assert_same

from fastiter import concat_examples


def add_up(batch: list[int], device: Any) -> tuple[int, Any]:
    return sum(batch), device


def test_converter_makes_the_batch(make):
    iterator = make(range(5), 2, shuffle=False, repeat=False, converter=add_up)
    assert list(iterator) == [(1, None), (5, None), (4, None)]


def count(batch: list[int]) -> int:
    return len(batch)


class Adder:
    def add(self, batch: list[int], *, scale: int = 1) -> int:
        return sum(batch) * scale

    def __call__(self, *batch_and_device: Any) -> Any:
        return batch_and_device


@pytest.mark.parametrize(
    ("converter", "expected"),
    [
        (count, 3),
        (tuple, (0, 1, 2)),  # a class
        (Adder().add, 3),
        (functools.partial(Adder().add, scale=2), 6),
        (functools.partial(add_up, device=5), (3, 5)),
        (Adder(), ([0, 1, 2], None)),  # has room for both
        (functools.partial(add_up), (3, None)),
    ],
)
def test_converter_of_one_parameter_gets_the_batch_only(make, converter, expected):
    iterator = make(range(3), 3, shuffle=False, converter=converter)
    assert next(iterator) == expected
    assert iterator.converter is converter


def as_array(batch: list[int]) -> np.ndarray:
    return np.array(batch)


def test_converter_of_one_parameter_and_a_device(make):
    """The converter's result is sent to the device."""
    device = SimpleNamespace(xp=np, send=lambda batch: ("sent", batch.tolist()))
    iterator = make(range(3), 3, shuffle=False, converter=as_array, device=device)
    assert next(iterator) == ("sent", [0, 1, 2])


def test_converter_of_one_parameter_under_each_start_method(make_started):
    assert next(make_started(range(3), 3, shuffle=False, converter=count)) == 3


class ManyLists(list):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


LISTS = [{"ids": [i] * (i % 3 + 1), "label": i} for i in range(6)]  # as Hugging Face's rows


@pytest.mark.parametrize("dataset", [LISTS, ManyLists(LISTS)])
def test_lists_of_numbers_are_padded_in_every_batch(make, dataset):
    padded = functools.partial(concat_examples, padding={"ids": -1})
    for batch in itertools.islice(make(dataset, 3, shuffle=False, converter=padded), 4):
        first = batch["label"][0]
        expected = [[first, -1, -1], [first + 1] * 2 + [-1], [first + 2] * 3]
        assert (batch["ids"].dtype, batch["ids"].tolist()) == (np.int64, expected)


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (
            np.zeros(3),
            ValueError,
            "example 0 (dataset index 8) has (2,), example 2 (dataset index",
        ),
        ("text", TypeError, "not 'text' of type str, as example 2 (dataset index 10) does"),
        ({"a": 1}, TypeError, "not {'a': 1} of type dict, as example 2 (dataset index 10) does"),
    ],
)
def test_error_of_concat_examples_names_field_and_dataset_index(make, fault, error, text):
    rows = [{"x": fault if index == 10 else np.zeros(2), "y": index} for index in range(12)]
    iterator = make(rows, 4, shuffle=False, converter=concat_examples)
    next(iterator), next(iterator)
    with pytest.raises(error, match=re.escape(text)) as caught:
        next(iterator)
    assert str(caught.value).startswith("field 'x': ")


@pytest.mark.parametrize("kind", [tuple, lambda fields: dict(enumerate(fields))])
def test_field_that_the_first_example_lacks_is_not_lost_in_silence(make, kind):
    rows = [kind([np.zeros(2)] * (3 if index == 10 else 2)) for index in range(12)]
    iterator = make(rows, 4, shuffle=False, converter=concat_examples)
    next(iterator), next(iterator)
    with pytest.raises(ValueError, match=r"example 2 \(dataset index 10\) has .*fields"):
        next(iterator)


@pytest.mark.parametrize("padding", [-1, (-1, None)])
def test_converter_with_padding_makes_what_the_list_of_examples_makes(make, padding):
    converter = functools.partial(concat_examples, padding=padding)
    rows = [(np.full(index + 1, index, dtype=np.int32), index) for index in range(5)]
    converted = make(rows, 3, repeat=False, shuffle=False, converter=converter)
    listed = make(rows, 3, repeat=False, shuffle=False)
    for arrays, examples in zip(converted, listed, strict=True):
        assert type(examples) is list
        assert_same(arrays, concat_examples(examples, padding=padding, copy=True))
