cimport numpy as cnp
from libc.stdint cimport int64_t, uint64_t

from fastiter._ring.schema cimport Schema

cdef struct Source:
    cnp.PyArrayObject *array  # kept alive by ColumnReader.arrays
    cnp.PyArray_Descr *plain  # its dtype, found to be plain; kept alive by ColumnReader.dtypes
    const int64_t *table  # where rows are; kept alive by ColumnReader.tables; NULL: in order
    Py_ssize_t table_rows

cdef const int64_t *indices_of(object indices, Py_ssize_t *n) except NULL

cdef class ColumnReader:
    cdef tuple keys
    cdef bint views
    cdef int container
    cdef list arrays
    cdef list tables
    cdef readonly list dtypes  # that the columns had at first
    cdef Py_ssize_t count
    cdef Source *sources
    cdef bint fits(self, Schema schema) except -1
    cdef bint into_slot(self, Schema schema, char *payload, Py_ssize_t row, const int64_t *rows,
                        Py_ssize_t n, bint uncached) except -1
    cdef bint gather_rows(self, list outputs, Py_ssize_t start, const int64_t *rows, Py_ssize_t n,
                          uint64_t n_batches) except -1
    cdef bint gather_column(self, Py_ssize_t number, char *target, Py_ssize_t row_bytes,
                            const int64_t *rows, Py_ssize_t n, bint uncached) except -1
    cdef object example(self, Py_ssize_t position, const int64_t *rows)
