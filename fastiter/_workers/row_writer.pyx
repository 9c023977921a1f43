"""The inner loop of a worker: fetches claimed rows, writes them, and finishes batches."""

import logging
import os
from operator import index as row_number

import numpy

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._fetch import row_groups
from fastiter._fetch.column_rows cimport ColumnRows
from fastiter._fetch.dataset_access import row_access
from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport bytes_of
from fastiter._ring.arena cimport WorkerRing
from fastiter._ring.serialization import Packed
from fastiter._util.failures import never_skipped


cnp.import_array()

logger = logging.getLogger("fastiter")

cdef enum:
    # Timing a row costs about 60 ns. A long claim has one row timed; of short claims, one in
    # SHORT_RANGES has.
    LONG_RANGE_NS = 50000
    SHORT_RANGES = 16
    TRACED_NS = 10000  # rows are recorded together until they have taken this long
    NO_ROW = 0xFFFFFFFF


cdef class RowWriter(ColumnRows):
    """Fetches the examples of claimed rows, writes them into the slot, and finishes batches.

    Used by one thread of one worker process. An exception of the dataset fails its row, and the
    worker goes on. In `two_steps` a row is owned when it has been fetched, and not before: another
    worker may be faster. Until then, the slot may already belong to a later batch; results of
    reading it are thrown away. `answer` makes the only row of a batch that has a request, and tells
    of how many examples; where it is given, batches may have keys, too.
    """

    def __cinit__(self, WorkerRing end, dataset, answer=None, bint two_steps=False,
                  bint hedges=False):
        self.answer = answer
        self.orders, self.into, self.cache_of = row_access(dataset)
        if two_steps:  # another worker may make the same row at the same time
            self.into = None
        self.memory = os.fstat(end.arena.fd).st_ino
        row_groups.worker = self
        self.row = -1
        self.timed_row = NO_ROW
        self.tolerates = True
        self.two_steps = two_steps and self.gatherer is None
        end.worker.hedges = hedges and self.two_steps
        fi_cpu_meter_start(&self.cpu)

    def key(self):
        """Seed, epoch and dataset index of the example that is fetched, or None if there is none.

        `fastiter._order.example_context` derives its random numbers from these.
        """
        cdef WorkerRing end = self.end
        cdef fi_origin origin = self.origin
        cdef int64_t row = self.row, index = self.index
        if self.turn is not None:
            row, index = self.rows[self.turn.place], self.indices[self.turn.place]
        if not 0 <= row < end.claim.n:
            return None
        if not self.two_steps:
            fi_slot_origin(end.worker.ring, end.claim.slot, &origin)
        if origin.epoch_size == 0:
            raise RuntimeError(
                "this batch has examples of three epochs or more, of different lengths, and a worker "
                "does not know the epoch of each: pass a smaller batch_size")
        number = index if self.keys is None else self.keys[index - self.first_number]
        return (
            (origin.seed[0], origin.seed[1]),
            fi_row_epoch(&origin, <uint32_t>row, end.claim.n),
            int(number) if isinstance(number, (int, numpy.integer)) else 0,
        )

    @property
    def n_examples(self):
        """Length of the dataset; -1 if it has none."""
        try:
            return len(self.reader.dataset)
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
        if self.is_whole or self.keys is not None:
            return numpy.empty(0, numpy.int64)
        found = numpy.empty(<size_t>geometry.slots * geometry.rows, numpy.int64)
        return found[:fi_rows_before(
            &end.worker, &end.claim, <int64_t *>bytes_of(<cnp.PyArrayObject *>found), len(found))]

    def run(self, batch_converter, uint64_t claims):
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

    @cython.final
    cdef int fill(self) except -1:
        """Fetches and writes the claimed rows that no other worker owns."""
        cdef WorkerRing end = self.end
        cdef fi_worker_stat *stat = end.stat
        cdef int64_t since = fi_now_ns(), now
        cdef uint32_t row
        fi_worker_stat_begins(stat, since)
        self.traces = fi_traces(end.worker.ring)
        self.is_hedge = end.claim.fetcher != end.worker.number
        self.own_row = NO_ROW
        self.begun = since
        self.owned_stop = self.n_gathered = self.n_called = self.n_calls = 0
        if self.two_steps:  # before the row words tell that the slot still has this batch
            fi_slot_origin(end.worker.ring, end.claim.slot, &self.origin)
        # By the schema of the claim before: the slot's own is read with its first row.
        self.uncached = fi_worker_outruns_cache(&end.worker, self.row_bytes * end.claim.n)
        if self.answer is not None:
            self.look_at_message()
        self.table = None if self.cache_of is None else self.cache_of()
        self.is_placing = not self.is_whole and self.keys is None and (
            self.into is not None or self.table is not None)
        self.choose_timed_row()
        if self.is_whole:
            for row in range(end.claim.first, end.claim.first + end.claim.count):
                self.fill_whole(row)
            self.has_made_wholes = True
        else:
            if self.has_made_wholes:  # the heap has held all examples of a batch, and will not again
                self.has_made_wholes = False
                fi_heap_trim()
            self.reader.read(self, end.claim.first, end.claim.count)
        if self.n_calls > 0:
            self.timed(self.since, self.fetched, self.index_of(end.claim.first), self.n_called, 1)
        elif self.n_gathered > 0:
            self.timed(since, since, self.index_of(end.claim.first), self.n_gathered, 1)
        self.row = -1
        self.rows = self.turn = None
        if self.traces:
            self.put_traced()
        now = fi_now_ns()
        if self.reader.getter is None:
            fi_worker_pace(&end.worker, end.claim.count, now - since)
        elif self.n_calls == 1:
            fi_call_cost_add(&end.worker.call, self.n_called, now - self.since)
        fi_worker_stat_busy(stat, now - since)
        fi_cpu_meter_look(&self.cpu, stat, now)
        return 0

    @cython.final
    cdef void choose_timed_row(self) noexcept:
        cdef fi_claim *claim = &self.end.claim
        cdef int64_t row_ns = self.end.worker.row_ns
        cdef bint is_long = row_ns * claim.count >= LONG_RANGE_NS
        self.timed_row = NO_ROW
        self.weight = claim.count
        self.is_single = self.is_whole or self.reader.getter is None
        if not self.is_single:
            self.times_all = self.clocks_all = self.announces = False
            return
        # A clock may take a tenth of a microsecond.
        self.times_all = self.traces or self.is_whole or (
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

    # ---- the rows that a reader reads

    cdef bint begin_row(self, uint32_t row) noexcept:
        """Owns a row before it is fetched, so that a death has one suspect; or promises it."""
        cdef WorkerRing end = self.end
        if self.two_steps:
            self.since = fi_now_ns() if self.clocks_all else max(self.begun, fi_coarse_ns())
            if not self.promise(row, self.since):
                return False
        elif row < self.owned_stop or fi_row_own(&end.worker, &end.claim, row):
            self.index = fi_row_index(end.worker.ring, end.claim.slot, row)[0]
            if self.is_single:
                fi_worker_stat_fetch_begins(end.stat, self.index)
        else:
            return False
        self.row = row
        if (row == self.timed_row or self.times_all) and not self.clocks_all:
            self.since = fi_now_ns()
        return not (self.is_placing and self.place(row))

    @cython.final
    cdef bint place(self, uint32_t row) noexcept:
        """Writes a row without an example of its own: from a cache below the dataset, or by the
        dataset itself. False if the reader has to fetch it."""
        cdef uint32_t code
        try:
            number = self.index
            for order in self.orders:
                number = row_number(order[number])
        except Exception:
            return False  # the dataset raises it, too
        try:
            if self.table is not None and self.put_stored(row, number):
                return True
            code = 0 if self.into is None else self.write_given(row, self.into, number)
            if code == 0:
                return False
            if self.is_kept:
                logger.warning("%s.__fastiter_into__ keeps an array that it was given: from now on "
                               "__getitem__ is called", type(self.into.__self__).__qualname__)
                self.into = None
            self.fetched = fi_now_ns()
            self.placed(row, code)
        except BaseException as error:
            self.given = None
            self.fail_row(row, error)
        return True

    @cython.final
    cdef bint put_stored(self, uint32_t row, object number) except -1:
        cdef fi_cache *cache = &self.table.cache
        cdef int64_t place = number  # of a view's sequence, from the end if it is negative
        place += cache.length if place < 0 else 0
        if not 0 <= place < <int64_t>cache.length or not self.find_stored(cache, place):
            return False
        self.fetched = fi_now_ns() if self.times_all or row == self.timed_row else self.begun
        if self.two_steps and not self.wins(row, self.fetched):
            return True
        if self.copy_stored(cache, row):
            fi_cache_add(cache, FI_CACHE_HITS, 1)
            self.placed(row, FI_ROW_OK)
            return True
        if not self.two_steps:
            return False
        example = self.reader.dataset[self.index]  # at once, as the row is owned
        Py_INCREF(example)
        self.put_example(row, <PyObject *>example)
        return True

    @cython.final
    cdef void placed(self, uint32_t row, uint32_t code) noexcept:
        if self.times_all or row == self.timed_row:
            self.timed(self.since, self.fetched, self.index, 1, self.weight)
        elif not self.is_single:
            self.n_gathered += 1
        self.mark(row, code)

    cdef int put_example(self, uint32_t row, PyObject *taken) except -1:
        cdef bint is_timed = row == self.timed_row or self.times_all
        cdef uint32_t code
        example = <object>taken
        Py_DECREF(example)
        if is_timed:
            self.fetched = fi_now_ns()
        if self.two_steps and not self.wins(row, self.fetched):
            return 0
        if self.is_whole:
            self.end.pack_row(Packed(example, placed=self.end.offset_of), row, FI_PACKED_EXAMPLE)
            code = FI_SPILL
        else:
            code = self.store(row, example)
        example = None
        if is_timed:
            self.timed(self.since, self.fetched, self.index, 1, self.weight)
        self.mark(row, code)
        return 0

    cdef int fail_row(self, uint32_t row, object error) except -1:
        if not self.two_steps or self.wins(row, fi_now_ns()):
            self.mark(row, self.store_failure(row, error))
        return 0

    cdef object call(self, object getter, object rows, list indices):
        cdef bint is_first = self.n_calls == 0
        self.rows, self.indices, self.turn, self.row = rows, indices, None, -1
        self.n_calls += 1
        fi_worker_stat_fetch_begins(self.end.stat, indices[0])
        asked = list(indices)
        if self.keys is not None:
            asked = [index - self.first_number for index in indices]
            if isinstance(self.keys, (list, tuple)):
                asked = type(self.keys)([self.keys[place] for place in asked])
            else:
                asked = self.keys[asked]
        if not is_first:
            return getter(asked)
        self.n_called = <uint32_t>len(rows)
        self.since = fi_now_ns()
        try:
            return getter(asked)
        finally:
            self.fetched = fi_now_ns()

    @cython.final
    cdef int fill_whole(self, uint32_t row) except -1:
        """Has the only row of a batch made of what its plan asks for."""
        if self.begin_row(row):
            self.n_answered = 0
            try:
                self.n_answered, example = self.answer(self.message())
                Py_INCREF(example)
                self.put_example(row, <PyObject *>example)
            except BaseException as error:
                self.fail_row(row, never_skipped(error))
        return 0

    @cython.final
    cdef bint promise(self, uint32_t row, int64_t since) noexcept:
        """Begins to fetch a row without owning it. Others see since when: of cheap rows that is no
        later than the row began, and no earlier than their range or the last tick did."""
        cdef WorkerRing end = self.end
        if self.announces:
            return fi_row_announce(&end.worker, &end.claim, row, since, &self.index)
        return fi_row_promise(&end.worker, &end.claim, row, since, &self.index)

    @cython.final
    cdef bint wins(self, uint32_t row, int64_t fetched) noexcept:
        """Owns a row that was fetched in two steps; False, and its fetch ends, if another worker has
        been faster."""
        cdef WorkerRing end = self.end
        cdef fi_event event
        if self.own_row == row:
            return True
        cdef bint won = fi_row_win(&end.worker, &end.claim, row)
        if won:
            self.own_row = row
        else:
            fi_worker_stat_fetch_ends(end.stat)
        if self.traces and (self.is_hedge or not won):
            self.put_traced()
            event.began_ns, event.took_ns = self.since, fetched - self.since
            event.index, event.batch = self.index, <uint32_t>end.claim.q
            fi_trace_put(end.worker.ring, end.worker.number,
                         FI_EVENT_HEDGE if won else FI_EVENT_LOST, &event, 1)
        return won

    @cython.final
    cdef void timed(self, int64_t since, int64_t fetched, int64_t index, uint32_t rows,
                    uint32_t weight) noexcept:
        """Rows were fetched from `since` to `fetched`, and written from then until now."""
        cdef int64_t wrote = fi_now_ns() - fetched
        fi_worker_stat_sampled(self.end.stat, weight * (fetched - since), weight * wrote)
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

    @cython.final
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

    @cython.final
    cdef void mark(self, uint32_t row, uint32_t code) noexcept:
        fi_worker_stat_fetch_ends(self.end.stat)
        self.count(code)
        fi_row_done(&self.end.worker, &self.end.claim, row, code)

    @cython.final
    cdef void count(self, uint32_t code) noexcept:
        cdef uint32_t rows = self.n_answered if self.is_whole else 1
        fi_worker_stat_count(self.end.stat, rows, self.row_bytes if code == FI_ROW_OK else 0,
                             rows if code == FI_SPILL else 0)

    # ---- finish

    cdef int finish(self, object batch_converter) except -1:
        """Finishes the slot, by a `BatchConverter` unless its row is the batch, and publishes it."""
        cdef WorkerRing end = self.end
        cdef fi_worker_stat *stat = end.stat
        cdef fi_event event
        cdef int64_t since, took
        cdef uint32_t flags
        if self.answer is not None:
            self.look_at_message()
        if batch_converter is None or self.is_whole:
            fi_worker_ready(&end.worker, &end.claim, 0)
            return 0
        since = fi_now_ns()
        fi_worker_stat_begins(stat, since)
        fi_worker_stat_fetch_begins(stat, FI_STAT_FINISHING)
        flags = batch_converter.finish(self)
        if self.pads_alone and not flags and self.gatherer is not None and (
                not self.gatherer.is_fixed and self.are_columns_fitting()):
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
