"""The rows of the batch in the slot of a worker's claim: written, and read when all are done."""

import pickle

import numpy

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport PyArray_Type, bytes_of, is_contiguous, new_array, set_base
from fastiter._ring.arena cimport WorkerRing, as_packed
from fastiter._ring.lease cimport Lease
from fastiter._ring.schema cimport (
    ARRAY, MEMMAP, MOST_NDIM, OBJECT, RAGGED, TENSOR, Field, SlotWriter, entry_of, has_shape)

from fastiter._ring import row_reader
from fastiter._ring.serialization import packed_bytes, unpack
from fastiter._ring.stored_fields import signature_of
from fastiter._util.array_subtypes import array_of, wrap
from fastiter._util.failures import dump
from fastiter.errors import OverwrittenError

cnp.import_array()

cdef extern from "Python.h":
    Py_ssize_t references_of "Py_REFCNT"(PyObject *value)


cdef class SlotRows(SlotWriter):
    """Writes the rows of a claim, by the schema of its slot, and reads those that are done. Used by
    one thread of one worker process."""

    def __cinit__(self, *_):
        self.schema_number = -1
        self.message_of = <uint64_t>-1

    @cython.final
    cdef int64_t index_of(self, uint32_t row) noexcept:
        return fi_row_index(self.end.worker.ring, self.end.claim.slot, row)[0]

    @cython.final
    cdef object message(self):
        """The object in the plan of the current batch, besides its indices: a request; as bytes the
        seeds of its rows; a list of their first number, their keys and the seeds; or None."""
        cdef WorkerRing end = self.end
        cdef uint64_t offset = 0, size = 0
        if self.message_of == end.claim.q:
            return self.plan_message
        if fi_slot_request(end.worker.ring, end.claim.slot, &offset, &size) != FI_OK:
            raise OverwrittenError("shared memory was overwritten: the place of a request")
        self.plan_message = self.seeds = None
        if size > 0:
            part = PyBytes_FromStringAndSize(end.payload(offset + size) + offset, size)
            self.plan_message = unpack(memoryview(bytearray(part)),
                                       fi_place_seed(end.claim.q, 0, FI_PACKED_REQUEST))
        self.message_of = end.claim.q
        return self.plan_message

    def own_seed(self):
        """The seed of the row that is fetched by itself; of the converter between rows."""
        message = self.message()
        if self.seeds is None:
            self.seeds = numpy.frombuffer(message if self.keys is None else message[2], numpy.uint64)
        return int(self.seeds[self.row if self.row >= 0 else self.end.claim.n])

    def wait_begins(self):
        """The rows that are fetched wait for those of others: the time limit begins anew."""
        fi_worker_stat_fetch_begins(self.end.stat, self.index_of(self.end.claim.first))

    @cython.final
    cdef int look_at_message(self) except -1:
        """Finds the keys of the batch, or that it is made as a whole; which it is if the message cannot be
        read, for that raises the reason again."""
        self.keys, self.is_whole = None, False
        if fi_slot_has_request(self.end.worker.ring, self.end.claim.slot):
            try:
                message = self.message()
                if type(message) is list:
                    self.first_number, self.keys = message[:2]
                self.is_whole = self.keys is None and type(message) is not bytes
            except BaseException:
                self.is_whole = True
        return 0

    # ---- written

    @cython.final
    cdef uint32_t store(self, uint32_t row, object example) except 0:
        if fi_slot_schema(self.end.worker.ring, self.end.claim.slot) != self.schema_number:
            self.load_schema()  # looks again; the call alone would cost each row time
        if self.write_into_slot(row, example):
            return FI_ROW_OK
        self.end.pack_row(as_packed(example), row, FI_PACKED_EXAMPLE)
        return FI_SPILL

    @cython.final
    cdef int load_schema(self) except -1:
        """Uses the slot's schema from now on."""
        cdef uint32_t number = fi_slot_schema(self.end.worker.ring, self.end.claim.slot)
        if number == self.schema_number:
            return 0
        self.use_schema(None)
        self.row_bytes = self.signature = 0
        try:
            record = self.end.arena.schema_record(number)
            if record:  # number 0 stays empty: nothing is known yet, everything is spilled
                self.use_schema(pickle.loads(record))
                self.row_bytes = self.schema.row_bytes
                self.signature = signature_of(self.schema)
        except Exception:
            pass  # a type that cannot be imported here, or a corrupt record: rows are spilled
        self.schema_number = number
        return 0

    # ---- written from a cache

    @cython.final
    cdef bint find_stored(self, fi_cache *cache, uint64_t number) except -1:
        """Whether a row of a cache fits the slot's columns, so that `copy_stored` may copy it."""
        cdef fi_cache_entry *head = <fi_cache_entry *>self.stored
        cdef const int64_t *field = <const int64_t *>(self.stored + FI_CACHE_HEAD)
        cdef Py_ssize_t i
        cdef Field *f
        self.load_schema()
        if self.signature == 0 or not fi_cache_peek(cache, number, &self.stored_word, head) or (
                head.signature != self.signature):
            return False
        for i in range(self.schema.count):
            f = &self.schema.fields[i]
            if f.kind == ARRAY and not has_shape(field + 1, f):
                return False
            field += 1 + f.ndim if f.kind in (ARRAY, RAGGED) else (f.itemsize + 7) // 8
        return <const char *>field <= self.stored + FI_CACHE_HEAD + head.fields

    @cython.final
    cdef bint copy_stored(self, fi_cache *cache, uint32_t row) except -1:
        """Writes the row that was found. False if it has been emptied: what was written then means
        nothing."""
        cdef const fi_cache_entry *head = <fi_cache_entry *>self.stored
        cdef const int64_t *field = <const int64_t *>(self.stored + FI_CACHE_HEAD)
        cdef uint64_t size, at
        cdef char *place
        cdef const char *source
        cdef Py_ssize_t i
        cdef Field *f
        cdef bint is_there
        self.use_slot()
        for i in range(self.schema.count):
            f = &self.schema.fields[i]
            if f.kind not in (ARRAY, RAGGED):
                memcpy(self.places[i] + f.stride * row, field, f.itemsize)
                field += (f.itemsize + 7) // 8
                continue
            size = fi_array_bytes(field + 1, f.ndim, f.itemsize)
            if size > head.size or <uint64_t>field[0] > head.size - size:  # a size of -1, too
                return False
            if f.kind == ARRAY:
                place = self.places[i] + f.stride * row
            else:
                place = self.end.take_array(entry_of(f, self.payload, row), field + 1, f.ndim, size)
            if size > 0:
                at = head.offset + FI_CACHE_HEAD + <uint64_t>field[0]
                source = fi_cache_view(cache, at, size)
                if source != NULL:
                    self.copy_bytes(place, source, NULL, size, self.uncached and f.kind == ARRAY)
                else:
                    with nogil:
                        is_there = fi_cache_copy(cache, at, place, size)
                    if not is_there:
                        return False
            field += 1 + f.ndim
        return fi_cache_has(cache, head.row, self.stored_word)

    # ---- written by the dataset

    @cython.final
    cdef tuple give(self, uint32_t row):
        """The arrays of the row's columns, for the dataset to write into; None if there are none, or
        if an array of an example may be without: rows of a column differ in shape, or are objects."""
        cdef Py_ssize_t i
        cdef Field *f
        self.load_schema()
        if self.schema is None:
            return None
        self.use_slot()
        self.given = []
        shown = []
        for i in range(self.schema.count):
            f = &self.schema.fields[i]
            if f.kind in (RAGGED, OBJECT) or f.subtype == MEMMAP:
                return None
            if f.kind == ARRAY:
                Py_INCREF(<object>f.descr)  # the constructor takes it over
                array = new_array(&PyArray_Type, f.descr, f.ndim, f.dims, NULL,
                                  self.places[i] + f.stride * row, cnp.NPY_ARRAY_CARRAY, NULL)
                Py_INCREF(self.end.arena)
                set_base(<cnp.PyArrayObject *>array, <PyObject *>self.end.arena)
                self.given.append(array)
                shown.append(wrap(array, f.subtype) if f.subtype else array)
        array = None
        return tuple(shown) if shown else None

    @cython.final
    cdef uint32_t write_given(self, uint32_t row, object into, object number) except 1:
        """Has the dataset write a row, by its method `into`; the code of the row then, or 0 if it has to
        be fetched. What the example has in other places than their own is copied first."""
        cdef Py_ssize_t place
        cdef uint32_t code = FI_ROW_OK
        out = self.give(row)
        if out is None:
            self.given = None
            return 0
        fi_worker_stat_fetch_begins(self.end.stat, self.index)
        example = into(number, out)
        out = None
        given, self.is_mixed = self.given, False
        if not self.write_into_slot(row, example):
            if self.is_mixed:
                example = unpack(memoryview(packed_bytes(example)))
            self.given = None
            code = self.store(row, example)
        example = None
        self.given = given
        self.is_kept = False
        for place in range(len(given)):
            self.is_kept |= self.is_in_use(place)
        self.given = None
        return code

    cdef bint mixes(self, Py_ssize_t row, PyObject **values) except -1:
        cdef Py_ssize_t number, place = 0
        cdef Field *f
        cdef const char *data
        for number in range(self.schema.count):
            f = &self.schema.fields[number]
            if f.kind != ARRAY:
                continue
            if self.is_in_use(place):
                value = array = <object>values[number]
                if f.subtype == TENSOR:
                    array = array_of(value)  # ends here: the tensor has the memory
                data = NULL
                if type(array) is numpy.ndarray and is_contiguous(<cnp.PyArrayObject *>array):
                    data = bytes_of(<cnp.PyArrayObject *>array)
                value = array = None
                if data != self.places[number] + f.stride * row:
                    return True
            place += 1
        return False

    @cython.final
    cdef bint is_in_use(self, Py_ssize_t place) noexcept:
        """Whether something else than `given` refers to an array of it: views do, and tensors."""
        return references_of(PyList_GET_ITEM(self.given, place)) > 1

    @cython.final
    cdef uint32_t store_failure(self, uint32_t row, object error) except 0:
        fi_entry_set(self.end.worker.ring, self.end.claim.slot, row, 0, 0)
        try:
            self.end.pack_error(dump(error), row)
        except BaseException:  # it has no text, or another one came: the fact has to do
            pass
        return FI_ERROR

    # ---- read

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

    # ---- ragged fields

    @cython.final
    cdef bint pad_field(self, Field *f, list rows, object fill, int64_t max_length,
                        int64_t multiple) except -1:
        cdef Py_ssize_t n = self.end.claim.n if rows is None else len(rows), i
        cdef uint64_t committed = 0
        cdef char *payload = self.end.whole_payload(&committed)
        cdef char *place
        cdef int64_t shape[MOST_NDIM]
        cdef int64_t *entry = entry_of(f, payload, self.schema.rows)  # that of the joined array
        cdef uint64_t size
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
            place = self.end.take_array(entry, shape, f.ndim, size)
            with nogil:
                fi_pad(place, shape, f.ndim, f.itemsize, sources, shapes, n, fill_bytes)
            return True
        finally:
            PyMem_Free(sources)

    @cython.final
    cdef bint find_ragged(self, Field *f, char *payload, uint64_t committed, list rows,
                          const void **sources, int64_t *shapes) except -1:
        """Finds the arrays of these rows, and their shapes; False if an entry is corrupt."""
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
