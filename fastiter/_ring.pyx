"""Binding of the slot ring: the arena, its parent end, its worker ends, and leases.

The C floor has no idea of Python; this file gives its handles Python lifetimes. Every object
remembers the process that made it: in a forked child it forgets instead of freeing.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer)
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, EFBIG, EINVAL, ENOMEM
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from posix.unistd cimport close
from fastiter._csrc cimport *

import os
from fastiter.errors import OverwrittenError

cdef enum:
    MOST_LOSSES = 4096
    SCHEMA_HEAD = 12  # length and checksum

NOTE_BYTES = FI_NOTE_BYTES
LOADING = -1  # in the place of the index in hand

# Kinds of packed objects, and the row of those that belong to the batch as a whole.
PACKED_EXAMPLE, PACKED_ERROR, PACKED_FIELD, PACKED_RESULT, PACKED_FAILURE = range(5)
WHOLE_BATCH = 0xFFFFFFFF

# Codes of done rows, and flags of a finished slot.
ROW_OK = FI_ROW_OK
ROW_SPILL = FI_SPILL
ROW_ERROR = FI_ERROR
ROW_POISON = FI_POISON
CONVERTED_FIELDS = FI_CONVERTED_FIELDS
CONVERTED_OBJECT = FI_CONVERTED_OBJECT
CONVERTER_ERROR = FI_CONVERTER_ERROR
FINISH_POISON = FI_FINISH_POISON


cdef int check(int rc, str what, uint64_t need=0, uint64_t have=0) except -1:
    """Turns a status of the C floor into an exception."""
    if rc == FI_OK:
        return 0
    if rc == FI_E_MEMORY or rc == ENOMEM:
        raise MemoryError(
            f"{what}: {need} bytes needed, {have} available within the machine's and the control "
            "group's limits; reduce batch_size, n_prefetch, shared_mem or the size of the examples"
        )
    if rc == FI_E_FULL:
        raise MemoryError(
            f"{what}: {need} bytes needed, {have} left of the slot's reserved address range; "
            "reduce batch_size or shared_mem, or raise RLIMIT_AS and RLIMIT_FSIZE"
        )
    if rc == FI_E_RANGE:
        raise ValueError(f"{what}: a number is out of range")
    if rc == FI_E_BROKEN:
        raise OverwrittenError(f"{what}: shared memory was overwritten")
    if rc < 0:
        raise RuntimeError(f"{what}: the ring answered {rc}")
    raise OSError(rc, f"{what}: {os.strerror(rc)}")


cdef class Arena:
    """The anonymous shared memory of one iterator, mapped into this process.

    It owns the mapping and the descriptors. The mapping ends with the last object that refers to
    this one (a lease does); `close_descriptors` may come earlier.
    """

    def __cinit__(self):
        self.fd = -1
        self.event_ends[0] = self.event_ends[1] = -1
        self.ring.base = NULL

    @staticmethod
    def create(uint32_t slots, uint32_t workers, uint32_t rows, uint32_t schemas):
        """Maps a new arena, each slot's reservation as large as the limits allow.

        Raises
        ------
        OSError, MemoryError
            No descriptor is left, or too little address space or file size for small slots.
        """
        cdef Arena arena = Arena.__new__(Arena)
        cdef fi_geometry geometry
        cdef uint64_t control, limit = fi_shm_limit(slots)
        cdef int rc
        geometry.slots = slots
        geometry.workers = workers
        geometry.rows = rows
        geometry.schemas = schemas
        geometry.slot_bytes = 1 << 40
        while geometry.slot_bytes > limit:
            geometry.slot_bytes >>= 1
        while True:
            rc = ENOMEM if geometry.slot_bytes < FI_PAGE else arena._map(&geometry, &control)
            if rc == FI_OK:
                break
            if rc != ENOMEM and rc != EFBIG and rc != EINVAL:
                check(rc, f"mapping an arena of {slots} slots")
            if geometry.slot_bytes <= FI_PAGE:
                raise MemoryError("mapping an arena of the smallest slots: too little address space "
                                  "or file size; raise RLIMIT_AS and RLIMIT_FSIZE, or reduce batch_size")
            geometry.slot_bytes >>= 1
        check(fi_event_open(arena.event_ends), "opening the parent's doorbell")
        check(fi_ring_attach(&arena.ring, &geometry, arena.ring.base, arena.fd,
                             arena.event_ends[1]), "laying out the arena")
        return arena

    cdef int _map(self, fi_geometry *geometry, uint64_t *control):
        cdef uint64_t need = 0, have = 0
        cdef void *base = NULL
        cdef int fd
        cdef int rc = fi_ring_size(geometry, control, &self.total)
        if rc == FI_OK:
            rc = fi_shm_open(self.total, &fd)
        if rc != FI_OK:
            return rc
        rc = fi_shm_map(fd, self.total, &base)
        if rc != FI_OK:
            close(fd)
            return rc
        self.ring.base = <char *>base
        self.fd = fd
        return FI_OK

    @staticmethod
    def attach(int fd, int event, tuple geometry):
        """Maps the arena of another process. Takes over both descriptors."""
        cdef Arena arena = Arena.__new__(Arena)
        cdef fi_geometry g
        cdef uint64_t control
        cdef void *base = NULL
        g.slots, g.workers, g.rows, g.schemas, g.slot_bytes = geometry
        arena.fd = fd
        arena.event_ends[0] = arena.event_ends[1] = event
        check(fi_ring_size(&g, &control, &arena.total), "laying out the arena")
        check(fi_shm_map(fd, arena.total, &base), "mapping the arena")
        arena.ring.base = <char *>base
        check(fi_ring_attach(&arena.ring, &g, base, fd, event), "laying out the arena")
        return arena

    @property
    def geometry(self):
        """What `attach` needs besides the descriptors."""
        g = self.ring.geometry
        return (g.slots, g.workers, g.rows, g.schemas, g.slot_bytes)

    @property
    def event_fd(self):
        """The end of the parent's doorbell that workers write to."""
        return self.event_ends[1]

    def dont_fork(self):
        """Keeps the mapping away from children that this process forks from now on."""
        check(fi_shm_dont_fork(self.ring.base, self.total), "hiding the arena from children")

    def do_fork(self):  # again, after something else has hidden parts of it
        check(fi_shm_do_fork(self.ring.base, self.total), "showing the arena to children")

    def forget(self):
        """Lets go of the memory in a child that has inherited it without any view of a batch."""
        check(fi_shm_forget(self.ring.base, self.total), "forgetting an inherited arena")

    @property
    def descriptors(self):
        """All that this process holds open for it."""
        return {fd for fd in (self.fd, self.event_ends[0], self.event_ends[1]) if fd >= 0}

    def close_descriptors(self):
        cdef int fds[3]
        fds[:] = [self.fd, self.event_ends[0], self.event_ends[1]]
        self.fd = self.event_ends[0] = self.event_ends[1] = -1
        for i in range(3):
            if fds[i] >= 0 and (i != 2 or fds[2] != fds[1]):
                close(fds[i])

    def __dealloc__(self):
        self.close_descriptors()
        if self.ring.base != NULL:
            fi_shm_unmap(self.ring.base, self.total)

    def schema_record(self, uint32_t number):
        """The bytes that the parent published as schema `number`."""
        cdef char *place = self.ring.schemas + <uint64_t>number * FI_SCHEMA_BYTES
        cdef uint32_t length
        cdef uint64_t checksum
        if number >= self.ring.geometry.schemas:
            raise ValueError(f"schema {number} of {self.ring.geometry.schemas}")
        memcpy(&length, place, sizeof(length))
        memcpy(&checksum, place + sizeof(length), sizeof(checksum))
        if length > FI_SCHEMA_BYTES - SCHEMA_HEAD or (
                length and checksum != fi_checksum(place + SCHEMA_HEAD, length, number)):
            raise OverwrittenError(f"schema {number} of {length} bytes was overwritten")
        return PyBytes_FromStringAndSize(place + SCHEMA_HEAD, length)

    def put_schema_record(self, uint32_t number, bytes record):
        """Publishes a schema with the next schedule; False if the record is too long."""
        cdef char *place = self.ring.schemas + <uint64_t>number * FI_SCHEMA_BYTES
        cdef uint32_t length = <uint32_t>min(<Py_ssize_t>FI_SCHEMA_BYTES, len(record))
        cdef uint64_t checksum = fi_checksum(<char *>record, length, number)
        if length > FI_SCHEMA_BYTES - SCHEMA_HEAD or number >= self.ring.geometry.schemas:
            return False
        memcpy(place, &length, sizeof(length))
        memcpy(place + sizeof(length), &checksum, sizeof(checksum))
        memcpy(place + SCHEMA_HEAD, <char *>record, length)
        return True


