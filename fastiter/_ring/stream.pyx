"""Binding of streams: samples that readers publish, and the parent that merges them.

A sample whose fields have columns is written there, as an example is into a batch; any other is
packed into the block's heap: a tuple of plain values item by item, all else by pickle. The layout of
the columns, a `Schema`, is found by the reader from its own samples and stands in the block's heap
too.
"""

import os
import pickle
import struct

cimport cython
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.float cimport PyFloat_CheckExact
from cpython.long cimport PyLong_CheckExact, PyLong_FromLongLong
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_CheckExact, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM)
from cpython.unicode cimport PyUnicode_CheckExact
from libc.errno cimport ENOMEM
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._ring.lease cimport Lease
from fastiter._ring.parent_ring cimport ParentRing
from fastiter._ring.worker_ring cimport WorkerRing
from fastiter._clib.ring_words import (
    PACKED_ERROR as _PACKED_ERROR, PACKED_EXAMPLE as _PACKED_EXAMPLE, PACKED_RESULT as _PACKED_RESULT,
)
from fastiter._ring.row_reader cimport Schema, _ARRAY, _BARE, _OBJECT, _RAGGED
from fastiter._ring.views cimport check_part, read_example
from fastiter._ring.infer_schema import derive_schema, merge_schemas
from fastiter._ring.serialization import Packed, unpack
from fastiter._util.failures import dump
from fastiter.errors import OverwrittenError

cdef extern from "Python.h":
    int PyBUF_WRITE, PyBUF_READ
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    int unicode_kind "PyUnicode_KIND"(object text)
    void *unicode_data "PyUnicode_DATA"(object text)
    Py_ssize_t unicode_length "PyUnicode_GET_LENGTH"(object text)
    object unicode_from "PyUnicode_FromKindAndData"(int kind, const void *data, Py_ssize_t length)

cdef enum:
    HEAD_BYTES = 24  # of a packed object: checksum, number of buffers, bytes of the pickle
    SUM_BYTES = 8
    IRREGULAR_ROWS = 8  # of a block that fit no column, until the block ends early
    MOST_ITEMS = 64  # of a plain tuple

# Kinds of a plain tuple's items. Text is of 1, 2 or 4 bytes a character, and they are its kind.
cdef enum:
    PLAIN_NONE = 8
    PLAIN_FALSE
    PLAIN_TRUE
    PLAIN_INT
    PLAIN_FLOAT
    PLAIN_BYTES

# In the place of the number of buffers: what follows is no pickle.
cdef uint64_t PLAIN = <uint64_t>-1

_RECORD = struct.Struct("<QQ")  # of a schema: checksum, rows; then `Schema.record`
cdef uint32_t EXAMPLE = _PACKED_EXAMPLE, RECORD = _PACKED_RESULT, ERROR = _PACKED_ERROR
cdef object dumps = pickle.dumps, loads = pickle.loads

# Bytes of samples in a block, beyond which the next one begins another: what is in the cache of the
# reader when it is written is in the cache of the parent's core when it is read.
cdef uint64_t BLOCK_BYTES = 512 << 10
# Bytes of shared memory in flight of one reader, where that is more than two blocks; and lent.
cdef uint64_t MOST_BYTES = 8 << 20


# ---- plain tuples: the number of items, and for each its kind, its bytes, and these --------------


cdef uint64_t scratch_alloc(uint64_t size) noexcept:
    return (size + 7) & ~<uint64_t>7


cdef uint64_t plain_bytes(tuple sample) except? 1:
    """Bytes that the body of a plain tuple takes; 0 if it holds anything else."""
    cdef uint64_t size = 8 + 16 * <uint64_t>PyTuple_GET_SIZE(sample)
    cdef int overflow = 0
    if PyTuple_GET_SIZE(sample) > MOST_ITEMS:
        return 0
    for item in sample:
        if PyUnicode_CheckExact(item):
            size += scratch_alloc(<uint64_t>unicode_length(item) * unicode_kind(item))
        elif PyLong_CheckExact(item):
            PyLong_AsLongLongAndOverflow(item, &overflow)
            if overflow != 0:
                return 0
            size += 8
        elif PyFloat_CheckExact(item):
            size += 8
        elif PyBytes_CheckExact(item):
            size += scratch_alloc(len(<bytes>item))
        elif item is not None and item is not True and item is not False:
            return 0
    return size


