"""Rows in slots: how examples become columns, and columns examples and batches.

A `Schema` says what the examples of a dataset have in common: their container, and per field
what it holds. Fields of equal shape lie in columns; ragged arrays lie in the slot's heap, with a
column of offsets and shapes; other objects are packed into the heap, with a column of offsets
and lengths. An example that does not fit is spilled: packed as a whole.
"""

import pickle
import sys

import numpy

cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact, PyLong_FromLongLong
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_RichCompareBool, Py_EQ
from cpython.ref cimport Py_INCREF, Py_TYPE
from cpython.tuple cimport (
    PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_New, PyTuple_SET_ITEM)
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._csrc cimport *
from fastiter._numpy cimport (
    PyArray_Type, base_of, bytes_of, copy_into, descr_of, dims_of, equivalent, is_contiguous,
    nbytes_of, ndim_of, new_array, scalar_into, scalar_of, set_base)
from fastiter._ring cimport Lease, WorkerEnd
from fastiter._transport import Packed, unpack

cnp.import_array()

cdef extern from "Python.h":
    int PyBUF_WRITE

# Containers of an example.
BARE, TUPLE, LIST, DICT = range(4)
# Kinds of field.
ARRAY, RAGGED, INT, FLOAT, BOOL, SCALAR, OBJECT = range(7)

cdef enum:
    _BARE = 0
    _TUPLE = 1
    _LIST = 2
    _DICT = 3
    _ARRAY = 0
    _RAGGED = 1
    _INT = 2
    _FLOAT = 3
    _BOOL = 4
    _SCALAR = 5
    _OBJECT = 6
    ALIGNMENT = 64
    # Below it, giving up and taking back Python's lock costs more than the copy.
    NOGIL_BYTES = 65536

cdef object ndarray = numpy.ndarray
cdef uint64_t NOT_CONVERTED = 0xFFFFFFFFFFFFFFFF
cdef tuple NUMBERS = (numpy.dtype(numpy.int64), numpy.dtype(numpy.float64), numpy.dtype(numpy.bool_))


def _handable(dtype):
    """True if numpy.concatenate keeps this dtype: it makes byte order native and repacks
    structures."""
    return dtype.isnative and dtype.kind != "V"


