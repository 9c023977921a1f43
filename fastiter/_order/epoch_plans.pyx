"""The rule of epochs.

An epoch is an order and its cuts: batch k is ``order[cuts[k]:cuts[k + 1]]``. Cuts are those of one
rank's batches; a step takes the next ``num_ranks`` of them, one for each rank. Without an array
of cuts there is one every ``batch_size`` rows.
"""

import numpy

cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from fastiter._clib.objects cimport fi_new_tuple
from fastiter._order.plan cimport *

cnp.import_array()

cdef struct Step:
    int64_t rows  # on all ranks; 0 if the epoch has none left
    int64_t first  # the rank's first one, in the step
    int64_t count  # the rank's rows
    int64_t n_valid  # of these, from the first one on, are no repetitions
    int64_t number  # of the step in its epoch, from 0
    bint is_last  # of its epoch


cdef int64_t place_of(const int64_t *cuts, int64_t m, int64_t position) noexcept:
    """The last of the cuts 0 to m that is not beyond a position."""
    cdef int64_t low = 0, high = m, middle
    while low < high:
        middle = (low + high + 1) // 2
        if cuts[middle] <= position:
            low = middle
        else:
            high = middle - 1
    return low


cdef int note_epochs(Plan plan, list spans) except -1:
    """Notes the epochs of a plan's rows, which may differ in size."""
    cdef int64_t first = spans[0][0], size = spans[len(spans) - 2][0]
    if len(spans) == 2:
        plan.epoch_size = max(first, plan.epoch_size)
    elif first <= size and all(n == size for n, _ in spans[1:len(spans) - 1]):
        plan.epoch_size = size
    else:
        rows, numbers = zip(*spans)
        plan.row_epochs, plan.epoch_size = numpy.repeat(numbers, rows), 0
    return 0


