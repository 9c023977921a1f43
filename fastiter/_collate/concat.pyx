"""Batch assembly: one array from the examples of a batch.

The fast ways take exact arrays of one plain dtype, and numbers of one exact type, and answer None
to everything else. What they leave goes to `numpy_fallback`, which gives NumPy's result by definition.

The fast ways hold no references to what they read (see _table.pxd), so they run no Python code,
unless after `hold`.
"""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from libc.string cimport memcpy
cimport numpy as cnp

from fastiter._collate.buffers cimport empty_array
from fastiter._clib.csrc cimport (
    FI_PAD_MAX_NDIM,
    PyArray_BASE,
    PyArray_DATA,
    PyArray_Descr,
    PyArray_DESCR,
    PyArray_DIMS,
    PyArray_EquivTypes,
    PyArray_IS_C_CONTIGUOUS,
    PyArray_NDIM,
    PyArrayObject,
    fi_gather,
    fi_pad,
    fi_pad_shape,
)
from fastiter._clib.objects cimport *
from fastiter._clib.numbers cimport *
from fastiter._ring.parent cimport Lease
from fastiter._clib.borrowed cimport *

import numpy

from fastiter._collate.numpy_fallback import cast_fill, pad as _pad_by_numpy, stack as _stack_by_numpy, stored

cnp.import_array()

cdef enum:
    STACK_LENGTHS = 512
    # Room for the largest number, a complex of two long doubles, in 8-byte words.
    NUMBER_WORDS = 4
    # Releasing the GIL and taking it back costs more than copying less than this.
    NOGIL_BYTES = 65536

# No array is as large as this; products of lengths that stay below it do not overflow.
cdef size_t MOST_BYTES = <size_t>1 << 46

cdef PyObject *NDARRAY = <PyObject *>numpy.ndarray
cdef PyObject *LEASE = <PyObject *>Lease

# The types of numbers that are read where they stand, and what NumPy makes of a list of them.
cdef dict NUMBER_DTYPES = {
    numpy.dtype(code).type: numpy.dtype(code)
    for code in numpy.typecodes["All"]
    if numpy.dtype(code).kind in "biufc"
}
NUMBER_DTYPES.update({kind: numpy.asarray([kind()]).dtype for kind in (int, float, bool)})

# How one field is padded: see FieldRule in _padding.py.
cdef struct Rule:
    Py_ssize_t max_length  # of the first axis, or negative
    Py_ssize_t multiple
    bint lengths
    bint explicit


def stack(examples, out=None):
    cdef Table table
    rows = rows_of(examples)
    table_of_one(&table, rows)
    try:
        if out is not None:
            hold(&table)
        result = stack_field(&table, 0, out)
        if result is None:
            result = stored(_stack_by_numpy(column_of(&table, 0)), out)
        return result
    finally:
        drop(&table)


def pad_stack(arrays, fill, out=None):
    cdef Table table
    cdef Rule rule = [-1, 1, False, False]
    rows = rows_of(arrays)
    table_of_one(&table, rows)
    try:
        if out is not None:
            hold(&table)
        result = _pad(&table, 0, fill, &rule, out)
        if result is None:
            result = stored(_pad_by_numpy(column_of(&table, 0), fill), out)
        return result
    finally:
        drop(&table)


def join_batch(batch, bint copy):
    kind = type(batch)
    if kind is not list and kind is not tuple or not batch:
        return None
    kind = type(batch[0])
    names = None
    if kind is dict:
        names = tuple(batch[0])
    elif issubclass(kind, tuple):
        names = tuple(range(len(batch[0])))
    elif issubclass(kind, dict):
        return None
    arrays = _join_fields(batch, names, None, True, copy)
    if arrays is None:
        return None
    if names is None:
        return arrays[0]
    return dict(zip(names, arrays)) if kind is dict else tuple(arrays)


def join_fields(batch, tuple names, tuple rules, bint copy):
    if type(batch) is not list and type(batch) is not tuple:
        return [None] * (1 if names is None else len(names))
    return _join_fields(batch, names, rules, False, copy)


cdef list _join_fields(object batch, tuple names, tuple rules, bint all_or_none, bint copy):
    """A list with an array or a pair for each field, None for fields that are left to others. With
    `all_or_none` None instead of the list if it would have one of these."""
    cdef Table table
    cdef Rule rule = [-1, 1, False, False]
    cdef Py_ssize_t field
    cdef list results = [None] * (1 if names is None else len(names))
    rows = rows_of(batch)
    if names is None:
        table_of_one(&table, rows)
    elif not table_of_fields(&table, rows, names):
        return None if all_or_none else results
    try:
        for field in range(table.count):
            if all_or_none and not copy and is_delivered(table.items[field * table.n]):
                return None
        for field in range(table.count):
            fill = None if rules is None else _read_rule(<tuple>rules[field], &rule)
            if copy or not is_delivered(table.items[field * table.n]):
                results[field] = _join(&table, field, fill, &rule)
            if all_or_none and results[field] is None:
                return None
        return results
    finally:
        drop(&table)


