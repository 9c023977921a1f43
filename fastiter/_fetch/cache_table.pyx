"""The table of a cache: entries by row, which processes that fill and read share."""

import os
import random

import numpy

cimport cython
cimport numpy as cnp
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.errno cimport errno
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from posix.mman cimport (
    MAP_FAILED, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap)
from posix.unistd cimport close

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport PyArray_Type, bytes_of, new_array, set_base

from fastiter._clib.file_locks import FileLocks
from fastiter._util.concurrency import renew_in_child

cnp.import_array()

cdef enum:
    MOST_PARTS = 16

HEAD_BYTES = FI_CACHE_HEAD
cdef object BYTES = numpy.dtype(numpy.uint8)
ALL_ROWS = FI_CACHE_TOKENS  # the lock for clearing or replacing a cache: the number after the tokens


def start_of(uint64_t length):
    """Bytes of header and index of a cache of `length` rows; entries follow."""
    return fi_cache_start(length)


@cython.final
cdef class CacheTable:
    """Entries, which are arrays of bytes, by row.

    A row is claimed by a token, a lock of this object and process in the file: what a process has
    claimed that has ended is free again.

    Parameters
    ----------
    fd : a descriptor of the file, of `start_of(length)` bytes at least; the table uses a duplicate.
    length : number of rows.
    limit : bytes of the file that may be in use.
    takes_memory : whether the file's pages are memory of the machine.
    has_sums : whether entries have checksums, looked at on their first use in each opening.
    is_private : whether the file is read-only: what changes stays in this process.
    """

    def __cinit__(self, int fd, uint64_t length, uint64_t limit, bint takes_memory, bint has_sums,
                  bint is_private):
        cdef void *base
        self.cache.fd = -1
        self.limit, self.is_private = limit, is_private
        self.cache.length, self.cache.limit = length, limit
        self.cache.takes_memory, self.cache.has_sums = takes_memory, has_sums
        self.cache.fd = os.dup(fd)
        self.mapped = fi_cache_start(length)
        base = mmap(NULL, self.mapped, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE if is_private else MAP_SHARED, fd, 0)
        if base == MAP_FAILED:
            raise OSError(errno, f"mapping a cache's index: {os.strerror(errno)}")
        self.cache.words = <atomic_word *>base
        if is_private:
            self.cache.checked = <atomic_word *>calloc(length + 1, sizeof(uint64_t))
            if self.cache.checked == NULL:
                raise MemoryError(f"{8 * length} bytes for what was checked of a read-only cache")
        else:
            self.locks = FileLocks(self.cache.fd, ALL_ROWS + 1, "filling a cache")
        renew_in_child(self)

    def __dealloc__(self):
        fi_cache_unmap(&self.cache)
        free(<void *>self.cache.checked)
        if self.cache.words != NULL:
            munmap(<void *>self.cache.words, self.mapped)
        if self.cache.fd >= 0:
            close(self.cache.fd)

    def _after_fork(self):
        """In a forked child: its parent's token is not the child's."""
        if self.locks is not None:
            self.locks.forget()

    @property
    def stamp(self):
        """A number of this opening."""
        return fi_cache_load(&self.cache, FI_CACHE_STAMP)

    @property
    def full(self):
        """0; 1 at the limit; 2 where memory is short; 3 where a write was refused."""
        return fi_cache_load(&self.cache, FI_CACHE_FULL)

    def begin(self, uint64_t end, uint64_t used):
        """First words of an opening: new entries go behind `end`, and `used` bytes of the file are
        in use."""
        end = (end + FI_CACHE_HEAD - 1) // FI_CACHE_HEAD * FI_CACHE_HEAD
        for word in range(FI_CACHE_END, FI_CACHE_KEYS):
            fi_cache_put(&self.cache, word, 0)
        fi_cache_put(&self.cache, FI_CACHE_END, end)
        fi_cache_put(&self.cache, FI_CACHE_BASE, end - used)
        fi_cache_put(&self.cache, FI_CACHE_COMMITTED, used)
        fi_cache_put(&self.cache, FI_CACHE_STAMP, self.new_key())

    cdef uint64_t new_key(self):
        return int.from_bytes(os.urandom(5), "little") or 1

    # ---- entries

    def read(self, uint64_t row, bint is_mapped):
        """The word of a row, and a view of its entry's content behind the fields; None if there is none.
        The view is of a copy, which is writable, or of the pages themselves: of memory, where `has`
        tells after a look whether all of it was the row's, and of a file if `is_mapped`."""
        cdef fi_cache_entry head
        cdef int rc
        cdef uint64_t at = fi_cache_row(row), word = fi_cache_load(&self.cache, at)
        cdef const char *pages = NULL
        cdef cnp.npy_intp size
        if not fi_cache_is_place(word):
            return None
        array = None
        is_mapped = is_mapped or not self.cache.has_sums
        rc = fi_cache_head(&self.cache, row, word, &head)
        if rc == FI_CACHE_FOUND and (not is_mapped or not fi_cache_is_checked(&self.cache, row, word)):
            array = self.copy(word, &head, &rc)
        if rc == FI_CACHE_FOUND and is_mapped:
            pages = fi_cache_map(&self.cache, head.offset, FI_CACHE_HEAD + head.size)
            if pages != NULL:
                size = <cnp.npy_intp>(head.size - head.fields)
                Py_INCREF(BYTES)  # the constructor takes it over, set_base the table
                array = new_array(&PyArray_Type, <cnp.PyArray_Descr *>BYTES, 1, &size, NULL,
                                  <char *>pages + FI_CACHE_HEAD + head.fields, 0, NULL)
                Py_INCREF(self)
                set_base(<cnp.PyArrayObject *>array, <PyObject *>self)
                return word, memoryview(array)
            array = self.copy(word, &head, &rc)  # no address space is left
        if rc == FI_CACHE_BAD:
            self.drop(row, word)
        return (word, memoryview(array)[head.fields:]) if rc == FI_CACHE_FOUND else None

    cdef object copy(self, uint64_t word, const fi_cache_entry *head, int *rc):
        array = numpy.empty(head.size, numpy.uint8)
        cdef char *target = bytes_of(<cnp.PyArrayObject *>array)
        with nogil:
            rc[0] = fi_cache_read(&self.cache, word, head, target)
        return array

    def has(self, uint64_t row, uint64_t word):
        """Whether a row still has a word: what was read of its entry was whole."""
        return fi_cache_has(&self.cache, row, word)

    def drop(self, uint64_t row, uint64_t word):
        """Empties a row that is damaged, if it still has that word."""
        fi_cache_drop(&self.cache, row, word)

    def stores(self, uint64_t row):
        """Whether it may be worth while to prepare an entry for `store`."""
        return not self.is_private and fi_cache_has_room(&self.cache) and (
            not fi_cache_is_place(fi_cache_load(&self.cache, fi_cache_row(row))))

    def store(self, uint64_t row, uint64_t size, start, list buffers,
              uint64_t signature=0, uint64_t fields=0):
        """Stores a row, if no other process does: an entry of `size` bytes. `start` is a uint8 array
        with its first ones, of which HEAD_BYTES are written over; the next ones may be `fields`, which
        have a signature. `buffers` are pairs of an offset, ascending, and a contiguous buffer. Returns
        whether it is stored by this call; no signal handler of Python's runs between the claim and
        its end."""
        cdef uint64_t at = fi_cache_row(row), word = fi_cache_load(&self.cache, at), claim
        cdef uint64_t begun
        cdef fi_cache_entry *head
        cdef fi_cache_part parts[MOST_PARTS]
        cdef int rc, n = 0
        if self.cache.has_sums or len(buffers) > MOST_PARTS or not all(
                buffer.nbytes for _, buffer in buffers):
            joined = numpy.zeros(size, numpy.uint8)
            joined[:len(start)] = start
            for offset, buffer in buffers:
                joined[offset:offset + buffer.nbytes] = buffer
            start, buffers = joined, []
        arrays = [numpy.frombuffer(buffer, numpy.uint8) for _, buffer in buffers]
        for n in range(len(arrays)):
            parts[n].bytes = bytes_of(<cnp.PyArrayObject *>arrays[n])
            parts[n].offset, parts[n].size = buffers[n][0], len(arrays[n])
        head = <fi_cache_entry *>bytes_of(<cnp.PyArrayObject *>start)
        begun, n = len(start), len(arrays)
        hold = self.own_token()
        if hold is None or fi_cache_is_place(word):
            return False
        self.n_claims += 1
        claim = fi_cache_claim_of(self.token, self.key, self.n_claims)
        head.size, head.signature, head.fields = size - FI_CACHE_HEAD, signature, fields
        if word != 0:
            token = fi_cache_token(word)
            dead = self.locks.hold()
            # As long as the lock is held here, no other process gets the token.
            if fi_cache_load(&self.cache, FI_CACHE_KEYS + <uint64_t>token) == fi_cache_key(word) and (
                    not dead.take(token, True)):
                return False
            if not fi_cache_swap(&self.cache, at, word, 0):
                return False
            dead.close()
        if not fi_cache_swap(&self.cache, at, 0, claim):
            return False
        with nogil:
            rc = fi_cache_store(&self.cache, row, claim, head, begun, parts, n)
        if rc == FI_CACHE_FOUND:
            fi_cache_add(&self.cache, FI_CACHE_STORED, 1)
        return rc == FI_CACHE_FOUND

    cdef object own_token(self):
        """The hold of this process' token; None if there are too many processes."""
        cdef uint64_t token, key
        if self.locks is None:
            return None
        if self.hold is not None and self.pid == fi_process_id() and self.locks.is_own:
            return self.hold
        hold = self.locks.hold()
        first = random.Random(os.urandom(8)).randrange(FI_CACHE_TOKENS)
        for number in range(FI_CACHE_TOKENS):
            token = (first + number) % FI_CACHE_TOKENS
            if hold.take(token, True):
                key = self.new_key()
                fi_cache_put(&self.cache, FI_CACHE_KEYS + token, key)
                self.hold, self.token, self.key = hold, token, key
                self.pid = fi_process_id()
                return hold
        return None

    def clear(self):
        """Empties all rows and gives their space back, one process at a time: each counts out what
        all have stored."""
        with self.locks.alone(ALL_ROWS, "its turn to clear a cache"), nogil:
            fi_cache_clear(&self.cache)

    def is_first_to_tell(self, uint64_t bit):
        """Whether no process has told this yet in this opening."""
        cdef uint64_t told
        while True:
            told = fi_cache_load(&self.cache, FI_CACHE_TOLD)
            if told & bit:
                return False
            if fi_cache_swap(&self.cache, FI_CACHE_TOLD, told, told | bit):
                return True

    # ---- counts

    def count_hit(self):
        fi_cache_add(&self.cache, FI_CACHE_HITS, 1)

    def count_miss(self, bint failed, bint stored, double seconds):
        """Counts a fetch of the dataset; one that is stored has been counted by `store`."""
        if failed or not stored:
            fi_cache_add(&self.cache, FI_CACHE_FAILED if failed else FI_CACHE_UNCACHED, 1)
        fi_cache_add(&self.cache, FI_CACHE_FETCH_NS, <uint64_t>(max(seconds, 0.0) * 1e9))

    def present(self):
        """Whether each row is stored: bool (length,)."""
        # Of a memoryview of Cython's, the code would be a third of this module.
        words = numpy.frombuffer(PyMemoryView_FromMemory(
            <char *>(self.cache.words + FI_CACHE_INDEX), 16 * self.cache.length, PyBUF_READ),
            numpy.uint64)
        return words[::2] >> numpy.uint64(63) != 0

    def counts(self):
        """Numbers by name."""
        cdef uint64_t word = FI_CACHE_HITS
        found = {}
        for name in ("hits", "stored", "failed", "uncached", "damaged", "fetch_seconds"):  # as in C
            found[name] = fi_cache_load(&self.cache, word)
            word += 1
        found["fetch_seconds"] /= 1e9
        used = fi_cache_load(&self.cache, FI_CACHE_END) - fi_cache_load(&self.cache, FI_CACHE_BASE)
        committed = fi_cache_load(&self.cache, FI_CACHE_COMMITTED)
        return {**found, "bytes": used, "lost": max(0, int(used) - int(committed))}
