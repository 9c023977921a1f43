"""Plans of batches that are still to come, and the step that nearly all of them are.

A batch that ends before its epoch does follows from the state by arithmetic: that is done here.
The others (an epoch's end, the iteration's, an order that computes its slices) are what the
subclass' ``_advance`` says, which is free to run the user's code.
"""

import copyreg

cimport cython
cimport numpy as cnp
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport (
    PyTuple_Check, PyTuple_GET_ITEM, PyTuple_GET_SIZE, PyTuple_SET_ITEM)
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport (
    PyArray_CheckExact, PyArray_DATA, PyArray_DESCR, PyArray_DIMS, PyArray_IS_C_CONTIGUOUS,
    PyArray_NDIM, PyArrayObject)
from fastiter._clib.tuples cimport fi_new_tuple

cnp.import_array()

cdef enum:
    # Where the items of a State are.
    POSITION = 0
    EPOCH = 1
    IS_NEW_EPOCH = 2
    ORDER = 3
    EPOCH_SIZE = 4
    PREVIOUS_EPOCH_DETAIL = 5
    N_DRAWN = 6
    STATE_ITEMS = 7

# Below it a double holds every integer, so that a quotient is the one that Python gives.
cdef int64_t MOST_EXACT = <int64_t>1 << 53


def counted(int64_t start, int64_t stop):
    cdef Py_ssize_t n = max(stop - start, 0), i
    cdef cnp.ndarray numbers = cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)
    cdef int64_t *target = <int64_t *>PyArray_DATA(<PyArrayObject *>numbers)
    for i in range(n):
        target[i] = start + i
    return numbers


cdef object slice_of(object order, int64_t start, int64_t stop):
    """A copy of a part of an order, or None if that is no plain array."""
    cdef PyArrayObject *array = <PyArrayObject *>order
    cdef Py_ssize_t n = stop - start
    cdef cnp.ndarray indices
    if not PyArray_CheckExact(array) or PyArray_NDIM(array) != 1 or (
            not PyArray_IS_C_CONTIGUOUS(array) or PyArray_DESCR(array).type_num != cnp.NPY_INT64
            or not cnp.PyArray_ISNBO(PyArray_DESCR(array).byteorder)
            or stop > PyArray_DIMS(array)[0]):
        return None
    indices = cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)
    memcpy(PyArray_DATA(<PyArrayObject *>indices), <int64_t *>PyArray_DATA(array) + start,
           n * sizeof(int64_t))
    return indices


@cython.freelist(16)
cdef class Plan:
    def __init__(self, indices, state, error=None):
        self.indices = indices
        self.state = state
        self.error = error

    @property
    def is_batch(self):
        return self.indices is not None

    def place(self, batch_size):
        state = self.state
        position = state.epoch_size if state.is_new_epoch else state.position
        return state.epoch - state.is_new_epoch, (position - 1) // batch_size


cdef inline Plan new_plan(object indices, object state, object error):
    cdef Plan plan = Plan.__new__(Plan)
    plan.indices = indices
    plan.state = state
    plan.error = error
    return plan


cdef void put(object state, Py_ssize_t place, object value) noexcept:
    Py_INCREF(value)
    PyTuple_SET_ITEM(state, place, value)


cdef inline object item(object state, Py_ssize_t place):
    return <object>PyTuple_GET_ITEM(state, place)


cdef Plan plan_within(object state, int64_t batch_size, bint repeat):
    """The plan of a batch that does not reach the end of its epoch; None for any other."""
    cdef int64_t position, size, stop
    if not PyTuple_Check(state) or PyTuple_GET_SIZE(state) != STATE_ITEMS:
        return None
    if not repeat and item(state, EPOCH) > 0:
        return None
    position, size = item(state, POSITION), item(state, EPOCH_SIZE)
    if batch_size >= size - position or size > MOST_EXACT:
        return None
    stop = position + batch_size
    order = item(state, ORDER)
    indices = counted(position, stop) if order is None else slice_of(order, position, stop)
    if indices is None:
        return None
    detail = item(state, EPOCH) + <double>position / <double>size
    after = fi_new_tuple(type(state), STATE_ITEMS)
    put(after, POSITION, stop)
    put(after, EPOCH, item(state, EPOCH))
    put(after, IS_NEW_EPOCH, False)
    put(after, ORDER, order)
    put(after, EPOCH_SIZE, item(state, EPOCH_SIZE))
    put(after, PREVIOUS_EPOCH_DETAIL, detail)
    put(after, N_DRAWN, item(state, N_DRAWN))
    return new_plan(indices, after, None)


