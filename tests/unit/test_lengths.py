"""max_length, pad_to_multiple and return_lengths: concat_examples by itself and as a converter."""

from __future__ import annotations

import functools
import pickle
import warnings

import numpy as np
import pytest
from comparison import assert_same
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from warned import make_warnings_errors

from fastiter import concat_examples
from fastiter.dataset import Converter

LENGTHS = [3, 7, 1, 9, 4, 4, 0, 12, 5, 2]


def tokens(length, start=0, dtype=np.int64):
    return np.arange(start, start + length).astype(dtype)


class Texts:
    """Tokens with a label, in a container of each kind; the mask has the tokens' length."""

    def __init__(self, container, equal=False):
        self.container, self.equal = container, equal

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        row = tokens(6 if self.equal else LENGTHS[i], 100 * i)
        if self.container == "bare":
            return row
        if self.container == "tuple":
            return row, i, np.stack([row, -row], 1)
        return {"tokens": row, "label": i, "pair": np.stack([row, -row], 1)}


def expected_field(rows, fill=None, max_length=None, multiple=None):
    """The definition, array by array."""
    rows = [np.asarray(row) for row in rows]
    if rows[0].ndim == 0:
        return np.asarray(rows), None
    rows = [row[:max_length] for row in rows]
    lengths = np.array([len(row) for row in rows], np.int64)
    if fill is None:
        return np.stack(rows), lengths
    shape = list(np.max([row.shape for row in rows], axis=0))
    if multiple:
        shape[0] = -(-shape[0] // multiple) * multiple
    result = np.full((len(rows), *shape), fill, rows[0].dtype)
    for i, row in enumerate(rows):
        result[(i, *map(slice, row.shape))] = row
    return result, lengths


# ---- one field ----


@draw_examples(80)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sampled_from(["f4", "i8", ">i4", "?"]),
    st.integers(1, 12) | st.none(),
    st.integers(1, 8) | st.none(),
    st.booleans(),
    st.sampled_from([(), (3,), (0,)]),
)
def test_one_field_by_definition(lengths, dtype, max_length, multiple, strided, tail):
    rows = []
    for number, length in enumerate(lengths):
        row = np.arange(number, number + length * int(np.prod(tail))).reshape(length, *tail)
        rows.append(row.astype(dtype)[::-1] if strided else row.astype(dtype))
    for batch in (rows, tuple(rows)):
        assert_same(
            concat_examples(
                batch,
                padding=1,
                max_length=max_length,
                pad_to_multiple=multiple,
                return_lengths=True,
            ),
            expected_field(rows, 1, max_length, multiple),
        )


def test_without_padding_what_is_left_has_to_be_equal():
    rows = [tokens(5), tokens(7)]
    assert_same(concat_examples(rows, max_length=4), expected_field(rows, None, 4)[0])
    assert_same(concat_examples([tokens(4)] * 2, max_length=4), expected_field([tokens(4)] * 2)[0])
    with pytest.raises(ValueError):
        concat_examples(rows, max_length=6)


def test_the_multiple_comes_last():
    assert concat_examples([tokens(9)], padding=0, max_length=5, pad_to_multiple=4).shape == (1, 8)
    assert concat_examples([tokens(8)], padding=0, pad_to_multiple=4).shape == (1, 8)
    assert concat_examples([tokens(0)], padding=0, pad_to_multiple=4).shape == (1, 0)


def test_the_result_never_shares_memory():
    rows = [tokens(4), tokens(4)]
    result = concat_examples(rows, max_length=2)
    assert not any(np.shares_memory(result, row) for row in rows)


# ---- tuples and dicts ----

RULES = [
    {"padding": -1, "return_lengths": True},
    {"padding": -1, "max_length": 5},
    {"padding": -1, "max_length": 5, "pad_to_multiple": 4, "return_lengths": True},
    {"padding": -1, "pad_to_multiple": 8},
    {"padding": -1, "max_length": 100, "pad_to_multiple": 1},
]
TUPLE_RULES = [
    {"padding": (0, None, -1), "max_length": (5, None, 4), "return_lengths": (True, False, False)},
    {"padding": (0, None, -1), "pad_to_multiple": (4, None, 1), "return_lengths": True},
    {"padding": (0, None, 3), "pad_to_multiple": 8, "max_length": (None, None, 2)},
]  # fmt: skip
DICT_RULES = [
    {"padding": 0, "max_length": {"tokens": 5}, "return_lengths": {"pair": True}},
    {"padding": {"tokens": 1, "label": None, "pair": 2}, "pad_to_multiple": {"tokens": 8}},
    {"padding": 0, "pad_to_multiple": {"tokens": 8, "label": 1}},
]


