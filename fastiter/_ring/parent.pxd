from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport fi_parent
from fastiter._ring.arena cimport Arena


cdef class ParentRing:
    cdef object __weakref__
    cdef readonly Arena arena
    cdef fi_parent parent
    cdef int *bell_writers
    cdef list bell_pipes
    cdef _close_bells(self)
    cdef int end_arena(self) except -1
    cdef uint64_t awaited(self) noexcept
