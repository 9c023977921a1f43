from libc.stdint cimport int64_t


cdef class Plan:
    cdef readonly object indices
    cdef readonly object state
    cdef readonly object error


cdef class PlanQueue:
    cdef object current
    cdef readonly object batch_size
    cdef readonly bint repeat
    cdef readonly bint is_begun
    cdef int64_t step  # the batch size, or as much of it as matters
    cdef list plans  # planned and not delivered, oldest first
    cdef Py_ssize_t handed_out  # so many of them were returned by ahead()
    cdef bint is_passing  # the batch of the state was passed over
    cdef void put_state(self, object state)
    cdef Plan newest(self)
    cdef Plan first(self)
    cdef Plan next_ahead(self)
    cdef Plan plan_one(self)
    cdef Plan plan_beyond(self, object state)
