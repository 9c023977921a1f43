"""concat_examples: NumPy's results by definition, and Chainer's where Chainer imports."""

from __future__ import annotations

import functools
import pickle
from typing import Any

import numpy as np
import pytest
from batches import WITH_PADDING, WITHOUT_PADDING
from comparison import assert_same, outcome
from drawn import draw_examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fastiter import Converter, concat_examples, converter

try:
    import chainer
except ImportError:
    chainer = None

dtypes = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(sizes=(16, 32, 64)),
    hnp.complex_number_dtypes(sizes=(64, 128)),
    hnp.datetime64_dtypes(max_period="s", min_period="s"),
)
equal_arrays = st.tuples(dtypes, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)).flatmap(
    lambda kind: st.lists(hnp.arrays(*kind), min_size=1, max_size=5)
)

few = draw_examples(40)


# -- by definition -------------------------------------------------------------------------------


@few
@given(equal_arrays, equal_arrays)
def test_fields_are_joined_one_by_one(first, second):
    pairs = list(zip(first, second, strict=False))
    expected = tuple(concat_examples([pair[field] for pair in pairs]) for field in (0, 1))
    assert_same(concat_examples(pairs), expected)
    keys = [dict(zip("ab", pair, strict=True)) for pair in pairs]
    assert_same(concat_examples(keys), dict(zip("ab", expected, strict=True)))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2], [3]], [[1, 2], [3, 0]]),
        ([(1, 2), [3]], [[1, 2], [3, 0]]),
        ([[1, 2], np.array([3])], [[1, 2], [3, 0]]),
        ([[], [3]], [[0], [3]]),
        ([[1, 2], [3.5]], [[1.0, 2.0], [3.5, 0.0]]),  # of the dtype that equal lengths would have
        ([[True], [False, True]], [[True, False], [False, True]]),
        ([[[1, 2]], [[3, 4], [5, 6]], []], [[[1, 2], [0, 0]], [[3, 4], [5, 6]], [[0, 0], [0, 0]]]),
    ],
)
def test_lists_of_numbers_are_padded(values, expected):
    expected = np.array(expected)
    assert_same(concat_examples([{"x": value} for value in values], padding=0), {"x": expected})
    assert_same(
        concat_examples([{"x": value} for value in values], padding={"x": 0})["x"], expected
    )
    joined = concat_examples([(value, 1) for value in values], padding=0, pad_to_multiple=4)[0]
    assert_same(joined[:, : expected.shape[1]], expected)
    assert joined.shape[1] == 4 and not joined[:, expected.shape[1] :].any()


def test_lists_are_cut_and_measured_as_arrays_are():
    values = [[1, 2, 3], [4], [5, 6]]
    whole = concat_examples(
        [np.array(value) for value in values], padding=0, max_length=2, return_lengths=True
    )
    assert_same(concat_examples(values, padding=0, max_length=2, return_lengths=True), whole)
    assert_same(concat_examples([[1, 2, 3], [4]], max_length=1), np.array([[1], [4]]))


def test_equal_lists_are_what_asarray_makes_of_them():
    assert_same(concat_examples([[1, 2], [3, 4.5]]), np.array([[1, 2], [3, 4.5]]))
    assert_same(concat_examples([["a"], ["bc"]]), np.array([["a"], ["bc"]]))


@pytest.mark.parametrize("values", [[[[1], [2, 3]], [[4]]], [[[1], [2, 3]], [[4], [5]]]])
@pytest.mark.parametrize("padding", [None, 0])
def test_lists_within_lists_are_not_padded(values, padding):
    with pytest.raises(ValueError, match="field 'x': example 0 holds lists that differ in length"):
        concat_examples([{"x": value} for value in values], padding=padding)


@pytest.mark.parametrize(
    "value", [None, "a", b"a", 2**70, object()], ids=lambda value: type(value).__name__
)
@pytest.mark.parametrize(
    "options", [{}, {"padding": 0}, {"max_length": 2}, {"padding": 0, "return_lengths": True}]
)
def test_what_is_no_array_is_a_type_error(value, options):
    match = "examples must hold arrays or numbers, not"
    for batch in ([value, value], [1, value], [np.ones(2), value]):
        with pytest.raises(TypeError, match=match):
            concat_examples(batch, **options)
        with pytest.raises(TypeError, match=f"field 'x': {match}"):
            concat_examples([{"x": one, "y": np.ones(2)} for one in batch], **options)


def test_an_error_tells_no_cause_that_says_nothing_more():
    with pytest.raises(ValueError) as caught:
        concat_examples([(np.zeros(2), 1), (np.zeros(3), 1)])
    error = caught.value
    assert error.__cause__ is None and error.__suppress_context__


@pytest.mark.parametrize("batch", [[], (), np.empty((0, 2)), None])
def test_empty_batch(batch):
    with pytest.raises(ValueError, match="empty"):
        concat_examples(batch)


def test_a_dict_is_no_batch():
    with pytest.raises(TypeError, match="list of examples"):
        concat_examples({0: 1, 1: 2})


def test_an_array_is_a_batch_of_its_rows():
    rows = np.arange(6).reshape(3, 2)
    result = concat_examples(rows)
    assert_same(result, rows)
    assert not np.shares_memory(result, rows)


