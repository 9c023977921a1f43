"""A dataset whose examples pass through a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastiter._order import example_context
from fastiter.dataset.mixin import DatasetMixin
from fastiter.datasets import _batched

__all__ = ["TransformDataset"]


class TransformDataset(DatasetMixin):
    """Passes each example of a dataset through a function, whenever it is fetched.

    An index, negative ones included, means what it means to the dataset below.

    Parameters
    ----------
    dataset : sequence
        Has ``__len__`` and ``__getitem__``. If it has ``__getitems__``, this one has it too.
    transform : callable
        Called with an example, in the process and thread that fetches it; returns the example
        to give instead. It must not change the example in place: that may belong to the
        dataset below.

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

    def get_example(self, i: int) -> Any:
        """Get example ``i`` of the dataset below, transformed."""
        return self._transform(self._dataset[i])

    @property
    def __getitems__(self) -> _batched.Getitems:
        """Get the examples at a list of indices, with one call to the dataset below."""
        if not _batched.offered(self, TransformDataset, [self._dataset]):
            raise _batched.refused(self)
        return self._getitems

    def _getitems(self, indices: list[int]) -> list[Any]:
        examples = example_context.each(_batched.fetch(self._dataset, indices))
        return [self._transform(example) for example in examples]
