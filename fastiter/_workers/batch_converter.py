"""The finish of a slot: what a converter makes of a batch, done by the worker that ends it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from fastiter._clib import status
from fastiter._collate import collate, numpy_fallback
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import FieldRule, Padding
from fastiter._ring import row_reader
from fastiter._ring.parent import Lease
from fastiter._ring.schema import ARRAY, RAGGED, Schema
from fastiter._ring.serialization import Packed
from fastiter._util.failures import dump
from fastiter._workers import row_writer


class BatchConverter(Protocol):
    """Makes batches of rows, in the worker or in the parent."""

    def finish(self, rows: row_writer.RowWriter) -> int:
        """Leave something in the slot, and say what by flags. Runs in the worker that found all
        rows done; never raises."""

    def from_columns(self, lease: Lease) -> Any:
        """The batch of a slot whose columns hold all rows; None to have `convert` called. Runs in
        the parent."""

    def convert(self, examples: list[Any], indices: Indices) -> Any:
        """The batch of examples. Runs in the parent."""


class ConcatConverter:
    """concat_examples, done in place: equal shapes lie in columns already, ragged fields are put
    together here. No example objects are made at all.

    `copy` is as in concat_examples; `tolerates`, whether the other rows of a batch count when some
    have failed.
    """

    def __init__(self, padding: Padding, copy: bool, tolerates: bool):
        self.padding = padding
        self.copy = copy
        self.tolerates = tolerates
        self._field_plan: tuple[Any, list[_Step] | None] = (None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConcatConverter, (self.padding, self.copy, self.tolerates)

    def finish(self, rows: row_writer.RowWriter) -> int:
        schema = rows.slot_schema
        if schema is None or not schema.has_ragged_fields:
            return 0
        good = rows.good_rows()
        if good is not None and not (good and self.tolerates):
            return 0
        try:
            steps = self._steps_for(schema)
            if steps is not None and rows.pad_fields(steps, good):
                return status.CONVERTED_FIELDS
        except Exception:
            pass  # the parent tries on its heap, and raises if that fails too
        return 0

    def from_columns(self, lease: Lease) -> Any:
        """What concat_examples returns: the columns of a batch, and the lengths it was asked for;
        None where it would give something else, or an error about the padding, which `convert`
        raises. Runs in the parent."""
        schema = lease.schema
        assert schema is not None
        steps = self._steps_for(schema)
        if steps is None:
            return None
        columns = row_reader.columns(lease, lease.is_copied or self.copy)
        if columns is None or self.padding.only_fills:
            return columns
        names = range(len(steps)) if schema.keys is None else schema.keys
        lengths = [
            row_reader.lengths(lease, number, step.max_length) if step.lengths else None
            for number, step in enumerate(steps)
        ]
        return collate.with_lengths(columns, names, lengths)

    def _steps_for(self, schema: Schema) -> list[_Step] | None:
        if self._field_plan[0] is not schema:
            self._field_plan = (schema, self._plan_fields(schema))
        return self._field_plan[1]

    def _plan_fields(self, schema: Schema) -> list[_Step] | None:
        """What is done with each field; None if that is not what columns are made for, or a fill
        value cannot be cast without a word from NumPy, which the parent shall say."""
        try:
            rules = self.padding.for_schema(schema)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                fields = zip(schema.specs, schema.dtypes, rules, strict=True)
                return [_step(*field) for field in fields]
        except (IndexError, KeyError, *numpy_fallback.CAST_ERRORS):  # no padding, or no cast
            return None

    def convert(self, examples: list[Any], indices: Indices) -> Any:
        return collate.collate(examples, self.padding, copy=self.copy, indices=indices)


class _Step(NamedTuple):
    """What is done with one field. `RowWriter.pad_fields` reads the first three."""

    fill: np.ndarray[Any, Any] | None  # 0-d, of the field's dtype
    max_length: int
    multiple: int
    lengths: bool


def _step(spec: Any, dtype: Any, rule: FieldRule) -> _Step:
    """Raises where columns are not what concat_examples makes of this field."""
    kind, _, shape = spec
    ndim = shape if kind == RAGGED else len(shape or ())  # of a number: None
    fill = None
    if rule.fill is not None:
        fill = numpy_fallback.cast_fill(rule.fill, np.dtype(dtype), ndim)
    if ndim == 0:
        if rule.named is not None:
            raise ValueError(f"{rule.named} is set for a field without an axis")
        return _Step(fill, -1, 1, False)
    if kind == ARRAY and not rule.takes_whole(shape[0]):
        raise ValueError("the column is no row's length")
    return _Step(fill, rule.max_length, rule.multiple, rule.lengths)


class CallableConverter:
    """Any other converter: called in the worker as ``function(examples, None)``, with examples of
    its own to keep or to change. Its result is packed into the slot. `tolerates` is as above."""

    def __init__(self, function: Callable[[list[Any], Any], Any], tolerates: bool):
        self.function = function
        self.tolerates = tolerates

    def finish(self, rows: row_writer.RowWriter) -> int:
        try:
            examples = rows.examples(self.tolerates)
        except Exception:
            return 0  # an example cannot be loaded again: the parent says which
        if examples is None:
            return 0
        flags = status.CONVERTED_OBJECT
        try:
            result = self.function(examples, None)
        except BaseException as error:
            flags = status.CONVERTER_ERROR
            result = dump(error)
        try:
            rows.put_result(Packed(result), flags == status.CONVERTER_ERROR)
        except Exception:
            return 0  # no pickle, or no room: the parent converts
        return flags

    def from_columns(self, lease: Lease) -> None:
        """Nothing: the function is for examples."""

    def convert(self, examples: list[Any], indices: Indices) -> Any:
        return self.function(examples, None)
