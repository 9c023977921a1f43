cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t

from fastiter._clib.csrc cimport fi_row_format, fi_segment
from fastiter._fetch.arrow_column cimport PaddedLists
from fastiter._fetch.token_rows cimport RowPlanner, TokenSource

cdef class TokenColumn:
    cdef readonly RowPlanner planner
    cdef TokenSource source
    cdef fi_row_format format
    cdef int field
    cdef bint is_flat
    cdef readonly cnp.dtype dtype
    cdef readonly tuple shape  # of a row, unless rows are lists
    cdef readonly int levels  # 1 for lists
    cdef int64_t multiple
    cdef bint has(self, const int64_t *rows, Py_ssize_t n) except -1
    cdef int check_lengths(self, const fi_segment *segments, size_t n) except -1
    cdef int64_t length_of(self, int64_t row) except -2
    cdef bint gather(self, char *target, const int64_t *rows, Py_ssize_t n,
                     uint32_t length) except -1

cdef class TokenLists(PaddedLists):
    pass
