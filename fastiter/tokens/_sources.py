"""Sources of tokens: files that are mapped, Arrow columns, arrays."""

from __future__ import annotations

import glob
import os
import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._fetch import arrow_types
from fastiter._fetch.token_rows import KINDS, TokenSource
from fastiter._util.arguments import checked_dtype, checked_int
from fastiter.datasets._arrow_paths import SUFFIXES, Paths, check_once, checked_paths
from fastiter.datasets._arrow_sources import open_table

Array = npt.NDArray[Any]
#: Of each stretch of documents: offsets, sizes or None, unit of the offsets, place of offset 0.
Documents = list[tuple[Array, Array | None, int, int]]

_LLMC_MAGICS: dict[int, np.dtype[Any]] = {
    20240520: np.dtype("<u2"),
    20240801: np.dtype("<u4"),
}
_LLMC_HEADER = 256 * 4
_STEP = 1 << 24  # tokens at a time, where all are read
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_HEADER = 34
#: dtypes by the code in a Megatron index
_INDEX_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


class Opened(NamedTuple):
    parts: list[Array]  # the stream
    documents: Documents | None  # None: it is one document
    aligned: dict[str, tuple[list[Array], Documents]]
    n_tokens: int | None = None  #: of the documents, if these are not all of the stream

    def source(self, bos: int | None = None, eos: int | None = None) -> TokenSource:
        return TokenSource(self.parts, self.documents, bos, eos)


def open_source(
    source: Any, documents: Any, dtype: Any, column: str, aligned: tuple[str, ...]
) -> Opened:
    """Open a source of tokens; files are mapped, and read no further than their headers."""
    paths = paths_of(source)
    if paths is not None and not paths[0].endswith(SUFFIXES):
        if aligned:
            raise ValueError("aligned= names columns of Arrow lists, but the source is a .bin file")
        if any(path.endswith(".idx") for path in paths):
            return _open_megatron(paths, documents, dtype)
        return _open_bins(paths, documents, dtype)
    if (isinstance(source, (list, tuple)) and paths is None) or isinstance(source, np.ndarray):
        return _of_arrays(source, documents, dtype)
    if documents is not None or dtype is not None:
        raise ValueError("documents= and dtype= describe .bin files; Arrow columns need neither")
    return _of_arrow(source if paths is None else checked_paths(paths), column, aligned)


def paths_of(source: Any) -> list[str] | None:
    """The files that a source names, absolute, in order; None if it is no path."""
    given = [source] if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(given, (list, tuple)) or not given:
        return None
    if not all(isinstance(path, (str, os.PathLike)) for path in given):
        return None
    paths: list[str] = []
    for path in given:
        text = os.fspath(path)
        if os.path.exists(text):
            found = [text]
        elif os.path.exists(text + ".idx"):
            found = [text + ".idx"]
        else:
            found = sorted(glob.glob(text))
        if not found:
            raise FileNotFoundError(
                f"there is no file {text!r}, none that matches it, and no {text + '.idx'!r}"
            )
        paths += [os.path.abspath(each) for each in found]
    check_once(paths)
    return paths


def files_of(source: Any, documents: Any = None) -> Paths:
    """The files that a source consists of, and that of its documents."""
    files = [documents] if isinstance(documents, str) else []
    for path in paths_of(source) or ():
        files += [path, *([path[: -len("idx")] + "bin"] if path.endswith(".idx") else [])]
    return Paths([path for path in files if os.path.isfile(path)])


def mapped(path: str, dtype: Any, offset: int = 0) -> Array:
    """The numbers in a file, mapped."""
    size = os.path.getsize(path) - offset
    dtype = np.dtype(dtype)
    if size % dtype.itemsize:
        raise ValueError(
            f"{path} has {size} bytes of tokens, no whole number of {dtype.name}: it is "
            "damaged, or was written with another dtype"
        )
    if size == 0:
        return np.empty(0, dtype)
    found = np.memmap(path, dtype, mode="r", offset=offset)
    return np.asarray(found)  # of the base class, which slices quickly, over the same mapping


def checked_integers(name: str, value: Any, ndim: int = 1) -> Array:
    """``value``, or the content of the .npy file that it names, as an array of integers."""
    if isinstance(value, (str, os.PathLike)):
        name = f"{name}={os.fspath(value)!r}"
        try:
            value = np.load(value, mmap_mode="r")
        except (ValueError, EOFError) as error:
            raise ValueError(f"{name} is no array of integers: {error}") from error
    array = np.asarray(value)
    if array.ndim != ndim or (array.dtype.kind not in "iu" and array.size):
        raise TypeError(
            f"{name} must be an array of integers of {ndim} dimension(s), not of dtype "
            f"{array.dtype} and shape {array.shape}"
        )
    return array


def token_dtype(dtype: Any) -> np.dtype[Any]:
    found = checked_dtype("dtype", np.uint16 if dtype is None else dtype)
    if found.name not in KINDS or not found.isnative:
        raise ValueError(f"dtype must be one of {', '.join(KINDS)}, not {found}")
    return found


