"""What a parent makes of the rows in a taken slot: examples and columns.

The arrays are views whose base is the slot's `Lease`. Numbers that come from shared memory are
checked before anything is made of them; the schema's own are trusted.
"""

cimport numpy as cnp
from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove

from fastiter._clib.numpy_api cimport PyArray_Type, bytes_of, new_array, scalar_of, set_base
from fastiter._ring.lease cimport Lease
from fastiter._ring.row_reader cimport (
    MOST_NDIM, Field, Schema, _ARRAY, _BARE, _BOOL, _DICT, _FLOAT, _INT, _LIST, _NAMED, _OBJECT,
    _RAGGED, _SCALAR, _TUPLE)
from fastiter._clib.csrc cimport fi_place_seed
from fastiter._clib.ring_words import PACKED_FIELD as _PACKED_FIELD
from fastiter._util.array_subtypes import wrap
from fastiter._ring.serialization import unpack
from fastiter._clib.tuples cimport fi_new_tuple
from fastiter.errors import OverwrittenError

cnp.import_array()

cdef uint64_t MOST_BYTES = 1 << 46
cdef uint32_t PACKED_FIELD = _PACKED_FIELD


cdef int check_part(Lease lease, uint64_t offset, uint64_t size) except -1:
    if offset > <uint64_t>lease.bytes or size > <uint64_t>lease.bytes - offset:
        raise OverwrittenError(
            f"shared memory was overwritten: an array of {size} bytes at {offset} does not lie in "
            f"a slot of {lease.bytes} bytes"
        )
    return 0


cdef inline object view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims, uint64_t offset,
                        bint copy):
    """An array over the slot's bytes at `offset`, which lie there."""
    Py_INCREF(<object>f.descr)
    array = new_array(&PyArray_Type, f.descr, ndim, dims, NULL, lease.payload + offset,
                      cnp.NPY_ARRAY_CARRAY, NULL)
    if copy:
        return array.copy()
    Py_INCREF(lease)
    set_base(<cnp.PyArrayObject *>array, <PyObject *>lease)
    return array


