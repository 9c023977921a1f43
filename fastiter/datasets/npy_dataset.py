"""Arrays in .npy and .npz files, mapped into memory."""

from __future__ import annotations

import ast
import contextlib
import math
import mmap
import os
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fastiter._fetch.file_signs import Sign, another_file, check_same, sign_of
from fastiter._util.arguments import iterated
from fastiter._util.context import Closing
from fastiter.dataset import TabularDataset
from fastiter.dataset.tabular._base import Mode, Rows
from fastiter.datasets._files import SharedFile, data_start, directory
from fastiter.datasets._parts import common_length

__all__ = ["NpyDataset"]

_MAGIC = b"\x93NUMPY"


class NpyDataset(Closing, TabularDataset):
    """Rows of arrays in ``.npy`` and ``.npz`` files, which are mapped into memory.

    The system reads only the rows that are fetched, and all processes share the memory. A pickle
    holds the names and positions of the arrays; the files are mapped again where it is loaded.
    Examples are copies, which may be changed; iterators fetch whole columns.

    Parameters
    ----------
    paths : str, path-like, or sequence or dict of these
        - a ``.npy`` file: examples are its rows;
        - a ``.npz`` file (of `numpy.savez`, not compressed): dicts of the rows of its arrays;
        - a sequence of ``.npy`` files: tuples of their rows;
        - a dict of names and ``.npy`` files: dicts.

        Relative paths are resolved at once. The files must not change while they are mapped.

    Raises
    ------
    OSError, ValueError
        If a file cannot be read, has another format, is compressed, or holds objects or an array
        without dimensions; or if there is no array, or the arrays differ in length.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "data.npz")
    >>> np.savez(path, x=np.arange(6).reshape(3, 2), y=np.array([0, 1, 0]))
    >>> dataset = NpyDataset(path)
    >>> dataset[1]['x']
    array([2, 3])
    >>> dataset.slice[:, ("x",)].astuple()[2]
    (array([4, 5]),)
    """

    def __init__(self, paths: Any) -> None:
        self._mode: Mode = None
        if isinstance(paths, Mapping):
            self._mode = dict
            self._places = {key: _in_npy(path) for key, path in paths.items()}
        elif not isinstance(paths, (str, bytes, os.PathLike)):
            self._mode = tuple
            listed = iterated("paths", "a path, several of them, or a dict of paths", paths)
            self._places = {str(n): _in_npy(path) for n, path in enumerate(listed)}
        elif _is_npz(paths):
            self._mode = dict
            self._places = _in_npz(paths)
        else:
            self._places = {"0": _in_npy(paths)}
        lengths = [(key, place.shape[0]) for key, place in self._places.items()]
        if not lengths:
            raise ValueError(f"there is no array in {paths!r}")
        self._length = common_length(lengths, "the arrays")
        self._is_closed = False
        self._columns: tuple[np.ndarray[Any, Any], ...] | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the arrays, from the ``.npz`` file or the dict; else '0', '1', ..."""
        return tuple(self._places)

    @property
    def mode(self) -> Mode:
        """The kind of the examples: ``tuple``, ``dict``, or None for rows of the only array."""
        return self._mode

    def get_examples(self, indices: Rows, key_indices: tuple[int, ...] | None) -> tuple[Any, ...]:
        """Get some rows of some arrays: copies for a list of indices, else views.

        Raises IndexError if an index is beyond the arrays, ValueError if the dataset has been
        closed or a file has changed, OSError if a file cannot be opened.
        """
        columns = self._columns or self._map()
        if key_indices is not None:
            columns = tuple(columns[key] for key in key_indices)
        if indices is None:
            return columns
        rows = indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.intp)
        return tuple(column[rows] for column in columns)

    def close(self) -> None:
        """Unmap the files, as soon as no view of them exists."""
        self._is_closed = True
        self._columns = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_closed": False, "_columns": None}

    def _map(self) -> tuple[np.ndarray[Any, Any], ...]:
        if self._is_closed:
            raise ValueError(f"this dataset of {', '.join(self.keys)} has been closed")
        maps: dict[Any, mmap.mmap | bytes] = {}
        self._columns = tuple(place.map(maps) for place in self._places.values())
        return self._columns


class _Place(NamedTuple):
    """The position of an array in a file."""

    path: str
    sign: Sign  # of the file
    start: int  # of the array's header
    header: bytes
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    def map(self, maps: dict[Any, mmap.mmap | bytes]) -> np.ndarray[Any, Any]:
        """Return the array in the mapping of its file, which is kept in `maps`."""
        if self.path not in maps:
            with open(self.path, "rb") as file:
                maps[self.path] = b""
                if os.fstat(file.fileno()).st_size > 0:  # else it cannot be mapped
                    maps[self.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            check_same(self.path, self.sign)
        memory = maps[self.path]
        offset = self.start + len(self.header)
        if len(memory) != self.sign.size or memory[self.start : offset] != self.header:
            raise another_file(self.path, "its header differs")
        order: Any = "F" if self.is_fortran else "C"
        return np.ndarray(self.shape, self.dtype, memory, offset, order=order)


def _is_npz(path: Any) -> bool:
    with open(path, "rb") as file:
        # The rows of an npy file may end like an archive, which is what `is_zipfile` looks for.
        return file.read(len(_MAGIC)) != _MAGIC and zipfile.is_zipfile(file)


def _in_npy(path: Any) -> _Place:
    with contextlib.closing(SharedFile(path)) as file:
        return _place(file, 0, file.size, file.name)


def _in_npz(path: Any) -> dict[str, _Place]:
    places = {}
    with contextlib.closing(SharedFile(path)) as file:
        try:
            for info in directory(file):
                name = f"{info.filename} in {file.name}"
                if info.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(
                        f"{name} is compressed, which cannot be mapped: write it by numpy.savez"
                    )
                start = data_start(file, info.header_offset, 0)
                stop = min(start + info.file_size, file.size)
                places[info.filename.removesuffix(".npy")] = _place(file, start, stop, name)
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from error
    return places


def _place(file: SharedFile, start: int, stop: int, name: str) -> _Place:
    """Read the header of the array that lies in a file between `start` and `stop`."""
    head = file.read(start, min(12, stop - start))
    if len(head) < 12 or head[:6] != _MAGIC or head[6] not in (1, 2, 3):
        raise ValueError(f"{name} is not an array in NumPy's npy format 1, 2 or 3")
    text_start, length_format = (10, "<H") if head[6] == 1 else (12, "<I")
    length = text_start + struct.unpack_from(length_format, head, 8)[0]
    if length > stop - start:
        raise ValueError(f"{name} ends within its header")
    header = file.read(start, length)
    try:
        text = header[text_start:].decode("utf-8" if head[6] == 3 else "latin-1")
        fields = ast.literal_eval(text.strip())
        shape, is_fortran = tuple(fields["shape"]), bool(fields["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"its shape is {shape}, expected integers of at least 0")
        # ValueError if there are too many dimensions or bytes; it takes the memory of one number.
        np.ndarray(shape, dtype, bytes(dtype.itemsize), strides=(0,) * len(shape))
    except Exception as error:  # damaged text may cause nearly any error
        raise ValueError(f"{name} has a header that cannot be read: {error}") from error
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which cannot be mapped")
    if not shape:
        raise ValueError(f"{name} is an array without dimensions, which has no rows")
    end = length + math.prod(shape) * dtype.itemsize
    if end > stop - start:
        raise ValueError(f"{name} ends after {stop - start} bytes, expected {end}")
    path = os.fsdecode(file.path)
    return _Place(path, sign_of(path), start, header, shape, dtype, is_fortran)
