"""Keeps the ring full of batches, and takes them."""

import pickle

cimport numpy as cnp
from cpython.buffer cimport PyBUF_WRITE
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.csrc cimport *
from fastiter._clib.memory cimport zeroed
from fastiter._clib.numpy_api cimport int64_items
from fastiter._clib.status cimport check
from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._ring.arena cimport Arena
from fastiter._ring.lease cimport Lease
from fastiter._ring.parent cimport ParentRing
from fastiter._ring.schema cimport Schema

from fastiter._ring.serialization import Packed
from fastiter.errors import OverwrittenError

cnp.import_array()

cdef enum:
    # A free slot that has this many times the memory of recent batches, and this many bytes more,
    # gives the rest back.
    TRIM_FACTOR = 4
    TRIM_SLACK = 4 << 20
    RECENT = 16  # batches
    KEPT_SLACK = 1 << 20  # bytes that a slot of a kept batch may have beyond it
    TRIM_TURN = 8  # batches from one look at such a slot to the next


cdef class BatchScheduler(ParentRing):
    """The ring of a MultiprocessIterator: batches are scheduled in the order of plans and taken in
    the same order, unless complete ones overtake others (`overtake`).

    `top_up` schedules the batches that follow by the plans, of each of which the ring is then the
    work (`Plan.work`). `take` or `take_irregular` leases the slot of the first batch, which leaves
    the ring, and is no plan's work, in the same step: signal handlers run between Python's bytecodes
    only, so none runs in the middle. If Ctrl-C comes between that and the batch's outcome, the next
    `top_up` has this batch fetched again, behind the others.

    `registration`, which may be set before the first batch is taken, is what registers slots with a
    GPU: ``cover(address, nbytes)`` does it before the batch is taken. A GPU may read a slot still
    when its last view has ended. Such slots rest behind what ``mark()`` returned then, until
    ``is_done(mark)``. ``keep(addresses)`` ends all of them but those of the batches that are alive.
    """

    def __init__(self, Arena arena, uint32_t spares, Py_ssize_t n_prefetch):
        self.resting = []
        self.n_prefetch = n_prefetch
        self.scheduled = []
        self.single_until = -1
        self.fast_path_ok = True
        self.seed = (0, 0)

    cdef int end_arena(self) except -1:
        if self.registration is not None:
            self.registration.keep(self.arena.held())
        elif self.arena.keeps_pages:  # it is not known here who else refers to them
            return 0
        return ParentRing.end_arena(self)

    # ---- schedule

    def top_up(self, PlanQueue plans, bint takes_one=True):
        """Schedules as many batches as are wanted and have room, and wakes workers for them: those
        to be made ahead, and the one that the caller takes.

        MemoryError if a slot cannot be given the memory that it needs, and no batch is in the ring.
        After any exception, such as KeyboardInterrupt from the order sampler, the next call goes on.
        """
        cdef Plan plan
        if self.scheduled and (<Plan>self.scheduled[0]).current_work is not self:
            self.reset()  # an interrupt came during a restart of the plans
        self.collect()
        while len(self.scheduled) < self.n_prefetch + takes_one or plans.lacks_first():
            plan = plans.ahead()
            if plan.indices is None:
                break
            try:
                if not self.schedule(plan, plan is plans.plans[0]):
                    break
            except MemoryError:
                if self.scheduled and not plans.lacks_first():
                    break  # with fewer batches ahead there may be enough
                raise
        fi_parent_publish(&self.parent)

    cdef int collect(self) except -1:
        """Frees the slots whose leases have ended, and that no GPU reads any more."""
        cdef uint32_t stack = fi_returned_take(&self.arena.ring.returned)
        cdef list entry
        if self.registration is None:
            fi_parent_take_back(&self.parent, stack)
        elif stack != 0:
            self.resting.append([stack, None])
        for entry in self.resting:
            if entry[1] is None:  # an interrupted call may have left some
                entry[1] = self.registration.mark()
        while self.resting and self.registration.is_done(self.resting[0][1]):
            fi_parent_take_back(&self.parent, self.resting.pop(0)[0])
        fi_parent_collect(&self.parent)
        return 0

    cdef bint schedule(self, Plan plan, bint is_first=False) except -1:
        """Puts a batch into the ring; False if no slot is free yet, or none has room for its rows."""
        if not self.put(plan, False):
            return False
        self.scheduled.insert(0 if is_first else len(self.scheduled), plan)
        plan.put_work(self)
        return True

    cdef bint put(self, Plan plan, bint again) except -1:
        """Puts the batch of a plan into a free slot, `again` if it is in another one; False if no
        slot is free, or none has room for its rows."""
        cdef int64_t slot
        cdef uint64_t columns = 0, commit = self.least_bytes, heap
        cdef uint64_t q
        cdef uint32_t schema
        cdef int rc
        cdef bint single = self.single_until >= 0
        cdef fi_request request = fi_request(0, 0, <uint32_t>(plan.worker + 1))
        cdef Py_ssize_t n = 0
        array = plan.indices
        cdef const int64_t *indices = int64_items(array, &n)
        cdef Lease lease
        cdef fi_origin origin  # of the random numbers of the batch's examples
        if indices == NULL:
            raise TypeError(f"indices must be a contiguous int64 array, not {array!r}")
        origin.seed[0], origin.seed[1] = self.seed
        origin.position, origin.epoch = plan.position, plan.epoch
        origin.epoch_size = 0 if plan.row_epochs is not None else max(1, plan.epoch_size)
        if plan.first >= 0:  # each row has its number in place of an epoch
            origin.epoch = plan.first + n - 1
            origin.position = origin.epoch_size = 1
        fields = self.schema
        if plan.request is not None or (fields is not None and n > self.schema.rows):
            fields = None
        schema = 0 if fields is None else self.schema_number
        message = plan.seeds if plan.request is None else plan.request
        if plan.keys is not None:
            message = [indices[0], plan.keys, plan.seeds]
        packed = None if message is None else Packed(message)
        if fields is not None:
            columns = self.schema.bytes
        if packed is not None:
            request.bytes = packed.size
        heap = fi_align_up(columns + request.bytes, 64)
        commit = max(commit, heap)
        if n > self.arena.ring.geometry.rows:
            return False
        # Workers commit what the heap takes themselves, but for some room for an error's text: that
        # there is no memory has to be told, too.
        slot = self.free_slot(commit + FI_PAGE)
        if slot < 0:
            return False
        q = plan.q if again else self.parent.tail
        fi_parent_origin(&self.parent, <uint32_t>slot, &origin)
        request.offset = columns
        if packed is not None:
            lease = Lease.__new__(Lease)  # a signal handler may close the ring meanwhile
            lease.point_at(self.arena, <uint32_t>slot, q, heap)
            packed.write_into(
                PyMemoryView_FromMemory(lease.payload + columns, request.bytes, PyBUF_WRITE),
                fi_place_seed(q, 0, FI_PACKED_REQUEST))
        check(fi_parent_request(&self.parent, <uint32_t>slot, &request), "assigning a batch")
        if again:
            rc = fi_parent_move(&self.parent, plan.slot, <uint32_t>slot, schema, heap, single)
        else:
            rc = fi_parent_schedule(
                &self.parent, <uint32_t>slot, indices, <uint32_t>n, schema, heap, single, &q)
        check(rc, "scheduling a batch")
        plan.q, plan.slot, plan.schema = q, <uint32_t>slot, fields
        return True

    def move(self, Plan plan, rows):
        """Starts a scheduled batch anew in another slot, if one is free, since the owner of a row
        neither goes on nor ends. `rows` of it are given up."""
        cdef uint32_t row
        self.collect()
        if self.put(plan, True):
            for row in rows:
                fi_parent_give_up_row(&self.parent, plan.slot, row)
            fi_parent_restore_hints(&self.parent)

    cdef int64_t free_slot(self, uint64_t commit) except -2:
        """A free slot with memory for `commit` bytes, or -1 if none is free."""
        cdef uint64_t need = 0, have = 0, bytes = max(commit, self.recent_bytes)
        cdef uint32_t slot
        cdef int rc
        if fi_parent_next_slot(&self.parent, commit, &slot) != FI_OK:
            return -1
        if not self.arena.keeps_pages:
            self.trim(slot, bytes)
            # That one is used now and then; others may lie deep in the stack for ever.
            self.trim(self.parent.free_stack[<uint32_t>self.parent.tail % self.parent.free_count],
                      bytes)
            if self.parent.tail % TRIM_TURN == 0:
                self.trim_kept(<uint32_t>(
                    self.parent.tail // TRIM_TURN % self.arena.ring.geometry.slots))
        commit = max(commit, <uint64_t>FI_PAGE)  # the slot's rows get their pages with the first one
        if commit > fi_parent_committed(&self.parent, slot):
            with nogil:
                rc = fi_parent_commit(&self.parent, slot, commit, &need, &have)
            PyErr_CheckSignals()  # it may have taken long
            if self.arena.fd < 0:
                raise RuntimeError("the iterator was finalized while next() waited")
            check(rc, "memory for a batch", need, have)
        return slot

    cdef void trim(self, uint32_t slot, uint64_t bytes) noexcept:
        """Gives back the memory that a free slot has left from a far larger batch."""
        if fi_parent_committed(&self.parent, slot) // TRIM_FACTOR > bytes + TRIM_SLACK:
            with nogil:
                fi_parent_decommit(&self.parent, slot, bytes)

    cdef void trim_kept(self, uint32_t slot) noexcept:
        """Gives back a slot's memory beyond its batch, if the program has kept the batch for long."""
        cdef fi_slot_record *record = self.parent.slot + slot
        cdef uint64_t used = self.arena.ring.windows[slot].used
        if record.phase == FI_LEASED and used > 0 and (
                record.q + self.arena.ring.geometry.slots < self.parent.head
                and fi_parent_committed(&self.parent, slot) > used + max(used // 8, <uint64_t>KEPT_SLACK)):
            with nogil:
                fi_parent_decommit(&self.parent, slot, used)

    def use_schema(self, Schema schema):
        """Has the workers fill the batches scheduled from now on by this schema, if it can be
        published."""
        if self.arena.put_schema_record(self.schema_number + 1, pickle.dumps(schema, 5)):
            self.schema = schema
            self.schema_number += 1

    def offer_singly(self):
        """Offers the rows of all scheduled batches one by one, until these are delivered."""
        fi_parent_offer_singly(&self.parent)
        self.single_until = self.parent.tail - 1 if self.scheduled else -1

    def reset(self):
        """Forgets all that is scheduled. Does not wait for the workers."""
        cdef Plan plan
        for plan in self.scheduled:
            plan.put_work(None)
        fi_parent_reset(&self.parent)
        self.scheduled.clear()

    # ---- take

    cdef uint64_t awaited(self) noexcept:
        # One that an interrupt has lost is begun anew behind the others.
        if self.scheduled and (<Plan>self.scheduled[0]).q != self.parent.head:
            return FI_ANY
        return self.parent.head

    cdef bint is_ready(self, uint32_t *slot, uint32_t *flags) noexcept:
        """Whether the first batch is complete; its slot and flags."""
        if not self.scheduled:
            return False
        slot[0] = (<Plan>self.scheduled[0]).slot
        return fi_parent_is_ready(&self.parent, slot[0], flags)

    def ready(self):
        """Whether the first batch is complete."""
        cdef uint32_t slot = 0, flags = 0
        return self.is_ready(&slot, &flags)

    def all_ready(self):
        """Whether all scheduled batches are complete."""
        cdef Plan plan
        cdef uint32_t flags = 0
        for plan in self.scheduled:
            if not fi_parent_is_ready(&self.parent, plan.slot, &flags):
                return False
        return True

    def overtake(self, PlanQueue plans):
        """Has the oldest complete batch be the first one in ring and plans; whether there is one.

        Batches for the same worker keep their order, and so do those of different epochs.
        """
        cdef Plan plan
        cdef uint32_t flags = 0
        cdef Py_ssize_t i
        cdef set waited_for = set()
        cdef int64_t epoch = -1
        for i, plan in enumerate(self.scheduled):
            if epoch < 0:
                epoch = plan.epoch_of(0)
            elif plan.epoch != epoch:
                break
            if plan.worker in waited_for:
                continue
            if fi_parent_is_ready(&self.parent, plan.slot, &flags):
                self.scheduled.insert(0, self.scheduled.pop(i))
                plans.bring_forward(plan)
                return True
            if plan.worker >= 0:
                waited_for.add(plan.worker)
        return False

    def holds(self, Plan plan):
        """Whether the first batch is that of ``plan``."""
        return bool(self.scheduled) and self.scheduled[0] is plan

    def take(self, Plan plan):
        """Takes the batch of ``plan`` if it is the first, complete, and the columns hold all of it.

        None if it is not the first, not complete, has rows beside its columns, or holds what a
        converter has made; or too few slots would be left to keep prefetching. Nothing has changed
        then.
        """
        cdef uint32_t slot = 0, flags = 0, irregular = 0, row = 0
        cdef uint64_t word = 0
        cdef fi_parent *parent = &self.parent
        self.cover_first()
        self.calls += 1
        self.ready_sum += fi_parent_count_ready(parent)
        if not self.fast_path_ok or not self.is_ready(&slot, &flags):
            return None
        if self.scheduled[0] is not plan:
            return None
        if flags & ~FI_CONVERTED_FIELDS or (<Plan>self.scheduled[0]).schema is None or (
                fi_parent_usable(parent) < self.n_prefetch + 1 + self.reserved):
            return None
        if fi_parent_check(parent, slot, &irregular, &row, &word) != FI_OK or irregular > 0:
            return None
        return self.take_first(slot, flags, False)

    def take_irregular(self):
        """Takes the first batch, which is complete, whatever it holds.

        If too few slots would be left to keep prefetching, the lease owns nothing, and the slot is
        free at once: holding batches costs memory, never progress. The batch is to be copied out
        before the next `top_up`.

        Returns the lease, and (row, code) of the rows that are not in the columns, ascending.
        OverwrittenError if a word holds what no worker writes: a batch with such a row is dropped,
        and its slot drains.
        """
        cdef uint32_t slot = 0, flags = 0, irregular = 0, row = 0
        cdef uint64_t word = 0
        cdef fi_ring *ring = &self.arena.ring
        self.cover_first()
        if not self.is_ready(&slot, &flags):
            raise OverwrittenError("shared memory was overwritten: the state of a complete batch")
        if fi_parent_check(&self.parent, slot, &irregular, &row, &word) != FI_OK:
            fi_parent_drop(&self.parent, slot)
            (<Plan>self.scheduled.pop(0)).put_work(None)
            raise OverwrittenError(
                f"shared memory was overwritten: {word:#x} was found at row {row} of a batch")
        codes = []
        if irregular:
            codes = [(r, fi_row_code(ring, slot, r, self.parent.slot[slot].q))
                     for r in range(self.parent.slot[slot].n)]
            codes = [(r, code) for r, code in codes if code != FI_ROW_OK]
        copied = fi_parent_usable(&self.parent) < self.n_prefetch + 1 + self.reserved
        return self.take_first(slot, flags, copied), codes

    cdef int cover_first(self) except -1:
        """Has the memory of the first batch registered, if that is complete."""
        cdef uint32_t slot = 0, flags = 0
        cdef uint64_t bytes
        if self.registration is not None and self.is_ready(&slot, &flags):
            bytes = fi_parent_committed(&self.parent, slot)
            self.arena.reach(slot, bytes)
            self.registration.cover(<size_t>fi_slot_payload(&self.arena.ring, slot), bytes)
        return 0

    cdef Lease take_first(self, uint32_t slot, uint32_t flags, bint copied):
        cdef Plan plan = self.scheduled[0]
        cdef Lease lease = Lease.__new__(Lease)
        cdef uint64_t used
        cdef fi_window *window = self.arena.ring.windows + slot
        cdef char *before = window.address
        lease.point_at(self.arena, slot, self.parent.slot[slot].q,
                       fi_parent_committed(&self.parent, slot))
        if before != window.address and not self.arena.keeps_pages:
            fi_slot_unmap_smaller(&self.arena.ring, slot)  # nothing points there any more
        lease.schema = plan.schema
        lease.rows = self.parent.slot[slot].n
        lease.flags = flags
        if not copied:
            lease.own(self.registration)
        fi_parent_take(&self.parent, slot, copied)
        del self.scheduled[0]
        plan.put_work(None)
        used = min(fi_slot_used(&self.arena.ring, slot), <uint64_t>lease.bytes)
        window.used = used
        # The most that a batch has taken; an old one counts for less with each that follows.
        self.recent_bytes = max(used, self.recent_bytes - self.recent_bytes // RECENT)
        return lease

    @property
    def count_ready(self):
        """Complete batches from the oldest one on, not taken yet. Any thread may ask."""
        return fi_parent_count_ready(&self.parent)

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

    def has_free_slot(self):
        """Collects the slots that came back; whether there is one now."""
        self.collect()
        return self.parent.free_count > 0

    # ---- workers that change, die, or sleep when they should not

    def set_worker_count(self, uint32_t count, uint32_t spin):
        """Has workers from number `count` on leave when they have finished their slots.

        `spin`: pauses that a worker waits before it sleeps.
        """
        fi_parent_set_worker_count(&self.parent, count)
        fi_parent_set_spin(&self.parent, spin)

    def set_hedge(self, double share):
        """Lets workers fetch up to this share of the rows a second time, where they are slow."""
        fi_parent_set_hedge(&self.parent, share)

    @property
    def hedged(self):
        """Number of rows fetched a second time, and of those whose second fetch ended first."""
        cdef uint32_t won = 0, hedged = fi_parent_hedged(&self.parent, &won)
        return hedged, won

    def losses(self, uint32_t worker):
        """[(slot, row or -1 for a finish, sequence)] that a worker owns. A dead one has left them
        unfinished, and may do so with more in batches that were reset: ask again when these were
        given back."""
        cdef uint32_t most = self.arena.ring.geometry.rows + 1, count  # one claim is in one slot
        cdef fi_loss *found = <fi_loss *>zeroed(most, sizeof(fi_loss))
        try:
            count = fi_parent_losses(&self.parent, worker, found, most)
            return [(found[i].slot,
                     -1 if found[i].row == FI_LOSS_FINISH else <int64_t>found[i].row,
                     found[i].q) for i in range(count)]
        finally:
            PyMem_Free(found)

    def give_back(self, uint32_t worker, uint32_t slot, int64_t row, uint64_t q, bint poison,
                  bint is_dead):
        """Returns one loss of a worker to the ring, or marks it as poisoned; of a worker that is not
        dead, only a row that it may not write yet."""
        cdef fi_loss loss
        loss.slot = slot
        loss.row = FI_LOSS_FINISH if row < 0 else <uint32_t>row
        loss.q = q
        fi_parent_return(&self.parent, worker, is_dead, &loss, poison)

    def rewind(self, uint32_t worker):
        """Sends all workers over the scheduled slots again; `worker` may be started again."""
        fi_parent_rewind(&self.parent, worker)

    def restore_hints(self):
        """Writes all hints again and wakes all workers, whatever their doorbells say."""
        fi_parent_restore_hints(&self.parent)

    @property
    def stalled(self):
        """Whether all workers sleep although the oldest batch is not complete."""
        return fi_parent_stalled(&self.parent)

    def give_up(self):
        """For a stalled ring: gives up the batches that are not complete. `take_irregular` raises
        OverwrittenError for each."""
        fi_parent_give_up(&self.parent)
