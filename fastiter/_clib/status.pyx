"""Statuses of the C library as exceptions, its constants, what it tells of time, memory and the
parent process, and what a fork needs."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EBADF, EMFILE, ENFILE, ENOENT, ENOMEM, ENOSPC
from libc.stdint cimport int64_t, uint64_t
from libc.signal cimport SIG_DFL, SIG_IGN, raise_, sig_atomic_t
from posix.signal cimport SA_SIGINFO, sigaction, sigaction_t
from posix.unistd cimport usleep

from fastiter._clib.csrc cimport *

import os
import signal
import threading

from fastiter.errors import OverwrittenError

START_ERROR_BYTES = FI_START_ERROR_BYTES

# In place of the index that a worker reports.
LOADING, FINISHING, STARTING = FI_STAT_LOADING, FI_STAT_FINISHING, FI_STAT_STARTING

# Kinds of packed objects, and the row of those that belong to the batch as a whole.
PACKED_EXAMPLE, PACKED_ERROR = FI_PACKED_EXAMPLE, FI_PACKED_ERROR
PACKED_RESULT, PACKED_FAILURE = FI_PACKED_RESULT, FI_PACKED_FAILURE
WHOLE_BATCH = FI_WHOLE_BATCH

# Codes of rows that have failed, and flags of a finished slot.
ROW_ERROR, ROW_POISON = FI_ERROR, FI_POISON
CONVERTED_FIELDS, CONVERTED_OBJECT = FI_CONVERTED_FIELDS, FI_CONVERTED_OBJECT
CONVERTER_ERROR, FINISH_POISON = FI_CONVERTER_ERROR, FI_FINISH_POISON


cdef enum:
    FREE_NS = 200_000  # a lock was free if to take it and give it back took less
    QUEUE_US = 2000  # until a thread that waited for the lock has it
    MOST_FORK_NS = 500_000_000  # for all calls; one that has begun is waited for


def closed_by_others():
    """The error of an iterator whose descriptors the program has closed."""
    return OSError(
        EBADF,
        "other code of this program has closed file descriptors of this iterator: create a new "
        "iterator, and call os.close() and os.closerange() only for descriptors that you opened",
    )


cdef int refuse(int rc, str what, uint64_t need, uint64_t have) except -1:
    if rc == EBADF:
        raise closed_by_others()
    if rc == FI_E_MEMORY or rc == ENOMEM:
        raise MemoryError(
            f"{what}: {need or 'more'} bytes needed, {have or 'none'} available within the limits of "
            "machine and control group; reduce batch_size, n_prefetch, shared_mem or the examples"
        )
    if rc == ENOSPC:
        raise MemoryError(
            f"{what}: {need} bytes needed, and no room for them in /dev/shm (docker run --shm-size), "
            "which a system without memfd_create takes, or within vm.overcommit_memory; enlarge it, "
            "or reduce batch_size, n_prefetch, shared_mem or the examples"
        )
    if rc == FI_E_FULL:
        raise MemoryError(
            f"{what}: {need} bytes needed, {have} left of the slot's part of the file; reduce "
            "batch_size or shared_mem, or raise RLIMIT_FSIZE"
        )
    if rc == FI_E_SPACE:
        raise MemoryError(
            f"{what}: {need} bytes needed, and no address space left for them in process "
            f"{os.getpid()}; reduce batch_size, n_prefetch or shared_mem, or raise RLIMIT_AS"
        )
    if rc == FI_E_RANGE:
        raise ValueError(f"{what}: a number is out of range")
    if rc == FI_E_CORRUPT:
        raise OverwrittenError(f"{what}: shared memory was overwritten")
    if rc < 0:
        raise RuntimeError(f"{what}: the ring answered {rc}")
    if have:  # memory that was there, and could not be allocated
        what = (f"{what}: fallocate() of {need} bytes of a memfd, or of a file in /dev/shm where there "
                "is no memfd_create, was refused; allow it, or use no worker processes "
                "(n_processes=0, num_workers=0)")
    advice = "; raise RLIMIT_NOFILE (ulimit -n) or close some files" if rc in (EMFILE, ENFILE) else ""
    if rc == ENOENT or rc == EACCES:
        advice = "; allow memfd_create(), or mount /dev/shm, which is used where that call is refused"
    raise OSError(rc, f"{what}: {os.strerror(rc)}{advice}")


def free_pages(int fd, uint64_t offset, uint64_t nbytes):
    """Gives pages of shared memory back."""
    with nogil:
        fi_shm_decommit(fd, offset, nbytes)


def now():
    """Monotonic clock in seconds, the one by which workers report their times."""
    return fi_coarse_ns() / 1e9


def memory_available():
    """Bytes that may still be allocated, within the limits of machine and control group."""
    return fi_memory_available()


def memory_total():
    """Bytes of memory that the machine, or the tightest control group, has in all."""
    return fi_memory_total()


def keep_freed_memory():
    """Has this process keep memory that it frees, for what it allocates next."""
    fi_heap_keep()


def watch_parent(int parent_pidfd, int parent_death_pipe):
    """Starts the native thread that ends this process when its parent is gone."""
    check(fi_watch_parent(parent_pidfd, parent_death_pipe), "starting the watch over the parent")


def die_with_parent(int parent):
    """Asks the kernel to end this process with the thread that started it."""
    check(fi_die_with_parent(parent), "tying the worker to its parent")


def exit_within(double seconds, int status):
    """Starts a native thread that ends this process after so long, unless it has ended by then."""
    check(fi_exit_within(<int64_t>(seconds * 1e9), status), "starting the clock of the last moments")


def exit_unless_renewed(double seconds, int status):
    """Ends this process once it has run for so long since the last call, whatever its threads do."""
    cdef int64_t ns = <int64_t>(seconds * 1e9)
    check(fi_exit_unless_renewed(ns, status), "starting the watch over a connection")


def run_fork_handlers():
    """Does what native libraries do before a fork and after it."""
    cdef bint done
    with nogil:  # another thread runs them
        done = fi_run_fork_handlers()
    if not done:
        fi_fork_for_handlers()  # with the GIL, which `before_fork` may need


def library_changes():
    """Number of times that this process has loaded or unloaded a library."""
    return fi_library_changes()


def can_start_threads(size_t count):
    """Whether this process can start so many more threads now: tried."""
    cdef bint can
    with nogil:
        can = fi_can_start_threads(count)
    return can


def checksum(data, uint64_t start, uint64_t stop, uint64_t seed):
    """Of bytes `start` to `stop` of a buffer: an int in 1 .. 2**64 - 1."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if start > stop or stop > <uint64_t>buffer.len:
            raise ValueError(f"bytes {start} to {stop} of {buffer.len}")
        return fi_checksum(<char *>buffer.buf + start, stop - start, seed)
    finally:
        PyBuffer_Release(&buffer)


