"""Indexing for datasets that define single examples."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["DatasetMixin"]


class DatasetMixin:
    """Adds indexing to a dataset; a subclass defines ``__len__`` and ``get_example``."""

    def __getitem__(self, index: Any) -> Any:
        """Get the result of ``get_example`` for an integer, else the list of the results.

        Parameters
        ----------
        index : int, slice, list of int or int[n]
            ``get_example`` defines the meaning of an integer, also of a negative one. True is 1.
        """
        if type(index) is int:  # as iterators ask
            return self.get_example(index)
        if isinstance(index, slice):
            return [self.get_example(i) for i in range(*index.indices(len(self)))]
        if isinstance(index, (list, np.ndarray)):
            return [self.get_example(_python_int(i)) for i in index]
        return self.get_example(_python_int(index))

    def __len__(self) -> int:
        """Get the number of examples."""
        raise NotImplementedError

    def get_example(self, i: int) -> Any:
        """Get the example at index ``i``; a subclass raises IndexError if there is none."""
        raise NotImplementedError


def _python_int(index: Any) -> Any:
    """Return an integer or a bool as a Python int, any other index unchanged."""
    if isinstance(index, np.bool_):  # NumPy 1 takes it for an integer
        raise TypeError(f"index {index!r} is of a mask: pass the integers numpy.flatnonzero(mask)")
    return int(operator.index(index)) if isinstance(index, (bool, np.integer)) else index


def row_at(i: Any, size: int) -> int:
    """Return index ``i`` of ``size`` examples as a row; negative indices count from the end."""
    if not -size <= (row := operator.index(i)) < size:
        raise out_of_range(row, size)
    return row % size


def place_among(ends: list[int], i: int) -> tuple[int, int]:
    """Return which of several datasets, of these accumulated lengths, has index `i`, and where."""
    size, row = ends[-1] if ends else 0, operator.index(i)
    if not 0 <= row < size:
        raise out_of_range(row, size)
    number = bisect_right(ends, row)
    return number, row - (ends[number - 1] if number else 0)


def places_among(ends: list[int], rows: Sequence[int]) -> dict[int, tuple[list[int], list[int]]]:
    """Return, for each dataset that has some of the rows, their positions in `rows`, and there."""
    parts: dict[int, tuple[list[int], list[int]]] = {}
    for position, row in enumerate(rows):
        number, below = place_among(ends, row)
        positions, places = parts.setdefault(number, ([], []))
        positions.append(position)
        places.append(below)
    return parts


def out_of_range(i: Any, size: int) -> IndexError:
    """Return the error for an index that a dataset does not have."""
    return IndexError(f"index {i} is outside of a dataset of {size} examples")
