"""Exports the columns of a delivered batch to concat_examples, without copying them."""


cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next
from cpython.list cimport PyList_CheckExact
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport uint64_t

from fastiter._collate.concat cimport is_delivered, stack_field
from fastiter._clib.numpy_api cimport (
    PyArray_Type, base_of, bytes_of, descr_of, dims_of, equivalent, is_contiguous, ndim_of)
from fastiter._ring.parent cimport Lease
from fastiter._ring.row_reader cimport column
from fastiter._ring.schema cimport MOST_FIELDS, MOST_NDIM, Field, Schema, ARRAY
from fastiter._clib.borrowed cimport (
    AHEAD, FI_LISTS_CHANGE, Table, drop, fi_prefetch, rows_of, table_of_fields, table_of_one)

cnp.import_array()

cdef extern from "Python.h":
    void *type_of "Py_TYPE"(PyObject *value)


def export_column(list values):
    """Return one field of a batch as its column in shared memory, not copied, or None.

    The values must be, in order and complete, the arrays of one field of one taken slot, none
    replaced, reshaped, or moved. From then on the column and the examples share memory. A field is
    exported once: two results must not share memory with each other.
    """
    cdef Table table
    cdef Lease lease
    cdef Py_ssize_t number
    if not values:
        return None
    rows = rows_of(values)
    table_of_one(&table, rows)
    try:
        number = field_of(&table, 0)
        if number < 0:
            return None
        lease = lease_of(table.items[0])
        if not claim(lease, <uint64_t>1 << number):
            return None
        return column(lease, &lease.schema.fields[number], False)
    finally:
        drop(&table)


def join_delivered(batch):
    """Return what concat_examples makes of a batch as an iterator delivered it.

    Columns are exported as by `export_column`, numbers are joined. Returns None, and exports
    nothing, if no field is in shared memory, or not every such field is a column of the same slot.
    """
    cdef Table table
    cdef Lease lease = None
    cdef Py_ssize_t field
    cdef Py_ssize_t numbers[MOST_FIELDS]
    cdef uint64_t wanted = 0
    cdef tuple names = None
    cdef list results
    if not PyList_CheckExact(batch) or not batch:
        return None
    rows = rows_of(batch)
    first = rows[0]
    if not has_delivered(first):
        return None
    if type(first) is dict:
        names = tuple(first)
    elif isinstance(first, tuple):
        names = tuple(range(len(first)))
    results = [None] * (1 if names is None else len(names))
    if len(results) > MOST_FIELDS:
        return None
    if names is None:
        table_of_one(&table, rows)
    elif not table_of_fields(&table, rows, names):
        return None
    try:
        for field in range(table.count):
            numbers[field] = -1
            if not is_delivered(table.items[field * table.n]):
                continue
            numbers[field] = field_of(&table, field)
            if lease is None:
                lease = lease_of(table.items[field * table.n])
            if numbers[field] < 0 or wanted >> numbers[field] & 1 or (
                    lease is not lease_of(table.items[field * table.n])):
                return None
            wanted |= <uint64_t>1 << numbers[field]
        for field in range(table.count):
            if numbers[field] < 0:
                results[field] = stack_field(&table, field, None)
                if results[field] is None:
                    return None
        # Another thread may have exported a column while a field was stacked.
        if not claim(lease, wanted):
            return None
        for field in range(table.count):
            if numbers[field] >= 0:
                results[field] = column(lease, &lease.schema.fields[numbers[field]], False)
    finally:
        drop(&table)
    if names is None:
        return results[0]
    return dict(zip(names, results)) if type(first) is dict else tuple(results)


cdef inline Lease lease_of(PyObject *delivered):
    return <Lease>base_of(<cnp.PyArrayObject *>delivered)


cdef bint has_delivered(object example):
    """Whether an array of the example lies in the shared memory of a batch."""
    cdef Py_ssize_t place = 0
    cdef PyObject *key
    cdef PyObject *value
    if PyTuple_Check(example):
        for place in range(PyTuple_GET_SIZE(example)):
            if is_delivered(<PyObject *>PyTuple_GET_ITEM(example, place)):
                return True
        return False
    if not PyDict_CheckExact(example):
        return is_delivered(<PyObject *>example)
    if FI_LISTS_CHANGE:  # nothing guards a dict either
        return any([is_delivered(<PyObject *>item) for item in list((<dict>example).values())])
    while PyDict_Next(example, &place, &key, &value):
        if is_delivered(value):
            return True
    return False


cdef Py_ssize_t field_of(Table *table, Py_ssize_t column) except -2:
    """Number of the field of a slot whose arrays these are, in order and complete; -1 if they are
    not, or the field was handed over before."""
    cdef PyObject **values = table.items + column * table.n
    cdef Lease lease
    cdef Schema schema
    cdef Field *f = NULL
    cdef PyObject *base
    cdef cnp.PyArrayObject *array
    cdef Py_ssize_t row, number
    cdef int axis
    cdef char *start
    if not is_delivered(values[0]):
        return -1
    base = base_of(<cnp.PyArrayObject *>values[0])
    lease = <Lease>base
    if lease.schema is None or lease.rows != table.n:
        return -1
    schema = lease.schema
    start = bytes_of(<cnp.PyArrayObject *>values[0])
    for number in range(schema.count):
        if schema.fields[number].kind == ARRAY and schema.fields[number].is_stackable and (
                lease.payload + schema.fields[number].offset == start):
            f = &schema.fields[number]
            # Empty columns share their start with a neighbour: the dtype tells.
            if equivalent(descr_of(<cnp.PyArrayObject *>values[0]), f.descr):
                break
    if f == NULL or lease.exported >> number & 1 or f.stride == 0 or f.ndim == MOST_NDIM:
        return -1
    for row in range(table.n):
        if row + AHEAD < table.n:
            fi_prefetch(values[row + AHEAD])
        array = <cnp.PyArrayObject *>values[row]
        if type_of(values[row]) != <void *>&PyArray_Type:
            return -1
        if base_of(array) != base or bytes_of(array) != start + row * f.stride or (
                ndim_of(array) != f.ndim) or not is_contiguous(array) or (
                descr_of(array) != f.descr
                and not equivalent(descr_of(array), f.descr)):
            return -1
        for axis in range(f.ndim):
            if dims_of(array)[axis] != f.dims[axis]:
                return -1
    return number


cdef bint claim(Lease lease, uint64_t fields):
    """Whether none of these fields was exported before: from now on all of them are."""
    cdef bint are_free
    with cython.critical_section(lease):
        are_free = not lease.exported & fields
        if are_free:
            lease.exported |= fields
    return are_free
