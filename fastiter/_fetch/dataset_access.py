"""Finds out how a dataset is read: by example, by list of indices, or by column.

There are three ways to fetch many rows at once. `columns_of` recognizes datasets that consist of
arrays: their rows are gathered in C (`gather.ColumnReader`), and no code of the user's runs.
``get_examples(indices, key_indices)`` returns columns, however they are made.
``__getitems__(indices)`` returns a list of examples. None of them is used where a subclass has its
own way to make an example.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._collate.collate import with_lengths
from fastiter._collate.columns import examples_of, rules_for
from fastiter._collate.padding import Padding, fields_of
from fastiter._fetch.arrow_column import ArrowColumn
from fastiter._fetch.arrow_types import DictionaryColumn, ObjectColumn, OptionalColumn
from fastiter._fetch.gather import ColumnReader
from fastiter._fetch.token_column import TokenColumn
from fastiter._fetch.token_rows import EPOCH_SHIFT
from fastiter._order import example_context
from fastiter._util.failures import RowCountError
from fastiter._util.loaded import loaded

if TYPE_CHECKING:
    from fastiter._fetch.epoch_rows import EpochRows
    from fastiter._fetch.token_rows import RowPlanner

_INDEXING = frozenset({"__getattribute__", "__getitem__", "__getitems__", "get_example"})
#: Names that decide what a dataset's examples are. A class with ``__fastiter_columns__`` answers
#: for all of them; a subclass that defines any of them, and not that method, is read by example.
_DECISIVE = _INDEXING | {"__fastiter_columns__", "__len__", "get_examples", "keys", "mode"}


class SegmentOffsets:
    """A field of rows of tokens: where the segments of each begin, and where the last one ends."""

    def __init__(self, planner: RowPlanner, borders: bool) -> None:
        self._planner, self._borders = planner, borders

    def __len__(self) -> int:
        return sys.maxsize  # rows that do not exist are found by `values`

    def values(self, rows: npt.NDArray[np.int64]) -> list[Any] | None:
        """Of each row an int32 array (k + 1,); None if one of them does not exist."""
        found = self._planner.segments(rows)
        if found is None:
            return None
        ends = [np.cumsum([0, *segments[:, 2]], dtype=np.int32) for segments in found]
        return ends if self._borders else [each[[0, -1]] for each in ends]


#: Types of columns that `ColumnReader` reads.
_READ = (
    *(np.ndarray, ArrowColumn, ObjectColumn, OptionalColumn, DictionaryColumn),
    *(TokenColumn, SegmentOffsets),
)


class SourceColumn(NamedTuple):
    """One column: an array, or rows of it."""

    array: Any  # whose first axis counts rows; or a column of Arrow; checked by its reader
    rows: npt.NDArray[np.int64] | None = None  # places of the dataset's rows; None: in order

    def at(self, rows: npt.NDArray[np.int64]) -> SourceColumn:
        return SourceColumn(self.array, rows if self.rows is None else self.rows[rows])


class Columns(NamedTuple):
    """A dataset that consists of columns."""

    mode: Any  # tuple, dict, or None: an example is its value in the first column
    keys: tuple[str, ...]
    columns: tuple[SourceColumn, ...]
    views: bool  # whether examples share the arrays' memory
    delegates: tuple[tuple[Any, Any], ...] = ()  # (object, what its `dataset` was)
    fills: Any = None  # `padding` of concat_examples, where its caller gives none
    # Names of columns, None of examples without names, that are lists in a batch.
    lists: frozenset[Any] = frozenset()
    nested: Any = None  # dtypes of columns of lists of arrays, by name
    by_example: bool = False  # whether examples are made by `__getitems__` all the same
    row_groups: Any = None  # `RowGroups`, where these are decoded when they are needed

    def at(self, rows: npt.NDArray[np.int64]) -> Columns:
        """The same columns, of a view of these rows."""
        return self._replace(columns=tuple(column.at(rows) for column in self.columns))


def columns_of(dataset: Any) -> Columns | None:
    """The columns that a dataset consists of, by its method ``__fastiter_columns__``; None for
    others, and for subclasses and objects with an indexing of their own."""
    find = _deciding_method(dataset, "__fastiter_columns__", _DECISIVE)
    found: Columns | None = None if find is None else find()
    return found


def _deciding_class(dataset: Any, names: frozenset[str]) -> type | None:
    """The class that defines the first of these names; None if the object itself has one."""
    if not names.isdisjoint(getattr(dataset, "__dict__", ())):
        return None
    for kind in type(dataset).__mro__:
        if not names.isdisjoint(vars(kind)):
            return kind
    return None


def _deciding_method(
    dataset: Any, name: str, names: frozenset[str] = _INDEXING
) -> Callable[..., Any] | None:
    """A method of the class that decides the indexing, which answers for that; None if it has none:
    what stands above that class, or in the object itself, makes other examples."""
    decisive = _deciding_class(dataset, names | {name})
    method = None if decisive is None else vars(decisive).get(name)
    return None if method is None else types.MethodType(method, dataset)


class RowAccess(NamedTuple):
    """The ways to a row without ``__getitem__``: those of the dataset below views, whose examples
    are its own."""

    orders: tuple[Any, ...]  #: of each view, a sequence: the row of the next lower dataset
    #: its ``__fastiter_into__(row, out)``, or None
    into: Callable[[int, tuple[Any, ...]], Any] | None
    #: gives the `CacheTable` that may have the row, or None while there is none; or None
    cache: Callable[[], Any] | None


def row_access(dataset: Any) -> RowAccess:
    """Of views, ``__fastiter_view__`` gives the dataset below and the sequence; instead of this
    None where generators are seeded for each example, whose rows only a cache has."""
    orders, is_seeded = [], False
    while True:
        view = _deciding_method(dataset, "__fastiter_view__")
        found = torchs_subset(dataset) if view is None else view()
        if found is None:
            break
        dataset, order = found
        if order is None:
            is_seeded = True
        else:
            orders.append(order)
    into = None if is_seeded else _deciding_method(dataset, "__fastiter_into__")
    return RowAccess(tuple(orders), into, _deciding_method(dataset, "__fastiter_cache__"))


def is_torchs_dataset(dataset: Any, name: str) -> bool:
    """Whether a dataset's examples are those of torch's class of this name, whose methods are
    torch's own."""
    kind: Any = loaded("torch.utils.data", name)
    # The first question is for speed: it is answered for each batch.
    if kind not in type(dataset).__mro__ or _deciding_class(dataset, _INDEXING) is not kind:
        return False
    own, held = vars(sys.modules[kind.__module__]), vars(kind)
    return all(offered(held[name], "__globals__") is own for name in _INDEXING if name in held)


