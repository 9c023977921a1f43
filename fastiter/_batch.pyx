"""Batch assembly: one array from the examples of a batch.

The fast ways take exact arrays of one plain dtype, and numbers of one exact type, and answer None
to everything else. What they leave takes the slow way, which is written in NumPy's own operations,
and therefore gives NumPy's result, warnings and errors.
"""

from cpython.float cimport PyFloat_AS_DOUBLE, PyFloat_CheckExact
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport Py_TYPE, PyObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_SIZE
from libc.float cimport FLT_MAX, FLT_MIN
from libc.math cimport fabs, isinf, isnan
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcpy
cimport numpy as cnp

from fastiter._csrc cimport (
    FI_PAD_MAX_NDIM,
    FI_SCALAR_OFFSET,
    PyArray_CheckExact,
    PyArray_DATA,
    PyArray_Descr,
    PyArray_DESCR,
    PyArray_DIMS,
    PyArray_Empty,
    PyArray_EquivTypes,
    PyArray_IS_C_CONTIGUOUS,
    PyArray_NDIM,
    PyArrayObject,
    PyTuple_GET_ITEM,
    fi_gather,
    fi_pad,
    fi_pad_shape,
)

import numpy

cnp.import_array()

cdef enum:
    # Up to these the tables of one call lie on the stack.
    STACK_ROWS = 256
    STACK_LENGTHS = 512
    # Room for the largest number, a complex of two long doubles, in 8-byte words.
    NUMBER_WORDS = 4
    # Releasing the GIL and taking it back costs more than copying less than this.
    NOGIL_BYTES = 65536

# The types of numbers that are read where they stand, and what NumPy makes of a list of them.
cdef dict NUMBER_DTYPES = {
    numpy.dtype(code).type: numpy.dtype(code)
    for code in numpy.typecodes["All"]
    if numpy.dtype(code).kind in "biufc"
}
NUMBER_DTYPES.update({kind: numpy.asarray([kind()]).dtype for kind in (int, float, bool)})


def stack(examples, out=None):
    # A copy: other threads, and an example's own methods, can change a list while it is read.
    cdef tuple rows = tuple(examples)
    if not rows:
        raise ValueError("examples is empty: a batch has at least one example")
    result = _stack_arrays(rows, out)
    if result is None:
        result = _stack_numbers(rows, out)
    if result is None:
        result = _stored(_stack_by_numpy(rows), out)
    return result


def pad_stack(arrays, fill, out=None):
    cdef tuple rows = tuple(arrays)
    if not rows:
        raise ValueError("arrays is empty: a batch has at least one example")
    result = _pad_arrays(rows, fill, out)
    if result is None:
        result = _stored(_pad_by_numpy(rows, fill), out)
    return result


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


cdef bint _scan(tuple rows, const void **data, int64_t *shapes):
    """Collect the address of each row's data, and its shape.

    Returns False unless all rows are exact, C-contiguous arrays with the dtype and the number of
    dimensions of the first one (which is an array). With `shapes` NULL they have its shape, too.
    """
    cdef PyArrayObject *first = <PyArrayObject *>PyTuple_GET_ITEM(rows, 0)
    cdef PyArray_Descr *descr = PyArray_DESCR(first)
    cdef int ndim = PyArray_NDIM(first)
    cdef const Py_ssize_t *shape = PyArray_DIMS(first)
    cdef const Py_ssize_t *lengths
    cdef PyArrayObject *row
    cdef Py_ssize_t i
    cdef int d

    for i in range(PyTuple_GET_SIZE(rows)):
        row = <PyArrayObject *>PyTuple_GET_ITEM(rows, i)
        if not PyArray_CheckExact(row):
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
    return True


cdef void *_table(size_t count, size_t itemsize, void *local, size_t local_count) except NULL:
    """Room for `count` items: `local` where they fit there, else memory for `_drop_table`.

    `count` is at most 32 times the length of a tuple that exists, so that no product overflows.
    """
    if count <= local_count:
        return local
    cdef void *table = PyMem_Malloc(count * itemsize)
    if table == NULL:
        raise MemoryError(f"no memory for a table of {count} entries")
    return table


cdef void _drop_table(void *table, void *local) noexcept:
    if table != local:
        PyMem_Free(table)


