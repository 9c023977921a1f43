# Numbers read where they stand: Python's and NumPy's into arrays, and fill values into elements.

from cpython.object cimport PyObject
from libc.float cimport FLT_MAX, FLT_MIN
from libc.math cimport fabs, isinf, isnan
from libc.stdint cimport int64_t, uint8_t
cimport numpy as cnp

from fastiter._clib.csrc cimport fi_gather
from fastiter._clib.objects cimport *
from fastiter._clib.borrowed cimport STACK_ROWS, drop_room, scratch_alloc

cdef extern from "numpy/arrayscalars.h" nogil:
    enum:
        # Where the value of a number stands in its object: the same place for every type.
        FI_SCALAR_OFFSET "offsetof(PyDoubleScalarObject, obval)"


cdef inline bint store_ints(PyObject **rows, Py_ssize_t n, cnp.ndarray result) except -1:
    cdef int64_t *target = <int64_t *>cnp.PyArray_DATA(result)
    cdef PyObject *kind = <PyObject *>int
    cdef int overflow = 0
    cdef Py_ssize_t i

    for i in range(n):
        if fi_type(rows[i]) != kind:
            return False
        if fi_int_is_small(rows[i]):
            target[i] = fi_int_value(rows[i])
            continue
        target[i] = PyLong_AsLongLongAndOverflow(rows[i], &overflow)
        if overflow:
            return False
    return True


cdef inline bint store_floats(PyObject **rows, Py_ssize_t n, cnp.ndarray result) noexcept:
    cdef double *target = <double *>cnp.PyArray_DATA(result)
    cdef PyObject *kind = <PyObject *>float
    cdef Py_ssize_t i

    for i in range(n):
        if fi_type(rows[i]) != kind:
            return False
        target[i] = PyFloat_AS_DOUBLE(rows[i])
    return True


cdef inline bint store_bools(PyObject **rows, Py_ssize_t n, cnp.ndarray result) noexcept:
    cdef uint8_t *target = <uint8_t *>cnp.PyArray_DATA(result)
    cdef Py_ssize_t i

    for i in range(n):
        if rows[i] != Py_True and rows[i] != Py_False:
            return False
        target[i] = rows[i] == Py_True
    return True


cdef inline bint store_scalars(PyObject **rows, Py_ssize_t n, cnp.ndarray result) except -1:
    """NumPy's scalars of one type: the values are read where they stand in the objects."""
    cdef PyObject *kind = fi_type(rows[0])
    cdef const void *local[STACK_ROWS]
    cdef const void **data = <const void **>scratch_alloc(n, sizeof(void *), local, STACK_ROWS)
    cdef Py_ssize_t i
    try:
        for i in range(n):
            if fi_type(rows[i]) != kind:
                return False
            data[i] = <const char *>rows[i] + FI_SCALAR_OFFSET
        fi_gather(cnp.PyArray_DATA(result), cnp.PyArray_ITEMSIZE(result), data, n)
        return True
    finally:
        drop_room(data, local)


cdef inline bint cast_int(object fill, int num, void *item) except -1:
    """Cast what every NumPy casts without loss; the rest, answered by False, is left to NumPy."""
    cdef int overflow = 0
    cdef int64_t value = PyLong_AsLongLongAndOverflow(<PyObject *>fill, &overflow)

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
    return -(<int64_t>1 << 53) <= value <= <int64_t>1 << 53 and cast_float(<double>value, num, item)


cdef inline bint cast_float(double value, int num, void *item):
    if num == cnp.NPY_DOUBLE:
        (<double *>item)[0] = value
        return True
    if num == cnp.NPY_FLOAT:
        (<float *>item)[0] = <float>value
        # Anything else warns of an overflow or underflow.
        return value == 0 or FLT_MIN <= fabs(value) <= FLT_MAX or isnan(value) or isinf(value)
    return False
