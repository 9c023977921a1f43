"""Streams: samples that reader processes publish, and the parent that takes them as they come.

A reader fills one slot after the other, a *block* of rows each. A sample that fits the columns of
the block is written there, as an example is into a batch; any other is packed into the heap of the
block. The reader infers the `Schema` of the columns from its own samples, and packs it there too.
"""

cimport cython
from libc.stdint cimport uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._clib.status cimport check
from fastiter._ring.arena cimport Arena, WorkerRing, as_packed
from fastiter._ring.lease cimport Lease
from fastiter._ring.parent cimport ParentRing
from fastiter._ring.row_reader cimport read_example
from fastiter._ring.schema cimport ARRAY, BARE, OBJECT, RAGGED, Schema, SlotWriter

from fastiter._ring.infer_schema import are_many, derive_schema, merge_schemas
from fastiter._ring.serialization import Packed
from fastiter._util.failures import dump
from fastiter.errors import OverwrittenError

cdef enum:
    IRREGULAR_ROWS = 8  # of a block that fit no column, until the block ends early

# Bytes of samples after which a block ends: small enough that what the reader has written is still
# in a cache when the parent reads it.
cdef uint64_t BLOCK_BYTES = 512 << 10
# Bytes of shared memory in flight, and lent, of one reader; two blocks if they are more.
cdef uint64_t READER_BYTES = 8 << 20


