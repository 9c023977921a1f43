from libc.stdint cimport int64_t

from fastiter._order.plan cimport PlanQueue


cdef class TurnPlanQueue(PlanQueue):
    cdef readonly Py_ssize_t n_workers
    cdef readonly int64_t rows
    cdef public object order, cutter
    cdef public bint is_overtaking, counts_rows