cdef object _read_rule(tuple given, Rule *rule):
    """A FieldRule (which is a tuple, read as one); returns its fill value."""
    rule.max_length = given[1]
    rule.multiple = given[2]
    rule.lengths = given[3]
    rule.explicit = given[4] is not None
    return given[0]


cdef object _join(Table *table, Py_ssize_t field, object fill, Rule *rule):
    """One field: an array, or a pair of array and lengths; None for what is left to others."""
    cdef PyObject *first = table.items[field * table.n]
    cdef bint plain = rule.max_length < 0 and rule.multiple == 1 and not rule.lengths
    if fill is not None:
        return _pad(table, field, fill, rule, None)
    if plain or not rule.explicit and _number_dtype(fi_type(first)) is not None:
        return stack_field(table, field, None)
    return None


cdef bint is_delivered(PyObject *value) noexcept:
    """Whether it lies in the shared memory of a batch, of which a whole column may be had."""
    cdef PyObject *base
    if fi_type(value) != NDARRAY:
        return False
    base = PyArray_BASE(<PyArrayObject *>value)
    return base != NULL and fi_type(base) == LEASE


# ---- what the fast ways take ----


cdef bint _is_number(PyArray_Descr *descr):
    cdef int num = descr.type_num
    return (num <= cnp.NPY_CLONGDOUBLE or num == cnp.NPY_FLOAT16) and (
        (<object>descr).metadata is None
    )


cdef bint _is_plain(PyArray_Descr *descr):
    """Whether elements are copied by their bytes, and arrays of this dtype keep it when joined."""
    if descr.type_num in (
        cnp.NPY_STRING, cnp.NPY_UNICODE, cnp.NPY_DATETIME, cnp.NPY_TIMEDELTA
    ):
        return (<object>descr).metadata is None and (<object>descr).itemsize != 0
    return _is_number(descr)


cdef bint _is_same(PyArray_Descr *descr, PyArray_Descr *other):
    return (
        descr.type_num == other.type_num
        and PyArray_EquivTypes(descr, other)
        and (<object>descr).metadata is None
    )


cdef bint _scan(PyObject **rows, Py_ssize_t n, const void **data, int64_t *shapes):
    """Collect the address of each row's data, and its shape.

    Returns False unless all rows are exact, C-contiguous arrays with the dtype and the number of
    dimensions of the first one (which is an array). With `shapes` NULL they have its shape, too.
    """
    cdef PyArrayObject *first = <PyArrayObject *>rows[0]
    cdef PyArray_Descr *descr = PyArray_DESCR(first)
    cdef PyObject *kind = NDARRAY
    cdef int ndim = PyArray_NDIM(first)
    cdef const Py_ssize_t *shape = PyArray_DIMS(first)
    cdef const Py_ssize_t *lengths
    cdef PyArrayObject *row
    cdef Py_ssize_t i
    cdef int d

    for i in range(n):
        if i + AHEAD < n:
            fi_prefetch(rows[i + AHEAD])
        row = <PyArrayObject *>rows[i]
        if fi_type(rows[i]) != kind:
            return False
        if PyArray_DESCR(row) != descr and not _is_same(PyArray_DESCR(row), descr):
            return False
        if PyArray_NDIM(row) != ndim or not PyArray_IS_C_CONTIGUOUS(row):
            return False
        lengths = PyArray_DIMS(row)
        if shapes != NULL:
            for d in range(ndim):
                shapes[d] = lengths[d]
            shapes += ndim
        else:
            for d in range(ndim):
                if lengths[d] != shape[d]:
                    return False
        data[i] = PyArray_DATA(row)
        fi_prefetch(data[i])
    return True


# ---- where the result goes ----


cdef object _result(object out, object dtype, int ndim, const Py_ssize_t *shape, size_t nbytes):
    """A new array, or `out` where the fast ways can write to it; else None."""
    if out is None:
        return empty_array(ndim, shape, <PyArray_Descr *>dtype, nbytes)
    if type(out) is not numpy.ndarray or out.dtype != dtype or out.dtype.metadata is not None:
        return None
    if not (out.flags.c_contiguous and out.flags.writeable) or out.ndim != ndim:
        return None
    cdef int d
    for d in range(ndim):
        if cnp.PyArray_DIM(out, d) != shape[d]:
            return None
    return out


