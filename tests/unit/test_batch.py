"""stack and pad_stack against what NumPy and Chainer make of the same examples."""

from __future__ import annotations

import gc
import sys
import warnings
from itertools import cycle, islice, product

import numpy as np
import pytest
from drawn import draw_examples
from hypothesis import assume, example, given
from hypothesis import strategies as st

from fastiter import concat_examples
from fastiter.kernels import pad_stack, stack

try:
    from chainer.dataset import concat_examples as chainer_concat
except ImportError:
    chainer_concat = None


def numpy_stack(examples):
    """concat_examples without padding, of one field."""
    if not isinstance(examples[0], np.ndarray):
        examples = np.asarray(examples)
    return np.concatenate([example[None] for example in examples])


def numpy_pad(arrays, fill):
    """concat_examples with padding, of one field."""
    if not isinstance(arrays[0], np.ndarray):
        arrays = np.asarray(arrays)
    shape = np.array(arrays[0].shape, dtype=int)
    for array in arrays:
        if np.not_equal(shape, array.shape).any():
            np.maximum(shape, array.shape, shape)
    result = np.full((len(arrays), *shape), fill, arrays[0].dtype)
    for i, array in enumerate(arrays):
        result[(i, *(slice(length) for length in array.shape))] = array
    return result


def lacks_a_value(arrays, fill):
    """Whether the fill value is one of those that NumPy makes an arbitrary integer of."""
    try:
        # The first element tells: numbers too large for any integer make an array of objects.
        dtype = (arrays if isinstance(arrays[0], np.ndarray) else np.asarray(arrays))[0].dtype
        fills = np.asarray(fill)
    except Exception:
        return False
    if dtype.kind not in "iu" or fills.dtype.kind not in "fc":
        return False
    limits = np.iinfo(dtype)
    return any(
        not np.isfinite(value) or not limits.min <= int(value) <= limits.max
        for value in fills.real.ravel()
    )


def chainer_stack(examples):
    return chainer_concat([(example,) for example in examples])[0]


def chainer_pad(arrays, fill):
    if fill is None:  # means that there is no padding
        return numpy_pad(arrays, fill)
    try:
        return chainer_concat([(array,) for array in arrays], None, (fill,))[0]
    except TypeError as error:
        # Old NumPy fails on the empty shape of a 0-d array over its dtype, before its length.
        raise ValueError if "ufunc 'maximum'" in str(error) else error from error


STACKS = [numpy_stack] + ([chainer_stack] if chainer_concat else [])
PADS = [numpy_pad] + ([chainer_pad] if chainer_concat else [])


