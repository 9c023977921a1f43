"""The table of an `ArrowDataset`'s source: files, frames, or a library's own tables."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch import parquet_files, row_groups
from fastiter._util.loaded import loaded
from fastiter.datasets._arrow_paths import Paths


def imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("ArrowDataset needs pyarrow: pip install pyarrow") from error


def held(source: Any) -> Any:
    """A source that can be read again and pickled: for a stream, its table."""
    if isinstance(source, loaded("pandas", "DataFrame")):
        return _of_pandas(source)
    if hasattr(source, "to_frame"):  # of pandas and Polars: one column
        raise TypeError(f"source is a {type(source).__qualname__}, no table: pass its to_frame()")
    if not hasattr(source, "__arrow_c_stream__"):
        return source
    pa: Any = imported("pyarrow")
    known = (pa.Table, pa.ChunkedArray, loaded("datasets", "Dataset"))
    return source if isinstance(source, known) else pa.table(source)


def _of_pandas(frame: Any) -> Any:
    """The columns of a frame without its index. NaN in NumPy's floats stays NaN, no null."""
    pa: Any = imported("pyarrow")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for number, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, np.dtype) and dtype.kind == "f":
            values = pa.array(frame.iloc[:, number].to_numpy())
            table = table.set_column(number, table.column_names[number], values)
    return table


def open_table(source: Any) -> tuple[Any, Any, list[str]]:
    """The table of a source, or None if its own examples count; the places of the dataset's rows in
    it, int64, or None for all in order; and the names of its columns."""
    pa: Any = imported("pyarrow")
    if isinstance(source, Paths):
        tables = [_mapped(path) for path in source]
        first = tables[0].schema.remove_metadata()
        for path, table in zip(source, tables, strict=True):
            if not table.schema.equals(first):
                raise unlike_columns(path, table.schema, source[0], first)
        table = pa.concat_tables(tables)
        return table, None, names_of(table)
    if isinstance(source, loaded("datasets", "IterableDataset")):
        raise TypeError(
            "source is a datasets.IterableDataset, without rows by number: load it with "
            "streaming=False, loop over it with fastiter.torch.DataLoader, which takes iterable "
            "datasets, or make a fastiter.datasets.StreamDataset of its shards"
        )
    if isinstance(source, loaded("datasets", "Dataset")):
        return _of_hugging_face(source)
    if isinstance(source, (pa.Array, pa.ChunkedArray)):
        return pa.table({"": source}), None, [""]
    if isinstance(source, pa.RecordBatch) or hasattr(source, "__arrow_c_stream__"):
        source = pa.table(source) if not isinstance(source, pa.Table) else source
        return source, None, names_of(source)
    raise TypeError(
        "source must be a table of pyarrow, a datasets.Dataset, an object with "
        f"__arrow_c_stream__, or paths of Arrow files, not {type(source).__qualname__}"
    )


def unlike_columns(path: str, own: Any, other: str, expected: Any) -> ValueError:
    """The error of a file with other columns than another one."""
    texts = [schema.remove_metadata().to_string() for schema in (own, expected)]
    return ValueError(
        f"{path} has the columns {texts[0]!r:.400}, and {other} has {texts[1]!r:.400}: name files "
        "of the same columns"
    )


def names_of(table: Any) -> list[str]:
    names = list(table.column_names)
    if len(set(names)) < len(names):
        raise ValueError(f"source has columns of one name, and a dict has one: {names!r:.200}")
    return names


def decodes(dataset: Any) -> bool:
    """Whether features of a `datasets.Dataset` are decoded when they are read."""
    from datasets.features.features import require_decoding

    return any(require_decoding(feature) for feature in dataset.features.values())


def is_changed(dataset: Any) -> bool:
    """Whether a subclass, or the program, has replaced a method that reads rows."""
    usual, names = sys.modules["datasets"].Dataset, ("__getitem__", "__getitems__", "_getitem")
    return any(
        name in vars(dataset)
        or getattr(type(dataset), name, None) is not getattr(usual, name, None)
        for name in names
    )


