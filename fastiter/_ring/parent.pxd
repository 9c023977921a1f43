from libc.stdint cimport uint32_t, uint64_t

from fastiter._clib.csrc cimport fi_bell_pipe, fi_parent
from fastiter._ring.arena cimport Arena


cdef class ParentRing:
    cdef object __weakref__
    cdef readonly Arena arena
    cdef fi_parent parent
    cdef fi_bell_pipe *bell_pipes  # of each worker; NULL where doorbells are futexes
    cdef uint32_t n_bell_pipes  # open ones
    cdef void close_bells(self) noexcept
    cdef int end_arena(self) except -1
    cdef uint64_t awaited(self) noexcept
