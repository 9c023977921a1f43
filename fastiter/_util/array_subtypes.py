"""Tensors of torch and memory maps of NumPy: stored as plain arrays, delivered as what they were.

In slots and columns they lie as the arrays that they share their memory with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._util import torch_tensors

NONE, TENSOR, MEMMAP = range(3)


def arrays_of(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The values as plain arrays that share their memory, and their subtype; other values, or mixed
    ones, unchanged."""
    kind = type(values[0])
    if kind is np.memmap:
        if all(type(value) is np.memmap for value in values):
            return [value.view(np.ndarray) for value in values], MEMMAP
    elif kind is torch_tensors.tensor_type():
        arrays = [torch_tensors.array_of(value) for value in values]
        if all(array is not None for array in arrays):
            return arrays, TENSOR
    return values, NONE


def unwrap(values: Sequence[Any]) -> Sequence[Any]:
    """The values, with tensors of any kind and memory maps as plain arrays.

    TypeError if NumPy has no array for a tensor.
    """
    arrays, subtype = arrays_of(values)
    tensor = torch_tensors.tensor_type()
    if subtype == NONE and tensor is not None and isinstance(values[0], tensor):
        return [torch_tensors.as_array(v) if isinstance(v, tensor) else v for v in values]
    return arrays


def wrap(array: npt.NDArray[Any], subtype: int) -> Any:
    """A tensor or memory map that shares the array's memory and keeps it alive.

    The memory map has no file, as after unpickling: writes to it stay in memory.
    """
    return torch_tensors.tensor_of(array) if subtype == TENSOR else array.view(np.memmap)
