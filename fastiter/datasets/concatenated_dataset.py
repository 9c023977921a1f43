"""The concatenation of datasets."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from fastiter.dataset.mixin import out_of_range
from fastiter.datasets._batched import BatchedWrapper, fetch
from fastiter.datasets._parts import length_of

__all__ = ["ConcatenatedDataset"]


class ConcatenatedDataset(BatchedWrapper):
    """Concatenates datasets: the examples of the first one, of the second one, ...

    It uses the lengths that the datasets have when it is made.

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

    def _find(self, i: int) -> tuple[int, int]:
        """Return which dataset holds example ``i``, and the index of the example there."""
        if not 0 <= i < len(self):
            raise out_of_range(i, len(self))
        number = bisect_right(self._ends, i)
        return number, i - (self._ends[number - 1] if number else 0)

    def _bases(self) -> tuple[Any, ...]:
        return self._datasets

    def _getitems(self, indices: list[int]) -> list[Any]:
        parts: dict[int, tuple[list[int], list[int]]] = {}  # rows of the result, indices below
        for row, index in enumerate(indices):
            number, local = self._find(index)
            rows, below = parts.setdefault(number, ([], []))
            rows.append(row)
            below.append(local)
        examples: list[Any] = [None] * len(indices)
        for number, (rows, below) in parts.items():
            for row, example in zip(rows, fetch(self._datasets[number], below), strict=True):
                examples[row] = example
        return examples
