"""Binding of the ring as the parent has it: schedule, take, free, reset, recover."""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EBADF, EINTR
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from posix.unistd cimport close

from fastiter._ring.arena cimport Arena
from fastiter._clib.csrc cimport *
from fastiter._clib.system cimport check

from fastiter._util.fds import closed_by_others
from fastiter.errors import OverwrittenError

cdef enum:
    MOST_LOSSES = 256  # looked for at a time: they lie on the stack of whoever notices a death
    # A slot with more than so many times what recent batches took, and so many bytes more, gives
    # the rest back.
    MANY_TIMES = 4
    LITTLE = 4 << 20


@cython.no_gc_clear  # __dealloc__ closes the bells' pipes
cdef class ParentRing:
    """The side of the ring that schedules, takes, frees, resets and recovers.

    All methods are called in the process that made it, under the iterator's lock but where they
    say otherwise. It remembers that process: in a forked child its leases forget instead of freeing.
    """

    def __cinit__(self, Arena arena, uint32_t spares):
        self.arena = arena
        self.pid = fi_process_id()
        self.bell_pipes = []
        cdef uint32_t workers = arena.ring.geometry.workers
        cdef int ends[2]
        if fi_bells_need_pipes():
            self.bell_writers = <int *>calloc(workers, sizeof(int))
            if self.bell_writers == NULL:
                raise MemoryError()
            for w in range(workers):
                check(fi_pipe_open(ends), "opening a worker's doorbell")
                self.bell_pipes.append((ends[0], ends[1]))
                self.bell_writers[w] = ends[1]
        check(fi_parent_init(&self.parent, &arena.ring, spares, self.bell_writers),
              f"preparing a ring for batches of {arena.ring.geometry.rows} examples")

    def __dealloc__(self):
        fi_parent_clear(&self.parent)
        self._close_bells()
        free(self.bell_writers)

    def close_descriptors(self):
        """Closes the arena's, too. The workers are gone."""
        self.arena.close_descriptors()
        self._close_bells()

    cdef _close_bells(self):
        pipes, self.bell_pipes = self.bell_pipes or (), []
        for w, ends in enumerate(pipes):
            self.bell_writers[w] = -1
            close(ends[0])
            close(ends[1])

    cdef bint is_own(self) noexcept:
        return self.pid == fi_process_id()

    def bell_pipe(self, uint32_t worker):
        """The descriptor worker `worker` sleeps on, or -1 where bells are futexes."""
        return self.bell_pipes[worker][0] if self.bell_pipes else -1

    # ---- schedule

    cdef int64_t free_slot(self, uint64_t commit, uint64_t recent) except -2:
        """A free slot with memory for a batch, or -1 if none is free.

        Parameters
        ----------
        commit : bytes that shall have pages before a worker comes.
        recent : bytes that recent batches took. A free slot with many times as much, for a batch
            before them was far larger, gives the rest back.
        """
        cdef uint64_t need = 0, have = 0
        cdef uint32_t slot
        cdef int rc
        if fi_parent_next_slot(&self.parent, commit, &slot) != FI_OK:
            return -1
        if not self.arena.keeps_pages:
            self.trim(slot, max(commit, recent))
            # That one is used now and then; others may lie deep in the stack for ever.
            self.trim(self.parent.free_stack[<uint32_t>self.parent.tail % self.parent.free_count],
                      max(commit, recent))
        if commit > fi_parent_committed(&self.parent, slot):
            with nogil:
                rc = fi_parent_commit(&self.parent, slot, commit, &need, &have)
            PyErr_CheckSignals()  # for it may have taken long
            if self.arena.fd < 0:
                raise RuntimeError("the iterator was finalized while next() waited")
            if rc == EBADF:
                raise closed_by_others()
            check(rc, "memory for a batch", need, have)
        return slot

    cdef void trim(self, uint32_t slot, uint64_t bytes) noexcept:
        if fi_parent_committed(&self.parent, slot) // MANY_TIMES > bytes + LITTLE:
            with nogil:
                fi_parent_decommit(&self.parent, slot, bytes)

    cdef uint64_t schedule(self, uint32_t slot, const int64_t *indices, uint32_t n, uint32_t schema,
                           uint64_t heap, bint single) except 0:
        """Gives a free slot to the batch of these dataset indices; returns its sequence number.

        Parameters
        ----------
        heap : bytes that the schema's columns take; the heap starts there.
        single : offer the rows one by one.
        """
        cdef uint64_t q = 0
        check(fi_parent_schedule(&self.parent, slot, indices, n, schema, heap,
                                 self.arena.ring.geometry.slot_bytes, single, &q),
              "scheduling a batch")
        return q

    def ring_all(self):
        fi_parent_ring_all(&self.parent)

    # ---- take

    def collect(self):
        fi_parent_collect(&self.parent)

    def ready(self):
        """(slot, flags) of the oldest batch if it is complete, else None."""
        cdef uint32_t slot = 0, flags = 0
        if fi_parent_ready(&self.parent, &slot, &flags) != FI_OK:
            return None
        return slot, flags

    def announce_sleep(self, bint any_event):
        """Announces that the parent is about to sleep; look again before `wait`."""
        fi_parent_announce_sleep(&self.parent, FI_ANY if any_event else self.parent.head)

    def cancel_sleep(self):
        fi_parent_cancel_sleep(&self.parent)
        fi_event_drain(self.arena.event_ends[0])

    def wait(self, list descriptors, double seconds):
        """Sleeps until the doorbell rings or one of `descriptors` is readable, at most `seconds`.

        Returns the positions of the readable ones, and -1 for the doorbell. Python's signal handlers run, and may raise.
        """
        cdef uint32_t count = <uint32_t>len(descriptors) + 1
        cdef int *fds = <int *>calloc(count, sizeof(int) + 1)
        cdef uint8_t *ready = <uint8_t *>(fds + count)
        cdef int64_t timeout = <int64_t>(seconds * 1e9)
        cdef int rc
        if fds == NULL:
            raise MemoryError()
        try:
            fds[0] = self.arena.event_ends[0]
            for i in range(1, count):
                fds[i] = descriptors[i - 1]
            with nogil:
                rc = fi_wait(fds, count, timeout, ready)
            PyErr_CheckSignals()
            if rc == EBADF:
                raise closed_by_others()
            if rc != EINTR:
                check(rc, "waiting for a batch")
            return [i - 1 for i in range(count) if ready[i]]
        finally:
            free(fds)

    def interrupt(self):
        """Ends a `wait` of another thread. Called without the lock."""
        with cython.critical_section(self.arena):  # else the descriptor may be closed, and another's
            fi_event_ring(self.arena.event_ends[1])

    def irregular_rows(self, uint32_t slot):
        """[(row, code)] of the rows that are not plainly written. Raises OverwrittenError if a row
        word holds what no worker may write, or the workers were told something else."""
        cdef uint32_t irregular = 0, row = 0
        cdef uint64_t word = 0
        cdef fi_ring *ring = &self.arena.ring
        if fi_parent_check(&self.parent, slot, &irregular, &row, &word) != FI_OK:
            raise OverwrittenError(
                f"shared memory was overwritten: {word:#x} was found at row {row} of a batch"
            )
        if irregular == 0:
            return ()
        cdef uint64_t q = self.parent.head
        codes = [(r, fi_row_code(ring, slot, r, q)) for r in range(self.parent.slot[slot].n)]
        return [(r, code) for r, code in codes if code != FI_ROW_OK]

    def entry(self, uint32_t slot, uint32_t row):
        """(offset, bytes) of the packed payload of a row; the lease checks them."""
        cdef uint64_t offset, size
        fi_entry_get(&self.arena.ring, slot, row, &offset, &size)
        return offset, size

    def result(self, uint32_t slot):
        """(offset, bytes) of what the batch converter packed; the lease checks them."""
        cdef uint64_t offset, size
        fi_result_get(&self.arena.ring, slot, &offset, &size)
        return offset, size

    def used(self, uint32_t slot):
        """Bytes of the slot that its columns and heap take."""
        return min(fi_slot_used(&self.arena.ring, slot), fi_parent_committed(&self.parent, slot))

    @property
    def slots(self):
        """Counts by phase: a dict with free, leased, draining, retired, usable."""
        return {
            "free": self.parent.free_count,
            "leased": self.parent.leased,
            "draining": self.parent.draining,
            "retired": self.parent.retired,
            "usable": fi_parent_usable(&self.parent),
        }

    @property
    def has_views(self):
        """Whether a part of a batch, or a sample, is alive in shared memory. Asked on any thread."""
        return fi_views_count(&self.views) > 0

    @property
    def usable(self):
        """Slots that could still be filled if the oldest batch were leased now."""
        return fi_parent_usable(&self.parent)

    @property
    def pending(self):
        """Batches scheduled and not yet taken."""
        return self.parent.tail - self.parent.head

    # ---- reset, death, end

    def losses(self, uint32_t worker):
        """[(slot, row or -1 for a finish, sequence)] that a dead worker had in hand, or the first of
        them: ask again when these were given back."""
        cdef fi_loss found[MOST_LOSSES]
        cdef uint32_t count = fi_parent_losses(&self.parent, worker, found, MOST_LOSSES)
        return [(found[i].slot, -1 if found[i].row == FI_LOSS_FINISH else <int64_t>found[i].row,
                 found[i].q) for i in range(count)]

    def give_back(self, uint32_t slot, int64_t row, uint64_t q, bint poison):
        """Returns one loss to the ring, or gives it up for poisoned."""
        cdef fi_loss loss
        loss.slot = slot
        loss.row = FI_LOSS_FINISH if row < 0 else <uint32_t>row
        loss.q = q
        fi_parent_return(&self.parent, &loss, poison)

    def rewind(self, uint32_t worker):
        """Sends all workers over the scheduled slots again; `worker` may be started anew."""
        fi_parent_rewind(&self.parent, worker, self.bell_pipe(worker))

    def restore_hints(self):
        """Writes all hints anew and wakes all workers, whatever their bells say."""
        fi_parent_restore_hints(&self.parent)

    def offer_singly(self):
        fi_parent_offer_singly(&self.parent)

    @property
    def stalled(self):
        return fi_parent_stalled(&self.parent)

    def give_up(self):
        """For a stalled ring: gives up the batches that are not complete; `irregular_rows` refuses
        them."""
        fi_parent_give_up(&self.parent)

    def stop(self):
        fi_parent_stop(&self.parent)

    def set_spin(self, uint32_t pauses):
        fi_parent_set_spin(&self.parent, pauses)

    # ---- cells

    def allow_start(self, uint32_t worker, uint32_t start):
        fi_worker_stat_allow_start(self.arena.ring.worker_stats + worker, start)

    def clear_stat(self, uint32_t worker):
        fi_worker_stat_clear(self.arena.ring.worker_stats + worker)

    def report(self, uint32_t worker):
        """What the worker's cell says, as a dict of ints."""
        cdef fi_report report
        fi_worker_stat_read(self.arena.ring.worker_stats + worker, &report)
        return report

    def start_error(self, uint32_t worker):
        """The bytes that a worker left when it could not start."""
        cdef fi_report report
        fi_worker_stat_read(self.arena.ring.worker_stats + worker, &report)
        cdef uint32_t length = min(report.start_error_bytes, <uint32_t>FI_START_ERROR_BYTES)
        return PyBytes_FromStringAndSize(
            self.arena.ring.start_errors + <uint64_t>worker * FI_START_ERROR_BYTES, length)
