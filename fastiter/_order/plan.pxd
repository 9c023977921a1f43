cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.stdint cimport int64_t, uint32_t, uint64_t

from fastiter._clib.numpy_api cimport data_of, int64_items, new_indices

cdef enum:
    # The items of a State.
    POSITION = 0
    EPOCH = 1
    IS_NEW_EPOCH = 2
    ORDER = 3
    EPOCH_SIZE = 4
    PREVIOUS_EPOCH_DETAIL = 5
    N_DRAWN = 6
    CUTS = 7
    STEP = 8
    STATE_ITEMS = 9

cdef enum:
    # What becomes of the last rows of an epoch, too few for a step of full batches.
    TAIL_PAD = 0
    TAIL_MASK = 1
    TAIL_DROP = 2


cdef class Plan:
    cdef public object indices
    cdef readonly object state
    cdef readonly object error
    cdef object current_work
    cdef public object outcome
    cdef public object progress
    cdef public Py_ssize_t n_dropped
    cdef readonly object request
    cdef readonly int worker
    cdef readonly object seeds
    cdef readonly object keys
    cdef readonly int64_t epoch
    cdef readonly int64_t position
    cdef readonly int64_t epoch_size
    cdef public object row_epochs
    cdef readonly int64_t first
    cdef readonly int64_t number
    cdef public int64_t n_valid
    cdef public int64_t n_valid_dropped
    # Of a batch in the ring, whose memory is never asked for these:
    cdef readonly uint64_t q
    cdef readonly uint32_t slot
    cdef readonly object schema
    cdef void put_work(self, object work) noexcept
    cdef bint is_begun(self) noexcept
    cdef int64_t size(self) noexcept
    cpdef int64_t epoch_of(self, int64_t row) except? -1


cdef class PlanQueue:
    cdef object current, current_progress
    cdef Plan last
    cdef readonly object planned  # state of the batch planned last
    cdef readonly int64_t batch_size
    cdef readonly bint repeat
    cdef public int64_t rank
    cdef readonly int64_t num_ranks
    cdef readonly bint drop_last
    cdef int tail_kind
    cdef readonly bint is_begun
    cdef public object example_seed  # 128 bits; None: plans have no seeds
    cdef public bint unordered  # whether complete batches overtake others
    cdef readonly dict delivered_early  # states after batches delivered before older ones, by step
    cdef readonly list plans  # planned and not delivered, in the order of their delivery
    cdef bint is_passing  # the batch of the state was passed over
    cdef public object former_size  # examples of an epoch that was begun with fewer; else None
    cdef public object epochs  # for a subclass, where the next epoch is drawn ahead; else None
    cdef int64_t n_begun  # how many orders were drawn when that was begun last
    cdef void put_state(self, object state, object progress, Plan last) noexcept
    cdef Plan first(self)
    cpdef bint overtakes(self)
    cdef bring_forward(self, Plan plan)
    cdef bint lacks_first(self) noexcept
    cpdef Plan ahead(self)
    cdef Plan commit(self)
    cpdef pass_over(self)
    cdef Plan plan_one(self)
    cdef tuple joined(self, Plan plan)
    cpdef Plan advance(self, object state)
    cdef object piece(self, object order, int64_t start, int64_t stop)


cdef inline bint is_plain(object order, int64_t stop) noexcept:
    """Whether an order is an array from whose memory indices below ``stop`` can be copied."""
    cdef Py_ssize_t length = 0
    return int64_items(order, &length) != NULL and stop <= length


cdef inline Plan new_plan(object indices, object state, object error):
    cdef Plan plan = Plan.__new__(Plan)
    plan.indices = indices
    plan.state = state
    plan.error = error
    return plan


cdef inline object item(object state, Py_ssize_t place):
    return <object>PyTuple_GET_ITEM(state, place)


cdef inline void put(object state, Py_ssize_t place, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(state, place, value)


cdef inline object detail_of(object state):
    """Epochs before a state, with the fraction of the current one."""
    cdef int64_t epoch = item(state, EPOCH), position = item(state, POSITION)
    order = item(state, ORDER)
    if order is not None and not cnp.PyArray_Check(order):
        share = getattr(order, "share", None)
        if share is not None:
            return epoch + share(position)
    return epoch + position / <double><int64_t>item(state, EPOCH_SIZE)
