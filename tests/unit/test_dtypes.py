"""The one rule that says which dtypes are copied as bytes, and that NumPy agrees."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fastiter._ring.schema import COPYABLE, NUMBER, STACKABLE, dtype_traits, is_plain_number

NUMBERS = [*"?bBhHiIlLqQefdgFDG"]
TEXTS = ["S3", "U3", "M8", "M8[ns]", "m8[s]"]


@pytest.mark.parametrize("dtype", [*NUMBERS, *TEXTS])
def test_native_dtypes_are_stackable(dtype):
    traits = dtype_traits(np.dtype(dtype))
    assert traits == COPYABLE | STACKABLE | (NUMBER if dtype in NUMBERS else 0)
    assert is_plain_number(np.dtype(dtype)) == (dtype in NUMBERS)
    array = np.zeros((2, 3), dtype)
    assert np.concatenate([array, array]).dtype == array.dtype
    assert pickle.loads(pickle.dumps(array)).dtype == array.dtype


@pytest.mark.parametrize("dtype", [">i4", ">f8", ">U3", ">M8[s]"])
def test_another_byte_order_is_copied_but_not_stacked(dtype):
    dtype = np.dtype(dtype)
    assert dtype_traits(dtype) == COPYABLE | (NUMBER if dtype.kind in "iuf" else 0)
    assert not is_plain_number(dtype)


@pytest.mark.parametrize(
    "dtype", ["V4", "V0", [("a", "i1"), ("b", "f4")], [("a", "O")], "S0", "U0", []], ids=str
)
def test_structures_and_elements_without_bytes_are_not_stacked(dtype):
    dtype = np.dtype(dtype)
    assert dtype_traits(dtype) == (0 if dtype.hasobject else COPYABLE)


@pytest.mark.parametrize("metadata", [{"unit": "m"}, {}], ids=str)
def test_objects_and_metadata_are_not_copied_as_bytes(metadata):
    assert dtype_traits(np.dtype(object)) == 0
    assert dtype_traits(np.dtype("i4", metadata=metadata)) == 0
