"""Locks of a file that processes share, held by objects which give them back whatever happens.

A lock is noted before it is taken and given back by compiled code, in which no signal handler runs:
so no exception, that of Ctrl-C included, leaves one behind that no object holds.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free
from libc.errno cimport EAGAIN, EMFILE, ENFILE, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset
from posix.unistd cimport close, usleep

from fastiter._clib.csrc cimport (
    FI_EXCLUSIVE, FI_OK, FI_SHARED, FI_UNLOCKED, fi_lock, fi_lock_open, fi_lock_set, fi_now_ns,
    fi_process_id)
from fastiter._clib.memory cimport zeroed

import os
import warnings

cdef enum:
    POLL_US = 200
    ALONE = -1


@cython.no_gc
@cython.linetrace(False)  # tracing would let other threads in between the steps
cdef class FileLocks:
    """Locks numbered 0 .. n - 1. Each excludes other processes, other objects of this class, and
    other holds of this object, in all threads.

    The locks belong to an open file description of this object and process: a forked child that
    uses the object gets one of its own, and none of its parent's locks.

    Parameters
    ----------
    fd : a descriptor of the file, which stays open as long as this object is used.
    n : number of locks; the file needs no bytes for them.
    what : purpose of the locks; begins the message of an OSError if the system has no such locks.
    """

    cdef int source
    cdef int fd
    cdef int pid
    cdef uint64_t n
    cdef int32_t *users  # for each lock, how many holds share it; or ALONE
    cdef str what

    def __cinit__(self, int fd, uint64_t n, str what):
        self.source, self.fd, self.n, self.what = fd, -1, n, what
        self.users = <int32_t *>zeroed(n, sizeof(int32_t))
        self.open()

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)
        PyMem_Free(self.users)

    cdef int open(self) except -1:
        cdef int rc
        memset(self.users, 0, self.n * sizeof(int32_t))
        self.pid = fi_process_id()
        rc = fi_lock_open(self.source, &self.fd)
        if rc != FI_OK:
            self.fd = -1
            system = "" if rc in (EMFILE, ENFILE, ENOMEM) else " (Linux 3.15 or later, with /proc)"
            raise OSError(
                rc, f"{self.what} needs locks of open file descriptions{system}: {os.strerror(rc)}")
        return 0

    cdef int renew(self) except -1:
        """In a forked child: gives up what it has inherited."""
        if self.fd >= 0 and self.pid == fi_process_id():
            return 0
        self.forget()
        return self.open()

    def forget(self):
        """In a forked child: closes the parent's descriptor, which would keep its locks when the
        parent has ended."""
        if self.fd >= 0 and self.pid != fi_process_id():
            close(self.fd)
            self.fd = -1

    @property
    def is_own(self):
        """Whether this process uses them, not only the one that has forked it."""
        return self.fd >= 0 and self.pid == fi_process_id()

    def is_held(self, uint64_t number):
        """Whether a hold of this object has a lock."""
        return self.is_own and number < self.n and self.users[number] != 0

    def hold(self):
        """A new `Hold`, which has no lock yet."""
        return Hold(self)

    def alone(self, uint64_t number, str what, double seconds=10.0):
        """Waits for one lock, that of `what`, alone, and returns the `Hold` that has it. Warns of a
        long wait every `seconds`."""
        cdef int64_t began = fi_now_ns(), said = began, now
        hold = Hold(self)
        while not hold.take(number, True):
            with nogil:
                usleep(POLL_US)
            PyErr_CheckSignals()
            now = fi_now_ns()
            if now - said >= seconds * 1e9:
                said = now
                self.warn_of_wait(number, what, (now - began) / 1e9)
        return hold

    def warn_of_wait(self, uint64_t number, str what, double seconds):
        """Warns that a lock has not been released for long."""
        holders = [str(pid) for pid in self.holders(number) if pid != self.pid]
        by = f"process {', '.join(holders)} holds" if holders else "others hold"
        warnings.warn(
            f"process {self.pid} has waited {seconds:.0f} s for {what}, which {by}, and nothing has "
            "happened meanwhile: is that process stopped?",
            RuntimeWarning,
            stacklevel=2,
        )

    def holders(self, uint64_t number):
        """Process ids of those that have a lock, by what the kernel shows of them; empty where it
        shows nothing, as of processes of other users."""
        if not self.is_own:
            return []
        ino, found = os.fstat(self.fd).st_ino, set()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for entry in os.listdir(f"/proc/{pid}/fdinfo"):
                    with open(f"/proc/{pid}/fdinfo/{entry}") as file:
                        locked = [line.rsplit(None, 3)[1:] for line in file if "OFDLCK" in line]
                    for device, first, last in locked:
                        if device.endswith(f":{ino}") and int(first) <= number <= int(last):
                            found.add(int(pid))
            except (OSError, ValueError):  # it has ended, or belongs to another user
                continue
        return sorted(found)

    cdef int set(self, uint64_t number, fi_lock kind) except -1:
        """Whether the kernel has granted it."""
        cdef int rc = fi_lock_set(self.fd, number, kind)
        if rc == FI_OK:
            return True
        if rc == EAGAIN:
            return False
        raise OSError(rc, f"{self.what}: changing a lock: {os.strerror(rc)}")


@cython.no_gc
@cython.linetrace(False)
cdef class Hold:
    """Locks that one user has; they are given back at the end of a ``with`` block, by `close`, or
    with the object."""

    cdef FileLocks locks
    cdef int pid
    cdef uint64_t *numbers
    cdef Py_ssize_t count, room

    def __cinit__(self, FileLocks locks):
        self.locks = locks
        with cython.critical_section(locks):
            locks.renew()
            self.pid = locks.pid

    def __dealloc__(self):
        if self.locks is not None:
            with cython.critical_section(self.locks):
                self.give_back_all()
        free(self.numbers)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def take(self, uint64_t number, bint alone=False):
        """Takes a lock, if it is to be had at once: shared with others who share it, or alone. One
        that this hold has already is changed; on failure it stays as it is."""
        if number >= self.locks.n:
            raise IndexError(f"lock {number} of {self.locks.n}")
        with cython.critical_section(self.locks):
            self.locks.renew()
            if self.pid != self.locks.pid:  # made in the parent
                self.pid, self.count = self.locks.pid, 0
            return self.change(number, alone)

    cdef bint change(self, uint64_t number, bint alone) except -1:
        cdef int32_t *users = &self.locks.users[number]
        cdef bint is_mine = self.find(number) >= 0
        cdef bint is_granted = False
        if is_mine and (users[0] == ALONE if alone else users[0] > 0):
            return True
        if not is_mine:
            if users[0] == ALONE or (alone and users[0] > 0):
                return False
            self.append(number)
        elif alone and users[0] > 1:
            return False
        try:
            is_granted = (users[0] > 0 and not alone) or self.locks.set(
                number, FI_EXCLUSIVE if alone else FI_SHARED)
        finally:
            if not is_granted and not is_mine:
                self.count -= 1
        if is_granted:
            users[0] = ALONE if alone else (1 if users[0] == ALONE else users[0] + 1)
        return is_granted

    def release(self, uint64_t number):
        """Gives one lock back, if this hold has it."""
        cdef Py_ssize_t place
        with cython.critical_section(self.locks):
            place = self.find(number)
            if place >= 0:
                self.give_back(place)

    def close(self):
        """Gives all locks back."""
        with cython.critical_section(self.locks):
            self.give_back_all()

    cdef void give_back_all(self) noexcept:
        while self.count > 0:
            self.give_back(self.count - 1)

    cdef void give_back(self, Py_ssize_t place) noexcept:
        cdef uint64_t number = self.numbers[place]
        self.count -= 1
        self.numbers[place] = self.numbers[self.count]
        if self.pid != fi_process_id() or self.pid != self.locks.pid:
            return  # the parent has it
        cdef int32_t *users = &self.locks.users[number]
        users[0] = 0 if users[0] == ALONE else users[0] - 1
        if users[0] == 0:
            # The kernel may refuse only what is not there, which leaves no lock either.
            fi_lock_set(self.locks.fd, number, FI_UNLOCKED)

    cdef Py_ssize_t find(self, uint64_t number) noexcept:
        cdef Py_ssize_t place
        for place in range(self.count):
            if self.numbers[place] == number:
                return place
        return -1

    cdef int append(self, uint64_t number) except -1:
        cdef uint64_t *numbers
        if self.count == self.room:
            numbers = <uint64_t *>realloc(
                self.numbers, (2 * self.room + 4) * sizeof(uint64_t))
            if numbers == NULL:
                raise MemoryError()
            self.numbers, self.room = numbers, 2 * self.room + 4
        self.numbers[self.count] = number
        self.count += 1
        return 0