def expected_batch(batch, padding=None, max_length=None, pad_to_multiple=None, return_lengths=None):
    """The definition of a batch, in terms of `expected_field`."""
    first = batch[0]
    if not isinstance(first, (tuple, dict)):
        array, lengths = expected_field(batch, padding, max_length, pad_to_multiple)
        return (array, lengths) if return_lengths else array
    kind = type(first)
    names = list(first) if kind is dict else range(len(first))

    def of(value, name):
        if not isinstance(value, kind):
            return value
        return value.get(name) if kind is dict else value[name]

    arrays, all_lengths = {}, {}
    for name in names:
        options = (of(value, name) for value in (padding, max_length, pad_to_multiple))
        arrays[name], lengths = expected_field([example[name] for example in batch], *options)
        if of(return_lengths, name) and lengths is not None:
            all_lengths[name] = lengths
    if kind is dict:
        return {**arrays, **{f"{name}_lengths": n for name, n in all_lengths.items()}}
    return (*arrays.values(), *all_lengths.values())


CASES = [
    *(("bare", rules) for rules in RULES),
    *(("tuple", rules) for rules in RULES + TUPLE_RULES),
    *(("dict", rules) for rules in RULES + DICT_RULES),
]


@pytest.mark.parametrize(("container", "rules"), CASES)
def test_a_batch_by_definition(container, rules):
    batch = [Texts(container)[i] for i in range(len(LENGTHS))]
    assert_same(concat_examples(batch, **rules), expected_batch(batch, **rules))


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("container", "rules"), CASES)
def test_every_iterator_gives_the_same(make, container, rules):
    # Rows of equal lengths need no padding: every other rule.
    dataset = Texts(container, equal=CASES.index((container, rules)) % 2 == 1)
    convert = functools.partial(concat_examples, **rules)
    converting = make(dataset, 4, repeat=False, shuffle=False, converter=convert)
    listing = make(dataset, 4, repeat=False, shuffle=False)
    for _ in range(2):
        for start in range(0, len(dataset), 4):
            batch = [dataset[i] for i in range(start, min(start + 4, len(dataset)))]
            expected = expected_batch(batch, **rules)
            assert_same(next(converting), expected)
            assert_same(concat_examples(next(listing), **rules), expected)
        converting.reset()
        listing.reset()


def test_columns_of_equal_shape_take_the_same_options(make):
    from fastiter.datasets import TupleDataset

    dataset = TupleDataset(np.arange(60).reshape(10, 6), np.arange(10))
    for rules in RULES:
        convert = functools.partial(concat_examples, **rules)
        iterator = make(dataset, 5, repeat=False, shuffle=False, converter=convert)
        for start in (0, 5):
            assert_same(
                next(iterator),
                expected_batch([dataset[i] for i in range(start, start + 5)], **rules),
            )


def test_lengths_own_their_memory_and_may_be_kept(make):
    convert = functools.partial(concat_examples, padding=0, return_lengths=True)
    iterator = make(Texts("bare"), 2, repeat=True, shuffle=False, converter=convert)
    kept = [next(iterator)[1] for _ in range(30)]
    for number, lengths in enumerate(kept):
        assert lengths.tolist() == [LENGTHS[(2 * number + i) % len(LENGTHS)] for i in (0, 1)]
        lengths[:] = -1


# ---- mistakes ----

PAIR = [(tokens(3), 1), (tokens(2), 2)]
NAMED = [{"x": tokens(3), "y": 1}, {"x": tokens(2), "y": 2}]


@pytest.mark.parametrize(
    ("batch", "rules", "message"),
    [
        (PAIR, {"max_length": 0}, "max_length must be at least 1"),
        (PAIR, {"max_length": -3}, "max_length must be at least 1"),
        (PAIR, {"padding": 0, "pad_to_multiple": 1 << 60}, "pad_to_multiple must be at most"),
        (PAIR, {"pad_to_multiple": 4}, "needs padding, of"),
        (PAIR, {"padding": (0, None), "pad_to_multiple": (4, 4)}, "no fill value"),
        (PAIR, {"padding": 0, "max_length": (2,)}, "1 entries for 2 fields"),
        (PAIR, {"padding": 0, "max_length": {"x": 2}}, "is a dict, but the examples are tuples"),
        (PAIR, {"padding": 0, "return_lengths": (True, True)}, "have no axis"),
        (PAIR, {"padding": 0, "max_length": (2, 2)}, "have no axis"),
        (NAMED, {"padding": 0, "max_length": (2, None)}, "is a tuple, but the examples are dicts"),
        (NAMED, {"padding": 0, "max_length": {"z": 2}}, "keys that the examples"),
        (NAMED, {"padding": 0, "return_lengths": {"y": True}}, "have no axis"),
        ([tokens(2)], {"max_length": (2,)}, "given per field"),
        ([1, 2], {"max_length": 2}, "have no axis"),
        ([{"a": tokens(1), "a_lengths": 1}], {"return_lengths": {"a": True}}, "a_lengths"),
    ],
)
def test_values_that_do_not_fit(batch, rules, message):
    with pytest.raises(ValueError, match=message):
        concat_examples(batch, **rules)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"max_length": 1.5}, "max_length must be an integer"),
        ({"max_length": True}, "max_length must be an integer"),
        ({"max_length": "5"}, "max_length must be an integer"),
        ({"padding": 0, "pad_to_multiple": (None, 2.0)}, "pad_to_multiple must be an integer"),
        ({"return_lengths": 1}, "return_lengths must be True or False"),
        ({"return_lengths": ("x", None)}, "return_lengths must be True or False"),
    ],
)
def test_values_of_a_wrong_type(rules, message):
    with pytest.raises(TypeError, match=message):
        concat_examples(PAIR, **rules)


