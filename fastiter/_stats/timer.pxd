from libc.stdint cimport int64_t, uint64_t


cdef enum:
    CALL_ENDED = -1


cdef class Timer:
    cdef readonly uint64_t batches, examples  # delivered
    cdef readonly uint64_t tokens  # of these examples, where the dataset counts them
    cdef readonly uint64_t errors  # calls that raised an error of a batch
    cdef readonly uint64_t skipped  # examples that could not be fetched
    cdef int64_t entered  # when the current call began; 0 outside of next()
    cdef int64_t left  # when the last call ended; 0 if what follows is no part of a loop
    cdef int64_t blocked  # since when the call waits for a batch; 0 if it does not
    cdef int64_t blocked_ns  # in the current call
    cdef int64_t blocked_at  # when it last began to wait
    cdef int64_t start_ns, next_ns, wait_ns, between_ns
    cdef int64_t cpu_ns  # of this process when the first call began; 0 before
    cdef bint is_opening  # workers start: until the first batch is there
    cdef public object opened  # called when the first batch is there, unless it is None
    cdef readonly bint is_serial  # the caller itself fetches, and so waits during the whole call
    cdef object tracer
    cdef int64_t rows  # that the current call delivers, or CALL_ENDED
    cdef unsigned long thread  # that makes the current call; 0 outside of next()
    cdef bint is_inside(self) noexcept
    cdef void enter(self) noexcept
    cdef int note_start(self) except -1
    cdef leave(self)
    cdef void unblock_at(self, int64_t now) noexcept
