"""The plans of the batches to come, and their delivery.

`PlanQueue` keeps the plans that were not delivered, and delivers the oldest one. What is done for a
batch ahead of its delivery belongs to its plan: `Plan.work`. Which batch comes next is the rule of
a subclass: `fastiter._order.epoch_plans` has that of epochs, `fastiter._order.turn_plans` that of
workers that take turns.
"""

import copyreg

cimport cython
cimport numpy as cnp
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from fastiter._util.failures import raise_of_handler

cnp.import_array()

TAILS = ("pad", "mask", "drop")

# The next number of a key. A worker that took such an index for one would lose time only.
cdef int64_t n_keys = 1 << 62


cdef object counted(int64_t start, int64_t stop):
    """Count from ``start`` to below ``stop``: numpy.arange, in a fraction of its time."""
    cdef int64_t n = stop - start, i
    numbers = new_indices(n)
    cdef int64_t *target = data_of(numbers)
    for i in range(n):
        target[i] = start + i
    return numbers


def size_within(order, stop):
    """The length of an order if it is at most ``stop``, else ``stop`` or more.

    An order whose length takes long to count has a method of this name, and ``share``.
    """
    within = getattr(order, "size_within", None)
    return len(order) if within is None else within(stop)


def epoch_detail(state):
    """Epochs before a state, with the fraction of the current one."""
    return detail_of(state)


