"""Sources of an iteration: the dataset, or the Arrow columns of a Hugging Face dataset."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import default_collate

from fastiter.datasets._arrow_sources import is_changed
from fastiter.datasets.arrow_dataset import arrow_source
from fastiter.iterators._batch_maker import concat_of
from fastiter.torch._collate import ValueColumns, has_torchs_table


def fetched(loader: Any) -> Any:
    """The dataset that a new iteration of the loader fetches from, by the format that it has now.

    `loader.dataset` is always the program's own object. A `datasets.Dataset` is read by its Arrow
    columns where `default_collate` would make the same batches, or for `concat_examples`.
    """
    dataset = loader.dataset
    datasets = sys.modules.get("datasets")
    if (
        datasets is None
        or not isinstance(dataset, datasets.Dataset)
        or is_changed(dataset)
        or not loader._auto_collation
    ):
        return dataset
    if concat_of(loader.collate_fn) is not None:
        return arrow_source(dataset, False)
    if (
        loader.collate_fn is default_collate
        and loader.worker_init_fn is None  # which may change the dataset
        and has_torchs_table()
        and _holds_values(dataset, (datasets.Value, datasets.ClassLabel))
    ):
        return ValueColumns(dataset)
    return dataset


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
