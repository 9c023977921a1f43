"""The result of `default_collate`, made in place: each leaf is a column of the slot; or made of the
columns of a dataset."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate
from torch.utils.data._utils.collate import collate_tensor_fn

from fastiter._collate import concat
from fastiter._collate.buffers import empty_bytes
from fastiter._collate.numpy_fallback import Indices
from fastiter._collate.padding import Padding
from fastiter._fetch.dataset_access import is_arrow, offered
from fastiter._ring import row_reader
from fastiter._ring.infer_schema import derive_schema, derive_tree
from fastiter._ring.lease import Lease
from fastiter._ring.schema import (
    ARRAY,
    BARE,
    BOOL,
    DICT,
    FLOAT,
    INT,
    LIST,
    RAGGED,
    SCALAR,
    TEXT,
    TUPLE,
    Schema,
)
from fastiter._util import array_subtypes
from fastiter._workers.batch_converter import BatchConverter, CallableConverter, ConcatConverter
from fastiter._workers.row_writer import RowWriter
from fastiter.datasets.arrow_dataset import ArrowDataset
from fastiter.iterators._batch_maker import ConcatOptions, concat_of

_LARGE_ROW = 16 << 10  # bytes from which looking at each row takes little beside its copy
_COLUMNS = {ARRAY, INT, FLOAT, BOOL, SCALAR}
_TABLE = {**torch_collate.default_collate_fn_map}  #: as torch, or a program before, has made it
#: Dtypes for which arrays and numbers that NumPy joins have the dtype that torch gives them.
JOINED_DTYPES = frozenset(map(np.dtype, "?bBhilqefdFD"))
#: Types of examples that columns hold, their containers among them.
_COLUMN_TYPES = (torch.Tensor, np.ndarray, np.generic, float, int, str, bytes, dict, list, tuple)


class DefaultCollate(BatchConverter):
    """torch's `default_collate`, of rows that lie in columns."""

    def __init__(self) -> None:
        # The schema of the last batch, its tree, and the leaves that are tuples of texts.
        self._known: tuple[Schema | None, Any, list[int]] = (None, None, [])
        self._collate_in_worker = CollateBy(stack)

    def __reduce__(self) -> tuple[Any, ...]:
        return DefaultCollate, ()

    def from_columns(self, lease: Lease) -> Any:
        """The batch, its tensors views of the slot; None if the columns do not hold all of it."""
        if (leaves := row_reader.leaves(lease, lease.is_copied, torch.from_numpy)) is None:
            return None
        schema, tree, tuples = self._known
        if lease.schema is not schema:
            tree, tuples = _batch_tree(lease.schema)
            self._known = lease.schema, tree, tuples
        for number in tuples:
            leaves[number] = tuple(leaves[number])
        return leaves[0] if tree is None else row_reader.grow(tree, iter(leaves))

    def convert(self, examples: list[Any], indices: Any) -> Any:
        # In this process, but as in a worker.
        keys = [int(i) if type(i) is np.int64 else i for i in indices]
        return collate(self._collate_in_worker, examples, keys)


def _batch_tree(schema: Any) -> tuple[Any, list[int]]:
    """The containers of a batch: as in an example, but lists for tuples; and the leaves that are
    tuples of texts."""
    node = schema.tree
    if node is None and schema.container != BARE:
        node = schema.container, schema.keys or schema.type, (None,) * len(schema.specs)
    tree = _with_lists(node)
    leaves = enumerate(zip(schema.specs, _in_tuples(tree), strict=True))
    return tree, [n for n, (spec, is_in_tuple) in leaves if is_in_tuple and spec[0] == TEXT]


def _with_lists(node: Any) -> Any:
    if node is None:
        return None
    container, keys, children = node
    return LIST if container == TUPLE else container, keys, tuple(map(_with_lists, children))


def _in_tuples(node: Any) -> Iterator[bool]:
    """For each leaf, whether torch finds its values by ``zip``, and returns texts as they are."""
    if node is None:
        yield False
        return
    container, _, children = node
    for child in children:
        if child is None:
            yield container != DICT
        else:
            yield from _in_tuples(child)


class ValueColumns(ArrowDataset):
    """A `datasets.Dataset` of numbers and texts, whose batches are those that `default_collate`
    makes of its examples."""


class ColumnsCollate(ConcatConverter):
    """Replacement of `default_collate` for a dataset that consists of Arrow columns: arrays by
    concat_examples' rules and the dataset's padding, as tensors."""

    def from_columns(self, lease: Lease) -> Any:
        return self.tensors_of(super().from_columns(lease))

    def convert(self, examples: list[Any], indices: Indices | None) -> Any:
        return self.tensors_of(super().convert(examples, indices))

    def tensors_of(self, columns: Any) -> Any:
        """The arrays of a batch as tensors; lists, and None, stay what they are."""
        if isinstance(columns, dict):
            return {name: self.tensors_of(column) for name, column in columns.items()}
        return torch.from_numpy(columns) if isinstance(columns, np.ndarray) else columns


