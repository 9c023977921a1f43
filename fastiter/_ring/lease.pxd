from libc.stdint cimport uint32_t, uint64_t

from fastiter._ring.arena cimport Arena
from fastiter._ring.schema cimport Schema


cdef class Lease:
    cdef readonly Arena arena
    cdef bint is_owner  # else what it shows is copied
    cdef object keeper  # has the slot registered with a GPU; or None
    cdef readonly Schema schema  # None: nothing is in columns
    cdef readonly Py_ssize_t rows
    cdef readonly list places  # number of each row in the ring, once rows were dropped
    cdef public uint32_t flags  # what a converter has left in the slot
    cdef uint32_t slot
    cdef uint64_t q
    cdef char *payload
    cdef Py_ssize_t bytes
    cdef uint64_t began  # see fi_view_begins
    cdef uint64_t exported  # columns that were exported: a bit for each field
    cdef int point_at(self, Arena arena, uint32_t slot, uint64_t q, uint64_t bytes) except -1
    cdef int grow(self, uint64_t bytes) except -1
    cdef void own(self, object keeper) noexcept
    cdef int check(self, uint64_t offset, uint64_t size) except -1
    cdef object load_at(self, uint64_t offset, uint64_t size, uint32_t row, uint32_t kind,
                        bint copy)
