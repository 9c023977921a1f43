"""The concatenation of datasets."""

from __future__ import annotations

from itertools import accumulate, starmap
from typing import Any

from fastiter._fetch.dataset_access import Columns
from fastiter._order.example_context import of_part
from fastiter.dataset.mixin import place_among, places_among
from fastiter.datasets._batched import BatchedWrapper, fetch
from fastiter.datasets._parts import common_columns, length_of

__all__ = ["ConcatenatedDataset"]


class ConcatenatedDataset(BatchedWrapper):
    """Concatenates datasets: the examples of the first one, of the second one, ...

    It uses the lengths that the datasets have when it is made. Batches of several `ArrowDataset` or
    `TokenDataset` are padded as theirs are; ValueError if these are padded in different ways.

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
        self._ends = list(accumulate(starmap(length_of, enumerate(datasets))))
        self._columns = common_columns(datasets)

    def __fastiter_columns__(self) -> Columns | None:
        return self._columns

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def get_example(self, i: int) -> Any:
        """Get example ``i``; IndexError if it is negative, or not below the length."""
        number, below = place_among(self._ends, i)
        return self._datasets[number][below]

    def _bases(self) -> tuple[Any, ...]:
        return self._datasets

    def _getitems(self, indices: list[int]) -> list[Any]:
        examples: list[Any] = [None] * len(indices)
        for number, (rows, below) in places_among(self._ends, indices).items():
            part = of_part(rows, len(indices), fetch, self._datasets[number], below)
            for row, example in zip(rows, part, strict=True):
                examples[row] = example
        return examples
