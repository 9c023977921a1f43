cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport fi_arrow_array, fi_chunk, fi_column, fi_span

cdef class ArrowColumn:
    cdef object __weakref__
    cdef fi_column column
    cdef fi_chunk *chunks
    cdef list arrays  # capsules that keep the buffers alive
    cdef int64_t inner[32]
    cdef int n_inner
    cdef bytes kind  # of the arrays of row groups: their types' format strings
    cdef readonly object row_groups  # `RowGroups`, or None
    cdef int describe(self, Py_ssize_t number, int64_t first, const fi_arrow_array *array) except -1
    cdef object fill  # a row for those that are null; None: what lies there
    cdef readonly cnp.dtype dtype  # of the elements
    cdef readonly tuple shape  # of a row, unless rows are lists or texts
    cdef readonly object text  # str or bytes, if a row is one
    cdef fi_span *spans(self, const int64_t *rows, Py_ssize_t n) except NULL
    cdef fi_span *inner_spans(self, const fi_span *outer) except NULL
    cdef object element_array(self, const fi_span *span)
    cdef object list_at(self, const fi_span *span)
    cdef list values(self, const int64_t *rows, Py_ssize_t n)

cdef class PaddedLists:
    cdef object column
    cdef readonly cnp.dtype dtype
    cdef Py_ssize_t n
    cdef Py_ssize_t count  # of sources
    cdef int ndim
    cdef int64_t shape[2]
    cdef uint64_t nbytes
    cdef const void **sources
    cdef int64_t *lengths  # of each source
    cdef int64_t *row_lengths  # of the first axis
    cdef char *expanded  # elements that do not lie in the column as they are
    cdef int begin(self, Py_ssize_t n, Py_ssize_t count) except -1
    cdef int end(self) except -1
    cdef bint plan(self, const int64_t *rows, Py_ssize_t n, bint pads, int64_t max_length,
                   int64_t multiple) except -1
    cdef bint plan_inner(self, const fi_span *spans, bint pads) except -1
    cdef int expand_bits(self, const fi_span *spans) except -1
    cdef void write(self, char *target, const void *fill) noexcept