cdef class SampleWriter(SlotWriter):
    """Publishes the samples of one reader. Used by one thread of one worker process."""

    cdef fi_reader reader
    cdef Schema candidate  # fits what did not fit
    cdef uint32_t version
    cdef uint32_t room  # rows of the current block
    cdef uint32_t irregular  # rows of the current block that fit no column
    cdef bint learns

    def __cinit__(self, WorkerRing end, int bell_pipe):
        self.learns = True
        fi_reader_init(&self.reader, end.worker.ring, end.worker.number, bell_pipe, READER_BYTES)

    def put(self, sample):
        """Publishes a sample. Blocks while there is no room. False if the parent wants no more."""
        cdef uint32_t code = FI_ROW_OK
        if self.reader.is_open and self.is_full():
            fi_reader_close(&self.reader, False)
            if self.candidate is not None and are_many(self.irregular, self.reader.rows):
                self.use(self.candidate)
        if not self.begin():
            return False
        if not self.write_into_slot(self.reader.rows, sample):
            self.end.pack_row(as_packed(sample), self.reader.rows, FI_PACKED_EXAMPLE)
            self.irregular += 1
            if self.learns:
                self.learn(sample)
            code = FI_SPILL
        fi_reader_publish(&self.reader, code)
        return True

    def fail(self, error):
        """Publishes the exception that ended the reader, as a sample; then the end."""
        dumped = dump(error)
        self.use_schema(None)  # a block without columns needs the least memory
        # A block without rows may lack its schema, for which there was no memory.
        if self.reader.is_open and (self.reader.rows == 0 or self.is_full()):
            fi_reader_close(&self.reader, False)
        if not self.begin():
            return
        self.end.pack_error(dumped, self.reader.rows)
        fi_reader_publish(&self.reader, FI_ERROR)
        fi_reader_close(&self.reader, True)

    def finish(self):
        """Publishes the end."""
        if not self.reader.is_open:  # there was no sample: all slots are free, and need no credit
            if not self.reader.has_slot and not fi_reader_find_slot(&self.reader):
                raise OverwrittenError("shared memory was overwritten: no slot is free")
            self.open_block()
        fi_reader_close(&self.reader, True)

    cdef bint begin(self) except -1:
        cdef bint goes_on
        if fi_reader_is_ready(&self.reader):
            return True
        fi_worker_stat_busy(self.end.stat, 0)  # the parent sees that there is a sample
        with nogil:
            goes_on = fi_reader_begin(&self.reader)
        if goes_on and not self.reader.is_open:
            self.open_block()
        return goes_on

    cdef bint is_full(self) noexcept:
        return self.reader.rows >= self.room or (
            self.learns and self.irregular >= IRREGULAR_ROWS
            and 2 * self.irregular >= self.reader.rows) or (
            fi_slot_used(self.reader.ring, self.reader.slot)
            >= BLOCK_BYTES + (0 if self.schema is None else self.schema.bytes))

    cdef int open_block(self) except -1:
        """Lays the current block out: columns, then in the heap their schema."""
        cdef uint64_t need = 0, have = 0, committed
        cdef uint64_t columns = 0 if self.schema is None else self.schema.bytes
        cdef int rc = FI_OK
        self.end.claim.slot = self.reader.slot
        self.irregular = 0
        committed = fi_slot_committed(self.reader.ring, self.reader.slot)
        if columns > committed or committed == 0:  # its rows get their pages with the first one
            with nogil:
                rc = fi_slot_commit(self.reader.ring, self.reader.slot, committed,
                                    max(columns, <uint64_t>FI_PAGE), &need, &have)
        if rc > 0:
            check(rc, "memory for samples", need, have)
        if rc != FI_OK:
            raise MemoryError(
                f"memory for samples: {need} bytes needed, {have} available within the machine's, "
                "the control group's and the process' limits"
            )
        fi_reader_open(&self.reader, columns, 0 if self.schema is None else self.version)
        self.end.claim.q = self.reader.q
        if self.schema is None:
            self.room = 1 if self.version == 0 and self.learns else self.reader.ring.geometry.rows
        else:
            self.room = self.schema.rows
            packed = Packed(self.schema)
            self.end.pack_row(packed, FI_WHOLE_BATCH, FI_PACKED_RESULT)
        return 0

    cdef int learn(self, object sample) except -1:
        """Makes the candidate fit this sample too. It only ever becomes more general."""
        schema = derive_schema([sample], 1)
        known = self.candidate if self.candidate is not None else self.schema
        if known is not None:
            schema = merge_schemas(known, schema)
        self.candidate = schema
        # One object as a whole: no column can ever hold it.
        self.learns = not (schema.container == BARE and schema.specs[0][0] == OBJECT)
        return 0

    cdef int use(self, Schema schema) except -1:
        """Lets the blocks from the next one on have these columns, if they are of use."""
        kinds = [spec[0] for spec in schema.specs]
        cdef uint64_t row_bytes = schema.bytes // <uint64_t>schema.rows + 1
        cdef uint64_t rows = min(max(BLOCK_BYTES // row_bytes, <uint64_t>1),
                                 <uint64_t>self.reader.ring.geometry.rows)
        self.candidate = None
        self.version += 1
        if OBJECT in kinds and ARRAY not in kinds and RAGGED not in kinds:
            self.use_schema(None)  # packed as a whole it is faster than field by field
            self.learns = False
        else:
            self.use_schema(Schema(schema.container, schema.type or schema.keys, schema.specs, rows,
                                   schema.subtypes))
        return 0


@cython.no_gc_clear  # like Lease
cdef class StreamLease(Lease):
    """Lease of a block. Another type, since its arrays are no rows of a batch: `concat_examples`
    must not look for their column."""


cdef class Block:
    """The parent's record of the current block of one reader."""

    cdef StreamLease lease
    cdef Schema known  # the schema loaded last
    cdef uint32_t version  # of that


@cython.no_gc_clear  # like ParentRing
cdef class StreamRing(ParentRing):
    """The parent's side of an arena of streams, with at least two slots for each reader.

    All methods are called in the process that made it, by one thread at a time. `credit` is the
    number of samples that may be in flight: published, and not yet granted again.
    """

    cdef fi_stream stream
    cdef list blocks
    cdef uint32_t turn  # the reader to be visited first

    def __init__(self, Arena arena, uint32_t spares, uint64_t credit):
        check(fi_stream_init(&self.stream, &arena.ring, credit, READER_BYTES, self.bell_pipes),
              "preparing a ring of streams")
        self.blocks = [Block() for _ in range(arena.ring.geometry.workers)]

    def forget_blocks(self):
        """Drops the current blocks, once nothing will be taken any more."""
        self.blocks = []

    def __dealloc__(self):
        fi_stream_clear(&self.stream)

    def take_samples(self, Py_ssize_t most):
        """Some of the ready samples of one reader, in turn; None if no sample is ready.

        Returns at most `most` samples, in order; the reader's number; and what ended the reader,
        for `failures.load`, or None. That comes after the samples, and nothing comes after it. It
        is empty if there was no memory for it. Raises what the loading of a sample raises, and
        OverwrittenError if shared memory was overwritten.
        """
        cdef uint32_t readers = self.arena.ring.geometry.workers, reader
        fi_stream_collect(&self.stream)
        for _ in range(readers):
            reader = self.turn
            self.turn = (reader + 1) % readers
            samples = []
            failure = self.take_of(reader, most, samples)
            if samples or failure is not None:
                return samples, reader, failure
        return None

    cdef object take_of(self, uint32_t reader, Py_ssize_t most, list samples):
        cdef fi_part part
        cdef Block block = self.blocks[reader]
        cdef uint32_t row, code
        cdef int rc
        while True:
            rc = fi_stream_ready(&self.stream, reader, &part)
            if rc == FI_E_BUSY:
                return None
            if rc != FI_OK:
                raise OverwrittenError(f"shared memory was overwritten: a block of reader {reader}")
            if part.count > 0:
                if block.lease is None:
                    self.enter(block, reader, part.slot, part.q)
                block.lease.grow(fi_parent_committed(&self.parent, part.slot))
                for row in range(part.first, part.first + part.count):
                    if len(samples) == most:
                        return None
                    code = fi_stream_row_code(&self.stream, reader, row)
                    if code == FI_ERROR:
                        return block.lease.load(row, FI_PACKED_ERROR, True)
                    try:
                        samples.append(self.read(block, row, code, reader))
                    except Exception:
                        if not samples:
                            raise
                        return None  # after those before it: it is the first one of the next turn
                    self.stream.source[reader].taken += 1
            if not part.flags & FI_CLOSED:
                return None
            fi_stream_leave(&self.stream, reader, part.flags)
            block.lease = None  # which may give the slot back

    cdef int enter(self, Block block, uint32_t reader, uint32_t slot, uint64_t q) except -1:
        """Begins with a block: makes its lease, and loads its schema if that is a new one."""
        cdef StreamLease lease = StreamLease.__new__(StreamLease)
        cdef uint32_t version
        lease.point_at(self.arena, slot, q, fi_parent_committed(&self.parent, slot))
        if fi_stream_lend(&self.stream, reader):
            lease.own(None)
        block.lease = lease
        version = fi_slot_schema(&self.arena.ring, slot)
        if version == 0:
            return 0
        if version != block.version:
            block.known = lease.load(FI_WHOLE_BATCH, FI_PACKED_RESULT, True)
            block.version = version
        lease.check(0, block.known.bytes)
        lease.schema = block.known
        return 0

    cdef object read(self, Block block, uint32_t row, uint32_t code, uint32_t reader):
        cdef StreamLease lease = block.lease
        if code == FI_ROW_OK and lease.schema is not None and row < lease.schema.rows:
            return read_example(lease, row, not lease.is_owner)
        if code != FI_SPILL:
            raise OverwrittenError(
                f"shared memory was overwritten: row {row} of a block of reader {reader}")
        return lease.load(row, FI_PACKED_EXAMPLE, not lease.is_owner)

    def grant(self, uint64_t samples):
        """Lets readers publish that many samples more."""
        fi_stream_grant(&self.stream, samples)

    def is_ready(self):
        """Whether `take_samples` would have something."""
        return not all(map(self.is_drained, range(self.arena.ring.geometry.workers)))

    def has_ended(self, uint32_t reader):
        """Whether the reader has published its end, and all samples before it were taken."""
        return self.stream.source[reader].ended

    def is_drained(self, uint32_t reader):
        """Whether nothing of this reader is to be taken now."""
        cdef fi_part part
        cdef int rc = fi_stream_ready(&self.stream, reader, &part)
        return rc == FI_E_BUSY or (
            rc == FI_OK and part.count == 0 and not part.flags & FI_CLOSED)
