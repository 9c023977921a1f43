# NumPy's C API with bare pointers, for loops that look at many arrays without touching their
# reference counts.

cimport numpy as cnp
from cpython.object cimport PyObject


cdef extern from "numpy/arrayobject.h":
    cnp.PyTypeObject PyArray_Type
    object new_array "PyArray_NewFromDescr"(
        cnp.PyTypeObject *subtype, cnp.PyArray_Descr *descr, int ndim, const cnp.npy_intp *dims,
        const cnp.npy_intp *strides, void *data, int flags, PyObject *like)
    int set_base "PyArray_SetBaseObject"(cnp.PyArrayObject *array, PyObject *base) except -1
    object scalar_of "PyArray_Scalar"(void *data, cnp.PyArray_Descr *descr, PyObject *base)
    void scalar_into "PyArray_ScalarAsCtype"(PyObject *scalar, void *place)
    int copy_into "PyArray_CopyInto"(cnp.PyArrayObject *to, cnp.PyArrayObject *source) except -1
    bint equivalent "PyArray_EquivTypes"(cnp.PyArray_Descr *a, cnp.PyArray_Descr *b)
    cnp.PyArray_Descr *descr_of "PyArray_DESCR"(const cnp.PyArrayObject *array)
    cnp.npy_intp *dims_of "PyArray_DIMS"(const cnp.PyArrayObject *array)
    char *bytes_of "PyArray_BYTES"(const cnp.PyArrayObject *array)
    int ndim_of "PyArray_NDIM"(const cnp.PyArrayObject *array)
    bint is_contiguous "PyArray_IS_C_CONTIGUOUS"(const cnp.PyArrayObject *array)
    PyObject *base_of "PyArray_BASE"(const cnp.PyArrayObject *array)
    cnp.npy_intp nbytes_of "PyArray_NBYTES"(const cnp.PyArrayObject *array)
