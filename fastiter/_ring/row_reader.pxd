from fastiter._ring.lease cimport Lease
from fastiter._ring.schema cimport Field


cdef object read_example(Lease lease, Py_ssize_t row, bint copy)
cdef object column(Lease lease, Field *f, bint copy)
