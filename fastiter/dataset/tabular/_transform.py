"""Views that apply a function to examples or columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastiter.dataset.tabular._base import ColumnValues, KeyIndices, Mode, Rows, TabularDataset
from fastiter.dataset.tabular._views import View


class _Transformed(View):
    """The base of both kinds of transform; see `TabularDataset.transform` for the arguments."""

    def __init__(
        self, dataset: TabularDataset, keys: str | tuple[str, ...], transform: Callable[..., Any]
    ) -> None:
        super().__init__(dataset)
        self._keys = keys if isinstance(keys, tuple) else (keys,)
        self._transform = transform

    @property
    def keys(self) -> tuple[str, ...]:
        return self._keys

    @property
    def mode(self) -> Mode:
        """The mode of the function's results; fetches the first row if no row has been fetched."""
        if not hasattr(self, "_mode"):
            self.get_examples([0], None)
        return self._mode

    def _call(self, fields: Sequence[Any]) -> Any:
        """Call the function with fields or columns; return a bare value as a tuple."""
        if self._dataset.mode is dict:
            result = self._transform(**dict(zip(self._dataset.keys, fields, strict=False)))
        else:
            result = self._transform(*fields)
        kinds: tuple[Any, ...] = (tuple, dict)
        mode: Mode = next((kind for kind in kinds if isinstance(result, kind)), None)
        if getattr(self, "_mode", mode) is not mode:
            raise ValueError(
                f"a transform must not change its return type: it returned {_name(mode)} after "
                f"{_name(self._mode)}"
            )
        self._mode: Mode = mode
        return (result,) if mode is None else result

    def _pick(self, result: Any, key_index: int) -> Any:
        """Return one of the fields or columns that the function returned."""
        return result[self._keys[key_index] if isinstance(result, dict) else key_index]


class Transform(_Transformed):
    """The result of `TabularDataset.transform`."""

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        wanted = range(len(self._keys)) if key_indices is None else key_indices
        columns: tuple[list[Any], ...] = tuple([] for _ in wanted)
        below = self._dataset.get_examples(indices, None)
        for example in zip(*below, strict=False):
            result = self._call(example)
            for column, key_index in zip(columns, wanted, strict=True):
                column.append(self._pick(result, key_index))
        return columns


class TransformBatch(_Transformed):
    """The result of `TabularDataset.transform_batch`."""

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        rows = range(len(self)) if indices is None else indices
        n_rows = len(range(len(self))[rows] if isinstance(rows, slice) else rows)
        wanted = range(len(self._keys)) if key_indices is None else key_indices
        result = self._call(self._dataset.get_examples(indices, None))
        for column in result.values() if isinstance(result, dict) else result:
            if len(column) != n_rows:
                raise ValueError(
                    f"transform_batch must not change the number of rows: it returned a column "
                    f"of {len(column)} for {n_rows} rows"
                )
        return tuple(self._pick(result, key_index) for key_index in wanted)


def _name(mode: Mode) -> str:
    return "a bare value" if mode is None else f"a {mode.__name__}"
