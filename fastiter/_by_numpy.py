"""Joining and padding written in NumPy's own operations: slow, right for every kind of example,
with NumPy's results, warnings and errors. What the compiled ways leave comes here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: What `cast_fill` raises; the last one where warnings are errors.
CAST_ERRORS = (TypeError, ValueError, OverflowError, Warning)


def stack(rows: Sequence[Any]) -> Any:
    """`rows` joined along a new first axis, as ``concat_examples`` defines it."""
    if not isinstance(rows[0], np.ndarray):
        array = np.asarray(rows)
        if array.dtype.kind in "biufc" and array.dtype.isnative:
            return array  # what taking it apart and joining it again would give
        rows = tuple(array)
    try:
        return np.concatenate([row[np.newaxis] for row in rows])
    except (TypeError, LookupError) as error:
        odd = [row for row in rows if not _takes_an_axis(row)]
        if not odd:  # dtypes that have none in common, or too many dimensions: NumPy says it best
            raise
        value = odd[0].item() if isinstance(odd[0], np.generic) else odd[0]
        kind = KeyError if isinstance(error, KeyError) else TypeError  # of a dict, as in Chainer
        raise kind(
            f"examples must hold arrays or numbers, not {value!r:.80} of type "
            f"{type(value).__qualname__}: convert them in the dataset, or with a converter of your "
            "own"
        ) from error
    except ValueError as error:
        shapes = {np.shape(row): i for i, row in reversed(list(enumerate(rows)))}
        if len(shapes) == 1:
            raise
        (one, i), (other, j) = sorted(shapes.items(), key=operator.itemgetter(1))[:2]
        raise ValueError(
            f"examples differ in shape: {one} is that of example {i}, {other} that of example {j}; "
            f"set padding to fill them up ({error})"
        ) from error


def _takes_an_axis(row: Any) -> bool:
    """Whether it is an array, of however many axes, or one of NumPy's scalars that act like one."""
    if isinstance(row, np.ndarray):
        return True
    try:
        row[np.newaxis]
    except (TypeError, LookupError):
        return False
    return True


def pad(rows: Sequence[Any], fill: Any, multiple: int = 1) -> Array:
    """`rows` in an array of the elementwise maximum of their shapes, the rest being `fill`.

    Parameters
    ----------
    multiple : int
        What the length of the rows' first axis is rounded up to a multiple of.
    """
    if not isinstance(rows[0], np.ndarray):
        rows = tuple(np.asarray(rows))
    dtype = rows[0].dtype
    shape = _padded_shape(rows)
    if shape:
        shape[0] += -shape[0] % multiple
    fill = checked_fill(fill, dtype, len(shape))
    result = _filled((len(rows), *shape), fill, dtype)
    for i, row in enumerate(rows):
        place: Any = (i, *map(slice, row.shape))
        result[place] = row
    return result


def checked_fill(fill: Any, dtype: np.dtype[Any], ndim: int) -> Any:
    """`fill`, unless it is a float that the integer `dtype` has no value near to.

    A fraction is cut off, as in every cast; but NaN, an infinity or a float out of range becomes
    an arbitrary number, of which some versions of NumPy warn and others do not.

    Parameters
    ----------
    ndim : int
        Of the field's examples. Numbers, which are 0-d, are never filled up: such a fill value is
        for other fields of the batch, and zeros take its place.

    Raises
    ------
    ValueError
        If there is no such value, and an axis along which it may be needed.
    """
    if dtype.kind not in "iu":
        return fill
    values = np.asarray(fill)
    if values.dtype.kind not in "fc":
        return fill
    whole = np.trunc(values.real.astype(np.longdouble))
    limits = np.iinfo(dtype)
    if np.all((whole >= np.longdouble(limits.min)) & (whole <= np.longdouble(limits.max))):
        return fill
    if ndim == 0:
        return np.zeros(values.shape, dtype)
    raise ValueError(
        f"padding {fill!r} has no value in the dtype {dtype} of the examples: give an integer "
        f"from {limits.min} to {limits.max}, examples of a floating dtype, or a padding for each "
        "field"
    )


def cast_fill(fill: Any, dtype: np.dtype[Any], ndim: int) -> Array:
    """`fill` as a 0-d array of `dtype`, by NumPy's rules and those of `checked_fill`."""
    return _filled((), checked_fill(fill, dtype, ndim), dtype)


def _filled(shape: tuple[int, ...], fill: Any, dtype: np.dtype[Any]) -> Array:
    """Like `numpy.full`, but the error for a fill value that does not fit says what it is."""
    result: Array = np.empty(shape, dtype)
    try:
        np.copyto(result, fill, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError):
            raise  # that of a codec, say, which takes more than a text
        raise type(error)(
            f"padding {fill!r:.80} cannot fill up examples of dtype {dtype}: give one value that "
            f"this dtype has, or a tuple or a dict with one for each field ({error})"
        ) from error
    return result


def stored(result: Any, out: Any) -> Any:
    """`result`, or `out` with its content.

    Raises
    ------
    TypeError
        If `out` is no array.
    ValueError
        If its shape or dtype is another.
    """
    if out is None:
        return result
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out is a {type(out).__name__}: pass a numpy.ndarray or None")
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"out has shape {out.shape} and dtype {out.dtype}, but this batch has shape "
            f"{result.shape} and dtype {result.dtype}: pass such an array as out, or None"
        )
    np.copyto(out, result)
    return out


def _padded_shape(rows: Sequence[Any]) -> list[int]:
    """The elementwise maximum of the rows' shapes; a shape of one length is broadcast."""
    shape = np.array(rows[0].shape, dtype=int)
    for i, row in enumerate(rows):
        try:
            if np.not_equal(shape, row.shape).any():
                np.maximum(shape, row.shape, out=shape)
        except ValueError:
            raise ValueError(
                f"cannot pad to one shape: example 0 has shape {rows[0].shape}, but example {i} "
                f"has shape {row.shape}: give all examples the same number of dimensions"
            ) from None
    lengths: list[int] = shape.tolist()
    return lengths