class ValuesCollate(ColumnsCollate):
    """`default_collate` of columns of numbers and texts that come as Python's values, which torch
    turns into int64, float64 and bool."""

    def tensors_of(self, columns: Any) -> Any:
        if isinstance(columns, np.ndarray) and columns.dtype.kind in "iuf":
            columns = columns.astype(float if columns.dtype.kind == "f" else np.int64, copy=False)
        return super().tensors_of(columns)


class ExamplesCollate(BatchConverter):
    """``collate_fn=list`` or ``tuple``: the examples themselves."""

    def __init__(self, container: type[list[Any] | tuple[Any, ...]]) -> None:
        self._container = container

    def from_columns(self, lease: Lease) -> Any:
        return self._container(row_reader.read(lease, lease.is_copied, {}))

    def convert(self, examples: list[Any], indices: Any) -> Any:
        return self._container(examples)


def converter_for(
    collate_fn: Any, dataset: Any, tolerates: bool = False
) -> DefaultCollate | ExamplesCollate | ConcatConverter | None:
    """Converter that replaces a ``collate_fn`` over columns; None if it has to be called.

    ``tolerates``: whether the other rows of a batch count when some have failed.
    """
    if (concat := concat_of(collate_fn)) is not None:
        return ConcatConverter(*concat.for_dataset(dataset), tolerates)
    if collate_fn is list or collate_fn is tuple:
        return ExamplesCollate(collate_fn)
    if not is_default(collate_fn):
        return None
    if is_arrow(dataset):
        kind = ValuesCollate if isinstance(dataset, ValueColumns) else ColumnsCollate
        return kind(*ConcatOptions(Padding(), False).for_dataset(dataset), tolerates)
    return DefaultCollate()


class SharedCollate(CallableConverter):
    """A ``collate_fn`` of rows that workers share: the one that completes a batch calls it.
    `default_collate` is not called where the columns of the rows are its result."""

    def __init__(self, collate_fn: Any, tolerates: bool, is_batch: bool) -> None:
        super().__init__(self.convert, tolerates)
        self._collate_fn, self._is_batch = collate_fn, is_batch
        self._columns = DefaultCollate() if is_batch and is_default(collate_fn) else None
        self._fitting: tuple[Schema | None, bool] = None, False  # the last schema, and whether

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedCollate, (self._collate_fn, self.tolerates, self._is_batch)

    def _are_columns(self, schema: Schema | None) -> bool:
        if self._columns is None or schema is None:
            return False
        if self._fitting[0] is not schema:
            self._fitting = schema, _holds_tensors(schema, _COLUMNS) and has_torchs_table()
        return self._fitting[1]

    def finish(self, rows: RowWriter) -> int:
        return 0 if self._are_columns(rows.slot_schema) else super().finish(rows)

    def from_columns(self, lease: Lease) -> Any:
        if self._columns is None or not self._are_columns(lease.schema):
            return None
        return self._columns.from_columns(lease)

    def convert(self, examples: list[Any], indices: Any) -> Any:
        """The batch; in a worker, which calls it as a converter, without indices."""
        if self._columns is not None:
            return self._columns.convert(examples, () if indices is None else indices)
        return self._collate_fn(examples if self._is_batch else examples[0])


def shared_converter(
    collate_fn: Any, dataset: Any, tolerates: bool, is_batch: bool
) -> SharedCollate | ConcatConverter:
    """As `converter_for`, for rows that workers share, and any ``collate_fn``."""
    converter = converter_for(collate_fn, dataset, tolerates) if is_batch else None
    if isinstance(converter, ConcatConverter):
        return converter
    return SharedCollate(collate_fn, tolerates, is_batch)


def collate_of(collate_fn: Any, dataset: Any, is_batch: bool) -> Any:
    """Callable that gets the examples of a batch for a ``collate_fn``."""
    converter = converter_for(collate_fn, dataset) if is_batch else None
    return converter if isinstance(converter, ConcatConverter) else collate_fn


def schema_for(converter: Any, examples: Sequence[Any], rows: int) -> Schema | None:
    """The columns for batches like this one; None if they cannot be made from columns."""
    schema = derive_schema(examples, rows)
    if isinstance(converter, ConcatConverter):
        return schema if schema.has_ragged_fields or _are_columns(schema, _COLUMNS) else None
    if isinstance(converter, ExamplesCollate):
        is_plain = _are_columns(schema, {*_COLUMNS, RAGGED}) and all(map(_is_contiguous, examples))
        return schema if is_plain else None
    if not has_torchs_table():
        return None
    tree = schema if _are_columns(schema, _COLUMNS) else derive_tree(examples, rows)
    return tree if tree is not None and _holds_tensors(tree, {*_COLUMNS, TEXT}) else None


