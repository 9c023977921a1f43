"""Arrays in the subtype of something else: torch's tensors, and NumPy's memory maps.

They lie in slots and columns as the plain arrays that they are made of, and are given their subtype
again when they are handed out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._util import torch_tensors

NONE, TENSOR, MEMMAP = range(3)


def arrays_of(values: Sequence[Any]) -> tuple[Sequence[Any], int]:
    """The values as plain arrays that share their memory, and the subtype that they had; anything
    else, or mixed, as it is."""
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
    """The values to be joined: tensors, of whatever kind, and memory maps as plain arrays.

    Raises
    ------
    TypeError
        If NumPy has no array for a tensor.
    """
    arrays, subtype = arrays_of(values)
    tensor = torch_tensors.tensor_type()
    if subtype == NONE and tensor is not None and isinstance(values[0], tensor):
        return [torch_tensors.as_array(v) if isinstance(v, tensor) else v for v in values]
    return arrays


def wrap(array: npt.NDArray[Any], subtype: int) -> Any:
    """An array in its subtype, which shares its memory and keeps it alive.

    A memory map becomes one as pickle would make it, of no file: what is written to it stays here.
    """
    return torch_tensors.tensor_of(array) if subtype == TENSOR else array.view(np.memmap)
