"""concat_examples of a delivered batch: without a copy where possible, and right in any case."""

from __future__ import annotations

import copy
import functools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from comparison import same
from outside import is_shared

from fastiter import MultiprocessIterator, SerialIterator, concat_examples


class Quadruple(NamedTuple):
    image: np.ndarray
    label: int
    mask: np.ndarray
    twin: np.ndarray


class Mixed:
    """Fields of each sort, alike for all examples."""

    def __init__(self, size, container):
        self.size, self.container = size, container

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        image = np.arange(12.0).reshape(3, 4) + index
        label = index
        mask = np.arange(12).reshape(3, 4) % 2 == index % 2
        twin = image + 0.5
        if self.container == "tuple":
            return image, label, mask, twin
        if self.container == "named":
            return Quadruple(image, label, mask, twin)
        if self.container == "dict":
            return {"image": image, "label": label, "mask": mask, "twin": twin}
        return image


KINDS = ["bare", "tuple", "dict", "named"]


@pytest.fixture(scope="module", params=KINDS)
def pair(request):
    """The process iterator, and the serial one as its judge, at the same batch."""
    iterator, serial = pair_of(request.param)
    with iterator:
        yield iterator, serial


def pair_of(kind):
    dataset = Mixed(24, kind)
    iterator = MultiprocessIterator(dataset, 4, n_processes=2, shuffle=False, context="fork")
    serial = SerialIterator(dataset, 4, shuffle=False)
    for _ in range(3):  # columns are known from the second on
        next(iterator), next(serial)
    return iterator, serial


def fields(x):
    return list(x.values()) if isinstance(x, dict) else list(x) if isinstance(x, tuple) else [x]


def test_no_copy_is_made(pair):
    iterator, serial = pair
    batch, expected = next(iterator), concat_examples(next(serial))
    result = concat_examples(batch)
    same(result, expected)
    for number, column in enumerate(fields(result)):
        first = fields(batch[0])[number]
        if isinstance(first, np.ndarray):
            assert np.shares_memory(column, first)
            assert np.shares_memory(column[3], fields(batch[3])[number])
            column[2] = 0
            assert not fields(batch[2])[number].any()
            fields(batch[1])[number][:] = 1
            assert column[1].all()


