from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._ring.schema cimport Field, SlotWriter

cdef class SlotRows(SlotWriter):
    cdef int64_t schema_number
    cdef uint64_t row_bytes  # of the schema's columns
    cdef int64_t index_of(self, uint32_t row) noexcept
    cdef object request(self)
    cdef uint32_t store(self, uint32_t row, object example) except 0
    cdef int load_schema(self) except -1
    cdef uint32_t store_failure(self, uint32_t row, object error) except 0
    cdef bint pad_field(self, Field *f, list rows, object fill, int64_t max_length,
                        int64_t multiple) except -1
    cdef bint find_ragged(self, Field *f, char *payload, uint64_t committed, list rows,
                          const void **sources, int64_t *shapes) except -1
