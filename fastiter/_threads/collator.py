"""concat_examples, done by the threads that fetch the examples.

What the examples of a dataset have in common is inferred from the first batch. From then on, rows
of one shape are copied into the batch's arrays as they are fetched (`batch_buffer.BatchBuffer`).
Fields that need all of their rows, like ragged ones, are made once the batch is complete. A batch
that is unlike the others is made from its examples. The result is the same either way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastiter._collate.collate import batch_of, collate, join_field
from fastiter._collate.padding import fields_of
from fastiter._ring.infer_schema import ColumnLearner
from fastiter._ring.schema import ARRAY, BARE, LIST, OBJECT, RAGGED, STACKABLE, dtype_traits
from fastiter._threads.batch_buffer import BatchBuffer

if TYPE_CHECKING:
    from fastiter._collate.numpy_fallback import Indices
    from fastiter._collate.padding import FieldRule, Padding
    from fastiter._ring.schema import Schema


class _FieldPlan(NamedTuple):
    """The steps that make the fields of a batch, given the schema of its examples."""

    schema: Schema | None = None  #: None: it is unknown, or no field can be written in place
    rules: tuple[FieldRule, ...] = ()  #: for each field
    in_place: tuple[bool, ...] = ()  #: for each field
    is_final: bool = False  #: whether there is nothing more to learn


class Assembler:
    """Starts and finishes the batches of one iterator, ``n_batches`` of which are filled ahead of
    their use. Safe to use in several threads."""

    def __init__(self, padding: Padding, copy: bool, batch_size: int, n_batches: int = 1) -> None:
        self._padding = padding
        self._copy = copy
        self._n_batches = n_batches
        self._learner = ColumnLearner(batch_size)
        self._field_plan = _FieldPlan()

    def start(self, n_rows: int) -> BatchBuffer:
        """Allocate a batch; MemoryError if that is impossible."""
        field_plan = self._field_plan
        rows = BatchBuffer(n_rows, field_plan.schema, field_plan.in_place, self._n_batches)
        rows.field_plan = field_plan
        return rows

    def finish(self, rows: BatchBuffer, indices: Indices | None = None) -> Any:
        """Return what concat_examples makes of the rows of a complete batch, or raise its error.

        ``indices`` are the dataset's indices of the rows, for the text of errors.
        """
        field_plan = rows.field_plan
        if rows.is_complete:
            return self._join(field_plan, rows.fields, indices)
        examples = rows.examples()
        if not field_plan.is_final:
            schema = self._learner.learn(field_plan.schema, len(examples), rows.irregular())
            if schema is not None:
                self._field_plan = self._plan_fields(schema)
        return collate(examples, self._padding, copy=self._copy, indices=indices)

    def _join(self, field_plan: _FieldPlan, fields: list[Any], indices: Indices | None) -> Any:
        schema = field_plan.schema
        assert schema is not None
        joined = []
        container, names = fields_of(schema.container, schema.keys, len(fields))
        for name, field, rule in zip(names, fields, field_plan.rules, strict=True):
            if type(field) is list:
                joined.append(join_field(field, rule, name, copy=self._copy, indices=indices))
            elif rule.lengths and field.ndim > 1:
                joined.append((field, np.full(len(field), field.shape[1], dtype=np.int64)))
            else:
                joined.append((field, None))
        return batch_of(container, names, joined)

    def _plan_fields(self, schema: Schema) -> _FieldPlan:
        if schema.container == LIST or (schema.container == BARE and schema.specs[0][0] == OBJECT):
            return _FieldPlan(is_final=True)
        try:
            fields = fields_of(schema.container, schema.keys, len(schema.specs))
            rules = self._padding.for_fields(*fields)
        except (IndexError, KeyError, ValueError):  # which collate raises for each batch
            return _FieldPlan(is_final=True)
        facts = zip(schema.specs, schema.dtypes, rules, strict=True)
        return _FieldPlan(schema, rules, tuple(_is_in_place(*each) for each in facts))


def _is_in_place(spec: Any, dtype: Any, rule: FieldRule) -> bool:
    """Whether the field's array is its rows, one after the other."""
    kind, _, shape = spec
    if rule.as_list or kind in (RAGGED, OBJECT) or not dtype_traits(dtype) & STACKABLE:
        return False
    if not _casts_quietly(rule.fill, dtype):
        return False
    return rule.takes_whole(shape[0]) if kind == ARRAY and shape else rule.named is None


def _casts_quietly(fill: Any, dtype: np.dtype[Any]) -> bool:
    """Whether NumPy surely casts a fill value without an error or a warning. Equal shapes do not
    use it, but `collate` must raise or warn."""
    if fill is None:
        return True
    if type(fill) not in (int, float, bool):
        return False
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return type(fill) is not float and limits.min <= fill <= limits.max
    if dtype.kind in "fc":
        return not math.isfinite(fill) or abs(fill) <= float(np.finfo(dtype).max)
    return dtype.kind == "b"
