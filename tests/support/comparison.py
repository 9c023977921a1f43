"""Compares what concat_examples returns or raises."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np


def assert_same(result: Any, expected: Any) -> None:
    assert type(result) is type(expected)
    if isinstance(expected, (list, tuple)):
        for one, other in zip(result, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, dict):
        assert list(result) == list(expected)
        for key in expected:
            assert_same(result[key], expected[key])
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        if expected.dtype == object and expected.ndim:  # of arrays, with old NumPy
            assert_same(result.tolist(), expected.tolist())
            return
        np.testing.assert_array_equal(np.ma.getmaskarray(result), np.ma.getmaskarray(expected))
        np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))
    else:
        assert result == expected


def same(a: Any, b: Any, path: str = "value") -> None:
    """Fails unless type, content, dtype, byte order and shape of all parts are equal."""
    if isinstance(b, np.longlong):
        b = np.int64(b)  # its pickle does not tell them apart
    assert type(a) is type(b), path
    if isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, path
        assert a.dtype.byteorder == b.dtype.byteorder, path
        assert a.dtype.isalignedstruct == b.dtype.isalignedstruct, path
        assert a.shape == b.shape, path
        assert a.flags.writeable, path
        if isinstance(a, np.ma.MaskedArray):
            np.testing.assert_array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b), path)
            np.testing.assert_array_equal(a.data, b.data, path)
            assert a.fill_value == b.fill_value, path
        elif a.dtype.hasobject:
            same(a.tolist(), b.tolist(), path)
        elif a.dtype.char in "gG" or a.dtype.isalignedstruct:
            np.testing.assert_array_equal(a, b, path)  # bytes between the values mean nothing
        else:
            assert a.tobytes() == b.tobytes(), path
    elif isinstance(a, np.generic):
        assert a.dtype == b.dtype, path
        assert repr(a) == repr(b), path
    elif isinstance(a, (tuple, list)):
        assert len(a) == len(b), path
        for number, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{path}[{number}]")
    elif isinstance(a, dict):
        assert [(type(k), k) for k in a] == [(type(k), k) for k in b], path
        for key in a:
            same(a[key], b[key], f"{path}[{key!r}]")
    elif isinstance(a, (float, complex)):
        assert repr(a) == repr(b), path
    else:
        assert a == b, path


def outcome(function: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about casts and ragged lists
        try:
            return function(*args)
        except Exception as error:
            return error
