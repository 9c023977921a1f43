from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._ring.lease cimport Lease
from fastiter._ring.parent cimport ParentRing
from fastiter._ring.schema cimport Schema


cdef class BatchScheduler(ParentRing):
    cdef readonly list scheduled  # plans, in the order in which they are taken
    cdef readonly Schema schema
    cdef readonly uint32_t schema_number
    cdef public Py_ssize_t n_prefetch  # batches ahead of the one that the caller waits for
    cdef public Py_ssize_t reserved  # slots kept free for batches that move
    cdef public uint64_t least_bytes
    cdef readonly uint64_t recent_bytes
    cdef public int64_t single_until
    cdef public bint fast_path_ok
    cdef public tuple seed
    cdef readonly uint64_t calls
    cdef readonly uint64_t ready_sum
    cdef public object registration  # of slots with a GPU, see `cover_first` and `collect`; or None
    cdef list resting  # [stack of such slots, mark behind the copies out of them], the oldest first
    cdef int end_arena(self) except -1
    cdef uint64_t awaited(self) noexcept
    cdef int cover_first(self) except -1
    cdef int collect(self) except -1
    cdef int64_t free_slot(self, uint64_t commit) except -2
    cdef void trim(self, uint32_t slot, uint64_t bytes) noexcept
    cdef void trim_kept(self, uint32_t slot) noexcept
    cdef bint schedule(self, Plan plan, bint is_first=*) except -1
    cdef bint put(self, Plan plan, bint again) except -1
    cdef bint is_ready(self, uint32_t *slot, uint32_t *flags) noexcept
    cdef Lease take_first(self, uint32_t slot, uint32_t flags, bint copied)
