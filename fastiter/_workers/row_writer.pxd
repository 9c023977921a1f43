from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport fi_cpu_meter, fi_event, fi_origin
from fastiter._fetch.cache_table cimport CacheTable
from fastiter._fetch.column_rows cimport ColumnRows

cdef class RowWriter(ColumnRows):
    cdef object answer
    cdef uint32_t n_answered  # examples of its last answer
    cdef object orders, into, cache_of  # see `RowAccess`
    cdef CacheTable table  # of the claim, or None
    cdef bint is_placing  # rows of the claim may be written without their examples
    cdef object memory  # a number of the arena
    cdef public object rows  # those that are fetched by one call, or None
    cdef public list indices  # theirs
    cdef public object turn  # has the place of the current one among them, or None
    cdef uint32_t timed_row  # of the claim, or NO_ROW
    cdef uint32_t weight  # how many rows it stands for
    cdef uint32_t short_ranges  # since the last one in which a row was timed
    cdef uint32_t dice
    cdef bint times_all  # rows of the claim
    cdef bint clocks_all  # of rows in two steps it is known exactly when they were begun
    cdef bint announces  # rows of the claim, in two steps, by their index only
    cdef bint two_steps  # rows are owned when they have been fetched
    cdef bint is_hedge  # another worker has begun the row
    cdef bint has_made_wholes  # since the heap was trimmed
    cdef bint is_single  # rows of the claim are fetched one by one
    cdef int64_t begun  # the present claim
    cdef int64_t since  # when the row, or the call for many, was begun
    cdef int64_t fetched  # when it was there
    cdef uint32_t n_calls  # of the dataset for many rows
    cdef uint32_t n_called  # rows of the first one
    cdef fi_origin origin  # of rows in two steps
    cdef uint32_t own_row  # the last one that was owned in two steps
    cdef fi_cpu_meter cpu
    cdef bint traces  # the present claim is recorded
    cdef fi_event traced  # fetching of rows that are no event yet
    cdef int64_t traced_write_ns
    cdef uint32_t traced_rows
    cdef int fill(self) except -1
    cdef void choose_timed_row(self) noexcept
    cdef bint place(self, uint32_t row) noexcept
    cdef bint put_stored(self, uint32_t row, object number) except -1
    cdef void placed(self, uint32_t row, uint32_t code) noexcept
    cdef int fill_whole(self, uint32_t row) except -1
    cdef bint promise(self, uint32_t row, int64_t since) noexcept
    cdef bint wins(self, uint32_t row, int64_t fetched) noexcept
    cdef void timed(self, int64_t since, int64_t fetched, int64_t index, uint32_t rows,
                    uint32_t weight) noexcept
    cdef void put_traced(self) noexcept
    cdef void mark(self, uint32_t row, uint32_t code) noexcept
    cdef void count(self, uint32_t code) noexcept
    cdef int finish(self, object batch_converter) except -1
