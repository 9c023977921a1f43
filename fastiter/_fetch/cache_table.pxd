from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport fi_cache

cdef class CacheTable:
    cdef object __weakref__
    cdef fi_cache cache
    cdef uint64_t mapped
    cdef object locks, hold
    cdef int pid
    cdef uint64_t claim
    cdef uint64_t new_key(self)
    cdef bint is_checked(self, uint64_t at)
    cdef object own_token(self)
