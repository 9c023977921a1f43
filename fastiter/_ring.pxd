from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._csrc cimport fi_geometry, fi_parent, fi_ring, fi_turn, fi_worker


cdef class Arena:
    cdef fi_ring ring
    cdef uint64_t total
    cdef readonly int fd
    cdef int event_ends[2]
    cdef int _map(self, fi_geometry *geometry, uint64_t *control)


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
    cpdef Lease view(self, uint32_t slot, object schema, bint owning, bint converted)


cdef class WorkerEnd:
    cdef readonly Arena arena
    cdef fi_worker worker
    cdef fi_turn turn
    cdef bint uncached  # rows are better written past the caches
    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef uint64_t seed(self, uint32_t row, uint32_t kind) noexcept


cdef class Lease:
    cdef readonly Arena arena
    cdef ParentEnd ring
    cdef uint32_t slot
    cdef char *payload
    cdef Py_ssize_t bytes
    cdef readonly object schema
    cdef readonly Py_ssize_t rows
    cdef uint64_t q
    cdef uint64_t handed  # fields that were given away as columns: a bit for each
    cdef public bint converted
    cdef list places  # number of each row in the ring, where that is another