# ---- where the result goes ----


cdef object _result(object out, object dtype, int ndim, const Py_ssize_t *shape):
    """A new array, or `out` where the fast ways can write to it; else None."""
    if out is None:
        Py_INCREF(dtype)  # the constructor takes it over
        return PyArray_Empty(ndim, shape, <PyArray_Descr *>dtype, 0)
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


cdef object _stored(object result, object out):
    """`result`, or `out` with its content."""
    if out is None:
        return result
    if not isinstance(out, numpy.ndarray):
        raise TypeError(f"out is a {type(out).__name__}: pass a numpy.ndarray or None")
    if out.shape != result.shape or out.dtype != result.dtype:
        raise ValueError(
            f"out has shape {out.shape} and dtype {out.dtype}, but this batch has shape "
            f"{result.shape} and dtype {result.dtype}: pass such an array as out, or None"
        )
    numpy.copyto(out, result)
    return out


# ---- stack ----


cdef object _stack_arrays(tuple rows, object out):
    cdef PyArrayObject *first = <PyArrayObject *>PyTuple_GET_ITEM(rows, 0)
    if not PyArray_CheckExact(first):
        return None
    cdef PyArray_Descr *descr = PyArray_DESCR(first)
    cdef int ndim = PyArray_NDIM(first), axis
    # NumPy makes the result's byte order native.
    if ndim >= FI_PAD_MAX_NDIM or not cnp.PyArray_ISNBO(descr.byteorder) or not _is_plain(descr):
        return None

    cdef Py_ssize_t n = PyTuple_GET_SIZE(rows)
    cdef Py_ssize_t shape[FI_PAD_MAX_NDIM]
    cdef const void *local[STACK_ROWS]
    cdef const void **data = <const void **>_table(n, sizeof(void *), local, STACK_ROWS)
    cdef size_t row_nbytes
    cdef void *target
    try:
        if not _scan(rows, data, NULL):
            return None
        shape[0] = n
        for axis in range(ndim):
            shape[1 + axis] = PyArray_DIMS(first)[axis]
        result = _result(out, <object>descr, ndim + 1, shape)
        if result is None:
            return None
        row_nbytes = cnp.PyArray_NBYTES(<cnp.ndarray>PyTuple_GET_ITEM(rows, 0))
        target = cnp.PyArray_DATA(result)
        if out is not None and _overlap(target, n * row_nbytes, data, n, row_nbytes):
            return None
        if n * row_nbytes < NOGIL_BYTES:
            fi_gather(target, row_nbytes, data, n)
        else:
            with nogil:
                fi_gather(target, row_nbytes, data, n)
        return result
    finally:
        _drop_table(data, local)


cdef object _stack_numbers(tuple rows, object out):
    cdef Py_ssize_t n = PyTuple_GET_SIZE(rows)
    cdef bint done

    kind = type(rows[0])
    dtype = NUMBER_DTYPES.get(kind)
    if dtype is None:
        return None
    result = _result(out, dtype, 1, &n)
    if result is None:
        return None
    if kind is int:
        done = _store_ints(rows, result)
    elif kind is float:
        done = _store_floats(rows, result)
    elif kind is bool:
        done = _store_bools(rows, result)
    else:
        done = _store_scalars(rows, result)
    return result if done else None


cdef bint _store_ints(tuple rows, cnp.ndarray result) except -1:
    cdef int64_t *target = <int64_t *>cnp.PyArray_DATA(result)
    cdef int overflow = 0
    cdef Py_ssize_t i

    if cnp.PyArray_ITEMSIZE(result) != sizeof(int64_t):  # NumPy 1 on Windows
        return False
    for i in range(PyTuple_GET_SIZE(rows)):
        row = <object>PyTuple_GET_ITEM(rows, i)
        if not PyLong_CheckExact(row):
            return False
        target[i] = PyLong_AsLongLongAndOverflow(row, &overflow)
        if overflow:
            return False
    return True


cdef bint _store_floats(tuple rows, cnp.ndarray result):
    cdef double *target = <double *>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i

    for i in range(PyTuple_GET_SIZE(rows)):
        row = <object>PyTuple_GET_ITEM(rows, i)
        if not PyFloat_CheckExact(row):
            return False
        target[i] = PyFloat_AS_DOUBLE(row)
    return True


