"""Rows in slots: what examples have in common, and how a worker writes them.

A `Schema` says what the examples of a dataset have in common: their container, and per field
what it holds. Fields of equal shape lie in columns; ragged arrays lie in the slot's heap, with a
column of offsets and shapes; other objects are packed into the heap, with a column of offsets
and lengths. An example that does not fit is spilled: packed as a whole. `fastiter._ring.views` reads
them again.
"""

import pickle
import sys

import numpy

cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_TYPE, Py_XDECREF, Py_XINCREF
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport (
    PyArray_Type, bytes_of, copy_into, descr_of, dims_of, equivalent, is_contiguous, nbytes_of,
    ndim_of, new_array, scalar_into)
from fastiter._ring.worker_ring cimport WorkerRing
from fastiter._clib.ring_words import PACKED_FIELD as _PACKED_FIELD
from fastiter._util.torch_tensors import array_of
from fastiter._ring.serialization import Packed

cnp.import_array()

cdef extern from "Python.h":
    int PyBUF_WRITE
    PyObject **items_of "&PyTuple_GET_ITEM"(object example, int first)
    void *type_of "Py_TYPE"(PyObject *value)

# Containers of an example.
BARE, TUPLE, LIST, DICT, NAMED = range(5)
# Kinds of field.
ARRAY, RAGGED, INT, FLOAT, BOOL, SCALAR, OBJECT = range(7)

MOST_FIELDS = FIELD_LIMIT

cdef enum:
    ALIGNMENT = 64
    # Below it, giving up and taking back Python's lock costs more than the copy.
    NOGIL_BYTES = 65536

cdef uint32_t PACKED_FIELD = _PACKED_FIELD
cdef tuple NUMBERS = (numpy.dtype(numpy.int64), numpy.dtype(numpy.float64), numpy.dtype(numpy.bool_))


cdef inline bint has_shape(cnp.PyArrayObject *array, Field *f) noexcept:
    cdef int axis
    for axis in range(f.ndim):
        if dims_of(array)[axis] != f.dims[axis]:
            return False
    return True


def _handable(dtype):
    """True if numpy.concatenate keeps this dtype: it makes byte order native and repacks
    structures."""
    return dtype.isnative and dtype.kind != "V"


