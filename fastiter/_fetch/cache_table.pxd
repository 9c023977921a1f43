from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport fi_cache, fi_cache_entry

cdef class CacheTable:
    cdef object __weakref__
    cdef fi_cache cache
    cdef uint64_t mapped
    cdef readonly uint64_t limit  # bytes that may be in use
    cdef readonly bint is_private  # whether the file is read-only
    cdef object locks, hold
    cdef int pid
    cdef uint64_t token, key, n_claims
    cdef uint64_t new_key(self)
    cdef object copy(self, uint64_t word, const fi_cache_entry *head, int *rc)
    cdef object own_token(self)