def open_bin(path: str, dtype: Any) -> Array:
    """The tokens of a ``.bin`` file, behind the header of llm.c if there is one."""
    with open(path, "rb") as file:
        head = file.read(_LLMC_HEADER)
    magic, version, count = struct.unpack("<3i", head[:12].ljust(12, b"\0"))
    if (kind := _LLMC_MAGICS.get(magic)) is None:
        return mapped(path, token_dtype(dtype))
    if version != 1:
        raise ValueError(
            f"{path} has a header of llm.c in version {version}, and version 1 is known: write it "
            "again, or take the header off"
        )
    expected = _LLMC_HEADER + count * kind.itemsize
    if os.path.getsize(path) != expected:
        raise ValueError(
            f"{path} has {os.path.getsize(path)} bytes, not the {expected} of the {count} "
            "tokens in its header: it is damaged, or not written to its end"
        )
    if dtype is not None and np.dtype(dtype) != kind:
        raise ValueError(f"{path} says by its header that it holds {kind}, not {dtype}")
    return mapped(path, kind, _LLMC_HEADER)


def document_offsets(path: Any, eod_token_id: int, dtype: Any = None) -> npt.NDArray[np.int64]:
    """Find where documents begin in a ``.bin`` file of tokens, in one pass over it.

    Parameters
    ----------
    path : path
        A file of tokens, also with the header of llm.c.
    eod_token_id : int
        The token that ends each document, which belongs to it.
    dtype : dtype, optional
        Data type of the file. Default: the type in its header, or uint16.

    Returns
    -------
    int64[n + 1]
        The start of each document, and the number of tokens; for ``documents=`` of `TokenDataset`.
        Tokens behind the last end are a document, too.
    """
    files = paths_of(path) or []
    if len(files) != 1 or files[0].endswith(".idx"):
        raise ValueError(f"path must name one .bin file, not {path!r:.200}")
    tokens = open_bin(files[0], dtype)
    room = np.iinfo(tokens.dtype)
    if not room.min <= checked_int("eod_token_id", eod_token_id, minimum=-(1 << 63)) <= room.max:
        raise ValueError(f"eod_token_id={eod_token_id} is no token of dtype={tokens.dtype}")
    ends = [
        start + 1 + np.flatnonzero(tokens[start : start + _STEP] == eod_token_id)
        for start in range(0, len(tokens), _STEP)
    ]
    offsets = np.concatenate([np.zeros(1, np.int64), *ends])
    return offsets if offsets[-1] == len(tokens) else np.append(offsets, len(tokens))


def _open_bins(paths: list[str], documents: Any, dtype: Any) -> Opened:
    parts = [open_bin(path, dtype) for path in paths]
    if len({part.dtype for part in parts}) > 1:
        raise ValueError(f"the files hold tokens of several dtypes: {paths!r:.200}")
    return Opened(parts, _offsets(documents, sum(map(len, parts))), {})


def _offsets(documents: Any, n_tokens: int) -> Documents | None:
    if documents is None:
        return None
    offsets = checked_integers("documents", documents)
    if offsets.dtype not in (np.int32, np.int64):
        offsets = offsets.astype(np.int64)
    first, last = (offsets[0], offsets[-1]) if offsets.size else (None, None)
    if first != 0 or last != n_tokens:
        raise ValueError(
            f"documents must go from 0 to the {n_tokens} tokens that there are, but go from "
            f"{first} to {last}: are dtype= and the file the right ones?"
        )
    return [(np.ascontiguousarray(offsets), None, 1, 0)]


def _open_megatron(paths: list[str], documents: Any, dtype: Any) -> Opened:
    if len(paths) > 1 or documents is not None:
        raise ValueError(
            "pass one prefix or .idx of Megatron's files, without documents= and without other "
            f"files, not {paths!r:.200}"
        )
    path = paths[0]
    with open(path, "rb") as file:
        head = file.read(_INDEX_HEADER)
    if len(head) < _INDEX_HEADER or head[:9] != _INDEX_MAGIC:
        raise ValueError(f"{path} is no index of Megatron's: it begins with {head[:9]!r}")
    version, code, n_sequences, n_documents = struct.unpack_from("<QBQQ", head, 9)
    if version != 1 or code not in _INDEX_DTYPES:
        raise ValueError(
            f"{path} has version {version} and dtype code {code}; known are version 1 and the "
            f"integer codes {sorted(_INDEX_DTYPES)}"
        )
    kind = np.dtype(_INDEX_DTYPES[code])
    if dtype is not None and np.dtype(dtype) != kind:
        raise ValueError(f"{path} says that it holds {kind}, not {dtype}")
    expected = _INDEX_HEADER + 12 * n_sequences + 8 * n_documents
    if os.path.getsize(path) < expected:
        raise ValueError(f"{path} has {os.path.getsize(path)} bytes, not {expected}: it is damaged")
    memory = mapped(path, np.uint8)
    sizes = np.frombuffer(memory, "<i4", n_sequences, _INDEX_HEADER)
    places = np.frombuffer(memory, "<i8", n_sequences, _INDEX_HEADER + 4 * n_sequences)
    tokens = mapped(path[: -len("idx")] + "bin", kind)
    return Opened([tokens], [(places, sizes, kind.itemsize, 0)], {})


