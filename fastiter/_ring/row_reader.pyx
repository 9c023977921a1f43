"""Reading the rows of a leased slot: examples, and whole columns.

The arrays are views whose base is the slot's `Lease`. Numbers that come from shared memory are
checked before they are used; the schema's own are trusted.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.long cimport PyLong_FromLongLong
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_New, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memmove

from fastiter._clib.csrc cimport FI_CONVERTED_FIELDS, FI_PACKED_FIELD, fi_array_bytes
from fastiter._clib.numpy_api cimport PyArray_Type, bytes_of, new_array, scalar_of, set_base
from fastiter._clib.objects cimport fi_new_tuple
from fastiter._ring.lease cimport Lease
from fastiter._ring.schema cimport (
    MOST_NDIM, Field, Schema, ARRAY, BARE, BOOL, DICT, FLOAT, INT, LIST, NAMED,
    OBJECT, RAGGED, SCALAR, TEXT, TREE, TUPLE, entry_of)

from fastiter._util.array_subtypes import wrap
from fastiter.errors import OverwrittenError

cnp.import_array()

cdef extern from "Python.h":
    object PyUnicode_FromKindAndData(int kind, const void *buffer, Py_ssize_t size)


cdef inline object view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims, uint64_t offset,
                        bint copy):
    """An array over the slot's bytes at `offset`, which lie there."""
    Py_INCREF(<object>f.descr)
    array = new_array(&PyArray_Type, f.descr, ndim, dims, NULL, lease.payload + offset,
                      cnp.NPY_ARRAY_CARRAY, NULL)
    if copy:
        return cnp.PyArray_NewCopy(array, cnp.NPY_CORDER)
    Py_INCREF(lease)
    set_base(<cnp.PyArrayObject *>array, <PyObject *>lease)
    return array


cdef object checked_view(Lease lease, Field *f, int ndim, const cnp.npy_intp *dims,
                         uint64_t offset, bint copy):
    """The same, for dimensions and an offset that come from shared memory."""
    cdef uint64_t size = fi_array_bytes(<const int64_t *>dims, ndim, f.itemsize)
    if size == <uint64_t>-1:
        shape = [dims[axis] for axis in range(ndim)]
        raise OverwrittenError(f"shared memory was overwritten: an array of shape {shape}")
    lease.check(offset, size)
    return view(lease, f, ndim, dims, offset, copy)


# ---- examples ------------------------------------------------------------------------------------


def read(Lease lease, bint copy, dict irregular, set without=None):
    """The examples of a slot, as a list: `irregular` ones are given, and rows `without` left out.

    With `copy`, arrays get memory of their own, instead of views of the slot.
    """
    cdef Py_ssize_t row
    cdef list batch = []
    lease.check(0, lease.schema.bytes)
    for row in range(lease.rows):
        if irregular and row in irregular:
            batch.append(irregular[row])
        elif not without or row not in without:
            batch.append(read_example(lease, row, copy))
    return batch


cdef object read_example(Lease lease, Py_ssize_t row, bint copy):
    """One example. The caller has checked that the columns lie in the slot."""
    cdef Schema schema = lease.schema
    cdef Py_ssize_t number, count = schema.count
    cdef int container = schema.container
    cdef Field *fields = schema.fields
    if container == TUPLE or container == NAMED:
        example = PyTuple_New(count) if container == TUPLE else (
            fi_new_tuple(schema.type, count))
        for number in range(count):
            value = read_field(lease, row, &fields[number], copy)
            Py_INCREF(value)
            PyTuple_SET_ITEM(example, number, value)
        return example
    if container == BARE:
        return read_field(lease, row, &fields[0], copy)
    if container == LIST:
        return [read_field(lease, row, &fields[number], copy) for number in range(count)]
    if container == TREE:
        return grow(schema.tree, iter([
            read_field(lease, row, &fields[number], copy) for number in range(count)]))
    return {
        <object>PyTuple_GET_ITEM(schema.keys, number): read_field(lease, row, &fields[number], copy)
        for number in range(count)}


def grow(tuple node, leaves):
    """The containers of a tree around leaves, an iterator over which gives them in order."""
    cdef int container = node[0]
    values = [next(leaves) if child is None else grow(child, leaves) for child in node[2]]
    if container == DICT:
        return dict(zip(node[1], values))
    if container == LIST:
        return values
    return tuple(values) if container == TUPLE else node[1](*values)


