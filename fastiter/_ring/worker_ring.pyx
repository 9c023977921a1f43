"""Binding of the ring as one worker has it: the gate, room for what it packs, and its cell."""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._ring.arena cimport Arena
from fastiter._clib.csrc cimport *
from fastiter._clib.ring_words import LOADING as _LOADING, STARTING as _STARTING
from fastiter._clib.system cimport check

cdef int LOADING = _LOADING, STARTING = _STARTING


cdef class WorkerRing:
    """The side of the ring that one worker works on."""

    def __cinit__(self, Arena arena, uint32_t number, int bell_pipe):
        if number >= arena.ring.geometry.workers:
            raise ValueError(f"worker {number} of {arena.ring.geometry.workers}")
        self.arena = arena
        fi_worker_init(&self.worker, &arena.ring, number, bell_pipe)

    def enter(self, uint32_t start):
        """Waits at the gate; False if this start has been given up meanwhile.

        From here on the cell says that the worker starts: until `load`.
        """
        cdef bint entered
        cdef uint32_t pid = fi_process_id()
        cdef fi_worker_stat *stat = self.worker.ring.worker_stats + self.worker.number
        with nogil:
            entered = fi_worker_stat_wait_for_start(stat, start, pid)
        if entered:
            fi_worker_stat_fetch_begins(stat, STARTING)
        return entered

    def load(self):
        """Tells the parent that code of the user runs from here on, until `loaded`."""
        fi_worker_stat_fetch_begins(self.worker.ring.worker_stats + self.worker.number, LOADING)

    def loaded(self, uint32_t start, bytes note=b""):
        """Tells the parent that work can begin, or leaves it the reason why not."""
        cdef uint32_t length = min(<uint32_t>len(note), <uint32_t>FI_START_ERROR_BYTES)
        memcpy(self.arena.ring.start_errors + <uint64_t>self.worker.number * FI_START_ERROR_BYTES,
               <char *>note, length)
        fi_worker_stat_fetch_ends(self.worker.ring.worker_stats + self.worker.number)
        fi_worker_stat_loaded(self.worker.ring.worker_stats + self.worker.number, start, length)

    def leave(self):
        """Makes `next` answer "stop" once no slot is in hand."""
        self.worker.leave = True

    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF:
        """Offset of `bytes` fresh bytes in the slot in hand."""
        cdef uint64_t offset = 0, need = 0, have = 0
        cdef int rc
        rc = fi_heap_take(self.worker.ring, self.turn.slot, bytes, &offset, &need, &have)
        check(rc, "memory for an example", need, have)
        fi_worker_stat_count(self.worker.ring.worker_stats + self.worker.number, 0, bytes, 0)
        return offset

    cdef uint64_t seed(self, uint32_t row, uint32_t kind) noexcept:
        """For the checksum of what is packed into the slot in hand."""
        return fi_place_seed(self.turn.q, row, kind)
