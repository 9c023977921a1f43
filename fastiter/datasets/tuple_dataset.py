"""Datasets side by side, with examples that are tuples."""

from __future__ import annotations

from typing import Any

from fastiter._fetch.dataset_access import Columns, SourceColumn
from fastiter.datasets._parts import columns_length

__all__ = ["TupleDataset"]


class TupleDataset:
    """Puts datasets of one length side by side: example i is the tuple of their examples i.

    Parameters
    ----------
    *datasets : sequence
        Datasets (one or more) with ``__len__`` and ``__getitem__``. ValueError if lengths differ.

    Examples
    --------
    >>> TupleDataset([8, 0, 5], "abc")[1:]
    [(0, 'b'), (5, 'c')]
    """

    def __init__(self, *datasets: Any) -> None:
        self._length = columns_length(dict(enumerate(datasets)))
        self._datasets = datasets

    def __getitem__(self, index: Any) -> Any:
        """Get an example, or the list of the examples in a slice.

        Each dataset gets any other index, and their results make one tuple: a list of integers
        gives a tuple of arrays if the datasets are arrays.
        """
        parts = [dataset[index] for dataset in self._datasets]
        if isinstance(index, slice):
            return [tuple([part[row] for part in parts]) for row in range(len(parts[0]))]
        return tuple(parts)

    def __len__(self) -> int:
        return self._length

    def __fastiter_columns__(self) -> Columns:
        columns = tuple(map(SourceColumn, self._datasets))
        keys = tuple(map(str, range(len(columns))))
        return Columns(tuple, keys, columns, views=True)