def test_numpy_integers_are_integers():
    rules = {"padding": 0, "max_length": np.int64(2), "pad_to_multiple": np.uint8(4)}
    assert concat_examples(PAIR, **rules)[0].shape == (2, 4)


def test_fields_without_str_keys():
    batch = [{0: tokens(2)}, {0: tokens(1)}]
    result = concat_examples(batch, padding=0, return_lengths=True)
    assert list(result) == [0, (0, "lengths")]


@pytest.mark.parametrize(
    ("fill", "dtype"),
    [(np.nan, "i8"), (np.inf, "u1"), (-1e30, "i4"), (256.0, "u1"), (np.float32("nan"), "i2")],
)
def test_a_float_without_a_value_in_an_integer_dtype_is_an_error(make, fill, dtype):
    """Also where nothing has to be filled, and whoever pads."""
    message = rf"padding .*{fill}.* has no value in the dtype {np.dtype(dtype)}"
    for lengths in ([3, 2], [3, 3], [0, 0]):
        with pytest.raises(ValueError, match=message.replace("+", r"\+")):
            concat_examples([tokens(length, 0, dtype) for length in lengths], padding=fill)
    rows = [tokens(length, 0, dtype) for length in LENGTHS]
    convert = functools.partial(concat_examples, padding=fill)
    iterator = make(rows, 4, repeat=True, shuffle=False, converter=convert)
    for _ in range(6):
        with pytest.raises(ValueError, match="has no value in the dtype"):
            next(iterator)


@pytest.mark.parametrize("fill", [np.nan, -np.inf, -1.5, 1e30])
def test_numbers_need_no_value_for_the_padding_of_other_fields(make, fill):
    rows = [(np.zeros(n, np.float32), n, np.uint8(n), np.array(n, "i2")) for n in LENGTHS]

    def check(batch):
        padded, *numbers = batch
        for column, dtype in zip(numbers, ("i8", "u1", "i2"), strict=True):
            assert column.dtype == dtype
            assert column.tolist() == LENGTHS[: len(column)]
        np.testing.assert_equal(padded[0, LENGTHS[0] :], np.float32(fill))

    with warnings.catch_warnings():
        make_warnings_errors()
        check(concat_examples(rows, padding=fill))
        convert = functools.partial(concat_examples, padding=fill)
        iterator = make(rows, len(rows), repeat=True, shuffle=False, converter=convert)
        for _ in range(6):
            check(next(iterator))
    for wrong in ("x", object()):
        with pytest.raises((TypeError, ValueError)):
            concat_examples([1, 2], padding=wrong)


def test_what_an_integer_dtype_does_have_a_value_for():
    assert concat_examples([tokens(1), tokens(2)], padding=-1.9)[0, 1] == -1
    assert concat_examples([tokens(1, 0, "u1"), tokens(2, 0, "u1")], padding=255.5)[0, 1] == 255


def test_the_partial_pickles():
    convert = functools.partial(concat_examples, padding=0, max_length=2, return_lengths=True)
    assert_same(pickle.loads(pickle.dumps(convert))(PAIR), convert(PAIR))
    assert not isinstance(convert, Converter)


@pytest.mark.gpu
def test_on_a_gpu(cupy):
    batch = [Texts("tuple")[i] for i in range(len(LENGTHS))]
    on_gpu = [(cupy.asarray(a), cupy.asarray(i), cupy.asarray(b)) for a, i, b in batch]
    for rules in RULES:
        expected = expected_batch(batch, **rules)
        for result in (concat_examples(on_gpu, **rules), concat_examples(batch, 0, **rules)):
            assert all(isinstance(array, cupy.ndarray) for array in result)
            assert_same(tuple(array.get() for array in result), expected)