cdef object state_of_both(object before, object after):
    """What a batch tells of itself and of the ones before it that were passed over."""
    return after._replace(
        is_new_epoch=item(before, IS_NEW_EPOCH) or item(after, IS_NEW_EPOCH),
        previous_epoch_detail=item(before, PREVIOUS_EPOCH_DETAIL))


cdef class PlanQueue:
    def __init__(self, state, batch_size, bint repeat):
        self.put_state(state)
        self.batch_size = batch_size
        self.repeat = repeat
        self.step = min(batch_size, MOST_EXACT)
        self.plans = []
        self.handed_out = 0
        self.is_passing = self.is_begun = False

    # Any thread may read the state while another one delivers: it takes a reference of its own
    # before that one can drop the object.
    @property
    def state(self):
        with cython.critical_section(self):
            return self.current

    cdef void put_state(self, object state):
        before = self.current  # which dies after the section, if it does
        with cython.critical_section(self):
            self.current = state

    def _advance(self, state):
        raise NotImplementedError

    def _note(self, state):
        raise NotImplementedError

    def peek(self):
        return self.first()

    def ahead(self):
        return self.next_ahead()

    cdef Plan newest(self):
        """The plan that is furthest ahead, or None."""
        cdef Py_ssize_t count = len(self.plans)
        return <Plan>self.plans[count - 1] if count else None

    cdef Plan first(self):
        return <Plan>self.plans[0] if self.plans else self.plan_one()

    cdef Plan next_ahead(self):
        cdef Plan plan
        if self.handed_out == len(self.plans):
            plan = self.newest()
            if plan is not None and plan.indices is None:
                return plan
            self.plan_one()
        plan = <Plan>self.plans[self.handed_out]
        self.handed_out += 1
        return plan

    def deliver(self):
        cdef Plan plan = self.first()
        # The plan leaves last: if Ctrl-C comes in between, it is the next one again.
        if self.handed_out:
            self.handed_out -= 1
        if plan.error is None:
            self.is_begun = True
            if item(plan.state, N_DRAWN) != item(self.current, N_DRAWN):
                self._note(plan.state)
            if self.is_passing and plan.indices is not None:
                self.put_state(state_of_both(self.current, plan.state))
            else:
                self.put_state(plan.state)
            self.is_passing = False
        del self.plans[0]
        if plan.indices is not None:
            return plan
        if plan.error is not None:
            raise plan.error
        raise StopIteration

    def pass_over(self):
        self.deliver()
        self.is_passing = True

    def rewind(self):
        self.handed_out = 0

    def discard(self):
        self.plans.clear()
        self.handed_out = 0

    def restart(self, state):
        self.discard()
        self.is_passing = self.is_begun = False
        self.put_state(state)
        self._note(state)

    def copy(self):
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    __copy__ = copy

    def __getstate__(self):
        # The copy has handed out nothing yet, and it tries a failed sampler again itself.
        plans = [(plan.indices, plan.state) for plan in list(self.plans) if plan.error is None]
        return {
            **self.__dict__,
            "state": self.current,
            "plans": plans,
            "batch_size": self.batch_size,
            "repeat": self.repeat,
            "is_passing": bool(self.is_passing),
        }

    def __setstate__(self, dict given):
        given = dict(given)
        plans = given.pop("plans")
        is_passing = given.pop("is_passing")
        PlanQueue.__init__(
            self, given.pop("state"), given.pop("batch_size"), given.pop("repeat"))
        self.plans = [Plan(indices, state) for indices, state in plans]
        self.is_passing = is_passing
        self.__dict__.update(given)

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), self.__getstate__()

    cdef Plan plan_one(self):
        cdef Plan newest = self.newest()
        state = self.current if newest is None else newest.state
        cdef Plan plan = plan_within(state, self.step, self.repeat)
        if plan is None:
            plan = self.plan_beyond(state)
        self.plans.append(plan)
        return plan

    cdef Plan plan_beyond(self, object state):
        try:
            after, indices = self._advance(state)
            return new_plan(indices, after, None)
        except StopIteration as error:
            # Raised by the sampler, it would end the caller's loop in silence.
            wrapped = RuntimeError("order_sampler raised StopIteration")
            wrapped.__cause__ = error
            return new_plan(None, state, wrapped)
        except Exception as error:
            return new_plan(None, state, error)
