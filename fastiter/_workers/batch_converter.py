"""The finish of a slot: the conversion of a batch by the worker that completes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from fastiter._clib import status
from fastiter._collate import collate
from fastiter._collate.columns import rules_for
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import FieldRule, Padding, fields_of
from fastiter._ring import row_reader
from fastiter._ring.lease import Lease
from fastiter._ring.schema import Schema
from fastiter._ring.serialization import Packed
from fastiter._util.failures import dump
from fastiter._workers import row_writer


class BatchConverter:
    """Makes batches of rows, in the worker or in the parent."""

    @property
    def pads_alone(self) -> bool:
        """Whether lists need not be in the rows of a slot: `finish` finds them by the indices."""
        return False

    def finish(self, rows: row_writer.RowWriter) -> int:
        """Leave a result in the slot, and return its kind as flags. Runs in the worker that found
        all rows done; never raises."""
        return 0

    def from_columns(self, lease: Lease) -> Any:
        """The batch of a slot whose columns hold all rows; None to have `convert` called. Runs in
        the parent."""

    def convert(self, examples: list[Any], indices: Any) -> Any:
        """The batch of examples. Runs in the parent."""
        raise NotImplementedError


class _FieldRules(NamedTuple):
    """Rules of the fields of a schema; made once for each schema."""

    schema: Schema | None
    rules: list[FieldRule] | None  #: None: columns are not what concat_examples makes of the fields
    as_list: list[bool]  #: of each field, whether it is a list; empty: none is
    is_done_in_place: bool  #: whether a worker can make columns of all of them


class ConcatConverter(BatchConverter):
    """concat_examples, done in place: equal shapes lie in columns already, ragged fields are put
    together here. No example objects are made at all.

    `copy` is as in concat_examples; `tolerates`, whether the other rows of a batch count when some
    have failed.
    """

    def __init__(self, padding: Padding, copy: bool, tolerates: bool):
        self.padding = padding
        self.copy = copy
        self.tolerates = tolerates
        self._field_rules = _FieldRules(None, None, [], False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.padding, self.copy, self.tolerates)

    @property
    def pads_alone(self) -> bool:
        return not self.tolerates

    def finish(self, rows: row_writer.RowWriter) -> int:
        schema = rows.slot_schema
        if schema is None or not schema.has_lists:
            return 0
        good = rows.good_rows()
        if good is not None and not (good and self.tolerates):
            return 0
        with contextlib.suppress(Exception):  # the parent tries on its heap, and raises, too
            plan = self._plan_for(schema)
            if plan.rules and plan.is_done_in_place and rows.pad_fields(plan.rules, good):
                return status.CONVERTED_FIELDS
        return 0

    def from_columns(self, lease: Lease) -> Any:
        """The result of concat_examples: the columns of a batch, and the requested lengths;
        None if concat_examples would give another result, or an error about the padding, which
        `convert` raises."""
        schema = lease.schema
        assert schema is not None
        _, rules, as_list, _ = self._plan_for(schema)
        if rules is None:
            return None
        columns = row_reader.columns(lease, lease.is_copied or self.copy, as_list)
        if columns is None or self.padding.only_fills:
            return columns
        _, names = fields_of(schema.container, schema.keys, len(rules))
        lengths = [
            row_reader.lengths(lease, number, rule.max_length) if rule.lengths else None
            for number, rule in enumerate(rules)
        ]
        return collate.with_lengths(columns, names, lengths)

    def _plan_for(self, schema: Schema) -> _FieldRules:
        if self._field_rules.schema is not schema:
            rules = rules_for(
                self.padding, schema.container, schema.keys, schema.specs, schema.dtypes
            )
            as_list = [rule.as_list for rule in rules or ()]
            is_done_in_place = rules is not None and schema.can_be_columns(as_list)
            if not any(as_list):
                as_list = []
            self._field_rules = _FieldRules(schema, rules, as_list, is_done_in_place)
        return self._field_rules

    def convert(self, examples: list[Any], indices: Indices | None) -> Any:
        return collate.collate(examples, self.padding, copy=self.copy, indices=indices)

    def __call__(self, examples: list[Any]) -> Any:
        return self.convert(examples, None)


class CallableConverter(BatchConverter):
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

    def convert(self, examples: list[Any], indices: Indices) -> Any:
        return self.function(examples, None)
