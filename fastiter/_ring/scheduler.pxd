from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._ring.lease cimport Lease
from fastiter._ring.parent_ring cimport ParentRing
from fastiter._ring.row_reader cimport Schema


cdef class Scheduled:
    cdef readonly uint64_t q
    cdef readonly Plan plan
    cdef readonly Schema schema
    cdef Py_ssize_t batch_size


cdef class BatchScheduler:
    cdef readonly ParentRing _ring
    cdef readonly Py_ssize_t _batch_size
    cdef public Py_ssize_t _n_prefetch
    cdef readonly list _scheduled
    cdef readonly Schema _schema
    cdef readonly uint32_t _schema_number
    cdef public uint64_t _least_bytes
    cdef readonly uint64_t _recent_bytes
    cdef public int64_t _single_until
    cdef public bint _fast_path_ok
    cdef public tuple seed
    cdef readonly uint64_t calls
    cdef readonly uint64_t ready_sum
    cdef bint agrees(self, PlanQueue plans)
    cdef int tell_origin(self, uint32_t slot, Plan plan) except -1
    cpdef Lease lease_head(self, uint32_t slot, bint converted)
    cdef bint schedule(self, Plan plan) except -1
