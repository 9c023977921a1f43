"""Examples that are fetched once, and kept in memory or in a file."""

from __future__ import annotations

import logging
import os
import re
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from fastiter._clib import status
from fastiter._fetch.cache_table import HEAD_BYTES, CacheTable, start_of
from fastiter._ring.serialization import Packed, are_same, dump, unpack
from fastiter._ring.stored_fields import fields_of
from fastiter._stats.cache_stats import CacheStats
from fastiter._util.arguments import checked_flag, checked_path
from fastiter._util.context import Closing
from fastiter._workers import shared_object
from fastiter.dataset.mixin import row_at
from fastiter.datasets._batched import BatchedWrapper, fetch
from fastiter.datasets._cache_files import Meaning, open_table, require_index
from fastiter.datasets._parts import fixed_length

__all__ = ["CachedDataset"]

logger = logging.getLogger("fastiter")

_NO_PICKLE, _FULL = 1, 2  # what is told once, by one of the processes
_NO_WAY = (
    "a cache in memory has no name, so it travels only through multiprocessing: as an argument of "
    "a Process, through a Queue, Pipe or Pool, or as part of a dataset. A cache in a file (path=) "
    "can be pickled"
)


class CachedDataset(Closing, BatchedWrapper):
    """A dataset whose examples are fetched once, and kept for all workers, iterators, epochs and,
    in a file, for other programs. `fastiter.cache` is this class.

    The cache fills as it is used: an example that is not there is fetched from the dataset, in the
    process that asks for it, stored and returned. Random transforms belong outside of the cache, as
    it keeps the draw that came first.

    Parameters
    ----------
    dataset : sequence
        Object with ``__len__`` and ``__getitem__``. Its length is asked for once. Where it has
        ``__getitems__``, one call of that fetches all rows that are missing.
    memory : int or str, optional
        Most bytes of memory, or a share of what the machine, or the tightest control group, has in
        all, such as ``"60%"``; by default ``"50%"``. A full cache stops filling.
    path : str or path-like, optional
        A file instead, which outlives the program and is shared by all processes of this machine
        that open it; not on network file systems. Loading runs pickle: open only files that you
        trust.
    disk : int or str, optional
        Most bytes of the file, or a share of what its file system has free when it is opened; by
        default ``"90%"``.
    key : str, int or bytes, optional
        Name of all that examples depend on besides the dataset's class and length, such as a
        version of its code: a file that was made with another key is a ValueError. Without a key,
        the first row that a process finds in a file which was filled before is fetched as well, and
        compared.
    copy : bool
        False: the arrays of an example are read-only views of the cache; tensors and all else are
        copied. No process may shorten the file then.

    Attributes
    ----------
    dataset : object
        The dataset behind the cache.
    path : str or None
        The absolute path of the file; None of a cache in memory.

    Raises
    ------
    TypeError, ValueError
        If the dataset has no length, or an argument is of a wrong type, is out of range, or does
        not go together with another; if the file is no cache, or that of another dataset.
    OSError, MemoryError
        If the file cannot be opened or made, or there is no memory for the index.

    Examples
    --------
    >>> squares = fastiter.cache([n * n for n in range(10)], memory=1 << 20)
    >>> squares[3], squares[3], squares.stats().hits
    (9, 9, 1)
    """

    def __init__(
        self,
        dataset: Any,
        *,
        memory: int | str | None = None,
        path: Any = None,
        disk: int | str | None = None,
        key: str | int | bytes | None = None,
        copy: bool = True,
    ) -> None:
        try:
            self._length = fixed_length(dataset)
        except TypeError as error:
            raise TypeError(
                f"dataset of type {type(dataset).__qualname__} has no len(), and a cache is for "
                "datasets with rows of numbers: a stream cannot be cached"
            ) from error
        self.dataset = dataset
        self.path: str | None = None
        self._copies = checked_flag("copy", copy)
        self._limit: Any = 0  # bytes, or a share of what the file system has free
        self._memory: Any = None
        self._number: bytes | None = None
        self._trusted = 0  # stamp of the opening whose rows are this dataset's
        self._begin()
        if path is not None:
            if memory is not None:
                raise ValueError(f"memory={memory!r} is for a cache without path=: pass disk=")
            if key is not None and type(key) not in (str, int, bytes):
                raise TypeError(f"key must be a str, int or bytes, not {key!r}")
            self._limit = _checked_size("disk", "90%" if disk is None else disk)
            self.path = os.path.abspath(checked_path("path", path))
            self._meaning = Meaning.of(dataset, self._length, key)
            self._open_file()
        else:
            for name, value in (("disk", disk), ("key", key)):
                if value is not None:
                    raise ValueError(f"{name}={value!r} is for a cache in a file: pass path=, too")
            self._open_memory(_checked_size("memory", "50%" if memory is None else memory))

    def _begin(self) -> None:
        """Makes the parts that belong to this process alone."""
        self._table: CacheTable | None = None
        self._is_unproven = False  # whether the rows may be another dataset's
        self._error: str | None = None
        self._unloadable: set[int] = set()  # rows whose entries did not load: not stored again

    def _open_memory(self, size: float) -> None:
        start = start_of(self._length)
        limit = int(size * status.memory_total()) if isinstance(size, float) else size
        require_index("memory", limit, self._length)
        if start > status.memory_available():
            raise MemoryError(
                f"the index of {self._length} rows takes {start} bytes of shared memory, and "
                f"{status.memory_available()} are available"
            )
        self._limit = limit
        self._memory = shared_object.reserve_file(start, _NO_WAY)
        self._attach()
        assert self._table is not None
        self._table.begin(start, start)

    def _attach(self) -> None:
        self._table = CacheTable(self._memory.fd, self._length, self._limit, True, False, False)

    def _open_file(self) -> None:
        assert self.path is not None
        opened = open_table(self.path, self._meaning, self._limit, self._number)
        self._table, self._number = opened.table, opened.number
        if not opened.is_filled:
            self._trusted = opened.table.stamp
        self._is_unproven = self._meaning.key is None and self._trusted != opened.table.stamp

    # ---- rows

    def __len__(self) -> int:
        return self._length

    def get_example(self, i: int) -> Any:
        """Get example ``i``; IndexError unless ``-len(self) <= i < len(self)``."""
        row, table = row_at(i, self._length), self._opened()
        found = self._stored(table, row)
        return self._fetched(table, [row], is_single=True)[0] if found is None else found[0]

    def _bases(self) -> tuple[Any, ...]:
        return (self.dataset,)

    def _getitems(self, indices: list[int]) -> list[Any]:
        table = self._opened()
        rows = [row_at(i, self._length) for i in indices]
        found = [self._stored(table, row) for row in rows]
        missing = [row for row, each in zip(rows, found, strict=True) if each is None]
        fetched = iter(self._fetched(table, missing) if missing else ())
        return [next(fetched) if each is None else each[0] for each in found]

    def __fastiter_cache__(self) -> CacheTable | None:
        """The table, where its rows need no comparison; None where reads have to raise."""
        is_sure = not self._is_unproven and self._error is None
        return self._table if is_sure else None

    def _opened(self) -> CacheTable:
        if (table := self._table) is None:
            raise ValueError("this cache was closed in this process")
        if self._error is not None:
            raise ValueError(self._error)
        return table

    def _stored(self, table: CacheTable, row: int) -> tuple[Any] | None:
        """The example of a row, in a tuple; None if it has to be fetched."""
        if (found := table.read(row, not self._copies)) is None:
            return None
        word, content = found
        try:
            example = unpack(content, copy=self._copies and content.readonly)
        except MemoryError:
            raise
        except Exception:  # what damaged bytes make, or a class that pickles and does not load
            if table.has(row, word):
                self._unloadable.add(row)
            table.drop(row, word)
            return None
        if not table.has(row, word):
            return None  # cleared meanwhile
        if self._is_unproven:
            self._prove(row, example)
        table.count_hit()
        return (example,)

    def _prove(self, row: int, example: Any) -> None:
        """Compares a stored row with the dataset's; ValueError if they differ."""
        try:
            fetched = self.dataset[row]
        except Exception:
            return  # another row has to tell
        try:
            is_right = are_same(example, fetched)
        except RecursionError:
            return  # an object in itself
        self._is_unproven = False
        if not is_right:
            self._error = (
                f"row {row} of the cache {self.path} differs from what the dataset returns now: "
                "pass key= (whatever decides what an example is), or delete the file"
            )
            raise ValueError(self._error)
        assert self._table is not None
        self._trusted = self._table.stamp

    def _fetched(
        self, table: CacheTable, rows: list[int], is_single: bool = False, is_trial: bool = False
    ) -> list[Any]:
        """The examples of rows that are not stored, by one call of the dataset; stores them."""
        began = time.perf_counter()
        try:
            examples = [self.dataset[rows[0]]] if is_single else fetch(self.dataset, list(rows))
        except BaseException:
            for _ in () if is_trial else rows:  # which are fetched again
                table.count_miss(True, False, (time.perf_counter() - began) / len(rows))
            raise
        seconds = (time.perf_counter() - began) / len(rows)
        for row, example in zip(rows, examples, strict=True):
            self._store(table, row, example, seconds)
        return examples

    def _store(self, table: CacheTable, row: int, example: Any, seconds: float) -> None:
        is_stored = False
        if row not in self._unloadable and table.stores(row):
            try:
                packed = Packed(example, make=dump)
                signature, fields = fields_of(example, packed)
                start = HEAD_BYTES + len(fields)
                entry = np.zeros(start + packed.start, np.uint8)
                entry[HEAD_BYTES:start] = np.frombuffer(fields, np.uint8)
                packed.write_start(memoryview(entry)[start:], 0)  # type: ignore[arg-type]
                buffers = [(start + at, buffer) for at, buffer in packed.buffers]
            except MemoryError:
                pass  # the example is there, and is stored when it is fetched again
            except Exception as error:
                if table.is_first_to_tell(_NO_PICKLE):
                    logger.warning("row %d is not cached, since it does not pickle: %s", row, error)
            else:
                size = start + packed.size
                is_stored = table.store(row, size, entry, buffers, signature, len(fields))
        table.count_miss(False, is_stored, seconds)
        if not is_stored and table.full and table.is_first_to_tell(_FULL):
            logger.warning("the cache is full, and goes on serving: %s", self.stats())

    # ---- the cache

    def stats(self) -> CacheStats:
        """Get counts, of all processes; ValueError after `close`."""
        place = "memory" if self.path is None else "disk"
        return CacheStats.of(self._opened(), self._length, place)

    def fill(self, n_processes: int | None = None, progress: bool = True) -> CacheStats:
        """Fetch the rows that are missing, in worker processes. Blocks until all are there, or the
        cache is full; rows that the dataset fails at are left out, and logged.

        Parameters
        ----------
        n_processes : int, optional
            Number of processes, by default one for each CPU of this process.
        progress : bool
            Whether to show a progress bar, by tqdm.

        Returns
        -------
        CacheStats

        Raises
        ------
        RuntimeError
            If a worker process ends by a signal or an error.
        """
        from fastiter.datasets import _cache_fill  # imports what starts processes

        rows = np.array(self.missing(np.arange(self._length)), np.int64)
        _cache_fill.fill(self, rows, n_processes, progress)
        return self.stats()

    @property
    def is_full(self) -> bool:
        """Whether the cache does not fill any more, at least for the moment, or is read-only."""
        return self._opened().full != 0 or self._opened().is_private

    def missing(self, rows: npt.NDArray[np.int64]) -> list[int]:
        """Rows, of the given int64 (n,), that are not stored."""
        return rows[~self._opened().present()[rows]].tolist()  # type: ignore[no-any-return]

    def clear(self) -> None:
        """Empty the cache, in all processes, and give its memory or disk space back. A row that is
        read meanwhile is whole. ValueError with ``copy=False``, whose arrays would lose their
        content; no object with ``copy=False`` may use the same file."""
        table = self._opened()
        if not self._copies:
            raise ValueError("clear() would overwrite arrays that copy=False has handed out")
        if table.is_private:
            raise ValueError(f"the cache {self.path} is read-only: clear() cannot empty it")
        table.clear()

    def close(self) -> None:
        """Close the cache in this process; then reads are a ValueError. A file stays, memory is
        given back with the last object in the last process."""
        self._table = None
        if self._memory is not None:
            self._memory.close()

    def __repr__(self) -> str:
        place = "memory" if self.path is None else repr(self.path)
        return f"<CachedDataset of {self._length} examples in {place}>"

    def __deepcopy__(self, memo: Any = None) -> CachedDataset:
        return self

    __copy__ = __deepcopy__

    def __getstate__(self) -> dict[str, Any]:
        self._opened()
        own = ("_table", "_is_unproven", "_error", "_unloadable")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
        if self._memory is None:
            self._open_file()
        else:
            self._attach()


cache = CachedDataset  # under the name that it has in `fastiter`


def _checked_size(name: str, value: Any) -> float:
    """A number of bytes, or a share between 0 and 1 as a float."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        if value <= 0:
            raise ValueError(f"{name} must be a positive number of bytes, not {value}")
        return min(int(value), (1 << 62) - 1)  # no machine has more
    if not isinstance(value, str):
        raise TypeError(f'{name} must be bytes (int) or a share ("60%"), not {value!r}')
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*%\s*", value)
    if match is None or not 0 < float(match[1]) <= 100:
        raise ValueError(f'{name} must be a share above 0 % up to 100 %, like "60%", not {value!r}')
    return float(match[1]) / 100