def outcome(function, *args):
    """The outcome of a call: its value in bytes or the type of its error, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value = function(*args)
        except Exception as error:
            return type(error), None
    # NumPy's deprecations differ by the operation that meets them first.
    kinds = {w.category for w in caught if not issubclass(w.category, DeprecationWarning)}
    assert value.flags.writeable
    # Bytes that only fill up a long double or a structure are not part of its value.
    filled = value.dtype.char in "gGO" or value.dtype.names
    content = repr(value.tolist()) if filled else value.tobytes()
    return (type(value), value.dtype.descr, value.shape, content), kinds


def is_number(value):
    """Whether NumPy has numbers like a value, or it is no single value."""
    return np.ndim(value) > 0 or np.asarray(value).dtype.kind not in "OSU"


def check(ours, references, *args):
    got = outcome(ours, *args)
    if ours is pad_stack and lacks_a_value(*args):
        arrays, fill = args
        if np.ndim(arrays[0]) > 0:
            assert got == (ValueError, None), args
            return
        args = arrays, np.zeros(np.shape(fill), int)  # numbers are never filled up
    if ours is pad_stack and got[0] is ValueError and len({np.ndim(a) for a in args[0]}) > 1:
        return  # as documented; NumPy broadcasts the shapes of some of them, by accident
    expected = [outcome(reference, *args) for reference in references]
    if got == (TypeError, None) and not all(map(is_number, args[0])):
        return  # as documented, whatever NumPy raises first, or makes of texts that are padded
    for reference in expected:
        if reference[0] is AttributeError:  # of a number beside arrays
            reference = TypeError, None
        assert got == reference, args


DTYPES = [
    *"?bBhHiIlLqQefdgFDG",
    ">i4", ">f8", "<f4", ">c8",
    "M8[s]", "M8[ns]", ">M8[D]", "m8[us]",
    "S1", "S5", "U1", "U4", ">U3", "V3",
    [("a", "i4"), ("b", "f8", (2,))],
    np.dtype([("a", "i1"), ("b", "f8")], align=True),
    "O",
    np.dtype("f4", metadata={"unit": "m"}),
]  # fmt: skip


def content(dtype, shape, rng):
    """Random elements, with those that are lost first: NaT, NaN, -0.0, infinities, extremes."""
    dtype = np.dtype(dtype)
    if dtype.names:
        array = np.zeros(shape, dtype)
        for name in dtype.names:
            array[name] = content(dtype[name].base, array[name].shape, rng)
        return array
    numbers = rng.randint(-100, 100, shape)
    if dtype.kind in "fc":
        array = np.asarray(numbers / 7).astype(dtype)
        special = np.array([np.nan, -0.0, np.inf, -np.inf, 1.5], dtype)
        return np.where(rng.rand(*shape) < 0.3, special[rng.randint(0, 5, shape)], array)
    if dtype.kind in "mM":
        nat = np.array("NaT", dtype)
        return np.where(rng.rand(*shape) < 0.2, nat, numbers.astype(dtype)).astype(dtype)
    if dtype.kind == "V":
        return rng.randint(0, 256, (*shape, dtype.itemsize)).astype("u1").view(dtype)[..., 0]
    return np.asarray(numbers).astype(dtype)


def unaligned(array):
    if array.dtype.hasobject:
        return array
    room = np.zeros(array.nbytes + 1, "u1")[1:]
    copy = np.ndarray(array.shape, array.dtype, room)
    copy[...] = array
    return copy


def strided(array):
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 1] = array
    return wide[..., 1]


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def broadcast(array):
    return np.broadcast_to(array[:1], array.shape) if array.ndim else array


class Subclass(np.ndarray):
    pass


LAYOUTS = [
    lambda array: array.copy("C"),
    lambda array: array.copy("F"),
    unaligned,
    strided,
    read_only,
    broadcast,
    lambda array: array[::-1] if array.ndim else array,
    lambda array: array.T.copy().T,
    lambda array: array.view(Subclass),
]

lengths = st.integers(0, 4)
shapes = st.lists(lengths, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1)
# Mostly equal examples, since only these take the fast ways.
few = st.lists(st.sampled_from(range(len(LAYOUTS))), min_size=1, max_size=3)


def arrays_of(dtype, shapes, layouts, seed):
    rng = np.random.RandomState(seed)
    return [
        LAYOUTS[layout](np.asarray(content(dtype, shape, rng), dtype))
        for shape, layout in zip(shapes, cycle(layouts), strict=False)
    ]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@draw_examples(25)
@given(shape=shapes, n=st.integers(1, 5), layouts=few, seed=seeds)
def test_stack_equals_numpy_for_every_kind_of_array(dtype, shape, n, layouts, seed):
    arrays = arrays_of(dtype, [shape] * n, layouts, seed)
    check(stack, STACKS, arrays)
    check(concat_examples, STACKS, arrays)
    assert not any(np.shares_memory(stack(arrays), array) for array in arrays)


@draw_examples(150)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=3),
    st.integers(1, 4),
    few,
    seeds,
)
def test_stack_of_unequal_arrays_promotes_or_fails_as_numpy_does(kinds, n, layouts, seed):
    examples = []
    for dtype, shape in islice(cycle(kinds), n):
        examples += arrays_of(dtype, [shape], layouts, seed)
    check(stack, STACKS, examples)


FILLS = [
    0, 1, -1, 127, 128, -129, 255, 256, 2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**70,
    -(2**63), 0.0, -0.0, 1.5, -100.0, 3e38, 1e39, 1e-39, 1e300, float("nan"), float("inf"),
    True, False, 1j, np.nan, np.float32(0.1), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True),
    np.float64("nan"), np.longdouble(1) / 3,
    "", "ab", b"ab", None, (1,), [2], np.array(3), np.array([4]), np.arange(3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@draw_examples(25)
@given(
    row_shapes=st.integers(0, 3).flatmap(
        lambda ndim: st.lists(st.tuples(*[lengths] * ndim), min_size=1, max_size=5)
    ),
    layouts=few,
    fill=st.sampled_from(FILLS),
    seed=seeds,
)
def test_pad_equals_numpy_for_every_kind_of_array(dtype, row_shapes, layouts, fill, seed):
    check(pad_stack, PADS, arrays_of(dtype, row_shapes, layouts, seed), fill)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fill_values_are_cast_as_numpy_does(dtype):
    rng = np.random.RandomState(0)
    arrays = [content(dtype, (length, 2), rng) for length in (3, 1)]
    for fill in FILLS:
        check(pad_stack, PADS, arrays, fill)
        check(pad_stack, PADS, arrays[:1], fill)
        check(pad_stack, PADS, [array[:0] for array in arrays], fill)


@pytest.mark.parametrize("fill", [np.datetime64("NaT"), np.timedelta64(3, "s")], ids=repr)
@pytest.mark.parametrize("dtype", ["M8[s]", ">M8[D]", "m8[us]", "i4", ">i8", "f8", "O"])
def test_a_fill_value_may_be_a_time(dtype, fill):
    arrays = [content(dtype, (length, 2), np.random.RandomState(0)) for length in (3, 1)]
    check(pad_stack, PADS, arrays, fill)


@draw_examples(150)
@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), shapes), min_size=1, max_size=4),
    st.sampled_from(FILLS),
    few,
    seeds,
)
def test_pad_of_other_dtypes_and_dimensions_does_as_numpy_does(kinds, fill, layouts, seed):
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        # 1.23.5 crashes where an assignment has to read a text as a time.
        found = {np.dtype(dtype).kind for dtype, _ in kinds}
        assume(found.isdisjoint("SU") or found.isdisjoint("mM"))
    arrays = [arrays_of(dtype, [shape], layouts, seed)[0] for dtype, shape in kinds]
    check(pad_stack, PADS, arrays, fill)


def test_pad_of_different_numbers_of_dimensions_names_the_examples():
    with pytest.raises(ValueError, match=r"example 0 has \(2, 3\), example 1 has \(4, 5, 6\)"):
        pad_stack([np.zeros((2, 3)), np.zeros((4, 5, 6))], 0)


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-5, 5),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.complex_numbers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1]),
    st.none(),
    st.text(max_size=2),
    st.binary(max_size=2),
    st.lists(st.integers(0, 9), max_size=2),
    st.builds(
        lambda dtype, value: np.dtype(dtype).type(value),
        st.sampled_from("?bBhHiIlLqQefdgFDG"),
        st.integers(0, 100),
    ),
    st.sampled_from([np.datetime64("2020-01-02"), np.timedelta64(5, "s"), np.str_("a")]),
    st.builds(np.zeros, st.sampled_from([(), 1, (1, 2)])),
)


def batch_of(values, n):
    """The values in turn. What becomes of lists of several lengths is no matter of NumPy's."""
    batch = list(islice(cycle(values), n))
    lengths = {len(value) for value in batch if isinstance(value, list) or np.ndim(value)}
    assume(not isinstance(batch[0], list) or len(lengths) == 1)
    return batch


