"""Rows after rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastiter.dataset.tabular._base import Mode, Rows, TabularDataset


class Concat(TabularDataset):
    """Datasets of the same columns, one after the other; see `TabularDataset.concat`."""

    def __init__(self, *datasets: TabularDataset) -> None:
        for dataset in datasets[1:]:
            if dataset.keys != datasets[0].keys:
                raise ValueError(
                    f"all datasets must have the same keys, not {datasets[0].keys} and "
                    f"{dataset.keys}"
                )
        self._datasets = datasets

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self._datasets)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._datasets[0].keys

    @property
    def mode(self) -> Mode:
        return self._datasets[0].mode

    def get_examples(
        self, indices: Rows, key_indices: tuple[int, ...] | None
    ) -> tuple[Sequence[Any], ...]:
        n_columns = len(self.keys if key_indices is None else key_indices)
        if indices is None:
            parts = [dataset.get_examples(None, key_indices) for dataset in self._datasets]
            return _joined(parts, n_columns)
        if isinstance(indices, slice):
            return self._of_slice(indices, key_indices, n_columns)
        return self._of_list(indices, key_indices, n_columns)

    def _of_slice(
        self, rows: slice, key_indices: tuple[int, ...] | None, n_columns: int
    ) -> tuple[Sequence[Any], ...]:
        wanted = range(*rows.indices(len(self)))
        is_backwards = wanted.step < 0
        ascending = wanted[::-1] if is_backwards else wanted
        parts = []
        offset = 0
        for dataset in self._datasets:
            length = len(dataset)
            # Of the ascending rows those that lie in this dataset.
            first, last = (
                -(-(max(bound, ascending.start) - ascending.start) // ascending.step)
                for bound in (offset, offset + length)
            )
            inside = ascending[first:last]
            if len(inside) > 0:
                # The stop is the one asked for, as far as it lies here: a dataset's get_examples
                # sees it, and may compare it.
                if is_backwards:
                    stop = wanted.stop - offset if wanted.stop >= offset else None
                    below = slice(inside[-1] - offset, stop, wanted.step)
                else:
                    stop = min(wanted.stop - offset, length)
                    below = slice(inside[0] - offset, stop, wanted.step)
                parts.append(dataset.get_examples(below, key_indices))
            offset += length
        if len(parts) == 1:
            return parts[0]
        return _joined(parts[::-1] if is_backwards else parts, n_columns)

    def _of_list(
        self, rows: Sequence[int], key_indices: tuple[int, ...] | None, n_columns: int
    ) -> tuple[Sequence[Any], ...]:
        places: list[Any] = [None] * len(rows)  # for each row its part, and the place there
        parts: list[tuple[Sequence[Any], ...]] = []
        offset = 0
        for dataset in self._datasets:
            below: list[int] = []
            for position, row in enumerate(rows):
                if offset <= row < offset + len(dataset):
                    places[position] = (len(parts), len(below))
                    below.append(row - offset)
            if below:
                parts.append(dataset.get_examples(below, key_indices))
            offset += len(dataset)
        if None in places:
            raise IndexError(
                f"row {rows[places.index(None)]} is out of bounds for concatenated datasets of "
                f"{offset} rows"
            )
        if len(parts) == 1:
            return parts[0]
        return tuple(
            [parts[part][column][place] for part, place in places] for column in range(n_columns)
        )

    def convert(self, data: Any) -> Any:
        return self._datasets[0].convert(data)


def _joined(parts: list[tuple[Sequence[Any], ...]], n_columns: int) -> tuple[list[Any], ...]:
    return tuple([value for part in parts for value in part[column]] for column in range(n_columns))
