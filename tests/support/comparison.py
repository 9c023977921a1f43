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


def outcome(function: Any, *args: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about casts and ragged lists
        try:
            return function(*args)
        except Exception as error:
            return error
