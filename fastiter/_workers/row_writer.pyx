"""The inner loop of a worker: fetches claimed rows, writes them, and finishes batches."""

import os
import pickle

import numpy

cimport numpy as cnp
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_FromLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_GetItem
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._fetch import row_groups
from fastiter._fetch.dataset_access import plain_columns, rows_getter
from fastiter._fetch.arrow_column cimport PaddedLists
from fastiter._fetch.gather cimport ColumnReader
from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport bytes_of
from fastiter._ring.arena cimport HEAD_BYTES, SUM_BYTES, WorkerRing
from fastiter._order.plan cimport Plan
from fastiter._ring.parent cimport BatchScheduler, Lease
from fastiter._ring.schema cimport (
    ARRAY, MOST_NDIM, OBJECT, RAGGED, TEXT, Field, Schema, SlotWriter, entry_of)
from fastiter._ring import row_reader
from fastiter._util.failures import RowCountError, dump
from fastiter._ring.serialization import Packed, unpack
from fastiter.errors import OverwrittenError


cnp.import_array()

cdef enum:
    # Timing a row costs about 60 ns. A long claim has one row timed; of short claims, one in
    # SHORT_RANGES has.
    LONG_RANGE_NS = 50000
    SHORT_RANGES = 16
    TRACED_NS = 10000  # rows are recorded together until they have taken this long
    NO_ROW = 0xFFFFFFFF

cdef uint64_t NO_BATCH = <uint64_t>-1


