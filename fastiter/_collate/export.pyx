"""Columns of a delivered batch, handed to concat_examples without copying."""


cimport cython
cimport numpy as cnp
from cpython.dict cimport PyDict_CheckExact, PyDict_Next
from cpython.list cimport PyList_CheckExact, PyList_GET_ITEM, PyList_GET_SIZE
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
from fastiter._clib.tuples cimport fi_is_tuple

cnp.import_array()

cdef extern from "Python.h":
    void *type_of "Py_TYPE"(PyObject *value)


def field_values(batch, key):
    """The field `key` of each example of a batch, as a list."""
    cdef list examples, values
    cdef Py_ssize_t row, place
    if not PyList_CheckExact(batch) or type(key) is not int:
        return [example[key] for example in batch]
    # A copy, for an example's own __getitem__ may change the list.
    examples = batch[:]
    values = []
    place = key
    for row in range(PyList_GET_SIZE(examples)):
        example = <object>PyList_GET_ITEM(examples, row)
        if fi_is_tuple(example) and 0 <= place < PyTuple_GET_SIZE(example):
            values.append(<object>PyTuple_GET_ITEM(example, place))
        else:
            values.append(example[key])
    return values


def export_column(list values):
    """One field of a batch without copying, or None.

    The column is handed over if the values are, in order and complete, the arrays of one field
    of one taken slot, none replaced, reshaped, or moved. From then on the column and the
    examples share memory. A second time the same field is not handed over: two results
    must not share memory with each other.
    """
    cdef Table table
    cdef Py_ssize_t number
    if not values:
        return None
    rows = rows_of(values)
    table_of_one(&table, rows)
    try:
        number = field_of(&table, 0)
        if number < 0 or not claim(table.items[0], number):
            return None
        return give(table.items[0], number)
    finally:
        drop(&table)


def join_delivered(batch):
    """What concat_examples makes of a batch as an iterator delivered it: columns handed over as in
    `export_column`, and the arrays of what are no arrays.

    Returns None, and hands nothing over, if no field, or not every field of arrays from shared
    memory, can be handed over.
    """
    cdef Table table
    cdef Py_ssize_t field
    cdef Py_ssize_t numbers[MOST_FIELDS]
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
            if is_delivered(table.items[field * table.n]):
                numbers[field] = field_of(&table, field)
                if numbers[field] < 0 or given_before(&table, numbers, field):
                    return None
        for field in range(table.count):
            if not is_delivered(table.items[field * table.n]):
                results[field] = stack_field(&table, field, None)
                if results[field] is None:
                    return None
        # Another thread may have been here while a field was stacked.
        if not claim_all(&table, numbers):
            return None
        for field in range(table.count):
            if results[field] is None:
                results[field] = give(table.items[field * table.n], numbers[field])
    finally:
        drop(&table)
    if names is None:
        return results[0]
    return dict(zip(names, results)) if type(first) is dict else tuple(results)


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


cdef bint given_before(Table *table, const Py_ssize_t *numbers, Py_ssize_t field) noexcept:
    """Whether an earlier field of the table is the same field of the same slot."""
    cdef PyObject *base = base_of(<cnp.PyArrayObject *>table.items[field * table.n])
    cdef Py_ssize_t earlier
    for earlier in range(field):
        if is_delivered(table.items[earlier * table.n]) and numbers[earlier] == numbers[field] and (
                base_of(<cnp.PyArrayObject *>table.items[earlier * table.n]) == base):
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


cdef bint claim(PyObject *first, Py_ssize_t number):
    """Whether this call, and no other, is the one that gives the field away."""
    cdef Lease lease = <Lease>base_of(<cnp.PyArrayObject *>first)
    cdef uint64_t bit = <uint64_t>1 << number
    cdef bint is_free
    with cython.critical_section(lease):
        is_free = not lease.exported & bit
        lease.exported |= bit
    return is_free


cdef bint claim_all(Table *table, const Py_ssize_t *numbers):
    """Claims every field of the table that lies in shared memory, or none."""
    cdef Lease lease
    cdef Py_ssize_t field, earlier
    for field in range(table.count):
        if is_delivered(table.items[field * table.n]) and not claim(
                table.items[field * table.n], numbers[field]):
            for earlier in range(field):
                if is_delivered(table.items[earlier * table.n]):
                    lease = <Lease>base_of(<cnp.PyArrayObject *>table.items[earlier * table.n])
                    with cython.critical_section(lease):
                        lease.exported &= ~(<uint64_t>1 << numbers[earlier])
            return False
    return True


cdef object give(PyObject *first, Py_ssize_t number):
    """The column of a claimed field, by the array of its first row."""
    cdef Lease lease = <Lease>base_of(<cnp.PyArrayObject *>first)
    return column(lease, &lease.schema.fields[number], False)
