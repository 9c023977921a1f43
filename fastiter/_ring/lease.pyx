"""Binding of a taken slot: what keeps its arrays alive, and gives it back to the ring."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint32_t, uint64_t
from posix.fcntl cimport F_GETFD, fcntl

from fastiter._clib.csrc cimport (
    fi_fork_begins, fi_fork_ended, fi_forks, fi_forks_begin_anew, fi_parent_committed,
    fi_parent_release, fi_parent_retire, fi_place_seed, fi_slot_payload, fi_view_begins,
    fi_view_ends)
from fastiter._ring.parent_ring cimport ParentRing

from fastiter._util.fds import closed_by_others
from fastiter.errors import OverwrittenError

cdef fi_forks forks


def fork_begins():
    """Any view that there is until `fork_ended`, the child may have, too."""
    fi_fork_begins(&forks)


def fork_ended():
    fi_fork_ended(&forks)


def begin_anew():
    """In a child."""
    fi_forks_begin_anew(&forks)


@cython.no_gc_clear  # __dealloc__ gives the slot back to the ring
cdef class Lease:
    """Owner of a taken slot: arrays in it are alive through this object, and it through them.

    It exports the slot's committed bytes, writable. When the last view dies the slot goes back to
    the ring, by one lock-free push that calls no Python, so garbage collection may do it anywhere.
    If the program has forked meanwhile, the child may have a view: then the ring retires the slot.
    """

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.payload, self.bytes, 0, flags)

    def part(self, uint64_t offset, uint64_t size):
        """A writable memoryview of a part; OverwrittenError if it lies outside of the slot."""
        if offset > <uint64_t>self.bytes or size > <uint64_t>self.bytes - offset:
            if fcntl(self.arena.fd, F_GETFD) < 0:  # which tells how large the slots have become
                raise closed_by_others()
            raise OverwrittenError(
                f"shared memory was overwritten: {size} bytes at {offset} do not lie in a slot of "
                f"{self.bytes} bytes"
            )
        return memoryview(self)[offset:offset + size]

    def seed(self, uint32_t row, uint32_t kind):
        """What the checksum of a packed object in this slot depends on besides its bytes."""
        return fi_place_seed(self.q, row, kind)

    cdef void begin(self, ParentRing ring) noexcept:
        self.began = fi_view_begins(&ring.views, &forks)

    cdef bint end(self, ParentRing ring) noexcept:
        """Whether a forked child may have what this lease owns."""
        return fi_view_ends(&ring.views, &forks, self.began)

    def __dealloc__(self):
        if self.ring is None or not self.ring.is_own():
            return
        if self.end(self.ring):
            fi_parent_retire(&self.ring.parent, self.slot)
        else:
            fi_parent_release(&self.ring.parent, self.slot)


cpdef Lease view(ParentRing ring, uint32_t slot, object schema, bint owning, bint converted):
    """A `Lease` over the slot; one that is not `owning` is for copying out of it. `converted`:
    the batch converter has put the ragged fields together."""
    cdef Lease lease = Lease.__new__(Lease)
    lease.arena = ring.arena
    if owning:
        lease.ring = ring
        lease.begin(ring)
    lease.slot = slot
    lease.payload = fi_slot_payload(&ring.arena.ring, slot)
    lease.bytes = fi_parent_committed(&ring.parent, slot)
    lease.q = ring.parent.slot[slot].q
    lease.schema = schema
    lease.converted = converted
    lease.rows = ring.parent.slot[slot].n
    return lease
