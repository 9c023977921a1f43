from libc.stdint cimport int64_t


cdef class Plan:
    cdef readonly object indices
    cdef readonly object state
    cdef readonly object error
    cdef public object work
    cdef public object outcome
    cdef public object progress
    cdef public Py_ssize_t n_dropped
    cdef readonly object request
    cdef readonly int worker


cdef class PlanQueue:
    cdef object current
    cdef readonly object planned  # state of the batch planned last
    cdef readonly int64_t batch_size
    cdef readonly bint repeat
    cdef readonly bint is_begun
    cdef public object progress
    cdef readonly list plans  # planned and not delivered, in the order of their delivery
    cdef bint is_passing  # the batch of the state was passed over
    cdef void put_state(self, object state) noexcept
    cdef Plan first(self)
    cdef bring_forward(self, Plan plan)
    cpdef Plan ahead(self)
    cdef Plan plan_one(self)
    cpdef Plan advance(self, object state)
    cdef object piece(self, object order, int64_t start, int64_t stop)