def _is_contiguous(value: Any) -> bool:
    """Whether all arrays and tensors of an example lie in memory as columns hold them."""
    if isinstance(value, (tuple, list, dict)):
        return all(map(_is_contiguous, value.values() if isinstance(value, dict) else value))
    if isinstance(value, torch.Tensor):
        return bool(value.is_contiguous())
    return not isinstance(value, np.ndarray) or bool(value.flags.c_contiguous)


def _holds_tensors(schema: Schema, kinds: set[int]) -> bool:
    """Whether the columns are of these kinds, and each of a dtype that tensors have."""
    try:
        for dtype in schema.dtypes:
            torch.from_numpy(np.empty(0, dtype or np.uint8))
    except (TypeError, ValueError):  # the latter for the other byte order
        return False
    return _are_columns(schema, kinds)


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's own: not one that the program has put into torch's module, nor
    a wrapper that has taken over name and module."""
    return offered(function, "__globals__") is vars(torch_collate)


def is_default(collate_fn: Any) -> bool:
    return _is_torchs(collate_fn) and collate_fn.__name__ == "default_collate"


def has_torchs_table() -> bool:
    """Whether the program has neither changed nor added an entry of torch's table for types that
    are written into columns, nor a function that joins them, or reads the table."""
    if not (are_built_in() and _is_torchs(torch_collate.collate)):
        return False
    return not any(
        issubclass(kind, _COLUMN_TYPES) or any(issubclass(one, kind) for one in _COLUMN_TYPES)
        for kinds, function in torch_collate.default_collate_fn_map.items()
        if function not in _OWN and (function is not _TABLE.get(kinds) or not _is_torchs(function))
        for kind in (kinds if isinstance(kinds, tuple) else (kinds,))
    )


def table_now() -> tuple[Any, ...]:
    """All that decides about the result of `default_collate`, to be compared."""
    return torch_collate.collate, torch.stack, dict(torch_collate.default_collate_fn_map)


def _are_columns(schema: Schema, kinds: set[int]) -> bool:
    return all(spec[0] in kinds for spec in schema.specs)


def collate(
    collate_fn: Callable[[list[Any]], Any], examples: list[Any], keys: Iterable[Any]
) -> Any:
    """Call torch's `default_collate`, and add the first example that does not fit to its
    errors."""
    try:
        return collate_fn(examples)
    except Exception as error:
        # An OSError has its number and the file's name as arguments.
        has_text = type(error).__module__ == "builtins" and len(error.args) == 1
        place = _misfit(collate_fn, examples) if has_text else None
        if place is None:
            raise
        key = next(itertools.islice(keys, place, None), None)  # `__getitems__` may give more
        index = "" if key is None else f", dataset index {key!r}"
        text = f"{error} (example {place} of the batch{index})"
        try:
            told = type(error)(text)
        except Exception:
            raise error from None
        told.__dict__.update(error.__dict__)
        raise told.with_traceback(error.__traceback__) from error.__cause__


def _misfit(collate_fn: Callable[[list[Any]], Any], examples: list[Any]) -> int | None:
    """Place of the first example that cannot be collated with the first one."""
    n_fitting = 0
    with contextlib.suppress(Exception):
        for example in examples:
            collate_fn([examples[0], example])
            n_fitting += 1
        return None
    return n_fitting


def stack(
    batch: list[torch.Tensor],
    *,
    collate_fn_map: Any = None,
    take_memory: Callable[[int], Any] | None = None,
) -> torch.Tensor:
    """As torch's own function for tensors, but in ordinary memory, or in memory of `take_memory`:
    torch's allocates a file of shared memory for each tensor that a worker makes."""
    first = batch[0]
    if first.is_nested or first.layout is not torch.strided:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    # `numel` comes first, as in torch's function, for the error of a value that is no tensor.
    if any(x.numel() < 0 or x.requires_grad or x.is_quantized or not x.is_cpu for x in batch):
        return torch.stack(batch, 0)
    # With the dtype of the first one, which torch's shared output has.
    return torch.stack(batch, 0, out=_room(len(batch), first, take_memory))


def _room(n_rows: int, row: torch.Tensor, take_memory: Callable[[int], Any] | None) -> torch.Tensor:
    size = n_rows * row.numel() * row.element_size()
    if take_memory is None or not size or type(row) is not torch.Tensor:
        return row.new_empty((n_rows, *row.shape))
    return torch.frombuffer(take_memory(size), dtype=row.dtype).view(n_rows, *row.shape)