cdef bint _overlap(const void *start, size_t nbytes, const void **data, Py_ssize_t n,
                   size_t row_nbytes):
    """Whether a row of up to `row_nbytes` bytes may lie in the `nbytes` bytes at `start`."""
    cdef size_t begin = <size_t>start
    cdef Py_ssize_t i
    for i in range(n):
        if <size_t>data[i] < begin + nbytes and begin < <size_t>data[i] + row_nbytes:
            return True
    return False


# ---- stack ----


cdef object stack_field(Table *table, Py_ssize_t field, object out):
    cdef PyObject **rows = table.items + field * table.n
    if fi_type(rows[0]) == NDARRAY:
        return _stack_arrays(table, rows, out)
    return _stack_numbers(rows, table.n, out)


cdef object _stack_arrays(Table *table, PyObject **rows, object out):
    cdef PyArrayObject *first = <PyArrayObject *>rows[0]
    cdef PyArray_Descr *descr = PyArray_DESCR(first)
    cdef int ndim = PyArray_NDIM(first), axis
    # NumPy makes the result's byte order native.
    if ndim >= FI_PAD_MAX_NDIM or not cnp.PyArray_ISNBO(descr.byteorder) or not _is_plain(descr):
        return None

    cdef Py_ssize_t n = table.n
    cdef Py_ssize_t shape[FI_PAD_MAX_NDIM]
    cdef const void *local[STACK_ROWS]
    cdef const void **data = <const void **>scratch_alloc(n, sizeof(void *), local, STACK_ROWS)
    cdef size_t row_nbytes = cnp.PyArray_NBYTES(<cnp.ndarray>rows[0])
    cdef size_t nbytes = n * row_nbytes
    cdef void *target
    try:
        if row_nbytes >= MOST_BYTES // n or not _scan(rows, n, data, NULL):
            return None
        shape[0] = n
        for axis in range(ndim):
            shape[1 + axis] = PyArray_DIMS(first)[axis]
        result = _result(out, <object>descr, ndim + 1, shape, nbytes)
        if result is None:
            return None
        target = cnp.PyArray_DATA(<cnp.ndarray>result)
        if out is not None and _overlap(target, nbytes, data, n, row_nbytes):
            return None
        if nbytes < NOGIL_BYTES:
            fi_gather(target, row_nbytes, data, n)
        else:
            hold(table)
            with nogil:
                fi_gather(target, row_nbytes, data, n)
        return result
    finally:
        drop_room(data, local)


cdef object _number_dtype(PyObject *kind):
    if fi_type(kind) != <PyObject *>type:  # which may have Python code for its hash
        return None
    return NUMBER_DTYPES.get(<object>kind)


cdef object _stack_numbers(PyObject **rows, Py_ssize_t n, object out):
    cdef PyObject *kind = fi_type(rows[0])
    cdef size_t nbytes
    cdef bint done

    dtype = _number_dtype(kind)
    if dtype is None:
        return None
    # Few numbers never need a buffer of the pool, whatever their size.
    nbytes = n * <size_t>dtype.itemsize if n > STACK_ITEMS else 0
    result = _result(out, dtype, 1, &n, nbytes)
    if result is None:
        return None
    if <object>kind is int:
        done = store_ints(rows, n, result)
    elif <object>kind is float:
        done = store_floats(rows, n, result)
    elif <object>kind is bool:
        done = store_bools(rows, n, result)
    else:
        done = store_scalars(rows, n, result)
    return result if done else None


# ---- pad_stack ----


cdef object _pad(Table *table, Py_ssize_t field, object fill, Rule *rule, object out):
    """The padded array, or None; with lengths asked for, and an axis to have them, a pair."""
    cdef PyObject **rows = table.items + field * table.n
    cdef PyArrayObject *first = <PyArrayObject *>rows[0]
    if fi_type(rows[0]) != NDARRAY:
        return None if rule.explicit else _pad_numbers(table, rows, fill, out)
    cdef int ndim = PyArray_NDIM(first)
    if ndim >= FI_PAD_MAX_NDIM or not _is_number(PyArray_DESCR(first)):
        return None

    cdef Py_ssize_t n = table.n
    cdef const void *local_data[STACK_ROWS]
    cdef int64_t local_shapes[STACK_LENGTHS]
    cdef const void **data = NULL
    cdef int64_t *shapes = NULL
    try:
        data = <const void **>scratch_alloc(n, sizeof(void *), local_data, STACK_ROWS)
        shapes = <int64_t *>scratch_alloc(n * max(ndim, 1), sizeof(int64_t), local_shapes, STACK_LENGTHS)
        if not _scan(rows, n, data, shapes):
            return None
        if ndim == 0 and rule.explicit:
            return None
        _truncate(shapes, n, ndim, rule.max_length)
        result = _pad_scanned(table, first, data, shapes, fill, rule.multiple, out)
        if result is None or not rule.lengths or ndim == 0:
            return result
        return result, _first_lengths(shapes, n, ndim)
    finally:
        drop_room(data, local_data)
        drop_room(shapes, local_shapes)