def _of_hugging_face(dataset: Any) -> tuple[Any, Any, list[str]]:
    # As its own examples have them: in the order of the table.
    wanted = set(dataset.format["columns"])
    names = [name for name in dataset.column_names if name in wanted]
    if dataset.format["output_all_columns"]:
        names += [name for name in dataset.column_names if name not in wanted]
    chosen = dataset.select_columns(names) if len(names) < len(dataset.column_names) else dataset
    if dataset.format["type"] == "custom" or decodes(chosen):
        return None, None, names
    table, mapping = dataset.data.table, dataset._indices
    if mapping is None:
        return table, None, names
    return table, mapping.column(0).to_numpy().astype(np.int64, copy=False), names


def _magic(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(6)


class ParquetFiles(NamedTuple):
    empty: Any  # a table of their columns, without rows
    sources: list[row_groups.GroupPlace]
    ends: npt.NDArray[np.int64]
    facts: dict[str, parquet_files.FileFacts]


def parquet_files_of(
    source: Any, before: Mapping[str, parquet_files.FileFacts] | None
) -> ParquetFiles | None:
    """Facts about Parquet files that need no decoding; None for other sources. ``before``: by
    path, the facts known when the dataset was made."""
    if not isinstance(source, Paths) or not any(_magic(p)[:3] == b"PAR" for p in source):
        return None
    parquet: Any = imported("pyarrow.parquet")
    schema: Any = None
    sources, counts, facts = [], [], {}
    for path in source:
        if _magic(path)[:4] == b"PARE":
            raise ValueError(f"{path} is encrypted: write it without, or read it by pyarrow")
        if _magic(path)[:4] != b"PAR1":
            raise ValueError(f"{path} is no Parquet file, as others are: name files of one format")
        with open(path, "rb") as file:
            facts[path] = parquet_files.checked_facts(path, file, (before or {}).get(path))
            try:
                opened = parquet.ParquetFile(file)  # its types are those of what it reads
                metadata, own = opened.metadata, opened.schema_arrow
            except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
                raise ValueError(f"{path} is no complete Parquet file: {error}") from error
        schema = own.remove_metadata() if schema is None else schema
        if not own.equals(schema):
            raise unlike_columns(path, own, source[0], schema)
        for number in range(metadata.num_row_groups):
            if n_rows := metadata.row_group(number).num_rows:
                sources.append(row_groups.GroupPlace(path, number))
                counts.append(n_rows)
    # Schema.empty_table() raises where a tensor has a permutation.
    empty = imported("pyarrow").Table.from_batches([], schema)
    return ParquetFiles(empty, sources, np.cumsum(counts, dtype=np.int64), facts)


def _mapped(path: str) -> Any:
    """The table of an Arrow IPC file, its buffers in the mapped file."""
    import pyarrow as pa

    magic = _magic(path)
    if magic[:4] == b"PAR1":
        raise ValueError(
            f"{path} is a Parquet file, of which no column can be mapped: pass "
            "pyarrow.parquet.read_table(path), or datasets.Dataset.from_parquet(path), which "
            "writes it as an Arrow file"
        )
    if magic[:4] == b"FEA1":
        raise ValueError(
            f"{path} is a Feather file of version 1, which cannot be mapped: pass "
            "pyarrow.feather.read_table(path), or write it again by pyarrow.feather.write_feather"
        )
    is_text = len(magic) > 3 and magic[:4].isascii() and magic[:4].decode().isprintable()
    if is_text and magic != b"ARROW1":
        raise ValueError(
            f"{path} is neither a Parquet file nor a file of the Arrow IPC format: it begins with "
            f"the text {magic!r}. Of a CSV file pass pyarrow.csv.read_csv(path)"
        )
    try:
        source = pa.memory_map(path)
        opened = pa.ipc.open_file if magic == b"ARROW1" else pa.ipc.open_stream
        table = opened(source).read_all()
        # Of lengths and buffers alone, without which pyarrow reads outside of the file.
        table.validate()
        return table
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} is neither a Parquet file nor a file of the Arrow IPC format, or it is "
            f"damaged: {error}"
        ) from error
