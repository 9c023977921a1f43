"""Datasets of the same rows, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter.dataset.tabular._base import ColumnValues, KeyIndices, Mode, Rows, TabularDataset
from fastiter.dataset.tabular._views import ViewOfSeveral


class Join(ViewOfSeveral):
    """The result of `TabularDataset.join`."""

    def __init__(self, *datasets: TabularDataset) -> None:
        keys = set(datasets[0].keys)
        for dataset in datasets[1:]:
            if len(dataset) != len(datasets[0]):
                raise ValueError(
                    f"all datasets must have the same length, not {len(datasets[0])} and "
                    f"{len(dataset)}"
                )
            if not keys.isdisjoint(dataset.keys):
                raise ValueError(
                    f"keys must be unique among all datasets: {keys.intersection(dataset.keys)} "
                    "are in several"
                )
            keys.update(dataset.keys)
        super().__init__(*datasets)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(key for dataset in self._datasets for key in dataset.keys)

    @property
    def mode(self) -> Mode:
        return next((mode for dataset in self._datasets if (mode := dataset.mode)), tuple)

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        if key_indices is None:
            parts = (dataset.get_examples(indices, None) for dataset in self._datasets)
            return tuple(chain.from_iterable(parts))
        found: dict[int, Sequence[Any]] = {}
        offset = 0
        for dataset in self._datasets:
            stop = offset + len(dataset.keys)
            # Fetch a column once, even if it is requested several times.
            wanted = tuple(dict.fromkeys(k for k in key_indices if offset <= k < stop))
            if wanted:
                below = tuple(k - offset for k in wanted)
                found.update(zip(wanted, dataset.get_examples(indices, below), strict=False))
            offset = stop
        return tuple(found[k] for k in key_indices)

    def __fastiter_columns__(self) -> Columns | None:
        parts = [columns_of(dataset) for dataset in self._datasets]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return known[0]._replace(
            mode=self.mode,
            keys=self.keys,
            columns=tuple(chain.from_iterable(part.columns for part in known)),
            delegates=tuple(chain.from_iterable(part.delegates for part in known)),
        )
