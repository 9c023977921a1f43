"""Views that change the mode or the converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter.dataset.tabular._base import ColumnValues, KeyIndices, Mode, Rows, TabularDataset


class View(TabularDataset):
    """A view with the rows, columns and `convert` of ``dataset``."""

    _MODE: ClassVar[Mode] = None  # None: the mode of ``dataset``
    _is_view_of_dataset = True  # for `row_groups_of`

    def __init__(self, dataset: TabularDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._dataset.keys

    @property
    def mode(self) -> Mode:
        return self._MODE or self._dataset.mode

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        return self._dataset.get_examples(indices, key_indices)

    def convert(self, data: Any) -> Any:
        return self._dataset.convert(data)

    def __fastiter_columns__(self) -> Columns | None:
        columns = columns_of(self._dataset)
        return columns and columns._replace(mode=self.mode)


class ViewOfSeveral(View):
    """A view of several datasets, which is like the first of them but for what is defined."""

    def __init__(self, *datasets: TabularDataset) -> None:
        self._datasets = datasets

    @property
    def _dataset(self) -> TabularDataset:  # type: ignore[override]
        return self._datasets[0]


class AsTuple(View):
    """A view with tuples as examples."""

    _MODE: ClassVar[Mode] = tuple


class AsDict(View):
    """A view with dicts as examples."""

    _MODE: ClassVar[Mode] = dict


class WithConverter(View):
    """A view whose `convert` calls ``converter``."""

    def __init__(self, dataset: TabularDataset, converter: Callable[..., Any]) -> None:
        super().__init__(dataset)
        self._converter = converter

    def convert(self, data: Any) -> Any:
        if isinstance(data, tuple):
            return self._converter(*data)
        if isinstance(data, dict):
            return self._converter(**data)
        return self._converter(data)
