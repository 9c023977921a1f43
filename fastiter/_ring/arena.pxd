from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport (
    fi_claim, fi_geometry, fi_ring, fi_views, fi_worker, fi_worker_stat)

cdef enum:
    HEAD_BYTES = 24  # of a packed object: checksum, number of buffers, bytes of the pickle
    SUM_BYTES = 8


cdef class Arena:
    cdef fi_ring ring
    cdef uint64_t control  # bytes of the control area
    cdef readonly int fd
    cdef int pid
    cdef fi_views views
    cdef public bint keeps_pages  # something else than the mapping refers to the pages of slots
    cdef int event_ends[2]
    cdef int map(self, fi_geometry *geometry) noexcept
    cdef int reach(self, uint32_t slot, uint64_t bytes) except -1


cdef class WorkerRing:
    cdef readonly Arena arena
    cdef fi_worker worker
    cdef fi_claim claim
    cdef fi_worker_stat *stat
    cdef int check(self, int rc, str what, uint64_t need, uint64_t have) except -1
    cdef char *payload(self, uint64_t bytes) except NULL
    cdef char *place(self, uint64_t offset) noexcept
    cdef char *whole_payload(self, uint64_t *bytes) except NULL
    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF
    cdef char *take_array(self, int64_t *entry, const int64_t *shape, int ndim,
                          uint64_t size) except NULL
    cdef uint64_t pack(self, object packed, uint32_t row, uint32_t kind,
                       uint64_t *size) except? 0xFFFFFFFFFFFFFFFF
    cdef int pack_row(self, object packed, uint32_t row, uint32_t kind) except -1
    cdef int pack_error(self, tuple dumped, uint32_t row) except -1


cdef object as_packed(object value)
