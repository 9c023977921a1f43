"""Compiled joining of the examples of a batch into one array for each field.

The functions take exact arrays of one plain dtype, and numbers of one exact type, and return None
for anything else, which `numpy_fallback` then joins with NumPy's own operations.

They hold no references to what they read (see borrowed.pxd), so they run no Python code before
`hold`.
"""

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy
cimport numpy as cnp

from fastiter._collate.buffers cimport empty_array
from fastiter._clib.csrc cimport (
    FI_MOST_BYTES, FI_MOST_NDIM, fi_array_bytes, fi_gather, fi_pad, fi_pad_shape)
from fastiter._clib.memory cimport NOGIL_BYTES
from fastiter._clib.numpy_api cimport (
    base_of, bytes_of, descr_of, dims_of, equivalent, is_contiguous, ndim_of)
from fastiter._clib.objects cimport *
from fastiter._clib.numbers cimport *
from fastiter._ring.lease cimport Lease
from fastiter._ring.row_reader cimport column
from fastiter._ring.schema cimport ARRAY, MOST_NDIM, NUMBER, STACKABLE, Field, Schema, dtype_traits
from fastiter._clib.borrowed cimport *

import numpy

from fastiter._collate import numpy_fallback

cnp.import_array()

cdef enum:
    STACK_LENGTHS = 512
    # Room for the largest number, a complex of two long doubles, in 8-byte words.
    NUMBER_WORDS = 4


cdef PyObject *NDARRAY = <PyObject *>numpy.ndarray
cdef PyObject *LEASE = <PyObject *>Lease

# The types of numbers that are read where they stand, and what NumPy makes of a list of them.
cdef dict NUMBER_DTYPES = {
    numpy.dtype(code).type: numpy.dtype(code)
    for code in numpy.typecodes["All"]
    if numpy.dtype(code).kind in "biufc"
}
NUMBER_DTYPES.update({kind: numpy.asarray([kind()]).dtype for kind in (int, float, bool)})

# How one field is padded: see FieldRule in padding.py.
cdef struct Rule:
    Py_ssize_t max_length  # of the first axis, or negative
    Py_ssize_t multiple
    bint lengths
    bint explicit


def stack(examples, out=None):
    """Join the examples of a batch, or one field of all its examples, into one array.

    Takes any examples, and gives what ``concat_examples`` without padding gives for NumPy arrays
    and numbers. If the first example is an array (a subclass counts), that is
    ``numpy.concatenate([e[None] for e in examples])``, so mixed dtypes are promoted; otherwise it
    is ``numpy.asarray(examples)``, its rows joined in the same way. A list example is one array
    and not a sequence of fields.

    Exact, C-contiguous arrays of one plain dtype (bool, numbers, datetime64, timedelta64, bytes,
    str) and one shape are copied once each, and the GIL is released if they are 64 KiB or more in
    all; `int`, `float`, `bool` and NumPy scalars of one exact type are read without being boxed.

    Parameters
    ----------
    examples : iterable
        Examples, at least one; read once, before any of their methods is called.
    out : array, optional
        C-contiguous or not, but of exactly the shape and dtype of the result; written and returned
        instead of a new array. Its content after an error is undefined.

    Raises
    ------
    ValueError
        `examples` is empty; the shapes differ; `out` does not fit.
    TypeError
        `out` is not an array; the examples cannot be joined, such as str or None.
    """
    return _join_values(examples, False, None, out)


