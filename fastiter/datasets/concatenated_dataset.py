"""Datasets one after another."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets import _batched
from fastiter.datasets._parts import length_of

__all__ = ["ConcatenatedDataset"]


class ConcatenatedDataset(DatasetMixin):
    """Puts datasets one after another: the examples of the first one, of the second one, ...

    The dataset of an example is found by binary search among the lengths, which are those of
    the moment when this dataset was made.

    Parameters
    ----------
    *datasets : sequence
        Any number, each with ``__len__`` and ``__getitem__``. If all of them have
        ``__getitems__``, this dataset has it too.

    Examples
    --------
    >>> ConcatenatedDataset([8, 0], "abc")[1:4]
    [0, 'a', 'b']
    """

    def __init__(self, *datasets: Any) -> None:
        self._datasets = datasets
        self._ends = list(
            accumulate(length_of(number, dataset) for number, dataset in enumerate(datasets))
        )

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_example(self, i: int) -> Any:
        """Get example ``i``; IndexError if it is negative, or not below the length."""
        number, local = self._find(i)
        return self._datasets[number][local]

    @property
    def __getitems__(self) -> _batched.Getitems:
        """Get the examples at a list of indices, with one call for each dataset concerned."""
        if not _batched.offered(self, ConcatenatedDataset, self._datasets):
            raise _batched.refused(self)
        return self._getitems

    def _find(self, i: int) -> tuple[int, int]:
        """The number of the dataset that holds example ``i``, and the example's index there."""
        if not 0 <= i < len(self):
            raise IndexError(f"index {i} is outside of a dataset of {len(self)} examples")
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)

    def _getitems(self, indices: list[int]) -> list[Any]:
        rows: dict[int, list[int]] = {}  # by number of the dataset
        locals_: dict[int, list[int]] = {}
        for row, index in enumerate(indices):
            number, local = self._find(index)
            rows.setdefault(number, []).append(row)
            locals_.setdefault(number, []).append(local)
        examples: list[Any] = [None] * len(indices)
        for number, places in rows.items():
            found = _batched.fetch(self._datasets[number], locals_[number])
            for row, example in zip(places, found, strict=True):
                examples[row] = example
        return examples