@cython.freelist(16)
cdef class Plan:
    """One batch to come, or the reason why there is none.

    Attributes
    ----------
    indices : int64[batch], contiguous; None at the end of the iteration and with an error
    state : the state after this batch, and after those of the other ranks at this step
    error : exception of the order sampler or of ``len(dataset)``, or None
    work : pending work for the batch, of any type, which the plan owns; or None
    progress : counts up to this batch, any value (for an iterator, skipped examples);
        before the batch is made, up to the batch before it
    n_dropped : number of rows of the batch that were skipped
    outcome : the batch, or its `Failure`, from when it is made until it is delivered; else None
    request : object for the workers besides the indices, of any type that can be pickled, or
        None
    worker : the number of the only worker process that is offered the batch; -1: all are
    keys : of the rows, a list, tuple, array or tensor, where no ``indices`` are given; these are then
        numbers that no other batch has. None: the indices are the keys
    seeds : bytes of uint64[batch + 1]: seeds of the generators for each example, and for the
        converter; None if they are not seeded
    epoch, position, epoch_size : the last ``position`` rows are of ``epoch``, the ``epoch_size``
        rows before them of the epoch before, and so on
    row_epochs : the epoch of each row, int64, where these are of three epochs or more that differ in
        size, and `epoch_size` is 0; as a rule None
    first : number of the first row; its random numbers, and those of the rows after it, belong to
        these numbers in place of the epoch; -1: to the epoch
    number : number of the batch in the epoch in which it begins, from 0, for messages
    n_valid : number of rows, from the first on, that are no repetitions to fill an epoch up; all
        rows of a batch that is made as a whole, which has one index
    n_valid_dropped : number of these rows that were skipped
    q, slot, schema : of a batch in the ring, its sequence number, its slot, and the `Schema` of its
        columns; None: it has none
    """

    def __cinit__(self):
        self.worker = self.first = -1

    def __init__(self, indices, state, error=None, request=None, int worker=-1, *, origin=None,
                 first=-1, number=0, n_valid=None, seeds=None, row_epochs=None, keys=None):
        global n_keys
        if indices is None and keys is not None:
            self.keys = keys
            n_keys += len(keys)
            indices = counted(n_keys - len(keys), n_keys)
        self.indices = indices
        self.state = state
        self.error = error
        self.request = request
        self.worker = worker
        self.first = first
        self.number = number
        self.seeds = seeds
        self.row_epochs = row_epochs
        if indices is not None:
            self.epoch, self.position, self.epoch_size = (
                (state.epoch, state.position, state.epoch_size) if origin is None else origin)
            self.n_valid = len(indices) if n_valid is None else n_valid

    # `PlanQueue.begun_work` reads it in any thread, and takes a reference of its own before a thread
    # that delivers can drop the object. The thread that has the iterator's lock reads it as it is.
    @property
    def work(self):
        with cython.critical_section(self):
            return self.current_work

    @work.setter
    def work(self, work):
        self.put_work(work)

    cdef void put_work(self, object work) noexcept:
        before = self.current_work  # if it dies, then after the section
        with cython.critical_section(self):
            self.current_work = work

    @property
    def label(self):
        """The epoch in which the batch begins and its number there, both from 0, for messages."""
        return f"epoch {self.epoch_of(0)}, batch {self.number}"

    @property
    def n_rows(self):
        """Rows of the batch; 0 where there is none."""
        return self.size()

    cdef bint is_begun(self) noexcept:
        return self.current_work is not None or self.outcome is not None

    cdef int64_t size(self) noexcept:
        """Rows of the batch; 0 where there is none."""
        if self.request is not None:
            return self.n_valid
        return 0 if self.indices is None else cnp.PyArray_SIZE(self.indices)

    cpdef int64_t epoch_of(self, int64_t row) except? -1:
        """The epoch that a row belongs to."""
        cdef int64_t before = cnp.PyArray_SIZE(self.indices) - row - self.position
        if self.row_epochs is not None:
            return self.row_epochs[row]
        return self.epoch if before <= 0 else max(0, self.epoch - 1 - (before - 1) // self.epoch_size)

    def epochs(self):
        """The epoch of each row: int64 (n,)."""
        cdef int64_t n = cnp.PyArray_SIZE(self.indices), row
        epochs = new_indices(n)
        cdef int64_t *target = data_of(epochs)
        for row in range(n):
            target[row] = self.epoch_of(row)
        return epochs

    def key_of(self, int64_t row):
        """Key of a row's random numbers, under one seed: its epoch, or its number; and its index in
        the dataset."""
        return self.epoch_of(row) if self.first < 0 else self.first + row, int(self.indices[row])

    def index_of(self, int64_t row):
        """The dataset index of a row, or its key."""
        return int(self.indices[row]) if self.keys is None else self.keys[row]

    def name_of(self, int64_t row):
        """Name of a row in messages."""
        kind = "dataset index" if self.keys is None else "key"
        return f"{kind} {self.index_of(row)!r:.200}"

    def values(self):
        """Arguments of the constructor for a plan of the same batch, without work and outcome."""
        return (self.indices, self.state), {
            "origin": (self.epoch, self.position, self.epoch_size), "first": self.first,
            "number": self.number, "n_valid": self.n_valid, "seeds": self.seeds,
            "row_epochs": self.row_epochs}


cdef class PlanQueue:
    """The plans of batches after the one delivered last.

    A batch is begun (`ahead`), then delivered (`deliver`), in one order. A copy or pickle of a queue
    carries the plans that were not delivered, so its future equals the original's, and the sampler
    is not asked again for orders that it has drawn.

    Not safe to call from two threads at a time, except for `state`, `progress`, `delivered` and
    `begun_work`.

    A subclass defines the rule by `advance`, and may define

    - ``_slice(order, start, stop)``: a part of an order that is not a contiguous int64 array, as
      such an array;
    - ``_draw_ahead(number)``: have the order of that number drawn beside the loop; called in the
      middle of the epoch before, where there are ``epochs``;
    - ``_note(state)``: told of a state with another number of orders drawn, or of examples.
    """

    def __init__(self, state, batch_size, bint repeat, progress=None, *, rank=0, num_ranks=1,
                 bint drop_last=False, tail="pad"):
        self.current = self.planned = state
        self.current_progress = progress
        self.batch_size = batch_size
        self.repeat = repeat
        self.rank = rank
        self.num_ranks = num_ranks
        self.drop_last = drop_last
        self.tail_kind = TAILS.index(tail)
        self.plans = []
        self.delivered_early = {}
        # What is not named here begins as None, False or 0.

    @property
    def tail(self):
        """Treatment of the last rows of an epoch: one of `TAILS`."""
        return TAILS[self.tail_kind]

    # Each takes a reference of its own before a thread that delivers can drop the object.
    @property
    def state(self):
        """State of the batch delivered last. Any thread may ask."""
        with cython.critical_section(self):
            return self.current

    @property
    def progress(self):
        """The counts up to that batch. Any thread may read them."""
        with cython.critical_section(self):
            return self.current_progress

    @progress.setter
    def progress(self, progress):
        self.put_state(self.current, progress, self.last)

    @property
    def delivered(self):
        """The plan delivered last; None after a restart. Any thread may ask."""
        with cython.critical_section(self):
            return self.last

    cdef void put_state(self, object state, object progress, Plan last) noexcept:
        # If they die, then after the section.
        former_state, former_progress, former = self.current, self.current_progress, self.last
        with cython.critical_section(self):
            self.current, self.current_progress, self.last = state, progress, last

    def begun_work(self):
        """The work for all batches that are begun, oldest first. Any thread may ask."""
        with cython.critical_section(self):
            plans = self.plans
        begun = [(<Plan>plan).work for plan in list(plans)]
        return [work for work in begun if work is not None]

    def peek(self):
        """The plan that `deliver` takes next. Raises nothing that belongs to the batch."""
        cdef Plan plan = self.first()
        if plan.outcome is None:
            plan.progress = self.current_progress
            plan.n_dropped = plan.n_valid_dropped = 0
        elif plan.progress is None:  # it was made before its turn: nothing was decided for it
            plan.progress = self.current_progress
        return plan

    cdef Plan first(self):
        return <Plan>self.plans[0] if self.plans else self.plan_one()

    cpdef bint overtakes(self):
        """Whether a complete batch may come before others now."""
        return self.unordered and not self.is_filling

    cdef bring_forward(self, Plan plan):
        """Have `deliver` take this one of the plans next."""
        self.plans.remove(plan)
        self.plans.insert(0, plan)

    cdef bint lacks_first(self) noexcept:
        """Whether the first plan is not begun."""
        return bool(self.plans) and not (<Plan>self.plans[0]).is_begun()

    cpdef Plan ahead(self):
        """The first plan without work and outcome: the batch to begin next.

        At the end of the iteration, or an error, that plan is returned again and again.
        """
        cdef Py_ssize_t count = len(self.plans), i = count
        # An interrupt may have lost a batch before others. It is begun anew when it comes first.
        if self.lacks_first():
            return <Plan>self.plans[0]
        while i > 0 and not (<Plan>self.plans[i - 1]).is_begun():
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
            The exception of the order sampler or of ``len(dataset)`` when this batch was planned,
            a StopIteration as a RuntimeError. The state stays as it is, and the next call plans
            this batch anew.
        """
        return self.commit()

    cdef Plan commit(self):
        """`deliver`, for compiled code."""
        cdef Plan plan = self.first()
        state = self.current if plan.error is not None else plan.state
        early = self.delivered_early
        if plan.indices is not None and (self.unordered or early):
            state, early = self.joined(plan)
        if plan.indices is not None and self.is_passing:
            # The state tells of this batch and of those passed over before it.
            state = state._replace(
                is_new_epoch=item(self.current, IS_NEW_EPOCH) or item(state, IS_NEW_EPOCH),
                previous_epoch_detail=item(self.current, PREVIOUS_EPOCH_DETAIL))
        n_drawn, before = item(state, N_DRAWN), item(self.current, N_DRAWN)
        size, former_size = item(state, EPOCH_SIZE), item(self.current, EPOCH_SIZE)
        if (n_drawn is not before and n_drawn != before) or size != former_size:
            self._note(state)
        # What dies by this step, dies at the end of this function.
        work, outcome, last = plan.current_work, plan.outcome, self.last
        before, progress = self.current, self.current_progress
        plan.put_work(None)
        plan.outcome = None
        if plan.error is None:
            self.is_begun = True
            self.is_passing = False
            self.put_state(state, plan.progress, last if plan.indices is None else plan)
            self.delivered_early = early
        del self.plans[0]
        if plan.indices is not None:
            return plan
        if plan.error is not None:
            raise plan.error
        raise StopIteration

    cdef tuple joined(self, Plan plan):
        """The state when a plan is delivered before or after others, and `delivered_early` then.

        The state is that before the oldest batch that is not delivered. So an epoch ends when its
        last batch was delivered, whichever that is.
        """
        cdef Plan other
        cdef int64_t oldest = -1, step
        cdef bint is_new_epoch = False
        for other in self.plans:
            if other is not plan and other.indices is not None:
                step = item(other.state, STEP)
                oldest = step if oldest < 0 else min(oldest, step)
        state, early = self.current, {**self.delivered_early, item(plan.state, STEP): plan.state}
        detail = detail_of(state)
        for step in sorted(early):
            if 0 <= oldest <= step:
                break
            state = early.pop(step)
            is_new_epoch |= item(state, IS_NEW_EPOCH)
        return state._replace(is_new_epoch=is_new_epoch, previous_epoch_detail=detail), early

    cpdef pass_over(self):
        """Take the oldest plan, of whose batch nothing is left.

        As `deliver`, but the state after the next batch then tells of both: the one passed over may
        have ended an epoch, and ``previous_epoch_detail`` is that before both.
        """
        self.commit()
        self.is_passing = True

    def rewind(self):
        """Drop all work: every batch that was not delivered is begun anew."""
        for plan in self.plans:
            (<Plan>plan).put_work(None)
            (<Plan>plan).outcome = None

    def restart(self, state, progress=None, begin=None, plans=()):
        """Go on from ``state``. All plans are dropped, and lose their work.

        Not before ``plans`` were delivered, if there are any: ``begin`` is the state before them.
        """
        now = state if begin is None else begin
        self._note(now)
        self.rewind()
        kept = self.plans  # what dies by this, dies at the end of this function
        with cython.critical_section(self):
            self.plans = list(plans)
        self.delivered_early = {}
        self.planned = state
        self.is_passing = self.is_begun = False
        self.n_begun = 0
        self.put_state(now, progress, None)

    def __getstate__(self):
        # A copy begins all work anew, and asks a sampler that failed again.
        plans = [(<Plan>plan).values() for plan in list(self.plans) if plan.error is None]
        if self.unordered:
            plans.sort(key=lambda values: values[0][1].step)
        return {
            **self.__dict__,
            "state": self.current,
            "plans": plans,
            "batch_size": self.batch_size,
            "repeat": self.repeat,
            "cutting": {"rank": self.rank, "num_ranks": self.num_ranks,
                        "drop_last": self.drop_last, "tail": self.tail},
            "is_passing": bool(self.is_passing),
            "progress": self.current_progress,
            "example_seed": self.example_seed,
            "delivered_early": self.delivered_early,
            "former_size": self.former_size,
            "unordered": bool(self.unordered),
        }

    def __setstate__(self, dict given):
        given = dict(given)
        plans = given.pop("plans")
        is_passing = given.pop("is_passing")
        PlanQueue.__init__(self, given.pop("state"), given.pop("batch_size"),
                           given.pop("repeat"), given.pop("progress"), **given.pop("cutting"))
        for arguments, options in plans:
            plan = Plan(*arguments, **options)
            self.plans.append(plan)
            self.planned = plan.state
        self.is_passing = is_passing
        self.example_seed = given.pop("example_seed")
        self.former_size = given.pop("former_size")
        self.unordered = given.pop("unordered")
        self.delivered_early = given.pop("delivered_early")
        for state in self.delivered_early.values():
            if item(state, STEP) > item(self.planned, STEP):
                self.planned = state
        self.__dict__.update(given)

    def __reduce__(self):
        return copyreg.__newobj__, (type(self),), self.__getstate__()

    cdef Plan plan_one(self):
        """Plan the batch after all that are planned."""
        cdef Py_ssize_t count = len(self.plans)
        state = (<Plan>self.plans[count - 1]).state if count else self.current
        if self.unordered or self.delivered_early:  # the last one planned may be delivered
            state = self.planned
        cdef Plan plan
        try:
            if self.epochs is not None and self.is_begun:
                n_drawn = item(state, N_DRAWN)
                if n_drawn != self.n_begun and 2 * item(state, POSITION) >= item(state, EPOCH_SIZE):
                    self.n_begun = n_drawn
                    self._draw_ahead(n_drawn)
            plan = self.advance(state)
        except StopIteration as error:
            # Raised by the sampler, it would end the caller's loop in silence.
            wrapped = RuntimeError("order_sampler raised StopIteration")
            wrapped.__cause__ = error
            plan = new_plan(None, state, wrapped)
        except Exception as error:
            raise_of_handler(error)
            plan = new_plan(None, state, error)
        self.plans.append(plan)
        self.planned = plan.state
        return plan

    cpdef Plan advance(self, object state):
        """The plan of the batch after ``state``; without indices at the end of the iteration. Its
        state has all changes; the queue stays as it is."""
        raise NotImplementedError

    def _note(self, state):
        """Nothing depends on the state."""

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