cdef int write_plain(tuple sample, uint64_t *place) except -1:
    cdef int64_t number
    cdef double real
    cdef const void *source
    place[0] = PyTuple_GET_SIZE(sample)
    place += 1
    for item in sample:
        place[1] = 8
        source = NULL
        if PyUnicode_CheckExact(item):
            place[0] = unicode_kind(item)
            place[1] = <uint64_t>unicode_length(item) * place[0]
            source = unicode_data(item)
        elif PyLong_CheckExact(item):
            place[0] = PLAIN_INT
            number = item
            source = &number
        elif PyFloat_CheckExact(item):
            place[0] = PLAIN_FLOAT
            real = item
            source = &real
        elif PyBytes_CheckExact(item):
            place[0] = PLAIN_BYTES
            place[1] = len(<bytes>item)
            source = <char *>(<bytes>item)
        else:
            place[0] = PLAIN_NONE if item is None else PLAIN_TRUE if item else PLAIN_FALSE
            place[1] = 0
        if source != NULL:
            memcpy(place + 2, source, place[1])
        place += 2 + scratch_alloc(place[1]) // 8
    return 0


cdef object read_plain(const uint64_t *place, uint64_t nbytes):
    """The tuple. What comes from shared memory is read once, and checked before it is used."""
    cdef const uint64_t *end = place + nbytes // 8
    cdef uint64_t count = place[0] if nbytes >= 8 else MOST_ITEMS + 1
    cdef uint64_t i, kind, size
    if count > MOST_ITEMS:
        raise OverwrittenError("shared memory was overwritten: the size of a sample")
    sample = PyTuple_New(count)
    place += 1
    for i in range(count):
        if end - place < 2:
            raise OverwrittenError("shared memory was overwritten: an item of a sample")
        kind, size = place[0], place[1]
        place += 2
        if size > <uint64_t>(end - place) * 8:
            raise OverwrittenError("shared memory was overwritten: an item of a sample")
        item = plain_item(kind, size, place)
        Py_INCREF(item)  # the tuple takes it over
        PyTuple_SET_ITEM(sample, i, item)
        place += scratch_alloc(size) // 8
    return sample


