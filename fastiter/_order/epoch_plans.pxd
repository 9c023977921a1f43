from libc.stdint cimport int64_t

from fastiter._order.plan cimport PlanQueue


cdef struct Step:
    int64_t rows  # on all ranks; 0 if the epoch has none left
    int64_t first  # the rank's first one, in the step
    int64_t count  # the rank's rows
    int64_t n_valid  # of these, from the first one on, are no repetitions
    int64_t number  # of the step in its epoch, from 0
    bint is_last  # of its epoch


cdef class EpochPlanQueue(PlanQueue):
    cpdef int64_t counted(self, object order, int64_t position, int64_t size) except -1
    cdef bint is_endless(self, object cuts) noexcept
    cdef void cut(self, object cuts, int64_t position, int64_t size, int64_t rank,
                  bint is_endless, Step *step) noexcept
    cdef int64_t share(self, int64_t left) noexcept
    cpdef int64_t n_steps(self, object cuts, int64_t position, int64_t size)
