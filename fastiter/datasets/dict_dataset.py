"""Datasets side by side, with examples that are dicts."""

from __future__ import annotations

from typing import Any

from fastiter._fetch.dataset_access import Columns, SourceColumn
from fastiter.datasets._parts import columns_length

__all__ = ["DictDataset"]


class DictDataset:
    """Puts datasets of one length side by side: example i is the dict of their examples i.

    Parameters
    ----------
    **datasets : sequence
        Datasets (one or more) with ``__len__`` and ``__getitem__``. ValueError if lengths differ.
        Their names are the keys of the examples.

    Examples
    --------
    >>> DictDataset(x=[8, 0, 5], y="abc")[2]
    {'x': 5, 'y': 'c'}
    """

    def __init__(self, **datasets: Any) -> None:
        self._length = columns_length(datasets)
        self._datasets = datasets

    def __getitem__(self, index: Any) -> Any:
        """Get an example, or a list of them, as `TupleDataset` does with tuples."""
        parts = {key: dataset[index] for key, dataset in self._datasets.items()}
        if isinstance(index, slice):
            length = len(next(iter(parts.values())))
            return [{key: part[row] for key, part in parts.items()} for row in range(length)]
        return parts

    def __len__(self) -> int:
        return self._length

    def __fastiter_columns__(self) -> Columns:
        columns = tuple(map(SourceColumn, self._datasets.values()))
        return Columns(dict, tuple(self._datasets), columns, views=True)