def pad_stack(arrays, fill, out=None):
    """Join arrays of different shapes into one, the rest of each row being the fill value.

    Takes any examples, and gives what ``concat_examples`` with padding gives for NumPy arrays and
    numbers. The dtype is the first array's; later ones are cast to it as by an assignment; `fill`
    is cast as by ``numpy.full`` of the NumPy that runs, but a float that an integer dtype has no
    value near to (NaN, infinite, out of range) is an error. If the first example is not an array,
    the examples are those of ``numpy.asarray(arrays)``.

    Exact, C-contiguous arrays of one bool or number dtype, in any byte order, with one number of
    dimensions, and a number as `fill`, are written in one pass, each output byte once, and with
    the GIL released if the result is 64 KiB or more.

    Parameters
    ----------
    arrays : iterable of array
        Arrays of the same number of dimensions, at least one.
    fill : scalar
        Value that ``numpy.full`` takes, usually a number.
    out : array, optional
        Array of exactly the shape and dtype of the result; as for `stack`.

    Returns
    -------
    array
        C-contiguous, of shape (number of arrays, elementwise maximum of their shapes).

    Raises
    ------
    ValueError
        `arrays` is empty; the numbers of dimensions differ; `out` does not fit; `fill` has no
        value in the dtype.
    """
    return _join_values(arrays, True, fill, out)


cdef object _join_values(object values, bint pads, object fill, object out):
    cdef Table table
    cdef Rule rule = [-1, 1, False, False]
    rows = rows_of(values)
    table_of_one(&table, rows)
    try:
        if out is not None:
            hold(&table)
        result = _pad(&table, 0, fill, &rule, out) if pads else _stack_field(&table, 0, out)
        if result is None:
            rows = column_of(&table, 0)
            result = numpy_fallback.pad(rows, fill) if pads else numpy_fallback.stack(rows)
            result = numpy_fallback.stored(result, out)
        return result
    finally:
        drop(&table)


def has_read_only(batch):
    """Whether one of the arrays, which may be of subclasses, must not be written to."""
    for value in batch:
        if isinstance(value, cnp.ndarray) and not cnp.PyArray_ISWRITEABLE(value):
            return True
    return False


def join_batch(batch, bint copy):
    """Join a list or tuple of examples, field by field, without padding.

    Returns an array, or a tuple or dict of arrays. If not every field is joined here, it returns
    the list that `join_fields` gives; if the examples have to be looked at first, an empty one.
    """
    cdef list arrays
    if type(batch) is not list and type(batch) is not tuple or not batch:
        return []
    first = batch[0]
    names = None
    if type(first) is dict:
        names = tuple(first)
    elif isinstance(first, tuple):
        names = tuple(range(len(first)))
    elif isinstance(first, dict):
        return []
    arrays = join_fields(batch, names, None, copy)
    for array in arrays:
        if array is None:
            return arrays
    if names is None:
        return arrays[0]
    return dict(zip(names, arrays)) if type(first) is dict else tuple(arrays)


cpdef list join_fields(object batch, tuple names, tuple rules, bint copy):
    """Join each field of a batch of plain examples, at least one, as far as the compiled code can.

    `names` are the numbers of a tuple's fields, the keys of dicts, in their order, or None if each
    example is one field; `rules` holds a FieldRule for each, or is None if no field is padded.
    Unless `copy`, a field of a batch as an iterator delivered it becomes its column in shared
    memory.

    Returns a list: for each field an array; a pair of array and lengths if the rule asks for these;
    None if the field is not joined here, for whatever reason.
    """
    cdef Table table
    cdef Rule rule = [-1, 1, False, False]
    cdef Py_ssize_t field
    cdef list results = [None] * (1 if names is None else len(names))
    if type(batch) is not list and type(batch) is not tuple:
        return results
    rows = rows_of(batch)
    if names is None:
        table_of_one(&table, rows)
    elif not table_of_fields(&table, rows, names):
        return results
    try:
        for field in range(table.count):
            if rules is not None and rules[field][5]:  # the values become a list
                continue
            fill = None if rules is None else _read_rule(<tuple>rules[field], &rule)
            results[field] = _join(&table, field, fill, &rule, copy)
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