def room_for(n_rows: int, column: torch.Tensor) -> torch.Tensor | None:
    """Memory for a batch of rows of an ordinary tensor, as that of `stack_again`; None: torch's
    own."""
    is_large = column.nbytes >= _LARGE_ROW * column.shape[0] and not column.is_complex()
    return _room(n_rows, column[0], empty_bytes) if is_large else None


def stack_again(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    """As torch's own function for tensors, without workers: it takes new memory for each batch,
    which the system clears. Here large rows are joined in that of a batch that is gone."""
    if _are_large_rows(batch):
        return stack(batch, take_memory=empty_bytes)
    return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _are_large_rows(batch: list[torch.Tensor]) -> bool:
    """Whether all are large ordinary tensors of one dtype, on the host and contiguous."""
    first = batch[0]
    if type(first) is not torch.Tensor or first.is_nested or first.layout is not torch.strided:
        return False
    if first.numel() * first.element_size() < _LARGE_ROW or first.is_complex():
        return False
    dtype, layout = first.dtype, first.layout
    return all(
        type(x) is torch.Tensor and x.dtype is dtype and x.layout is layout and x.is_contiguous()
        for x in batch
    )


def has_mode() -> bool:
    """Whether a mode, such as a default device or fake tensors, takes part in what torch does."""
    return bool(torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack())


def are_built_in() -> bool:
    """Whether torch's are the functions by which `default_collate` makes tensors."""
    return type(torch.stack) is type(torch.as_tensor) is type(torch.tensor) is type(len)


_has_warned = False


def _warns(arrays: Sequence[Any]) -> bool:
    """Whether torch now warns of an array that must not be written to. It does so once."""
    global _has_warned
    if not concat.has_read_only(arrays) or (_has_warned and not torch.is_warn_always_enabled()):
        return False
    _has_warned = True
    return True


def _plain_values(batch: Sequence[Any], table: Any) -> Sequence[Any] | None:
    """The values for compiled code; None where torch has another function join the tensors that it
    makes of arrays, or warns, and for large rows, whose own function knows where they are to lie.
    """
    if not isinstance(batch[0], np.ndarray):
        return batch
    if batch[0].nbytes >= _LARGE_ROW:
        return None
    join = (table or {}).get(torch.Tensor)
    is_own = join is collate_tensor_fn or getattr(join, "func", join) in _JOINS
    return array_subtypes.arrays_of(batch)[0] if is_own and not _warns(batch) else None


def _join_values(
    function: Callable[..., Any], batch: Sequence[Any], *, collate_fn_map: Any = None
) -> Any:
    """As ``function``, torch's own for arrays or for numbers. It makes a tensor of each array;
    here compiled code fills the result, if all have one type, dtype and shape."""
    values = None if has_mode() or not are_built_in() else _plain_values(batch, collate_fn_map)
    joined = None if values is None else concat.join_fields(values, None, None, True)[0]
    # The strides of tensors without elements are torch's own.
    if joined is None or not joined.size or joined.dtype not in JOINED_DTYPES:
        return function(batch, collate_fn_map=collate_fn_map)
    return torch.from_numpy(joined)


_JOINS = (stack, stack_again)
#: By type: the function that takes the place of torch's, and torch's.
_REPLACED: dict[Any, tuple[Callable[..., Any], Callable[..., Any]]] = {
    torch.Tensor: (stack, collate_tensor_fn),
    **{
        kind: (functools.partial(_join_values, function), function)
        for kind, function in (
            (np.ndarray, torch_collate.collate_numpy_array_fn),
            ((np.bool_, np.number, np.object_), torch_collate.collate_numpy_scalar_fn),
            (float, torch_collate.collate_float_fn),
            (int, torch_collate.collate_int_fn),
        )
    },
}
_OWN = [own for own, _ in _REPLACED.values()]


def use_own_functions() -> None:
    """Have a worker's `default_collate`, also within a ``collate_fn``, join values by the functions
    of this module, unless the program has registered its own."""
    table = torch_collate.default_collate_fn_map
    for kind, (own, torchs) in _REPLACED.items():
        if table.get(kind) is torchs:
            table[kind] = own


class CollateBy:
    """torch's `default_collate`, with all that the program has registered; ``join`` joins tensors,
    unless the program has registered a function for them."""

    def __init__(self, join: Callable[..., torch.Tensor]) -> None:
        self._join = join
        # The program's table, as it was at the last batch, and the one that was made of it.
        self._tables: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}

    def __call__(self, examples: list[Any]) -> Any:
        programs, own = self._tables
        if torch_collate.default_collate_fn_map != programs:
            programs = dict(torch_collate.default_collate_fn_map)
            own = {
                kind: self._join if kind is torch.Tensor else functions[0]
                for kind, functions in _REPLACED.items()
                if programs.get(kind) in functions
            }
            self._tables = programs, own = programs, {**programs, **own}
        return torch_collate.collate(examples, collate_fn_map=own)
