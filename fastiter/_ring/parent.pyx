"""The parent's side of the ring: doorbells, waiting, the workers' reports and traces.

`ParentRing` is what batches (`fastiter._ring.scheduler`) and reader streams (`fastiter._ring.stream`)
have in common. README.md tells the life of a slot.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free
from libc.errno cimport EINTR
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport zeroed
from fastiter._clib.status cimport check
from fastiter._ring.arena cimport Arena

from fastiter._clib.status import closed_by_others

# What a worker says of itself, see `fi_report`. The times are in ns on the clock of `now`.
Report = dict[str, int]
# Kind, begin and length in ns, dataset index of the first row, rows, and number of the batch.
Event = tuple[str, int, int, int, int, int]

cdef dict EVENT_KINDS = {
    FI_EVENT_FETCH: "fetch", FI_EVENT_WRITE: "write", FI_EVENT_FINISH: "finish",
    FI_EVENT_WAIT: "wait", FI_EVENT_HEDGE: "hedge", FI_EVENT_LOST: "lost",
}


@cython.no_gc_clear  # __dealloc__ closes the pipes of the doorbells
cdef class ParentRing:
    """The parent's side of an arena, of batches or of reader streams.

    All methods are called in the process that made it, under the iterator's lock unless they say
    otherwise. In a forked child, leases do not give their slots back. `spares` are slots that are
    used only in place of retired ones.
    """

    def __cinit__(self, Arena arena, uint32_t spares, *_):
        self.arena = arena
        cdef uint32_t workers = arena.ring.geometry.workers
        if fi_bells_need_pipes():
            self.bell_pipes = <fi_bell_pipe *>zeroed(workers, sizeof(fi_bell_pipe))
            while self.n_bell_pipes < workers:
                check(fi_bell_pipe_open(self.bell_pipes + self.n_bell_pipes), "opening a worker's doorbell")
                self.n_bell_pipes += 1
        check(fi_parent_init(&self.parent, &arena.ring, spares, self.bell_pipes),
              f"preparing a ring for batches of {arena.ring.geometry.rows} examples")

    def __dealloc__(self):
        fi_parent_clear(&self.parent)
        self.close_bells()
        PyMem_Free(self.bell_pipes)

    def close(self):
        """Gives back the memory that no lease holds, and closes all descriptors. The workers have
        ended."""
        try:
            self.end_arena()
        finally:
            self.arena.close_descriptors()
            self.close_bells()

    cdef int end_arena(self) except -1:
        self.arena.end()
        return 0

    cdef void close_bells(self) noexcept:
        for w in range(self.n_bell_pipes):
            fi_bell_pipe_close(&self.bell_pipes[w])

    def bell_pipe(self, uint32_t worker):
        """The descriptor that worker `worker` sleeps on, or -1 where doorbells are futexes."""
        return self.bell_pipes[worker].reader if self.bell_pipes != NULL else -1

    def wait(self, done, bint any_event, list descriptors, double seconds):
        """Sleeps until the doorbell rings or one of `descriptors` is readable, at most `seconds`.

        Workers ring for every slot if `any_event`, else for the oldest batch only. `done` is asked
        after they were told of the sleep: if it returns true, `wait` returns None at once. Else it
        returns the positions of the readable descriptors, and -1 for the doorbell. Python's signal
        handlers run, and may raise.
        """
        if not fi_ring_has_event(&self.arena.ring):
            raise closed_by_others()
        cdef uint32_t count = <uint32_t>len(descriptors) + 1
        cdef int *fds = <int *>zeroed(count, sizeof(int) + 1)
        cdef uint8_t *ready = <uint8_t *>(fds + count)
        cdef int64_t timeout = <int64_t>(seconds * 1e9)
        cdef int rc
        try:
            fi_parent_announce_sleep(&self.parent, FI_ANY if any_event else self.awaited())
            if done():
                return None
            fds[0] = self.arena.event_ends[0]
            for i in range(1, count):
                fds[i] = descriptors[i - 1]
            with nogil:
                rc = fi_wait(fds, count, timeout, ready)
            PyErr_CheckSignals()
            if rc != EINTR:
                check(rc, "waiting for a batch")
            return [<int>i - 1 for i in range(count) if ready[i]]
        finally:
            fi_parent_cancel_sleep(&self.parent)
            fi_event_drain(self.arena.event_ends[0])
            PyMem_Free(fds)

    cdef uint64_t awaited(self) noexcept:
        """The sequence number of the batch whose end is waited for; FI_ANY: that of any."""
        return self.parent.head

    def interrupt(self):
        """Ends a `wait` of another thread. Called without the lock."""
        with cython.critical_section(self.arena):  # else another thread may close the descriptor
            if fi_ring_has_event(&self.arena.ring):  # not in a file that has got its number
                fi_event_ring(self.arena.event_ends[1])

    def ring_all(self):
        """Wakes all workers."""
        fi_parent_ring_all(&self.parent)

    def stop(self):
        """Tells all workers to end."""
        fi_parent_stop(&self.parent)

    @property
    def has_views(self):
        """Whether an array in shared memory is alive. Any thread may ask."""
        return fi_views_count(&self.arena.views) > 0

    # ---- the workers' starts, reports and traces

    def allow_start(self, uint32_t worker, uint32_t start):
        fi_worker_stat_allow_start(self.arena.ring.worker_stats + worker, start)

    def clear_stat(self, uint32_t worker):
        fi_worker_stat_clear(self.arena.ring.worker_stats + worker)

    def report(self, uint32_t worker):
        """The present report of a worker about itself."""
        cdef fi_report report
        fi_worker_stat_read(self.arena.ring.worker_stats + worker, &report)
        return report

    def is_asleep(self, uint32_t worker):
        """Whether a worker waits for work, and was not told yet that there is some."""
        return fi_parent_is_asleep(&self.parent, worker)

    def oldest_fetch(self):
        """Since when the longest of the workers' present fetches is under way, in seconds on the
        clock of `now`; 0 if there is none."""
        return fi_oldest_fetch(&self.arena.ring) / 1e9

    def start_error(self, uint32_t worker):
        """The bytes that a worker left when it could not start."""
        cdef fi_report report
        fi_worker_stat_read(self.arena.ring.worker_stats + worker, &report)
        return PyBytes_FromStringAndSize(
            self.arena.ring.start_errors + <uint64_t>worker * FI_START_ERROR_BYTES,
            min(report.start_error_bytes, <uint32_t>FI_START_ERROR_BYTES))

    def start_trace(self):
        """Has the workers record what they do from their next claim on, from an empty record.

        MemoryError if there is no memory for the records, 1 MiB for each worker.
        """
        cdef uint64_t need = 0, have = 0
        cdef int rc
        with nogil:
            rc = fi_trace_start(&self.arena.ring, &need, &have)
        check(rc, "memory to record a trace", need, have)

    def stop_trace(self):
        fi_trace_stop(&self.arena.ring)

    def trace_events(self, uint32_t worker):
        """The last 32,765 events that a worker has recorded, the oldest first.

        Cheap rows that follow one another are one event. Kinds are fetch, write, finish and wait.
        """
        cdef uint32_t count, i
        cdef fi_event *found = <fi_event *>zeroed(FI_TRACE_EVENTS, sizeof(fi_event))
        try:
            with nogil:
                count = fi_trace_read(&self.arena.ring, worker, found)
            return [
                (EVENT_KINDS.get(found[i].rows_kind & 255, "overwritten"), found[i].began_ns,
                 found[i].took_ns, found[i].index, found[i].rows_kind >> 8, found[i].batch)
                for i in range(count)
            ]
        finally:
            PyMem_Free(found)
