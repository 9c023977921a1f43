"""Datasets that are tables, or paths to some, and streams: told without an import of the datasets.

Few programs use these classes, whose imports take longer than those of the iterators.
"""

from __future__ import annotations

import os
from typing import Any

from fastiter._util.loaded import loaded


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is a `StreamDataset`."""
    return isinstance(dataset, loaded("fastiter.datasets.stream_dataset", "StreamDataset"))


def arrow_source(dataset: Any, sees_examples: bool, *, frames: bool = False) -> Any:
    """The `ArrowDataset` of an iterator's argument that is a table, a path to one, or a plain
    `datasets.Dataset`; any other one as it is. ``sees_examples``: whether a function of the user's
    is called with the examples, which a `datasets.Dataset` then makes itself. ``frames``: whether
    frames (of pandas, Polars) are tables, too."""
    if isinstance(dataset, loaded("datasets", "Dataset")):
        from fastiter.datasets._arrow_sources import decodes, is_changed

        is_plain = dataset.format["type"] is None and not sees_examples and not is_changed(dataset)
        return _arrow_dataset(dataset) if is_plain and not decodes(dataset) else dataset
    if isinstance(dataset, loaded("datasets", "IterableDataset")):
        return _arrow_dataset(dataset)  # which raises
    kind = type(dataset)
    is_frame = hasattr(kind, "__arrow_c_stream__") and hasattr(kind, "columns")
    is_frame = is_frame or isinstance(dataset, loaded("pandas", "DataFrame"))
    return _arrow_dataset(dataset) if frames and is_frame else table_source(dataset)


def table_source(dataset: Any) -> Any:
    """The `ArrowDataset` of a table or of a path to one; any other dataset as it is."""
    names = ("Table", "RecordBatch", "ChunkedArray", "Array")
    tables = tuple(loaded("pyarrow", name) for name in names)
    # A str is a path: no dataset consists of the letters of a text. A PathLike with examples, such
    # as a MagicMock, is a dataset.
    is_path = isinstance(dataset, os.PathLike) and not hasattr(type(dataset), "__getitem__")
    return _arrow_dataset(dataset) if is_path or isinstance(dataset, (str, *tables)) else dataset


def _arrow_dataset(source: Any) -> Any:
    from fastiter.datasets.arrow_dataset import ArrowDataset

    return ArrowDataset(source)
