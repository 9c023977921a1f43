"""Datasets of which an iteration reads columns, not examples: tensors, and Arrow tables."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastiter._fetch.dataset_access import Columns, SourceColumn, is_torchs_dataset, torchs_subset
from fastiter._util.loaded import loaded
from fastiter.datasets._arrow_sources import is_changed
from fastiter.iterators._batch_maker import concat_of
from fastiter.iterators._tables import arrow_source
from fastiter.torch._batches.collate import (
    JOINED_DTYPES,
    ValueColumns,
    has_mode,
    has_torchs_table,
    is_default,
    room_for,
)
from fastiter.torch._plans import index_array

_DTYPES = {torch.from_numpy(np.empty(0, dtype)).dtype for dtype in JOINED_DTYPES}


class TensorRows:
    """A `TensorDataset`, or `Subset`s of one, whose batches are those that `default_collate` makes
    of its examples.

    Workers read it by columns; `batch` is for the program's own process, where the program may
    replace, resize or change the tensors at any time.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._columns: Columns | None = None
        self._is_known = False

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorRows, (self.dataset,)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __fastiter_columns__(self) -> Columns | None:
        if not self._is_known:
            self._columns, self._is_known = _columns_of(self.dataset), True
        return self._columns

    def batch(self, keys: npt.NDArray[np.int64]) -> list[torch.Tensor] | None:
        """The batch of these rows; None if it has to be made of examples, which also raise its
        errors."""
        dataset: Any = self.dataset
        while (found := torchs_subset(dataset)) is not None:
            dataset, order = found
            try:
                rows = index_array([order[key] for key in keys.tolist()], len(keys))
            except Exception:
                return None
            if rows is None:
                return None
            keys = rows
        if has_mode() or not _is_whole(dataset):
            return None
        index = torch.from_numpy(keys if keys.flags.writeable else keys.copy())
        try:
            return [
                torch.index_select(tensor, 0, index, out=room_for(len(keys), tensor))
                for tensor in dataset.tensors
            ]
        except IndexError:  # of a negative index, too
            return None


def _is_whole(dataset: Any) -> bool:
    """Whether it is a `TensorDataset` whose rows can be gathered instead of joined one by one."""
    return is_torchs_dataset(dataset, "TensorDataset") and all(map(_is_plain, dataset.tensors))


def _is_plain(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.dtype in _DTYPES
        and tensor.dim() > 0
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
        and not any(getattr(tensor, "names", ()))  # which newer versions have no more
    )


def _columns_of(dataset: Any) -> Columns | None:
    rows: npt.NDArray[np.int64] | None = None
    while (found := torchs_subset(dataset)) is not None:
        dataset, order = found
        indices = index_array(list(order) if type(order) is range else order, sys.maxsize)
        if indices is None:
            return None
        rows = indices if rows is None else indices[rows]
    if not _is_whole(dataset):
        return None
    columns = [SourceColumn(tensor.numpy(), rows) for tensor in dataset.tensors]
    return Columns(tuple, tuple(map(str, range(len(columns)))), tuple(columns), views=True)


def fetched(loader: Any) -> Any:
    """The dataset that a new iteration of the loader fetches from, by the format that it has now.

    `loader.dataset` is always the program's own object. A `datasets.Dataset` is read by its Arrow
    columns where `default_collate` would make the same batches, or for `concat_examples`; a
    `TensorDataset` by its tensors.
    """
    dataset = loader.dataset
    if not loader._auto_collation:
        return dataset
    if isinstance(dataset, loaded("datasets", "Dataset")) and not is_changed(dataset):
        if concat_of(loader.collate_fn) is not None:
            return arrow_source(dataset, False)
        kinds = tuple(loaded("datasets", name) for name in ("Value", "ClassLabel"))
        if _joins_columns(loader) and _holds_values(dataset, kinds):
            return ValueColumns(dataset)
    base = dataset
    while (found := torchs_subset(base)) is not None:
        base = found[0]
    # Of rows that workers share some may be made as examples, with tensors, and some as arrays.
    if _is_whole(base) and not loader._shares_rows and _joins_columns(loader):
        return TensorRows(dataset)
    return dataset


def _joins_columns(loader: Any) -> bool:
    """Whether columns that hold a dataset's examples are all that its batches depend on."""
    return (
        is_default(loader.collate_fn)
        and loader.worker_init_fn is None  # which may change the dataset
        and has_torchs_table()
    )


def _holds_values(dataset: Any, kinds: tuple[type, ...]) -> bool:
    """Whether an example is a dict of all columns, each a number or a text in each row.

    With lists, structs and nulls, the result or error of `default_collate` does not follow from
    the columns' types.
    """
    import pyarrow as pa

    form, names = dataset.format, dataset.column_names
    if form["type"] is not None or list(form["columns"]) != names or not names:
        return False
    if any(type(feature) not in kinds for feature in dataset.features.values()):
        return False
    texts = pa.string(), pa.large_string(), pa.binary(), pa.large_binary()
    return all(
        column.null_count == 0
        and (
            column.type in texts
            or pa.types.is_floating(column.type)
            or pa.types.is_boolean(column.type)
            # Of uint64, torch takes what fits into int64, and raises for the rest.
            or (pa.types.is_integer(column.type) and not pa.types.is_uint64(column.type))
        )
        for column in dataset.data.table.columns
    )
