"""From a batch of examples to arrays: the converter's core, on whatever device the arrays are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastiter import _batch, _device, _views


def collate(batch: Sequence[Any], padding: Any = None, *, copy: bool = False) -> Any:
    """Join the examples of a batch along a new first axis, field by field.

    The first example decides: a tuple or a dict has fields, of which the others must have at
    least the same; anything else, a list too, is one field of its own.

    Parameters
    ----------
    batch : sequence
        Examples, at least one.
    padding : object, tuple or dict, optional
        Fill value for what lies outside of an example's shape; for tuples and dicts also one
        per field. Without it (None) all shapes of a field must be equal.
    copy : bool
        Whether the result must own its memory, whatever the examples are views of.

    Returns
    -------
    array, tuple of arrays or dict of arrays
        A plain tuple or dict, whatever kind of tuple or dict the examples are.

    Raises
    ------
    ValueError
        If the batch is empty, or shapes differ without padding, or in number of dimensions.
    IndexError, KeyError
        If an example, or the padding, lacks a field of the first example.
    TypeError
        If a field cannot be joined, as strings or None, or the batch is no sequence.
    """
    if isinstance(batch, Mapping):
        raise TypeError(f"batch must be a list of examples, not a {type(batch).__qualname__}")
    if batch is None or len(batch) == 0:
        raise ValueError("batch is empty: at least one example is needed to make an array of")
    first = batch[0]
    if isinstance(first, tuple):
        fills = padding if isinstance(padding, tuple) else (padding,) * len(first)
        return tuple(
            join(_views.pick(batch, field), fills[field], copy=copy) for field in range(len(first))
        )
    if isinstance(first, dict):
        fill_of = padding if isinstance(padding, dict) else dict.fromkeys(first, padding)
        return {key: join(_views.pick(batch, key), fill_of[key], copy=copy) for key in list(first)}
    return join(batch, padding, copy=copy)


def join(field: Sequence[Any], fill: Any = None, *, copy: bool = False) -> Any:
    """Join one field of all examples into one array, on the device of the first one.

    Parameters
    ----------
    field : sequence of array-like
        One entry for each example.
    fill : object, optional
        Fill value; None if the shapes must be equal.
    copy : bool
        False: the arrays of a batch as an iterator delivered it are handed over as the column of
        shared memory that they are.

    Returns
    -------
    array, (len(field), ...)
        Without ``fill`` of the dtype that NumPy promotes all entries to; with it, of the first
        entry's dtype, to which the others are cast.
    """
    if _device.is_cupy_array(field[0]):
        return _join_cupy(field, fill)
    if not copy and isinstance(field, list) and _is_fill(fill, field[0]):
        column = _views.hand_over(field)
        if column is not None:
            return column
    if fill is None:
        return _batch.stack(field)
    return _batch.pad_stack(field, fill)


def _is_fill(fill: Any, first: Any) -> bool:
    """Whether a column may be handed over although it leaves nothing to fill: a fill value that
    does not cast is an error all the same."""
    if fill is None:
        return True
    try:
        np.full((), fill, first.dtype)
    except Exception:
        return False
    return True


def _join_cupy(field: Sequence[Any], fill: Any) -> Any:
    cupy, device = _device.array_module(field[0])
    with device:
        if fill is None:
            return cupy.concatenate([array[None] for array in field])
        ndims = {array.ndim for array in field}
        if len(ndims) > 1:
            raise ValueError(f"arrays of one field differ in number of dimensions: {sorted(ndims)}")
        shape = [max(lengths) for lengths in zip(*(a.shape for a in field), strict=True)]
        joined = cupy.full((len(field), *shape), fill, dtype=field[0].dtype)
        for row, array in zip(joined, field, strict=True):
            row[tuple(map(slice, array.shape))] = array
        return joined
