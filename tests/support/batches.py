"""Batches of every sort for concat_examples: ordinary, odd and wrong ones."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np


class Point(NamedTuple):
    """A kind of tuple."""

    x: int
    y: int


class Fields(dict):
    """A kind of dict."""


class Tagged(np.ndarray):
    """A kind of array."""


a = np.arange(6.0).reshape(2, 3)
record = np.array([(1, 2.0), (3, 4.0)], dtype=[("i", "i4"), ("f", "f8")])
masked = np.ma.masked_array([1, 2, 3], [0, 1, 0])
day, second = np.datetime64("2020-01-01", "D"), np.datetime64("2021-01-01", "s")

WITHOUT_PADDING: dict[str, Any] = {
    "empty": [],
    "arrays": [a, a + 1],
    "float16": [a.astype("f2")] * 3,
    "longdouble": [a.astype("g")] * 2,
    "complex and float": [a * 1j, a],
    "int and float arrays": [a.astype("i4"), a],
    "big-endian": [a.astype(">f4")] * 2,
    "two byte orders": [a.astype(">f4"), a.astype("<f4")],
    "big-endian and narrower": [a.astype(">i8"), a.astype("i4")],
    "0-d": [np.array(1.0), np.array(2.0)],
    "zero-size": [np.zeros((0, 3)), np.zeros((0, 3))],
    "transposed": [a.T, a.T],
    "Fortran order": [np.asfortranarray(a)] * 2,
    "negative strides": [a[::-1], a[:, ::-1]],
    "broadcast": [np.broadcast_to(np.arange(3), (2, 3))] * 2,
    "structured": [record, record],
    "datetimes": [np.array([day]), np.array(["NaT"], "M8[s]")],
    "timedeltas": [np.array([1], "m8[s]")] * 2,
    "object arrays": [np.array([None, 1], object)] * 2,
    "bytes arrays": [np.array(b"ab"), np.array(b"abc")],
    "str arrays": [np.array("ab"), np.array("abc")],
    "masked": [masked, masked],
    "plain and masked": [np.arange(3), masked],
    "subclass": [a.view(Tagged), a.view(Tagged)],
    "plain and subclass": [a, a.view(Tagged)],
    "ints": [1, 2, 3],
    "bools": [True, False],
    "floats": [1.0, 2.0],
    "ints and floats": [1, 2.5],
    "bools and ints": [True, 2],
    "uint64 ints": [2**63],
    "ints of no dtype": [2**64, 1],
    "int64 and uint64 ints": [-(2**63), 2**63],
    "complexes": [1j, 2],
    "NumPy ints": [np.int8(3), np.int16(4)],
    "NumPy and Python floats": [np.float32(1), 2.0],
    "Python and NumPy floats": [1.0, np.float32(2)],
    "NumPy bools": [np.bool_(1), np.bool_(0)],
    "NumPy datetimes": [day, second],
    "strs": ["a", "b"],
    "bytes": [b"a", b"b"],
    "Nones": [None, None],
    "objects": [object(), object()],
    "lists": [[1, 2], [3, 4]],
    "nested lists": [[[1], [2]], [[3], [4]]],
    "lists of arrays": [[a, a], [a, a]],
    "empty lists": [[], []],
    "list and tuple": [[1, 2], (3, 4)],
    "tuples": [(a, 1), (a, 2)],
    "tuples with strs": [(a, 1, "x"), (a, 2, "y")],
    "longer tuple": [(1, 2), (3, 4, 5)],
    "shorter tuple": [(1, 2), (3,)],
    "empty tuples": [(), ()],
    "tuple and list": [(1, 2), [3, 4]],
    "tuple and array": [(1, 2), np.array([3, 4])],
    "tuple and dict": [(1,), {0: 5}],
    "tuple and None": [(1,), None],
    "namedtuples": [Point(1, 2), Point(3, 4)],
    "nested tuples": [((1, 2), 3), ((4, 5), 6)],
    "dicts in tuples": [({"a": 1},), ({"a": 2},)],
    "dicts": [{"x": a, "y": 1}, {"x": a, "y": 2}],
    "dict without a key": [{"x": a, "y": 1}, {"x": a}],
    "dict with one more key": [{"x": 1}, {"x": 2, "y": 3}],
    "empty dicts": [{}, {}],
    "dict subclass": [Fields(x=1), Fields(x=2)],
    "ordered dicts": [collections.OrderedDict(b=1, a=2)] * 2,
    "dict and tuple": [{0: 1}, (5,)],
    "other shapes": [np.zeros(2), np.zeros(3)],
    "other dimensions": [np.zeros(2), np.zeros((2, 2))],
    "array and list": [np.zeros(2), [1, 2]],
    "array and number": [np.zeros(2), 1],
    "0-d array and number": [np.array(1), 1],
    "number and 0-d array": [1, np.array(2)],
    "list and array": [[1, 2], np.array([3, 4])],
    "array and None": [np.zeros(2), None],
    "NumPy number and array": [np.float64(1), np.zeros(2)],
    "batch is a tuple": (a, a),
    "batch is a range": range(3),
    "batch is a set": {1, 2},
    "batch is None": None,
    "batch is a number": 5,
}

WITH_PADDING: dict[str, tuple[Any, Any]] = {
    "int": ([np.arange(2), np.arange(3)], 0),
    "bool": ([np.ones(2), np.ones(1)], False),
    "longer float array": ([np.arange(2), np.arange(3.0)], -1),
    "float into int": ([np.arange(2), np.arange(3)], 1.5),
    "NaN into float": ([np.arange(2.0), np.arange(3)], np.nan),
    "too big for the dtype": ([np.arange(2.0).astype("f2"), np.arange(3)], 1e10),
    "negative zero": ([np.ones(2), np.ones(1)], -0.0),
    "equal shapes": ([a, a], 7),
    "2-D": ([np.ones((2, 3)), np.ones((3, 2))], 0),
    "2-D and 1-D": ([np.ones((2, 3)), np.ones(4)], 0),
    "1-D and 2-D": ([np.ones(4), np.ones((2, 3))], 0),
    "2-D and 3-D": ([np.ones((2, 3)), np.ones((2, 2, 2))], 0),
    "0-d and 1-D": ([np.array(1.0), np.ones(3)], 0),
    "1-D and 0-d": ([np.ones(3), np.array(1.0)], 0),
    "tuple": ([(np.ones(2), np.ones(1)), (np.ones(3), np.ones(2))], (1, 2)),
    "tuple too short": ([(1, 2)], (1,)),
    "tuple too long": ([(1, 2)], (1, 2, 3)),
    "list for tuples": ([(np.ones(1), np.ones(2))] * 2, [1, 2]),
    "dict for tuples": ([(1, 2)], {0: 1, 1: 2}),
    "None for a field": ([(np.ones(2), 1), (np.ones(3), 1)], (0, None)),
    "dict": ([{"x": np.ones(1)}, {"x": np.ones(2)}], {"x": 9}),
    "dict without the key": ([{"x": np.ones(1)}], {}),
    "number for dicts": ([{"x": np.ones(1)}, {"x": np.ones(2)}], 3),
    "tuple for dicts": ([{"x": np.ones(1)}, {"x": np.ones(2)}], (1, 2)),
    "no number": ([np.ones(1), np.ones(2)], "x"),
    "number as str": ([np.ones(1), np.ones(2)], "3"),
    "strs": (["a", "bc"], "zzz"),
    "str arrays": ([np.array(["a"]), np.array(["bcd", "e"])], "zz"),
    "ints": ([1, 2], 0),
    "lists": ([[1, 2], [3, 4]], 0),
    "Nones": ([None], 0),
    "objects": ([np.array([None]), np.array([1, 2], object)], "q"),
    "structured": ([record[:1], record], (1, 2)),
    "datetimes": ([np.array([day]), np.array([second, second])], np.datetime64("NaT", "D")),
    "masked": ([masked, masked[:2]], 0),
    "subclass": ([a.view(Tagged), a], 0),
    "cast to bool": ([np.array([True]), np.array([1, 0, 5])], True),
    "complex to int": ([np.array([1]), np.array([1j, 2])], 0),
    "double to float": ([np.ones(2, "f4"), np.ones(3) * 1e300], 0),
    "int64 to int32": ([np.ones(2, "i4"), np.full(3, 2**40)], 0),
    "array as fill": ([np.ones(2), np.ones(3)], np.arange(3)),
    "array of wrong shape as fill": ([np.ones(2), np.ones(3)], np.arange(4)),
    "zero-size": ([np.zeros((0, 2)), np.zeros((2, 0))], 5),
    "big-endian": ([np.ones(1, ">f4"), np.ones(2)], 2),
    "array and list": ([np.zeros(2), [1, 2]], 0),
}
