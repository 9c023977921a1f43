"""Datasets that fetch many examples at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastiter._fetch.dataset_access import checked_examples
from fastiter.dataset.mixin import DatasetMixin

_OF_MANY = frozenset({"_getitems", "__getitems__"})
_OF_ONE = frozenset({"get_example", "__getitem__"})


class BatchedDataset(DatasetMixin):
    """A dataset with ``__getitems__``, which is the `_getitems` that a subclass defines.

    A class below that has its own ``get_example`` or ``__getitem__``, and none of these two, is
    without ``__getitems__``: its own method must be called for each example.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        names = _OF_MANY | _OF_ONE
        decisive = next(kind for kind in cls.__mro__ if not names.isdisjoint(vars(kind)))
        if _OF_MANY.isdisjoint(vars(decisive)):
            cls.__getitems__ = property(_missing)  # type: ignore[attr-defined]

    def _getitems(self, indices: list[int]) -> list[Any]:
        raise NotImplementedError

    def get_example(self, i: int) -> Any:
        """Get example ``i``; IndexError unless ``-len(self) <= i < len(self)``."""
        return self._getitems([i])[0]


def _missing(dataset: Any) -> Any:
    raise AttributeError(
        f"this {type(dataset).__name__} has no __getitems__: it, or its dataset, makes one example "
        "at a time"
    )


class BatchedWrapper(BatchedDataset):
    """A dataset over others, which has ``__getitems__`` if all of them have it."""

    _dataset: Any
    _is_view_of_dataset = True  # for `row_groups_of`

    def _bases(self) -> Sequence[Any]:
        return (self._dataset,)

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Any]]:
        """Get the examples at a list of indices, with one call of each wrapped dataset."""
        if "get_example" in vars(self) or not all(
            hasattr(base, "__getitems__") for base in self._bases()
        ):
            return _missing(self)  # type: ignore[no-any-return]
        return self._getitems


def fetch(base: Any, indices: list[int]) -> list[Any]:
    """Call ``base.__getitems__(indices)``, and check the number of examples."""
    return checked_examples(base, base.__getitems__(indices), indices)
