"""Rows that one process fetches, and another one writes: what both of them do."""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport bytes_of
from fastiter._order.plan cimport Plan
from fastiter._ring.arena cimport HEAD_BYTES, SUM_BYTES, WorkerRing
from fastiter._ring.lease cimport Lease
from fastiter._ring.scheduler cimport BatchScheduler
from fastiter._ring.schema cimport OBJECT, RAGGED, TEXT, Field, entry_of
from fastiter._workers.row_writer cimport RowWriter

import numpy

cnp.import_array()


cdef class PartWriter(RowWriter):
    """Takes ranges of rows that others fetch, many at a time, and writes what comes back; or, in
    a process far away, fetches such a range in a ring of its own.

    A place is (q, slot, n) of a batch. Its rows are promised until they are won: what comes too
    late, or twice, changes nothing.
    """

    cdef public object batch_converter

    # ---- beside the ring that the batches are for

    def take(self, int64_t most_sleep, uint32_t most):
        """Promises to fetch the next rows of a batch: `most` at least, where that many are left.

        Returns (place, (schema record, seed, (epoch, position, epoch_size), None, seeds or None) of
        the batch, [(first row, indices) of at most `most` rows each]); () if there were none for
        `most_sleep` nanoseconds; None if this worker shall leave.
        """
        cdef WorkerRing end = self.end
        cdef int kind
        cdef uint32_t row, stop = 0
        cdef list ranges = [], indices = []
        while not ranges:
            end.worker.most_sleep, end.worker.least = most_sleep, most
            with nogil:
                kind = fi_worker_next(&end.worker, &end.claim)
            if kind == FI_CLAIM_FINISH:
                self.finish(self.batch_converter)
                continue
            if kind != FI_CLAIM_ROWS:
                return () if kind == FI_CLAIM_NONE else None
            fi_slot_origin(end.worker.ring, end.claim.slot, &self.origin)
            for row in range(end.claim.first, end.claim.first + end.claim.count):
                if fi_row_promise(&end.worker, &end.claim, row, fi_now_ns(), &self.index):
                    if row != stop or not indices or len(indices) == most:
                        indices = []
                        ranges.append((row, indices))
                    indices.append(self.index)
                    stop = row + 1
        fi_worker_stat_fetch_ends(end.stat)
        fi_cpu_meter_look(&self.cpu, end.stat, fi_now_ns())
        self.load_schema()
        record = b"" if self.schema is None else end.arena.schema_record(<uint32_t>self.schema_number)
        batch = (record, (self.origin.seed[0], self.origin.seed[1]),
                 (self.origin.epoch, self.origin.position, self.origin.epoch_size), None, self.message())
        return (end.claim.q, end.claim.slot, end.claim.n), batch, ranges

    def leaves(self):
        """Whether this worker shall leave."""
        return fi_worker_leaves(&self.end.worker)

    def is_promised(self, tuple place, uint32_t first, uint32_t count):
        """Whether one of these rows is still wanted, as far as is known."""
        cdef uint32_t row
        return any(fi_row_code(self.end.worker.ring, place[1], row, place[0]) == FI_FETCH
                   for row in range(first, first + count))

    def waits_since(self, int64_t since, int64_t index):
        """Says since when (`fi_now_ns`) the oldest promised row is fetched, and which it is."""
        fi_worker_stat_fetches_since(self.end.stat, index, since)

    def put(self, tuple place, uint32_t first, uint32_t count, pieces, int64_t fetch_ns=0):
        """Ends `count` rows from `first` on, but those that were done meanwhile: with an exception,
        or with what `fetch` has returned, by one copy for each byte. Returns how many it ended."""
        cdef WorkerRing end = self.end
        cdef fi_claim *claim = &end.claim
        cdef uint32_t row, code
        cdef int64_t since = fi_now_ns()
        cdef list won
        claim.q, claim.slot, claim.n = place
        claim.first, claim.count, claim.fetcher = first, count, end.worker.number
        won = [row for row in range(first, first + count) if fi_row_win(&end.worker, claim, row)]
        if not won:
            return 0
        try:
            if isinstance(pieces, Exception):
                raise pieces
            columns, heap, base, codes, entries = pieces
            self.load_schema()
            self.uncached = fi_worker_outruns_cache(&end.worker, self.row_bytes * claim.n)
            delta = end.heap_take(len(heap)) - base if len(heap) > 0 else 0
            self.copy_piece(delta + base, heap, 0, len(heap))
            if columns:
                self.put_columns(won, first, columns, codes, delta)
            for row, offset, size in entries:  # spilled, or failed
                if first + row in won:
                    fi_entry_set(end.worker.ring, claim.slot, first + row, offset + delta, size)
                    if size:
                        self.relocate(offset + delta, delta, first + row, FI_PACKED_EXAMPLE
                                      if codes[row] == FI_SPILL else FI_PACKED_ERROR)
            for row in won:
                code = codes[row - first]
                self.count(code)
                fi_row_done(&end.worker, claim, row, code)
        except Exception as error:  # or no memory, for example
            for row in won:
                if fi_row_code(end.worker.ring, claim.slot, row, claim.q) == FI_OWNED:
                    self.mark(row, self.store_failure(row, error))
        fi_worker_stat_sampled(end.stat, fetch_ns, fi_now_ns() - since)
        fi_worker_stat_busy(end.stat, fetch_ns + fi_now_ns() - since)
        if fi_worker_finishes(&end.worker, claim):
            self.finish(self.batch_converter)
        return len(won)

    cdef int put_columns(self, list won, uint32_t first, list columns, codes,
                         int64_t delta) except -1:
        cdef Py_ssize_t number, stride, step = len(codes) if len(won) == len(codes) else 1
        cdef Field *f
        cdef int64_t *entry
        cdef uint32_t row
        self.use_slot()
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            stride = f.stride
            for row in won[::step]:
                self.copy_piece(f.offset + stride * row, columns[number], stride * (row - first),
                                stride * step)
            for row in won if f.kind in (RAGGED, OBJECT, TEXT) else ():
                if codes[row - first] == FI_ROW_OK:
                    entry = entry_of(f, self.payload, row)
                    entry[0] += delta
                    if f.kind == OBJECT:
                        self.relocate(entry[0], delta, row, FI_PACKED_FIELD)
        return 0

    cdef int copy_piece(self, Py_ssize_t offset, object piece, Py_ssize_t start,
                        Py_ssize_t size) except -1:
        """Copies bytes of an array of bytes into the slot, at an offset."""
        if start + size > len(piece):
            raise ValueError(f"{len(piece)} bytes came, {start + size} were expected")
        return self.copy_large(self.end.place(offset), bytes_of(<cnp.PyArrayObject *>piece) + start,
                               NULL, size, self.uncached)

    cdef void relocate(self, uint64_t offset, uint64_t delta, uint32_t row, uint32_t kind) noexcept:
        """Corrects a packed object that lies `delta` bytes after where it was packed."""
        cdef uint64_t *head = <uint64_t *>self.end.place(offset)
        cdef uint64_t buffers = head[1], i
        for i in range(buffers):
            head[3 + 2 * i] += delta
        head[0] = fi_checksum(head + 1, HEAD_BYTES - SUM_BYTES + 16 * buffers + head[2],
                              fi_place_seed(self.end.claim.q, row, kind))

    # ---- far away

    def fetch(self, BatchScheduler ring, Plan plan):
        """Fetches the rows of a plan, in this thread, in a ring that no other worker has.

        Returns (columns, heap, its offset, codes, entries) for `put`: an array of bytes for each
        column, and (row, offset, size) of what is packed as a whole.
        """
        cdef Lease lease
        cdef list columns = [], codes, entries = []
        cdef Py_ssize_t number
        cdef uint64_t offset = 0, size = 0, base = 0
        cdef Field *f
        ring.collect()
        if not ring.schedule(plan):
            raise MemoryError("a batch has no room in the memory of a worker")
        self.end.worker.most_sleep = 0
        self.run(None, 0)
        lease, codes = ring.take_irregular()
        payload = numpy.frombuffer(lease, numpy.uint8)  # the lease lives as long as its slices
        if lease.schema is not None:
            base = lease.schema.bytes
            for number in range(lease.schema.count):
                f = &lease.schema.fields[number]
                columns.append(payload[f.offset:f.offset + <uint64_t>f.stride * lease.rows])
        done = bytearray([FI_ROW_OK]) * lease.rows
        for row, code in codes:
            done[row] = code
            fi_entry_get(self.end.worker.ring, lease.slot, row, &offset, &size)
            entries.append((row, offset, size))
        heap = payload[base:max(base, fi_slot_used(self.end.worker.ring, lease.slot))]
        return columns, heap, base, bytes(done), entries