def test_to_the_host():
    arrays = concat_examples([(1, np.zeros(2))], device=-1)
    assert_same(arrays, (np.array([1]), np.zeros((1, 2))))
    assert_same(concat_examples([{"a": 1}], device="cpu"), {"a": np.array([1])})


def test_copy_is_a_keyword():
    array = np.arange(3)
    assert not np.shares_memory(concat_examples([array], copy=True), array)
    with pytest.raises(TypeError):
        concat_examples([array], None, None, True)


def test_pickles_by_reference_in_a_partial_too():
    assert pickle.loads(pickle.dumps(concat_examples)) is concat_examples
    padded = pickle.loads(pickle.dumps(functools.partial(concat_examples, padding=0)))
    assert padded.func is concat_examples


# -- by the oracle -------------------------------------------------------------------------------


# Where Chainer's loses fields without a word, or has another error: see docs/guide/migrating.md.
OTHERWISE = {
    "dict with one more key",
    "dict without the key",
    "dicts in tuples",
    "longer tuple",
    "Nones",
    "strs",
}
OTHERWISE_WITH_PADDING = {*OTHERWISE, "1-D and 0-d", "array and list", "str arrays"}


def assert_like_chainers(batch: Any, padding: Any) -> None:
    expected = outcome(chainer.dataset.concat_examples, batch, None, padding)
    result = outcome(concat_examples, batch, None, padding)
    if isinstance(expected, Exception):
        assert type(result) is type(expected), result
    else:
        assert_same(result, expected)


@pytest.mark.skipif(chainer is None, reason="Chainer does not import here")
@pytest.mark.parametrize("name", sorted(WITHOUT_PADDING.keys() - OTHERWISE))
def test_like_chainers_without_padding(name):
    assert_like_chainers(WITHOUT_PADDING[name], None)


@pytest.mark.skipif(chainer is None, reason="Chainer does not import here")
@pytest.mark.parametrize("name", sorted(WITH_PADDING.keys() - OTHERWISE_WITH_PADDING))
def test_like_chainers_with_padding(name):
    assert_like_chainers(*WITH_PADDING[name])


# -- converters ----------------------------------------------------------------------------------


@converter()
def name_the_device(batch, device, suffix=""):
    """Made into a converter at module level."""
    return f"{device}{suffix}"


def test_converter_gets_a_device_object():
    assert isinstance(name_the_device, Converter)
    assert name_the_device.__doc__ == "Made into a converter at module level."
    assert name_the_device([], -1) == "@numpy"
    assert name_the_device([], device="cpu", suffix="!") == "@numpy!"
    assert name_the_device([], None) == "None"


def test_converter_at_module_level_pickles():
    assert pickle.loads(pickle.dumps(name_the_device)) is name_the_device


def test_converter_in_a_function_says_why_it_does_not_pickle():
    @converter()
    def local(batch, device):
        return batch

    with pytest.raises(pickle.PicklingError, match="module level"):
        pickle.dumps(local)


def test_converter_wants_a_callable():
    with pytest.raises(TypeError, match="callable"):
        converter()(5)


def test_converter_class_is_abstract():
    with pytest.raises(TypeError, match="__call__"):
        Converter()


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 0), (1, 2)],
        [(1, 2), (2, 0), (0, 0)],
        [(0, 3), (2, 0)],
        [(2, 0), (1, 0)],
        [(1, 0), (1, 2)],
        [(2, 1), (2, 3)],
        [(0, 0), (3, 1)],
    ],
)
@pytest.mark.parametrize("options", [{}, {"max_length": 1}, {"pad_to_multiple": 4}])
def test_lists_of_arrays_are_padded_as_arrays(shapes: Any, options: Any) -> None:
    """Also where the inner lists of an example are all empty: its length and the dtype stay."""
    arrays = [np.arange(a * b, dtype=np.int16).reshape(a, b) for a, b in shapes]
    lists = [list(array) for array in arrays]
    join = functools.partial(concat_examples, padding=-1, return_lengths=True, **options)
    wanted, wanted_lengths = join([{"a": array} for array in arrays]).values()
    found, lengths = join([{"a": rows} for rows in lists]).values()
    # A list without any array in it tells nothing of the arrays that others have.
    assert found.dtype == wanted.dtype and lengths.tolist() == wanted_lengths.tolist()
    assert found.shape[:2] == wanted.shape[:2]
    assert found.shape[2] == max(b for a, b in shapes if a > 0)
    np.testing.assert_array_equal(found, wanted[:, :, : found.shape[2]])


def test_empty_lists_of_lists_keep_their_length() -> None:
    assert concat_examples([[[], []], [[1, 2]]], padding=0).shape == (2, 2, 2)
    assert concat_examples([[[]], [[1, 2], [3, 4]]], padding=0).tolist() == [
        [[0, 0], [0, 0]],
        [[1, 2], [3, 4]],
    ]


def test_arrays_of_texts_are_not_cut_where_they_are_padded():
    joined = concat_examples([np.array(["a"]), np.array(["bcd", "e"])], padding="")
    assert joined.tolist() == [["a", ""], ["bcd", "e"]]
    assert concat_examples([np.array([b"a"]), np.array([b"bc"])], padding=b"").tolist() == [
        [b"a"],
        [b"bc"],
    ]
