"""Batched access through datasets that wrap others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastiter._fetch.dataset_access import checked_examples
from fastiter.dataset.mixin import DatasetMixin


class BatchedWrapper(DatasetMixin):
    """A dataset over others, which has ``__getitems__`` if all of them have it.

    A subclass defines ``get_example`` and ``_getitems``.
    """

    _dataset: Any
    _is_view_of_dataset = True  # for `row_groups_of`

    def _bases(self) -> Sequence[Any]:
        """Return the wrapped datasets."""
        return (self._dataset,)

    def _getitems(self, indices: list[int]) -> list[Any]:
        raise NotImplementedError

    @property
    def __getitems__(self) -> Callable[[list[int]], list[Any]]:
        """Get the examples at a list of indices, with one call of each wrapped dataset.

        Not an attribute if a subclass has its own ``get_example`` or ``__getitem__``, which must
        be called for each example then.
        """
        kind = next(kind for kind in type(self).__mro__ if "_getitems" in vars(kind))
        if (
            getattr(self.get_example, "__func__", None) is not vars(kind)["get_example"]
            or type(self).__getitem__ is not DatasetMixin.__getitem__
            or not all(hasattr(base, "__getitems__") for base in self._bases())
        ):
            raise AttributeError(
                f"this {type(self).__name__} has no __getitems__, because its dataset has none"
            )
        return self._getitems


def fetch(base: Any, indices: list[int]) -> list[Any]:
    """Call ``base.__getitems__(indices)``, and check the number of examples."""
    return checked_examples(base, base.__getitems__(indices), indices)
