"""The interface of datasets of columns, and what follows from it."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastiter import _device
from fastiter.dataset.mixin import DatasetMixin

if TYPE_CHECKING:
    from fastiter.dataset.tabular._slice import Slicer

__all__ = ["TabularDataset"]

#: What an example is: a tuple, a dict, or (None) the bare value of the only column.
Mode = type[tuple[Any, ...]] | type[dict[str, Any]] | None
#: Rows: all of them, a slice, or a list of integers.
Rows = builtins.slice | Sequence[int] | None


class TabularDataset(DatasetMixin):
    """A dataset whose examples all have the same fields, and which can be read by columns.

    A subclass gives ``__len__``, `keys`, `mode` and `get_examples`. Iterators, and
    `concat_examples`, fetch many rows in one call of `get_examples`, unless a subclass has its
    own ``get_example`` or ``__getitem__``.

    Examples
    --------
    >>> import numpy as np
    >>> from fastiter.dataset import tabular
    >>> dataset = tabular.from_data((("x", np.arange(4) * 10), ("y", list("abcd"))))
    >>> dataset.slice[[3, 1], ("y", "x")].fetch()
    (['d', 'b'], array([30, 10]))
    """

    #: `get_example` follows from `get_examples` alone: what iterators ask of the class that
    #: defines indexing before they call `get_examples` in its place.
    _examples_come_from_columns: ClassVar[bool] = True

    def __len__(self) -> int:
        """Get the number of rows."""
        raise NotImplementedError

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns' names."""
        raise NotImplementedError

    @property
    def mode(self) -> Mode:
        """What an example is: ``tuple``, ``dict``, or None for the value of the first column."""
        raise NotImplementedError

    def get_examples(
        self, indices: Rows, key_indices: tuple[int, ...] | None
    ) -> tuple[Sequence[Any], ...]:
        """Get some rows of some columns.

        Parameters
        ----------
        indices : list of int, slice or None
            Which rows; None for all.
        key_indices : tuple of int or None
            Which columns, by their places in `keys`; None for all.

        Returns
        -------
        tuple of list or array
            The columns, each with one entry for each row.
        """
        raise NotImplementedError

    @property
    def slice(self) -> Slicer:
        """Views of some rows and columns: ``dataset.slice[rows]``, ``dataset.slice[rows, keys]``.

        ``rows`` is a slice, or a list or array of integers (negative ones count from the end) or
        of as many bools as there are rows. ``keys`` is a tuple of names and numbers of columns, or
        a single one, of which the view's examples are bare values (mode None).
        """
        from fastiter.dataset.tabular._slice import Slicer

        return Slicer(self)

    def fetch(self) -> Any:
        """Get all rows by columns.

        Returns
        -------
        tuple, dict, or list or array
            The columns as they are, in a tuple or a dict as `mode` says, or the first one.
        """
        columns = self.get_examples(None, None)
        if self.mode is tuple:
            return columns
        if self.mode is dict:
            return dict(zip(self.keys, columns, strict=False))
        if self.mode is None:
            return columns[0]
        return None

    def convert(self, data: Any) -> Any:
        """Make arrays of what `fetch` gave: a list becomes an array, an array stays as it is.

        `with_converter` puts another function in this place. Datasets made by `concat` and `join`
        convert as the first of theirs does. Iterators do not call it: they have ``converter=``.

        Parameters
        ----------
        data : tuple, dict, or list or array

        Returns
        -------
        tuple, dict or array
        """
        if isinstance(data, tuple):
            return tuple(_as_array(column) for column in data)
        if isinstance(data, dict):
            return {key: _as_array(column) for key, column in data.items()}
        return _as_array(data)

    def astuple(self) -> TabularDataset:
        """Make a view whose examples are tuples."""
        from fastiter.dataset.tabular._views import AsTuple

        return AsTuple(self)

    def asdict(self) -> TabularDataset:
        """Make a view whose examples are dicts."""
        from fastiter.dataset.tabular._views import AsDict

        return AsDict(self)

    def concat(self, *datasets: TabularDataset) -> TabularDataset:
        """Put the rows of other datasets behind those of this one.

        Raises
        ------
        ValueError
            If not all have the same keys.
        """
        from fastiter.dataset.tabular._concat import Concat

        return Concat(self, *datasets)

    def join(self, *datasets: TabularDataset) -> TabularDataset:
        """Put the columns of other datasets beside those of this one.

        Raises
        ------
        ValueError
            If lengths differ, or two columns have one name.
        """
        from fastiter.dataset.tabular._join import Join

        return Join(self, *datasets)

    def transform(
        self, keys: str | tuple[str, ...], transform: Callable[..., Any]
    ) -> TabularDataset:
        """Make a view with ``transform`` applied to each example, when it is fetched.

        Parameters
        ----------
        keys : str or tuple of str
            The names of the new columns.
        transform : callable
            Takes an example's fields, by name if the mode is dict, and gives a tuple, a dict or,
            for a single column, a bare value: the view's `mode`.
        """
        from fastiter.dataset.tabular._transform import Transform

        return Transform(self, keys, transform)

    def transform_batch(
        self, keys: str | tuple[str, ...], transform_batch: Callable[..., Any]
    ) -> TabularDataset:
        """Make a view with ``transform_batch`` applied to columns, when they are fetched.

        Parameters
        ----------
        keys : str or tuple of str
            The names of the new columns.
        transform_batch : callable
            Takes columns of any number of rows, by name if the mode is dict, and gives columns of
            as many rows: a tuple, a dict or, for a single column, itself. How many rows come at a
            time is up to the iterator: it must treat each row alike.
        """
        from fastiter.dataset.tabular._transform import TransformBatch

        return TransformBatch(self, keys, transform_batch)

    def with_converter(self, converter: Callable[..., Any]) -> TabularDataset:
        """Make a view whose `convert` calls ``converter`` with the columns, by name for a dict."""
        from fastiter.dataset.tabular._views import WithConverter

        return WithConverter(self, converter)

    def get_example(self, i: int) -> Any:
        """Get the example at index ``i``, by `get_examples` of that single row."""
        example = tuple(column[0] for column in self.get_examples([i], None))
        if self.mode is tuple:
            return example
        if self.mode is dict:
            return dict(zip(self.keys, example, strict=False))
        if self.mode is None:
            return example[0]
        return None

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the examples, one at a time."""
        return (self.get_example(i) for i in range(len(self)))


def _as_array(column: Any) -> Any:
    if is_array(column):
        return column
    xp, device = _device.array_module(column[0])
    with device:
        return xp.asarray(column)


def is_array(data: Any) -> bool:
    """Whether it is an array of NumPy or of CuPy."""
    return isinstance(data, np.ndarray) or _device.is_cupy_array(data)
