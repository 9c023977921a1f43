cimport numpy as cnp

cdef enum:
    # Results from this size on come from the pool: malloc may give larger ones back to the system
    # each time, and smaller ones it makes faster.
    POOLED_BYTES = 262144

cdef object empty_array(int ndim, const cnp.npy_intp *shape, cnp.PyArray_Descr *dtype,
                        size_t nbytes)