cdef class ParentEnd:
    """The side of the ring that schedules, takes, frees, resets and recovers.

    All methods are called in the process that made it, under the iterator's lock.
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
              "preparing the ring")

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

    cdef int64_t schedule(self, const int64_t *indices, uint32_t n, uint32_t schema, uint64_t heap,
                          uint64_t commit, bint single) except -2:
        """Gives a free slot to the batch of these dataset indices.

        Parameters
        ----------
        heap : bytes that the schema's columns take; the heap starts there.
        commit : bytes that shall have pages before a worker comes.
        single : offer the rows one by one.

        Returns
        -------
        int : the sequence number, or -1 if no slot is free.
        """
        cdef uint64_t q = 0, need = 0, have = 0
        cdef uint32_t slot
        if fi_parent_next_slot(&self.parent, &slot) != FI_OK:
            return -1
        cdef int rc
        cdef fi_ring *ring = &self.arena.ring
        if commit > fi_parent_committed(&self.parent, slot):
            with nogil:
                rc = fi_parent_commit(&self.parent, slot, commit, &need, &have)
            check(rc, "memory for a batch", need, have)
        check(fi_parent_schedule(&self.parent, indices, n, schema, heap,
                                 ring.geometry.slot_bytes, single, &q),
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

    def doze(self, bint any_event):
        """Announces that the parent is about to sleep; look again before `wait`."""
        fi_parent_doze(&self.parent, FI_ANY if any_event else self.parent.head)

    def wake(self):
        fi_parent_wake(&self.parent)
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
            if rc != EINTR:
                check(rc, "waiting for a batch")
            return [i - 1 for i in range(count) if ready[i]]
        finally:
            free(fds)

    def interrupt(self):
        """Ends a `wait` of another thread."""
        fi_event_ring(self.arena.event_ends[1])

    def odd_rows(self, uint32_t slot):
        """[(row, code)] of the rows that are not plainly written. Raises OverwrittenError if a row
        word holds what no worker may write, or the workers were told something else."""
        cdef uint32_t odd = 0, row = 0
        cdef uint64_t word = 0
        cdef fi_ring *ring = &self.arena.ring
        if fi_parent_check(&self.parent, slot, &odd, &row, &word) != FI_OK:
            raise OverwrittenError(
                f"shared memory was overwritten: {word:#x} was found at row {row} of a batch"
            )
        if odd == 0:
            return ()
        cdef uint64_t q = self.parent.head
        codes = [(r, fi_row_code(ring, slot, r, q)) for r in range(self.parent.slot[slot].n)]
        return [(r, code) for r, code in codes if code != FI_ROW_OK]

    def take(self, bint copied):
        """The oldest batch leaves the ring; `copied`: its slot is free again at once."""
        fi_parent_take(&self.parent, copied)

    def drop(self):
        """The oldest batch leaves undelivered, since its row words are broken. Its slot drains."""
        fi_parent_drop(&self.parent)

    cpdef Lease view(self, uint32_t slot, object schema, bint owning, bint converted):
        """A `Lease` over the slot; one that is not `owning` is for copying out of it. `converted`:
        the finisher has put the ragged fields together."""
        cdef Lease lease = Lease.__new__(Lease)
        lease.arena = self.arena
        lease.ring = self if owning else None
        lease.slot = slot
        lease.payload = fi_slot_payload(&self.arena.ring, slot)
        lease.bytes = fi_parent_committed(&self.parent, slot)
        lease.q = self.parent.slot[slot].q
        lease.schema = schema
        lease.converted = converted
        lease.rows = self.parent.slot[slot].n
        return lease

    def entry(self, uint32_t slot, uint32_t row):
        """(offset, bytes) of the packed payload of a row; the lease checks them."""
        cdef uint64_t offset, size
        fi_entry_get(&self.arena.ring, slot, row, &offset, &size)
        return offset, size

    def result(self, uint32_t slot):
        """(offset, bytes) of what the finisher packed; the lease checks them."""
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
        """Whether a batch, or a part of one, is alive in shared memory."""
        fi_parent_collect(&self.parent)
        return self.parent.leased + self.parent.retired > 0

    @property
    def usable(self):
        """Slots that could still be filled if the oldest batch were leased now."""
        return fi_parent_usable(&self.parent)

    @property
    def pending(self):
        """Batches scheduled and not yet taken."""
        return self.parent.tail - self.parent.head

    def retire_leased(self):
        fi_parent_retire_leased(&self.parent)

    # ---- reset, death, end

    def losses(self, uint32_t worker):
        """[(slot, row or -1 for a finish, sequence)] that a dead worker had in hand."""
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
        loss.index = 0
        fi_parent_return(&self.parent, &loss, poison)

    def rewind(self, uint32_t worker):
        """Sends all workers over the scheduled slots again; `worker` may be started anew."""
        fi_parent_rewind(&self.parent, worker, self.bell_pipe(worker))

    def repair(self):
        """Writes all hints anew and wakes all workers, whatever their bells say."""
        fi_parent_repair(&self.parent)

    def offer_singly(self):
        fi_parent_offer_singly(&self.parent)

    @property
    def stalled(self):
        return fi_parent_stalled(&self.parent)

    def mend(self):
        """Puts right what was overwritten and nobody else will put right. The ring is stalled."""
        fi_parent_mend(&self.parent)

    def stop(self):
        fi_parent_stop(&self.parent)

    def set_spin(self, uint32_t pauses):
        fi_board_set_spin(&self.arena.ring, pauses)

    # ---- cells

    def let_in(self, uint32_t worker, uint32_t start):
        fi_cell_let_in(self.arena.ring.cells + worker, start)

    def clear_cell(self, uint32_t worker):
        fi_cell_clear(self.arena.ring.cells + worker)

    def report(self, uint32_t worker):
        """What the worker's cell says, as a dict of ints."""
        cdef fi_report report
        fi_cell_read(self.arena.ring.cells + worker, &report)
        return report

    def note(self, uint32_t worker):
        """The bytes that a worker left when it could not start."""
        cdef fi_report report
        fi_cell_read(self.arena.ring.cells + worker, &report)
        cdef uint32_t length = min(report.note_bytes, <uint32_t>FI_NOTE_BYTES)
        return PyBytes_FromStringAndSize(
            self.arena.ring.notes + <uint64_t>worker * FI_NOTE_BYTES, length)