cdef object checked_view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims,
                         uint64_t offset, bint copy):
    """The same, for dimensions and an offset that come from shared memory."""
    cdef uint64_t size = f.itemsize
    cdef int axis
    for axis in range(ndim):
        if dims[axis] < 0 or (dims[axis] and size > MOST_BYTES // <uint64_t>dims[axis]):
            raise OverwrittenError(f"shared memory was overwritten: axis {axis} of {dims[axis]}")
        size *= dims[axis]
    check_part(lease, offset, size)
    return view(lease, f, ndim, dims, offset, copy)


# ---- examples ------------------------------------------------------------------------------------


def read(Schema schema, Lease lease, bint copy, dict irregular, set without=None):
    """The examples of a slot, as a list.

    Parameters
    ----------
    copy : give arrays memory of their own, instead of views of the slot.
    irregular : examples of the rows that are not in the columns.
    without : rows to be left out.
    """
    cdef Py_ssize_t row
    cdef list batch = []
    check_part(lease, 0, schema.bytes)
    for row in range(lease.rows):
        if irregular and row in irregular:
            batch.append(irregular[row])
        elif not without or row not in without:
            batch.append(example_of(schema, lease, row, copy))
    return batch


cdef inline object example_of(Schema schema, Lease lease, Py_ssize_t row, bint copy):
    """One example. The caller has seen that the columns lie in the slot."""
    cdef Py_ssize_t number, count = schema.count
    cdef int container = schema.container
    cdef Field *fields = schema.fields
    cdef dict named
    if container == _TUPLE or container == _NAMED:
        example = PyTuple_New(count) if container == _TUPLE else (
            fi_new_tuple(schema.type, count))
        for number in range(count):
            value = read_field(lease, row, &fields[number], copy)
            Py_INCREF(value)
            PyTuple_SET_ITEM(example, number, value)
        return example
    if container == _BARE:
        return read_field(lease, row, &fields[0], copy)
    if container == _LIST:
        return [read_field(lease, row, &fields[number], copy) for number in range(count)]
    named = {}
    for number in range(count):
        named[<object>PyTuple_GET_ITEM(schema.keys, number)] = read_field(
            lease, row, &fields[number], copy)
    return named


cdef object read_example(Schema schema, Lease lease, Py_ssize_t row, bint copy):
    """The same, for other modules."""
    return example_of(schema, lease, row, copy)


cdef inline object read_field(Lease lease, Py_ssize_t row, Field *f, bint copy):
    cdef uint64_t offset = f.offset + <uint64_t>f.stride * row
    cdef char *place = lease.payload + offset
    cdef int64_t *entry = <int64_t *>place
    cdef cnp.npy_intp dims[MOST_NDIM]
    cdef int axis
    if f.kind == _ARRAY:
        array = view(lease, f, f.ndim, f.dims, offset, copy)
        return wrap(array, f.subtype) if f.subtype else array
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
        array = checked_view(lease, f, f.ndim, dims, entry[0], copy)
        return wrap(array, f.subtype) if f.subtype else array
    part = lease.part(<uint64_t>entry[0], <uint64_t>entry[1])
    seed = fi_place_seed(
        lease.q, <uint32_t>(row if lease.places is None else lease.places[row]), PACKED_FIELD)
    return unpack(memoryview(bytearray(part)) if copy else part, seed)


def compact_rows(Schema schema, Lease lease, list rows):
    """Makes a taken batch one of fewer rows: moves `rows`, ascending, together at the slot's start.

    What lies in the heap stays where it is. `schema`: None if there are no columns.
    """
    cdef Py_ssize_t number, place, start, stop, count = len(rows)
    cdef Field *f
    cdef char *column
    if schema is not None:
        check_part(lease, 0, schema.bytes)
        place = 0
        while place < count:
            start = rows[place]
            stop = start + 1
            while place + stop - start < count and rows[place + stop - start] == stop:
                stop += 1
            for number in range(schema.count if start > place else 0):
                f = &schema.fields[number]
                column = lease.payload + f.offset
                with nogil:
                    memmove(column + place * f.stride, column + start * f.stride,
                            (stop - start) * f.stride)
            place += stop - start
    lease.rows = count
    lease.places = rows


# ---- columns -------------------------------------------------------------------------------------


def columns(Schema schema, Lease lease, bint converted, bint copy):
    """The batch as concat_examples would give it, or None if the columns do not hold that.

    `converted`: the batch converter has put the ragged fields together.
    """
    cdef Py_ssize_t number
    if schema.container == _LIST:
        return None
    outputs = []
    for number in range(schema.count):
        array = column(schema, lease, &schema.fields[number], converted, copy)
        if array is None:
            return None
        outputs.append(array)
    if schema.container == _BARE:
        return outputs[0]
    return dict(zip(schema.keys, outputs)) if schema.container == _DICT else tuple(outputs)


cdef object column(Schema schema, Lease lease, Field *f, bint converted, bint copy):
    cdef cnp.npy_intp dims[MOST_NDIM + 1]
    cdef int64_t *entry
    cdef int axis
    if f.kind == _OBJECT or not f.handable or f.ndim == MOST_NDIM:
        return None
    dims[0] = lease.rows
    if f.kind != _RAGGED:
        for axis in range(f.ndim):
            dims[1 + axis] = f.dims[axis]
        return checked_view(lease, f, 1 + f.ndim, dims, f.offset, copy)
    if not converted:
        return None
    # The batch converter's entry follows those of the rows.
    entry = <int64_t *>(lease.payload + f.offset + <uint64_t>f.stride * schema.rows)
    for axis in range(f.ndim):
        dims[1 + axis] = entry[1 + axis]
    return checked_view(lease, f, 1 + f.ndim, dims, entry[0], copy)


def lengths(Schema schema, Lease lease, Py_ssize_t number, int64_t max_length):
    """Length of the first axis of each row of a field of arrays, `max_length` (if not negative) at
    most: int64 (rows,), with memory of its own."""
    cdef Field *f = &schema.fields[number]
    cdef cnp.npy_intp rows = lease.rows
    cdef char *place = lease.payload + f.offset
    cdef int64_t *target
    cdef Py_ssize_t row
    check_part(lease, 0, schema.bytes)
    found = cnp.PyArray_EMPTY(1, &rows, cnp.NPY_INT64, 0)
    target = <int64_t *>bytes_of(<cnp.PyArrayObject *>found)
    for row in range(rows):
        target[row] = f.dims[0] if f.kind == _ARRAY else (<int64_t *>(place + f.stride * row))[1]
        if 0 <= max_length < target[row]:
            target[row] = max_length
    return found