def _of_arrays(source: Any, documents: Any, dtype: Any) -> Opened:
    listed = [source] if isinstance(source, np.ndarray) else source
    given = [checked_integers(f"source[{n}]", each) for n, each in enumerate(listed)]
    if not given:
        raise ValueError("source is an empty list")
    kind = np.result_type(*(each.dtype for each in given if each.size), np.int8)
    if dtype is not None:
        kind = token_dtype(dtype)
    elif kind.name not in KINDS or not any(each.size for each in given):
        kind = np.dtype(np.int64)  # of uint64, and of no tokens
    room = np.iinfo(kind)
    for number, each in enumerate(given):
        if each.size and not np.can_cast(each.dtype, kind):
            low, high = int(each.min()), int(each.max())
            if low < room.min or high > room.max:
                raise ValueError(
                    f"source[{number}] has tokens from {low} to {high}, which dtype={kind} has no "
                    "room for"
                )
    if isinstance(source, np.ndarray):
        tokens = np.ascontiguousarray(source, kind)
        return Opened([tokens], _offsets(documents, len(tokens)), {})
    if documents is not None:
        raise ValueError("documents= is for .bin files and one array; a list has one in each item")
    tokens = np.concatenate(given, dtype=kind, casting="unsafe")  # never by way of floats
    return Opened([tokens], [(np.cumsum([0, *map(len, given)], dtype=np.int64), None, 1, 0)], {})


# ---- Arrow -----------------------------------------------------------------------------------


def _of_arrow(source: Any, column: str, aligned: tuple[str, ...]) -> Opened:
    try:
        table, rows, names = open_table(source)
    except TypeError as error:
        raise TypeError(f"{error}; or a list of arrays, or paths of .bin files") from None
    if table is None:
        raise TypeError(
            f"examples of this {type(source).__name__} are made by its transform or features, so "
            f"its columns {names!r:.80} cannot be read: pass it without them"
        )
    parts, documents = _lists_of(table, rows, column)
    if parts[0].dtype.name not in KINDS:
        raise TypeError(
            f"column {column!r} holds lists of {parts[0].dtype}, expected one of {', '.join(KINDS)}"
        )
    others = {name: _lists_of(table, rows, name) for name in aligned}
    sizes = documents[0][1]  # of a view
    n_tokens = None if sizes is None else int(sizes.sum(dtype=np.int64))
    return Opened(parts, documents, others, n_tokens)


def _lists_of(table: Any, rows: Any, name: str) -> tuple[list[Array], Documents]:
    """The values of a column of lists, and where each begins."""
    import pyarrow as pa

    if name not in table.column_names:
        raise KeyError(f"there is no column {name!r} among {table.column_names!r:.200}")
    chunked = table.column(name)
    kind = chunked.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    is_bits = is_list and pa.types.is_boolean(kind.value_type)
    dtype = arrow_types.number_dtype(kind.value_type) if is_list else None
    if is_bits:
        dtype = np.dtype(np.uint8)
    if dtype is None:
        raise TypeError(f"column {name!r} is of type {kind}, expected lists of numbers")
    for find in (arrow_types.null_rows, arrow_types.null_elements):
        if (row := arrow_types.first_row(chunked.chunks, rows, find)) is not None:
            raise ValueError(
                f"column {name!r} of type {kind} has a null in row {row}: fill it, or leave the row"
                " out"
            )
    parts: list[Array] = []
    documents: Documents = []
    first = 0
    for chunk in chunked.chunks:
        offsets = chunk.offsets.to_numpy(zero_copy_only=True)
        values = chunk.values.slice(offsets[0], offsets[-1] - offsets[0])
        if is_bits:
            part = values.cast(pa.uint8()).fill_null(0).to_numpy()
        elif len(values):  # as they lie: rows that the source leaves out may have nulls
            place = values.offset * dtype.itemsize
            part = np.frombuffer(values.buffers()[1], dtype, len(values), place)
        else:
            part = np.empty(0, dtype)
        documents.append((offsets, None, 1, first - int(offsets[0])))
        parts.append(part)
        first += len(part)
    if not parts:
        parts = [np.empty(0, np.int64)]
        documents = [(np.zeros(1, np.int64), None, 1, 0)]
    if rows is not None:  # a view in another order: where each of its rows begins
        starts = np.concatenate(
            [np.asarray(o[:-1], np.int64) + base for o, _, _, base in documents]
        )
        sizes = np.concatenate([np.diff(o) for o, _, _, _ in documents])
        documents = [(starts[rows], sizes[rows].astype(np.int32), 1, 0)]
    return parts, documents
