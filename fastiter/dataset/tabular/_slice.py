"""Views of some rows and some columns."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter.dataset.mixin import row_at
from fastiter.dataset.tabular._base import ColumnValues, KeyIndices, Mode, Rows, TabularDataset
from fastiter.dataset.tabular._views import View


class Slicer:
    """The value of ``dataset.slice``: indexing it makes a view."""

    def __init__(self, dataset: TabularDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, index: Any) -> TabularDataset:
        rows, keys = index if isinstance(index, tuple) else (index, None)
        return Slice(self._dataset, rows, keys)


class Slice(View):
    """A view of some rows and columns; see `TabularDataset.slice`."""

    def __init__(self, dataset: TabularDataset, rows: Any, keys: Any) -> None:
        super().__init__(dataset)
        self._is_bare = None if keys is None else not isinstance(keys, tuple)
        if self._is_bare:
            keys = (keys,)
        self._rows: slice | list[int] = _checked_rows(rows, len(dataset))
        self._key_indices = None if keys is None else _places(keys, dataset.keys)

    def __len__(self) -> int:
        return len(self._row_numbers())

    def _row_numbers(self) -> Any:
        rows = self._rows
        return range(len(self._dataset))[rows] if isinstance(rows, slice) else rows

    @property
    def keys(self) -> tuple[str, ...]:
        keys = self._dataset.keys
        return keys if self._key_indices is None else tuple(keys[k] for k in self._key_indices)

    @property
    def mode(self) -> Mode:
        if self._is_bare is None:
            return self._dataset.mode
        return None if self._is_bare else self._dataset.mode or tuple

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        if self._key_indices is not None:
            chosen = self._key_indices
            key_indices = chosen if key_indices is None else tuple(chosen[k] for k in key_indices)
        return self._dataset.get_examples(self._rows_below(indices), key_indices)

    def _rows_below(self, indices: Rows) -> Rows:
        """Return the rows of the dataset that are these rows of the view."""
        if indices is None:
            return self._rows
        rows = self._row_numbers()
        if isinstance(indices, slice):
            taken = rows[indices]
            if not isinstance(taken, range):
                return taken  # type: ignore[no-any-return]
            if not taken:
                return slice(0, 0)
            stop = taken[-1] + taken.step
            return slice(taken[0], stop if stop >= 0 else None, taken.step)
        return [rows[row_at(index, len(rows))] for index in indices]

    def __fastiter_columns__(self) -> Columns | None:
        columns = columns_of(self._dataset)
        if columns is None:
            return None
        if isinstance(self._rows, slice):
            rows = np.arange(len(self._dataset), dtype=np.int64)[self._rows]
        else:
            rows = np.asarray(self._rows, dtype=np.int64)
        columns = columns.at(rows)._replace(mode=self.mode)
        if self._key_indices is None:
            return columns
        chosen = tuple(columns.columns[place] for place in self._key_indices)
        return columns._replace(keys=self.keys, columns=chosen)


def _checked_rows(rows: Any, length: int) -> Any:
    """Return a slice unchanged, other rows as a list of their numbers."""
    if isinstance(rows, slice):
        return rows
    if len(rows) == 0:
        return []
    if all(isinstance(row, (bool, np.bool_)) for row in rows):
        if len(rows) != length:
            raise ValueError(f"{len(rows)} bools are given for {length} rows: give one per row")
        return [number for number, is_wanted in enumerate(rows) if is_wanted]
    return [row_at(int(row), length) for row in rows]


def _places(keys: tuple[Any, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of columns that are given by name or number."""
    places = []
    for key in keys:
        if isinstance(key, numbers.Integral):
            place = int(key)
            if not -len(names) <= place < len(names):
                raise IndexError(f"column {key} is out of bounds for the columns {names}")
            places.append(place % len(names))
        elif key in names:
            places.append(names.index(key))
        else:
            raise KeyError(f"there is no column {key!r}; the columns are {names}")
    return tuple(places)
