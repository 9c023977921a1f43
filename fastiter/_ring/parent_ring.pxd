from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._ring.arena cimport Arena
from fastiter._clib.csrc cimport fi_parent, fi_views


cdef class ParentRing:
    cdef object __weakref__
    cdef readonly Arena arena
    cdef fi_parent parent
    cdef fi_views views
    cdef int pid
    cdef int *bell_writers
    cdef list bell_pipes
    cdef _close_bells(self)
    cdef bint is_own(self) noexcept
    cdef int64_t free_slot(self, uint64_t commit, uint64_t recent) except -2
    cdef void trim(self, uint32_t slot, uint64_t bytes) noexcept
    cdef uint64_t schedule(self, uint32_t slot, const int64_t *indices, uint32_t n, uint32_t schema,
                           uint64_t heap, bint single) except 0