class Ragged:
    """Rows of different lengths, beside a number and a column."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return np.full(1 + i * 7 % 30, i), i, np.float32([i, i])


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("padding", [0, (0, None, None), (-1, 0, 2.5)])
def test_workers_pad_where_the_batch_is_read_unless_it_is_copied(padding, copy):
    convert = functools.partial(concat_examples, padding=padding, copy=copy)
    arguments = {"shuffle": False, "converter": convert}
    serial = SerialIterator(Ragged(), 4, **arguments)
    with MultiprocessIterator(Ragged(), 4, n_processes=2, context="fork", **arguments) as iterator:
        for number in range(12):
            batch = next(iterator)
            same(batch, next(serial))
            if number > 4:  # the first ones are made before the columns are known
                assert {is_shared(column) for column in batch} == {not copy}


def test_the_second_time_is_a_copy(pair):
    iterator, serial = pair
    batch, expected = next(iterator), concat_examples(next(serial))
    first, second, third = (concat_examples(batch) for _ in range(3))
    for result in (first, second, third):
        same(result, expected)
    for a, b, c in zip(*map(fields, (first, second, third)), strict=True):
        assert not np.shares_memory(a, b)
        assert not np.shares_memory(b, c)


def test_copy_always_copies(pair):
    iterator, serial = pair
    batch, expected = next(iterator), concat_examples(next(serial))
    result = concat_examples(batch, copy=True)
    same(result, expected)
    for number, column in enumerate(fields(result)):
        first = fields(batch[0])[number]
        if isinstance(first, np.ndarray):
            assert not np.shares_memory(column, first)
        assert column.flags.writeable


@pytest.mark.parametrize("kind", KINDS)
def test_the_result_outlives_batch_and_iterator(kind):
    iterator, serial = pair_of(kind)
    result, expected = concat_examples(next(iterator)), concat_examples(next(serial))
    for _ in range(30):
        next(iterator)
    iterator.finalize()
    same(result, expected)


CHANGES = {
    "reversed": lambda b, c: b[::-1],
    "shuffled": lambda b, c: random.Random(0).sample(b, len(b)),
    "shorter": lambda b, c: b[:-1],
    "tail": lambda b, c: b[1:],
    "longer": lambda b, c: b + b[:1],
    "twice": lambda b, c: [b[0]] * 4,
    "mixed": lambda b, c: [b[0], c[1], b[2], c[3]],
    "two batches": lambda b, c: b + c,
    "slices": lambda b, c: [change(x, lambda a: a[1:]) for x in b],
    "one slice": lambda b, c: [change(b[0], lambda a: a[:]), *b[1:]],
    "transposed": lambda b, c: [change(x, lambda a: a.T) for x in b],
    "reshaped": lambda b, c: [change(x, lambda a: a.reshape(4, 3)) for x in b],
    "one copied": lambda b, c: [b[0], change(b[1], np.copy), *b[2:]],
    "all copied": lambda b, c: copy.deepcopy(b),
    "as float32": lambda b, c: [change(x, lambda a: a.astype("f4")) for x in b],
    "other bytes": lambda b, c: [change(x, lambda a: a.view(f"u{a.itemsize}")) for x in b],
    "a tuple of them": lambda b, c: tuple(b),
    "changed in place": lambda b, c: [change(x, double) for x in b],
    "read-only": lambda b, c: [change(x, lock) for x in b],
}


def change(example, function):
    if isinstance(example, dict):
        return {key: change(value, function) for key, value in example.items()}
    if isinstance(example, tuple):
        return tuple(change(value, function) for value in example)
    return function(example) if isinstance(example, np.ndarray) else example


def double(array):
    array += array
    return array


def lock(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_batch_is_joined_as_it_is(pair, name):
    iterator, serial = pair
    ours = next(iterator), next(iterator)
    theirs = next(serial), next(serial)
    for _ in range(2):
        same(
            concat_examples(CHANGES[name](*ours)),
            concat_examples(CHANGES[name](*theirs)),
        )


def test_fields_swapped_or_dropped(pair):
    iterator, serial = pair
    ours, theirs = next(iterator), next(serial)
    if isinstance(ours[0], np.ndarray):
        ours, theirs = ([{"a": a, "b": a} for a in batch] for batch in (ours, theirs))
    elif isinstance(ours[0], tuple):
        ours, theirs = ([(t[3], t[2], t[0], t[0]) for t in batch] for batch in (ours, theirs))
    else:
        ours, theirs = (
            [{"x": d["twin"], "y": d["image"]} for d in batch] for batch in (ours, theirs)
        )
    result = concat_examples(ours)
    same(result, concat_examples(theirs))
    columns = fields(result)
    for a in range(len(columns)):
        for b in range(a):
            assert not np.shares_memory(columns[a], columns[b])


def test_two_fields_that_interleave(pair):
    """Rows of two fields of the same dtype and shape must not be taken for one field."""
    iterator, serial = pair
    ours, theirs = next(iterator), next(serial)
    if not isinstance(ours[0], tuple):
        return
    ours, theirs = (
        [batch[0][0], batch[1][3], batch[2][0], batch[3][3]] for batch in (ours, theirs)
    )
    same(concat_examples(ours), concat_examples(theirs))


def test_an_attribute_changed_in_place(pair):
    iterator, serial = pair
    for attribute, value in (("shape", (4, 3)), ("shape", (12,))):
        results = []
        for batch in (next(iterator), next(serial)):
            for example in batch:
                for field in fields(example):
                    if isinstance(field, np.ndarray):
                        setattr(field, attribute, value)
            results.append(concat_examples(batch))
        same(*results)


@pytest.mark.parametrize("padding", [0, -1])
def test_padding_of_equal_shapes(pair, padding):
    iterator, serial = pair
    for _ in range(3):
        same(
            concat_examples(next(iterator), padding=padding),
            concat_examples(next(serial), padding=padding),
        )


@pytest.mark.parametrize(
    "convert",
    [
        concat_examples,
        functools.partial(concat_examples, padding=0),
        functools.partial(concat_examples, copy=True),
    ],
)
@pytest.mark.parametrize("container", ["bare", "tuple", "dict"])
def test_as_a_converter(container, convert):
    dataset = Mixed(24, container)
    serial = SerialIterator(dataset, 5, repeat=False, shuffle=False)
    with MultiprocessIterator(
        dataset, 5, repeat=False, n_processes=2, shuffle=False, context="fork", converter=convert
    ) as iterator:
        for ours, theirs in zip(iterator, serial, strict=True):
            same(ours, convert(theirs))
            for column in fields(ours):
                assert column.flags.writeable
                column[:] = 0


def test_threads_that_convert_one_batch_share_its_memory_once():
    # Beside the column is a field that has to be copied, which lets other threads run in between.
    own = np.zeros(1 << 16)
    with (
        MultiprocessIterator(
            Mixed(24, "bare"), 8, n_processes=2, shuffle=False, context="fork"
        ) as iterator,
        ThreadPoolExecutor(4) as threads,
    ):
        for _ in range(3):
            next(iterator)
        for _ in range(10):
            images = next(iterator)
            batch = [(own, image) for image in images]
            expected = np.array(images)
            converted = list(threads.map(concat_examples, [batch] * 4))
            assert all(np.array_equal(columns, expected) for _, columns in converted)
            assert sum(np.shares_memory(columns, images[0]) for _, columns in converted) == 1
