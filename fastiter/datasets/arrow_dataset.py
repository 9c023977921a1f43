"""A dataset of Arrow columns, read where they lie."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch import arrow_types, row_groups
from fastiter._fetch.dataset_access import Columns, SourceColumn, plain_columns
from fastiter._fetch.file_signs import another_file
from fastiter._fetch.row_groups import RowGroups
from fastiter._order import example_context
from fastiter._util.arguments import checked_choice, iterated, wrong_type
from fastiter._workers import shared_object
from fastiter.dataset.mixin import row_at
from fastiter.datasets._arrow_paths import Paths, checked_paths
from fastiter.datasets._arrow_sources import (
    ParquetFiles,
    held,
    names_of,
    open_table,
    parquet_files_of,
)
from fastiter.datasets._batched import BatchedDataset

__all__ = ["ArrowDataset"]

_NULLS = ("error", "mask", "none")


class ArrowDataset(BatchedDataset):
    """Rows of Arrow columns: of Hugging Face's datasets, of pyarrow's tables, or of files.

    Iterators gather batches in C from the Arrow buffers, without making examples. Files are mapped,
    not read, and shared by all processes; a pickle holds their paths.

    Values equal those of ``to_pylist()``: numbers, dates and timestamps are NumPy scalars of the
    Arrow type's dtype (in UTC, if they have a zone), lists of numbers are arrays, lists of such
    lists are lists of arrays, strings and binaries are str and bytes; tensors, and Array2D to
    Array5D of Hugging Face, are arrays. Other types become what pyarrow converts them to. In
    batches of `concat_examples`, numbers and lists of numbers are arrays, and all other columns
    lists.

    Parameters
    ----------
    source : pyarrow.Table, RecordBatch, ChunkedArray or Array, datasets.Dataset, frame or path
        Paths (a path, a list or pattern of paths, or a folder) name Parquet files, or files of the
        Arrow IPC format, random access or stream. A folder saved by `datasets` gives the files it
        lists, any other folder all files whose names do not begin with "." or "_". Row groups of
        Parquet files are decoded when they are needed, once for all processes; see
        `row_group_ends`. A pandas frame gives its columns, not its index. Other objects, such as
        Polars frames, need the method ``__arrow_c_stream__``. A `datasets.Dataset` gives its rows
        in their order, and the columns of its format; the format's type is ignored. If it has a
        transform or features to decode, examples come from its own ``__getitems__``.
    columns : list of str or str, optional
        An example is a dict of these columns, or the value of the one column. By default a dict of
        all columns, or the value in an Array.
    padding : number or dict, optional
        Padding value for list columns, for all columns or by name.
    nulls : {"error", "mask", "none"}
        Treatment of nulls in the rows of the dataset. "mask": zero, an empty list or an empty text
        replaces them (None, where a type has none of these, such as struct), and a bool field
        ``NAME_valid`` follows each column with nulls. "none": the values of a column with nulls are
        Python objects, None among them.
    decode : dict, optional
        Functions by column name. Each is called with every value of its column, such as the bytes
        of an image, in the worker that fetches it. Examples are then made one by one.

    Raises
    ------
    KeyError
        If there is no column of a name.
    TypeError
        If the source is none of these, or a `datasets.IterableDataset`.
    ValueError
        If a row has a null that no argument allows; the message names the column, its type and the
        row. Or if an argument has another value than these, a file another format, or other
        contents than when the dataset was made, or a folder is more than one table.

    Examples
    --------
    >>> dataset = ArrowDataset(datasets.load_dataset("ag_news", split="train"))  # doctest: +SKIP
    """

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | str | None = None,
        *,
        padding: Any = None,
        nulls: str = "error",
        decode: Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        checked_choice("nulls", nulls, _NULLS)
        if isinstance(source, (str, bytes, os.PathLike, list, tuple)):
            source = checked_paths(source)
        self._source = held(source)
        if columns is not None and not isinstance(columns, str):
            columns = list(iterated("columns", "a name or a list of names", columns))
        self._names = columns
        self._padding = padding
        self._nulls = nulls
        if not isinstance(decode, Mapping | None):
            raise wrong_type("decode", "a dict of functions by column", decode)
        self._decode = dict(decode or {})
        #: results of the search for nulls, by column: made once, not by every process
        self._found: dict[str, _Nulls] = {}
        #: columns of which all was found sound, and what the files' columns are
        self._sound: set[str] = set()
        self._kinds: list[tuple[str, str]] | None = None
        self._open()

    def _open(self) -> None:
        files = parquet_files_of(self._source, self.__dict__.get("_facts"))
        self._facts = None if files is None else files.facts  # travel with a pickle
        if files is None and isinstance(self._source, Paths):
            self._source.check()
        self._groups = self._row_groups(files) if files is not None and files.sources else None
        if files is not None:
            table, rows, names = files.empty, None, names_of(files.empty)
        else:
            table, rows, names = open_table(self._source)
        if isinstance(self._source, Paths):
            self._check_kinds(self._source, table)
        self._own: Any = None  # the source, if examples come from it
        if table is None:
            self._own = self._source
            names = self._names_of_examples(names)
        self._columns = self._read(table, rows, names)
        if self._own is not None:
            self._length = len(self._own)
        elif self._groups is not None:
            self._length = int(self._groups.ends[-1])
        else:
            self._length = table.num_rows if rows is None else len(rows)
        self._plain = None if table is None else plain_columns(self._columns)

    def _check_kinds(self, paths: Paths, table: Any) -> None:
        """Raise ValueError unless the files have the columns that they had."""
        kinds = [(f.name, str(getattr(f.type, "storage_type", f.type))) for f in table.schema]
        if self._kinds is None:
            self._kinds = kinds
        if kinds != self._kinds:
            raise another_file(
                paths[0], f"its columns are {kinds!r:.300}, and were {self._kinds!r:.300}"
            )

    def __getstate__(self) -> dict[str, Any]:
        opened = ["_own", "_columns", "_length", "_plain", "_groups"]
        if not shared_object.is_packing():  # only these pickles can take the memory along
            opened.append("_memory")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return self._length

    @property
    def row_group_ends(self) -> npt.NDArray[np.int64] | None:
        """Number of the row behind each row group of Parquet files, int64 (n,), which
        `BlockShuffleOrderSampler` takes as ``block_size``. None for other sources."""
        return None if self._groups is None else self._groups.ends.copy()

    def _row_groups(self, files: ParquetFiles) -> RowGroups:
        if (memory := self.__dict__.get("_memory")) is None:
            # The second one grows as groups are decoded.
            sizes = row_groups.table_bytes(len(files.ends)), 0
            memory = self._memory = tuple(shared_object.reserve_file(size) for size in sizes)
        return RowGroups(files.sources, files.ends, files.facts, memory[0].fd, memory[1].fd)

    @property
    def keys(self) -> Any:
        """The names of an example's fields; None if it is one value."""
        return None if self._columns.mode is None else self._columns.keys

    @property
    def mode(self) -> type | None:
        """dict, or None if an example is one value."""
        return self._columns.mode  # type: ignore[no-any-return]

    def get_example(self, i: int) -> Any:
        """Get example ``i``; IndexError unless ``-len(self) <= i < len(self)``."""
        return self._getitems([row_at(i, len(self))])[0]

    def _getitems(self, indices: list[int]) -> list[Any]:
        if self._own is not None:
            examples = self._own.__getitems__(indices)
            if self._names is not None:
                examples = [self._part_of(example) for example in examples]
        else:
            assert self._plain is not None
            if (examples := self._plain.examples(np.array(indices, dtype=np.int64))) is None:
                rows = [row_at(index, len(self)) for index in indices]
                examples = self._plain.examples(np.array(rows, dtype=np.int64))
        if not self._decode:
            return examples  # type: ignore[no-any-return]
        if self.mode is None:
            (decode,) = self._decode.values()
            return list(map(decode, example_context.each(examples)))
        for example in example_context.each(examples):
            for name, decode in self._decode.items():
                example[name] = decode(example[name])
        return examples  # type: ignore[no-any-return]

    __getitems__ = _getitems

    def _part_of(self, example: dict[str, Any]) -> Any:
        try:
            if isinstance(self._names, str):
                return example[self._names]
            return {name: example[name] for name in self._names or ()}
        except KeyError as error:
            raise KeyError(
                f"there is no column {error} in an example that has {list(example)!r:.200}"
            ) from None

    def _names_of_examples(self, names: list[str]) -> list[str]:
        """The columns of a source's own examples, of which a transform may make others than
        ``names``, those of its table."""
        source, known = self._source, self.__dict__.get("_own_names")
        if known is None:
            known = names
            is_asked = self._names is not None or isinstance(self._padding, Mapping) or self._decode
            if source.format["type"] == "custom" and is_asked and len(source):
                # An exception comes again where rows that fail may be skipped.
                with contextlib.suppress(Exception):
                    known = list(source.__getitems__([0])[0])
            self._own_names = known
        return known

    def __fastiter_columns__(self) -> Columns:
        return self._columns

    # ---- columns

    def _read(self, table: Any, rows: Any, names: list[str]) -> Columns:
        """The columns of a table, or, without a table, the known facts about the columns of a
        dataset's own examples."""
        is_bare = isinstance(self._names, str) or names == [""]
        chosen = self._chosen(names, is_bare)
        padding = self._padding
        fill_of = padding.get if isinstance(padding, Mapping) else lambda _: padding
        columns: dict[str, Any] = {}
        fills: dict[str, Any] = {}
        lists, nested, is_ragged = set(), {}, False
        for name in chosen if table is not None else ():
            field, chunked = table.schema.field(name), table.column(name)
            columns[name], is_valid = self._column(name, field, chunked, rows)
            column = columns[name]
            if is_valid is not None:
                if f"{name}_valid" in chosen:
                    raise ValueError(
                        f"nulls='mask' adds a field {name + '_valid'!r}, but there is a column of "
                        "that name: leave it out of columns=, or rename it"
                    )
                columns[f"{name}_valid"] = is_valid
            is_array = getattr(column, "is_array", False)  # of lengths of their own
            is_ragged |= is_array
            levels, is_decoded = getattr(column, "levels", 0), name in self._decode
            if levels > 0 or is_array:
                fill = fills[name] = fill_of(name)
                if fill is not None and not is_decoded:
                    arrow_types.check_padding(name, fill, column.dtype)
            if levels > 1 and not is_decoded:
                nested[None if is_bare else name] = column.dtype
            if getattr(column, "text", str) is not None and not (is_array or is_decoded):
                lists.add(None if is_bare else name)
        return Columns(
            None if is_bare else dict,
            tuple(columns) if table is not None else tuple(chosen),
            tuple(SourceColumn(column, rows) for column in columns.values()),
            views=False,
            fills=self._fills(fills, is_bare),
            lists=frozenset(lists),
            nested=nested,
            by_example=self._own is not None or bool(self._decode) or is_ragged,
            row_groups=self._groups,
        )

    def _chosen(self, names: list[str], is_bare: bool) -> list[str]:
        """Those of the source's columns that examples have; refuses arguments that do not fit."""
        chosen = names if self._names is None else self._names
        chosen = [chosen] if isinstance(chosen, str) else chosen
        padded = self._padding if isinstance(self._padding, Mapping) else ()
        for name in chosen:
            if name not in names:
                raise KeyError(f"there is no column {name!r} among {names!r:.200}")
        for argument, named in (("padding", padded), ("decode", self._decode)):
            for name in named:
                if name not in chosen:
                    raise KeyError(f"{argument} names {name!r}, no column of {chosen!r:.200}")
        if self._names is not None and len(set(chosen)) != max(1, len(chosen)):
            raise ValueError(
                f"columns must name at least one column, and each once, not {self._names!r:.80}"
            )
        for name, function in self._decode.items():
            if not callable(function):
                raise TypeError(f"decode of column {name!r} must be callable, not {function!r:.80}")
        if is_bare and self._nulls == "mask":
            raise ValueError(
                "nulls='mask' adds fields, but examples are single values: name the column in a "
                "list, or pass nulls='none'"
            )
        if not chosen:
            raise ValueError("the source has no columns: there is nothing to make examples of")
        return chosen

    def _fills(self, padded: dict[str, Any], is_bare: bool) -> Any:
        """The fill values of list columns, as concat_examples takes them."""
        padding = self._padding
        if isinstance(padding, Mapping):
            for name in padding:
                if self._own is None and name not in padded and name not in self._decode:
                    raise ValueError(
                        f"padding names column {name!r}, whose rows are no lists of numbers: leave "
                        "it out"
                    )
            padded = dict(padding)
        elif self._own is not None or self._decode:
            return padding
        padded = {name: fill for name, fill in padded.items() if fill is not None}
        if not padded:
            return None
        return next(iter(padded.values())) if is_bare else padded

    def _column(self, name: str, field: Any, chunked: Any, rows: Any) -> tuple[Any, Any]:
        """A column, and the column of its valid rows, or None."""
        if self._groups is None:
            chunked = self._checked(name, chunked)
        if (found := self._found.get(name)) is None:
            found = self._found[name] = self._find_nulls(name, chunked, rows)
        arrays = None if found.elements else arrow_types.array_rows(field)
        chunked, layout, values, convert = self._layout(field, chunked, arrays)
        is_fixed = layout is not None and values is None and layout.is_fixed
        fill = is_valid = None
        if found.rows and self._nulls == "mask":
            is_valid = self._laid_out(arrow_types.VALID, name, chunked, arrow_types.is_valid)
            fill = 0 if is_fixed else arrow_types.zero_of(chunked.type)
            fill = fill if arrays is None or is_fixed else arrays.array([])
        has_none = self._nulls == "none" and (found.elements or found.rows)
        if layout is not None and values is not None and not found.rows:
            codes = layout.column(chunked.chunks)
            return arrow_types.DictionaryColumn(codes, values), is_valid
        if layout is not None and values is None and not has_none:
            # Where rows are lists or texts, a null is an empty one by itself.
            put = fill if is_fixed else None
            return self._laid_out(layout, name, chunked, convert, put), is_valid
        is_shaped = arrays is not None or arrow_types.is_tensor(chunked.type)
        if layout is not None and is_fixed and is_shaped and not found.elements:
            column = self._laid_out(layout, name, chunked, convert)
            valid = self._laid_out(arrow_types.VALID, name, chunked, arrow_types.is_valid)
            return arrow_types.OptionalColumn(column, valid), is_valid
        if self._groups is not None:
            as_stored = _decoded if convert is _decoded else _unchanged
            chunked = self._groups.values(name, as_stored, chunked.type)
        return arrow_types.ObjectColumn(chunked, fill, arrays, has_none), is_valid

    def _checked(self, name: str, chunked: Any) -> Any:
        """A column with dictionaries that have no nulls. Raises if it is in a damaged file, and
        pyarrow, which then may end the process, would convert it."""
        import pyarrow as pa

        chunks = chunked.chunks
        layout = arrow_types.layout_of(chunked.type)
        is_gathered = layout is not None and layout.convert is not arrow_types.unpacked
        if isinstance(self._source, Paths) and name not in self._sound:
            try:
                if not is_gathered or any(map(arrow_types.has_nulls, chunks)):
                    chunked.validate(full=True)
            except pa.ArrowInvalid as error:
                raise ValueError(
                    f"column {name!r} of {list(self._source)!r:.200} is damaged: {error}"
                ) from error
            self._sound.add(name)
        if pa.types.is_dictionary(chunked.type) and any(c.dictionary.null_count for c in chunks):
            decoded = [chunk.dictionary_decode() for chunk in chunks]
            return pa.chunked_array(decoded, chunked.type.value_type).dictionary_encode()
        return chunked

    def _laid_out(
        self, layout: arrow_types.Layout, name: str, chunked: Any, convert: Any, fill: Any = None
    ) -> Any:
        """The column of ``convert(chunk)`` for each chunk, or each row group."""
        if self._groups is None:
            return layout.column([convert(chunk) for chunk in chunked.chunks], fill)
        kind = _empty(chunked.type)
        kind = kind if convert is _decoded else convert(kind)
        column = layout.column([], fill, self._groups, kind)
        self._groups.add(name, convert, column)
        return column

    def _layout(
        self, field: Any, chunked: Any, arrays: arrow_types.ArrayRows | None
    ) -> tuple[Any, Any, list[Any] | None, Any]:
        """A column, how its rows lie, if these are codes, the values that they mean, and what a
        chunk becomes first."""
        import pyarrow as pa

        if arrays is not None:
            if (layout := arrays.layout) is None:
                return chunked, None, None, _unchanged
            key = f"shape of {field.name}"
            if key not in self._sound:
                for chunk in chunked.chunks:
                    if not arrow_types.check_shape(chunk, layout.shape):
                        raise ValueError(
                            f"column {field.name!r} has rows that are not of its shape, "
                            f"{layout.shape}: write it with another feature"
                        )
                self._sound.add(key)
            flatten = functools.partial(arrow_types.flattened, layout.shape)
            return chunked, layout, None, flatten
        if not pa.types.is_dictionary(chunked.type):
            layout = arrow_types.layout_of(chunked.type)
            return chunked, layout, None, (layout and layout.convert) or _unchanged
        if self._groups is not None:
            chunked = pa.chunked_array([], chunked.type.value_type)
            return chunked, arrow_types.layout_of(chunked.type), None, _decoded
        chunked = chunked.unify_dictionaries()
        codes = arrow_types.layout_of(chunked.type.index_type)
        values = arrow_types.layout_of(chunked.type.value_type)
        if values is not None and values.is_fixed:
            return chunked.cast(chunked.type.value_type), values, None, values.convert or _unchanged
        known = chunked.chunk(0).dictionary.to_pylist() if chunked.num_chunks else []
        return chunked, codes, known, _unchanged

    def _find_nulls(self, name: str, chunked: Any, rows: Any) -> _Nulls:
        """Whether a column has nulls in the rows of the dataset. Raises unless they are wanted."""
        if self._groups is None:
            return self._nulls_in(name, chunked.type, chunked.chunks, rows, 0)
        found = _Nulls(False, False)
        for group in self._groups.with_nulls(name):  # by the statistics in the files
            first = int(self._groups.ends[group - 1]) if group else 0
            chunks = self._groups.decode(group, name).chunks
            one = self._nulls_in(name, chunked.type, chunks, None, first)
            found = _Nulls(found.rows or one.rows, found.elements or one.elements)
        return found

    def _nulls_in(self, name: str, kind: Any, chunks: list[Any], rows: Any, first: int) -> _Nulls:
        """Nulls in `rows` of chunks, whose first row has number `first`."""
        row = arrow_types.first_row(chunks, rows, arrow_types.null_rows)
        element = arrow_types.first_row(chunks, rows, arrow_types.null_elements)
        row = None if row is None else first + row
        element = None if element is None else first + element
        where = f"column {name!r} of type {kind}" if name else f"an array of {kind}"
        if row is not None and self._nulls == "error":
            raise ValueError(
                f"{where} has a null in row {row}: pass nulls='mask' for zeros and a field "
                f"{name + '_valid'!r}, or nulls='none' for None"
            )
        if element is not None and self._nulls != "none":
            raise ValueError(
                f"{where} has a null in the list of row {element}: pass nulls='none' for Python "
                "lists with None in them, or leave the column out of columns="
            )
        return _Nulls(row is not None, element is not None)


def _unchanged(array: Any) -> Any:
    return array


def _empty(kind: Any) -> Any:
    """An array of a type without rows."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _empty(kind.storage_type))
    return pa.array([], kind)


#: makes of an array of dictionary type an array of its values
_decoded = operator.methodcaller("dictionary_decode")


class _Nulls(NamedTuple):
    """Nulls of a column in the rows of the dataset."""

    rows: bool
    elements: bool  #: in lists