cdef class Schema:
    """What the rows of a slot hold, and where.

    Parameters
    ----------
    container : BARE, TUPLE, LIST, DICT or NAMED, a tuple of a type with names for its items.
    keys : the keys of a DICT, in order; the type of a NAMED; else None.
    specs : per field (kind, dtype or None, shape or number of dimensions).
    rows : rows that a slot has room for.
    subtypes : what the values of ARRAY and RAGGED fields are if not plain arrays, by the numbers of
        the fields. They lie in the slot as arrays do.

    Attributes
    ----------
    bytes : int
        Size of all columns; the slot's heap starts there.
    row_bytes : int
        Of one row in all columns.
    type : type or None
        Of the examples, if they are named tuples.
    """

    def __cinit__(self, int container, keys, specs, Py_ssize_t rows, subtypes=None):
        cdef Field *f
        cdef uint64_t end = 0
        self.container = container
        self.type = keys if container == _NAMED else None
        self.keys = None if container != _DICT else tuple(
            sys.intern(key) if type(key) is str else key for key in keys)
        self.specs = tuple(specs)
        self.subtypes = dict(subtypes or {})
        self.rows = rows
        self.count = len(self.specs)
        if self.count > FIELD_LIMIT:
            raise ValueError(f"an example of {self.count} fields; at most {FIELD_LIMIT} have columns")
        self.dtypes = []
        self.fields = <Field *>PyMem_Calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError()
        for number, (kind, dtype, shape) in enumerate(self.specs):
            f = &self.fields[number]
            f.kind = kind
            f.subtype = self.subtypes.get(number, 0)
            f.array_type = <void *>(numpy.memmap if f.subtype == _MEMMAP else numpy.ndarray)
            if kind in (_INT, _FLOAT, _BOOL):
                dtype = NUMBERS[kind - _INT]
            elif dtype is not None and dtype.kind != "V":
                # What pickle makes is equal to NumPy's own, which arrays have; identity is faster.
                dtype = numpy.dtype(dtype.str)
            self.dtypes.append(dtype)
            if dtype is not None:
                f.descr = <cnp.PyArray_Descr *>dtype
                f.itemsize = dtype.itemsize
                f.handable = _handable(dtype)
                f.timed = dtype.kind in "mM"
                f.scalar = <cnp.PyTypeObject *>dtype.type
            f.stride = f.itemsize
            if kind == _ARRAY:
                f.ndim = len(shape)
                for axis in range(f.ndim):
                    f.dims[axis] = shape[axis]
                    f.stride *= f.dims[axis]
            elif kind == _RAGGED:
                f.ndim = shape
                f.stride = (1 + f.ndim) * sizeof(int64_t)
            elif kind == _OBJECT:
                f.stride = 2 * sizeof(int64_t)
            self.row_bytes += f.stride
            f.offset = end
            # One row more than the batch: the batch converter's entry for the field as a whole.
            end = fi_align_up(end + <uint64_t>f.stride * (rows + 1), ALIGNMENT)
        self.bytes = end

    def __dealloc__(self):
        cdef Py_ssize_t number
        if self.fields != NULL:
            for number in range(self.count):
                Py_XDECREF(<PyObject *>self.fields[number].twin)
        PyMem_Free(self.fields)

    def record(self):
        """What `load` makes an equal schema of."""
        return pickle.dumps(
            (self.container, self.type or self.keys, self.specs, self.subtypes), protocol=5)

    @staticmethod
    def load(record, rows):
        container, keys, specs, subtypes = pickle.loads(record)
        return Schema(container, keys, specs, rows, subtypes)

    def of_rows(self, rows):
        """The same for slots of so many rows."""
        return Schema(self.container, self.type or self.keys, self.specs, rows, self.subtypes)

    def same_as(self, Schema other):
        return (self.container, self.type, self.keys, self.specs, self.subtypes) == (
            other.container, other.type, other.keys, other.specs, other.subtypes)

    # ---- worker: one example into its row

    cdef int write(self, WorkerRing end, char *payload, Py_ssize_t row, object example) except -1:
        """1: the example is in its row. 0: it does not fit this schema."""
        cdef PyObject *held[FIELD_LIMIT]
        cdef Py_ssize_t number
        if self.container == _TUPLE or self.container == _NAMED:
            if self.container == _TUPLE:
                if not PyTuple_CheckExact(example):
                    return 0
            elif <PyObject *>Py_TYPE(example) != <PyObject *>self.type:
                return 0
            if PyTuple_GET_SIZE(example) != self.count:
                return 0
            return self.write_fields(end, payload, row, items_of(example, 0))
        if self.container == _BARE:
            held[0] = <PyObject *>example
            return self.write_fields(end, payload, row, held)
        # What packs a field, or another thread during a copy, may change a list or a dict.
        if not self.hold(example, held):
            return 0
        try:
            return self.write_fields(end, payload, row, held)
        finally:
            for number in range(self.count):
                Py_DECREF(<object>held[number])

    cdef int hold(self, object example, PyObject **values) except -1:
        """Takes references to the values of a list or a dict; 0, and none, if they do not fit."""
        cdef int fits
        with cython.critical_section(example):  # another thread may change it
            fits = self.hold_values(example, values)
        return fits

    cdef int hold_values(self, object example, PyObject **values) except -1:
        cdef Py_ssize_t number, place = 0
        cdef PyObject *key
        cdef PyObject *known
        if self.container == _LIST:
            if not PyList_CheckExact(example) or PyList_GET_SIZE(example) != self.count:
                return 0
            for number in range(self.count):
                values[number] = <PyObject *>PyList_GET_ITEM(example, number)
        else:
            if not PyDict_CheckExact(example) or PyDict_Size(example) != self.count:
                return 0
            for number in range(self.count):
                if not PyDict_Next(example, &place, &key, &values[number]):
                    return 0
                known = <PyObject *>PyTuple_GET_ITEM(self.keys, number)
                # Keys are strings and integers: to compare two of one type runs no code of theirs.
                if key != known and not (type_of(key) == type_of(known) and
                        PyObject_RichCompareBool(<object>key, <object>known, Py_EQ)):
                    return 0
        for number in range(self.count):
            Py_XINCREF(values[number])
        return 1

    cdef int write_fields(self, WorkerRing end, char *payload, Py_ssize_t row,
                          PyObject **values) except -1:
        cdef Py_ssize_t number
        cdef cnp.PyArrayObject *array
        cdef PyObject *value
        cdef char *place
        cdef Field *f
        for number in range(self.count):
            f = &self.fields[number]
            value = values[number]
            place = payload + f.offset + <uint64_t>f.stride * row
            if f.subtype == _TENSOR:
                seen = array_of(<object>value)  # keeps the array alive during the copy
                value = <PyObject *>seen
            if f.kind == _ARRAY:
                array = <cnp.PyArrayObject *>value
                if not self.is_of(f, value) or not has_shape(array, f):
                    return 0
                if f.stride < FI_UNCACHED_LEAST and is_contiguous(array):
                    memcpy(place, bytes_of(array), f.stride)
                else:
                    self.copy_array(f, place, array, f.stride, end.uncached)
            elif f.kind == _RAGGED:
                if not self.is_of(f, value):
                    return 0
                self.write_ragged(end, f, payload, <int64_t *>place, <cnp.PyArrayObject *>value)
            elif f.kind == _OBJECT:
                self.pack(end, payload, <int64_t *>place, row, <object>value)
            elif not self.write_number(f, place, value):
                return 0
        return 1

    cdef int is_of(self, Field *f, PyObject *value) except -1:
        """Whether the value is an array, of exactly the field's type, its dtype and its number of
        dimensions."""
        cdef cnp.PyArray_Descr *descr
        if type_of(value) != f.array_type or ndim_of(<cnp.PyArrayObject *>value) != f.ndim:
            return 0
        descr = descr_of(<cnp.PyArrayObject *>value)
        if descr == f.descr or descr == f.twin:
            return 1
        if not equivalent(descr, f.descr):
            return 0
        Py_XINCREF(<PyObject *>descr)
        Py_XDECREF(<PyObject *>f.twin)
        f.twin = descr
        return 1

    cdef int write_number(self, Field *f, char *place, PyObject *value) except -1:
        cdef int overflow = 0
        if f.kind == _INT:
            if not PyLong_CheckExact(<object>value):
                return 0
            (<int64_t *>place)[0] = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
            return overflow == 0
        if f.kind == _FLOAT:
            if not PyFloat_CheckExact(<object>value):
                return 0
            (<double *>place)[0] = PyFloat_AS_DOUBLE(<object>value)
            return 1
        if f.kind == _BOOL:
            if <object>value is not True and <object>value is not False:
                return 0
            (<uint8_t *>place)[0] = <object>value is True
            return 1
        if type_of(value) != <void *>f.scalar or (
                f.timed and (<object>value).dtype != <object>f.descr):
            return 0
        scalar_into(value, place)
        return 1

    cdef int write_ragged(self, WorkerRing end, Field *f, char *payload, int64_t *entry,
                          cnp.PyArrayObject *array) except -1:
        cdef Py_ssize_t size = nbytes_of(array)
        cdef int axis
        entry[0] = <int64_t>end.heap_take(size)
        for axis in range(f.ndim):
            entry[1 + axis] = dims_of(array)[axis]
        return self.copy_array(f, payload + entry[0], array, size, False)

    cdef int pack(self, WorkerRing end, char *payload, int64_t *entry, Py_ssize_t row,
                  object value) except -1:
        packed = Packed(value)
        cdef Py_ssize_t size = packed.size
        entry[0] = <int64_t>end.heap_take(size)
        entry[1] = size
        packed.write_into(PyMemoryView_FromMemory(payload + entry[0], size, PyBUF_WRITE),
                          end.seed(<uint32_t>row, PACKED_FIELD))
        return 1

    cdef int copy_array(self, Field *f, char *place, cnp.PyArrayObject *array,
                        Py_ssize_t bytes, bint uncached) except -1:
        cdef char *source
        if is_contiguous(array):
            source = bytes_of(array)
            if bytes >= NOGIL_BYTES:
                with nogil:
                    fi_copy(place, source, bytes, uncached)
            else:
                fi_copy(place, source, bytes, uncached)
            return 1
        Py_INCREF(<object>f.descr)
        target = new_array(&PyArray_Type, f.descr, f.ndim, dims_of(array), NULL,
                                      place, cnp.NPY_ARRAY_CARRAY, NULL)
        copy_into(<cnp.PyArrayObject *>target, array)
        return 1

    cdef int64_t *entry(self, Field *f, char *payload, Py_ssize_t row) noexcept:
        return <int64_t *>(payload + f.offset + <uint64_t>f.stride * row)

    # ---- worker: the finish

    def pad_fields(self, WorkerRing end, list steps, list rows):
        """Writes one output array per ragged field into the slot in hand.

        Parameters
        ----------
        steps : per field a tuple that begins with a 0-d array of the field's dtype to pad with, or
            None, when only equal shapes are put together; the most that is taken of the first
            axis, or -1; of what the padded first axis is a multiple.
        rows : numbers of the rows that are put together, ascending; None for all.

        Returns
        -------
        bool : False if a field cannot be put together; the parent does it then, or raises.
        """
        cdef char *payload = fi_slot_payload(end.worker.ring, end.turn.slot)
        cdef Field *f
        for number in range(self.count):
            f = &self.fields[number]
            if f.kind != _RAGGED:
                continue
            fill, max_length, multiple = steps[number][:3]
            if not self.pad_field(end, payload, f, rows, fill, max_length, multiple):
                return False
        return True

    @property
    def has_ragged_fields(self):
        """True if every field can be put together, and a ragged one needs the batch converter for it."""
        kinds = [spec[0] for spec in self.specs]
        return (
            _RAGGED in kinds
            and _OBJECT not in kinds
            and self.container != _LIST
            and all(self.fields[number].handable for number in range(self.count))
        )

    cdef bint pad_field(self, WorkerRing end, char *payload, Field *f, list rows, object fill,
                        int64_t max_length, int64_t multiple) except -1:
        cdef Py_ssize_t n = end.turn.n if rows is None else len(rows), row
        cdef int axis
        cdef int64_t shape[MOST_NDIM]
        cdef int64_t *entry
        cdef uint64_t size = <uint64_t>n * f.itemsize, offset
        cdef const void **sources = <const void **>PyMem_Malloc(n * (1 + f.ndim) * sizeof(int64_t))
        cdef int64_t *shapes = <int64_t *>(sources + n)
        cdef void *padding = NULL
        cdef bint equal = True
        if sources == NULL:
            raise MemoryError()
        try:
            if not self.find_ragged(end, payload, f, rows, sources, shapes):
                return False
            for row in range(n):
                if max_length >= 0 and shapes[row * f.ndim] > max_length:
                    shapes[row * f.ndim] = max_length
                for axis in range(f.ndim):
                    equal = equal and shapes[row * f.ndim + axis] == shapes[axis]
            if fill is None and not equal:
                return False
            if fi_pad_shape(shape, f.ndim, shapes, n) != FI_OK:
                return False
            if fill is not None and shape[0] % multiple != 0:
                shape[0] += multiple - shape[0] % multiple
            for axis in range(f.ndim):
                if shape[axis] and size > (1 << 46) // <uint64_t>shape[axis]:
                    return False
                size *= shape[axis]
            offset = end.heap_take(size)
            if fill is not None:
                padding = bytes_of(<cnp.PyArrayObject *>fill)
            with nogil:
                fi_pad(payload + offset, shape, f.ndim, f.itemsize, sources, shapes, n,
                       padding if padding != NULL else payload)
            entry = self.entry(f, payload, self.rows)
            entry[0] = <int64_t>offset
            for axis in range(f.ndim):
                entry[1 + axis] = shape[axis]
            return True
        finally:
            PyMem_Free(sources)

    cdef bint find_ragged(self, WorkerRing end, char *payload, Field *f, list rows,
                          const void **sources, int64_t *shapes) except -1:
        """Where the arrays of these rows lie, and their shapes; False if an entry is spoilt."""
        cdef uint64_t committed = fi_slot_committed(end.worker.ring, end.turn.slot)
        cdef char *entries = payload + f.offset
        cdef Py_ssize_t place
        if rows is None:
            return fi_ragged_rows(payload, committed, entries, f.stride, f.ndim, f.itemsize,
                                  end.turn.n, sources, shapes) == FI_OK
        for place in range(len(rows)):
            if fi_ragged_rows(payload, committed, entries + <Py_ssize_t>rows[place] * f.stride,
                              f.stride, f.ndim, f.itemsize, 1, sources + place,
                              shapes + place * f.ndim) != FI_OK:
                return False
        return True
