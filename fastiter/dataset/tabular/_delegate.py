"""A dataset of columns that delegates to another one."""

from __future__ import annotations

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter.dataset.tabular._base import TabularDataset, View

__all__ = ["DelegateDataset"]


class DelegateDataset(View):
    """Has the columns of ``dataset``, which a subclass makes in its constructor.

    `convert` is that of `TabularDataset`, not that of ``dataset``, a `TabularDataset`.

    Examples
    --------
    >>> import numpy as np
    >>> from fastiter.dataset import tabular
    >>> class Squares(tabular.DelegateDataset):
    ...     def __init__(self):
    ...         columns = (("i", np.arange(10)), ("square", self.square))
    ...         super().__init__(tabular.from_data(columns))
    ...
    ...     def square(self, i):
    ...         return i * i
    >>> Squares()[3] == (3, 9)
    True
    """

    _is_view_of_dataset = False
    convert = TabularDataset.convert

    def __init__(self, dataset: TabularDataset) -> None:
        self.dataset = dataset

    @property
    def _dataset(self) -> TabularDataset:  # type: ignore[override]
        return self.dataset

    def __fastiter_columns__(self) -> Columns | None:
        columns = columns_of(self.dataset)
        # A reader that keeps the columns checks whether the public attribute has changed.
        return columns and columns._replace(delegates=((self, self.dataset), *columns.delegates))
