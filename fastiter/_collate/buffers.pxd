cimport numpy as cnp

cdef enum:
    # Results from this size on come from the pool. Chosen, not measured: far above it memory that
    # malloc maps afresh costs many times the copy, far below it malloc keeps what is freed.
    POOLED_BYTES = 1048576

cdef object empty_array(int ndim, const cnp.npy_intp *shape, cnp.PyArray_Descr *dtype,
                        size_t nbytes)
