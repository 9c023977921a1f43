cimport numpy as cnp
from cpython.object cimport PyObject

from fastiter._ring.row_reader cimport FIELD_LIMIT, Field, Schema


cdef class ColumnWriter:
    cdef Schema schema
    cdef char **columns  # the first row of each column; NULL for a field that `write_other` writes
    cdef Py_ssize_t least_large  # bytes from which on an array is copied by `copy_large`
    cdef bint uncached  # columns are written past the caches
    cdef cnp.PyArray_Descr *last_dtypes[FIELD_LIMIT]  # equal to the fields', seen last; owned, or NULL
    cdef void use_schema(self, Schema schema) noexcept
    cdef int write(self, Py_ssize_t row, object example) except -1
    cdef int hold(self, object example, PyObject **values) except -1
    cdef int write_fields(self, Py_ssize_t row, PyObject **values) except -1
    cdef bint is_array_of(self, Py_ssize_t number, PyObject *value)
    cdef int copy_array(self, Field *f, char *place, PyObject *array, Py_ssize_t size,
                        bint uncached) except -1
    cdef int copy_large(self, char *place, PyObject *array, Py_ssize_t size,
                        bint uncached) except -1
    cdef int write_other(self, Py_ssize_t number, Py_ssize_t row, PyObject *value) except -1
