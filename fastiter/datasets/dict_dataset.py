"""Datasets side by side, as dicts."""

from __future__ import annotations

from typing import Any

from fastiter._fetch.dataset_access import Column, Columns
from fastiter.datasets._parts import common_length

__all__ = ["DictDataset"]


class DictDataset:
    """Puts datasets of equal length side by side: example i is the dict of their examples i.

    Parameters
    ----------
    **datasets : sequence
        At least one, all of the same length, each with ``__len__`` and ``__getitem__``. Their
        names are the keys of the examples.

    Raises
    ------
    ValueError
        If there is none, or their lengths differ.

    Examples
    --------
    >>> DictDataset(x=[8, 0, 5], y="abc")[2]
    {'x': 5, 'y': 'c'}
    """

    def __init__(self, **datasets: Any) -> None:
        self._length = common_length(datasets)
        self._datasets = datasets

    def __getitem__(self, index: Any) -> Any:
        """Get an example, or the list of those in a slice.

        Any other index goes to each of the datasets, and the results make one dict: with arrays,
        a list of integers gives a dict of arrays.
        """
        parts = {key: dataset[index] for key, dataset in self._datasets.items()}
        if isinstance(index, slice):
            length = len(next(iter(parts.values())))
            return [{key: part[row] for key, part in parts.items()} for row in range(length)]
        return parts

    def __len__(self) -> int:
        """Get the number of examples, which was that of the first dataset in the constructor."""
        return self._length

    def __fastiter_columns__(self) -> Columns:
        columns = tuple(map(Column, self._datasets.values()))
        return Columns(dict, tuple(self._datasets), columns, views=True)
