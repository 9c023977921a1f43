"""What the parent does for each batch while nothing is out of the ordinary.

Two calls a batch: the ring is topped up with batches that follow by the plans, and the oldest one
is taken if it is complete. Whatever else can be the matter (a wait, rows beside the columns,
deaths, batches held by the caller) is left to `fastiter._workers.pool.Pool`, which derives from this.
"""

cimport numpy as cnp
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._ring.lease cimport Lease, view
from fastiter._ring.parent_ring cimport ParentRing
from fastiter._ring.row_reader cimport Schema

cnp.import_array()

cdef enum:
    RECENT = 16  # batches


cdef inline uint64_t most_recent(uint64_t before, uint64_t used) noexcept:
    """The most bytes that a batch has taken, of which less and less counts with each batch after."""
    return max(used, before - before // RECENT)


cdef class Scheduled:
    @property
    def indices(self):
        return self.plan.indices

    @property
    def label(self):
        return self.plan.label(self.batch_size)


cdef class BatchScheduler:
    def __init__(self, ParentRing ring, Py_ssize_t batch_size, Py_ssize_t n_prefetch):
        self._ring = ring
        self._batch_size = batch_size
        self._n_prefetch = n_prefetch
        self._scheduled = []
        self._schema = None
        self._schema_number = 0
        self._least_bytes = 0
        self._recent_bytes = 0
        self._single_until = -1
        self._fast_path_ok = True
        self.seed = (0, 0)

    @property
    def is_own(self):
        return self._ring.is_own()

    def set_worker_count(self, uint32_t count):
        fi_parent_set_worker_count(&self._ring.parent, count)

    @property
    def count_ready(self):
        return fi_parent_count_ready(&self._ring.parent)

    @property
    def is_empty(self):
        return not self._scheduled

    # ---- schedule

    def top_up(self, PlanQueue plans):
        """Schedule as many batches as are wanted and have room, and wake workers for them.

        Raises
        ------
        MemoryError
            If a slot cannot be given the memory that it needs, and no batch is in the ring.
        KeyboardInterrupt
            From the order sampler. Nothing is lost.
        """
        cdef Plan plan
        if not self.agrees(plans):
            self.reset()
            for plan in plans.plans:
                if type(plan.work) is Scheduled:
                    plan.work = None
        fi_parent_collect(&self._ring.parent)
        while len(self._scheduled) <= self._n_prefetch:
            plan = plans.next_ahead()
            if plan.indices is None:
                break
            try:
                if not self.schedule(plan):
                    break
            except MemoryError:
                if self._scheduled:
                    break  # with fewer batches ahead it may do
                raise
        fi_parent_publish(&self._ring.parent)

    cdef bint agrees(self, PlanQueue plans):
        """Whether the oldest batch in the ring is the first one that the plans have there.

        It is not after an interrupt between `take` and the delivery, and after a restart.
        """
        cdef Plan plan
        for plan in plans.plans:
            if type(plan.work) is Scheduled and plan.outcome is None:
                return bool(self._scheduled) and plan.work is self._scheduled[0]
        return not self._scheduled

    cdef bint schedule(self, Plan plan) except -1:
        """Puts a batch into the ring; False if no slot is free yet."""
        cdef int64_t slot
        cdef uint64_t columns = 0, commit = self._least_bytes
        cdef cnp.ndarray indices = plan.indices
        cdef Scheduled record
        if cnp.PyArray_TYPE(indices) != cnp.NPY_INT64 or not cnp.PyArray_ISCARRAY_RO(indices):
            raise TypeError(f"indices must be a contiguous int64 array, not {indices!r}")
        if self._schema is not None:
            columns = commit = self._schema.bytes
        # What the heap takes, workers commit themselves, but for some room for an error's text: that
        # there is no memory has to be told, too.
        slot = self._ring.free_slot(commit + FI_PAGE, self._recent_bytes)
        if slot < 0:
            return False
        self.tell_origin(<uint32_t>slot, plan)
        record = Scheduled.__new__(Scheduled)
        record.q = self._ring.schedule(
            <uint32_t>slot, <const int64_t *>cnp.PyArray_DATA(indices),
            <uint32_t>cnp.PyArray_SIZE(indices), self._schema_number, columns,
            self._single_until >= 0)
        record.plan = plan
        record.schema = self._schema
        record.batch_size = self._batch_size
        self._scheduled.append(record)
        plan.work = record
        return True

    cdef int tell_origin(self, uint32_t slot, Plan plan) except -1:
        """Notes in the slot what the random numbers of the plan's examples follow from."""
        cdef fi_origin origin
        cdef tuple state = <tuple>plan.state  # a named tuple, which is no exact one
        origin.seed[0], origin.seed[1] = self.seed
        origin.position, origin.epoch, origin.epoch_size = state[0], state[1], state[4]
        fi_parent_origin(&self._ring.parent, slot, &origin)
        return 0

    def use_schema(self, Schema schema):
        self._schema = schema
        self._schema_number += 1

    def reset(self):
        """Forget all that is scheduled. Does not wait for the workers."""
        cdef Scheduled record
        for record in self._scheduled:
            record.plan.work = None
        fi_parent_reset(&self._ring.parent)
        self._scheduled.clear()

    def note_used(self, uint64_t used):
        self._recent_bytes = most_recent(self._recent_bytes, used)

    # ---- take

    def take(self):
        cdef uint32_t slot = 0, flags = 0, irregular = 0, row = 0
        cdef uint64_t word = 0
        cdef fi_parent *parent = &self._ring.parent
        cdef Scheduled record
        cdef Lease lease
        self.calls += 1
        self.ready_sum += fi_parent_count_ready(parent)
        if not self._fast_path_ok or not self._scheduled or (
                fi_parent_ready(parent, &slot, &flags) != FI_OK):
            return None
        record = self._scheduled[0]
        if flags & ~FI_CONVERTED_FIELDS or record.schema is None or (
                fi_parent_usable(parent) < self._n_prefetch + 1):
            return None
        if fi_parent_check(parent, slot, &irregular, &row, &word) != FI_OK or irregular > 0:
            return None
        lease = self.lease_head(slot, flags & FI_CONVERTED_FIELDS != 0)
        self._recent_bytes = most_recent(
            self._recent_bytes, min(fi_slot_used(parent.ring, slot), <uint64_t>lease.bytes))
        return lease

    cpdef Lease lease_head(self, uint32_t slot, bint converted):
        """The oldest batch leaves the ring; its slot belongs to the lease."""
        cdef Scheduled record = self._scheduled[0]
        cdef Lease lease = view(self._ring, slot, record.schema, True, converted)
        fi_parent_take(&self._ring.parent, False)
        del self._scheduled[0]
        return lease

    def free_head(self):
        """The oldest batch leaves the ring, copied out; its slot is free at once."""
        fi_parent_take(&self._ring.parent, True)
        del self._scheduled[0]

    def drop_head(self):
        """The oldest batch leaves the ring undelivered, since its row words are corrupt. Its slot
        drains."""
        fi_parent_drop(&self._ring.parent)
        del self._scheduled[0]