cdef object _join(Table *table, Py_ssize_t field, object fill, Rule *rule, bint copy):
    """One field: an array, or a pair of array and lengths; None if it is not joined here."""
    cdef PyObject *first = table.items[field * table.n]
    cdef bint plain = rule.max_length < 0 and rule.multiple == 1 and not rule.lengths
    cdef Py_ssize_t number = -1 if copy else _column_number(table, field)
    if number >= 0:
        if not plain:
            return None  # `collate.join` asks again if no row is cut
        result = _export(table, <cnp.ndarray>first, number, fill)
        if result is not None:
            return result
    if fill is not None:
        return _pad(table, field, fill, rule, None)
    if plain or not rule.explicit and _number_dtype(fi_type(first)) is not None:
        return _stack_field(table, field, None)
    return None


# ---- columns of a delivered batch ----


cdef Py_ssize_t _column_number(Table *table, Py_ssize_t field) except -2:
    """Number of the column in shared memory that the arrays of a field are.

    -1 unless they are, in order and complete, the arrays of one field of one taken slot, none
    replaced, reshaped, or moved, and this field was not exported before.
    """
    cdef PyObject **values = table.items + field * table.n
    cdef cnp.PyArrayObject *array = <cnp.PyArrayObject *>values[0]
    cdef Lease lease
    cdef Schema schema
    cdef Field *f = NULL
    cdef PyObject *base
    cdef Py_ssize_t row, number
    cdef int axis
    cdef char *start
    if fi_type(values[0]) != NDARRAY:
        return -1
    base = base_of(array)
    if base == NULL or fi_type(base) != LEASE:
        return -1
    lease = <Lease>base
    schema = lease.schema
    if schema is None or lease.rows != table.n:
        return -1
    start = bytes_of(array)
    for number in range(schema.count):
        if schema.fields[number].kind == ARRAY and schema.fields[number].is_stackable and (
                lease.payload + schema.fields[number].offset == start):
            f = &schema.fields[number]
            # Empty columns share their start with a neighbour: the dtype tells.
            if equivalent(descr_of(array), f.descr):
                break
    if f == NULL or lease.exported >> number & 1 or f.stride == 0 or f.ndim == MOST_NDIM:
        return -1
    for row in range(table.n):
        if row + AHEAD < table.n:
            fi_prefetch(values[row + AHEAD])
        array = <cnp.PyArrayObject *>values[row]
        if fi_type(values[row]) != NDARRAY:
            return -1
        if base_of(array) != base or bytes_of(array) != start + row * f.stride or (
                ndim_of(array) != f.ndim) or not is_contiguous(array) or (
                descr_of(array) != f.descr and not equivalent(descr_of(array), f.descr)):
            return -1
        for axis in range(f.ndim):
            if dims_of(array)[axis] != f.dims[axis]:
                return -1
    return number


cdef object _export(Table *table, cnp.ndarray first, Py_ssize_t number, object fill):
    """The column of a field, not copied, if the fill value casts: from now on they share memory.

    A field is exported once: two results must not share memory with each other.
    """
    cdef Lease lease = <Lease>base_of(<cnp.PyArrayObject *>first)
    cdef uint64_t mark = <uint64_t>1 << number
    cdef bint is_free
    if fill is not None:
        hold(table)  # casting the fill value may run NumPy's Python code
        # One that does not cast is an error even if nothing is to be filled.
        if not numpy_fallback.fill_casts(fill, first.dtype, first.ndim):
            return None
    with cython.critical_section(lease):  # another thread may export it
        is_free = not lease.exported & mark
        lease.exported |= mark
    return column(lease, &lease.schema.fields[number], False) if is_free else None


# ---- what the compiled functions take ----


cdef bint _is_same(cnp.PyArray_Descr *descr, cnp.PyArray_Descr *other):
    return (
        (<cnp.dtype>descr).type_num == (<cnp.dtype>other).type_num
        and equivalent(descr, other)
        and (<object>descr).metadata is None
    )


