from libc.stdint cimport uint32_t

from fastiter._fetch.gather cimport ColumnReader
from fastiter._fetch.reader cimport DatasetReader
from fastiter._ring.slot_rows cimport SlotRows

cdef class ColumnRows(SlotRows):
    cdef DatasetReader reader
    cdef ColumnReader gatherer  # of a dataset of columns, or None
    cdef uint32_t owned_stop  # of the claim: rows before it are owned already
    cdef uint32_t n_gathered  # rows of the claim
    cdef bint pads_alone  # see BatchConverter
    cdef bint is_paged  # the rows of columns have to be pinned
    cdef bint are_columns_fitting(self) except -1
    cdef uint32_t gather_owned(self, uint32_t first, uint32_t stop) except? 0xFFFFFFFF
    cdef bint gather_rows(self, uint32_t first, uint32_t stop) except -1
    cdef bint write_values(self, uint32_t first, uint32_t count) except -1
    cdef bint gather_lists(self, Py_ssize_t number, list rows, object rule) except -1
    cdef int write_all_values(self) except -1