@draw_examples(200)
@given(st.lists(NUMBERS, min_size=1, max_size=3), st.integers(1, 5))
@example([np.datetime64("2020-01-02"), np.zeros(())], 2)  # two dtypes that have none in common
def test_numbers_become_what_numpy_makes_of_them(values, n):
    check(stack, STACKS, batch_of(values, n))


@draw_examples(200)
@given(st.lists(NUMBERS, min_size=1, max_size=3), st.integers(1, 5), st.sampled_from(FILLS))
@example([np.int8(0), -(2**63) - 1], 2, 3e38)  # an array of objects whose first has a dtype
def test_padded_numbers_become_what_numpy_makes_of_them(values, n, fill):
    check(pad_stack, PADS, batch_of(values, n), fill)


@pytest.mark.parametrize("code", "?bBhHiIlLqQefdgFDG")
def test_numpy_scalars_keep_type_and_value(code):
    values = list(content(code, (40,), np.random.RandomState(0)))
    assert all(type(value) is np.dtype(code).type for value in values)
    check(stack, STACKS, values)


@pytest.mark.parametrize(
    ("length", "n"),
    [
        *product([0, 1, 3, 16, 200, 3000], [1, 255, 256, 257]),
        *((length, 5000) for length in (0, 1, 3, 16)),
        *(pytest.param(length, 5000, marks=pytest.mark.stress) for length in (200, 3000)),
    ],
)
def test_batches_of_every_size(n, length):
    rng = np.random.RandomState(n)
    arrays = [rng.rand(length) for _ in range(n)]
    check(stack, [numpy_stack], arrays)
    ragged = [array[: rng.randint(length + 1)] for array in arrays]
    check(pad_stack, [numpy_pad], ragged, 1.5)
    check(stack, [numpy_stack], [int(x) for x in rng.randint(0, 2**40, n)])
    check(stack, [numpy_stack], list(rng.rand(n).astype("f4")))


