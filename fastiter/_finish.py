"""The finish of a slot: what a converter makes of a batch, done by the worker that ends it.

A finisher has two sides. ``finish(rows)`` runs in the worker that found all rows done; it may
leave something in the slot, says so by flags, and never raises. ``convert(examples)`` runs in the
parent for the batches of which the worker could make nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastiter import _collate, _fill, _ring, _rows
from fastiter._transport import Packed, failure_of

_NUMBERS = {_rows.INT: np.int64, _rows.FLOAT: np.float64, _rows.BOOL: np.bool_}


class ConcatFinisher:
    """concat_examples, done in place: equal shapes lie in columns already, ragged fields are put
    together here. No example objects are made at all.

    Parameters
    ----------
    padding, copy
        As in concat_examples.
    """

    def __init__(self, padding: Any, copy: bool):
        self.padding = padding
        self.copy = copy
        self._fills: tuple[Any, list[Any] | None] = (None, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return ConcatFinisher, (self.padding, self.copy)

    def finish(self, rows: _fill.RowWriter) -> int:
        if not rows.columns_complete:
            return 0
        schema = rows.current_schema
        if schema is None or not schema.has_ragged_fields:
            return 0
        fills = self._fills_for(schema)
        try:
            if fills is not None and schema.pad_fields(rows.end, fills):
                return _ring.CONVERTED_FIELDS
        except MemoryError:
            pass  # the parent tries on its heap, and raises if that fails too
        return 0

    def suits(self, schema: _rows.Schema) -> bool:
        """Whether the columns of this schema are what concat_examples would give. Its errors about
        the padding are raised by itself, in `convert`."""
        return self._fills_for(schema) is not None

    def _fills_for(self, schema: _rows.Schema) -> list[Any] | None:
        if self._fills[0] is not schema:
            self._fills = (schema, self._cast_fills(schema))
        return self._fills[1]

    def _cast_fills(self, schema: _rows.Schema) -> list[Any] | None:
        """Per field its fill value as a 0-d array, or None; None if a fill cannot be cast
        without a word from NumPy, which the parent shall say."""
        padding = self.padding
        count = len(schema.specs)
        values: Sequence[Any]
        try:
            if schema.container in (_rows.TUPLE, _rows.NAMED):
                values = padding if isinstance(padding, tuple) else (padding,) * count
            elif schema.keys is not None:
                values = [padding[k] if isinstance(padding, dict) else padding for k in schema.keys]
            else:
                values = (padding,)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return [
                    None
                    if values[number] is None
                    else np.full((), values[number], _NUMBERS.get(kind, dtype))
                    for number, (kind, dtype, _) in enumerate(schema.specs)
                ]
        except Exception:
            return None

    def convert(self, examples: list[Any]) -> Any:
        return _collate.collate(examples, self.padding, copy=self.copy)


class CallableFinisher:
    """Any other converter: called in the worker, its result packed into the slot.

    Parameters
    ----------
    function : callable
        Called as ``function(examples, None)`` with examples of its own to keep or to change.
    """

    def __init__(self, function: Callable[[list[Any], Any], Any]):
        self.function = function

    def finish(self, rows: _fill.RowWriter) -> int:
        try:
            examples = rows.examples()
        except Exception:
            return 0  # an example cannot be loaded again: the parent says which
        if examples is None:
            return 0
        flags = _ring.CONVERTED_OBJECT
        try:
            result = self.function(examples, None)
        except BaseException as error:
            flags = _ring.CONVERTER_ERROR
            result = tuple(failure_of(error))
        try:
            rows.put_result(Packed(result))
        except Exception:
            return 0  # no pickle, or no room: the parent converts
        return flags

    def convert(self, examples: list[Any]) -> Any:
        return self.function(examples, None)


Finisher = ConcatFinisher | CallableFinisher
