cimport numpy as cnp
from libc.stdint cimport uint64_t

cdef enum:
    MOST_NDIM = 32
    FIELD_LIMIT = 64  # a lease marks the fields it has handed over in 64 bits
    _BARE = 0
    _TUPLE = 1
    _LIST = 2
    _DICT = 3
    _NAMED = 4
    _ARRAY = 0
    _RAGGED = 1
    _INT = 2
    _FLOAT = 3
    _BOOL = 4
    _SCALAR = 5
    _OBJECT = 6
    # Array subtypes, as `_util.array_subtypes` numbers them.
    _TENSOR = 1
    _MEMMAP = 2

cdef struct Field:
    int kind
    int ndim
    bint handable  # its column is what NumPy's concatenate would give
    int subtype  # what the examples hold if not plain arrays
    void *array_type  # of the arrays that are written
    bint timed  # datetime64 or timedelta64: the scalar's type does not tell its unit
    cnp.PyArray_Descr *descr  # of the elements; kept alive by Schema.dtypes
    cnp.PyTypeObject *scalar
    cnp.npy_intp dims[MOST_NDIM]
    cnp.npy_intp itemsize
    cnp.npy_intp stride  # bytes from row to row
    uint64_t offset  # of the column in the slot


cdef class Schema:
    cdef readonly int container
    cdef readonly tuple keys
    cdef readonly tuple specs
    cdef readonly Py_ssize_t rows
    cdef readonly uint64_t bytes
    cdef readonly uint64_t row_bytes
    cdef list dtypes
    cdef Field *fields
    cdef Py_ssize_t count
    cdef readonly object type
    cdef readonly dict subtypes
