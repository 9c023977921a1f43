"""The rule of workers that take turns: each batch is made by one of them."""

cimport numpy as cnp
from libc.stdint cimport int64_t

from fastiter._clib.objects cimport fi_new_tuple
from fastiter._order.plan cimport *

cnp.import_array()


cdef enum:
    # The items of a state after the first seven, which are those of a State.
    LAST_WORKER = 7
    N_MADE = 8
    N_KEYS = 9
    SIZE = 10


cdef class TurnPlanQueue(PlanQueue):
    """Plans of batches that one worker makes each, in turn.

    A state is a tuple that begins with the first seven items of `State`, whose position counts
    batches; then come the worker of the last batch, and the numbers of keys of each worker, of
    all workers, and of the last batch.

    Attributes
    ----------
    n_workers, rows : number of workers, and most rows of a batch
    order : int64[n], or an int n in place of the numbers below it. A batch has the next
        ``cutter.batch_size`` of them. None while the subclass plans all batches, by
        ``_advance(state)``, as it does those that the order is too short for
    cutter : any object that has this attribute, which is read for each batch
    is_overtaking : whether complete batches may come before others now
    counts_rows : whether the random numbers of the rows belong to their numbers, not to the epoch
    """

    cdef readonly Py_ssize_t n_workers
    cdef readonly int64_t rows
    cdef public object order, cutter
    cdef public bint is_overtaking, counts_rows

    def __init__(self, state, Py_ssize_t n_workers, int64_t rows):
        super().__init__(state, 1, False)
        self.n_workers = n_workers
        self.rows = rows
        self.is_overtaking = self.counts_rows = False

    cpdef bint overtakes(self):
        return self.is_overtaking

    cpdef Plan advance(self, object state):
        """The plan of the next batch. Its state has all changes; the queue stays as it is."""
        state = self.planned  # that of the last plan in the queue may be older
        order = self.order
        if order is None:
            return self._advance(state)
        cdef int64_t number = item(state, POSITION), start = item(state, N_KEYS)
        cdef int64_t size = self.cutter.batch_size
        cdef Py_ssize_t worker, i
        cdef bint is_counted = type(order) is int, reaches = 0 < size <= self.rows
        cdef Plan plan
        if reaches:
            reaches = size <= order - start if is_counted else is_plain(order, start + size)
        if not reaches:
            return self._advance(state)
        worker = (<Py_ssize_t>item(state, LAST_WORKER) + 1) % self.n_workers
        n_made = list(item(state, N_MADE))
        n_made[worker] += size
        items = list(state)
        items[POSITION], items[LAST_WORKER], items[N_MADE] = number + 1, worker, tuple(n_made)
        items[N_KEYS], items[SIZE] = start + size, size
        after = fi_new_tuple(type(state), len(items))
        for i in range(len(items)):
            put(after, i, items[i])
        plan = new_plan(self.piece(None if is_counted else order, start, start + size), after, None)
        plan.worker = worker
        plan.number = number
        plan.n_valid = size
        plan.epoch, plan.position = item(after, EPOCH), size  # all rows are of one epoch
        plan.first = start if self.counts_rows else -1
        plan.epoch_size = item(after, EPOCH_SIZE)
        return plan
