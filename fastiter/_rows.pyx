"""Rows in slots: how examples become columns, and columns examples and batches.

A `Schema` says what the examples of a dataset have in common: their container, and per field
what it holds. Fields of equal shape lie in columns; ragged arrays lie in the slot's heap, with a
column of offsets and shapes; other objects are packed into the heap, with a column of offsets
and lengths. An example that fits no schema is spilled: packed as a whole.
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
from cpython.object cimport PyObject, PyObject_GetItem, PyObject_RichCompareBool, Py_EQ
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
from fastiter._transport import Packed, failure_of, unpack

cnp.import_array()

cdef extern from "Python.h":
    int PyBUF_WRITE

# Containers of an example.
BARE, TUPLE, LIST, DICT = range(4)
# Kinds of field. ARRAY < RAGGED < OBJECT: a field only ever moves to the right.
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
    MOST_FIELDS = 64
    ALIGNMENT = 64
    # Below it, giving up and taking back Python's lock costs more than the copy.
    NOGIL_BYTES = 65536

cdef object ndarray = numpy.ndarray
cdef uint64_t NOT_CONVERTED = 0xFFFFFFFFFFFFFFFF
cdef tuple NUMBERS = (numpy.dtype(numpy.int64), numpy.dtype(numpy.float64), numpy.dtype(numpy.bool_))


def _plain(dtype):
    """True if bytes of this dtype may be copied and mean the same elsewhere."""
    return (
        type(dtype).__module__.startswith("numpy")
        and dtype.num in range(24)
        and not dtype.hasobject
        and not dtype.metadata
    )


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

    @property
    def packs_whole_examples(self):
        return self.container == _BARE and self.fields[0].kind == _OBJECT

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


# ---- what a schema is derived from --------------------------------------------------------------


def _field_of(values):
    """(kind, dtype, shape or ndim) that fits all values."""
    first = values[0]
    kind = type(first)
    if any(type(value) is not kind for value in values):
        return OBJECT, None, None
    if kind is ndarray:
        dtype, ndim = first.dtype, first.ndim
        if ndim > 31 or not _plain(dtype) or any(
                v.dtype != dtype or v.ndim != ndim or not _plain(v.dtype) for v in values):
            return OBJECT, None, None
        if all(value.shape == first.shape for value in values):
            return ARRAY, dtype, first.shape
        return RAGGED, dtype, ndim
    if kind is int:
        fits = all(-(1 << 63) <= value < 1 << 63 for value in values)
        return (INT, None, None) if fits else (OBJECT, None, None)
    if kind is float:
        return FLOAT, None, None
    if kind is bool:
        return BOOL, None, None
    if isinstance(first, numpy.generic):
        dtype = first.dtype
        if _plain(dtype) and dtype.kind in "biufcmM" and dtype.type is kind and all(
                value.dtype == dtype for value in values):
            return SCALAR, dtype, None
    return OBJECT, None, None


def derive_schema(examples, rows):
    """The schema that fits all of `examples`."""
    first = examples[0]
    kind = type(first)
    whole = Schema(BARE, None, [(OBJECT, None, None)], rows)
    if kind not in (tuple, list, dict):
        return Schema(BARE, None, [_field_of(examples)], rows)
    size = len(first)
    if not 0 < size <= MOST_FIELDS or any(
            type(example) is not kind or len(example) != size for example in examples):
        return whole
    if kind is dict:
        keys = tuple(first)
        if any(type(key) not in (str, int) for key in keys) or any(
                tuple(example) != keys for example in examples):
            return whole
        fields = [[example[key] for example in examples] for key in keys]
        return Schema(DICT, keys, map(_field_of, fields), rows)
    container = TUPLE if kind is tuple else LIST
    return Schema(container, None, map(_field_of, zip(*examples)), rows)


def _merge_fields(a, b):
    if a == b:
        return a
    if a[0] in (ARRAY, RAGGED) and b[0] in (ARRAY, RAGGED) and a[1] == b[1]:
        ndims = [spec[2] if spec[0] == RAGGED else len(spec[2]) for spec in (a, b)]
        if ndims[0] == ndims[1] > 0:
            return RAGGED, a[1], ndims[0]
    return OBJECT, None, None


def merge_schemas(Schema a, Schema b):
    """The narrowest schema that fits what either fits. It never moves back, so a dataset
    changes its schema a few times at most."""
    if a.container != b.container or a.keys != b.keys or a.count != b.count:
        return Schema(BARE, None, [(OBJECT, None, None)], a.rows)
    return Schema(a.container, a.keys, map(_merge_fields, a.specs, b.specs), a.rows)


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


# ---- worker: the rows of a turn ------------------------------------------------------------------


cdef class RowWriter:
    """Fetches the examples of the turns that a `WorkerEnd` gets and writes them into their rows.

    Used by one thread of one worker process. What the dataset raises ends the row, not the
    worker.
    """

    cdef readonly WorkerEnd end
    cdef object dataset
    cdef object getitems
    cdef Schema schema
    cdef int64_t schema_number

    def __cinit__(self, WorkerEnd end, dataset):
        self.end = end
        self.dataset = dataset
        self.getitems = getattr(dataset, "__getitems__", None)
        self.schema_number = -1

    def next(self):
        """Blocks until there is work: "rows", "finish", or "stop"."""
        cdef int kind
        cdef WorkerEnd end = self.end
        with nogil:
            kind = fi_worker_next(&end.worker, &end.turn)
        if kind == FI_TURN_ROWS:
            return "rows"
        return "finish" if kind == FI_TURN_FINISH else "stop"

    def fill(self):
        """Fetches and writes the rows of the turn that nobody else owns."""
        cdef WorkerEnd end = self.end
        cdef fi_cell *cell = end.worker.ring.cells + end.worker.number
        cdef int64_t since = fi_now_ns()
        cdef uint32_t row
        if self.getitems is not None and end.turn.count > 1:
            self.fill_together(cell)
        else:
            for row in range(end.turn.first, end.turn.first + end.turn.count):
                if fi_row_own(&end.worker, &end.turn, row):
                    self.fill_row(cell, row)
        fi_cell_busy(cell, fi_now_ns() - since)

    cdef int fill_row(self, fi_cell *cell, uint32_t row) except -1:
        cdef WorkerEnd end = self.end
        cdef int64_t index = fi_row_index(end.worker.ring, end.turn.slot, row)[0]
        cdef uint32_t code
        fi_cell_fetch_begins(cell, index)
        try:
            if self.getitems is not None:
                example, = self.getitems([index])
            else:
                example = PyObject_GetItem(self.dataset, PyLong_FromLongLong(index))
            code = self.store(row, example)
        except BaseException as error:
            code = self.store_failure(row, error)
        fi_cell_fetch_ends(cell)
        fi_cell_count(cell, 1, 0, code == FI_SPILL)
        fi_row_done(&end.worker, &end.turn, row, code)
        return 0

    cdef int fill_together(self, fi_cell *cell) except -1:
        """`__getitems__`: owns the rows first, fetches those it won, marks each."""
        cdef WorkerEnd end = self.end
        cdef uint32_t row, code
        cdef list rows = [], indices = []
        for row in range(end.turn.first, end.turn.first + end.turn.count):
            if fi_row_own(&end.worker, &end.turn, row):
                rows.append(row)
                indices.append(fi_row_index(end.worker.ring, end.turn.slot, row)[0])
        if not rows:
            return 0
        fi_cell_fetch_begins(cell, indices[0])
        examples = failure = None
        try:
            examples = list(self.getitems(list(indices)))
            if len(examples) != len(rows):
                raise ValueError(
                    f"__getitems__ was asked for {len(rows)} examples and returned {len(examples)}"
                )
        except BaseException as error:
            failure = error
        for position, row in enumerate(rows):
            try:
                if failure is not None:
                    raise failure
                code = self.store(row, examples[position])
            except BaseException as error:
                code = self.store_failure(row, error)
            fi_cell_count(cell, 1, 0, code == FI_SPILL)
            fi_row_done(&end.worker, &end.turn, row, code)
        fi_cell_fetch_ends(cell)
        return 0

    cdef uint32_t store(self, uint32_t row, object example) except 0:
        cdef WorkerEnd end = self.end
        cdef uint32_t number = fi_slot_schema(end.worker.ring, end.turn.slot)
        if number != self.schema_number:
            self.use_schema(number)
        if self.schema is not None and self.schema.write(
                end, fi_slot_payload(end.worker.ring, end.turn.slot), row, example):
            return FI_ROW_OK
        self.put(row, Packed(example))
        return FI_SPILL

    cdef int use_schema(self, uint32_t number) except -1:
        record = self.end.arena.schema_record(number)
        rows = self.end.worker.ring.geometry.rows
        # Number 0 stays empty: nothing is known yet, everything is spilled.
        self.schema = Schema.load(record, rows) if record else None
        self.schema_number = number
        return 0

    cdef int put(self, uint32_t row, object packed) except -1:
        cdef WorkerEnd end = self.end
        cdef uint64_t size = packed.size, offset = end.heap_take(size)
        packed.write_into(PyMemoryView_FromMemory(
            fi_slot_payload(end.worker.ring, end.turn.slot) + offset, size, PyBUF_WRITE))
        fi_entry_set(end.worker.ring, end.turn.slot, row, offset, size)
        return 0

    cdef uint32_t store_failure(self, uint32_t row, object error) except 0:
        fi_entry_set(self.end.worker.ring, self.end.turn.slot, row, 0, 0)
        try:
            self.put(row, Packed(tuple(failure_of(error))))
        except BaseException:  # no memory even for the text: the bare fact has to do
            pass
        return FI_ERROR

    # ---- finish

    @property
    def columns_complete(self):
        """True if every row of the turn is in the columns of the current schema."""
        cdef WorkerEnd end = self.end
        cdef uint32_t row
        number = fi_slot_schema(end.worker.ring, end.turn.slot)
        if number != self.schema_number:
            self.use_schema(number)
        if self.schema is None:
            return False
        for row in range(end.turn.n):
            if fi_row_code(end.worker.ring, end.turn.slot, row, end.turn.q) != FI_ROW_OK:
                return False
        return True

    @property
    def current_schema(self):
        return self.schema

    def examples(self):
        """Private copies of all examples of the turn, or None if a row holds none."""
        cdef WorkerEnd end = self.end
        cdef Lease lease = Lease.__new__(Lease)
        cdef uint64_t offset, size
        cdef uint32_t row, code
        cdef dict odd = {}
        lease.arena = end.arena
        lease.payload = fi_slot_payload(end.worker.ring, end.turn.slot)
        lease.bytes = fi_slot_committed(end.worker.ring, end.turn.slot)
        lease.rows = end.turn.n
        if not self.columns_complete:
            for row in range(end.turn.n):
                code = fi_row_code(end.worker.ring, end.turn.slot, row, end.turn.q)
                if code == FI_SPILL:
                    fi_entry_get(end.worker.ring, end.turn.slot, row, &offset, &size)
                    odd[row] = unpack(memoryview(bytearray(lease.part(offset, size))))
                elif code != FI_ROW_OK:
                    return None
        if self.schema is None:
            return [odd[row] for row in range(end.turn.n)]
        return self.schema.read(lease, True, odd)

    def put_result(self, packed):
        """Leaves the converter's result, or its exception, in the slot in hand."""
        cdef WorkerEnd end = self.end
        cdef uint64_t size = packed.size, offset = end.heap_take(size)
        packed.write_into(PyMemoryView_FromMemory(
            fi_slot_payload(end.worker.ring, end.turn.slot) + offset, size, PyBUF_WRITE))
        fi_result_set(end.worker.ring, end.turn.slot, offset, size)

    def ready(self, uint32_t flags):
        """Publishes the slot in hand."""
        fi_worker_ready(&self.end.worker, &self.end.turn, flags)


CONVERTED_FIELDS = FI_CONVERTED_FIELDS
CONVERTED_OBJECT = FI_CONVERTED_OBJECT
CONVERTER_ERROR = FI_CONVERTER_ERROR
FINISH_POISON = FI_FINISH_POISON
ROW_OK = FI_ROW_OK
ROW_SPILL = FI_SPILL
ROW_ERROR = FI_ERROR
ROW_POISON = FI_POISON
