cimport numpy as cnp
from cpython.mem cimport PyMem_Free
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

from fastiter._clib.csrc cimport fi_segment, fi_tokens
from fastiter._clib.numpy_api cimport bytes_of

cdef enum:  # methods of a `RowPlanner`
    WINDOWS
    DOCUMENTS
    CONCAT
    FIT

cdef inline char *start_of(object array) noexcept:
    return bytes_of(<cnp.PyArrayObject *>array)

cdef class TokenSource:
    cdef fi_tokens tokens
    cdef object part_memory, document_memory, flat_memory
    cdef list documents
    cdef readonly list arrays  # of the stream, in order
    cdef readonly cnp.dtype dtype

cdef class Window:
    cdef readonly int64_t n_rows
    cdef int64_t n
    cdef object memory  # arrays that hold what follows
    cdef const int64_t *documents  # of concat: in order, and where each ends
    cdef const int64_t *ends
    cdef const int64_t *starts  # of the rows of others: their segments
    cdef const fi_segment *segments

cdef struct Segments:
    fi_segment *items
    size_t n, room
    size_t *starts  # of each row, and behind the last
    uint8_t *continues  # whether the last one of a row is only what follows it

cdef inline void clear(Segments *found) noexcept:
    memset(found, 0, sizeof(Segments))

cdef inline void free_all(Segments *found) noexcept:
    PyMem_Free(found.items)
    PyMem_Free(found.starts)
    PyMem_Free(found.continues)

cdef class RowPlanner:
    cdef readonly TokenSource source
    cdef fi_tokens flat  # the stream as one document
    cdef int method, overlong  # numbers of `METHODS` and `OVERLONG`
    cdef readonly int64_t length
    cdef readonly int64_t n_windows, window  # a window's documents
    cdef readonly int row_bits
    cdef int64_t stride
    cdef readonly int64_t n_planned  # windows that were planned or counted
    cdef bint borders, drop_last
    cdef readonly object words
    cdef object order
    cdef readonly int64_t n_documents
    cdef int64_t n_fixed  # rows, if each epoch has the same ones; else -1
    cdef public int64_t epoch
    cdef dict epochs, plans, orders
    cdef int check_rows(self, int64_t number, int64_t n_rows) except -1
    cpdef Window planned(self, int64_t epoch, int64_t number)
    cdef int resolve(self, const int64_t *rows, Py_ssize_t n, Segments *found) except -1
    cdef int add(self, Segments *found, int64_t document, int64_t start, int64_t length) except -1
    cdef int add_stream(self, Segments *found, int64_t place, int64_t count) except -1
    cdef int add_concat(self, Segments *found, Window window, int64_t row) except -1
