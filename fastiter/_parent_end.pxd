from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._arena cimport Arena
from fastiter._csrc cimport fi_parent


cdef class ParentEnd:
    cdef object __weakref__
    cdef readonly Arena arena
    cdef fi_parent parent
    cdef int pid
    cdef int *bell_writers
    cdef list bell_pipes
    cdef _close_bells(self)
    cdef bint is_own(self) noexcept
    cdef int64_t schedule(self, const int64_t *indices, uint32_t n, uint32_t schema, uint64_t heap,
                          uint64_t commit, bint single) except -2
