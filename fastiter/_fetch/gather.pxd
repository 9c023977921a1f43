cimport numpy as cnp
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._fetch.arrow_column cimport ArrowColumn, PaddedLists
from fastiter._ring.schema cimport Schema

cdef struct ColumnSource:
    int kind  # RAGGED, TEXT, OBJECT; ARRAY for rows of equal size, also if they are numbers
    # Kept alive by ColumnReader.columns. Of tokens, and Arrow columns of rows of equal size: no row,
    # but their shape and dtype. Else NULL.
    cnp.PyArrayObject *array
    PyObject *arrow  # an ArrowColumn, or NULL
    Py_ssize_t chunking  # 1 + the number of the first Arrow column whose chunks end at the same rows
    PyObject *tokens  # a TokenColumn, which checks its rows by itself; or NULL
    Py_ssize_t n_objects
    cnp.PyArray_Descr *plain  # its dtype, found to be plain; kept alive by ColumnReader.dtypes
    const int64_t *table  # where rows are; kept alive by ColumnReader.tables; NULL: in order
    Py_ssize_t table_rows

# Where the rows of one batch are. What was found for a column holds for the next ones like it.
cdef struct Places:
    int64_t length  # that the rows of `table` were found to be within; -1: they were not looked at
    const int64_t *table
    int64_t local[512]  # rows of a column with a table, where they are few
    int64_t *taken  # the same where they are many: to be freed; or NULL
    Py_ssize_t chunking  # whose `chunks` are known; 0: none are
    uint32_t chunks[512]  # of each row, where they are few

cdef const int64_t *indices_of(object indices, Py_ssize_t *n) except NULL

cdef class ColumnReader:
    cdef readonly tuple keys  # of a dict; else None
    cdef bint views
    cdef readonly int container  # as in a `Schema`
    cdef readonly tuple delegates
    cdef readonly bint is_arrow  # whether a column is not a NumPy array
    cdef list columns
    cdef list templates
    cdef list tables
    cdef readonly list dtypes  # that the columns had at first; of lists, of their elements; or None
    cdef readonly bint is_fixed  # whether all rows of a column have one size
    cdef readonly object row_groups  # `RowGroups`, whose rows are there while pinned; or None
    cdef Py_ssize_t count
    cdef ColumnSource *sources
    cdef Py_ssize_t chunking_of(self, Py_ssize_t number) noexcept
    cdef bint fits(self, Schema schema) except -1
    cdef bint into_slot(self, Schema schema, char *payload, Py_ssize_t row, const int64_t *rows,
                        Py_ssize_t n, bint uncached) except -1
    cdef bint gather_pieces(self, list outputs, Py_ssize_t start, indices,
                            uint64_t n_batches) except -1
    cdef object gather_whole(self, indices, list rules)
    cdef list examples_there(self, indices)
    cdef bint gather_rows(self, list outputs, Py_ssize_t start, const int64_t *rows, Py_ssize_t n,
                          uint64_t n_batches) except -1
    cdef bint gather_column(self, Py_ssize_t number, char *target, Py_ssize_t row_bytes,
                            const int64_t *rows, Py_ssize_t n, bint uncached,
                            Places *places) except -1
    cdef int64_t length(self, Py_ssize_t number) noexcept
    cdef bint translate(self, Py_ssize_t number, const int64_t **rows, Py_ssize_t n,
                        Places *places) except -1
    cdef object row_of(self, Py_ssize_t number, int64_t row)
    cdef object output(self, Py_ssize_t number, Py_ssize_t n)
    cdef list values(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n)
    cdef bint has_rows(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n) except -1
    cdef PaddedLists lists_of(self, Py_ssize_t number, const int64_t *rows, Py_ssize_t n,
                              object rule)
