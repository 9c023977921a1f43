# Rows that one process fetches and another one writes: a part of row_writer.pyx, since a module of
# its own would take 30 KB of the wheel. `fastiter.ray` has both processes.


cdef class PartWriter(RowWriter):
    """Takes ranges of rows that others fetch, many at a time, and writes what comes back; or, in
    a process far away, fetches such a range in a ring of its own.

    A *part* is (q, slot, n, first, count, fetcher), as `fi_claim`. Its rows are promised until they
    are won: what comes too late, or twice, changes nothing.
    """

    # ---- beside the ring that the batches are for

    def take(self, int64_t most_sleep, uint32_t least, batch_converter):
        """Promises to fetch the next rows, `least` of them where that many are left.

        Returns (part, rows, indices, schema record, seed, (epoch, position, epoch_size), seeds of
        the batch or None); () if there were none for `most_sleep` nanoseconds; None if this worker
        shall leave.
        """
        cdef WorkerRing end = self.end
        cdef int kind
        cdef uint32_t row
        cdef list rows = [], indices = []
        cdef fi_origin origin
        while not rows:
            end.worker.most_sleep = most_sleep
            end.worker.least = least
            with nogil:
                kind = fi_worker_next(&end.worker, &end.claim)
            if kind == FI_CLAIM_FINISH:
                self.finish(batch_converter)
            elif kind != FI_CLAIM_ROWS:
                return () if kind == FI_CLAIM_NONE else None
            else:
                for row in range(end.claim.first, end.claim.first + end.claim.count):
                    if fi_row_promise(&end.worker, &end.claim, row, fi_now_ns(), &self.index, &origin):
                        rows.append(row)
                        indices.append(self.index)
        fi_worker_stat_fetch_ends(end.stat)
        fi_cpu_meter_look(&self.cpu, end.stat, fi_now_ns())
        self.load_schema()
        record = b"" if self.schema is None else end.arena.schema_record(<uint32_t>self.schema_number)
        return ((end.claim.q, end.claim.slot, end.claim.n, end.claim.first, end.claim.count,
                 end.claim.fetcher), rows, indices, record, (origin.seed[0], origin.seed[1]),
                (origin.epoch, origin.position, origin.epoch_size), self.request())

    def leaves(self):
        """Whether this worker shall leave."""
        return fi_worker_leaves(&self.end.worker)

    def is_promised(self, tuple part, uint32_t row):
        """Whether a row of a part is still wanted, as far as is known."""
        return fi_row_code(self.end.worker.ring, part[1], row, part[0]) == FI_FETCH

    def waits_since(self, int64_t since, int64_t index):
        """Says since when (`fi_now_ns`; 0: none) the oldest promised row is fetched, and which it is."""
        fi_worker_stat_fetches_since(self.end.stat, index, since)

    cdef list win(self, tuple part, list rows):
        cdef fi_claim *claim = &self.end.claim
        cdef uint32_t row
        claim.q, claim.slot, claim.n, claim.first, claim.count, claim.fetcher = part
        return [row for row in rows if fi_row_win(&self.end.worker, claim, row)]

    cdef int close_part(self, object batch_converter) except -1:
        if fi_worker_finishes(&self.end.worker, &self.end.claim):
            self.finish(batch_converter)
        return 0

    def fail(self, tuple part, list rows, error, batch_converter):
        """Has rows of a part end with an exception, unless they were done meanwhile."""
        cdef uint32_t row
        for row in self.win(part, rows):
            self.mark(self.end.stat, row, self.store_failure(row, error))
        self.close_part(batch_converter)

    def put(self, tuple part, list rows, tuple pieces, int64_t fetch_ns, batch_converter):
        """Writes what `pieces` gave for rows of a part, unless they were done meanwhile; returns how
        many rows were written.

        `rows` are all that were fetched, ascending. One copy for each byte.
        """
        cdef WorkerRing end = self.end
        cdef list won
        cdef uint32_t row, code
        cdef int64_t since = fi_now_ns()
        cdef dict places = dict(zip(rows, range(len(rows))))
        columns, heap, base, codes, entries = pieces
        won = self.win(part, rows)
        if not won:
            return 0
        try:
            self.load_schema()
            self.uncached = fi_worker_outruns_cache(&end.worker, self.row_bytes * end.claim.n)
            delta = 0
            if len(heap) > 0:
                delta = end.heap_take(len(heap)) - base
                self.copy_piece(delta + base, heap, 0, len(heap))
            self.put_columns(won, places, columns, codes, delta)
            for row, offset, size in entries:  # spilled, or failed
                code = codes[row]
                if rows[row] in won:
                    fi_entry_set(end.worker.ring, end.claim.slot, rows[row], offset + delta, size)
                    if size:
                        self.relocate(offset + delta, delta, rows[row],
                                      FI_PACKED_EXAMPLE if code == FI_SPILL else FI_PACKED_ERROR)
            for row in won:
                code = codes[<uint32_t>places[row]]
                self.count(end.stat, code)
                fi_row_done(&end.worker, &end.claim, row, code)
        except Exception as error:  # no memory, for example
            for row in won:
                if fi_row_code(end.worker.ring, end.claim.slot, row, end.claim.q) == FI_OWNED:
                    self.mark(end.stat, row, self.store_failure(row, error))
        fi_worker_stat_sampled(end.stat, fetch_ns, fi_now_ns() - since)
        fi_worker_stat_busy(end.stat, fetch_ns + fi_now_ns() - since)
        self.close_part(batch_converter)
        return len(won)

    cdef int put_columns(self, list won, dict places, list columns, codes, int64_t delta) except -1:
        cdef Py_ssize_t number, i = 0, j, stride
        cdef Field *f
        cdef int64_t *entry
        cdef uint32_t row
        if columns is None:
            return 0
        self.use_slot()
        while i < len(won):  # runs of rows that follow one another here and there
            j = i + 1
            while j < len(won) and won[j] - won[i] == j - i and (
                    places[won[j]] - places[won[i]] == j - i):
                j += 1
            for number in range(self.schema.count):
                f = &self.schema.fields[number]
                stride = f.stride
                self.copy_piece(f.offset + stride * <Py_ssize_t>won[i], columns[number],
                                stride * <Py_ssize_t>places[won[i]], stride * (j - i))
            i = j
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            if f.kind not in (RAGGED, OBJECT, TEXT):
                continue
            for row in won:
                if codes[places[row]] == FI_ROW_OK:
                    entry = entry_of(f, self.payload, row)
                    entry[0] += delta
                    if f.kind == OBJECT:
                        self.relocate(entry[0], delta, row, FI_PACKED_FIELD)
        return 0

    cdef int copy_piece(self, Py_ssize_t offset, object piece, Py_ssize_t start,
                        Py_ssize_t size) except -1:
        """Copies bytes of a buffer into the slot, at an offset."""
        cdef Py_buffer found
        cdef char *place = fi_slot_payload(self.end.worker.ring, self.end.claim.slot) + offset
        cdef bint uncached = self.uncached
        PyObject_GetBuffer(piece, &found, PyBUF_SIMPLE)
        try:
            if start + size > found.len:
                raise ValueError(f"{found.len} bytes came, {start + size} were expected")
            with nogil:
                fi_copy(place, <char *>found.buf + start, size, uncached)
        finally:
            PyBuffer_Release(&found)
        return 0

    cdef void relocate(self, uint64_t offset, uint64_t delta, uint32_t row, uint32_t kind) noexcept:
        """Corrects a packed object that lies `delta` bytes after where it was packed."""
        cdef uint64_t *head = <uint64_t *>(
            fi_slot_payload(self.end.worker.ring, self.end.claim.slot) + offset)
        cdef uint64_t buffers = head[1], i
        for i in range(buffers):
            head[3 + 2 * i] += delta
        head[0] = fi_checksum(head + 1, HEAD_BYTES - SUM_BYTES + 16 * buffers + head[2],
                              fi_place_seed(self.end.claim.q, row, kind))

    # ---- far away

    def fetch(self, BatchScheduler ring, Plan plan):
        """Fetches the rows of a plan, in this thread, in a ring that no other worker has.

        Returns the lease, and (columns or None, heap, its offset, codes, entries) for `put`: a
        buffer for each column, and (row, offset, size) of what is packed as a whole. The buffers are
        memory of the lease.
        """
        cdef Lease lease
        cdef list columns = None, codes, entries = []
        cdef Py_ssize_t number
        cdef uint64_t offset = 0, size = 0, base = 0
        cdef Field *f
        ring.collect()
        if not ring.schedule(plan):
            raise MemoryError("a batch has no room in the memory of a worker")
        self.end.worker.most_sleep = 0
        self.work(None, 0)
        lease, codes = ring.take_irregular()
        payload = memoryview(lease)
        if lease.schema is not None:
            base = lease.schema.bytes
            columns = []
            for number in range(lease.schema.count):
                f = &lease.schema.fields[number]
                columns.append(payload[f.offset:f.offset + <uint64_t>f.stride * lease.rows])
        done = bytearray([FI_ROW_OK]) * lease.rows
        for row, code in codes:
            done[row] = code
            fi_entry_get(self.end.worker.ring, lease.slot, row, &offset, &size)
            entries.append((row, offset, size))
        heap = payload[base:max(base, fi_slot_used(self.end.worker.ring, lease.slot))]
        return lease, (columns, heap, base, bytes(done), entries)
