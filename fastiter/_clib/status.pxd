from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport FI_OK


cdef int refuse(int rc, str what, uint64_t need, uint64_t have) except -1


cdef inline int check(int rc, str what, uint64_t need=0, uint64_t have=0) except -1:
    """Turns a status of the C library into an exception."""
    return 0 if rc == FI_OK else refuse(rc, what, need, have)
