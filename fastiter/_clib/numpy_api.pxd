# NumPy's C API with bare pointers, for loops that look at many arrays without touching their
# reference counts.

cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int64_t


cdef extern from "numpy/arrayobject.h":
    cnp.PyTypeObject PyArray_Type
    object new_array "PyArray_NewFromDescr"(
        cnp.PyTypeObject *subtype, cnp.PyArray_Descr *descr, int ndim, const cnp.npy_intp *dims,
        const cnp.npy_intp *strides, void *data, int flags, PyObject *like)
    int set_base "PyArray_SetBaseObject"(cnp.PyArrayObject *array, PyObject *base) except -1
    object scalar_of "PyArray_Scalar"(void *data, cnp.PyArray_Descr *descr, PyObject *base)
    void scalar_into "PyArray_ScalarAsCtype"(PyObject *scalar, void *place)
    object new_empty "PyArray_Empty"(
        int ndim, const cnp.npy_intp *dims, cnp.PyArray_Descr *descr, int fortran)
    bint equivalent "PyArray_EquivTypes"(cnp.PyArray_Descr *a, cnp.PyArray_Descr *b)
    cnp.PyArray_Descr *descr_of "PyArray_DESCR"(const cnp.PyArrayObject *array)
    cnp.npy_intp *dims_of "PyArray_DIMS"(const cnp.PyArrayObject *array)
    char *bytes_of "PyArray_BYTES"(const cnp.PyArrayObject *array)
    int ndim_of "PyArray_NDIM"(const cnp.PyArrayObject *array)
    bint is_contiguous "PyArray_IS_C_CONTIGUOUS"(const cnp.PyArrayObject *array)
    PyObject *base_of "PyArray_BASE"(const cnp.PyArrayObject *array)
    cnp.npy_intp nbytes_of "PyArray_NBYTES"(const cnp.PyArrayObject *array)
    cnp.npy_intp *strides_of "PyArray_STRIDES"(const cnp.PyArrayObject *array)
    cnp.npy_intp itemsize_of "PyArray_ITEMSIZE"(const cnp.PyArrayObject *array)
    int type_num_of "PyArray_TYPE"(const cnp.PyArrayObject *array)
    bint is_native "PyArray_ISNOTSWAPPED"(const cnp.PyArrayObject *array)
    bint is_exact_array "PyArray_CheckExact"(PyObject *value)


cdef inline int64_t *data_of(object array) noexcept:
    return <int64_t *>bytes_of(<cnp.PyArrayObject *>array)


cdef inline object new_indices(int64_t n):
    cdef cnp.npy_intp length = n
    return cnp.PyArray_EMPTY(1, &length, cnp.NPY_INT64, 0)


cdef inline int64_t *int64_items(object value, Py_ssize_t *n) noexcept:
    """The items of a C-contiguous int64 array of this machine's byte order with one axis, and how
    many they are; NULL for anything else."""
    cdef cnp.PyArrayObject *array = <cnp.PyArrayObject *>value
    if not is_exact_array(<PyObject *>value) or ndim_of(array) != 1 or (
            not is_contiguous(array) or not is_native(array)):
        return NULL
    # NumPy has two such dtypes: ``long`` and ``long long`` are both of 8 bytes, and print alike.
    if type_num_of(array) != cnp.NPY_INT64 and type_num_of(array) != cnp.NPY_LONGLONG:
        return NULL
    n[0] = dims_of(array)[0]
    return <int64_t *>bytes_of(array)
