"""A dataset with a function applied to its examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastiter._fetch.dataset_access import Epochs, epochs_of, keeps_rows
from fastiter._order import example_context
from fastiter.datasets._batched import BatchedWrapper, fetch

__all__ = ["TransformDataset"]


class TransformDataset(BatchedWrapper):
    """Applies a function to each example of a dataset, whenever the example is fetched.

    Indices, also negative ones, are passed on to the dataset. Those of iterators over a
    `TokenDataset` with a seed include their epoch.

    Parameters
    ----------
    dataset : sequence
        Object with ``__len__`` and ``__getitem__``; ``__getitems__`` is used if there is one.
    transform : callable
        Function of an example that returns the example to give instead; called in the process and
        thread that fetches. It must not change its argument in place, which may belong to the
        dataset.

    Examples
    --------
    >>> TransformDataset([1, 2, 3], float)[:2]
    [1.0, 2.0]
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], Any]) -> None:
        if not callable(transform):
            raise TypeError(f"transform must be callable, not {transform!r}")
        self._dataset = dataset
        self._transform = transform

    def __len__(self) -> int:
        return len(self._dataset)

    def __fastiter_epochs__(self) -> Epochs | None:
        return epochs_of(self._dataset)

    def __fastiter_keeps_rows__(self) -> bool:
        return keeps_rows(self._dataset)

    def get_example(self, i: int) -> Any:
        """Get example ``i`` of the dataset, transformed."""
        return self._transform(self._dataset[i])

    def _getitems(self, indices: list[int]) -> list[Any]:
        return list(map(self._transform, example_context.each(fetch(self._dataset, indices))))
