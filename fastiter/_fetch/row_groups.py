"""Row groups of Parquet files, decoded once into memory that all processes share.

The memory is a file of cells, each of which holds one decoded group; a table in another file says
which. The table has one record lock (fcntl) for itself, and one for each group: whoever decodes a
group, or frees its cell, holds that one alone; those who read from the cell hold it together. The
kernel takes back the locks of a process that ends: a group that it has not finished is decoded by
another.

A worker may need a cell while all are in use. It takes that of the group that was needed longest
ago, in the order of the plan, and waits while a row before its own needs that, or a group of such
a row has no cell yet. So the worker that has the oldest rows never waits, and as long
as an order goes through windows of fewer groups than there are cells, no group is decoded twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastiter._clib import status
from fastiter._fetch.arrow_column import ArrowColumn
from fastiter._util.concurrency import renew_in_child
from fastiter._util.warn import warn_caller

CELL_BYTES = 1 << 38  #: of the address range of a cell; its pages come with the writing
DEFAULT_CELLS = 10
_POLL_SECONDS = 0.0005
_KEPT_FILES = 32  # whose metadata is kept

# The table: a header, a record for each group, and for each cell 1 + the group that it is for.
_N_DECODED, _N_CELLS, _CLOCK, _HEADER = range(4)
_CELL, _BYTES, _LOAD, _MEMORY, _STAMP, _RECORD = range(6)


class Worker(Protocol):
    """What is known of the rows that the calling thread fetches, and of those before."""

    n_examples: int

    def claim(self) -> tuple[int, int]:
        """A number of the iterator, and one that tells the order of its claims."""

    def rows_before(self) -> npt.NDArray[np.int64]:
        """Indices of rows of earlier claims that are not fetched yet."""

    def wait_begins(self) -> None:
        """The present rows wait for others: the limit of their time begins anew."""


#: That of this process, if it is a worker.
worker: Worker | None = None


_thread = threading.local()


def _worker() -> Worker | None:
    return worker or getattr(_thread, "claims", None)


class RowClaims:
    """The rows that threads of this process fetch for one iterator, which take them in order."""

    def __init__(self, n_examples: int) -> None:
        self.n_examples = n_examples
        self._claims: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}  # by thread: number, rows
        self._count = 0

    def begin(self, rows: npt.NDArray[np.int64]) -> None:
        """The calling thread has taken rows; under the lock under which it took them."""
        self._count += 1
        self._claims[threading.get_ident()] = self._count, rows
        _thread.claims = self

    def end(self, thread: int | None) -> None:
        """A thread, by its ident, has fetched its rows, or they were taken away from it."""
        self._claims.pop(thread or threading.get_ident(), None)

    def claim(self) -> tuple[int, int]:
        number = self._claims.get(threading.get_ident(), (self._count, None))[0]
        return id(self), number << 20

    def rows_before(self) -> npt.NDArray[np.int64]:
        own = self.claim()[1] >> 20
        earlier = [rows for number, rows in list(self._claims.values()) if number < own]
        return np.concatenate(earlier) if earlier else np.empty(0, np.int64)

    def wait_begins(self) -> None:
        """Threads are not told apart by how long they wait."""


class GroupPlace(NamedTuple):
    """A row group."""

    path: str
    number: int  # in its file


class RowGroups:
    """The row groups of some files: chunks of columns, which are there while they are pinned.

    Parameters
    ----------
    sources : where each group is; none is empty.
    ends : int64 array (n,)
        Number of the row behind each group.
    table, cells : descriptors of the two files, which all processes share. They stay open.
    """

    def __init__(
        self, sources: list[GroupPlace], ends: npt.NDArray[np.int64], table: int, cells: int
    ) -> None:
        self.ends = ends
        self.n_rows = int(ends[-1])
        self._sources = sources
        self._table_fd, self._cells_fd = table, cells
        # Closing any descriptor of the table would release this process' locks: this mapping, which
        # has one, lives as long as they do.
        words = np.frombuffer(mmap.mmap(table, table_bytes(len(ends))), np.int64)
        self._header = words[:_HEADER]
        self._groups = words[_HEADER : _HEADER + _RECORD * len(ends)].reshape(-1, _RECORD)
        self._owners = words[_HEADER + _RECORD * len(ends) :]
        if not self._header[_N_CELLS]:
            self._header[_N_CELLS] = min(DEFAULT_CELLS, len(ends))
        self._metadata: dict[str, Any] = {}  # of the files that were opened last
        self._names: list[str] = []  # of the columns that are decoded
        self._conversions: list[Callable[[Any], Any]] = []
        # Columns have these groups: two references would be a cycle, and keep the memory.
        self._columns: list[tuple[int, weakref.ref[ArrowColumn]]] = []
        self._begin()
        self._is_used = True  # by this process, not only by the one that has forked it
        renew_in_child(self)

    def _begin(self) -> None:
        """What belongs to this process alone."""
        self._lock = threading.RLock()
        self._pins: dict[int, set[object]] = {}  # who holds a group
        self._loading: set[int] = set()  # by a thread of this process
        self._mapped: dict[int, tuple[int, list[Any]]] = {}  # number of the load; decoded columns

    def _after_fork(self) -> None:
        """In a forked child, before it has a second thread: its parent's record locks and threads
        are not there."""
        self._begin()
        self._is_used = False

    @property
    def n_decoded(self) -> int:
        """How many groups have been decoded so far, by all processes."""
        return int(self._header[_N_DECODED])

    def keep_for(self, window: int | None) -> None:
        """Keep the groups in memory that an order by windows of ``window`` groups needs. None: the
        order goes through all rows at random, of which a warning tells."""
        if window is None and len(self.ends) > DEFAULT_CELLS:
            warn_caller(
                f"rows of {len(self.ends)} row groups of Parquet files are read in an order without"
                f" blocks, and {DEFAULT_CELLS} groups are kept in memory: most batches decode whole"
                " groups again. Pass order_sampler=BlockShuffleOrderSampler(seed, "
                "dataset.row_group_ends, window), or shuffle=False"
            )
        self._header[_N_CELLS] = min(
            DEFAULT_CELLS if window is None else window + 2, len(self.ends)
        )

    # ---- columns

    def add(self, name: str, convert: Callable[[Any], Any], column: ArrowColumn) -> None:
        """Have a column of these pages consist of ``convert(array)`` of the column ``name`` of each
        group."""
        self._columns.append((self._place(name, convert), weakref.ref(column)))

    def values(self, name: str, convert: Callable[[Any], Any], arrow_type: Any) -> PagedValues:
        """A column as pyarrow's ChunkedArray gives single values of it."""
        return PagedValues(self, self._place(name, convert), arrow_type)

    def _place(self, name: str, convert: Callable[[Any], Any]) -> int:
        self._names.append(name)
        self._conversions.append(convert)
        return len(self._conversions) - 1

    def decode(self, group: int, names: list[str]) -> Any:
        """A table of some columns of a group, without threads."""
        return self._file(group).read_row_group(
            self._sources[group].number, columns=names, use_threads=False
        )

    def with_nulls(self, name: str) -> Iterator[int]:
        """Groups in which a column may have nulls, by the statistics in the files."""
        path: str | None = None
        metadata: Any = None
        for group, source in enumerate(self._sources):
            if source.path != path:
                path, metadata = source.path, self._file(group).metadata
            row_group = metadata.row_group(source.number)
            for place in range(row_group.num_columns):
                column = row_group.column(place)
                if f"{column.path_in_schema}.".startswith(f"{name}."):
                    counted = column.statistics
                    if counted is None or not counted.has_null_count or counted.null_count:
                        yield group
                        break

    def _file(self, group: int) -> Any:
        import pyarrow.parquet as parquet

        path = self._sources[group].path
        # To read it takes long in a file of many groups and columns.
        known = self._metadata.pop(path, None)
        file = parquet.ParquetFile(path, memory_map=True, pre_buffer=False, metadata=known)
        self._metadata[path] = file.metadata
        for old in list(self._metadata)[:-_KEPT_FILES]:
            self._metadata.pop(old, None)
        return file

    def value(self, place: int, row: int) -> Any:
        """A value of a column of a group that is pinned."""
        group = int(np.searchsorted(self.ends, row, side="right"))
        first = int(self.ends[group - 1]) if group else 0
        return self._mapped[group][1][place][row - first]

    # ---- pins

    def pieces(self, rows: npt.NDArray[np.int64], whole: bool = False) -> Iterator[tuple[int, int]]:
        """Begin and end of parts of ``rows``, all of which exist. The rows of a part are there
        until the next one is asked for, or the generator is closed. ``whole``: nothing if there are
        not enough cells for a part that is all of them."""
        self._is_used = True
        numbers = np.searchsorted(self.ends, rows, side="right")
        if whole and len(np.unique(numbers)) > self._header[_N_CELLS]:
            return
        start = 0
        while start < len(rows):
            holder = object()
            held: list[int] = []
            try:
                stop = self._pin(numbers, start, holder, held)
                yield start, stop
            finally:
                for group in held:
                    self._unpin(group, holder)
            start = stop

    def _pin(
        self, numbers: npt.NDArray[np.int64], start: int, holder: object, held: list[int]
    ) -> int:
        """Pin the groups of as many rows as possible, from `start` on, at least of the first;
        return where that ends. Waits only while it holds none."""
        rest = numbers[start:]
        last = dict(zip(rest.tolist(), range(start, len(numbers)), strict=True))
        places = start + np.sort(np.unique(rest, return_index=True)[1])
        for place in places.tolist():
            group = int(numbers[place])
            held.append(group)
            while not (self._try_pin(group, holder) or self._load(group, holder)):
                if place > start:
                    held.pop()
                    return int(place)
                if (fetching := _worker()) is not None:
                    fetching.wait_begins()
                time.sleep(_POLL_SECONDS)
            self._note_use(group, last[group])
        return len(numbers)

    def _note_use(self, group: int, place: int) -> None:
        """Note that a group is needed until this place of the rows that are fetched."""
        record, fetching = self._groups[group], _worker()
        self._header[_CLOCK] += 1
        memory, stamp = (0, self._header[_CLOCK]) if fetching is None else fetching.claim()
        if record[_MEMORY] == memory:  # a worker that is late does not make it older
            record[_STAMP] = max(record[_STAMP], stamp + place)
        else:
            record[_MEMORY], record[_STAMP] = memory, stamp + place

    def _try_pin(self, group: int, holder: object) -> bool:
        """Pin a group if it is there."""
        with self._lock:
            if group in self._loading:
                return False
            pins = self._pins.setdefault(group, set())
            if not pins:
                pins.add(holder)  # first, so that an interrupt leaves no lock behind
                if not (self._take(group, fcntl.LOCK_SH) and self._groups[group, _CELL]):
                    self._unpin(group, holder)
                    return False
                self._map(group)
            pins.add(holder)
        return True

    def _unpin(self, group: int, holder: object) -> None:
        with self._lock:
            pins = self._pins.get(group, set())
            pins.discard(holder)
            if not pins:
                self._pins.pop(group, None)
                if group not in self._loading:
                    self._give_back(group)

    def _map(self, group: int) -> None:
        """Let columns have the chunks of a group that is there."""
        _, nbytes, load, _, _ = (int(word) for word in self._groups[group])
        if group in self._mapped and self._mapped[group][0] == load:
            return
        import pyarrow as pa

        offset = (int(self._groups[group, _CELL]) - 1) * CELL_BYTES
        memory = mmap.mmap(self._cells_fd, nbytes, prot=mmap.PROT_READ, offset=offset)
        reader = pa.BufferReader(pa.py_buffer(memory))
        arrays = [pa.ipc.open_stream(reader).read_all().column(0) for _ in self._conversions]
        for place, reference in self._columns:
            if (column := reference()) is not None:
                column.set_chunk(group, arrays[place].chunk(0).__arrow_c_array__()[1])
        self._mapped.pop(group, None)
        self._mapped[group] = load, arrays
        # The memory of groups that are gone comes back with their last mapping.
        for other in [other for other in self._mapped if other not in self._pins]:
            if len(self._mapped) <= self._header[_N_CELLS]:
                break
            del self._mapped[other]

    # ---- decoding

    def _load(self, group: int, holder: object) -> bool:
        """Decode and pin a group. False if another one does that, or no cell is to be had now."""
        before: set[int] = set()
        fetching = _worker()
        if fetching is not None and fetching.n_examples == self.n_rows:
            rows = fetching.rows_before()
            rows = rows[(rows >= 0) & (rows < self.n_rows)]  # read while they may have changed
            before = set(np.searchsorted(self.ends, rows, side="right").tolist())
        with self._lock:
            cell = None if group in self._loading else self._cell_for(group, before)
            if cell is None:
                return False
            self._loading.add(group)
        try:
            self._write(group, cell)
            with self._lock, self._table():
                self._header[_N_DECODED] += 1
                self._groups[group, _LOAD] = self._header[_N_DECODED]
                self._groups[group, _CELL] = cell + 1
        except BaseException:
            with self._lock, self._table():
                if not self._groups[group, _CELL]:
                    self._owners[cell] = 0
            raise
        finally:
            self._loading.discard(group)
            if not self._groups[group, _CELL]:
                self._give_back(group)
        return self._try_pin(group, holder)  # which makes the lock a shared one

    def _cell_for(self, group: int, before: set[int]) -> int | None:
        """A cell for a group, which is then locked by this process alone; None if there is none
        yet. `before`: the groups of rows that come before, and are not fetched yet."""
        with self._table():
            owners = self._owners[: self._header[_N_CELLS]]
            have = set((self._owners[self._owners > 0] - 1).tolist())
            if self._groups[group, _CELL] or not self._take(group, fcntl.LOCK_EX):
                return None
            if group in have:  # whoever was to decode it has ended
                return int(np.flatnonzero(self._owners == group + 1)[0])
            if before - have - {group}:
                self._give_back(group)
                return None
            cells = np.flatnonzero(owners == 0)
            cell = int(cells[0]) if len(cells) else self._freed_cell(owners, before)
            if cell is None:
                self._give_back(group)
            else:
                self._owners[cell] = group + 1
            return cell

    def _freed_cell(self, owners: npt.NDArray[np.int64], before: set[int]) -> int | None:
        """The cell of the group that was needed longest ago; None if it is needed now."""
        fetching = _worker()
        memory = 0 if fetching is None else fetching.claim()[0]

        def age(cell: int) -> tuple[bool, int]:
            record = self._groups[owners[cell] - 1]
            return bool(record[_MEMORY] == memory), int(record[_STAMP])

        cell = min(range(len(owners)), key=age)
        group = int(owners[cell]) - 1
        # Not a later one instead: rows to come may need that.
        if group in before or not self._is_free(group):
            return None
        self._groups[group, _CELL] = self._owners[cell] = 0
        self._give_back(group)
        return cell

    def _is_free(self, group: int) -> bool:
        """Whether no one reads or decodes a group; it is locked by this process alone then."""
        in_use = group in self._pins or group in self._loading
        return not in_use and self._take(group, fcntl.LOCK_EX)

    def _write(self, group: int, cell: int) -> None:
        """Decode a group, column by column, into its cell."""
        import pyarrow as pa

        file, source = self._file(group), self._sources[group]
        memory = _Writer(
            self._cells_fd, cell * CELL_BYTES, f"{source.path}, row group {source.number}"
        )
        for name, convert in zip(self._names, self._conversions, strict=True):
            table = file.read_row_group(source.number, columns=[name], use_threads=False)
            array = table.column(name).combine_chunks()
            if isinstance(array, pa.ChunkedArray):
                if array.num_chunks > 1:
                    raise ValueError(
                        f"{memory.name}: column {name!r} of one row group takes more than 2 GiB: "
                        "write smaller row groups"
                    )
                array = array.chunk(0)
            batch = pa.record_batch([convert(array)], names=[""])
            with pa.ipc.new_stream(pa.PythonFile(memory, "w"), batch.schema) as stream:
                stream.write_batch(batch)
        # The pages of the group before were written over, which is cheaper than new ones.
        kept = -(-memory.size // mmap.PAGESIZE) * mmap.PAGESIZE
        status.free_pages(self._cells_fd, cell * CELL_BYTES + kept, CELL_BYTES - kept)
        self._groups[group, _BYTES] = memory.size

    def drop(self) -> None:
        """Give back the memory of all groups that no one needs."""
        if not self._is_used:
            return
        with self._lock, self._table():
            for cell in np.flatnonzero(self._owners).tolist():
                group = int(self._owners[cell]) - 1
                if self._is_free(group):
                    self._groups[group, _CELL] = self._owners[cell] = 0
                    status.free_pages(self._cells_fd, cell * CELL_BYTES, CELL_BYTES)
                    self._give_back(group)

    # ---- locks

    @contextlib.contextmanager
    def _table(self) -> Iterator[None]:
        """The lock around changes of cells; under `_lock`."""
        fcntl.lockf(self._table_fd, fcntl.LOCK_EX, 1, 0)
        try:
            yield
        finally:
            fcntl.lockf(self._table_fd, fcntl.LOCK_UN, 1, 0)

    def _take(self, group: int, kind: int) -> bool:
        try:
            fcntl.lockf(self._table_fd, kind | fcntl.LOCK_NB, 1, 1 + group)
        except OSError:  # another process has it
            return False
        return True

    def _give_back(self, group: int) -> None:
        fcntl.lockf(self._table_fd, fcntl.LOCK_UN, 1, 1 + group)


class _Writer(io.RawIOBase):
    """Writes into a file at a place of its own."""

    def __init__(self, fd: int, offset: int, name: str) -> None:
        self._fd, self._offset, self.name = fd, offset, name
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) > 1 << 20 and len(view) > status.available_memory():
            raise MemoryError(
                f"{self.name}: decoding needs {len(view)} bytes more than {self.size}, and "
                f"{status.available_memory()} are available: use a smaller window of the "
                "BlockShuffleOrderSampler, or write smaller row groups"
            )
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], self._offset + self.size + done)
        self.size += done
        return done


class PagedValues:
    """Values of a column, while their groups are pinned."""

    def __init__(self, pages: RowGroups, place: int, arrow_type: Any) -> None:
        self.pages, self._place, self.type = pages, place, arrow_type

    def __len__(self) -> int:
        return self.pages.n_rows

    def __getitem__(self, row: int) -> Any:
        return self.pages.value(self._place, row)


def table_bytes(n_groups: int) -> int:
    """Bytes of the table of a number of groups."""
    return 8 * (_HEADER + (_RECORD + 1) * n_groups)