cdef void _truncate(int64_t *shapes, Py_ssize_t n, int ndim, Py_ssize_t max_length) noexcept:
    """Shortens the first axes. Of C-contiguous rows it is the end that goes."""
    cdef Py_ssize_t i
    if max_length >= 0 and ndim > 0:
        for i in range(n):
            shapes[i * ndim] = min(shapes[i * ndim], max_length)


cdef object _first_lengths(const int64_t *shapes, Py_ssize_t n, int ndim):
    cdef cnp.ndarray lengths = cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)
    cdef int64_t *target = <int64_t *>cnp.PyArray_DATA(lengths)
    cdef Py_ssize_t i
    for i in range(n):
        target[i] = shapes[i * ndim]
    return lengths


cdef object _pad_scanned(Table *table, PyArrayObject *first, const void **data,
                         const int64_t *shapes, object fill, Py_ssize_t multiple, object out):
    cdef PyArray_Descr *descr = PyArray_DESCR(first)
    cdef Py_ssize_t n = table.n
    cdef int ndim = PyArray_NDIM(first)
    cdef size_t itemsize = cnp.PyArray_ITEMSIZE(<cnp.ndarray>first)
    cdef int64_t row_shape[FI_PAD_MAX_NDIM]
    cdef Py_ssize_t shape[FI_PAD_MAX_NDIM]
    cdef int64_t fill_item[NUMBER_WORDS]
    cdef size_t nbytes = n * itemsize
    cdef void *target
    cdef int d

    fi_pad_shape(row_shape, ndim, shapes, n)
    if ndim > 0 and row_shape[0] % multiple != 0:
        row_shape[0] += multiple - row_shape[0] % multiple
    shape[0] = n
    for d in range(ndim):
        shape[d + 1] = row_shape[d]
        if row_shape[d] == 0 or nbytes >= MOST_BYTES // <size_t>row_shape[d]:
            return None
        nbytes *= row_shape[d]
    hold(table)  # casting the fill value may run NumPy's Python code
    if not _cast_fill(fill, <object>descr, ndim, fill_item):
        return None
    result = _result(out, <object>descr, ndim + 1, shape, nbytes)
    if result is None:
        return None
    target = cnp.PyArray_DATA(<cnp.ndarray>result)
    # No row is larger than a padded one.
    if out is not None and _overlap(target, nbytes, data, n, nbytes // n):
        return None
    if nbytes < NOGIL_BYTES:
        fi_pad(target, row_shape, ndim, itemsize, data, shapes, n, fill_item)
    else:
        with nogil:
            fi_pad(target, row_shape, ndim, itemsize, data, shapes, n, fill_item)
    return result


cdef object _pad_numbers(Table *table, PyObject **rows, object fill, object out):
    """Nothing is padded, but a fill value that is no number is an error all the same."""
    cdef int64_t fill_item[NUMBER_WORDS]
    result = _stack_numbers(rows, table.n, out)
    hold(table)
    if result is None or not _cast_fill(fill, result.dtype, 0, fill_item):
        return None
    return result


cdef bint _cast_fill(object fill, object dtype, int ndim, void *item) except -1:
    """Write the fill value, if it is a number, as one element of `dtype`; else return False.

    `ndim`: of the examples; those without an axis need no fill value. `item`: aligned for any number.
    """
    cdef int num = (<PyArray_Descr *>dtype).type_num
    cdef cnp.ndarray element

    if cnp.PyArray_ISNBO((<PyArray_Descr *>dtype).byteorder):
        if type(fill) is int and cast_int(fill, num, item):
            return True
        if type(fill) is float and cast_float(fill, num, item):
            return True
    if type(fill) is not complex and type(fill) not in NUMBER_DTYPES:
        return False
    element = cast_fill(fill, dtype, ndim)
    memcpy(item, cnp.PyArray_DATA(element), cnp.PyArray_ITEMSIZE(element))
    return True