# ---- the lock of another library at a fork -------------------------------------------------------

cdef object lock_user = None
cdef list kept = []  # what it returned: to free that might give up the GIL
cdef pthread_t forking_thread
cdef bint is_armed = False


def free_lock_at_fork(take_lock):
    """Has the next fork of this thread find a lock free that other threads take.

    A forked process inherits a lock that another thread holds, and waits for it for ever. Here the
    forking thread calls `take_lock` before the fork, as long as that has to wait. It keeps the GIL
    from then on, since no Python code runs in between, and threads that come back to Python wait
    for the GIL, without the lock. `take_lock` is a builtin that takes the lock and gives it back,
    and keeps the GIL meanwhile. None: no lock, as after a start, which may have failed before the fork.
    """
    global lock_user, forking_thread, is_armed
    kept.clear()
    lock_user, forking_thread, is_armed = take_lock, pthread_self(), take_lock is not None


@cython.linetrace(False)
cdef void before_fork() noexcept:
    # A thread of a native library may fork, too; it has no GIL, which tracing of lines would need.
    if not is_armed or not pthread_equal(forking_thread, pthread_self()):
        return
    cdef int64_t began = fi_now_ns(), since = began
    try:
        kept.append(lock_user())
        while fi_now_ns() - since > FREE_NS and since - began < MOST_FORK_NS:
            usleep(QUEUE_US)  # others may have waited for it, too
            since = fi_now_ns()
            kept.append(lock_user())
    except BaseException:
        pass  # as if there were no such lock


@cython.linetrace(False)
cdef void after_fork() noexcept:
    global is_armed
    is_armed = False


@cython.linetrace(False)
cdef void after_fork_in_child() noexcept:
    after_fork()
    restore_handlers()


check(pthread_atfork(before_fork, after_fork, after_fork_in_child), "preparing forks")


# ---- handlers of signals that wait ---------------------------------------------------------------

cdef enum:
    SIGNALS = 65

cdef int n_deferring = 0
cdef sigaction_t handlers[SIGNALS]
cdef char is_deferred[SIGNALS]
cdef sig_atomic_t has_come[SIGNALS]


cdef void note_signal(int number) noexcept nogil:
    has_come[number] = 1


cdef void restore_handlers() noexcept nogil:
    global n_deferring
    n_deferring = 0
    for number in range(1, SIGNALS):
        if is_deferred[number]:
            is_deferred[number] = 0
            sigaction(number, &handlers[number], NULL)


@cython.final
cdef class Acquired:
    """A block with a lock, if that is free or ``blocking``: ``with Acquired(lock, False) as is_held``.

    Compiled, so that no signal handler comes between taking the lock and the block.
    """

    cdef object lock
    cdef bint blocking, is_held

    def __init__(self, lock, bint blocking):
        self.lock = lock
        self.blocking = blocking

    def __enter__(self):
        self.is_held = self.lock.acquire(self.blocking)
        return self.is_held

    def __exit__(self, *_):
        if self.is_held:
            self.is_held = False
            self.lock.release()


@cython.final
cdef class HandlersDeferred:
    """A block in which no Python handler of a signal runs. Signals that come meanwhile, to whatever
    thread, are handled at its end.

    Python runs a handler in the main thread, after any call. Its exception would lose the
    call's result, such as the id of a process, or would vanish in a hook of a fork.
    """

    cdef bint defers

    def __enter__(self):
        global n_deferring
        cdef sigaction_t own
        self.defers = threading.current_thread() is threading.main_thread()
        if not self.defers:
            return
        callables = []
        if not n_deferring:
            for number in range(1, SIGNALS):
                # Asked of Python only where there is a handler at all, since that takes longer.
                if sigaction(number, NULL, &own) == 0 and own.sa_handler not in (SIG_DFL, SIG_IGN):
                    if callable(signal.getsignal(number)):
                        callables.append(number)
        n_deferring += 1
        for number in callables:
            # In C alone: Python's own functions would run handlers on the way.
            if sigaction(number, NULL, &handlers[number]) == 0:
                own = handlers[number]
                own.sa_handler = note_signal
                own.sa_flags &= ~SA_SIGINFO
                has_come[number] = 0
                is_deferred[number] = sigaction(number, &own, NULL) == 0
        try:
            PyErr_CheckSignals()  # of one that came on the way here
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        global n_deferring
        if not self.defers or not n_deferring:
            return
        n_deferring -= 1
        if not n_deferring:
            restore_handlers()
            for number in range(1, SIGNALS):
                if has_come[number]:
                    has_come[number] = 0
                    raise_(number)