cdef bint _scan(PyObject **rows, Py_ssize_t n, const void **data, int64_t *shapes):
    """Collect the address of each row's data, and its shape.

    Returns False unless all rows are exact, C-contiguous arrays with the dtype and the number of
    dimensions of the first one (which is an array). With `shapes` NULL they have its shape, too.
    """
    cdef cnp.PyArrayObject *first = <cnp.PyArrayObject *>rows[0]
    cdef cnp.PyArray_Descr *descr = descr_of(first)
    cdef PyObject *kind = NDARRAY
    cdef int ndim = ndim_of(first)
    cdef const cnp.npy_intp *shape = dims_of(first)
    cdef const cnp.npy_intp *lengths
    cdef cnp.PyArrayObject *row
    cdef Py_ssize_t i
    cdef int d

    for i in range(n):
        if i + AHEAD < n:
            fi_prefetch(rows[i + AHEAD])
        row = <cnp.PyArrayObject *>rows[i]
        if fi_type(rows[i]) != kind:
            return False
        if descr_of(row) != descr and not _is_same(descr_of(row), descr):
            return False
        if ndim_of(row) != ndim or not is_contiguous(row):
            return False
        lengths = dims_of(row)
        if shapes != NULL:
            for d in range(ndim):
                shapes[d] = lengths[d]
            shapes += ndim
        else:
            for d in range(ndim):
                if lengths[d] != shape[d]:
                    return False
        data[i] = bytes_of(row)
        fi_prefetch(data[i])
    return True


# ---- where the result goes ----


cdef object _result(object out, object dtype, int ndim, const cnp.npy_intp *shape, size_t nbytes):
    """A new array, or `out` if it can be written directly; else None."""
    if out is None:
        return empty_array(ndim, shape, <cnp.PyArray_Descr *>dtype, nbytes)
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


cdef object _stack_field(Table *table, Py_ssize_t field, object out):
    cdef PyObject **rows = table.items + field * table.n
    if fi_type(rows[0]) == NDARRAY:
        return _stack_arrays(table, rows, out)
    return _stack_numbers(rows, table.n, out)


cdef object _stack_arrays(Table *table, PyObject **rows, object out):
    cdef cnp.PyArrayObject *first = <cnp.PyArrayObject *>rows[0]
    cdef cnp.PyArray_Descr *descr = descr_of(first)
    cdef int ndim = ndim_of(first), axis
    if ndim >= FI_MOST_NDIM or not dtype_traits(<cnp.dtype>descr) & STACKABLE:
        return None

    cdef Py_ssize_t n = table.n
    cdef cnp.npy_intp shape[FI_MOST_NDIM]
    cdef const void *local[STACK_ROWS]
    cdef const void **data = <const void **>scratch_alloc(n, sizeof(void *), local, STACK_ROWS)
    cdef size_t row_nbytes = cnp.PyArray_NBYTES(<cnp.ndarray>rows[0])
    cdef size_t nbytes = n * row_nbytes
    cdef void *target
    try:
        if row_nbytes >= FI_MOST_BYTES // <uint64_t>n or not _scan(rows, n, data, NULL):
            return None
        shape[0] = n
        for axis in range(ndim):
            shape[1 + axis] = dims_of(first)[axis]
        result = _result(out, <object>descr, ndim + 1, shape, nbytes)
        if result is None:
            return None
        target = bytes_of(<cnp.PyArrayObject *>result)
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


