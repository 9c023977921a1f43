"""Joins the examples of a batch into arrays, on the device that the examples' arrays are on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastiter._collate import concat, numpy_fallback
from fastiter._collate.numpy_fallback import SET_PADDING, Indices
from fastiter._collate.padding import FieldRule, Padding
from fastiter._device.cupy import array_module, is_cupy_array
from fastiter._util import array_subtypes

Joined = tuple[Any, Any]  # an array, and the lengths of its rows or None
_LACKING = (IndexError, KeyError, TypeError)  # errors of an example without a field


def collate(
    batch: Sequence[Any],
    padding: Padding,
    *,
    copy: bool = False,
    indices: Indices | None = None,
) -> Any:
    """Join the examples of a batch, at least one, along a new first axis, field by field.

    If the first example is a tuple or a dict, it has fields, and the other examples must have the
    same ones; anything else, a list too, is one field. The result is a plain tuple or dict of
    arrays, or an array, whatever kind of tuple or dict the examples are. Lengths that were asked
    for follow the fields (see `with_lengths`). With ``copy`` the result owns its memory, whatever
    the examples are views of. ``indices`` of the rows in the dataset are for the text of errors,
    unless there are examples of some of these rows only.
    """
    found: Any = None
    if padding.is_none:
        found = concat.join_batch(batch, copy)
        if type(found) is not list:
            return found
    if isinstance(batch, Mapping) or (batch is not None and not hasattr(type(batch), "__len__")):
        raise TypeError(f"batch must be a list of examples, not {type(batch).__qualname__}")
    if batch is None or len(batch) == 0:
        raise ValueError("batch is empty: at least one example is needed to make an array of")
    if indices is not None and len(indices) != len(batch):
        indices = None
    first = batch[0]
    container = next((kind for kind in (tuple, dict) if isinstance(first, kind)), None)
    if container is None:
        (rule,) = padding.for_fields(None, (None,))
        return batch_of(None, (None,), [join_field(batch, rule, copy=copy, indices=indices)])
    names = tuple(first) if container is dict else tuple(range(len(first)))
    rules = padding.for_fields(container, names)
    found = found or concat.join_fields(batch, names, rules, copy)
    if any(joined is None for joined in found):
        _refuse_more_fields(batch, names, indices)
    fields = []
    for name, rule, joined in zip(names, rules, found, strict=True):
        if joined is None:
            values = _field_of(batch, name, indices)
            joined = join_field(values, rule, name, copy=copy, indices=indices)
        fields.append(joined if type(joined) is tuple else (joined, None))
    return batch_of(container, names, fields)


def batch_of(container: type | None, names: Sequence[Any], fields: Sequence[Joined]) -> Any:
    """The batch of its joined fields: a tuple, a dict, or the array of the only field, followed by
    the lengths."""
    arrays: Any = [array for array, _ in fields]
    if container is None:
        arrays = arrays[0]
    else:
        arrays = tuple(arrays) if container is tuple else dict(zip(names, arrays, strict=True))
    return with_lengths(arrays, names, [lengths for _, lengths in fields])


def with_lengths(arrays: Any, names: Sequence[Any], lengths: Sequence[Any]) -> Any:
    """The arrays of a batch, followed by the lengths of those fields that have them.

    Behind a tuple's fields they come in the same order; in a dict under the field's name with
    ``_lengths`` added (the pair of name and ``"lengths"`` if it is no str); behind a single array
    they make a pair. ValueError if a dict has a field of that name.
    """
    found = [(name, n) for name, n in zip(names, lengths, strict=True) if n is not None]
    if not found:
        return arrays
    if isinstance(arrays, tuple):
        return (*arrays, *(n for _, n in found))
    if not isinstance(arrays, dict):
        return arrays, found[0][1]
    for name, n in found:
        key = f"{name}_lengths" if isinstance(name, str) else (name, "lengths")
        if key in arrays:
            raise ValueError(f"return_lengths needs the key {key!r}, which the examples have")
        arrays[key] = n
    return arrays


def join_field(
    values: Sequence[Any],
    rule: FieldRule,
    name: Any = None,
    *,
    copy: bool = False,
    indices: Indices | None = None,
) -> Joined:
    """Join the values of one field; ``name`` and ``indices`` are for the text of errors."""
    if rule.as_list:
        return list(values), None
    if rule.nested is not None:
        values = _tables(values, rule, name, indices)
    found = concat.join_fields(values, None, (rule,), copy)[0]
    if found is not None:
        return found if type(found) is tuple else (found, None)
    try:
        return _join(values, rule, copy)
    except numpy_fallback.MISFITS as error:
        padded = rule.fill is not None
        raise numpy_fallback.misfit(values, error, name, indices, padded) from None


def _tables(values: Any, rule: FieldRule, name: Any, indices: Indices | None) -> list[Any]:
    """Lists of arrays of one axis as arrays of two, each as wide as the longest array of a list."""
    tables, fill = [], 0 if rule.fill is None else rule.fill
    empty = np.empty(0, rule.nested)  # tells the dtype where a list has no array
    for number, arrays in enumerate(values):
        arrays = arrays[: rule.max_length] if rule.max_length >= 0 else arrays
        if rule.fill is None and len(set(map(len, arrays))) > 1:
            place = numpy_fallback.place_of(number, indices)
            raise ValueError(f"field {name!r}: lists in {place} differ in length; {SET_PADDING}")
        tables.append(concat.pad_stack([*arrays, empty], fill)[:-1])
    return tables


def _refuse_more_fields(batch: Sequence[Any], names: Any, indices: Indices | None) -> None:
    """Raise ValueError if an example has a field that the first example lacks: it would be lost."""
    for number, example in enumerate(batch):
        if isinstance(example, (tuple, dict)) and len(example) > len(names):
            raise ValueError(
                f"{numpy_fallback.place_of(number, indices)} has {_named(example)}, where "
                f"{numpy_fallback.place_of(0, indices)} has {_named(batch[0])}: give all "
                "examples of a batch the same fields"
            )


def _named(example: Any) -> str:
    if isinstance(example, dict):
        return f"the fields {list(example)!r:.80}"
    return f"{len(example)} {'field' if len(example) == 1 else 'fields'}"


def _field_of(batch: Sequence[Any], name: Any, indices: Indices | None) -> list[Any]:
    """The values of one field; the error of an example that lacks it names the example."""
    values = []
    for number, example in enumerate(batch):
        try:
            values.append(example[name])
        except _LACKING as error:
            kind = next(kind for kind in _LACKING if isinstance(error, kind))
            raise kind(
                f"{numpy_fallback.place_of(number, indices)} has no field {name!r}, which "
                f"{numpy_fallback.place_of(0, indices)} has: it is {example!r:.80}"
            ) from None
    return values


def _join(field: Sequence[Any], rule: FieldRule, copy: bool) -> Joined:
    """Join one field that the compiled code leaves to NumPy, on the device of the first value."""
    field = array_subtypes.unwrap(field)
    on_gpu = is_cupy_array(field[0])
    if rule.only_fills or (not on_gpu and not _has_axis(field[0])):
        _refuse_numbers(field, rule)
        if on_gpu:
            return _join_cupy(field, rule), None
        if rule.fill is None:
            return concat.stack(field), None
        return concat.pad_stack(field, rule.fill), None
    if not on_gpu and not isinstance(field[0], np.ndarray):
        field = list(numpy_fallback.as_arrays(field))
    limit = rule.max_length
    rows = [array[:limit] if array.ndim and 0 <= limit < len(array) else array for array in field]
    if rows[0].ndim == 0:
        _refuse_numbers(rows, rule)
        rule = FieldRule(rule.fill)
    if on_gpu:
        joined = _join_cupy(rows, rule)
    elif rule.takes_whole(max([len(row) for row in rows if row.ndim])):
        joined, _ = join_field(rows, FieldRule(rule.fill), copy=copy)
    else:
        joined = numpy_fallback.pad(rows, rule.fill, rule.multiple)
    if not rule.lengths:
        return joined, None
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if on_gpu:
        cupy, device = array_module(rows[0])
        with device:
            lengths = cupy.asarray(lengths)
    return joined, lengths


def _has_axis(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or np.ndim(value) > 0


def _refuse_numbers(field: Sequence[Any], rule: FieldRule) -> None:
    """Raise ValueError if an option names a field of numbers; one for all fields ignores them."""
    if rule.named is not None and not _has_axis(field[0]):
        raise ValueError(
            f"{rule.named} is set for a field whose examples have no axis, like {field[0]!r}: set "
            "it for other fields only"
        )


def _join_cupy(field: Sequence[Any], rule: FieldRule) -> Any:
    cupy, device = array_module(field[0])
    with device:
        if rule.fill is None:
            return cupy.concatenate([array[None] for array in field])
        ndims = {array.ndim for array in field}
        if len(ndims) > 1:
            raise ValueError(f"arrays of one field differ in number of dimensions: {sorted(ndims)}")
        fill = rule.fill
        if not is_cupy_array(fill):
            fill = numpy_fallback.checked_fill(fill, field[0].dtype, field[0].ndim)
        shape = [max(lengths) for lengths in zip(*(a.shape for a in field), strict=True)]
        if shape:
            shape[0] += -shape[0] % rule.multiple
        joined = cupy.full((len(field), *shape), fill, dtype=field[0].dtype)
        for row, array in zip(joined, field, strict=True):
            row[tuple(map(slice, array.shape))] = array
        return joined
