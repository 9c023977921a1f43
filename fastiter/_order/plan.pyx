"""The rule of epochs, and the plans of the batches to come.

`PlanQueue` plans batches by one rule, keeps those that were not delivered, and delivers the oldest
one. What is done for a batch ahead of its delivery belongs to its plan: `Plan.work`.
`DeliveringIterator` delivers a batch and returns it in one step.
"""

import copyreg

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_SET_ITEM
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from fastiter._clib.numpy_api cimport bytes_of, int64_items
from fastiter._clib.objects cimport fi_new_tuple

from fastiter._util.failures import Failure

cnp.import_array()

cdef enum:
    # The items of a State.
    POSITION = 0
    EPOCH = 1
    IS_NEW_EPOCH = 2
    ORDER = 3
    EPOCH_SIZE = 4
    PREVIOUS_EPOCH_DETAIL = 5
    N_DRAWN = 6
    STATE_ITEMS = 7


cdef inline int64_t *data_of(object array) noexcept:
    return <int64_t *>bytes_of(<cnp.PyArrayObject *>array)


cdef inline object new_indices(int64_t n):
    cdef cnp.npy_intp length = n
    return cnp.PyArray_EMPTY(1, &length, cnp.NPY_INT64, 0)


cdef object counted(int64_t start, int64_t stop):
    """Count from ``start`` to below ``stop``: numpy.arange, in a fraction of its time."""
    cdef int64_t n = stop - start, i
    numbers = new_indices(n)
    cdef int64_t *target = data_of(numbers)
    for i in range(n):
        target[i] = start + i
    return numbers


cdef bint is_plain(object order, int64_t stop) noexcept:
    """Whether an order is an array from whose memory indices below ``stop`` can be copied."""
    cdef Py_ssize_t length = 0
    return int64_items(order, &length) != NULL and stop <= length


@cython.freelist(16)
cdef class Plan:
    """One batch to come, or the reason why there is none.

    Attributes
    ----------
    indices : int64[batch], contiguous; None at the end of the iteration and with an error
    state : the state after this batch
    error : what the order sampler or ``len(dataset)`` raised, or None
    work : what is being done for the batch, or None; any object, which the plan owns
    progress : what was counted up to this batch, any value: by an iterator, what was skipped;
        before the batch is made, up to the one before it
    n_dropped : how many rows of the batch were skipped
    outcome : the batch, or its `Failure`, from when it is made until it is delivered; else None
    request : what the workers are told of the batch besides its indices, any object that can be
        pickled; None for nothing
    worker : the number of the only worker process that is offered the batch; -1: all are
    """

    def __cinit__(self):
        self.worker = -1

    def __init__(self, indices, state, error=None, request=None, int worker=-1):
        self.indices = indices
        self.state = state
        self.error = error
        self.request = request
        self.worker = worker

    def label(self, batch_size):
        """The epoch in which the batch begins and its number there, both from 0, for messages."""
        state = self.state
        position = state.epoch_size if state.is_new_epoch else state.position
        return f"epoch {state.epoch - state.is_new_epoch}, batch {(position - 1) // batch_size}"


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