cdef class EpochPlanQueue(PlanQueue):
    """Plans of the batches of epochs.

    A subclass defines

    - ``last_epoch``: the epoch that an iteration without ``repeat`` ends with;
    - ``_next_epoch(order, position, size, n_drawn)``: order, size (as `counted` has it), number of
      orders drawn and cuts (int64[m + 1], or None) of the epoch after one whose last step begins at
      ``position``;
    - ``_seeds(plan, parts, step)``: the seeds of a plan, whose rows are parts of orders, each of
      them (order, start, stop, rounds of the order before); asked where there is an
      ``example_seed``.
    """

    cpdef Plan advance(self, object state):
        """The plan of the batch after ``state``; without indices at the end of the iteration.

        With ``repeat``, neither ``drop_last`` nor cuts, a step that reaches the end of an epoch
        goes on in the next one. Otherwise steps end with their epoch. A step that ends exactly at
        an epoch's end completes that epoch. Whenever an epoch ends, also the last one, and several
        times in a step longer than the epoch, the next order is drawn.
        """
        cdef int64_t position = item(state, POSITION), size = item(state, EPOCH_SIZE)
        cdef int64_t begin = position, done = 0, n, low, high, rounds = 0
        cdef bint is_new_epoch = False, is_endless
        cdef Step step
        cdef Plan plan
        epoch, order, n_drawn = item(state, EPOCH), item(state, ORDER), item(state, N_DRAWN)
        cuts = item(state, CUTS)
        detail = detail_of(state)
        size = self.counted(order, position, size)
        is_endless = self.is_endless(cuts)
        while True:
            if not self.repeat and epoch > self.last_epoch:
                return new_plan(None, state._replace(previous_epoch_detail=detail), None)
            self.cut(cuts, position, size, self.rank, is_endless, &step)
            if step.rows > 0:
                break
            if position == 0 and self.former_size != size:
                given = f"batch_size is {self.batch_size}" if cuts is None else "tail is 'drop'"
                raise ValueError(f"an epoch of {size} examples has no full batch: {given}, for "
                                 f"{self.num_ranks} rank(s)")
            # What is left of an epoch that was begun with smaller batches.
            order, size, n_drawn, cuts = self._next_epoch(order, position, size, n_drawn)
            epoch += 1
            begin = position = 0
            is_new_epoch = True
            state = state._replace(position=0, epoch=epoch, is_new_epoch=True, order=order,
                                   epoch_size=size, n_drawn=n_drawn, cuts=cuts)
        plan = new_plan(None, None, None)
        plan.number = step.number
        plan.n_valid = step.n_valid
        parts = None if self.example_seed is None else []
        spans = None  # numbers of rows of the epochs that they are of, where these are several
        while True:
            n = min(step.rows - done, size - position)
            # The rank's rows among those at [done, done + n) of the step.
            low, high = max(step.first, done), min(step.first + step.count, done + n)
            if low < high:
                piece = self.piece(order, position + low - done, position + high - done)
                if parts is not None:
                    parts.append((order, position + low - done, position + high - done, rounds))
                if high - low == step.count:
                    plan.indices = piece
                else:
                    if plan.indices is None:
                        plan.indices = new_indices(step.count)
                    memcpy(data_of(plan.indices) + low - step.first, data_of(piece),
                           (high - low) * sizeof(int64_t))
                    if is_endless:
                        spans = [*(spans or ()), (high - low, epoch)]
                if high == step.first + step.count:
                    plan.epoch = epoch
                    plan.epoch_size = size
                    plan.position = position + high - done if is_endless else step.count
            done += n
            position += n
            if not is_endless and done < step.rows:
                position = 0  # the epoch's first rows fill the last batches up
                rounds += 1
                continue
            if position < size and not step.is_last:
                break
            order, size, n_drawn, cuts = self._next_epoch(order, begin, size, n_drawn)
            begin = position = 0
            epoch += 1
            is_new_epoch = True
            if done == step.rows:
                break
        after = fi_new_tuple(type(state), STATE_ITEMS)
        put(after, POSITION, position)
        put(after, EPOCH, epoch)
        put(after, IS_NEW_EPOCH, is_new_epoch)
        put(after, ORDER, order)
        put(after, EPOCH_SIZE, size)
        put(after, PREVIOUS_EPOCH_DETAIL, detail)
        put(after, N_DRAWN, n_drawn)
        put(after, CUTS, cuts)
        put(after, STEP, item(state, STEP) + 1)
        plan.state = after
        if spans is not None:
            note_epochs(plan, spans)
        if parts is not None:
            plan.seeds = self._seeds(plan, parts, item(state, STEP))
        return plan

    cpdef int64_t counted(self, object order, int64_t position, int64_t size) except -1:
        """The size of an order of which ``size`` rows are counted: exactly if the next two steps
        end it, which is as far as a plan looks; else at least theirs."""
        cdef int64_t stop = position + 2 * self.batch_size * self.num_ranks
        if size < stop and order is not None and not cnp.PyArray_Check(order):
            within = getattr(order, "size_within", None)
            if within is not None:
                return within(stop)
        return size

    cdef bint is_endless(self, object cuts) noexcept:
        """Whether cuts run over the stream of all epochs, not over each epoch for itself."""
        return self.repeat and not self.drop_last and cuts is None

    cdef void cut(self, object cuts, int64_t position, int64_t size, int64_t rank, bint is_endless,
                  Step *step) noexcept:
        """The step at a position of an epoch, and the part of a rank."""
        cdef int64_t ranks = self.num_ranks, whole = self.batch_size * ranks, left = size - position
        cdef int64_t rest, k, m
        cdef int64_t *at
        if cuts is None:
            step.number = (min(position + whole, size) - 1) // whole
            step.first, step.count = rank * self.batch_size, self.batch_size
            rest = left - whole
            step.is_last = rest == 0 or (0 < rest < whole and self.share(rest) == 0)
        else:
            at, m = data_of(cuts), cnp.PyArray_SIZE(cuts) - 1
            k = place_of(at, m, position)
            step.number = k // ranks
            rest = -1
            if k + ranks <= m:
                whole = at[k + ranks] - position
                step.first, step.count = at[k + rank] - position, at[k + rank + 1] - at[k + rank]
                rest = left - whole
            step.is_last = rest == 0 or (k + 2 * ranks > m and self.share(rest) == 0)
        step.rows, step.n_valid = whole, step.count
        if is_endless:
            step.is_last = False
        elif rest < 0:  # the rows of the last step, shared out evenly
            step.is_last = True
            step.count = self.share(left)
            step.first, step.rows = rank * step.count, ranks * step.count
            step.n_valid = step.count
            if self.tail_kind == TAIL_MASK:
                step.n_valid = max(0, min(step.count, left - step.first))

    cpdef int64_t share(self, int64_t left) noexcept:
        """Rows that each rank gets of an epoch's last ones, too few for a step of full batches."""
        if self.drop_last:
            return 0
        return (left if self.tail_kind == TAIL_DROP else left + self.num_ranks - 1) // self.num_ranks

    cpdef int64_t n_steps(self, object cuts, int64_t position, int64_t size):
        """Number of an epoch's steps from a position on; a step into the next epoch counts."""
        cdef int64_t ranks = self.num_ranks, whole = self.batch_size * ranks, k, m, n
        if cuts is None:
            n = (size - position) // whole
            position += n * whole
        else:
            m = cnp.PyArray_SIZE(cuts) - 1
            k = place_of(data_of(cuts), m, position)
            n = (m - k) // ranks
            position = data_of(cuts)[k + n * ranks]
        if self.is_endless(cuts):
            return n + (position < size)
        return n + (self.share(size - position) > 0)
