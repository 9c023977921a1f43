"""Arrays in .npy and .npz files, mapped into memory."""

from __future__ import annotations

import ast
import math
import mmap
import os
import struct
import sys
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastiter.dataset import TabularDataset
from fastiter.datasets._closing import Closing
from fastiter.datasets._files import SharedFile
from fastiter.datasets._parts import iterated
from fastiter.datasets._zip import Entry, data_start, directory

if TYPE_CHECKING:
    from fastiter.dataset.tabular._base import Mode, Rows

__all__ = ["NpyDataset"]

_MAGIC = b"\x93NUMPY"


class NpyDataset(Closing, TabularDataset):
    """Rows of arrays in ``.npy`` and ``.npz`` files, without loading them.

    The files are mapped into memory: the system reads what is asked for, and all processes share
    what it has read. A pickle holds the names and places of the arrays; the files are mapped
    again where it is loaded. Examples are copies, which may be changed; iterators fetch whole
    columns.

    Parameters
    ----------
    paths : str, path-like, or sequence or dict of these
        - a ``.npy`` file: examples are its rows;
        - a ``.npz`` file (of `numpy.savez`, not compressed): dicts of the rows of its arrays;
        - a sequence of ``.npy`` files: tuples of their rows;
        - a dict of names and ``.npy`` files: dicts.

        Relative ones are resolved at once. The files must not be written to while they are
        mapped.

    Raises
    ------
    OSError
        If a file cannot be read.
    ValueError
        If a file is not of this format, holds objects or an array without dimensions, or is
        compressed; or if the arrays differ in length, or there is none.

    Examples
    --------
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "data.npz")
    >>> np.savez(path, x=np.arange(6).reshape(3, 2), y=np.array([0, 1, 0]))
    >>> dataset = NpyDataset(path)
    >>> dataset[1]
    {'x': array([2, 3]), 'y': 1}
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
        lengths = {key: place.shape[0] for key, place in self._places.items()}
        if not lengths:
            raise ValueError(f"there is no array in {paths!r}")
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the arrays must be equally long, but their lengths are {lengths}")
        self._length = next(iter(lengths.values()))
        self._is_closed = False
        self._columns: tuple[np.ndarray[Any, Any], ...] | None = None

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the arrays: those of the ``.npz`` or dict, or '0', '1', ..."""
        return tuple(self._places)

    @property
    def mode(self) -> Mode:
        """What an example is: ``tuple``, ``dict``, or None for the row of the only array."""
        return self._mode

    def get_examples(self, indices: Rows, key_indices: tuple[int, ...] | None) -> tuple[Any, ...]:
        """Get some rows of some arrays: copies for a list of indices, else views.

        Raises
        ------
        IndexError
            If an index is beyond the arrays.
        ValueError
            If the dataset has been closed, or a file is not the same any more.
        OSError
            If a file cannot be opened.
        """
        columns = self._columns or self._map()
        if key_indices is not None:
            columns = tuple(columns[key] for key in key_indices)
        if indices is None:
            return columns
        rows = indices if isinstance(indices, slice) else np.asarray(indices, dtype=np.intp)
        return tuple(column[rows] for column in columns)

    def close(self) -> None:
        """Give the files back, as soon as the last view of them is gone."""
        self._is_closed = True
        self._columns = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_closed": False, "_columns": None}

    def _map(self) -> tuple[np.ndarray[Any, Any], ...]:
        if self._is_closed:
            raise ValueError(f"this dataset of {', '.join(self.keys)} has been closed")
        maps: dict[Any, mmap.mmap] = {}
        self._columns = tuple(place.map(maps) for place in self._places.values())
        return self._columns


class _Place(NamedTuple):
    """Where an array lies."""

    path: Any
    size: int  # of the file
    start: int  # of the array's header
    header: bytes
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    def map(self, maps: dict[Any, mmap.mmap]) -> np.ndarray[Any, Any]:
        """The array, in a mapping of its file, which `maps` keeps."""
        if self.path not in maps:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size != self.size:
                    raise ValueError(_another(self.path))
                maps[self.path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        memory = maps[self.path]
        offset = self.start + len(self.header)
        if memory[self.start : offset] != self.header:
            raise ValueError(_another(self.path))
        order: Any = "F" if self.is_fortran else "C"
        return np.ndarray(self.shape, self.dtype, memory, offset, order=order)


def _another(path: Any) -> str:
    return f"{os.fsdecode(path)} is not the file any more that it was when the dataset was made"


def _is_npz(path: Any) -> bool:
    with open(path, "rb") as file:
        # First how it begins: the rows of an array may end as an archive does, which is what
        # `is_zipfile` looks for.
        return file.read(len(_MAGIC)) != _MAGIC and zipfile.is_zipfile(file)


def _in_npy(path: Any) -> _Place:
    file = SharedFile(path)
    try:
        return _place(file, 0, file.size, file.name)
    finally:
        file.close()


def _in_npz(path: Any) -> dict[str, _Place]:
    file = SharedFile(path)
    places = {}
    try:
        for info in directory(file):
            name = f"{info.filename} in {file.name}"
            if info.compress_type != zipfile.ZIP_STORED:
                raise ValueError(
                    f"{name} is compressed, which cannot be mapped: write it by numpy.savez"
                )
            start = data_start(file, Entry.of(info))
            stop = min(start + info.file_size, file.size)
            key = info.filename.removesuffix(".npy")
            places[key] = _place(file, start, stop, name)
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from error
    finally:
        file.close()
    return places


def _place(file: SharedFile, start: int, stop: int, name: str) -> _Place:
    """Read the header of the array that lies in ``file`` between ``start`` and ``stop``."""
    head = file.read(start, min(12, stop - start))
    if head[:6] != _MAGIC or len(head) < 12 or head[6] not in (1, 2, 3):
        raise ValueError(f"{name} is no array of NumPy's npy format 1, 2 or 3")
    is_first = head[6] == 1
    (length,) = struct.unpack_from("<H" if is_first else "<I", head, 8)
    length += 10 if is_first else 12
    if length > stop - start:
        raise ValueError(f"{name} ends amid its header")
    header = file.read(start, length)
    try:
        text = header[10 if is_first else 12 :].decode("utf-8" if head[6] == 3 else "latin-1")
        fields = ast.literal_eval(text.strip())
        shape, is_fortran = tuple(fields["shape"]), bool(fields["fortran_order"])
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"its shape is {shape}, expected integers of at least 0")
        # NumPy limits empty arrays, too: as if no length were 0.
        if math.prod(max(n, 1) for n in (*shape, dtype.itemsize)) > sys.maxsize:
            raise ValueError(f"an array of shape {shape} and dtype {dtype} is too large")
        np.empty((0,) * len(shape))  # ValueError if there are too many
    except Exception as error:  # damaged text may cause nearly any
        raise ValueError(f"{name} has a header that cannot be read: {error}") from error
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which cannot be mapped")
    if not shape:
        raise ValueError(f"{name} is an array without dimensions, which has no rows")
    size = dtype.itemsize * int(np.prod(shape, dtype=object))
    if length + size > stop - start:
        raise ValueError(f"{name} ends after {stop - start} bytes of {length + size}")
    return _Place(file.path, file.size, start, header, shape, dtype, is_fortran)
