# The objects of a batch, or of each of its fields, as borrowed pointers, for loops that look at
# many of them without touching their reference counts.
#
# From the moment at which a table is filled no Python code may run, on this thread or another,
# until the last of its pointers was used, or `hold` was called.

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.string cimport memcpy

from fastiter._clib.objects cimport *

cdef enum:
    # Up to these, what one call needs lies on the stack.
    STACK_ROWS = 256
    STACK_ITEMS = 1024
    # How many objects ahead the processor is told of.
    AHEAD = 8

cdef extern from "Python.h":
    PyObject **PySequence_Fast_ITEMS(object rows)

cdef struct Table:
    Py_ssize_t n
    Py_ssize_t count  # fields
    bint held
    PyObject **items  # count * n, field after field
    PyObject *local[STACK_ITEMS]


cdef inline object rows_of(object examples):
    """A list or tuple that stays alive and, until Python code runs, as it is."""
    if type(examples) is not tuple and (FI_LISTS_CHANGE or type(examples) is not list):
        examples = tuple(examples)
    if not examples:
        raise ValueError("the batch is empty: at least one example is needed")
    return examples


cdef inline PyObject *item_of(PyObject *rows, Py_ssize_t i) noexcept:
    return PyTuple_GET_ITEM(rows, i) if PyTuple_CheckExact(rows) else PyList_GET_ITEM(rows, i)


cdef inline int _make_table(Table *table, object rows, Py_ssize_t count) except -1:
    table.n = len(rows)
    table.count = count
    table.held = False
    table.items = <PyObject **>scratch_alloc(
        table.n * count, sizeof(PyObject *), table.local, STACK_ITEMS)
    return 0


cdef inline int table_of_one(Table *table, object rows) except -1:
    _make_table(table, rows, 1)
    memcpy(table.items, PySequence_Fast_ITEMS(rows), table.n * sizeof(PyObject *))
    return 0


cdef inline bint table_of_fields(Table *table, object rows, tuple names) except -1:
    """False if an example is no plain tuple or dict of just these fields, in this order."""
    cdef bint fits
    _make_table(table, rows, len(names))
    if type(rows[0]) is dict:
        fits = _take_from_dicts(table, <PyObject *>rows, <PyObject *>names)
    else:
        fits = _take_from_tuples(table, <PyObject *>rows)
    if not fits:
        drop(table)
    return fits


cdef inline bint _take_from_tuples(Table *table, PyObject *rows) noexcept:
    cdef Py_ssize_t i, field
    cdef PyObject *example
    cdef PyObject *kind = NULL
    for i in range(table.n):
        if i + AHEAD < table.n:
            fi_prefetch(item_of(rows, i + AHEAD))
        example = item_of(rows, i)
        if fi_type(example) != kind:
            if not fi_indexed_as_tuple(example):
                return False
            kind = fi_type(example)
        if PyTuple_GET_SIZE(example) != table.count:
            return False
        for field in range(table.count):
            table.items[field * table.n + i] = PyTuple_GET_ITEM(example, field)
    return True


cdef inline bint _take_from_dicts(Table *table, PyObject *rows, PyObject *names) noexcept:
    cdef Py_ssize_t i, field, place
    cdef PyObject *example
    cdef PyObject *key = NULL
    cdef PyObject *value = NULL
    if FI_LISTS_CHANGE:  # nothing guards a dict either
        return False
    for i in range(table.n):
        example = item_of(rows, i)
        if not PyDict_CheckExact(example) or PyDict_Size(example) != table.count:
            return False
        place = 0
        for field in range(table.count):
            PyDict_Next(example, &place, &key, &value)
            if key != PyTuple_GET_ITEM(names, field) and not _are_equal_strings(
                    key, PyTuple_GET_ITEM(names, field)):
                return False
            table.items[field * table.n + i] = value
    return True


cdef inline bint _are_equal_strings(PyObject *one, PyObject *other) noexcept:
    return PyUnicode_CheckExact(one) and PyUnicode_CheckExact(other) and (
        PyUnicode_Compare(one, other) == 0)


cdef inline void hold(Table *table) noexcept:
    """Keeps every object of the table alive until `drop`."""
    cdef Py_ssize_t i
    if not table.held:
        for i in range(table.n * table.count):
            Py_INCREF(table.items[i])
        table.held = True


cdef inline void drop(Table *table) noexcept:
    cdef Py_ssize_t i
    if table.held:
        for i in range(table.n * table.count):
            Py_DECREF(table.items[i])
    drop_room(table.items, table.local)


cdef inline tuple column_of(Table *table, Py_ssize_t field):
    """The objects of one field; from here on Python code may run."""
    cdef Py_ssize_t i
    hold(table)
    return tuple([<object>table.items[field * table.n + i] for i in range(table.n)])


cdef inline void *scratch_alloc(size_t count, size_t itemsize, void *local, size_t local_count) except NULL:
    """Room for `count` items: `local` where they fit there, else memory for `drop_room`.

    `count` is a product of lengths of objects that exist, and so cannot overflow.
    """
    if count <= local_count:
        return local
    cdef void *table = PyMem_Malloc(count * itemsize)
    if table == NULL:
        raise MemoryError(f"no memory for a table of {count} entries")
    return table


cdef inline void drop_room(void *table, void *local) noexcept:
    if table != local:
        PyMem_Free(table)
