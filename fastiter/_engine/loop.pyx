"""One call of ``next()``: a batch is made, then committed.

What makes a batch runs Python, and may raise or be interrupted: nothing moves meanwhile, so that
the next call makes the same batch. The commit installs the state, counts, and returns the batch. It
runs no Python: no signal handler comes between the state and the caller.
"""

import threading

cimport cython
from libc.stdint cimport int64_t

from fastiter._order.plan cimport Plan, PlanQueue
from fastiter._stats.timer cimport CALL_ENDED, Timer

from fastiter._util.failures import Failure


@cython.auto_pickle(False)
cdef class Loop:
    """Base of all iterators: ``next()``, and the lock, the plans and the times that belong to it.

    A subclass calls `_prepare`, sets ``_planner``, and has

    - ``_make()``: makes the batch of the first plan, or of one that it brings forward, and returns
      the batch or its `Failure`; the result is ignored at the end of the iteration. Called under
      the lock. If it is interrupted, the next call makes the same batch.
    - ``_make(False)``: the same, but plans stay even if nothing is left of their batches. Needed
      for `_make_ahead` alone.

    Ctrl-C in a ``for`` loop comes before the commit, and the next call returns the same batch; or
    when the loop has bound the batch to its name. (Where ``next()`` is called as a function, the
    interpreter itself runs handlers before it binds the result.)

    Attributes
    ----------
    _lock : threading.RLock
        Lock held by ``next()``. Reentrant: a signal handler may save a state while its thread waits.
    _timer : Timer
    _planner : PlanQueue
    _count_tokens : callable or None
        ``f(plan)``: the tokens of its rows.
    """

    cdef public object _lock, _count_tokens
    cdef public Timer _timer
    cdef public PlanQueue _planner

    def _prepare(self, bint is_serial):
        """Make a lock and a timer of this object's own; ``is_serial`` is the timer's."""
        self._lock = threading.RLock()
        self._timer = Timer(is_serial)

    def _after_fork(self):
        """In a forked child, where another thread, which may hold the lock, does not exist."""
        self._timer.after_fork()
        self._lock = threading.RLock()

    def _refuse_inside_next(self, action):
        """Refuse what would move the iterator during a call of ``next()`` by the same thread.

        Callables that the iterator calls, and signal handlers, may read, save and finalize.
        """
        if self._timer.is_inside():
            raise RuntimeError(
                f"{action} is called inside another call of next() of the same "
                f"{type(self).__name__}: by its dataset, converter, sampler or on_error, or by a "
                "signal handler. Do it when that call has returned; state_dict(), stats() and "
                "finalize() are possible at any moment")

    def __next__(self):
        return self.run(True)

    def _make_ahead(self):
        """Make the batch of the first plan, which then has it as its outcome, and return it or its
        `Failure`; at the end, anything. What the loop waits for is counted."""
        return self.run(False)

    cdef object run(self, bint commits):
        # No handler runs between the calls of C functions here: not between taking the lock and
        # `try`, and not between the last of them and the caller.
        cdef Timer timer = self._timer
        if timer.is_inside():
            self._refuse_inside_next("next()")
        lock = self._lock
        lock.acquire()
        try:
            timer.enter()
            try:
                if commits:
                    batch = self._make()
                    self.commit(batch)
                else:
                    batch = self._make(False)
            finally:
                timer.leave()
        finally:
            lock.release()
        if commits and type(batch) is Failure:
            error, batch.error = batch.error, None  # else frame and error keep each other alive
            raise error
        return batch

    cdef int commit(self, object batch) except -1:
        """Deliver the first plan, whose batch or `Failure` this is. Raises if there is none."""
        cdef Timer timer = self._timer
        cdef PlanQueue planner = self._planner
        cdef Plan plan = planner.first()
        cdef int64_t tokens = 0
        if plan.indices is None:
            timer.rows = CALL_ENDED
        elif type(batch) is not Failure:
            if self._count_tokens is not None:
                tokens = self._count_tokens(plan)
            timer.note_start()
        planner.commit()
        # From here on nothing can raise, and no Python runs.
        timer.skipped += plan.n_dropped
        if type(batch) is Failure:
            timer.errors += 1
        elif plan.indices is not None:
            timer.rows = plan.size() - plan.n_dropped
            timer.tokens += tokens
        return 0

    def _pass_over(self):
        """Deliver the first plan, of whose batch nothing is left: ``next()`` goes on to the one
        after it."""
        cdef Plan plan = self._planner.first()
        self._planner.pass_over()
        self._timer.skipped += plan.size()