cdef class WorkerEnd:
    """The side of the ring that one worker works on."""

    def __cinit__(self, Arena arena, uint32_t number, int bell_pipe):
        if number >= arena.ring.geometry.workers:
            raise ValueError(f"worker {number} of {arena.ring.geometry.workers}")
        self.arena = arena
        fi_worker_init(&self.worker, &arena.ring, number, bell_pipe)

    def enter(self, uint32_t start):
        """Waits at the gate; False if this start has been given up meanwhile.

        From here on, until `loaded`, the cell says that the worker loads the dataset.
        """
        cdef bint entered
        cdef uint32_t pid = fi_process_id()
        cdef fi_cell *cell = self.worker.ring.cells + self.worker.number
        with nogil:
            entered = fi_cell_enter(cell, start, pid)
        if entered:
            fi_cell_fetch_begins(cell, LOADING)
        return entered

    def loaded(self, uint32_t start, bytes note=b""):
        """Tells the parent that work can begin, or leaves it the reason why not."""
        cdef uint32_t length = min(<uint32_t>len(note), <uint32_t>FI_NOTE_BYTES)
        memcpy(self.arena.ring.notes + <uint64_t>self.worker.number * FI_NOTE_BYTES,
               <char *>note, length)
        fi_cell_fetch_ends(self.worker.ring.cells + self.worker.number)
        fi_cell_loaded(self.worker.ring.cells + self.worker.number, start, length)

    def leave(self):
        """Makes `next` answer "stop" once no slot is in hand."""
        self.worker.leave = True

    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF:
        """Offset of `bytes` fresh bytes in the slot in hand."""
        cdef uint64_t offset = 0, need = 0, have = 0
        cdef int rc
        rc = fi_heap_take(self.worker.ring, self.turn.slot, bytes, &offset, &need, &have)
        check(rc, "memory for an example", need, have)
        fi_cell_count(self.worker.ring.cells + self.worker.number, 0, bytes, 0)
        return offset

    cdef uint64_t seed(self, uint32_t row, uint32_t kind) noexcept:
        """For the checksum of what is packed into the slot in hand."""
        return fi_place_seed(self.turn.q, row, kind)


