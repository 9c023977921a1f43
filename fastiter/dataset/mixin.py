"""Indexing for datasets that give one example at a time."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

__all__ = ["DatasetMixin"]


class DatasetMixin:
    """Adds indexing by integers, slices, lists and arrays to a dataset.

    A subclass gives ``__len__`` and ``get_example``.
    """

    def __getitem__(self, index: Any) -> Any:
        """Get one example, or a list of them.

        Parameters
        ----------
        index : int, slice, list of int or int[n]
            A slice may have any step. What an integer means (negative ones included) is up to
            ``get_example``.

        Returns
        -------
        object or list
            What ``get_example`` gives for an integer; else the list of what it gives for each.
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
        """Get the example at index ``i``.

        Raises
        ------
        IndexError
            If there is no such example; raised by the subclass.
        """
        raise NotImplementedError


def _python_int(index: Any) -> Any:
    """``index`` as a Python int where it is a NumPy integer; anything else as it is."""
    return operator.index(index) if isinstance(index, np.integer) else index