cdef bint _store_bools(tuple rows, cnp.ndarray result):
    cdef uint8_t *target = <uint8_t *>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i

    for i in range(PyTuple_GET_SIZE(rows)):
        row = <object>PyTuple_GET_ITEM(rows, i)
        if row is not True and row is not False:
            return False
        target[i] = row is True
    return True


cdef bint _store_scalars(tuple rows, cnp.ndarray result) except -1:
    """NumPy's scalars of one type: the values are read where they stand in the objects."""
    cdef Py_ssize_t n = PyTuple_GET_SIZE(rows)
    cdef PyObject *kind = <PyObject *>Py_TYPE(rows[0])
    cdef const void *local[STACK_ROWS]
    cdef const void **data = <const void **>_table(n, sizeof(void *), local, STACK_ROWS)
    cdef PyObject *row
    cdef Py_ssize_t i
    try:
        for i in range(n):
            row = PyTuple_GET_ITEM(rows, i)
            if <PyObject *>Py_TYPE(<object>row) != kind:
                return False
            data[i] = <const char *>row + FI_SCALAR_OFFSET
        fi_gather(cnp.PyArray_DATA(result), cnp.PyArray_ITEMSIZE(result), data, n)
        return True
    finally:
        _drop_table(data, local)


cdef object _stack_by_numpy(tuple rows):
    if not isinstance(rows[0], numpy.ndarray):
        array = numpy.asarray(rows)
        if array.dtype.kind in "biufc" and array.dtype.isnative:
            return array  # what taking it apart and joining it again would give
        rows = tuple(array)
    return numpy.concatenate([row[numpy.newaxis] for row in rows])


# ---- pad_stack ----


cdef object _pad_arrays(tuple rows, object fill, object out):
    cdef PyArrayObject *first = <PyArrayObject *>PyTuple_GET_ITEM(rows, 0)
    if not PyArray_CheckExact(first):
        return _pad_numbers(rows, fill, out)
    cdef int ndim = PyArray_NDIM(first)
    if ndim >= FI_PAD_MAX_NDIM or not _is_number(PyArray_DESCR(first)):
        return None

    cdef Py_ssize_t n = PyTuple_GET_SIZE(rows)
    cdef const void *local_data[STACK_ROWS]
    cdef int64_t local_shapes[STACK_LENGTHS]
    cdef const void **data = NULL
    cdef int64_t *shapes = NULL
    try:
        data = <const void **>_table(n, sizeof(void *), local_data, STACK_ROWS)
        shapes = <int64_t *>_table(n * max(ndim, 1), sizeof(int64_t), local_shapes, STACK_LENGTHS)
        if not _scan(rows, data, shapes):
            return None
        return _pad_scanned(rows, data, shapes, fill, out)
    finally:
        _drop_table(data, local_data)
        _drop_table(shapes, local_shapes)


