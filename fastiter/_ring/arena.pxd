from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport fi_geometry, fi_ring


cdef class Arena:
    cdef fi_ring ring
    cdef uint64_t total
    cdef readonly int fd
    cdef public bint keeps_pages  # something else than the mapping refers to the pages of slots
    cdef int event_ends[2]
    cdef int _map(self, fi_geometry *geometry, uint64_t *control)
