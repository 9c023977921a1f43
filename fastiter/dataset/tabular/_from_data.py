"""Datasets of columns made from arrays, lists and functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastiter._fetch.dataset_access import Columns, SourceColumn
from fastiter.dataset.tabular._base import (
    ColumnValues,
    KeyIndices,
    Mode,
    Rows,
    TabularDataset,
    is_array,
)


def from_data(data: Any, *, size: int | None = None) -> TabularDataset:
    """Make a dataset of columns.

    A column is an array, a list, or a function of the index. A function needs a name, or a tuple
    of names if its result has several fields; for other columns a name is optional.

    Parameters
    ----------
    data : column, tuple or dict
        - a column: examples are its values;
        - ``(name, column)``: the same, with a name;
        - a tuple of columns and such pairs: examples are tuples;
        - a dict of names (or tuples of names) and columns: examples are dicts.
    size : int, optional
        The number of rows, required if all columns are functions.

    Raises
    ------
    ValueError, TypeError
        If there is no column, a column is of another kind, lengths differ, two columns have one
        name, a function has no name, or the number of rows is unknown.

    Examples
    --------
    >>> from_data({"i": [0, 1, 2], "square": lambda i: i * i})[2]
    {'i': 2, 'square': 4}
    """
    if isinstance(data, tuple):
        if len(data) == 2 and _is_name(data[0]):
            return _column(data[0], data[1], size)
        pairs = [part if isinstance(part, tuple) else (None, part) for part in data]
        return _joined(pairs, size).astuple()
    if isinstance(data, dict):
        return _joined(list(data.items()), size).asdict()
    return _column(None, data, size)


def _is_name(key: Any) -> bool:
    return isinstance(key, str) or (
        isinstance(key, tuple) and all(isinstance(name, str) for name in key)
    )


def _joined(pairs: list[tuple[Any, Any]], size: int | None) -> TabularDataset:
    if not pairs:
        raise ValueError("data is empty: give at least one column")
    if size is None:
        size = next((len(data) for _, data in pairs if hasattr(data, "__len__")), None)
    columns = [_column(key, data, size) for key, data in pairs]
    return columns[0].join(*columns[1:])


def _column(key: Any, data: Any, size: int | None) -> TabularDataset:
    if is_array(data) or isinstance(data, list):
        kind = ListColumn if isinstance(data, list) else ArrayColumn
        return kind(f"_{id(data)}" if key is None else key, data)
    if not callable(data):
        raise TypeError(
            f"a column must be an array, a list or a callable, not {type(data).__qualname__}"
        )
    if key is None:
        raise ValueError("a callable needs a name: give (name, callable), or a dict")
    if size is None:
        raise ValueError("size is required if there is neither an array nor a list")
    return IndexColumn("index", range(size)).transform(key, data)


class ListColumn(TabularDataset):
    """A dataset of one column, in a list, with its values as examples."""

    def __init__(self, key: str, data: Any) -> None:
        self._key = key
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self._key,)

    @property
    def mode(self) -> Mode:
        return None

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        n_columns = 1 if key_indices is None else len(key_indices)
        return (self._data if indices is None else self._get(indices),) * n_columns

    def _get(self, indices: slice | Sequence[int]) -> Any:
        if isinstance(indices, slice):
            return self._data[indices]
        return [self._data[index] for index in indices]


class ArrayColumn(ListColumn):
    def _get(self, indices: slice | Sequence[int]) -> Any:
        return self._data[indices]

    def __fastiter_columns__(self) -> Columns | None:
        return Columns(None, self.keys, (SourceColumn(self._data, None),), views=False)


class IndexColumn(ListColumn):
    """A column of the indices, in a range; also of those beyond it."""

    def _get(self, indices: slice | Sequence[int]) -> Any:
        return self._data[indices] if isinstance(indices, slice) else indices
