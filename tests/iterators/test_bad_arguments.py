"""Errors of arguments come at the call, and name value, expectation and parameter."""

from __future__ import annotations

import argparse
import math
import re
from functools import partial

import numpy as np
import pytest
from inside import planner_of

from fastiter import (
    MixtureOrderSampler,
    MultiprocessIterator,
    MultithreadIterator,
    SerialIterator,
    VirtualShuffleOrderSampler,
    concat_examples,
    datasets,
)
from fastiter._cli.profile import profile
from fastiter._plan.epochs import Planner
from fastiter.random import example_rng, permutation, virtual_permutation
from fastiter.reader import (
    batch,
    buffered,
    firstn,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

ITERATORS = [SerialIterator, MultithreadIterator, MultiprocessIterator]


class OfLength:
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


class Endless:
    """As torch's IterableDataset: the class has ``__getitem__``, too."""

    def __getitem__(self, index):
        raise NotImplementedError

    def __iter__(self):
        return iter(int, 1)


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
@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ((i for i in range(9)), "but generator is not: if its examples fit into memory, use list("),
        (iter([1]), "use list(dataset); else use fastiter.datasets.StreamDataset(shards"),
        ({1, 2}, "but set is not: if its examples fit into memory, use list(dataset); else use"),
        (None, "dataset must be indexable (__getitem__ or __getitems__), but NoneType is not"),
        (OfLength, "is the class OfLength: make an object of it, OfLength(...)"),
        ({"x": [1], "y": [2]}, "this dict has the keys ['x', 'y']: if its values are columns, use"),
        (
            Endless(),
            "a length (__len__), but Endless has none: if its examples fit into memory, use",
        ),
    ],
)
def test_what_is_no_dataset(kind, dataset, text):
    with raises(TypeError, text):
        kind(dataset, 2)


def test_a_dict_of_indices_is_a_dataset():
    assert next(SerialIterator({0: "a", 1: "b"}, 2, shuffle=False)) == ["a", "b"]


FOREIGN = {
    "collate_fn": "use converter=",
    "num_workers": "n_processes, threads are MultithreadIterator's n_threads",
    "pin_memory": "leave it out",
    "sampler": "use order_sampler=",
    "worker_init_fn": "use MultiprocessIterator's worker_init=",
}


@pytest.mark.parametrize("kind", ITERATORS)
@pytest.mark.parametrize("name", FOREIGN)
def test_an_argument_that_has_another_name_here(kind, name):
    with raises(TypeError, f"{kind.__name__} has no argument {name!r}: ") as caught:
        kind([1, 2], 2, **{name: None})
    assert FOREIGN[name] in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (MultiprocessIterator, "n_threads"),
        (MultithreadIterator, "n_processes"),
        (MultithreadIterator, "shared_mem"),
        (SerialIterator, "n_prefetch"),
    ],
)
def test_an_argument_of_another_iterator(kind, name):
    with raises(TypeError, f"{kind.__name__} has no argument {name!r}: ") as caught:
        kind([1, 2], 2, **{name: 2})
    assert "MultiprocessIterator" in str(caught.value)
    with raises(TypeError, "unexpected keyword argument 'shufle'"):
        kind([1, 2], 2, shufle=True)


def test_a_sampler_that_is_no_function():
    with raises(
        TypeError, "order_sampler must be a callable (current_order, current_position) that"
    ):
        SerialIterator([1, 2], 2, order_sampler=[1, 0])


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
    large = Planner(
        planner_of(iterator).state,
        batch_size=1 << 58,
        repeat=True,
        order_sampler=None,
        dataset_len=lambda: 3,
    )
    for _ in range(2):
        with pytest.raises(MemoryError):
            large.deliver()
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
            TypeError,
            "field 0: examples must hold arrays or numbers, not {'a': 1} of type dict, as",
        ),
        (5, TypeError, "batch must be a list of examples, not int"),
        (
            [np.zeros(2), np.zeros(2), np.zeros(3)],
            ValueError,
            "example 0 has (2,), example 2 has (3,); set padding to fill them up",
        ),
        ([np.zeros(2), np.zeros((2, 2))], ValueError, "example 1 has (2, 2); set padding"),
        ([[1], [1], [1, 2]], ValueError, "example 0 has (1,), example 2 has (2,); set"),
        ([(1,), (1, 2)], ValueError, "example 1 has 2 fields, where example 0 has 1 field"),
        ([{"a": 1}, {"a": 1, "b": 2}], ValueError, "example 1 has the fields ['a', 'b'], where"),
        (
            [[1, 2], None],
            (ValueError, TypeError),
            "must hold arrays or numbers, not None of type NoneType, as",
        ),
        ([[["a"]], [["a"], ["b"]]], ValueError, "must hold arrays or numbers, not [['a']] of type"),
        (
            [np.zeros(2), [1, 2]],
            TypeError,
            "example 1 has [1, 2] of type list, where example 0 has",
        ),
    ],
)
def test_examples_that_make_no_batch(batch, error, text):
    with raises(error, text):
        concat_examples(batch)


