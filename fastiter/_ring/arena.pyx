"""The arena (the shared memory of a ring and its slots), and a worker's side of the ring."""

import pickle

import numpy

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EBADF, EFBIG, EINVAL, ENOMEM
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from posix.unistd cimport _exit, close

from fastiter._clib.csrc cimport *
from fastiter._clib.status cimport check

from fastiter._ring.serialization import Packed
from fastiter.errors import OverwrittenError

cdef enum:
    SCHEMA_HEAD = 12  # length and checksum
    # Limits of a value whose pickle alone is packed: its items, and the bytes of each of its texts.
    MOST_ITEMS = 64
    LARGEST_TEXT = 32 << 10

cdef object dumps = pickle.dumps
# Types whose objects `pickle` writes as `Packed` has them written, besides texts and bytes.
cdef frozenset NUMBERS = frozenset((
    type(None), int, float, bool, complex,
    *(numpy.dtype(code).type for code in numpy.typecodes["AllInteger"] + numpy.typecodes["AllFloat"])))


cdef class Arena:
    """The anonymous shared memory of one iterator, mapped into this process as far as it is used.

    It owns the mappings and the descriptors. The mappings end with the last object that refers to
    the arena, as leases do; the descriptors are closed earlier, and with them all memory goes that
    no lease holds.
    """

    def __cinit__(self):
        self.fd = -1
        self.pid = fi_process_id()
        self.event_ends[0] = self.event_ends[1] = -1
        self.ring.base = NULL

    @staticmethod
    def create(uint32_t slots, uint32_t workers, uint32_t rows, uint32_t schemas):
        """Maps a new arena, each slot's part of the file as large as the limits allow.

        OSError or MemoryError if no descriptor is left, or too little address space or file size
        for small slots.
        """
        cdef Arena arena = Arena.__new__(Arena)
        cdef fi_geometry geometry
        cdef uint64_t limit = max(fi_shm_limit(slots), <uint64_t>FI_PAGE)
        cdef int rc
        geometry.slots = slots
        geometry.workers = workers
        geometry.rows = rows
        geometry.schemas = schemas
        geometry.slot_bytes = 1 << 40
        check(fi_event_open(arena.event_ends), "opening the parent's doorbell")
        while geometry.slot_bytes > limit:
            geometry.slot_bytes >>= 1
        rc = arena.map(&geometry)
        while (rc == EFBIG or rc == EINVAL) and geometry.slot_bytes > FI_PAGE:
            geometry.slot_bytes >>= 1
            rc = arena.map(&geometry)
        if rc == ENOMEM or rc == EFBIG or rc == EINVAL:
            raise MemoryError(
                "mapping an arena of the smallest slots: too little address space or file size; "
                "raise RLIMIT_AS and RLIMIT_FSIZE, or reduce batch_size")
        check(rc, f"mapping an arena of {slots} slots")
        check(fi_ring_allocate(&arena.ring), "memory for an arena", FI_PAGE, FI_PAGE)
        return arena

    @staticmethod
    def attach(int fd, int event, tuple geometry):
        """Maps the arena of another process. Takes over both descriptors."""
        cdef Arena arena = Arena.__new__(Arena)
        cdef fi_geometry g
        g.slots, g.workers, g.rows, g.schemas, g.slot_bytes = geometry
        arena.fd = fd
        arena.event_ends[0] = arena.event_ends[1] = event
        check(arena.map(&g), "mapping the arena")
        return arena

    cdef int map(self, fi_geometry *geometry) noexcept:
        """Maps the control area, of new memory if there is no descriptor, and lays it out."""
        cdef uint64_t total
        cdef void *base = NULL
        cdef int fd = self.fd
        cdef int rc = fi_ring_size(geometry, &self.control, &total)
        if rc == FI_OK and self.fd < 0:
            rc = fi_shm_open(total, &fd)
        if rc != FI_OK:
            return rc
        rc = fi_shm_map(fd, 0, self.control, False, &base)
        if rc != FI_OK:
            if self.fd < 0:
                close(fd)
            return rc
        self.fd = fd
        rc = fi_ring_attach(&self.ring, geometry, base, fd, self.event_ends[1])
        if rc != FI_OK:
            fi_shm_unmap(base, self.control)
        return rc

    @property
    def geometry(self):
        """Arguments of `attach` besides the descriptors."""
        g = self.ring.geometry
        return (g.slots, g.workers, g.rows, g.schemas, g.slot_bytes)

    @property
    def event_fd(self):
        """The end of the parent's doorbell that workers write to."""
        return self.event_ends[1]

    def dont_fork(self):
        """Hides the mapping from children that this process forks from now on."""
        check(fi_ring_inherit(&self.ring, self.control, False), "hiding the arena from children")

    def do_fork(self):
        """Shows the mapping to children again. GPU drivers hide what is registered with them."""
        check(fi_ring_inherit(&self.ring, self.control, True), "showing the arena to children")

    def forget(self):
        """Unmaps the memory in a child that has inherited it and has no view of a batch."""
        check(fi_ring_forget(&self.ring, self.control), "forgetting an inherited arena")

    def held(self):
        """Addresses of the slots that leases hold."""
        return {<size_t>self.ring.windows[slot].address
                for slot in range(self.ring.geometry.slots) if fi_slot_is_held(&self.ring, slot)}

    def end(self):
        """Gives all memory back but that of slots that leases hold. In the process that made it;
        its workers have ended, and of slots that no lease holds nothing is registered."""
        cdef bint keeps_held = self.keeps_pages
        if self.fd >= 0:
            with nogil:
                fi_ring_close(&self.ring, keeps_held)

    cdef int reach(self, uint32_t slot, uint64_t bytes) except -1:
        """Sees to it that a slot is mapped up to `bytes`. By the one who uses the ring."""
        return check(fi_slot_reach(&self.ring, slot, bytes), "mapping a batch", bytes)

    @property
    def descriptors(self):
        """The descriptors that this process has open for it."""
        return {fd for fd in (self.fd, self.event_ends[0], self.event_ends[1]) if fd >= 0}

    def close_descriptors(self):
        cdef int fds[3]
        cdef bint is_whole = self.ring.base != NULL
        with cython.critical_section(self):
            fds[:] = [self.fd, self.event_ends[0], self.event_ends[1]]
            if is_whole and not fi_ring_has_file(&self.ring):  # it is a file of the program's now
                fds[0] = -1
            if is_whole and not fi_ring_has_event(&self.ring):
                fds[1] = fds[2] = -1
            self.fd = self.event_ends[0] = self.event_ends[1] = -1
            self.ring.fd = self.ring.event = -1
        for i in range(3):
            if fds[i] >= 0 and (i != 2 or fds[2] != fds[1]):
                close(fds[i])

    def __dealloc__(self):
        self.close_descriptors()
        if self.ring.base != NULL:
            with nogil:  # some 80 ms a GB where the memory goes with it
                fi_ring_detach(&self.ring)
                fi_shm_unmap(self.ring.base, self.control)

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
        if fi_ring_has_file(&self.ring) and fi_shm_allocate(
                self.fd, place - self.ring.base, SCHEMA_HEAD + length) != FI_OK:
            return False
        memcpy(place, &length, sizeof(length))
        memcpy(place + sizeof(length), &checksum, sizeof(checksum))
        memcpy(place + SCHEMA_HEAD, <char *>record, length)
        return True


