from libc.stdint cimport uint32_t, uint64_t

from fastiter._ring.arena cimport Arena
from fastiter._clib.csrc cimport fi_turn, fi_worker


cdef class WorkerRing:
    cdef readonly Arena arena
    cdef fi_worker worker
    cdef fi_turn turn
    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t seed(self, uint32_t row, uint32_t kind) noexcept