cdef class PlanQueue:
    """The plans of batches after the one delivered last.

    A batch is begun (`ahead`), then delivered (`deliver`), in one order. A copy or pickle of a queue
    carries the plans that were not delivered, so its future equals the original's, and the sampler
    is not asked again for orders that it has drawn.

    Not safe to call from two threads at a time, except for `state` and `works`.

    A subclass defines another rule of epochs by `advance`, or for the rule here

    - ``_next_epoch(order, position, size, n_drawn)``: order, size and number of orders drawn of the
      epoch after one in which the last batch begins at ``position``;
    - ``_slice(order, start, stop)``: a part of an order that is not a contiguous int64 array, as
      such an array;
    - ``_note(state)``: told of a state with another number of orders drawn.
    """

    def __init__(self, state, batch_size, bint repeat, progress=None):
        self.current = self.planned = state
        self.progress = progress
        self.batch_size = batch_size
        self.repeat = repeat
        self.plans = []
        self.is_passing = self.is_begun = False

    @property
    def state(self):
        """State of the batch delivered last. Any thread may ask."""
        # It takes a reference of its own before a thread that delivers can drop the object.
        with cython.critical_section(self):
            return self.current

    cdef void put_state(self, object state) noexcept:
        with cython.critical_section(self):
            self.current = state

    def works(self):
        """The work for all batches that are begun, oldest first. Any thread may ask."""
        works = [(<Plan>plan).work for plan in list(self.plans)]
        return [work for work in works if work is not None]

    def peek(self):
        """The plan that `deliver` takes next. Raises nothing that belongs to the batch."""
        cdef Plan plan = self.first()
        if plan.outcome is None:
            plan.progress = self.progress
            plan.n_dropped = 0
        return plan

    cdef Plan first(self):
        return <Plan>self.plans[0] if self.plans else self.plan_one()

    cdef bring_forward(self, Plan plan):
        """Have `deliver` take this one of the plans next."""
        self.plans.remove(plan)
        self.plans.insert(0, plan)

    cpdef Plan ahead(self):
        """The first plan without work: the batch to begin next.

        At the end of the iteration, or an error, that plan is returned again and again.
        """
        cdef Py_ssize_t count = len(self.plans), i = count
        while i > 0 and (<Plan>self.plans[i - 1]).work is None:
            i -= 1
        return <Plan>self.plans[i] if i < count else self.plan_one()

    def deliver(self):
        """Deliver the oldest plan: it leaves with its work and its outcome, its state is installed.

        These happen at once: no Python runs in between, and so no signal handler. Ctrl-C comes
        either before, and the next call finds the outcome in the plan, or after.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        Exception
            What the order sampler or ``len(dataset)`` raised when this batch was planned, its
            StopIteration as a RuntimeError. The state stays as it is, and the next call plans
            this batch anew.
        """
        cdef Plan plan = self.first()
        state = self.current if plan.error is not None else plan.state
        if plan.indices is not None and self.is_passing:
            # The state tells of this batch and of those passed over before it.
            state = state._replace(
                is_new_epoch=item(self.current, IS_NEW_EPOCH) or item(state, IS_NEW_EPOCH),
                previous_epoch_detail=item(self.current, PREVIOUS_EPOCH_DETAIL))
        if item(state, N_DRAWN) != item(self.current, N_DRAWN):
            self._note(state)
        # What dies by this step, dies at the end of this function.
        work, outcome, before = plan.work, plan.outcome, self.current
        plan.work = plan.outcome = None
        if plan.error is None:
            self.is_begun = True
            self.is_passing = False
            self.put_state(state)
            self.progress = plan.progress
        del self.plans[0]
        if plan.indices is not None:
            return plan
        if plan.error is not None:
            raise plan.error
        raise StopIteration

    def pass_over(self):
        """Take the oldest plan, of whose batch nothing is left.

        As `deliver`, but the state after the next batch then tells of both: the one passed over may
        have ended an epoch, and ``previous_epoch_detail`` is that before both.
        """
        self.deliver()
        self.is_passing = True

    def rewind(self):
        """Drop all work: every batch that was not delivered is begun anew."""
        for plan in self.plans:
            (<Plan>plan).work = (<Plan>plan).outcome = None

    def restart(self, state, progress=None):
        """Go on from ``state``. All plans are dropped, and lose their work."""
        self._note(state)
        self.rewind()
        kept = self.plans, self.current  # what dies by this, dies at the end of this function
        self.plans = []
        self.planned = state
        self.is_passing = self.is_begun = False
        self.put_state(state)
        self.progress = progress

    def __getstate__(self):
        # A copy begins all work anew, and asks a sampler that failed again.
        plans = [(plan.indices, plan.state) for plan in list(self.plans) if plan.error is None]
        return {
            **self.__dict__,
            "state": self.current,
            "plans": plans,
            "batch_size": self.batch_size,
            "repeat": self.repeat,
            "is_passing": bool(self.is_passing),
            "progress": self.progress,
        }

    def __setstate__(self, dict given):
        given = dict(given)
        plans = given.pop("plans")
        is_passing = given.pop("is_passing")
        PlanQueue.__init__(self, given.pop("state"), given.pop("batch_size"),
                           given.pop("repeat"), given.pop("progress", None))
        for indices, state in plans:
            self.plans.append(Plan(indices, state))
            self.planned = state
        self.is_passing = is_passing
        self.__dict__.update(given)

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), self.__getstate__()

    cdef Plan plan_one(self):
        """Plan the batch after all that are planned."""
        cdef Py_ssize_t count = len(self.plans)
        state = (<Plan>self.plans[count - 1]).state if count else self.current
        cdef Plan plan
        try:
            plan = self.advance(state)
        except StopIteration as error:
            # Raised by the sampler, it would end the caller's loop in silence.
            wrapped = RuntimeError("order_sampler raised StopIteration")
            wrapped.__cause__ = error
            plan = new_plan(None, state, wrapped)
        except Exception as error:
            plan = new_plan(None, state, error)
        self.plans.append(plan)
        self.planned = plan.state
        return plan

    cpdef Plan advance(self, object state):
        """The plan of the batch after ``state``; without indices at the end of the iteration.

        With ``repeat`` a batch that reaches the end of an epoch goes on in the next one. Without,
        the last batch is short and nothing follows it. A batch that ends exactly at an epoch's end
        completes that epoch. Whenever an epoch ends, also the last one, and several times in a
        batch longer than the epoch, the next order is drawn.
        """
        cdef int64_t position = item(state, POSITION), size = item(state, EPOCH_SIZE)
        cdef int64_t left = self.batch_size, n
        cdef bint is_new_epoch = False
        epoch, order, n_drawn = item(state, EPOCH), item(state, ORDER), item(state, N_DRAWN)
        detail = epoch + item(state, POSITION) / item(state, EPOCH_SIZE)
        if not self.repeat and epoch > 0:
            return new_plan(None, state._replace(previous_epoch_detail=detail), None)
        indices = new_indices(left) if self.repeat and left > size - position else None
        while True:
            n = min(left, size - position)
            piece = self.piece(order, position, position + n)
            if indices is None:
                indices = piece
            else:
                memcpy(data_of(indices) + self.batch_size - left, data_of(piece), n * sizeof(int64_t))
            left -= n
            if n < size - position:
                position += n
                break
            order, size, n_drawn = self._next_epoch(order, position, size, n_drawn)
            position = 0
            epoch += 1
            is_new_epoch = True
            if not self.repeat or left == 0:
                break
        after = fi_new_tuple(type(state), STATE_ITEMS)
        put(after, POSITION, position)
        put(after, EPOCH, epoch)
        put(after, IS_NEW_EPOCH, is_new_epoch)
        put(after, ORDER, order)
        put(after, EPOCH_SIZE, size)
        put(after, PREVIOUS_EPOCH_DETAIL, detail)
        put(after, N_DRAWN, n_drawn)
        return new_plan(indices, after, None)

    cdef object piece(self, object order, int64_t start, int64_t stop):
        """The indices at the positions from ``start`` to below ``stop``, as an array of their own."""
        if order is None:
            return counted(start, stop)
        if not is_plain(order, stop):
            indices = self._slice(order, start, stop)
            if not is_plain(indices, 0) or len(indices) != stop - start:
                raise ValueError(
                    f"a slice of the order has {len(indices)} indices where {stop - start} were "
                    "expected")
            return indices
        indices = new_indices(stop - start)
        memcpy(data_of(indices), data_of(order) + start, (stop - start) * sizeof(int64_t))
        return indices


cdef class DeliveringIterator:
    """Base of an iterator whose ``next()`` delivers a batch and returns it in one step.

    No signal handler runs between the two: Ctrl-C comes before, and the next call returns the same
    batch; or when a ``for`` loop has bound it to its name.

    A subclass has ``_made()``, which returns a queue of plans, and the batch of the first of them
    or its `Failure`.
    """

    def __next__(self):
        plans, batch = self._made()
        (<PlanQueue?>plans).deliver()
        if type(batch) is Failure:
            error, batch.error = batch.error, None  # as `reraise` does
            raise error
        return batch
