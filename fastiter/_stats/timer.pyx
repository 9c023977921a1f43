"""Timer of the loop: time in ``next()``, of waiting in it, and between its calls.

It reads the clock twice per batch: when ``next()`` begins and when it ends.
"""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t, uint64_t

from fastiter._clib.csrc cimport fi_cpu_times, fi_now_ns

ENDED = -1  # as `Timer.rows`: the iteration is over


cdef class Timer:
    """What the thread that iterates spends its time on.

    ``run`` makes each call of ``next()``. Any thread may call the rest at any time; none of it
    blocks.
    """

    cdef readonly uint64_t batches, examples  # delivered
    cdef public uint64_t errors  # calls that raised an error of a batch
    cdef public uint64_t skipped  # examples that could not be fetched
    cdef int64_t entered  # when the current call began; 0 outside of next()
    cdef int64_t left  # when the last call ended; 0 if what follows is no part of a loop
    cdef int64_t blocked  # since when the call waits for a batch; 0 if it does not
    cdef int64_t blocked_ns  # in the current call
    cdef int64_t blocked_at  # when it last began to wait
    cdef int64_t start_ns, next_ns, wait_ns, between_ns
    cdef int64_t cpu_ns  # of this process when the first call began; 0 before
    cdef bint is_opening  # workers start: until the first batch is there
    cdef public object opened  # called at the end of the start, unless it is None
    cdef bint is_serial  # the caller itself fetches, and so waits during the whole call
    cdef object tracer
    cdef public int64_t rows  # that the current call delivers, or ENDED; the call sets it
    cdef unsigned long thread  # that makes the current call; 0 outside of next()

    def __cinit__(self, bint is_serial=False):
        self.is_serial = is_serial

    # Different threads set and read it: each takes a reference of its own before the other can
    # drop the object.
    @property
    def trace(self):
        """None, or a callable that gets a tuple for each call: when it began, how long it took,
        when it last began to wait, how long it waited, all in ns, and ``rows``."""
        with cython.critical_section(self):
            return self.tracer

    @trace.setter
    def trace(self, tracer):
        before = self.tracer  # if it dies, then after the section
        with cython.critical_section(self):
            self.tracer = tracer

    def open(self, opened):
        """Workers are starting: calls count as the start until one delivers a batch."""
        self.is_opening = True
        self.opened = opened

    def run(self, lock, call):
        """Make one call of ``next()``: ``call()``, under ``lock``.

        No signal handler runs between taking the lock and ``call``, or between that and the release
        of the lock.
        """
        lock.acquire()
        try:
            self.thread = PyThread_get_thread_ident()
            self.enter()
            try:
                return call()
            finally:
                self.leave()
        finally:
            self.thread = 0
            lock.release()

    @property
    def is_running_here(self):
        """Whether this thread is inside `run`."""
        return self.thread == PyThread_get_thread_ident()

    cdef void enter(self) noexcept:
        cdef int64_t now = fi_now_ns(), delay
        if self.cpu_ns == 0:
            fi_cpu_times(&self.cpu_ns, &delay)
        if self.left:
            self.between_ns += now - self.left
        self.left = 0
        self.entered = now
        self.blocked = self.blocked_ns = 0
        self.blocked_at = now
        self.rows = 0

    cdef leave(self):
        cdef int64_t now = fi_now_ns(), took = now - self.entered, rows = self.rows
        self.unblock_at(now)
        if self.is_opening:
            self.start_ns += took
        else:
            self.next_ns += took
            self.wait_ns += took if self.is_serial else self.blocked_ns
        if rows > 0:
            self.batches += 1
            self.examples += rows
            if self.is_opening:
                self.is_opening = False
                opened, self.opened = self.opened, None
                if opened is not None:
                    opened()
        self.left = 0 if rows == ENDED else now
        with cython.critical_section(self):
            trace = self.tracer
        if trace is not None:
            trace((self.entered, took, self.blocked_at, self.blocked_ns, rows))
        self.entered = 0

    def after_fork(self):
        """In a forked child: a call of another thread never ends, since that is not there."""
        if self.thread and not self.is_running_here:
            self.entered = self.left = self.thread = 0

    def block(self):
        """The current call begins to wait for a batch."""
        self.blocked = self.blocked_at = fi_now_ns()

    def unblock(self):
        self.unblock_at(fi_now_ns())

    cdef void unblock_at(self, int64_t now) noexcept:
        if self.blocked:
            self.blocked_ns += now - self.blocked
        self.blocked = 0

    def pause(self):
        """What follows, until the next call, is no part of a loop over batches."""
        self.left = 0

    def read(self):
        """Seconds of the start, in ``next()`` after it, waiting in it, and between the calls; CPU
        seconds of this process since the first call."""
        cdef int64_t now = fi_now_ns(), entered = self.entered, blocked = self.blocked
        cdef int64_t under_way = now - entered if entered else 0, waited = self.blocked_ns
        cdef bint is_opening = self.is_opening
        cdef int64_t cpu = self.cpu_ns, delay
        if cpu:
            fi_cpu_times(&cpu, &delay)
        if self.is_serial:
            waited = under_way
        elif blocked:
            waited += now - blocked
        if not entered:
            waited = 0
        return (
            (self.start_ns + is_opening * under_way) / 1e9,
            (self.next_ns + (not is_opening) * under_way) / 1e9,
            (self.wait_ns + (not is_opening) * waited) / 1e9,
            self.between_ns / 1e9,
            (cpu - self.cpu_ns) / 1e9,
        )


def now():
    """The monotonic C clock of all these times, in ns."""
    return fi_now_ns()
