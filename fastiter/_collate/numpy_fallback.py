"""Joins and pads any kind of examples with NumPy's own operations, results, warnings and errors.

Slower than the compiled functions, and used for what these do not take.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastiter._ring.schema import is_plain_number

Array = npt.NDArray[Any]
#: The dataset's index of each example of a batch.
Indices: TypeAlias = Sequence[int] | npt.NDArray[np.int64]

#: Exceptions of `cast_fill`; the last if warnings are errors.
CAST_ERRORS = (TypeError, ValueError, OverflowError, Warning)


def stack(rows: Sequence[Any]) -> Any:
    """Join `rows` along a new first axis, as ``concat_examples`` defines it."""
    values = rows
    try:
        if not isinstance(rows[0], np.ndarray):
            rows = as_arrays(rows)
            if isinstance(rows, np.ndarray) and is_plain_number(rows.dtype):
                return rows
            rows = tuple(rows)
        return np.concatenate([row[np.newaxis] for row in rows])
    except MISFITS as error:
        raise misfit(values, error) from None


def as_arrays(rows: Sequence[Any]) -> Any:
    """Return `rows`, the first of which is not an array, as one array.

    Lists of numbers that vary in length become a list of arrays, of the dtype that NumPy promotes
    all their numbers to. ValueError if such lists hold anything else than numbers.
    """
    if not isinstance(rows[0], (list, tuple)) or not all(
        isinstance(row, (list, tuple, np.ndarray)) and getattr(row, "ndim", 1) for row in rows
    ):
        return np.asarray(rows)
    lengths = {len(row) for row in rows}
    # Lists of arrays may differ in the shapes of these, from row to row.
    if len(lengths) == 1 and not (isinstance(rows[0], (list, tuple)) and _holds_arrays(rows[0])):
        array = np.asarray(rows)
        # NumPy below 1.24 makes objects of lists that vary in length.
        if array.dtype == object and any(type(value) is list for value in array.flat):
            raise ValueError("lists differ in length")
        return array
    arrays = [np.asarray(row) for row in rows]
    if not all(array.dtype.kind in "biufcmM" for array in arrays):
        raise ValueError("lists of numbers are needed")
    # An empty list has no depth of its own, and a dtype only if there are arrays in it.
    typed = [a.dtype for a, row in zip(arrays, rows, strict=True) if a.size or _holds_arrays(row)]
    dtype = np.result_type(*set(typed) or {arrays[0].dtype})
    ndim = max(array.ndim for array in arrays)
    deep = [a if a.size else a.reshape(a.shape + (0,) * (ndim - a.ndim)) for a in arrays]
    return [array.astype(dtype, copy=False) for array in deep]


def _holds_arrays(row: Any) -> bool:
    return isinstance(row, np.ndarray) or (
        isinstance(row, (list, tuple)) and any(map(_holds_arrays, row))
    )


SET_PADDING = (
    "set padding to fill them up, as in functools.partial(concat_examples, padding=0), or in "
    "ArrowDataset(..., padding=0)"
)
#: Errors of a field whose examples do not fit together; exactly these, not their subclasses.
MISFITS = (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError)


def misfit(
    values: Sequence[Any],
    error: Exception,
    name: Any = None,
    indices: Indices | None = None,
    is_padded: bool = False,
) -> Exception:
    """Return the exception that says why the values of one field do not make an array.

    ``error`` is what NumPy has raised, or this module without name and indices. ``name`` is None if
    examples have no fields; ``is_padded`` says whether they may differ in length.
    """
    if type(error) not in MISFITS:
        return error
    field = "" if name is None else f"field {name!r}: "
    kind = TypeError if type(error) in (AttributeError, KeyError) else type(error)  # None, a dict
    shapes: dict[tuple[int, ...], int] = {}  # and the first example that has it
    for number, value in enumerate(values):
        if fault := _fault_of(value, values[0]):
            text = field + fault.format(place_of(number, indices), value)
            return kind(text) if isinstance(value, (list, tuple)) else TypeError(text)
        shapes.setdefault(tuple(np.shape(value)), number)
    (one, i), (other, j) = ([*shapes.items()] * 2)[:2]
    seen = f"{place_of(i, indices)} has {one}, {place_of(j, indices)} has {other}"
    if is_padded and len({len(shape) for shape in shapes}) > 1:
        return kind(
            f"{field}examples differ in number of dimensions, so that they cannot be padded to one "
            f"shape: {seen}"
        )
    if not is_padded and len(shapes) > 1:
        return kind(f"{field}examples differ in shape: {seen}; {SET_PADDING}")
    return error if type(error) is kind and not field else kind(f"{field}{error}")


def _fault_of(value: Any, first: Any) -> str:
    """A format string that says what is wrong with a value, for the example's place and the value;
    empty if it is an array, a number or a list of numbers."""
    if hasattr(value, "shape") and not isinstance(value, (str, bytes)):
        return ""
    try:
        kind = np.asarray(value).dtype.kind
    except Exception:
        kind = "O"
    if kind not in "biufcmM":
        if kind == "O" and isinstance(value, (list, tuple)) and isinstance(value[0], (list, tuple)):
            return (
                "{0} holds lists that differ in length, {1!r:.80}: lists of numbers are padded, "
                "lists of such lists are not; make an array of each example in the dataset"
            )
        return (
            "examples must hold arrays or numbers, not {1!r:.80} of type "
            + type(value).__qualname__
            + ", as {0} does: convert it or leave it out in the dataset, or use a converter of "
            "your own"
            + ("; a list is one array: a tuple or a dict has fields" * isinstance(value, list))
        )
    if isinstance(first, np.ndarray):
        return (
            "{0} has {1!r:.80} of type "
            + type(value).__qualname__
            + ", where example 0 has an array: make it an array, too"
        )
    return ""


def place_of(number: int, indices: Indices | None) -> str:
    """The name of an example of a batch, for messages."""
    return f"example {number}" + ("" if indices is None else f" (dataset index {indices[number]})")


class LAST:
    """In the place of a fill value: rows of one axis are filled up by their own last element."""


class OnLeft(NamedTuple):
    """In the place of a fill value: it stands before the rows of one axis, not behind them."""

    fill: Any


def pad(rows: Sequence[Any], fill: Any, multiple: int = 1) -> Array:
    """Return `rows` in an array of the elementwise maximum of their shapes, the rest being `fill`.

    The length of the rows' first axis is rounded up to a multiple of `multiple`.
    """
    values = rows
    try:
        if not isinstance(rows[0], np.ndarray):
            rows = tuple(as_arrays(rows))
        if isinstance(rows[0], (str, bytes)):  # they would be cut to the length of the first
            raise TypeError("texts are not padded")
        dtype = rows[0].dtype
        if dtype.kind in "SU":  # as long as the longest text
            alike = [row.dtype for row in rows if row.dtype.kind == dtype.kind]
            dtype = max(alike, key=operator.attrgetter("itemsize"))
        shape = np.array(rows[0].shape, dtype=int)
        for row in rows:
            # A shape of one axis is broadcast.
            np.maximum(shape, np.array(row.shape, dtype=int), out=shape)
        shape[:1] += -shape[:1] % multiple
        is_left = type(fill) is OnLeft
        value = fill.fill if is_left else 0 if fill is LAST else fill
        value = checked_fill(value, dtype, len(shape))
        result = _filled((len(rows), *shape.tolist()), value, dtype)
        for i, row in enumerate(rows):
            place: Any = (i, *map(slice, row.shape))
            if is_left:
                place = (i, slice(shape[0] - len(row), None))
            result[place] = row
            if fill is LAST and len(row):
                result[i, len(row) :] = row[-1]
    except MISFITS as error:
        raise misfit(values, error, is_padded=True) from None
    return result


def checked_fill(fill: Any, dtype: np.dtype[Any], ndim: int) -> Any:
    """Return `fill`, unless it is a float that the integer `dtype` has no value near to.

    A fraction is cut off, as in every cast; but NaN, an infinity or a float out of range would
    become an arbitrary number, of which only some versions of NumPy warn: ValueError. Numbers,
    examples without dimensions (`ndim`), are never padded: such a fill value is for other fields of
    the batch, and zeros replace it.
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


def fill_casts(fill: Any, dtype: np.dtype[Any], ndim: int = 0) -> bool:
    """Whether there is no fill value, or `cast_fill` casts it."""
    try:
        fill = fill.fill if type(fill) is OnLeft else fill
        return fill is None or fill is LAST or cast_fill(fill, dtype, ndim) is not None
    except CAST_ERRORS:
        return False


def _filled(shape: tuple[int, ...], fill: Any, dtype: np.dtype[Any]) -> Array:
    """Like `numpy.full`, with an error that names a fill value that does not fit."""
    result: Array = np.empty(shape, dtype)
    try:
        np.copyto(result, fill, casting="unsafe")
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError):
            raise  # such as that of a codec, whose constructor takes more than a text
        raise type(error)(
            f"padding {fill!r:.80} cannot fill up examples of dtype {dtype}: give one value that "
            f"this dtype has, or a tuple or a dict with one for each field ({error})"
        ) from error
    return result


def stored(result: Any, out: Any) -> Any:
    """Return `result`, or `out` with its content; raise if `out` is not such an array."""
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