cdef class RowWriter(SlotWriter):
    """Fetches the examples of claimed rows and writes them into the slot.

    Used by one thread of one worker process. An exception of the dataset fails its row, and the
    worker goes on. In `two_steps` a row is owned when it has been fetched, and not before: another
    worker may be faster. Until then, the slot may already belong to a later batch; results of
    reading it are thrown away.
    """

    cdef object dataset
    cdef object answer  # makes the only row of a batch that has a request
    cdef object getitems
    cdef object plain
    cdef object seeds  # uint64 (n + 1,), of the batch `seeds_of`
    cdef uint64_t seeds_of
    cdef object memory  # a number of the arena
    cdef int64_t schema_number
    cdef int64_t row  # that is fetched by itself, or -1
    cdef public object rows  # those that are fetched by one call, or None
    cdef public object counter  # tells which of them is meant, or None
    cdef uint64_t row_bytes  # of the schema's columns
    cdef uint32_t timed_row  # of the claim, or NO_ROW
    cdef uint32_t weight  # how many rows it stands for
    cdef uint32_t short_ranges  # since the last one in which a row was timed
    cdef uint32_t dice
    cdef bint times_all  # rows of the claim
    cdef bint clocks_all  # of rows in two steps it is known exactly when they were begun
    cdef bint announces  # rows of the claim, in two steps, by their index only
    cdef bint two_steps  # rows are owned when they have been fetched
    cdef bint is_hedge  # another worker has begun the row
    cdef int64_t begun  # the present claim
    cdef int64_t index  # of the row that is fetched in two steps
    cdef list indices  # of those fetched by one call
    cdef fi_origin origin  # of either
    cdef uint32_t own_row  # the last one that was owned in two steps
    cdef fi_cpu_meter cpu
    cdef bint traces  # the present claim is recorded
    cdef bint pads_alone  # see BatchConverter
    cdef bint is_paged  # the rows of `plain` have to be pinned
    cdef fi_event traced  # fetching of rows that are no event yet
    cdef int64_t traced_write_ns
    cdef uint32_t traced_rows

    def __cinit__(self, WorkerRing end, dataset, answer=None, bint two_steps=False,
                  bint hedges=False):
        self.dataset = dataset
        self.answer = answer
        self.plain = plain_columns(dataset)
        self.getitems = rows_getter(dataset) if self.plain is None else None
        self.is_paged = self.plain is not None and self.plain.reader.pages is not None
        self.memory = os.fstat(end.arena.fd).st_ino
        row_groups.worker = self
        self.schema_number = -1
        self.seeds_of = NO_BATCH
        self.row = -1
        self.timed_row = NO_ROW
        self.two_steps = two_steps and self.plain is None
        end.worker.hedges = hedges and self.two_steps
        fi_cpu_meter_start(&self.cpu)

    def key(self):
        """Seed, epoch and dataset index of the example that is fetched, or None if there is none.

        `fastiter._order.example_context` derives its random numbers from these.
        """
        cdef WorkerRing end = self.end
        cdef fi_origin origin = self.origin
        cdef int64_t row = self.row, index = self.index
        if self.counter is not None and self.rows is not None:
            row = self.rows[self.counter.row]
            index = self.indices[self.counter.row]
        if not 0 <= row < end.claim.n:
            return None
        if not self.two_steps:
            fi_slot_origin(end.worker.ring, end.claim.slot, &origin)
            index = self.index_of(<uint32_t>row)
        return (
            (origin.seed[0], origin.seed[1]),
            fi_row_epoch(&origin, <uint32_t>row, end.claim.n),
            index,
        )

    def own_seed(self):
        """The seed of the row that is fetched by itself; of the converter between rows."""
        cdef WorkerRing end = self.end
        if self.seeds_of != end.claim.q:
            self.seeds = numpy.frombuffer(self.request(), numpy.uint64)
            self.seeds_of = end.claim.q
        return int(self.seeds[self.row if self.row >= 0 else end.claim.n])

    @property
    def n_examples(self):
        """Length of the dataset; -1 if it has none."""
        try:
            return len(self.dataset)
        except TypeError:  # of a stream, or of what it counts on
            return -1

    def claim(self):
        """Memory of the batches of this worker, and place of its present rows in the order
        of all rows: a number that grows."""
        cdef WorkerRing end = self.end
        return self.memory, <object>(end.claim.q << 20 | end.claim.first)

    def rows_before(self):
        """Indices of the rows before the present ones that are not fetched yet, int64 (n,): of
        batches that are made row by row."""
        cdef WorkerRing end = self.end
        cdef fi_geometry *geometry = &end.worker.ring.geometry
        if self.answer is not None and fi_slot_has_request(end.worker.ring, end.claim.slot):
            return numpy.empty(0, numpy.int64)
        found = numpy.empty(<size_t>geometry.slots * geometry.rows, numpy.int64)
        return found[:fi_rows_before(
            &end.worker, &end.claim, <int64_t *>bytes_of(<cnp.PyArrayObject *>found), len(found))]

    def wait_begins(self):
        """The rows that are fetched wait for those of others: the time limit begins anew."""
        fi_worker_stat_fetch_begins(self.end.stat, self.index_of(self.end.claim.first))

    cdef object request(self):
        """The request in the plan of the current batch, besides its indices, or None."""
        cdef WorkerRing end = self.end
        cdef uint64_t offset = 0, size = 0
        if fi_slot_request(end.worker.ring, end.claim.slot, &offset, &size) != FI_OK:
            raise OverwrittenError("shared memory was overwritten: the place of a request")
        if size == 0:
            return None
        part = PyBytes_FromStringAndSize(end.payload(offset + size) + offset, size)
        return unpack(memoryview(bytearray(part)),
                      fi_place_seed(end.claim.q, 0, FI_PACKED_REQUEST))

    def work(self, batch_converter, uint64_t claims):
        """Fills rows and finishes batches until the ring says stop, or `claims` ranges are done."""
        cdef WorkerRing end = self.end
        cdef uint64_t done = 0
        cdef int kind
        self.pads_alone = batch_converter is not None and batch_converter.pads_alone and (
            not self.is_paged)  # not all rows of a batch need be there at a time
        while True:
            with nogil:
                kind = fi_worker_next(&end.worker, &end.claim)
            if kind == FI_CLAIM_ROWS:
                self.fill()
                done += 1
                if done == claims:
                    end.leave()
            elif kind == FI_CLAIM_FINISH:
                self.finish(batch_converter)
            else:
                return

    cdef int fill(self) except -1:
        """Fetches and writes the claimed rows that no other worker owns."""
        cdef WorkerRing end = self.end
        cdef fi_worker_stat *stat = end.stat
        cdef int64_t since = fi_now_ns(), now
        cdef uint32_t together = 0
        fi_worker_stat_begins(stat, since)
        self.traces = fi_traces(end.worker.ring)
        self.is_hedge = end.claim.fetcher != end.worker.number
        self.own_row = NO_ROW
        self.begun = since
        if self.two_steps:  # before the row words tell that the slot still has this batch
            fi_slot_origin(end.worker.ring, end.claim.slot, &self.origin)
        # By the schema of the claim before: the slot's own is read with its first row.
        self.uncached = fi_worker_outruns_cache(&end.worker, self.row_bytes * end.claim.n)
        if self.answer is not None and self.is_made_as_a_whole():
            self.fill_by_request(stat)
        elif self.plain is not None and self.are_columns_fitting():
            self.fill_columns(stat)
            self.timed(stat, since, since, self.index_of(end.claim.first), end.claim.count, 1)
        elif self.getitems is not None:
            together = self.fill_together(stat)
        else:
            self.choose_timed_row()
            self.fill_singly(stat, end.claim.first, end.claim.count, False)
        if self.traces:
            self.put_traced()
        now = fi_now_ns()
        if together > 0:
            fi_call_cost_add(&end.worker.call, together, now - since)
        elif self.getitems is None:
            fi_worker_pace(&end.worker, end.claim.count, now - since)
        fi_worker_stat_busy(stat, now - since)
        fi_cpu_meter_look(&self.cpu, stat, now)
        return 0

    cdef void choose_timed_row(self) noexcept:
        cdef fi_claim *claim = &self.end.claim
        cdef int64_t row_ns = self.end.worker.row_ns
        cdef bint is_long = row_ns * claim.count >= LONG_RANGE_NS
        self.timed_row = NO_ROW
        self.weight = claim.count
        # A clock may take a tenth of a microsecond.
        self.times_all = self.traces or (
            self.two_steps and (row_ns >= LONG_RANGE_NS or row_ns == 0))
        self.clocks_all = self.two_steps and (self.times_all or is_long)
        # A single row may be hedged, or suspect. Where rows are hedged, they may be fetched twice.
        self.announces = (self.end.worker.hedges and not self.clocks_all and claim.count > 1
                          and claim.q >= self.end.worker.rewound)
        if self.times_all:
            self.weight = 1
            return
        if not is_long:
            self.short_ranges += 1
            if self.short_ranges < SHORT_RANGES:
                return
            self.short_ranges = 0
            self.weight *= SHORT_RANGES
        self.dice = self.dice * 1664525 + 1013904223
        self.timed_row = claim.first + (self.dice >> 8) % claim.count

    cdef int fill_singly(self, fi_worker_stat *stat, uint32_t row, uint32_t count,
                         bint owned) except -1:
        """Owns (unless `owned`), fetches and marks row after row: a death has one suspect. In two
        steps owns a row when it has been fetched, unless another worker has been faster."""
        cdef WorkerRing end = self.end
        cdef uint32_t stop = row + count, code
        cdef int64_t index, since = self.begun, fetched = since
        cdef bint is_timed
        cdef object example = None
        while row < stop:
            try:  # outside of the inner loop: to enter it takes as long as a small copy
                while row < stop:
                    if self.two_steps:
                        since = fi_now_ns() if self.clocks_all else max(self.begun, fi_coarse_ns())
                        if not self.promise(row, since):
                            row += 1
                            continue
                        index = self.index
                    elif owned or fi_row_own(&end.worker, &end.claim, row):
                        index = self.index_of(row)
                        fi_worker_stat_fetch_begins(stat, index)
                    else:
                        row += 1
                        continue
                    self.row = row
                    is_timed = row == self.timed_row or self.times_all
                    if is_timed and not self.clocks_all:
                        since = fi_now_ns()
                    example = PyObject_GetItem(self.dataset, PyLong_FromLongLong(index))
                    if is_timed:
                        fetched = fi_now_ns()
                    if not self.two_steps or self.wins(row, since, fetched):
                        code = self.store(row, example)
                        example = None
                        if is_timed:
                            self.timed(stat, since, fetched, index, 1, self.weight)
                        self.mark(stat, row, code)
                    else:
                        example = None
                        fi_worker_stat_fetch_ends(stat)
                    row += 1
            except BaseException as error:
                example = None
                if not self.two_steps or self.wins(row, since, fi_now_ns()):
                    self.mark(stat, row, self.store_failure(row, error))
                else:
                    fi_worker_stat_fetch_ends(stat)
                row += 1
        self.row = -1
        self.timed_row = NO_ROW
        return 0

    cdef bint promise(self, uint32_t row, int64_t since) noexcept:
        """Begins to fetch a row without owning it. Others see since when: of cheap rows that is no
        later than the row began, and no earlier than their range or the last tick did."""
        cdef WorkerRing end = self.end
        if self.announces:
            return fi_row_announce(&end.worker, &end.claim, row, since, &self.index)
        return fi_row_promise(&end.worker, &end.claim, row, since, &self.index)

    cdef bint is_made_as_a_whole(self) noexcept:
        """Whether the batch has a single row without columns, and what it is told is no seeds."""
        cdef fi_claim *claim = &self.end.claim
        return (claim.n == 1 and fi_slot_schema(self.end.worker.ring, claim.slot) == 0
                and fi_slot_has_request(self.end.worker.ring, claim.slot))

    cdef bint wins(self, uint32_t row, int64_t since, int64_t fetched) noexcept:
        """Owns a row that was fetched in two steps; False if another worker has been faster."""
        cdef WorkerRing end = self.end
        cdef fi_event event
        if self.own_row == row:
            return True
        cdef bint won = fi_row_win(&end.worker, &end.claim, row)
        if won:
            self.own_row = row
        if self.traces and (self.is_hedge or not won):
            self.put_traced()
            event.began_ns, event.took_ns, event.index = since, fetched - since, self.index
            event.batch = <uint32_t>end.claim.q
            fi_trace_put(end.worker.ring, end.worker.number,
                         FI_EVENT_HEDGE if won else FI_EVENT_LOST, &event, 1)
        return won

    cdef int fill_by_request(self, fi_worker_stat *stat) except -1:
        """Has the only row of a batch made of what its plan asks for."""
        cdef WorkerRing end = self.end
        cdef uint32_t row = end.claim.first, code
        cdef int64_t since
        if not fi_row_own(&end.worker, &end.claim, row):
            return 0
        fi_worker_stat_fetch_begins(stat, self.index_of(row))
        since = fi_now_ns()
        try:
            packed = Packed(self.answer(self.request()), placed=end.offset_of)
            end.pack_row(packed, row, FI_PACKED_EXAMPLE)
            code = FI_SPILL
        except BaseException as error:
            code = self.store_failure(row, error)
        self.timed(stat, since, fi_now_ns(), self.index_of(row), 1, 1)
        self.mark(stat, row, code)
        return 0

    cdef void timed(self, fi_worker_stat *stat, int64_t since, int64_t fetched, int64_t index,
                    uint32_t rows, uint32_t weight) noexcept:
        """Rows were fetched from `since` to `fetched`, and written from then until now."""
        cdef int64_t wrote = fi_now_ns() - fetched
        fi_worker_stat_sampled(stat, weight * (fetched - since), weight * wrote)
        if not self.traces or self.is_hedge:  # which `wins` has recorded
            return
        if self.traced_rows == 0:
            self.traced.began_ns = since
            self.traced.index = index
            self.traced.took_ns = self.traced_write_ns = 0
        self.traced_rows += rows
        self.traced.took_ns += fetched - since
        self.traced_write_ns += wrote
        if self.traced.took_ns + self.traced_write_ns >= TRACED_NS:
            self.put_traced()

    cdef void put_traced(self) noexcept:
        cdef WorkerRing end = self.end
        if self.traced_rows == 0:
            return
        self.traced.batch = <uint32_t>end.claim.q
        fi_trace_put(end.worker.ring, end.worker.number, FI_EVENT_FETCH, &self.traced,
                     self.traced_rows)
        self.traced.began_ns += self.traced.took_ns
        self.traced.took_ns = self.traced_write_ns
        fi_trace_put(end.worker.ring, end.worker.number, FI_EVENT_WRITE, &self.traced,
                     self.traced_rows)
        self.traced_rows = 0

    cdef int64_t index_of(self, uint32_t row) noexcept:
        return fi_row_index(self.end.worker.ring, self.end.claim.slot, row)[0]

    cdef void mark(self, fi_worker_stat *stat, uint32_t row, uint32_t code) noexcept:
        fi_worker_stat_fetch_ends(stat)
        self.count(stat, code)
        fi_row_done(&self.end.worker, &self.end.claim, row, code)

    cdef void count(self, fi_worker_stat *stat, uint32_t code) noexcept:
        fi_worker_stat_count(stat, 1, self.row_bytes if code == FI_ROW_OK else 0, code == FI_SPILL)

    cdef bint are_columns_fitting(self) except -1:
        """Whether the slot's columns match the dataset's columns."""
        self.load_schema()
        return self.schema is not None and self.plain.is_current and (
            <ColumnReader>self.plain.reader).fits(self.schema)

    cdef int fill_columns(self, fi_worker_stat *stat) except -1:
        """A dataset of arrays: owns the rows first, gathers those it won, no example is made."""
        cdef WorkerRing end = self.end
        cdef uint32_t row = end.claim.first, first
        cdef uint32_t stop = end.claim.first + end.claim.count
        while row < stop:
            first = row
            while row < stop and fi_row_own(&end.worker, &end.claim, row):
                row += 1
            if row > first and self.is_paged:
                self.gather_pieces(stat, first, row - first)
            elif row > first:
                self.gather_rows(stat, first, row - first)
            if row < stop:  # another worker owns that row
                row += 1
        return 0

    cdef int gather_pieces(self, fi_worker_stat *stat, uint32_t first, uint32_t count) except -1:
        """Gathers rows part by part, each while its row groups are there."""
        cdef uint32_t row, done = 0, start, stop
        fi_worker_stat_fetch_begins(stat, self.index_of(first))
        try:
            indices = numpy.array(
                [self.index_of(row) for row in range(first, first + count)], numpy.int64)
            for start, stop in self.plain.reader.pieces(indices):
                self.gather_rows(stat, first + start, stop - start)
                done = stop
        except Exception:  # a file cannot be read: each row fails by itself
            return self.fill_singly(stat, first + done, count - done, True)
        return 0

    cdef int gather_rows(self, fi_worker_stat *stat, uint32_t first, uint32_t count) except -1:
        cdef WorkerRing end = self.end
        cdef uint32_t row
        cdef bint done
        fi_worker_stat_fetch_begins(stat, self.index_of(first))
        try:
            done = (<ColumnReader>self.plain.reader).into_slot(
                self.schema, end.payload(self.schema.bytes), first,
                fi_row_index(end.worker.ring, end.claim.slot, first), count, self.uncached)
        except ValueError:  # offsets are wrong
            done = False
        if done and not (<ColumnReader>self.plain.reader).is_fixed:
            done = self.write_values(first, count)
        fi_worker_stat_fetch_ends(stat)
        if not done:  # an index is out of range, a text is none: the dataset says so itself
            return self.fill_singly(stat, first, count, True)
        for row in range(first, first + count):
            fi_row_done(&end.worker, &end.claim, row, FI_ROW_OK)
        fi_worker_stat_count(stat, count, count * self.row_bytes, 0)
        return 0

    cdef bint write_values(self, uint32_t first, uint32_t count) except -1:
        """Writes rows of those columns whose rows differ in size; lists only where `finish` does not
        find them by itself. False if a value cannot be had."""
        cdef ColumnReader reader = self.plain.reader
        cdef const int64_t *rows = fi_row_index(self.end.worker.ring, self.end.claim.slot, first)
        cdef Py_ssize_t number
        cdef uint32_t row
        self.use_slot()
        for number in range(reader.count):
            if reader.sources[number].kind == ARRAY:
                continue
            if self.pads_alone and self.schema.is_joined(number):
                for row in range(first, first + count):  # no array lies there
                    entry_of(&self.schema.fields[number], self.payload, row)[0] = -1
                continue
            try:
                values = reader.values(number, rows, count)
                if values is None:
                    return False
                for row in range(count):
                    self.write_other(number, first + row, <PyObject *>values[row])
            except Exception:
                return False
        return True

    cdef Py_ssize_t fill_together(self, fi_worker_stat *stat) except -1:
        """Owns rows, fetches them by one call of the dataset, and marks each.

        If the call fails, fetches each row by itself, to find the row that fails. Returns how many
        rows the call has fetched, 0 if it failed.
        """
        cdef WorkerRing end = self.end
        cdef uint32_t row, code
        cdef int64_t since = fi_now_ns(), fetched
        cdef list rows = [], indices = []
        for row in range(end.claim.first, end.claim.first + end.claim.count):
            if self.two_steps:
                if fi_row_promise(&end.worker, &end.claim, row, since, &self.index):
                    rows.append(row)
                    indices.append(self.index)
            elif fi_row_own(&end.worker, &end.claim, row):
                rows.append(row)
                indices.append(self.index_of(row))
        if not rows:
            return 0
        fi_worker_stat_fetch_begins(stat, indices[0])
        examples = failure = None
        self.rows, self.indices = rows, indices
        try:
            examples = self.getitems(list(indices))
        except RowCountError as error:
            failure = error
        except BaseException as error:
            failure = error if len(rows) == 1 else None
        fetched = fi_now_ns()
        for position, row in enumerate(rows):
            self.index = indices[position]
            try:
                if failure is not None:
                    raise failure
                if examples is None:
                    fi_worker_stat_fetch_begins(stat, self.index)
                    self.rows, self.indices = [row], [self.index]
                    self.counter = None
                    example = self.getitems([self.index])[0]
                else:
                    example = examples[position]
                if self.two_steps and not self.wins(row, since, fetched):
                    continue
                code = self.store(row, example)
            except BaseException as error:
                if self.two_steps and not self.wins(row, since, fetched):
                    continue
                code = self.store_failure(row, error)
            self.count(stat, code)
            fi_row_done(&end.worker, &end.claim, row, code)
        fi_worker_stat_fetch_ends(stat)
        self.timed(stat, since, fetched, indices[0], <uint32_t>len(rows), 1)
        self.rows = self.counter = None
        return 0 if examples is None else len(rows)

    cdef uint32_t store(self, uint32_t row, object example) except 0:
        self.load_schema()
        if self.write_into_slot(row, example):
            return FI_ROW_OK
        self.end.pack_row(Packed(example), row, FI_PACKED_EXAMPLE)
        return FI_SPILL

    cdef int load_schema(self) except -1:
        """Uses the slot's schema from now on."""
        cdef uint32_t number = fi_slot_schema(self.end.worker.ring, self.end.claim.slot)
        if number == self.schema_number:
            return 0
        self.use_schema(None)
        self.row_bytes = 0
        try:
            record = self.end.arena.schema_record(number)
            if record:  # number 0 stays empty: nothing is known yet, everything is spilled
                self.use_schema(pickle.loads(record))
                self.row_bytes = self.schema.row_bytes
        except Exception:
            pass  # a type that cannot be imported here, or a corrupt record: rows are spilled
        self.schema_number = number
        return 0

    cdef uint32_t store_failure(self, uint32_t row, object error) except 0:
        fi_entry_set(self.end.worker.ring, self.end.claim.slot, row, 0, 0)
        try:
            dumped = dump(error)
            try:
                self.end.pack_row(Packed(dumped), row, FI_PACKED_ERROR)
            except MemoryError:  # the traceback is the most of it
                pickled, summary, _, *rest = dumped
                self.end.pack_row(Packed((pickled, summary, summary, *rest)), row, FI_PACKED_ERROR)
        except BaseException:  # no memory even for that, or it has no text: the fact has to do
            pass
        return FI_ERROR

    # ---- finish

    cdef int finish(self, object batch_converter) except -1:
        """Finishes the slot, by a `BatchConverter` if there is one, and publishes it."""
        cdef WorkerRing end = self.end
        cdef fi_worker_stat *stat = end.stat
        cdef fi_event event
        cdef int64_t since, took
        cdef uint32_t flags
        if batch_converter is None:
            fi_worker_ready(&end.worker, &end.claim, 0)
            return 0
        since = fi_now_ns()
        fi_worker_stat_begins(stat, since)
        fi_worker_stat_fetch_begins(stat, FI_STAT_FINISHING)
        flags = batch_converter.finish(self)
        if self.pads_alone and not flags and self.plain is not None and not (
                <ColumnReader>self.plain.reader).is_fixed and self.are_columns_fitting():
            self.pads_alone = False  # the parent needs the rows
            self.write_all_values()
            self.pads_alone = True
        fi_worker_stat_fetch_ends(stat)
        took = fi_now_ns() - since
        fi_worker_stat_finished(stat, took)
        if fi_traces(end.worker.ring):
            event.began_ns, event.took_ns, event.batch = since, took, <uint32_t>end.claim.q
            event.index = 0
            fi_trace_put(end.worker.ring, end.worker.number, FI_EVENT_FINISH, &event, end.claim.n)
        # Last, so that whoever is given the batch finds its finish counted and traced.
        fi_worker_ready(&end.worker, &end.claim, flags)
        return 0

    def pad_fields(self, list steps, list rows):
        """Joins each ragged field of `rows`, ascending, or of all rows, into one array in the slot.

        Each step begins with a 0-d array of the field's dtype to pad with, or None to join arrays
        of equal shapes only; the greatest length of the first axis, or -1; the number that the
        padded first axis is a multiple of. Returns False if a field cannot be joined here: the
        parent does it then, or raises.
        """
        cdef Schema schema = self.schema
        cdef Py_ssize_t number
        cdef bint reads = self.plain is not None and not self.is_paged and self.are_columns_fitting()
        for number in range(schema.count):
            if not schema.is_joined(number):
                continue
            fill, max_length, multiple = steps[number][:3]
            if reads:
                if not self.gather_lists(number, rows, steps[number]):
                    return False
            elif schema.fields[number].kind == OBJECT or not self.pad_field(
                    &schema.fields[number], rows, fill, max_length, multiple):
                return False
        return True

    cdef bint gather_lists(self, Py_ssize_t number, list rows, object step) except -1:
        """Joins lists that lie in the dataset's columns, as `pad_field` those in the slot."""
        cdef ColumnReader reader = self.plain.reader
        cdef PaddedLists lists = reader.lists_of(number)
        cdef Field *f = &self.schema.fields[number]
        cdef char *payload = self.end.payload(self.schema.bytes)
        cdef int64_t *entry = entry_of(f, payload, self.schema.rows)  # that of the joined array
        cdef Py_ssize_t n = self.end.claim.n, i
        cdef const int64_t *indices = fi_row_index(self.end.worker.ring, self.end.claim.slot, 0)
        cdef const char *fill = payload  # not read if there is no fill value
        cdef uint64_t offset
        cdef int axis
        if rows is not None:
            chosen = numpy.array([self.index_of(row) for row in rows], numpy.int64)
            indices, n = <const int64_t *>bytes_of(<cnp.PyArrayObject *>chosen), len(rows)
        if not reader.plan_lists(lists, number, indices, n, step):
            return False
        if step[0] is not None:
            fill = bytes_of(<cnp.PyArrayObject *>step[0])
        offset = self.end.heap_take(lists.nbytes)
        lists.write(self.end.place(offset), fill)
        entry[0] = <int64_t>offset
        for axis in range(lists.ndim):
            entry[1 + axis] = lists.shape[axis]
        for i in range(n if f.kind == RAGGED else 0):  # concat_examples may have to tell them
            entry_of(f, payload, i if rows is None else rows[i])[1] = lists.row_lengths[i]
        return True

    cdef int write_all_values(self) except -1:
        """Writes the rows that the parent is going to read, since `finish` has not joined them."""
        cdef uint32_t row
        try:
            for row in range(self.end.claim.n):
                if fi_row_code(self.end.worker.ring, self.end.claim.slot, row,
                               self.end.claim.q) == FI_ROW_OK:
                    self.write_values(row, 1)
        except Exception:
            pass  # the parent finds that no row is there
        return 0

    cdef bint pad_field(self, Field *f, list rows, object fill, int64_t max_length,
                        int64_t multiple) except -1:
        cdef Py_ssize_t n = self.end.claim.n if rows is None else len(rows), i
        cdef uint64_t committed = 0
        cdef char *payload = self.end.whole_payload(&committed)
        cdef char *place
        cdef int64_t shape[MOST_NDIM]
        cdef int64_t *entry = entry_of(f, payload, self.schema.rows)  # that of the joined array
        cdef uint64_t size, offset
        cdef int axis
        cdef const char *fill_bytes = payload  # not read if there is no fill value
        cdef const void **sources = <const void **>PyMem_Malloc(n * (1 + f.ndim) * sizeof(int64_t))
        cdef int64_t *shapes = <int64_t *>(sources + n)
        if sources == NULL:
            raise MemoryError()
        try:
            if not self.find_ragged(f, payload, committed, rows, sources, shapes):
                return False
            for i in range(n if max_length >= 0 else 0):
                shapes[i * f.ndim] = min(shapes[i * f.ndim], max_length)
            if fi_pad_shape(shape, f.ndim, shapes, n) != FI_OK:
                return False
            if fill is None:
                for i in range(n * f.ndim):
                    if shapes[i] != shape[i % f.ndim]:
                        return False
            else:
                fill_bytes = bytes_of(<cnp.PyArrayObject *>fill)
                shape[0] = (shape[0] + multiple - 1) // multiple * multiple
            size = fi_array_bytes(shape, f.ndim, n * f.itemsize)
            if size == <uint64_t>-1:
                return False
            offset = self.end.heap_take(size)
            place = self.end.place(offset)
            with nogil:
                fi_pad(place, shape, f.ndim, f.itemsize, sources, shapes, n, fill_bytes)
            entry[0] = <int64_t>offset
            for axis in range(f.ndim):
                entry[1 + axis] = shape[axis]
            return True
        finally:
            PyMem_Free(sources)

    cdef bint find_ragged(self, Field *f, char *payload, uint64_t committed, list rows,
                          const void **sources, int64_t *shapes) except -1:
        """Where the arrays of these rows lie, and their shapes; False if an entry is corrupt."""
        cdef Py_ssize_t place
        if rows is None:
            return fi_ragged_rows(payload, committed, payload + f.offset, f.stride, f.ndim,
                                  f.itemsize, self.end.claim.n, sources, shapes) == FI_OK
        for place in range(len(rows)):
            if fi_ragged_rows(payload, committed, <char *>entry_of(f, payload, rows[place]),
                              f.stride, f.ndim, f.itemsize, 1, sources + place,
                              shapes + place * f.ndim) != FI_OK:
                return False
        return True

    @property
    def slot_schema(self):
        """The slot's schema, or None."""
        self.load_schema()
        return self.schema

    def good_rows(self):
        """Numbers of the rows in the columns of the slot's schema, None for all; empty if there are
        others that have not failed."""
        cdef WorkerRing end = self.end
        cdef uint32_t row, code
        cdef list rows = []
        for row in range(end.claim.n):
            code = fi_row_code(end.worker.ring, end.claim.slot, row, end.claim.q)
            if code == FI_ROW_OK:
                rows.append(row)
            elif code == FI_SPILL:
                return []
        return None if len(rows) == <Py_ssize_t>end.claim.n else rows

    def examples(self, bint tolerates):
        """Private copies of the examples of the batch; None if there are none, or, unless that is
        tolerated, a row has failed."""
        cdef WorkerRing end = self.end
        cdef Lease lease = Lease.__new__(Lease)
        cdef uint64_t committed = 0
        cdef uint32_t row, code
        cdef dict irregular = {}
        cdef set failed = set()
        end.whole_payload(&committed)
        lease.point_at(end.arena, end.claim.slot, end.claim.q, committed)
        lease.rows = end.claim.n
        for row in range(end.claim.n):
            code = fi_row_code(end.worker.ring, end.claim.slot, row, end.claim.q)
            if code == FI_SPILL:
                irregular[row] = lease.load(row, FI_PACKED_EXAMPLE, True)
            elif code != FI_ROW_OK:
                if not tolerates:
                    return None
                failed.add(row)
        if len(failed) == end.claim.n:
            return None
        lease.schema = self.slot_schema
        if lease.schema is None:
            return [irregular[row] for row in range(end.claim.n) if row not in failed]
        return row_reader.read(lease, True, irregular, failed)

    def put_result(self, packed, bint failed):
        """Writes the converter's result, or its exception, into the slot."""
        self.end.pack_row(
            packed, FI_WHOLE_BATCH, FI_PACKED_FAILURE if failed else FI_PACKED_RESULT)


include "part_writer.pxi"
