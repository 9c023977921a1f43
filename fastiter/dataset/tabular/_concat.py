"""Datasets of the same columns, one after another."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from fastiter.dataset.mixin import places_among
from fastiter.dataset.tabular._base import ColumnValues, KeyIndices, Rows, TabularDataset
from fastiter.dataset.tabular._views import ViewOfSeveral


class Concat(ViewOfSeveral):
    """The result of `TabularDataset.concat`."""

    def __init__(self, *datasets: TabularDataset) -> None:
        for dataset in datasets[1:]:
            if dataset.keys != datasets[0].keys:
                raise ValueError(
                    f"all datasets must have the same keys, not {datasets[0].keys} and "
                    f"{dataset.keys}"
                )
        super().__init__(*datasets)

    def __len__(self) -> int:
        return sum(len(dataset) for dataset in self._datasets)

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        if isinstance(indices, slice):
            parts = self._parts_of_slice(indices, key_indices)
            if len(parts) == 1:
                return parts[0]
        elif indices is None:
            parts = [dataset.get_examples(None, key_indices) for dataset in self._datasets]
        else:
            return self._of_list(indices, key_indices)
        n_columns = len(self.keys if key_indices is None else key_indices)
        return tuple([value for part in parts for value in part[k]] for k in range(n_columns))

    def _parts_of_slice(self, rows: slice, key_indices: KeyIndices) -> list[ColumnValues]:
        wanted = range(*rows.indices(len(self)))
        is_backwards = wanted.step < 0
        ascending = wanted[::-1] if is_backwards else wanted
        parts = []
        offset = 0
        for dataset in self._datasets:
            length = len(dataset)
            first, last = (bisect_left(ascending, bound) for bound in (offset, offset + length))
            inside = ascending[first:last]
            if len(inside) > 0:
                # The stop is the requested one, as far as it lies here: the get_examples of a
                # dataset receives it, and may compare it.
                if is_backwards:
                    stop = wanted.stop - offset if wanted.stop >= offset else None
                else:
                    stop = min(wanted.stop - offset, length)
                start = inside[-1 if is_backwards else 0] - offset
                parts.append(dataset.get_examples(slice(start, stop, wanted.step), key_indices))
            offset += length
        return parts[::-1] if is_backwards else parts

    def _of_list(self, rows: Sequence[int], key_indices: KeyIndices) -> ColumnValues:
        ends = list(accumulate(len(dataset) for dataset in self._datasets))
        parts = sorted(places_among(ends, rows).items())
        n_columns = len(self.keys if key_indices is None else key_indices)
        columns = tuple([None] * len(rows) for _ in range(n_columns))
        for number, (positions, below) in parts:
            found = self._datasets[number].get_examples(below, key_indices)
            if len(parts) == 1:
                return found
            for column, values in zip(columns, found, strict=False):
                for position, value in zip(positions, values, strict=False):
                    column[position] = value
        return columns