cdef object _stack_numbers(PyObject **rows, cnp.npy_intp n, object out):
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
    """The padded array, or a pair of array and lengths; None if it is not padded here."""
    cdef PyObject **rows = table.items + field * table.n
    cdef cnp.PyArrayObject *first = <cnp.PyArrayObject *>rows[0]
    if fi_type(rows[0]) != NDARRAY:
        return None if rule.explicit else _pad_numbers(table, rows, fill, out)
    cdef int ndim = ndim_of(first)
    if ndim >= FI_MOST_NDIM or not dtype_traits(<cnp.dtype>descr_of(first)) & NUMBER:
        return None

    cdef Py_ssize_t n = table.n
    cdef const void *local_data[STACK_ROWS]
    cdef int64_t local_shapes[STACK_LENGTHS]
    cdef const void **data = NULL
    cdef int64_t *shapes = NULL
    cdef Py_ssize_t i
    try:
        data = <const void **>scratch_alloc(n, sizeof(void *), local_data, STACK_ROWS)
        shapes = <int64_t *>scratch_alloc(
            n * max(ndim, 1), sizeof(int64_t), local_shapes, STACK_LENGTHS)
        if not _scan(rows, n, data, shapes):
            return None
        if ndim == 0 and rule.explicit:
            return None
        if rule.max_length >= 0 and ndim > 0:  # the end of C-contiguous rows is cut off
            for i in range(n):
                shapes[i * ndim] = min(shapes[i * ndim], rule.max_length)
        result = _pad_scanned(table, first, data, shapes, fill, rule.multiple, out)
        if result is None or not rule.lengths or ndim == 0:
            return result
        return result, _first_lengths(shapes, n, ndim)
    finally:
        drop_room(data, local_data)
        drop_room(shapes, local_shapes)


cdef object _first_lengths(const int64_t *shapes, Py_ssize_t n, int ndim):
    cdef cnp.ndarray lengths = cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)
    cdef int64_t *target = <int64_t *>cnp.PyArray_DATA(lengths)
    cdef Py_ssize_t i
    for i in range(n):
        target[i] = shapes[i * ndim]
    return lengths


cdef object _pad_scanned(Table *table, cnp.PyArrayObject *first, const void **data,
                         const int64_t *shapes, object fill, Py_ssize_t multiple, object out):
    cdef cnp.PyArray_Descr *descr = descr_of(first)
    cdef Py_ssize_t n = table.n
    cdef int ndim = ndim_of(first)
    cdef size_t itemsize = cnp.PyArray_ITEMSIZE(<cnp.ndarray>first)
    cdef int64_t row_shape[FI_MOST_NDIM]
    cdef cnp.npy_intp shape[FI_MOST_NDIM]
    cdef int64_t fill_item[NUMBER_WORDS]
    cdef uint64_t nbytes
    cdef void *target
    cdef int d

    fi_pad_shape(row_shape, ndim, shapes, n)
    if ndim > 0:
        row_shape[0] = (row_shape[0] + multiple - 1) // multiple * multiple
    shape[0] = n
    for d in range(ndim):
        shape[d + 1] = row_shape[d]
    nbytes = fi_array_bytes(row_shape, ndim, n * itemsize)
    if nbytes == 0 or nbytes == <uint64_t>-1:  # empty, or too large: NumPy's own result or error
        return None
    hold(table)  # casting the fill value may run NumPy's Python code
    if not _cast_fill(fill, <object>descr, ndim, fill_item):
        return None
    result = _result(out, <object>descr, ndim + 1, shape, nbytes)
    if result is None:
        return None
    target = bytes_of(<cnp.PyArrayObject *>result)
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
    """Nothing is padded, but a fill value that is not a number is an error nevertheless."""
    cdef int64_t fill_item[NUMBER_WORDS]
    result = _stack_numbers(rows, table.n, out)
    hold(table)
    if result is None or not _cast_fill(fill, result.dtype, 0, fill_item):
        return None
    return result


cdef bint _cast_fill(object fill, object dtype, int ndim, void *item) except -1:
    """Write the fill value, if it is a number, as one element of `dtype`; else return False.

    `ndim`: of the examples; those without an axis need no fill value. `item`: aligned for any
    number.
    """
    cdef int num = (<cnp.dtype>dtype).type_num
    cdef cnp.ndarray element

    if cnp.PyArray_ISNBO((<cnp.dtype>dtype).byteorder):
        if type(fill) is int and cast_int(fill, num, item):
            return True
        if type(fill) is float and cast_float(fill, num, item):
            return True
    if type(fill) is not complex and type(fill) not in NUMBER_DTYPES:
        return False
    element = numpy_fallback.cast_fill(fill, dtype, ndim)
    memcpy(item, cnp.PyArray_DATA(element), cnp.PyArray_ITEMSIZE(element))
    return True