cdef class WorkerRing:
    """The side of the ring that one worker process has: its start, and memory for what it packs."""

    def __cinit__(self, Arena arena, uint32_t number, int bell_pipe):
        if number >= arena.ring.geometry.workers:
            raise ValueError(f"worker {number} of {arena.ring.geometry.workers}")
        self.arena = arena
        self.stat = arena.ring.worker_stats + number
        fi_worker_init(&self.worker, &arena.ring, number, bell_pipe)

    def enter(self, uint32_t start):
        """Waits until the parent allows the start; False if it has given this start up meanwhile.

        From here on the parent reads that the worker starts: until `load`.
        """
        cdef bint entered
        cdef uint32_t pid = fi_process_id()
        with nogil:
            entered = fi_worker_stat_wait_for_start(self.stat, start, pid)
        if entered:
            fi_worker_stat_fetch_begins(self.stat, FI_STAT_STARTING)
        return entered

    def load(self):
        """Tells the parent that code of the user runs from here on, until `loaded`."""
        fi_worker_stat_fetch_begins(self.stat, FI_STAT_LOADING)

    def loaded(self, uint32_t start, bytes start_error=b""):
        """Tells the parent that work can begin, or leaves it the reason why not."""
        cdef uint32_t length = min(<uint32_t>len(start_error), <uint32_t>FI_START_ERROR_BYTES)
        memcpy(self.arena.ring.start_errors + <uint64_t>self.worker.number * FI_START_ERROR_BYTES,
               <char *>start_error, length)
        fi_worker_stat_fetch_ends(self.stat)
        fi_worker_stat_loaded(self.stat, start, length)

    def leave(self):
        """Makes `next` answer "stop" once the worker has no slot."""
        self.worker.leave = True

    cdef int check(self, int rc, str what, uint64_t need, uint64_t have) except -1:
        """As `check`, but ends a worker whose dataset has closed the descriptors. Without the memory it
        cannot even leave an error; but the program replaces it, and has its rows fetched again."""
        if rc == EBADF:
            _exit(1)
        return check(rc, what, need, have)

    cdef char *payload(self, uint64_t bytes) except NULL:
        """The current slot, mapped up to `bytes` at least.

        Another address after `heap_take`, with the same bytes: one that was given out before stays
        good as far as it reached.
        """
        cdef int rc = fi_slot_reach(&self.arena.ring, self.claim.slot, max(bytes, <uint64_t>1))
        self.check(rc, "mapping a batch", bytes, 0)
        return fi_slot_payload(self.worker.ring, self.claim.slot)

    cdef char *place(self, uint64_t offset) noexcept:
        """The address of memory that `heap_take` has given."""
        return fi_slot_payload(self.worker.ring, self.claim.slot) + offset

    cdef char *whole_payload(self, uint64_t *bytes) except NULL:
        """The current slot, mapped as far as it has memory, and how far that is."""
        cdef int rc = fi_slot_reach_all(&self.arena.ring, self.claim.slot, bytes)
        check(rc, "mapping a batch", bytes[0])
        return self.payload(bytes[0])

    cdef uint64_t heap_take(self, uint64_t bytes) except? 0xFFFFFFFFFFFFFFFF:
        """Offset of `bytes` fresh bytes in the current slot."""
        cdef uint64_t offset = 0, need = 0, have = 0
        cdef int rc = fi_heap_take(
            self.worker.ring, self.claim.slot, bytes, &offset, &need, &have)
        self.check(rc, "memory for an example", need, have)
        fi_worker_stat_count(self.stat, 0, bytes, 0)
        return offset

    cdef char *take_array(self, int64_t *entry, const int64_t *shape, int ndim,
                          uint64_t size) except NULL:
        """Fresh memory for an array of `size` bytes, whose offset and shape go to its entry."""
        cdef int axis
        entry[0] = <int64_t>self.heap_take(size)
        for axis in range(ndim):
            entry[1 + axis] = shape[axis]
        return self.place(entry[0])

    cdef uint64_t pack(self, object packed, uint32_t row, uint32_t kind,
                       uint64_t *size) except? 0xFFFFFFFFFFFFFFFF:
        """Writes what `as_packed` has returned, or another `Packed` object, into the heap of the
        current slot; returns its offset there."""
        cdef uint64_t seed = fi_place_seed(self.claim.q, row, kind), offset
        cdef uint64_t *head
        if type(packed) is not bytes:
            size[0] = packed.size
            offset = self.heap_take(size[0])
            packed.write_into(
                PyMemoryView_FromMemory(self.place(offset), size[0], PyBUF_WRITE), seed, offset)
            return offset
        size[0] = HEAD_BYTES + <uint64_t>len(<bytes>packed)
        offset = self.heap_take(size[0])
        head = <uint64_t *>self.place(offset)
        head[1], head[2] = 0, size[0] - HEAD_BYTES
        memcpy(head + 3, <char *>packed, head[2])
        head[0] = fi_checksum(head + 1, size[0] - SUM_BYTES, seed)
        return offset

    def take_memory(self, uint64_t size):
        """Memory in the current slot: what lies there need not be copied to be packed."""
        cdef uint64_t offset = self.heap_take(size)
        return PyMemoryView_FromMemory(self.place(offset), size, PyBUF_WRITE)

    def offset_of(self, buffer):
        """The offset of a contiguous buffer in the current slot's heap, -1 if it lies elsewhere."""
        cdef uint64_t offset = 0, end = fi_slot_used(self.worker.ring, self.claim.slot)
        cdef Py_buffer found
        PyObject_GetBuffer(buffer, &found, PyBUF_SIMPLE)
        inside = (fi_slot_offset(self.worker.ring, self.claim.slot, found.buf, &offset)
                  and offset <= end and <uint64_t>found.len <= end - offset and found.len > 0)
        PyBuffer_Release(&found)
        return offset if inside else -1

    cdef int pack_row(self, object packed, uint32_t row, uint32_t kind) except -1:
        """As `pack`, in the place of a row."""
        cdef uint64_t size = 0, offset = self.pack(packed, row, kind, &size)
        fi_entry_set(self.worker.ring, self.claim.slot, row, offset, size)
        return 0

    cdef int pack_error(self, tuple dumped, uint32_t row) except -1:
        """As `pack_row` for a result of `failures.dump`, as far as memory allows it: whole, without
        the traceback, or only how many bytes of the slot that takes."""
        pickled, summary, _, *rest = dumped
        for packed in (Packed(dumped), Packed((pickled, summary, summary, *rest))):
            try:
                return self.pack_row(packed, row, FI_PACKED_ERROR)
            except MemoryError:
                fi_entry_set(self.worker.ring, self.claim.slot, row,
                             fi_slot_used(self.worker.ring, self.claim.slot) + packed.size, 0)
        return 0


cdef object as_packed(object value):
    """A value as `WorkerRing.pack` takes it: `Packed`, or, in a part of its time, the pickle of a few
    texts and numbers."""
    cdef int left = MOST_ITEMS
    return dumps(value, 5) if is_plain(value, &left) else Packed(value)


cdef bint is_plain(object value, int *left) except -1:
    """Whether an object is of texts and numbers alone, in tuples, lists and dicts."""
    kind = type(value)
    left[0] -= 1
    if left[0] < 0:
        return False
    if kind is str or kind is bytes:
        return len(value) <= LARGEST_TEXT
    if kind is dict:
        for key, item in (<dict>value).items():
            if not is_plain(key, left) or not is_plain(item, left):
                return False
        return True
    if kind is not tuple and kind is not list:
        return kind in NUMBERS
    for item in value:
        if not is_plain(item, left):
            return False
    return True
