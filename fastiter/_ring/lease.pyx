"""Leases: a taken slot is kept alive for its arrays, and forks of the program are counted."""

import pickle
import threading

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from posix.fcntl cimport F_GETFD, fcntl

from fastiter._clib.csrc cimport *
from fastiter._ring.arena cimport HEAD_BYTES, SUM_BYTES, Arena

from fastiter._clib.status import closed_by_others
from fastiter._ring.serialization import unpack
from fastiter.errors import OverwrittenError

cdef object loads = pickle.loads
cdef fi_forks forks  # of this process
this_thread = threading.local()  # starts_worker: whether its forks are workers, which keep no view


# These hooks are compiled, so that no signal handler runs within: CPython drops what a hook raises,
# and a fork that never ends would cost each later batch its slot.
def fork_begins():
    """Any view that exists between here and `fork_ended` may exist in the child too."""
    if not getattr(this_thread, "starts_worker", False):
        fi_fork_begins(&forks)


def fork_ended():
    if not getattr(this_thread, "starts_worker", False):
        fi_fork_ended(&forks)


def begin_anew():
    """Called in a child: no fork is under way there."""
    fi_forks_begin_anew(&forks)


@cython.no_gc_clear  # __dealloc__ gives the slot back
cdef class Lease:
    """Owner of a taken slot: arrays in it are alive through this object, and it through them.

    It exports the slot's committed bytes, writable. When the last view dies, the slot goes back to
    the ring, by one lock-free push that calls no Python, so garbage collection may do it anywhere.
    If the ring is closed by then, the slot's memory goes back to the system. If the program has
    forked meanwhile, the child may have a view: then the slot is never used again. A lease that
    is no owner holds the slot's memory only: its batch is copied out.
    """

    cdef int point_at(self, Arena arena, uint32_t slot, uint64_t q, uint64_t bytes) except -1:
        """Begins. The slot stays mapped as long as the lease lives."""
        fi_slot_hold(&arena.ring, slot)
        self.arena = arena
        self.slot = slot
        self.q = q
        return self.grow(bytes)

    cdef int grow(self, uint64_t bytes) except -1:
        """The slot has that many bytes now."""
        self.arena.reach(self.slot, bytes)
        self.payload = fi_slot_payload(&self.arena.ring, self.slot)
        self.bytes = bytes
        return 0

    cdef void own(self, object keeper) noexcept:
        """The slot is the program's until the lease ends, and `keeper` lives so long."""
        self.is_owner = True
        self.keeper = keeper
        self.began = fi_view_begins(&self.arena.views, &forks)

    def __dealloc__(self):
        cdef bint is_shared
        if self.arena is None:
            return
        is_shared = self.arena.pid != fi_process_id()
        if self.is_owner and not is_shared:
            is_shared = fi_view_ends(&self.arena.views, &forks, self.began)
            fi_returned_push(&self.arena.ring.returned, self.slot, is_shared)
        if fi_slot_let_go(&self.arena.ring, self.slot, is_shared):
            with nogil:  # the ring is closed
                fi_slot_free(&self.arena.ring, self.slot)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.payload, self.bytes, 0, flags)

    cdef int check(self, uint64_t offset, uint64_t size) except -1:
        """Raises OverwrittenError if a part does not lie in the slot."""
        if offset <= <uint64_t>self.bytes and size <= <uint64_t>self.bytes - offset:
            return 0
        if fcntl(self.arena.fd, F_GETFD) < 0:  # closed: the memory of slots cannot be asked for
            raise closed_by_others()
        raise OverwrittenError(
            f"shared memory was overwritten: {size} bytes at {offset} do not lie in a slot of "
            f"{self.bytes} bytes"
        )

    @property
    def is_copied(self):
        """Whether it owns nothing, so that results made from it must be copied."""
        return not self.is_owner

    def load(self, uint32_t row, uint32_t kind, bint copy):
        """The object that was packed as a whole for a row, or for `WHOLE_BATCH`.

        `kind` is PACKED_EXAMPLE or its like. With `copy`, arrays get memory of their own, instead
        of views of the slot. An error that found no memory is how many bytes were missing for it,
        one that could not be described an empty tuple, as `failures.load` takes them.
        OverwrittenError if it is not what was packed there; or what the object's class raises.
        """
        cdef uint64_t offset, size
        fi_entry_get(&self.arena.ring, self.slot, row, &offset, &size)
        if size == 0 and kind == FI_PACKED_ERROR:
            return (offset,) if offset > 0 else ()
        return self.load_at(offset, size, row, kind, copy)

    cdef object load_at(self, uint64_t offset, uint64_t size, uint32_t row, uint32_t kind,
                        bint copy):
        cdef uint64_t seed = fi_place_seed(self.q, row, kind)
        cdef uint64_t *head = <uint64_t *>(self.payload + offset)
        self.check(offset, size)
        # Most objects are a pickle without buffers, of which nothing can be a view.
        if size >= HEAD_BYTES and offset % sizeof(uint64_t) == 0 and head[1] == 0 and (
                head[2] == size - HEAD_BYTES
                and head[0] == fi_checksum(head + 1, size - SUM_BYTES, seed)):
            return loads(PyBytes_FromStringAndSize(<char *>(head + 3), size - HEAD_BYTES))
        return unpack(memoryview(self), seed, offset, copy)
