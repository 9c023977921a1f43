from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport fi_parent
from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._ring.arena cimport Arena
from fastiter._ring.schema cimport Schema


cdef class ParentRing:
    cdef object __weakref__
    cdef readonly Arena arena
    cdef fi_parent parent
    cdef int *bell_writers
    cdef list bell_pipes
    cdef _close_bells(self)
    cdef int end_arena(self) except -1
    cdef uint64_t awaited(self) noexcept


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
