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
        epoch, batch = self.plan.place(self.batch_size)
        return f"epoch {epoch}, batch {batch}"


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
        self.is_settled = True
        self.seed = (0, 0)
        self._unscheduled = None
        self._taken = None

    @property
    def is_own(self):
        return self._ring.is_own()

    def set_worker_count(self, uint32_t count):
        fi_parent_set_crew(&self._ring.parent, count)

    @property
    def count_ready(self):
        return fi_parent_count_ready(&self._ring.parent)

    @property
    def is_empty(self):
        return not self._scheduled

    # ---- schedule

    def top_up(self, PlanQueue plans):
        cdef Plan plan
        if self._taken is not None and self._taken is plans.first():
            self.is_settled = False  # the delivery of its batch was interrupted
        self._taken = None
        if not self.is_settled:
            # Ctrl-C, or another signal handler's exception, came at a moment that left ring and
            # plans apart: all batches from the next one on are fetched again.
            self.reset()
            plans.rewind()
        # A sampler, or the dataset's length, may raise KeyboardInterrupt.
        self.is_settled = False
        fi_parent_collect(&self._ring.parent)
        while len(self._scheduled) <= self._n_prefetch:
            plan = self._unscheduled
            if plan is None:
                plan = plans.next_ahead()
            if plan.indices is None:
                break
            self._unscheduled = plan
            try:
                if not self.schedule(plan):
                    break
            except MemoryError:
                if self._scheduled:
                    break  # with fewer batches ahead it may do
                self.is_settled = True
                raise
            self._unscheduled = None
        self.is_settled = True
        fi_parent_publish(&self._ring.parent)

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
        self.is_settled = False
        self._unscheduled = None
        fi_parent_reset(&self._ring.parent)
        self._scheduled.clear()

    def note_used(self, uint64_t used):
        self._recent_bytes = most_recent(self._recent_bytes, used)

    # ---- take

    def take(self, Plan plan):
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
        lease = view(self._ring, slot, record.schema, True, flags & FI_CONVERTED_FIELDS != 0)
        fi_parent_take(parent, False)
        self._recent_bytes = most_recent(
            self._recent_bytes, min(fi_slot_used(parent.ring, slot), <uint64_t>lease.bytes))
        self._taken = plan
        del self._scheduled[0]
        return lease