cdef class Schema:
    """What the rows of a slot hold, and where.

    Parameters
    ----------
    container : BARE, TUPLE, LIST or DICT.
    keys : the keys of a DICT, in order, else None.
    specs : per field (kind, dtype or None, shape or number of dimensions).
    rows : rows that a slot has room for.

    Attributes
    ----------
    bytes : int
        Size of all columns; the slot's heap starts there.
    """

    def __cinit__(self, int container, keys, specs, Py_ssize_t rows):
        cdef Field *f
        cdef uint64_t end = 0
        self.container = container
        self.keys = None if keys is None else tuple(
            sys.intern(key) if type(key) is str else key for key in keys)
        self.specs = tuple(specs)
        self.rows = rows
        self.count = len(self.specs)
        self.dtypes = []
        self.fields = <Field *>PyMem_Calloc(self.count, sizeof(Field))
        if self.fields == NULL:
            raise MemoryError()
        for number, (kind, dtype, shape) in enumerate(self.specs):
            f = &self.fields[number]
            f.kind = kind
            if kind in (_INT, _FLOAT, _BOOL):
                dtype = NUMBERS[kind - _INT]
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
            f.offset = end
            # One row more than the batch: the finisher's entry for the field as a whole.
            end = fi_align_up(end + <uint64_t>f.stride * (rows + 1), ALIGNMENT)
        self.bytes = end

    def __dealloc__(self):
        PyMem_Free(self.fields)

    def record(self):
        """What `load` makes an equal schema of."""
        return pickle.dumps((self.container, self.keys, self.specs), protocol=5)

    @staticmethod
    def load(record, rows):
        return Schema(*pickle.loads(record), rows)

    def same_as(self, Schema other):
        return (self.container, self.keys, self.specs) == (
            other.container, other.keys, other.specs)

    # ---- worker: one example into its row

    cdef int write(self, WorkerEnd end, char *payload, Py_ssize_t row, object example) except -1:
        """1: the example is in its row. 0: it does not fit this schema."""
        cdef Py_ssize_t number, place = 0
        cdef PyObject *key
        cdef PyObject *value
        if self.container == _TUPLE:
            if not PyTuple_CheckExact(example) or PyTuple_GET_SIZE(example) != self.count:
                return 0
            for number in range(self.count):
                if not self.write_field(end, payload, row, &self.fields[number],
                                        <object>PyTuple_GET_ITEM(example, number)):
                    return 0
            return 1
        if self.container == _BARE:
            return self.write_field(end, payload, row, &self.fields[0], example)
        if self.container == _LIST:
            if not PyList_CheckExact(example):
                return 0
            for number in range(self.count):
                # Packing a field may run code that changes the list.
                if PyList_GET_SIZE(example) != self.count or not self.write_field(
                        end, payload, row, &self.fields[number],
                        <object>PyList_GET_ITEM(example, number)):
                    return 0
            return 1
        if not PyDict_CheckExact(example) or PyDict_Size(example) != self.count:
            return 0
        for number in range(self.count):
            if not PyDict_Next(example, &place, &key, &value):
                return 0
            held = <object>value
            if key != <PyObject *>PyTuple_GET_ITEM(self.keys, number) and not (
                    Py_TYPE(<object>key) == Py_TYPE(<object>PyTuple_GET_ITEM(self.keys, number))
                    and PyObject_RichCompareBool(
                        <object>key, <object>PyTuple_GET_ITEM(self.keys, number), Py_EQ)):
                return 0
            if not self.write_field(end, payload, row, &self.fields[number], held):
                return 0
        return 1

    cdef int write_field(self, WorkerEnd end, char *payload, Py_ssize_t row, Field *f,
                         object value) except -1:
        cdef char *place = payload + f.offset + <uint64_t>f.stride * row
        cdef cnp.PyArrayObject *array
        cdef int overflow = 0, axis
        cdef int64_t *entry
        cdef Py_ssize_t size
        if f.kind == _ARRAY or f.kind == _RAGGED:
            if <PyObject *>Py_TYPE(value) != <PyObject *>ndarray:
                return 0
            array = <cnp.PyArrayObject *>value
            if ndim_of(array) != f.ndim or (
                    descr_of(array) != f.descr
                    and not equivalent(descr_of(array), f.descr)):
                return 0
            if f.kind == _ARRAY:
                for axis in range(f.ndim):
                    if dims_of(array)[axis] != f.dims[axis]:
                        return 0
                return self.copy_array(f, place, array, f.stride)
            entry = <int64_t *>place
            size = nbytes_of(array)
            entry[0] = <int64_t>end.heap_take(size)
            for axis in range(f.ndim):
                entry[1 + axis] = dims_of(array)[axis]
            return self.copy_array(f, payload + entry[0], array, size)
        if f.kind == _INT:
            if not PyLong_CheckExact(value):
                return 0
            (<int64_t *>place)[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
            return overflow == 0
        if f.kind == _FLOAT:
            if not PyFloat_CheckExact(value):
                return 0
            (<double *>place)[0] = PyFloat_AS_DOUBLE(value)
            return 1
        if f.kind == _BOOL:
            if value is not True and value is not False:
                return 0
            (<uint8_t *>place)[0] = value is True
            return 1
        if f.kind == _SCALAR:
            if <cnp.PyTypeObject *>Py_TYPE(value) != f.scalar or (
                    f.timed and value.dtype != <object>f.descr):
                return 0
            scalar_into(<PyObject *>value, place)
            return 1
        packed = Packed(value)
        size = packed.size
        entry = <int64_t *>place
        entry[0] = <int64_t>end.heap_take(size)
        entry[1] = size
        packed.write_into(PyMemoryView_FromMemory(payload + entry[0], size, PyBUF_WRITE))
        return 1

    cdef int copy_array(self, Field *f, char *place, cnp.PyArrayObject *array,
                        Py_ssize_t bytes) except -1:
        cdef char *source
        if is_contiguous(array):
            source = bytes_of(array)
            if bytes >= NOGIL_BYTES:
                with nogil:
                    memcpy(place, source, bytes)
            else:
                memcpy(place, source, bytes)
            return 1
        Py_INCREF(<object>f.descr)
        target = new_array(&PyArray_Type, f.descr, f.ndim, dims_of(array), NULL,
                                      place, cnp.NPY_ARRAY_CARRAY, NULL)
        copy_into(<cnp.PyArrayObject *>target, array)
        return 1

    cdef int64_t *entry(self, Field *f, char *payload, Py_ssize_t row) noexcept:
        return <int64_t *>(payload + f.offset + <uint64_t>f.stride * row)

    # ---- worker: the finish

    def pad_fields(self, WorkerEnd end, list fills):
        """Writes one output array per ragged field into the slot in hand.

        Parameters
        ----------
        fills : per field a 0-d array of the field's dtype to pad with, or None: then only equal
            shapes are put together.

        Returns
        -------
        bool : False if a field cannot be put together; the parent does it then, or raises.
        """
        cdef char *payload = fi_slot_payload(end.worker.ring, end.turn.slot)
        cdef Field *f
        for number in range(self.count):
            f = &self.fields[number]
            if f.kind == _RAGGED and not self.pad_field(end, payload, f, fills[number]):
                return False
        return True

    @property
    def has_ragged_fields(self):
        """True if every field can be put together, and a ragged one needs the finisher for it."""
        kinds = [spec[0] for spec in self.specs]
        return (
            _RAGGED in kinds
            and _OBJECT not in kinds
            and self.container != _LIST
            and all(self.fields[number].handable for number in range(self.count))
        )

    cdef bint pad_field(self, WorkerEnd end, char *payload, Field *f, object fill) except -1:
        cdef Py_ssize_t n = end.turn.n, row
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
            for row in range(n):
                entry = self.entry(f, payload, row)
                sources[row] = payload + entry[0]
                for axis in range(f.ndim):
                    shapes[row * f.ndim + axis] = entry[1 + axis]
                    equal = equal and entry[1 + axis] == shapes[axis]
            if fill is None and not equal:
                return False
            if fi_pad_shape(shape, f.ndim, shapes, n) != FI_OK:
                return False
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

    # ---- parent: rows back into examples

    def read(self, Lease lease, bint copy, dict odd):
        """The examples of a slot, as a list.

        Parameters
        ----------
        copy : give arrays memory of their own, instead of views of the slot.
        odd : examples of the rows that are not in the columns.
        """
        cdef Py_ssize_t row, number
        cdef list batch = []
        for row in range(lease.rows):
            if odd and row in odd:
                example = odd[row]
            elif self.container == _BARE:
                example = self.read_field(lease, row, &self.fields[0], copy)
            elif self.container == _TUPLE:
                example = PyTuple_New(self.count)
                for number in range(self.count):
                    value = self.read_field(lease, row, &self.fields[number], copy)
                    Py_INCREF(value)
                    PyTuple_SET_ITEM(example, number, value)
            elif self.container == _LIST:
                example = [self.read_field(lease, row, &self.fields[number], copy)
                           for number in range(self.count)]
            else:
                example = {}
                for number in range(self.count):
                    example[self.keys[number]] = self.read_field(
                        lease, row, &self.fields[number], copy)
            batch.append(example)
        return batch

    cdef object read_field(self, Lease lease, Py_ssize_t row, Field *f, bint copy):
        cdef uint64_t offset = f.offset + <uint64_t>f.stride * row
        cdef char *place = lease.payload + offset
        cdef int64_t *entry = <int64_t *>place
        cdef cnp.npy_intp dims[MOST_NDIM]
        cdef int axis
        if f.kind == _ARRAY:
            return self.view(lease, f, f.ndim, f.dims, offset, copy)
        if f.kind == _INT:
            return PyLong_FromLongLong(entry[0])
        if f.kind == _FLOAT:
            return (<double *>place)[0]
        if f.kind == _BOOL:
            return (<uint8_t *>place)[0] != 0
        if f.kind == _SCALAR:
            return scalar_of(place, f.descr, NULL)
        if f.kind == _RAGGED:
            for axis in range(f.ndim):
                dims[axis] = entry[1 + axis]
            return self.view(lease, f, f.ndim, dims, entry[0], copy)
        part = lease.part(entry[0], entry[1])
        return unpack(memoryview(bytearray(part)) if copy else part)

    cdef object view(self, Lease lease, Field *f, int ndim, cnp.npy_intp *dims, uint64_t offset,
                     bint copy):
        """An array over the slot's bytes at `offset`. Numbers from shared memory are checked."""
        cdef uint64_t size = f.itemsize
        cdef int axis
        for axis in range(ndim):
            if dims[axis] < 0 or (dims[axis] and size > (1 << 46) // <uint64_t>dims[axis]):
                raise ValueError(f"shared memory was overwritten: axis {axis} of {dims[axis]}")
            size *= dims[axis]
        if offset > <uint64_t>lease.bytes or size > <uint64_t>lease.bytes - offset:
            raise ValueError(
                f"shared memory was overwritten: an array of {size} bytes at {offset} does not "
                f"lie in a slot of {lease.bytes} bytes"
            )
        Py_INCREF(<object>f.descr)
        array = new_array(&PyArray_Type, f.descr, ndim, dims, NULL,
                                     lease.payload + offset, cnp.NPY_ARRAY_CARRAY, NULL)
        if copy:
            return array.copy()
        Py_INCREF(lease)
        set_base(<cnp.PyArrayObject *>array, <PyObject *>lease)
        return array

    # ---- parent: columns

    def columns(self, Lease lease, bint converted, bint copy):
        """The batch as concat_examples would give it, or None if the columns do not hold that.

        `converted`: the finisher has put the ragged fields together.
        """
        if self.container == _LIST:
            return None
        outputs = []
        for number in range(self.count):
            array = self.column(lease, &self.fields[number], converted, copy)
            if array is None:
                return None
            outputs.append(array)
        if self.container == _BARE:
            return outputs[0]
        return tuple(outputs) if self.container == _TUPLE else dict(zip(self.keys, outputs))

    cdef object column(self, Lease lease, Field *f, bint converted, bint copy):
        cdef cnp.npy_intp dims[MOST_NDIM + 1]
        cdef int64_t *entry
        cdef int axis
        if f.kind == _OBJECT or not f.handable or f.ndim == MOST_NDIM:
            return None
        dims[0] = lease.rows
        if f.kind != _RAGGED:
            for axis in range(f.ndim):
                dims[1 + axis] = f.dims[axis]
            return self.view(lease, f, 1 + f.ndim, dims, f.offset, copy)
        if not converted:
            return None
        entry = self.entry(f, lease.payload, self.rows)
        for axis in range(f.ndim):
            dims[1 + axis] = entry[1 + axis]
        return self.view(lease, f, 1 + f.ndim, dims, entry[0], copy)


# ---- hand-over to concat_examples ----------------------------------------------------------------


def hand_over(list values):
    """One field of a batch without copying, or None.

    The column is handed over if the values are, in order and complete, the arrays of one field
    of one taken slot, none replaced, reshaped, or moved. From then on the column and the
    examples share memory. A second time the same field is not handed over: two results
    must not share memory with each other.
    """
    cdef Lease lease
    cdef Schema schema
    cdef Field *f = NULL
    cdef PyObject *base
    cdef cnp.PyArrayObject *array
    cdef Py_ssize_t row, number, axis
    cdef char *start
    if not values or <PyObject *>Py_TYPE(values[0]) != <PyObject *>ndarray:
        return None
    base = base_of(<cnp.PyArrayObject *>values[0])
    if base == NULL or not isinstance(<object>base, Lease):
        return None
    lease = <object>base
    if lease.schema is None or lease.rows != len(values):
        return None
    schema = lease.schema
    start = bytes_of(<cnp.PyArrayObject *>values[0])
    for number in range(schema.count):
        if schema.fields[number].kind == _ARRAY and schema.fields[number].handable and (
                lease.payload + schema.fields[number].offset == start):
            f = &schema.fields[number]
            # Empty columns share their start with a neighbour: the dtype tells.
            if equivalent(descr_of(<cnp.PyArrayObject *>values[0]), f.descr):
                break
    if f == NULL or lease.handed >> number & 1 or f.stride == 0 or f.ndim == MOST_NDIM:
        return None
    for row in range(lease.rows):
        if <PyObject *>Py_TYPE(<object>PyList_GET_ITEM(values, row)) != <PyObject *>ndarray:
            return None
        array = <cnp.PyArrayObject *>PyList_GET_ITEM(values, row)
        if base_of(array) != base or bytes_of(array) != start + row * f.stride or (
                ndim_of(array) != f.ndim) or not is_contiguous(array) or (
                descr_of(array) != f.descr
                and not equivalent(descr_of(array), f.descr)):
            return None
        for axis in range(f.ndim):
            if dims_of(array)[axis] != f.dims[axis]:
                return None
    lease.handed |= <uint64_t>1 << number
    return schema.column(lease, f, False, False)
