"""Row groups of Parquet files, decoded once into memory that all processes share.

The memory is a file of cells, each of which holds one decoded group; a table in another file says
which. The table has a lock (`FileLocks`) for itself, and a lock for each group: a process that
decodes a group, or frees its cell, holds the group's lock alone; readers of the cell share it. The
kernel releases the locks of a process that ends: a group that it has not finished is decoded by
another process.

A worker may need a cell while all are in use. It takes the cell of the group that was needed
longest ago, in the order of the plan, and waits while a row before its own needs this group, or a
group of such a row has no cell yet. So the worker that has the oldest rows never waits, and as long
as an order goes through windows of fewer groups than there are cells, no group is decoded twice.

The file grows as cells are written: each has a part of it, and gets a larger one at the end when a
group does not fit. A process maps the groups that it reads, and nothing else.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastiter._clib import status
from fastiter._clib.file_locks import FileLocks, Hold
from fastiter._fetch import parquet_files
from fastiter._fetch.arrow_column import ArrowColumn
from fastiter._util.concurrency import renew_in_child
from fastiter._util.warn import warn_caller

DEFAULT_CELLS = 10
_POLL_SECONDS = 0.0005
_DROP_SECONDS = 0.5
_STUCK_SECONDS = 10.0  # until a wait in which nothing happens is told of
_KEPT_FILES = 32  # whose metadata is kept
_ROOM_BYTES = 1 << 20  # the room of a cell is a multiple of this

# The table: a header; a record for each group; for each cell 1 + the group that it is for; for each
# cell where its part of the file begins, and its size.
_N_DECODED, _N_CELLS, _CLOCK, _FILE_END, _HEADER = range(5)
_CELL, _BYTES, _LOAD, _MEMORY, _STAMP, _RECORD = range(6)
_START, _ROOM, _PLACE = range(3)

# The locks: that of the table, then those of the groups.
_TABLE = 0


class Worker(Protocol):
    """The worker of the calling thread: its present rows, and earlier rows."""

    n_examples: int

    def claim(self) -> tuple[int, int]:
        """A number of the iterator, and a number that gives the order of its claims."""

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
    path: str
    number: int  # in its file


class _User(NamedTuple):
    """An iterator or loader over the groups."""

    user: weakref.ref[Any]
    n_cells: int  # that it needs


class RowGroups:
    """The row groups of some files: chunks of columns, which are there while they are pinned."""

    def __init__(
        self,
        sources: list[GroupPlace],  # none of which is empty
        ends: npt.NDArray[np.int64],  # (n,): number of the row behind each group
        files: Mapping[str, parquet_files.FileFacts],  # when the dataset was made, by its path
        table: int,  # descriptors of the two files, which all processes share; they stay open
        cells: int,
    ) -> None:
        self.ends = ends
        self.n_rows = int(ends[-1])
        self._sources = sources
        self._files = dict(files)
        self._without_nulls: dict[str, list[set[str]]] = {}
        self._table_fd, self._cells_fd = table, cells
        n = len(ends)
        words = np.frombuffer(mmap.mmap(table, table_bytes(n)), np.int64)
        self._header, words = words[:_HEADER], words[_HEADER:]
        self._groups, words = words[: _RECORD * n].reshape(n, _RECORD), words[_RECORD * n :]
        self._owners, self._places = words[:n], words[n:].reshape(n, _PLACE)
        self._locks = FileLocks(self._table_fd, 1 + n, "reading Parquet files")
        self._metadata: dict[str, Any] = {}  # of the files that were opened last
        self._names: list[str] = []  # of the columns that are decoded
        self._conversions: list[Callable[[Any], Any]] = []
        # Columns have these groups: two references would be a cycle, and keep the memory.
        self._columns: list[tuple[int, weakref.ref[ArrowColumn]]] = []
        self._begin()
        renew_in_child(self)

    def _begin(self) -> None:
        """Make the parts that belong to this process alone."""
        self._lock = threading.RLock()  # around `_mapped` and the columns' chunks
        self._mapped: dict[int, tuple[int, list[Any]]] = {}  # number of the load; decoded columns
        self._users: list[_User] = []
        self._cells_of_users = 0  # what these have asked for

    def _after_fork(self) -> None:
        """In a forked child: its parent's threads are not there, and its locks not the child's."""
        self._begin()
        self._locks.forget()

    @property
    def n_decoded(self) -> int:
        """Number of groups decoded so far, by all processes."""
        return int(self._header[_N_DECODED])

    @property
    def n_cells(self) -> int:
        """Number of decoded groups that are kept."""
        return int(self._header[_N_CELLS]) or min(DEFAULT_CELLS, len(self.ends))

    # ---- users

    def keep_for(self, window: int | None, user: object) -> None:
        """Keep the groups in memory that an order by windows of ``window`` groups needs, until
        `leave`, or while ``user`` lives. None: the order goes through all rows at random, which
        causes a warning."""
        if window is None and len(self.ends) > DEFAULT_CELLS:
            warn_caller(
                f"rows of {len(self.ends)} row groups of Parquet files are read in an order without"
                f" blocks, and {DEFAULT_CELLS} groups are kept in memory: most batches decode whole"
                " groups again. Pass order_sampler=BlockShuffleOrderSampler(seed, "
                "dataset.row_group_ends, window), or shuffle=False"
            )
        n_cells = DEFAULT_CELLS if window is None else window + 2
        self._set_users([*self._users, _User(weakref.ref(user), min(n_cells, len(self.ends)))])

    def leave(self, user: object) -> None:
        """The user needs no groups any more. The last one of this process gives all memory back
        that no one uses."""
        # A garbage collection has cleared the reference before it finalizes the user.
        users = [other for other in self._users if other.user() not in (None, user)]
        if len(users) == len(self._users):
            return
        self._set_users(users)
        if not self._users:
            self.drop()

    def _set_users(self, users: list[_User]) -> None:
        self._users = [user for user in users if user.user() is not None]
        most = max((user.n_cells for user in self._users), default=0)
        before = self._header[_N_CELLS]
        # What another process has asked for stays, unless more is needed here.
        if most > before or before == self._cells_of_users:
            self._header[_N_CELLS] = self._cells_of_users = most

    # ---- columns

    def add(self, name: str, convert: Callable[[Any], Any], column: ArrowColumn) -> None:
        """Have a column consist of ``convert(array)`` of the column ``name`` of each group."""
        self._columns.append((self._place(name, convert), weakref.ref(column)))

    def values(self, name: str, convert: Callable[[Any], Any], arrow_type: Any) -> PagedValues:
        """A column as pyarrow's ChunkedArray gives single values of it."""
        return PagedValues(self, self._place(name, convert), arrow_type)

    def _place(self, name: str, convert: Callable[[Any], Any]) -> int:
        self._names.append(name)
        self._conversions.append(convert)
        return len(self._conversions) - 1

    def decode(self, group: int, name: str) -> Any:
        """A column of a group, decoded without threads: pyarrow's ChunkedArray."""
        source = self._sources[group]
        try:
            table = self._file(group).read_row_group(source.number, [name], use_threads=False)
        except (OSError, NotImplementedError) as error:
            raise ValueError(
                f"column {name!r} of row group {source.number} of {source.path} cannot be read: "
                f"{error}"
            ) from error
        return table.column(name)

    def with_nulls(self, name: str) -> Iterator[int]:
        """Groups in which a column may have nulls, by the statistics in the files."""
        for group, (path, number) in enumerate(self._sources):
            if path not in self._without_nulls:
                self._without_nulls[path] = parquet_files.without_nulls(path)
            if name not in self._without_nulls[path][number]:
                yield group

    def _file(self, group: int) -> Any:
        path, known = self._sources[group].path, self._metadata
        # To read it takes long in a file of many groups and columns.
        file, facts = parquet_files.open_again(path, self._files[path], known.pop(path, None))
        known[path], self._files[path] = file.metadata, facts
        for old in list(known)[:-_KEPT_FILES]:
            known.pop(old, None)
        return file

    def value(self, place: int, row: int) -> Any:
        """A value of a column of a group that is pinned."""
        group = int(np.searchsorted(self.ends, row, side="right"))
        first = int(self.ends[group - 1]) if group else 0
        return self._mapped[group][1][place][row - first]

    # ---- pins

    def pieces(self, rows: npt.NDArray[np.int64], whole: bool = False) -> Iterator[tuple[int, int]]:
        """Begin and end of parts of ``rows``, all of which exist. The rows of a part are there
        until the next part is requested, or the generator is closed. ``whole``: nothing if there
        are not enough cells for a part that is all of them."""
        numbers = np.searchsorted(self.ends, rows, side="right")
        if whole and len(np.unique(numbers)) > self.n_cells:
            return
        start = 0
        while start < len(rows):
            with self._locks.hold() as hold:
                try:
                    stop = self._pin(numbers, start, hold)
                except OSError as error:
                    if os.strerror(errno.ENOMEM) not in str(error):  # pyarrow's has no errno
                        raise
                    raise MemoryError(
                        f"no address space is left to map row groups of Parquet files ({error}): "
                        "raise RLIMIT_AS (ulimit -v), or write smaller row groups"
                    ) from error
                yield start, stop
            start = stop

    def _pin(self, numbers: npt.NDArray[np.int64], start: int, hold: Hold) -> int:
        """Pin the groups of as many rows as possible, from `start` on, at least of the first;
        return where that ends. Waits only while it holds none."""
        rest = numbers[start:]
        last = dict(zip(rest.tolist(), range(start, len(numbers)), strict=True))
        places = start + np.sort(np.unique(rest, return_index=True)[1])
        for place in places.tolist():
            group = int(numbers[place])
            wait: Iterator[None] | None = None  # none to close where nothing is waited for
            while not (self._try_pin(group, hold) or self._load(group, hold)):
                if place > start:
                    return int(place)
                next(wait := wait or self._wait_for(group))
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

    def _try_pin(self, group: int, hold: Hold) -> bool:
        if not hold.take(1 + group):
            return False
        if not self._groups[group, _CELL]:
            hold.release(1 + group)
            return False
        self._map(group)
        return True

    def _map(self, group: int) -> None:
        """Let columns have the chunks of a group that is pinned."""
        _, nbytes, load, _, _ = (int(word) for word in self._groups[group])
        with self._lock:
            if group in self._mapped and self._mapped[group][0] == load:
                return
            import pyarrow as pa

            offset = int(self._places[self._groups[group, _CELL] - 1, _START])
            memory = mmap.mmap(self._cells_fd, nbytes, prot=mmap.PROT_READ, offset=offset)
            reader = pa.BufferReader(pa.py_buffer(memory))
            arrays = [pa.ipc.open_stream(reader).read_all().column(0) for _ in self._conversions]
            for place, reference in self._columns:
                if (column := reference()) is not None:
                    column.set_chunk(group, arrays[place].chunk(0).__arrow_c_array__())
            self._mapped.pop(group, None)
            self._mapped[group] = load, arrays
            # The memory of groups that are gone comes back with their last mapping.
            for other in list(self._mapped):
                if len(self._mapped) <= self.n_cells:
                    break
                if not self._locks.is_held(1 + other):
                    self._mapped.pop(other, None)

    # ---- decoding

    def _load(self, group: int, hold: Hold) -> bool:
        """Decode and pin a group. False if another one does that, or no cell is to be had now."""
        before: set[int] = set()
        fetching = _worker()
        if fetching is not None and fetching.n_examples == self.n_rows:
            rows = fetching.rows_before()
            rows = rows[(rows >= 0) & (rows < self.n_rows)]  # read while they may have changed
            before = set(np.searchsorted(self.ends, rows, side="right").tolist())
        cell = self._cell_for(group, before, hold)
        if cell is None:
            return False
        # If decoding fails, the cell stays this group's, without being there.
        self._write(group, cell)
        with self._locks.alone(_TABLE, "the table of row groups"):
            self._header[_N_DECODED] += 1
            self._groups[group, _LOAD] = self._header[_N_DECODED]
            self._groups[group, _CELL] = cell + 1
        return self._try_pin(group, hold)  # which makes the lock a shared one

    def _cell_for(self, group: int, before: set[int], hold: Hold) -> int | None:
        """A cell for a group, which is then locked by `hold` alone; None if there is none
        yet. `before`: the groups of rows that come before, and are not fetched yet."""
        with self._locks.alone(_TABLE, "the table of row groups"):
            owners = self._owners[: self.n_cells]
            have = set((self._owners[self._owners > 0] - 1).tolist())
            if self._groups[group, _CELL] or not hold.take(1 + group, True):
                return None
            if group in have:  # whoever was to decode it has failed, or ended
                return int(np.flatnonzero(self._owners == group + 1)[0])
            cell = None
            if not before - have - {group}:
                cells = np.flatnonzero(owners == 0)
                cell = int(cells[0]) if len(cells) else self._freed_cell(owners, before)
            if cell is None:
                hold.release(1 + group)
            else:
                self._owners[cell] = group + 1
            return cell

    def _freed_cell(self, owners: npt.NDArray[np.int64], before: set[int]) -> int | None:
        """The cell of the group that was needed longest ago; None if that is needed now. Where no
        order is known, of those that are not."""
        fetching = _worker()
        memory = 0 if fetching is None else fetching.claim()[0]

        def age(cell: int) -> tuple[bool, int]:
            record = self._groups[owners[cell] - 1]
            return bool(record[_MEMORY] == memory), int(record[_STAMP])

        cells = sorted(range(len(owners)), key=age)
        # A worker takes no later one instead: rows to come may need that.
        for cell in cells if fetching is None else cells[:1]:
            if int(owners[cell]) - 1 not in before and self._free(cell):
                return cell
        return None

    def _free(self, cell: int) -> bool:
        """Take a cell from its group, unless that is read or decoded; under the table's lock."""
        group = int(self._owners[cell]) - 1
        with self._locks.hold() as hold:
            if not hold.take(1 + group, True):
                return False
            self._groups[group, _CELL] = self._owners[cell] = 0
            return True

    def _write(self, group: int, cell: int) -> None:
        """Decode a group, column by column, into its cell."""
        import pyarrow as pa

        file, source = self._file(group), self._sources[group]
        memory = _Writer(self, cell, f"{source.path}, row group {source.number}")
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
        start, room = self._places[cell].tolist()
        kept = -(-memory.size // mmap.PAGESIZE) * mmap.PAGESIZE
        status.free_pages(self._cells_fd, start + kept, room - kept)
        self._groups[group, _BYTES] = memory.size

    def make_room(self, cell: int, nbytes: int, used: int) -> int:
        """Give the cell of a group that is decoded another part of the file, unless `nbytes` fit
        into its own; the bytes that are `used` move. Returns where the cell begins."""
        start, room = map(int, self._places[cell])
        if nbytes <= room:
            return start
        with self._locks.alone(_TABLE, "the table of row groups"):
            # Groups are alike: what held the others holds this one.
            most = max(nbytes, 2 * room, int(self._places[:, _ROOM].max()))
            new_room = -(-most // _ROOM_BYTES) * _ROOM_BYTES
            new_start = int(self._header[_FILE_END])
            self._header[_FILE_END] += new_room
        if used:
            with mmap.mmap(self._cells_fd, used, prot=mmap.PROT_READ, offset=start) as memory:
                self.write_at(new_start, memory)
        self._places[cell] = new_start, new_room
        status.free_pages(self._cells_fd, start, room)
        return new_start

    def write_at(self, offset: int, data: Any) -> None:
        """Write bytes into the file of cells."""
        view, done = memoryview(data).cast("B"), 0
        try:
            while done < len(view):
                done += os.pwrite(self._cells_fd, view[done:], offset + done)
        except OSError as error:
            if error.errno == errno.EFBIG:
                error.strerror = (
                    f"decoded row groups need a file of {offset + len(view)} bytes in memory, and "
                    "RLIMIT_FSIZE allows less: raise it (ulimit -f), or write smaller row groups"
                )
            raise

    def drop(self) -> None:
        """Give back the memory of all groups that no one needs. Does nothing in a process that has
        not read any."""
        if not self._locks.is_own:
            return
        deadline = time.monotonic() + _DROP_SECONDS
        with self._locks.hold() as table:
            # A garbage collection may call this while the same thread changes the table.
            while not table.take(_TABLE, True):
                if time.monotonic() > deadline:
                    return
                time.sleep(_POLL_SECONDS)
            for cell in np.flatnonzero(self._owners).tolist():
                if self._free(cell):
                    start, room = self._places[cell].tolist()
                    status.free_pages(self._cells_fd, start, room)

    # ---- waits

    def _wait_for(self, group: int) -> Iterator[None]:
        """Wait for a group, or for a cell, a little at each step. As long as other processes go on,
        the rows that wait are not late."""
        seen: object = None
        since = said = 0.0
        while True:
            header = self._header
            now = time.monotonic()
            progress = int(header[_N_DECODED]), int(header[_CLOCK]), self._owners.tobytes()
            if progress != seen:
                seen = progress
                since = said = now
                if (fetching := _worker()) is not None:
                    fetching.wait_begins()
            elif now - said > _STUCK_SECONDS:
                said = now
                self._report_wait(group, now - since)
            time.sleep(_POLL_SECONDS)
            yield

    def _report_wait(self, group: int, seconds: float) -> None:
        """Warn that a wait for a group, or for a cell, takes long."""
        numbers = {group, *(self._owners[self._owners > 0] - 1).tolist()}
        held = [number for number in sorted(numbers) if self._locks.holders(1 + number)]
        number = group if group in held or not held else held[0]
        source = self._sources[number]
        what = f"row group {source.number} of {source.path}"
        self._locks.warn_of_wait(1 + number, what, seconds)


class _Writer(io.RawIOBase):
    def __init__(self, groups: RowGroups, cell: int, name: str) -> None:
        self._groups, self._cell, self.name = groups, cell, name
        self.size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(view) > 1 << 20 and len(view) > status.memory_available():
            raise MemoryError(
                f"{self.name}: decoding needs {len(view)} bytes more than {self.size}, and "
                f"{status.memory_available()} are available: use a smaller window of the "
                "BlockShuffleOrderSampler, or write smaller row groups"
            )
        start = self._groups.make_room(self._cell, self.size + len(view), self.size)
        self._groups.write_at(start + self.size, view)
        self.size += len(view)
        return len(view)


class PagedValues:
    """Values of a column, while their groups are pinned."""

    def __init__(self, row_groups: RowGroups, place: int, arrow_type: Any) -> None:
        self.row_groups, self._place, self.type = row_groups, place, arrow_type

    def __len__(self) -> int:
        return self.row_groups.n_rows

    def __getitem__(self, row: int) -> Any:
        return self.row_groups.value(self._place, row)


def table_bytes(n_groups: int) -> int:
    return 8 * (_HEADER + (_RECORD + 1 + _PLACE) * n_groups)
