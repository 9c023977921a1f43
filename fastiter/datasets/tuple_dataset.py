"""Datasets side by side, as tuples."""

from __future__ import annotations

from typing import Any

from fastiter._fetch.dataset_access import Column, Columns
from fastiter.datasets._parts import common_length

__all__ = ["TupleDataset"]


class TupleDataset:
    """Puts datasets of equal length side by side: example i is the tuple of their examples i.

    Parameters
    ----------
    *datasets : sequence
        At least one, all of the same length, each with ``__len__`` and ``__getitem__``.

    Raises
    ------
    ValueError
        If there is none, or their lengths differ.

    Examples
    --------
    >>> TupleDataset([8, 0, 5], "abc")[1:]
    [(0, 'b'), (5, 'c')]
    """

    def __init__(self, *datasets: Any) -> None:
        self._length = common_length(dict(enumerate(datasets)))
        self._datasets = datasets

    def __getitem__(self, index: Any) -> Any:
        """Get an example, or the list of those in a slice.

        Any other index goes to each of the datasets, and the results make one tuple: with arrays,
        a list of integers gives a tuple of arrays.
        """
        parts = [dataset[index] for dataset in self._datasets]
        if isinstance(index, slice):
            return [tuple([part[row] for part in parts]) for row in range(len(parts[0]))]
        return tuple(parts)

    def __len__(self) -> int:
        """Get the number of examples, which was that of the first dataset in the constructor."""
        return self._length

    def __fastiter_columns__(self) -> Columns:
        columns = tuple(map(Column, self._datasets))
        keys = tuple(map(str, range(len(columns))))
        return Columns(tuple, keys, columns, views=True)