def torchs_subset(dataset: Any) -> tuple[Any, Any] | None:
    """The dataset and the indices of torch's `Subset`; None for any other dataset."""
    if not is_torchs_dataset(dataset, "Subset"):
        return None
    return dataset.dataset, dataset.indices


class Epochs(NamedTuple):
    """Facts about a dataset that has other rows in each epoch.

    Its indices include their epoch: `token_rows.EPOCH_SHIFT`.
    """

    epoch: int  # that of indices which tell none
    words: tuple[int, int]  # its seed
    rows_of: Callable[[int], EpochRows]
    arguments: tuple[Any, ...]  # what decides the rows besides the seed; of a fixed ``repr``

    def numbers(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The number in its epoch of each index, which tells the epoch."""
        found, epochs = indices.copy(), indices >> EPOCH_SHIFT
        for epoch in np.unique(epochs).tolist():
            of_epoch = epochs == epoch
            found[of_epoch] = self.rows_of(epoch - 1).numbers(indices[of_epoch])
        return found


def epochs_of(dataset: Any) -> Epochs | None:
    """The epochs of a dataset with a method ``__fastiter_epochs__``; None if all are alike."""
    find = getattr(type(dataset), "__fastiter_epochs__", None)
    found: Epochs | None = None if find is None else find(dataset)
    return found


def keeps_rows(dataset: Any) -> bool:
    """Whether the rows of a dataset stay the same when others are added behind them: its method
    ``__fastiter_keeps_rows__`` may say no."""
    ask = getattr(type(dataset), "__fastiter_keeps_rows__", None)
    return ask is None or bool(ask(dataset))


def plain_columns(dataset: Any) -> ColumnReader | None:
    """The reader of a dataset of arrays of numbers; None for any other dataset."""
    columns = dataset if type(dataset) is Columns else columns_of(dataset)
    if not columns or not columns.columns or (columns.by_example and columns is not dataset):
        return None
    arrays = columns.columns[:1] if columns.mode is None else columns.columns
    groups = {id(getattr(column.array, "row_groups", None)) for column in columns.columns}
    if len(groups) > 1 or any(type(column.array) not in _READ for column in arrays):
        return None
    mode, keys, _, views, delegates, *_ = columns
    return ColumnReader(mode, keys, list(arrays), views, delegates)


class ColumnGatherer:
    """Gathers batches of a dataset's columns, of which some are lists, as concat_examples joins its
    examples."""

    def __init__(self, reader: ColumnReader, padding: Padding) -> None:
        self.reader = reader
        specs, keys = reader.specs(), reader.keys
        _, self._names = fields_of(reader.container, keys, len(specs))
        self._rules = rules_for(padding, reader.container, keys, specs, reader.dtypes)

    def gather(self, indices: npt.NDArray[np.int64]) -> Any:
        """The batch; None if it has to be made of examples, which then also raise its errors."""
        if self._rules is None:
            return None
        try:
            gathered = self.reader.gather_columns(indices, self._rules)
        except (OSError, ValueError):  # a text is none, offsets lead out of the values, a bad file
            return None
        if gathered is None:
            return None
        outputs, lengths = gathered
        return with_lengths(self.reader.batch(outputs), self._names, lengths)


def row_groups_of(dataset: Any) -> Any:
    """The `RowGroups` that a dataset, or the one below views of fastiter's, consists of; or
    None."""
    while True:
        columns = columns_of(dataset)
        if columns is not None:
            return columns.row_groups
        # Of other classes no attribute is read, which could have effects.
        if not getattr(type(dataset), "_is_view_of_dataset", False):
            return None
        dataset = getattr(dataset, "_dataset", None)


def is_arrow(dataset: Any) -> bool:
    """Whether a dataset has columns that are not arrays, so that the dataset says how these are
    joined."""
    columns = columns_of(dataset)
    return columns is not None and (
        columns.by_example or any(type(column.array) in _READ[1:] for column in columns.columns)
    )


def rows_getter(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """Return a function that fetches the examples at a list of indices in one call of the dataset,
    or None if the dataset returns single examples only.

    The function raises `RowCountError` if the dataset returns another number of examples.
    """
    getitems = offered(dataset, "__getitems__")
    if is_fetched_one_by_one(dataset):
        return lambda indices: list(map(dataset.__getitem__, example_context.each(indices)))
    if getitems is not None:
        return lambda indices: checked_examples(dataset, getitems(indices), indices)
    if _has_get_examples(dataset):
        return lambda indices: examples_of(dataset, get_columns(dataset, indices), len(indices))
    return None


def is_fetched_one_by_one(dataset: Any) -> bool:
    """Whether ``__getitems__`` is that of torch's `Subset` of a dataset without one: a loop over
    examples, each of which can have random numbers of its own."""
    while (found := torchs_subset(dataset)) is not None:
        dataset = found[0]
        if not callable(getattr(dataset, "__getitems__", None)):
            return True
    return False


def asks_many(dataset: Any) -> bool:
    """Whether a dataset gives examples by ``__getitems__`` alone; the ``__getitem__`` of torch's
    class only raises."""
    single = getattr(type(dataset), "__getitem__", None)
    abstract = None, getattr(loaded("torch.utils.data", "Dataset"), "__getitem__", None)
    return single in abstract and hasattr(dataset, "__getitems__")


def checked_examples(dataset: Any, given: Any, indices: list[int]) -> list[Any]:
    """The examples that ``__getitems__`` has given; `RowCountError` for another number of them."""
    examples = list(given)
    if len(examples) != len(indices):
        raise RowCountError(
            f"{type(dataset).__qualname__}.__getitems__ returned {len(examples)} examples for "
            f"{len(indices)} indices"
        )
    return examples


# ---- get_examples ----------------------------------------------------------------------------


def column_getter(dataset: Any) -> Callable[[list[int]], tuple[Any, ...]] | None:
    """`get_columns` of a dataset that has ``get_examples``; None for any other."""
    if getattr(dataset, "__getitems__", None) is None and _has_get_examples(dataset):
        return lambda indices: get_columns(dataset, indices)
    return None


def _has_get_examples(dataset: Any) -> bool:
    """Whether the dataset's examples are exactly what ``get_examples`` returns."""
    decisive = _deciding_class(dataset, _INDEXING)
    if decisive is None:
        return False
    # Chainer's own datasets of columns, if the program uses Chainer.
    theirs = loaded("chainer.dataset.tabular.tabular_dataset", "TabularDataset")
    return ("_examples_come_from_columns" in vars(decisive) or decisive is theirs) and callable(
        getattr(dataset, "get_examples", None)
    )


def get_columns(dataset: Any, indices: list[int]) -> tuple[Any, ...]:
    """All columns of some rows; `RowCountError` if a column has another number of rows."""
    columns = tuple(dataset.get_examples(indices, None))
    for column in columns:
        if len(column) != len(indices):
            raise RowCountError(
                f"dataset.get_examples returned a column of {len(column)} rows for "
                f"{len(indices)} indices"
            )
    return columns


def tokens_of(dataset: Any) -> Callable[[npt.NDArray[np.int64]], int] | None:
    """Function that counts the tokens of rows, of a dataset whose own class has one; else None."""
    has_tokens = hasattr(type(dataset), "__fastiter_tokens__")  # not what it wraps
    return dataset.__fastiter_tokens__ if has_tokens else None


def is_stateful(value: Any) -> bool:
    """Whether an object has ``state_dict()`` without arguments, and ``load_state_dict()``."""
    save = offered(value, "state_dict")
    if isinstance(value, type) or not callable(save):
        return False
    try:
        inspect.signature(save).bind()
    except TypeError:  # what some libraries' own loaders call with arguments
        return False
    except ValueError:  # a built-in function without a signature
        pass
    return callable(offered(value, "load_state_dict"))


def offered(value: Any, name: str, default: Any = None) -> Any:
    """An attribute of an object of the user's. The default, too, where it raises, as a property may
    do, or a ``__getattr__`` that looks into a dict."""
    try:
        return getattr(value, name, default)
    except Exception:
        return default