def test_padding_for_other_fields():
    with raises(IndexError, "padding has 1 entries for 2 fields: (0,)"):
        concat_examples([(np.zeros(2), 1), (np.zeros(3), 2)], padding=(0,))
    with raises(KeyError, "entries for ['c'], which are not fields of the examples, ['a', 'b']"):
        concat_examples([{"a": 1, "b": 2}], padding={"c": 0})
    whole = {"a": np.array([[1, 0], [2, 3]]), "b": np.array([4, 5])}
    for padding in {"a": 0}, {"a": 0, "b": None}, {"a": 0, "b": 0, "c": 0}:
        joined = concat_examples([{"a": [1], "b": 4}, {"a": [2, 3], "b": 5}], padding=padding)
        assert all(np.array_equal(joined[key], whole[key]) for key in "ab")


@pytest.mark.parametrize(
    ("dtype", "padding", "error"),
    [
        ("f4", "x", ValueError),
        ("f4", [1, 2, 3, 4], ValueError),
        ("f4", {"a": 1}, TypeError),
        ("u1", object(), TypeError),
        ("u1", 10**40, OverflowError),
        (">i4", "x", ValueError),  # by another way
    ],
)
def test_a_padding_that_is_no_value_of_the_dtype(dtype, padding, error):
    """The error is of NumPy's type; equal shapes, which need no padding, are no way around it."""
    for lengths in (2, 3), (2, 2):
        with raises(
            error, f"padding {padding!r:.80} cannot fill up examples of dtype {np.dtype(dtype)}"
        ):
            concat_examples([np.zeros(length, dtype) for length in lengths], padding=padding)


def test_a_batch_too_large_for_any_memory_is_no_fault_of_the_padding():
    tall, wide = np.empty((1 << 40, 0)), np.empty((0, 1 << 40))
    with pytest.raises((ValueError, MemoryError)) as caught:
        concat_examples([tall, wide], padding=0)
    assert "cannot fill up" not in str(caught.value)


# ---- orders and generators -----------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [2.5, "3", None, True])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n", lambda wrong: permutation(wrong, 0)),
        ("n", lambda wrong: virtual_permutation(wrong, 0)),
        ("start", lambda wrong: virtual_permutation(5, 0, wrong)),
        ("epoch", lambda wrong: example_rng(0, wrong, 0)),
        ("index", lambda wrong: example_rng(0, 0, wrong)),
        ("start", lambda wrong: datasets.SubDataset([1, 2], wrong, 2)),
        ("finish", lambda wrong: datasets.SubDataset([1, 2], 0, wrong)),
        ("split_at", lambda wrong: datasets.split_dataset([1, 2], wrong)),
        ("n", lambda wrong: datasets.split_dataset_n([1, 2], wrong)),
        ("buf_size", lambda wrong: shuffle(list, wrong)),
        ("n", lambda wrong: firstn(list, wrong)),
        ("size", lambda wrong: buffered(list, wrong)),
        ("process_num", lambda wrong: xmap_readers(abs, list, wrong, 1)),
        ("buffer_size", lambda wrong: xmap_readers(abs, list, 1, wrong)),
    ],
)
def test_what_is_no_integer(name, call, wrong):
    with raises(TypeError, f"{name} must be an integer, not "):
        call(wrong)


@pytest.mark.parametrize(
    ("seed", "error"), [("x", TypeError), (1.5, TypeError), (-1, ValueError), (1 << 32, ValueError)]
)
def test_a_seed_of_parts_that_numpy_does_not_take(seed, error):
    with raises(error, "seed must be an integer from 0 to 2**32 - 1, several of them, or None, no"):
        datasets.split_dataset_random([1, 2, 3], 1, seed=seed)


