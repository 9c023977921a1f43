cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._ring cimport Lease, WorkerEnd

cdef enum:
    MOST_NDIM = 32

cdef struct Field:
    int kind
    int ndim
    bint handable  # its column is what NumPy's concatenate would give
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
    cdef list dtypes
    cdef Field *fields
    cdef Py_ssize_t count
    cdef int write(self, WorkerEnd end, char *payload, Py_ssize_t row, object example) except -1
    cdef int write_field(self, WorkerEnd end, char *payload, Py_ssize_t row, Field *f,
                         object value) except -1
    cdef int copy_array(self, Field *f, char *place, cnp.PyArrayObject *array,
                        Py_ssize_t bytes) except -1
    cdef int64_t *entry(self, Field *f, char *payload, Py_ssize_t row) noexcept
    cdef object read_field(self, Lease lease, Py_ssize_t row, Field *f, bint copy)
    cdef object view(self, Lease lease, Field *f, int ndim, cnp.npy_intp *dims, uint64_t offset,
                     bint copy)
    cdef object column(self, Lease lease, Field *f, bint converted, bint copy)
    cdef bint pad_field(self, WorkerEnd end, char *payload, Field *f, object fill) except -1
