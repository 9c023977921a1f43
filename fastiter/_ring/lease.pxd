from libc.stdint cimport uint32_t, uint64_t

from fastiter._ring.arena cimport Arena
from fastiter._ring.parent_ring cimport ParentRing


cdef class Lease:
    cdef readonly Arena arena
    cdef ParentRing ring
    cdef uint32_t slot
    cdef char *payload
    cdef Py_ssize_t bytes
    cdef readonly object schema
    cdef readonly Py_ssize_t rows
    cdef uint64_t q
    cdef uint64_t began  # see fi_view_begins
    cdef uint64_t handed  # fields that were given away as columns: a bit for each
    cdef public bint converted
    cdef readonly list places  # number of each row in the ring, where that is another
    cdef void begin(self, ParentRing ring) noexcept
    cdef bint end(self, ParentRing ring) noexcept


cpdef Lease view(ParentRing ring, uint32_t slot, object schema, bint owning, bint converted)
