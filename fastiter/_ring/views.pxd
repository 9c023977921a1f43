from libc.stdint cimport uint64_t

from fastiter._ring.lease cimport Lease
from fastiter._ring.row_reader cimport Field, Schema


cdef int check_part(Lease lease, uint64_t offset, uint64_t size) except -1
cdef object read_example(Schema schema, Lease lease, Py_ssize_t row, bint copy)
cdef object column(Schema schema, Lease lease, Field *f, bint converted, bint copy)