cdef object _pad_scanned(tuple rows, const void **data, const int64_t *shapes, object fill,
                         object out):
    cdef cnp.ndarray first = rows[0]
    cdef Py_ssize_t n = PyTuple_GET_SIZE(rows)
    cdef int ndim = cnp.PyArray_NDIM(first)
    cdef size_t itemsize = cnp.PyArray_ITEMSIZE(first)
    cdef int64_t row_shape[FI_PAD_MAX_NDIM]
    cdef Py_ssize_t shape[FI_PAD_MAX_NDIM]
    cdef int64_t fill_item[NUMBER_WORDS]
    cdef size_t nbytes
    cdef void *target
    cdef int d

    fi_pad_shape(row_shape, ndim, shapes, n)
    shape[0] = n
    for d in range(ndim):
        shape[d + 1] = row_shape[d]
        if row_shape[d] == 0:  # NumPy does not cast a fill value that it has no use for
            return None
    if not _cast_fill(fill, first.dtype, fill_item):
        return None
    result = _result(out, first.dtype, ndim + 1, shape)
    if result is None:
        return None
    nbytes = cnp.PyArray_NBYTES(result)
    target = cnp.PyArray_DATA(result)
    # No row is larger than a padded one.
    if out is not None and _overlap(target, nbytes, data, n, nbytes // n):
        return None
    if nbytes < NOGIL_BYTES:
        fi_pad(target, row_shape, ndim, itemsize, data, shapes, n, fill_item)
    else:
        with nogil:
            fi_pad(target, row_shape, ndim, itemsize, data, shapes, n, fill_item)
    return result


cdef object _pad_numbers(tuple rows, object fill, object out):
    """Nothing is padded, but a fill value that the dtype cannot take is an error all the same."""
    cdef int64_t fill_item[NUMBER_WORDS]
    result = _stack_numbers(rows, out)
    if result is None or not _cast_fill(fill, result.dtype, fill_item):
        return None
    return result


cdef bint _cast_fill(object fill, object dtype, void *item) except -1:
    """Write the fill value, if it is a number, as one element of `dtype`; else return False.

    `item`: aligned for any number.
    """
    cdef int num = (<PyArray_Descr *>dtype).type_num
    cdef cnp.ndarray element

    if cnp.PyArray_ISNBO((<PyArray_Descr *>dtype).byteorder):
        if PyLong_CheckExact(fill) and _cast_int(fill, num, item):
            return True
        if PyFloat_CheckExact(fill) and _cast_float(PyFloat_AS_DOUBLE(fill), num, item):
            return True
    if type(fill) is not complex and type(fill) not in NUMBER_DTYPES:
        return False
    element = numpy.full((), fill, dtype)
    memcpy(item, cnp.PyArray_DATA(element), cnp.PyArray_ITEMSIZE(element))
    return True


cdef bint _cast_int(object fill, int num, void *item) except -1:
    """Cast what every NumPy casts without loss; the rest, answered by False, is left to NumPy."""
    cdef int overflow = 0
    cdef int64_t value = PyLong_AsLongLongAndOverflow(fill, &overflow)

    if overflow:
        return False
    if num == cnp.NPY_BYTE:
        (<signed char *>item)[0] = <signed char>value
        return (<signed char *>item)[0] == value
    if num == cnp.NPY_UBYTE:
        (<unsigned char *>item)[0] = <unsigned char>value
        return (<unsigned char *>item)[0] == value
    if num == cnp.NPY_SHORT:
        (<short *>item)[0] = <short>value
        return (<short *>item)[0] == value
    if num == cnp.NPY_INT:
        (<int *>item)[0] = <int>value
        return (<int *>item)[0] == value
    if num == cnp.NPY_LONG:
        (<long *>item)[0] = <long>value
        return (<long *>item)[0] == value
    if num == cnp.NPY_FLOAT:
        (<float *>item)[0] = <float>value
        return -(1 << 24) <= value <= 1 << 24
    if num == cnp.NPY_DOUBLE:
        (<double *>item)[0] = <double>value
        return -(<int64_t>1 << 53) <= value <= <int64_t>1 << 53
    return False


cdef bint _cast_float(double value, int num, void *item):
    if num == cnp.NPY_DOUBLE:
        (<double *>item)[0] = value
        return True
    if num == cnp.NPY_FLOAT:
        (<float *>item)[0] = <float>value
        # Anything else warns of an overflow or underflow.
        return value == 0 or FLT_MIN <= fabs(value) <= FLT_MAX or isnan(value) or isinf(value)
    return False


cdef object _pad_by_numpy(tuple rows, object fill):
    if not isinstance(rows[0], numpy.ndarray):
        rows = tuple(numpy.asarray(rows))
    result = numpy.full((len(rows), *_padded_shape(rows)), fill, dtype=rows[0].dtype)
    for i, row in enumerate(rows):
        result[(i, *map(slice, row.shape))] = row
    return result


cdef object _padded_shape(tuple rows):
    """The elementwise maximum of the rows' shapes; a shape of one length is broadcast."""
    shape = numpy.array(rows[0].shape, dtype=int)
    for i, row in enumerate(rows):
        try:
            if numpy.not_equal(shape, row.shape).any():
                numpy.maximum(shape, row.shape, out=shape)
        except ValueError:
            raise ValueError(
                f"cannot pad to one shape: example 0 has shape {rows[0].shape}, but example {i} "
                f"has shape {row.shape}: give all examples the same number of dimensions"
            ) from None
    return shape.tolist()
