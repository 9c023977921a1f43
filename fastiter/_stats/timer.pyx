"""Timer of the loop: time in ``next()``, of waiting in it, and between its calls.

It reads the clock twice per batch: when ``next()`` begins and when it ends.
"""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int64_t

from fastiter._clib.csrc cimport fi_cpu_times, fi_now_ns

ENDED = CALL_ENDED  # as the rows of a call: the iteration is over


cdef class Timer:
    """Times of the thread that iterates.

    `Loop` tells when a call of ``next()`` begins and ends. Any thread may call the other methods at
    any time; none of them blocks.
    """

    def __cinit__(self, bint is_serial=False):
        self.is_serial = is_serial

    # Different threads set and read it: each takes a reference of its own before the other can
    # drop the object.
    @property
    def trace(self):
        """None, or a C function that gets a tuple for each call: when it began, how long it took,
        when it last began to wait, how long it waited, all in ns, and its rows."""
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

    cdef bint is_inside(self) noexcept:
        """Whether this thread is in a call of ``next()``."""
        return self.thread == PyThread_get_thread_ident()

    cdef void enter(self) noexcept:
        cdef int64_t now = fi_now_ns()
        self.thread = PyThread_get_thread_ident()
        if self.cpu_ns == 0:
            fi_cpu_times(&self.cpu_ns, NULL)
        if self.left:
            self.between_ns += now - self.left
        self.left = 0
        self.entered = now
        self.blocked = self.blocked_ns = 0
        self.blocked_at = now
        self.rows = 0

    cdef int note_start(self) except -1:
        """The first batch is there, and will be delivered."""
        if self.is_opening and self.opened is not None:
            self.opened()
        return 0

    cdef leave(self):
        """The call ends. Runs no Python."""
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
            self.is_opening = False
            self.opened = None
        self.left = 0 if rows == ENDED else now
        with cython.critical_section(self):
            trace = self.tracer
        if trace is not None:
            trace((self.entered, took, self.blocked_at, self.blocked_ns, rows))
        self.entered = 0
        self.thread = 0

    def after_fork(self):
        """In a forked child: a call of another thread never ends, since that is not there."""
        if self.thread and not self.is_inside():
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
        """Do not count the time until the next call as part of a loop over batches."""
        self.left = 0

    def read(self):
        """Seconds of the start, in ``next()`` after it, waiting in it, and between the calls; CPU
        seconds of this process since the first call."""
        cdef int64_t now = fi_now_ns(), entered = self.entered, blocked = self.blocked
        cdef int64_t under_way = now - entered if entered else 0, waited = self.blocked_ns
        cdef bint is_opening = self.is_opening
        cdef int64_t cpu = self.cpu_ns
        if cpu:
            fi_cpu_times(&cpu, NULL)
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