# ---- datasets and readers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: datasets.TupleDataset(), ValueError, "no datasets are given"),
        (lambda: datasets.TupleDataset([1], 5), TypeError, "dataset 1 must be a sequence with a"),
        (lambda: datasets.TupleDataset([1, 2], [1]), ValueError, "lengths are 0: 2, 1: 1"),
        (lambda: datasets.DictDataset(a=5), TypeError, "dataset 'a' must be a sequence with a"),
        (lambda: datasets.ConcatenatedDataset([1], None), TypeError, "dataset 1 must be a sequen"),
        (lambda: datasets.TransformDataset([1], None), TypeError, "transform must be callable"),
        (lambda: datasets.NpyDataset(5), TypeError, "paths must be a path, several of them, or a"),
        (lambda: datasets.TextDataset(5), TypeError, "paths must be a path or a sequence of paths"),
        (lambda: datasets.PickleDataset(5), TypeError, "reader must be a binary file, not 5 of ty"),
        (
            lambda: datasets.open_pickle_dataset(5),
            TypeError,
            "path must be a str or path-like, not 5",
        ),
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
        (lambda: datasets.ImageDataset([], 5), TypeError, "root must be a str or path-like, not 5"),
        (lambda: datasets.ImageDataset([], dtype="x"), TypeError, "dtype must be a dtype of NumP"),
        (lambda: datasets.ZippedImageDataset(5), TypeError, "zipfilename must be a str or path-l"),
        (
            lambda: datasets.MultiZippedImageDataset(5),
            TypeError,
            "zipfilenames must be a sequence of paths, not 5",
        ),
        (
            lambda: datasets.LabeledZippedImageDataset("a", 5),
            TypeError,
            "labelfilename must be a list of (path, label), or the name of a text file",
        ),
        (lambda: datasets.ArrowDataset(5, 5), TypeError, "columns must be a name or a list of nam"),
        (lambda: datasets.ArrowDataset(5, decode=5), TypeError, "decode must be a dict of functi"),
        (
            lambda: datasets.split_dataset_random([1, 2], 5),
            ValueError,
            "first_size must be at most 2, not 5",
        ),
        (lambda: multiprocess_reader(None), TypeError, "readers must be a list of callables"),
    ],
)
def test_what_makes_no_dataset(make, error, text):
    with raises(error, text):
        make()


def test_sizes_of_readers_that_paddle_takes():
    """Whole floats and infinity, and for a batch what int() takes."""
    many = partial(range, 5)
    assert [len(group) for group in batch(many, "2")()] == [2, 2, 1]
    assert [len(group) for group in batch(many, 2.7)()] == [2, 2, 1]
    assert sorted(shuffle(many, math.inf)()) == sorted(shuffle(many, 1e3)()) == [0, 1, 2, 3, 4]
    assert list(firstn(many, 3.0)()) == [0, 1, 2]
    assert list(firstn(many, 10**40)()) == [0, 1, 2, 3, 4]
    assert list(buffered(many, math.inf)()) == [0, 1, 2, 3, 4]
    assert list(xmap_readers(abs, many, 2.0, math.inf, order=True)()) == [0, 1, 2, 3, 4]
    assert list(multiprocess_reader([many], queue_size=math.inf)()) == [0, 1, 2, 3, 4]
    for wrong, error in (("x", ValueError), (None, TypeError), (math.inf, OverflowError)):
        with raises(error, f"batch_size must be an integer, not {wrong!r}"):
            batch(many, wrong)


def test_a_trace_goes_to_a_path():
    with raises(TypeError, "path must be a str or path-like, not 5 of type int"):
        SerialIterator([1], 1).trace(5)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--budget", "soon", "--budget: expected seconds from 0 to 1,000,000, not 'soon'"),
        ("--batch-size", "0", "--batch-size: expected an integer of at least 1, not '0'"),
        ("--workers", "1,x", "--workers: expected an integer of at least 1, not 'x'"),
    ],
)
def test_a_number_of_the_command_line(capsys, option, value, text):
    parser = argparse.ArgumentParser()
    profile.add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["module:dataset", option, value])
    assert text in capsys.readouterr().err


ARRAY = np.array([1, 2])  # with which a comparison is neither true nor false
SCALAR = np.array(0.5)  # which has the methods of a sequence, and is none


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        (partial(MultiprocessIterator, [1, 2], 1), "tail", [ARRAY, ["pad"]]),
        (partial(MultiprocessIterator, [1, 2], 1), "on_timeout", [ARRAY, ["warn"]]),
        (partial(MultiprocessIterator, [1, 2], 1), "hedge", [ARRAY, SCALAR, "0.1", True]),
        (partial(MultiprocessIterator, [1, 2], 1), "rank", [ARRAY]),
        (partial(MultiprocessIterator, [1, 2], 1), "num_ranks", [ARRAY]),
        (partial(SerialIterator, [1, 2], 1, num_ranks=2), "rank", [ARRAY, [0]]),
        (partial(SerialIterator, [1, 2], 1, rank="auto"), "num_ranks", [ARRAY, [2]]),
        (partial(SerialIterator, [1, 2], 1), "skip_steps", [3, SCALAR]),
        (partial(MixtureOrderSampler, weights=[1], seed=0), "sizes", [3, None, SCALAR]),
        (partial(MixtureOrderSampler, [3], [1], 0), "schedule", [3, SCALAR]),
        (partial(MixtureOrderSampler, [3], [1], 0), "stop", [ARRAY, SCALAR, None]),
        (VirtualShuffleOrderSampler, "seed", [SCALAR]),
    ],
)
def test_values_that_compare_and_iterate_in_their_own_way(make, name, values):
    for value in values:
        with pytest.raises((TypeError, ValueError), match=rf"\b{name}\b"):
            make(**{name: value})
