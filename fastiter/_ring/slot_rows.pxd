from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport FI_CACHE_PEEK, fi_cache
from fastiter._ring.schema cimport Field, SlotWriter

cdef class SlotRows(SlotWriter):
    cdef int64_t schema_number
    cdef uint64_t row_bytes  # of the schema's columns
    cdef uint64_t signature  # of the fields that are copied to the schema's columns; 0: none are
    cdef uint64_t stored_word  # of the row that `find_stored` has found, and what it has read
    cdef char stored[FI_CACHE_PEEK]
    cdef bint is_kept  # an array that the dataset was given last is still in use
    cdef object plan_message  # of the batch `message_of`
    cdef object seeds  # uint64 (n + 1,), of that batch, once they were asked for
    cdef uint64_t message_of
    cdef bint is_whole  # the batch has one row, which is made of its request
    cdef int look_at_message(self) except -1
    cdef int64_t index_of(self, uint32_t row) noexcept
    cdef object message(self)
    cdef uint32_t store(self, uint32_t row, object example) except 0
    cdef int load_schema(self) except -1
    cdef bint find_stored(self, fi_cache *cache, uint64_t number) except -1
    cdef bint copy_stored(self, fi_cache *cache, uint32_t row) except -1
    cdef tuple give(self, uint32_t row)
    cdef uint32_t write_given(self, uint32_t row, object into, object number) except 1
    cdef bint is_in_use(self, Py_ssize_t place) noexcept
    cdef uint32_t store_failure(self, uint32_t row, object error) except 0
    cdef bint pad_field(self, Field *f, list rows, object fill, int64_t max_length,
                        int64_t multiple) except -1
    cdef bint find_ragged(self, Field *f, char *payload, uint64_t committed, list rows,
                          const void **sources, int64_t *shapes) except -1