@pytest.mark.parametrize("shapes", [[(0,), ()], [(2,), ()], [(1,), (1, 1)], [(), (2,)]], ids=str)
def test_arrays_to_be_padded_have_one_number_of_dimensions(shapes):
    with pytest.raises((ValueError, IndexError), match="dimension"):
        pad_stack([np.ones(shape) for shape in shapes], 0)


@pytest.mark.parametrize("ndim", [30, 31, 32, 33, 63, 64])
def test_the_most_dimensions(ndim):
    if ndim > (64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0b1" else 32):
        with pytest.raises(ValueError, match="dim"):
            np.zeros((1,) * ndim)
        return
    arrays = [np.full((1,) * ndim, 3.0)] * 2
    check(stack, [numpy_stack], arrays)
    check(pad_stack, [numpy_pad], arrays, 0)


def test_masked_arrays_do_as_concatenate_does():
    masked = [np.ma.masked_array([1.0, 2.0], mask=[True, False]) for _ in range(2)]
    for examples in (masked, [np.zeros(2), *masked], [*masked, np.zeros(2)]):
        result, expected = stack(examples), numpy_stack(examples)
        assert type(result) is type(expected)
        assert np.array_equal(np.ma.getmaskarray(result), np.ma.getmaskarray(expected))
    assert type(pad_stack(masked, 0)) is np.ndarray


def test_a_padded_shape_too_large_for_memory_is_an_error():
    arrays = [np.zeros((2**40, 0)), np.zeros((0, 2**40))]
    with pytest.raises((ValueError, MemoryError)):
        pad_stack(arrays, 0)


@pytest.mark.parametrize("function", [stack, lambda rows: pad_stack(rows, 0)])
def test_an_empty_batch_is_a_value_error(function):
    with pytest.raises(ValueError, match="empty"):
        function([])


# ---- out ----

PAIRS = [
    pytest.param([np.arange(3), np.arange(3, 6)], id="plain"),
    pytest.param([np.arange(3)[::-1], np.arange(3, 6)], id="strided"),
    pytest.param([np.arange(3, dtype=">i8"), np.arange(3, dtype=">i8")], id="big-endian"),
    pytest.param([1, 2, 3], id="ints"),
    pytest.param([1.0, 2.0], id="floats"),
    pytest.param([True, False], id="bools"),
    pytest.param([np.int16(1), np.int16(2)], id="scalars"),
    pytest.param([1, 2.5], id="mixed"),
]
FUNCTIONS = [
    pytest.param(stack, id="stack"),
    pytest.param(lambda rows, out=None: pad_stack(rows, 7, out), id="pad_stack"),
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("examples", PAIRS)
def test_out_is_written_and_returned(function, examples):
    expected = function(examples)
    room = np.full((expected.shape[0] + 2, *expected.shape[1:]), 99, expected.dtype)
    assert function(examples, room[1:-1]).base is room
    assert np.array_equal(room[1:-1], expected)
    assert (room[[0, -1]] == np.array(99, expected.dtype)).all()
    backwards = room[1:-1][::-1]
    assert function(examples, backwards) is backwards
    assert np.array_equal(backwards, expected)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("examples", PAIRS)
def test_an_out_that_does_not_fit_is_refused(function, examples):
    expected = function(examples)
    for out in (
        np.zeros((*expected.shape, 1), expected.dtype),
        np.zeros((expected.shape[0] + 1, *expected.shape[1:]), expected.dtype),
        np.zeros(expected.shape, "c16"),
    ):
        with pytest.raises(ValueError, match="pass such an array as out"):
            function(examples, out)
        assert not out.any()
    with pytest.raises(ValueError, match="read-only"):
        function(examples, read_only(expected))
    with pytest.raises(TypeError, match="out is a list"):
        function(examples, [])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_out_may_overlap_the_examples(function):
    memory = np.arange(9)
    examples = [memory[3:6], memory[1:4], memory[0:3]]
    expected = function(examples)
    assert np.array_equal(function(examples, memory.reshape(3, 3)), expected)


# ---- hostile batches ----


class ClearsTheBatch:
    """A number that empties the batch it is in whenever NumPy asks for its value."""

    def __init__(self, batch):
        self.batch = batch

    def __array__(self, dtype=None, copy=None):
        return np.asarray(float(self))

    def __float__(self):
        self.batch.clear()
        gc.collect()
        return 0.0


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("at", [0, 1, 99])
def test_a_batch_may_change_while_it_is_read(function, at):
    batch = [float(i) for i in range(100)]
    batch[at] = ClearsTheBatch(batch)
    expected = np.arange(100.0)
    expected[at] = 0
    assert np.array_equal(function(batch), expected)
    assert batch == []


class LyingList(list):
    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        raise AssertionError("not asked for")


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("kind", [LyingList, tuple, iter, np.array], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("examples", [[1, 2, 3], [np.arange(2), np.arange(2)]], ids=["1d", "2d"])
def test_any_iterable_is_a_batch(function, kind, examples):
    assert np.array_equal(function(kind(examples)), np.array(examples))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "odd",
    [3, None, "x", np.zeros(3), np.zeros((2, 2)), np.zeros(2, "f4"), np.zeros(2, ">f8"), 2**70,
     np.array([1, None]), np.float32(3)],
    ids=repr,
)  # fmt: skip
def test_no_reference_is_lost_or_kept(function, odd):
    dtype = np.dtype("f8")
    for first in ([np.random.rand(2) for _ in range(300)], [1.5e10 + i for i in range(300)]):
        for examples in (first, [*first, odd]):
            outcome(function, examples)  # fills NumPy's own caches
            before = [sys.getrefcount(x) for x in (*first, dtype, odd, float, np.float64)]
            for _ in range(3):
                outcome(function, examples)
            after = [sys.getrefcount(x) for x in (*first, dtype, odd, float, np.float64)]
            assert after == before