cdef class Lease:
    """Owner of a taken slot: arrays in it are alive through this object, and it through them.

    It exports the slot's committed bytes, writable. When the last view dies the slot goes back to
    the ring, by one lock-free push that calls no Python, so garbage collection may do it anywhere.
    """

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.payload, self.bytes, 0, flags)

    def part(self, uint64_t offset, uint64_t size):
        """A writable memoryview of a part; OverwrittenError if it lies outside of the slot."""
        if offset > <uint64_t>self.bytes or size > <uint64_t>self.bytes - offset:
            raise OverwrittenError(
                f"shared memory was overwritten: {size} bytes at {offset} do not lie in a slot of "
                f"{self.bytes} bytes"
            )
        return memoryview(self)[offset:offset + size]

    def seed(self, uint32_t row, uint32_t kind):
        """What the checksum of a packed object in this slot depends on besides its bytes."""
        return fi_place_seed(self.q, row, kind)

    def __dealloc__(self):
        if self.ring is not None and self.ring.is_own():
            fi_parent_release(&self.ring.parent, self.slot)


def checksum(data, uint64_t start, uint64_t stop, uint64_t seed):
    """Of bytes `start` to `stop` of a buffer: an int in 1 .. 2**64 - 1."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if start > stop or stop > <uint64_t>buffer.len:
            raise ValueError(f"bytes {start} to {stop} of {buffer.len}")
        return fi_checksum(<char *>buffer.buf + start, stop - start, seed)
    finally:
        PyBuffer_Release(&buffer)


def now():
    """Monotonic clock in seconds, the one that the coarse times of cells belong to."""
    return fi_coarse_ns() / 1e9


def memory_available():
    """Bytes that may be allocated before the machine or a control group runs out."""
    return fi_memory_available()


def watch_parent(int parent_pidfd, int life_pipe):
    """Starts the native thread that ends this process when its parent is gone."""
    check(fi_watch_parent(parent_pidfd, life_pipe), "starting the watch over the parent")


def die_with_parent(int parent):
    """Asks the kernel to end this process with the thread that started it."""
    check(fi_die_with_parent(parent), "tying the worker to its parent")