cdef object text_at(Lease lease, const int64_t *entry):
    cdef uint64_t offset = <uint64_t>entry[0], kind = <uint64_t>entry[1], size = kind >> 3, i
    cdef int width = kind & 7
    cdef char *place = lease.payload + offset
    lease.check(offset, size)
    if width == 0:
        return PyBytes_FromStringAndSize(place, size)
    if width not in (1, 2, 4) or size % width or offset % width:
        raise OverwrittenError(f"shared memory was overwritten: characters of {width} bytes")
    if width == 4:
        for i in range(size // 4):  # CPython takes any number, and then has no valid text
            if (<uint32_t *>place)[i] > 0x10ffff:
                raise OverwrittenError("shared memory was overwritten: a character")
    return PyUnicode_FromKindAndData(width, place, size // width)


cdef inline object read_field(Lease lease, Py_ssize_t row, Field *f, bint copy):
    cdef uint64_t offset = f.offset + <uint64_t>f.stride * row
    cdef char *place = lease.payload + offset
    cdef int64_t *entry = <int64_t *>place
    cdef cnp.npy_intp dims[MOST_NDIM]
    cdef int axis
    if f.kind == ARRAY:
        array = view(lease, f, f.ndim, f.dims, offset, copy)
        return wrap(array, f.subtype) if f.subtype else array
    if f.kind == INT:
        return PyLong_FromLongLong(entry[0])
    if f.kind == FLOAT:
        return (<double *>place)[0]
    if f.kind == BOOL:
        return (<uint8_t *>place)[0] != 0
    if f.kind == TEXT:
        return text_at(lease, entry)
    if f.kind == SCALAR:
        return scalar_of(place, f.descr, NULL)
    if f.kind == RAGGED:
        for axis in range(f.ndim):
            dims[axis] = entry[1 + axis]
        array = checked_view(lease, f, f.ndim, dims, entry[0], copy)
        return wrap(array, f.subtype) if f.subtype else array
    return lease.load_at(
        <uint64_t>entry[0], <uint64_t>entry[1],
        <uint32_t>(row if lease.places is None else lease.places[row]), FI_PACKED_FIELD, copy)


def compact_rows(Lease lease, list rows):
    """Makes a taken batch one of fewer rows: moves `rows`, ascending, together at the slot's start.

    The heap stays as it is.
    """
    cdef Schema schema = lease.schema
    cdef Py_ssize_t number, place = 0, start, stop, count = len(rows)
    cdef Field *f
    cdef char *column
    if schema is not None:
        lease.check(0, schema.bytes)
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


def columns(Lease lease, bint copy, as_list=()):
    """The batch as concat_examples would give it, or None if the columns do not hold that.

    `as_list`: for each field, whether its values become a list.
    """
    cdef Schema schema = lease.schema
    cdef Py_ssize_t number, row
    if schema.container == LIST or schema.container == TREE:
        return None
    outputs = []
    for number in range(schema.count):
        if as_list and as_list[number]:
            lease.check(0, schema.bytes)
            outputs.append([
                read_field(lease, row, &schema.fields[number], copy) for row in range(lease.rows)])
            continue
        array = column(lease, &schema.fields[number], copy)
        if array is None:
            return None
        outputs.append(array)
    if schema.container == BARE:
        return outputs[0]
    return dict(zip(schema.keys, outputs)) if schema.container == DICT else tuple(outputs)


def leaves(Lease lease, bint copy, of_array):
    """The fields of a batch: ``of_array(array)`` for each that is stored in a column, a list of
    texts; or None if a field is neither."""
    cdef Schema schema = lease.schema
    cdef Py_ssize_t number, row
    cdef Field *f
    cdef list outputs = []
    lease.check(0, schema.bytes)
    for number in range(schema.count):
        f = &schema.fields[number]
        if f.kind == TEXT:
            outputs.append([
                text_at(lease, entry_of(f, lease.payload, row)) for row in range(lease.rows)])
            continue
        array = column(lease, f, copy)
        if array is None:
            return None
        outputs.append(of_array(array))
    return outputs


cdef object column(Lease lease, Field *f, bint copy):
    cdef cnp.npy_intp dims[MOST_NDIM + 1]
    cdef int64_t *entry
    cdef int axis
    if not f.is_stackable or f.ndim == MOST_NDIM:
        return None
    dims[0] = lease.rows
    if f.kind != RAGGED and f.kind != OBJECT:
        for axis in range(f.ndim):
            dims[1 + axis] = f.dims[axis]
        return checked_view(lease, f, 1 + f.ndim, dims, f.offset, copy)
    if not lease.flags & FI_CONVERTED_FIELDS:
        return None
    # The entry of the converted field follows those of the rows.
    entry = entry_of(f, lease.payload, lease.schema.rows)
    for axis in range(f.ndim):
        dims[1 + axis] = entry[1 + axis]
    return checked_view(lease, f, 1 + f.ndim, dims, entry[0], copy)


def lengths(Lease lease, Py_ssize_t number, int64_t max_length):
    """Length of the first axis of each row of a field of arrays, `max_length` (if not negative) at
    most: int64 (rows,), with memory of its own."""
    cdef Field *f = &lease.schema.fields[number]
    cdef cnp.npy_intp rows = lease.rows
    cdef int64_t *target
    cdef Py_ssize_t row
    lease.check(0, lease.schema.bytes)
    found = cnp.PyArray_EMPTY(1, &rows, cnp.NPY_INT64, 0)
    target = <int64_t *>bytes_of(<cnp.PyArrayObject *>found)
    for row in range(rows):
        target[row] = f.dims[0] if f.kind == ARRAY else (
            entry_of(f, lease.payload, row)[1])
        if 0 <= max_length < target[row]:
            target[row] = max_length
    return found
