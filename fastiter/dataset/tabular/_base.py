"""The interface of datasets of columns, and the views that its methods make."""

from __future__ import annotations

import builtins
import numbers
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, chain
from typing import Any, ClassVar

import numpy as np

from fastiter._device.cupy import array_module, is_cupy_array
from fastiter._fetch.dataset_access import Columns, columns_of
from fastiter.dataset.mixin import DatasetMixin, places_among, row_at

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
        return View(self, tuple)

    def asdict(self) -> TabularDataset:
        """Make a view with dicts as examples."""
        return View(self, dict)

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
            Function of an example's fields, by name if the mode is dict. Returns a tuple, a dict,
            or, for a single column, a bare value: this is the `mode` of the view.
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
            Function of columns, by name if the mode is dict. Returns a tuple or dict of columns, or
            a single column, with the same number of rows. The iterator chooses this number, so each
            row must be treated alike.
        """
        return TransformBatch(self, keys, transform_batch)

    def with_converter(self, converter: Callable[..., Any]) -> TabularDataset:
        """Make a view whose `convert` calls ``converter`` with the columns, by name if a dict."""
        return WithConverter(self, converter)

    def get_example(self, i: int) -> Any:
        """Get the example at index ``i`` by `get_examples`."""
        rows = [operator.index(i)]
        return self._in_mode(tuple(column[0] for column in self.get_examples(rows, None)))

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
    return isinstance(data, np.ndarray) or is_cupy_array(data)


# ---- views ---------------------------------------------------------------------------------------


class View(TabularDataset):
    """A view with the rows, columns and `convert` of ``dataset``, in its mode or a given one."""

    _given_mode: Mode = None
    _is_view_of_dataset = True  # for `row_groups_of`

    def __init__(self, dataset: TabularDataset, mode: Mode = None) -> None:
        self._dataset, self._given_mode = dataset, mode

    def __len__(self) -> int:
        return len(self._dataset)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._dataset.keys

    @property
    def mode(self) -> Mode:
        return self._given_mode or self._dataset.mode

    def get_examples(self, indices: Rows, key_indices: KeyIndices) -> ColumnValues:
        return self._dataset.get_examples(indices, key_indices)

    def convert(self, data: Any) -> Any:
        return self._dataset.convert(data)

    def __fastiter_columns__(self) -> Columns | None:
        columns = columns_of(self._dataset)
        return columns and columns._replace(mode=self.mode)


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


class ViewOfSeveral(View):
    """A view of several datasets, which is like the first of them but for what is defined."""

    def __init__(self, *datasets: TabularDataset) -> None:
        self._datasets = datasets

    @property
    def _dataset(self) -> TabularDataset:  # type: ignore[override]
        return self._datasets[0]


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
        below = self._dataset.get_examples(indices, None)
        results = [self._call(example) for example in zip(*below, strict=False)]
        return tuple([self._pick(result, index) for result in results] for index in wanted)


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


# ---- rows and columns of several datasets --------------------------------------------------------


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


# ---- some rows and some columns ------------------------------------------------------------------


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
    return [row_at(row, length) for row in rows]


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
