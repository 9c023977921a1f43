"""The interface of datasets of columns."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from fastiter._device.cupy import array_module, is_cupy_array
from fastiter.dataset.mixin import DatasetMixin

__all__ = ["TabularDataset"]

#: Kind of the examples: a tuple, a dict, or None for the bare value of the first column.
Mode = type[tuple[Any, ...]] | type[dict[str, Any]] | None
#: Rows: all of them, a slice, or a list of integers.
Rows = builtins.slice | Sequence[int] | None
#: Positions of columns in `TabularDataset.keys`; None: all of them.
KeyIndices = tuple[int, ...] | None
#: Columns, each with one entry for each row.
ColumnValues = tuple[Sequence[Any], ...]


class TabularDataset(DatasetMixin):
    """A dataset whose examples all have the same fields, and which can be read by columns.

    A subclass defines ``__len__``, `keys`, `mode` and `get_examples`. Iterators fetch many rows in
    one call of `get_examples`, unless a subclass defines ``get_example`` or ``__getitem__``.

    Examples
    --------
    >>> import numpy as np
    >>> from fastiter.dataset import tabular
    >>> dataset = tabular.from_data((("x", np.arange(4) * 10), ("y", list("abcd"))))
    >>> dataset.slice[[3, 1], ("y", "x")].fetch()
    (['d', 'b'], array([30, 10]))
    """

    #: Tells iterators that the `get_example` of this class calls `get_examples` only, so that they
    #: may call `get_examples` instead.
    _examples_come_from_columns: ClassVar[bool] = True

    def __len__(self) -> int:
        """Get the number of rows."""
        raise NotImplementedError

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns."""
        raise NotImplementedError

    @property
    def mode(self) -> Mode:
        """The kind of the examples: ``tuple``, ``dict``, or None for the first column's values."""
        raise NotImplementedError

    def get_examples(
        self, indices: Rows, key_indices: tuple[int, ...] | None
    ) -> tuple[Sequence[Any], ...]:
        """Get some rows of some columns: lists or arrays with one entry for each row.

        Parameters
        ----------
        indices : list of int, slice or None
            The rows; None for all.
        key_indices : tuple of int or None
            The columns, as positions in `keys`; None for all.
        """
        raise NotImplementedError

    @property
    def slice(self) -> Slicer:
        """Views of some rows and columns: ``dataset.slice[rows]``, ``dataset.slice[rows, keys]``.

        ``rows`` is a slice, a list or array of integers (negative ones count from the end), or one
        bool for each row. ``keys`` is a tuple of names and numbers of columns, or a single one: the
        examples are bare values (mode None) then. Raises IndexError or KeyError if there is no such
        row or column.
        """
        return Slicer(self)

    def fetch(self) -> Any:
        """Get the columns, in a tuple or a dict according to `mode`, or the first column."""
        return self._in_mode(self.get_examples(None, None))

    def convert(self, data: Any) -> Any:
        """Convert the lists in a result of `fetch` to arrays.

        `with_converter` replaces this function. Datasets made by `concat` and `join` convert like
        their first dataset. Iterators do not call it: they have ``converter=``.
        """
        if isinstance(data, tuple):
            return tuple(_as_array(column) for column in data)
        if isinstance(data, dict):
            return {key: _as_array(column) for key, column in data.items()}
        return _as_array(data)

    def astuple(self) -> TabularDataset:
        """Make a view with tuples as examples."""
        return AsTuple(self)

    def asdict(self) -> TabularDataset:
        """Make a view with dicts as examples."""
        return AsDict(self)

    def concat(self, *datasets: TabularDataset) -> TabularDataset:
        """Append the rows of other datasets; ValueError if not all have the same keys."""
        return Concat(self, *datasets)

    def join(self, *datasets: TabularDataset) -> TabularDataset:
        """Append the columns of datasets; ValueError if lengths differ or a name stands twice."""
        return Join(self, *datasets)

    def transform(
        self, keys: str | tuple[str, ...], transform: Callable[..., Any]
    ) -> TabularDataset:
        """Make a view that applies ``transform`` to each example that is fetched.

        Parameters
        ----------
        keys : str or tuple of str
            The names of the new columns.
        transform : callable
            Takes the fields of an example, by name if the mode is dict. Returns a tuple, a dict or,
            for a single column, a bare value: this is the `mode` of the view.
        """
        return Transform(self, keys, transform)

    def transform_batch(
        self, keys: str | tuple[str, ...], transform_batch: Callable[..., Any]
    ) -> TabularDataset:
        """Make a view that applies ``transform_batch`` to the columns that are fetched.

        Parameters
        ----------
        keys
            See `transform`.
        transform_batch : callable
            Takes columns, by name if the mode is dict. Returns a tuple or dict of columns, or a
            single column, with the same number of rows. The iterator chooses this number, so each
            row must be treated alike.
        """
        return TransformBatch(self, keys, transform_batch)

    def with_converter(self, converter: Callable[..., Any]) -> TabularDataset:
        """Make a view whose `convert` calls ``converter`` with the columns, by name if a dict."""
        return WithConverter(self, converter)

    def get_example(self, i: int) -> Any:
        """Get the example at index ``i`` by `get_examples`."""
        return self._in_mode(tuple(column[0] for column in self.get_examples([i], None)))

    def _in_mode(self, values: tuple[Any, ...]) -> Any:
        mode = self.mode
        if mode is tuple:
            return values
        if mode is dict:
            return dict(zip(self.keys, values, strict=False))
        return values[0] if mode is None else None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the examples."""
        return (self.get_example(i) for i in range(len(self)))


def _as_array(column: Any) -> Any:
    if is_array(column):
        return column
    xp, device = array_module(column[0])
    with device:
        return xp.asarray(column)


def is_array(data: Any) -> bool:
    """Return whether it is an array of NumPy or CuPy."""
    return isinstance(data, np.ndarray) or is_cupy_array(data)


# The views derive from `TabularDataset`, so it must be there first.
from fastiter.dataset.tabular._concat import Concat  # noqa: E402
from fastiter.dataset.tabular._join import Join  # noqa: E402
from fastiter.dataset.tabular._slice import Slicer  # noqa: E402
from fastiter.dataset.tabular._transform import Transform, TransformBatch  # noqa: E402
from fastiter.dataset.tabular._views import AsDict, AsTuple, WithConverter  # noqa: E402