cdef object plain_item(uint64_t kind, uint64_t size, const uint64_t *place):
    cdef double real
    if kind == 1 or kind == 2 or kind == 4:
        return unicode_from(<int>kind, place, size // kind)
    if kind == PLAIN_INT and size == 8:
        return PyLong_FromLongLong(<int64_t>place[0])
    if kind == PLAIN_FLOAT and size == 8:
        memcpy(&real, place, 8)
        return real
    if kind == PLAIN_BYTES:
        return PyBytes_FromStringAndSize(<const char *>place, size)
    if kind == PLAIN_NONE:
        return None
    if kind == PLAIN_TRUE or kind == PLAIN_FALSE:
        return kind == PLAIN_TRUE
    raise OverwrittenError(f"shared memory was overwritten: an item of kind {kind}")


cdef class SampleWriter:
    """A reader's end: used by one thread of one worker process.

    Parameters
    ----------
    end : WorkerRing
    bell_pipe : descriptor that it sleeps on, -1 where bells are futexes.
    """

    cdef WorkerRing end
    cdef fi_reader reader
    cdef Schema schema
    cdef Schema candidate  # fits what did not fit
    cdef uint32_t version
    cdef uint32_t room  # rows of the block in hand
    cdef uint32_t irregular  # rows of the block in hand that fit no column
    cdef bint learns

    def __cinit__(self, WorkerRing end, int bell_pipe):
        self.end = end
        self.learns = True
        fi_reader_init(&self.reader, end.worker.ring, end.worker.number, bell_pipe, MOST_BYTES)

    def put(self, sample):
        """Publishes a sample. Blocks while there is no room; False: the parent wants no more.

        Raises
        ------
        Exception
            The sample cannot be pickled; MemoryError if it does not fit into memory.
        """
        cdef uint32_t code = FI_ROW_OK
        if self.reader.is_open and self.is_full():
            self.finish_block()
        if not self.begin():
            return False
        if self.schema is None or not self.schema.write(
                self.end, fi_slot_payload(self.reader.ring, self.reader.slot), self.reader.rows,
                sample):
            self.pack(sample)
            self.irregular += 1
            if self.learns:
                self.learn(sample)
            code = FI_SPILL
        fi_reader_publish(&self.reader, code)
        return True

    def fail(self, error):
        """Publishes, in the place of a sample, what ended the reader; then the end."""
        packed = Packed(dump(error))
        self.schema = None  # a block without columns needs the least memory
        if self.reader.is_open and self.is_full():
            fi_reader_close(&self.reader, False)
        if not self.begin():
            return
        try:
            self.write_packed(packed, ERROR)
        except MemoryError:  # none is left for the text: the bare fact has to do
            fi_entry_set(self.reader.ring, self.reader.slot, self.reader.rows, 0, 0)
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
        with nogil:
            goes_on = fi_reader_begin(&self.reader)
        if goes_on and not self.reader.is_open:
            self.open_block()
        return goes_on

    cdef bint is_full(self) noexcept:
        return self.reader.rows >= self.room or (
            self.learns and self.irregular >= IRREGULAR_ROWS and 2 * self.irregular >= self.reader.rows) or (
            fi_slot_used(self.reader.ring, self.reader.slot) >= self.used_at_most())

    cdef uint64_t used_at_most(self) noexcept:
        return BLOCK_BYTES + (0 if self.schema is None else self.schema.bytes)

    cdef int finish_block(self) except -1:
        fi_reader_close(&self.reader, False)
        if self.candidate is not None and 8 * self.irregular >= self.reader.rows:
            self.use(self.candidate)
        return 0

    cdef int open_block(self) except -1:
        """Lays the block in hand out: columns, then in the heap the record of their schema."""
        cdef uint64_t need = 0, have = 0, offset, committed
        cdef uint64_t columns = 0 if self.schema is None else self.schema.bytes
        cdef int rc = FI_OK
        self.end.turn.slot = self.reader.slot
        self.irregular = 0
        committed = fi_slot_committed(self.reader.ring, self.reader.slot)
        if columns > committed:
            with nogil:
                rc = fi_slot_commit(self.reader.ring, self.reader.slot, committed, columns, &need,
                                    &have)
        if rc > 0 and rc != ENOMEM:  # not that it is too much
            raise OSError(rc, f"memory for samples: {os.strerror(rc)}")
        if rc != FI_OK:
            raise MemoryError(
                f"memory for samples: {need} bytes needed, {have} available within the machine's, "
                "the control group's and the process' limits"
            )
        fi_reader_open(&self.reader, columns, 0 if self.schema is None else self.version)
        self.end.turn.q = self.reader.q
        if self.schema is None:
            self.room = 1 if self.version == 0 and self.learns else self.reader.ring.geometry.rows
        else:
            self.room = self.schema.rows
            self.write_schema()
        return 0

    cdef int write_schema(self) except -1:
        """Leaves in the heap what the parent needs to read the columns."""
        cdef bytes record = _RECORD.pack(0, self.schema.rows) + self.schema.record()
        cdef uint64_t size = len(record), offset = self.end.heap_take(size)
        cdef char *place = fi_slot_payload(self.reader.ring, self.reader.slot) + offset
        memcpy(place, <char *>record, size)
        (<uint64_t *>place)[0] = fi_checksum(
            place + SUM_BYTES, size - SUM_BYTES, self.end.seed(0, RECORD))
        fi_result_set(self.reader.ring, self.reader.slot, offset, size)
        return 0

    cdef int pack(self, object sample) except -1:
        cdef uint64_t size = 0
        cdef uint64_t *head
        cdef list buffers
        cdef bytes pickled
        if PyTuple_CheckExact(sample):
            size = plain_bytes(<tuple>sample)
        if size > 0:
            head = self.head_of(HEAD_BYTES + size)
            head[1] = PLAIN
            write_plain(<tuple>sample, head + 3)
        else:
            buffers = []
            pickled = dumps(sample, 5, buffer_callback=buffers.append)
            if buffers:
                return self.write_packed(Packed(sample), EXAMPLE)
            size = len(pickled)
            head = self.head_of(HEAD_BYTES + size)
            head[1] = 0
            memcpy(head + 3, <char *>pickled, size)
        head[2] = size
        head[0] = fi_checksum(
            head + 1, HEAD_BYTES + size - SUM_BYTES, self.end.seed(self.reader.rows, EXAMPLE))
        return 0

    cdef uint64_t *head_of(self, uint64_t size) except NULL:
        """Memory of the heap for the sample in hand."""
        cdef uint64_t offset = self.end.heap_take(size)
        fi_entry_set(self.reader.ring, self.reader.slot, self.reader.rows, offset, size)
        return <uint64_t *>(fi_slot_payload(self.reader.ring, self.reader.slot) + offset)

    cdef int write_packed(self, object packed, uint32_t kind) except -1:
        cdef uint64_t size = packed.size, offset = self.end.heap_take(size)
        packed.write_into(PyMemoryView_FromMemory(
            fi_slot_payload(self.reader.ring, self.reader.slot) + offset, size, PyBUF_WRITE),
            self.end.seed(self.reader.rows, kind))
        fi_entry_set(self.reader.ring, self.reader.slot, self.reader.rows, offset, size)
        return 0

    cdef int learn(self, object sample) except -1:
        """Makes the candidate fit this sample too. It only ever becomes more general."""
        schema = derive_schema([sample], 1)
        known = self.candidate if self.candidate is not None else self.schema
        if known is not None:
            schema = merge_schemas(known, schema)
        self.candidate = schema
        # One object as a whole: no column can ever hold it.
        self.learns = not (schema.container == _BARE and schema.specs[0][0] == _OBJECT)
        return 0

    cdef int use(self, Schema schema) except -1:
        """Lets the blocks from the next one on have these columns, if they are of use."""
        kinds = [spec[0] for spec in schema.specs]
        cdef uint64_t row_bytes = schema.bytes // <uint64_t>(schema.rows + 1) + 1
        cdef uint64_t rows = BLOCK_BYTES // row_bytes
        if rows < 1:
            rows = 1
        elif rows > self.reader.ring.geometry.rows:
            rows = self.reader.ring.geometry.rows
        self.candidate = None
        self.version += 1
        if _OBJECT in kinds and _ARRAY not in kinds and _RAGGED not in kinds:
            self.schema = None  # packed as a whole it is faster than field by field
            self.learns = False
        else:
            self.schema = schema.of_rows(rows)
        return 0


@cython.no_gc_clear  # as for a Lease
cdef class StreamLease(Lease):
    """Owner of a lent slot, as a `Lease` is of a leased one."""

    cdef StreamRing stream

    def __dealloc__(self):
        if self.stream is None or not self.stream.is_own():
            return
        if self.end(self.stream):
            fi_stream_withdraw(&self.stream.stream, self.slot)
        else:
            fi_stream_release(&self.stream.stream, self.slot)


cdef class Block:
    """What the parent knows of the block of one reader that it has in hand."""

    cdef StreamLease lease
    cdef bint lent
    cdef Schema schema  # of this block; None: nothing is in columns
    cdef Schema known  # the last one loaded
    cdef uint32_t version  # of the last one loaded


@cython.no_gc_clear  # as for a ParentRing
cdef class StreamRing(ParentRing):
    """The parent's end. All methods are called in the process that made it, by one thread at a
    time. `create` makes one."""

    cdef fi_stream stream
    cdef list blocks
    cdef uint32_t turn  # the reader to be visited first

    @staticmethod
    def create(arena, uint64_t credit):
        """The end of an arena with a number of slots, at least two, for each worker.

        Parameters
        ----------
        arena : Arena
        credit : samples that may be in flight: published, and not yet granted again.
        """
        cdef StreamRing end = StreamRing(arena, 0)
        if fi_stream_init(&end.stream, &end.arena.ring, credit, MOST_BYTES,
                          end.bell_writers) != FI_OK:
            raise MemoryError()
        end.blocks = [Block() for _ in range(end.arena.ring.geometry.workers)]
        return end

    def forget_blocks(self):
        """Lets go of what is in hand, once nothing will be taken any more."""
        self.blocks = []

    def __dealloc__(self):
        fi_stream_clear(&self.stream)

    def take_samples(self, Py_ssize_t most):
        """Some of what is ready, of one reader, in turn.

        Returns
        -------
        samples : list, of at most `most` samples, in order; None if nothing is ready.
        reader : int
        failure : tuple or None
            What ended the reader, for `load`; it comes after the samples, and after which nothing
            comes; empty if there was no memory for it.

        Raises
        ------
        Exception
            A sample cannot be loaded; OverwrittenError if shared memory holds what no reader writes.
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
                block.lease.bytes = fi_parent_committed(&self.parent, part.slot)
                for row in range(part.first, part.first + part.count):
                    if len(samples) == most:
                        return None
                    code = fi_stream_row_code(&self.stream, reader, row)
                    if code == FI_ERROR:
                        return self.failure(block, part.slot, row)
                    try:
                        samples.append(self.read(block, part.slot, row, code, reader))
                    except Exception:
                        if not samples:
                            raise
                        return None  # after those before it: it is the first one of the next turn
                    fi_stream_take(&self.stream, reader, 1)
            if not part.flags & FI_CLOSED:
                return None
            fi_stream_leave(&self.stream, reader, part.flags)
            block.lease = None  # which may give the slot back

    cdef int enter(self, Block block, uint32_t reader, uint32_t slot, uint64_t q) except -1:
        """Begins with a block: makes its lease, and loads its schema if that is a new one."""
        cdef StreamLease lease = StreamLease.__new__(StreamLease)
        cdef uint64_t offset, size
        cdef uint32_t version
        lease.arena = self.arena
        lease.slot = slot
        lease.payload = fi_slot_payload(&self.arena.ring, slot)
        lease.bytes = fi_parent_committed(&self.parent, slot)
        lease.q = q
        block.lent = fi_stream_lend(&self.stream, reader)
        if block.lent:
            lease.stream = self
            lease.begin(self)
        block.lease = lease
        block.schema = None
        version = fi_slot_schema(&self.arena.ring, slot)
        if version == 0:
            return 0
        if version != block.version:
            fi_result_get(&self.arena.ring, slot, &offset, &size)
            block.known = self.load_schema(lease, bytes(lease.part(offset, size)))
            block.version = version
        check_part(lease, 0, block.known.bytes)
        block.schema = block.known
        return 0

    cdef Schema load_schema(self, StreamLease lease, bytes record):
        checksum, rows = _RECORD.unpack_from(record)
        if checksum != fi_checksum(
                <char *>record + SUM_BYTES, len(record) - SUM_BYTES, lease.seed(0, RECORD)):
            raise OverwrittenError("shared memory was overwritten: the schema of a block")
        return Schema.load(record[_RECORD.size:], rows)

    cdef object failure(self, Block block, uint32_t slot, uint32_t row):
        cdef uint64_t offset, size
        fi_entry_get(&self.arena.ring, slot, row, &offset, &size)
        if size == 0:
            return ()
        return unpack(memoryview(bytearray(block.lease.part(offset, size))),
                      block.lease.seed(row, ERROR))

    cdef object read(self, Block block, uint32_t slot, uint32_t row, uint32_t code,
                     uint32_t reader):
        cdef uint64_t offset, size
        cdef uint64_t *head
        if code == FI_ROW_OK and block.schema is not None and row < block.schema.rows:
            return read_example(block.schema, block.lease, row, not block.lent)
        if code != FI_SPILL:
            raise OverwrittenError(
                f"shared memory was overwritten: row {row} of a block of reader {reader}")
        fi_entry_get(&self.arena.ring, slot, row, &offset, &size)
        check_part(block.lease, offset, size)
        head = <uint64_t *>(block.lease.payload + offset)
        if size >= HEAD_BYTES and (head[1] == 0 or head[1] == PLAIN) and (
                head[2] == size - HEAD_BYTES) and head[0] == fi_checksum(
                    head + 1, size - SUM_BYTES, fi_place_seed(block.lease.q, row, EXAMPLE)):
            if head[1] == PLAIN:
                return read_plain(head + 3, size - HEAD_BYTES)
            return loads(PyMemoryView_FromMemory(<char *>(head + 3), size - HEAD_BYTES, PyBUF_READ))
        part = block.lease.part(offset, size)
        return unpack(part if block.lent else memoryview(bytearray(part)),
                      block.lease.seed(row, EXAMPLE))

    def grant(self, uint64_t samples):
        """Lets readers publish that many samples more."""
        fi_stream_grant(&self.stream, samples)

    def is_ready(self):
        """Whether `take_samples` would have something."""
        cdef uint32_t reader
        for reader in range(self.arena.ring.geometry.workers):
            if not self.is_drained(reader):
                return True
        return False

    def has_ended(self, uint32_t reader):
        """Whether the reader has said that nothing comes any more, and all before was taken."""
        return self.stream.source[reader].ended

    def is_drained(self, uint32_t reader):
        """Whether nothing of this reader is to be taken now."""
        cdef fi_part part
        cdef int rc = fi_stream_ready(&self.stream, reader, &part)
        return rc == FI_E_BUSY or (
            rc == FI_OK and part.count == 0 and not part.flags & FI_CLOSED)
