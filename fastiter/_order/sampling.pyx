"""Mixtures of sources, and batches of like lengths, planned in C."""

cimport cython
cimport numpy as cnp
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport bytes_of, data_of

import threading

import numpy as np

from fastiter._order.permutation import fast_permutation
from fastiter._util.concurrency import renew_in_child

cnp.import_array()

cdef enum:
    BLOCK_SLOTS = 4096  # slots between two kept counts of draws

cdef enum:
    # What a stream of an epoch's seed is for.
    ROWS = 0
    STEPS = 1
    TURNS = 2

cdef uint64_t NOWHERE = UINT64_MAX

BLOCK = BLOCK_SLOTS
OPEN = FI_MIXTURE_OPEN
SOURCES_MAX = FI_MIXTURE_SOURCES_MAX
SLOTS_MAX = FI_MIXTURE_SLOTS_MAX
TOTAL_MAX = FI_MIXTURE_TOTAL_MAX


@cython.final
cdef class Interleaving:
    """The source of each slot of a stretch (csrc/order/fi_mixture.h), found as it is read.

    ``weights`` add up to ``total`` and ``lags`` to 0; the stretch has ``size`` slots, and ``last`` slots
    are left until the end of its epoch. Takes 8 bytes per source for each BLOCK slots that were
    read. Threads may share it.

    Attributes
    ----------
    open_slots : list of int
        The slots, from 0, that draws which need not happen have to fill, of those read so far.
    """

    cdef fi_mixture mixture
    cdef uint64_t size
    cdef object lock, __weakref__
    cdef list starts  # of each block: how often each source was drawn before, int64[sources]
    cdef readonly list open_slots

    def __cinit__(self, list weights, total, list lags, size, last):
        cdef Py_ssize_t count = len(weights), i
        self.mixture.count = <uint32_t>count
        self.mixture.total = total
        self.mixture.last = last
        self.mixture.sources = <fi_mixture_source *>calloc(count, sizeof(fi_mixture_source))
        self.mixture.ready = <uint64_t *>calloc(2 * count, sizeof(uint64_t))
        if self.mixture.sources == NULL or self.mixture.ready == NULL:
            raise MemoryError(f"no memory for {count} sources")
        self.mixture.waiting = self.mixture.ready + count
        for i in range(count):
            self.mixture.sources[i].weight = weights[i]
            self.mixture.sources[i].lag = lags[i]
        self.size = size
        self.starts = [np.zeros(count, dtype=np.int64)]
        self.open_slots = []
        fi_mixture_start(&self.mixture)
        self._after_fork()
        renew_in_child(self)

    def __dealloc__(self):
        free(self.mixture.sources)
        free(self.mixture.ready)

    def _after_fork(self):
        """In a forked child: another thread, which may hold the lock, does not exist there."""
        self.lock = threading.Lock()
        self.mixture.slot = NOWHERE

    def block(self, number):
        """Slots from ``number * BLOCK`` on: their sources, uint16 array, with OPEN where the source is
        to be chosen, and how often each source was drawn before, int64 array."""
        cdef Py_ssize_t known = 0
        while True:
            with self.lock:
                known = min(<Py_ssize_t>number, len(self.starts) - 1)
                self.seek(known)
                sources = self.run()
            if known == number:
                return sources, self.starts[known].copy()
            PyErr_CheckSignals()

    def drawn(self):
        """Number of draws of each source in the stretch, without open slots: int64 array."""
        last = (self.size - 1) // BLOCK_SLOTS
        self.block(last)
        return self.starts[last + 1].copy()

    cdef seek(self, Py_ssize_t number):
        """Make the block of that number, whose start is known, the next one."""
        cdef const int64_t *drawn = data_of(self.starts[number])
        cdef uint32_t i
        if self.mixture.slot == <uint64_t>number * BLOCK_SLOTS:
            return
        for i in range(self.mixture.count):
            self.mixture.sources[i].drawn = drawn[i]
        self.mixture.slot = <uint64_t>number * BLOCK_SLOTS
        fi_mixture_start(&self.mixture)

    cdef run(self):
        cdef uint64_t first = self.mixture.slot, count, k
        cdef int64_t *drawn
        cdef uint16_t *sources
        cdef uint32_t i
        count = min(<uint64_t>BLOCK_SLOTS, self.size - first)
        out = np.empty(count, dtype=np.uint16)
        sources = <uint16_t *>start_of(out)
        with nogil:
            fi_mixture_run(&self.mixture, count, sources)
        if <uint64_t>len(self.starts) == first // BLOCK_SLOTS + 1:  # for the first time
            after = np.empty(self.mixture.count, dtype=np.int64)
            drawn = data_of(after)
            for i in range(self.mixture.count):
                drawn[i] = self.mixture.sources[i].drawn
            self.open_slots += [first + k for k in range(count) if sources[k] == FI_MIXTURE_OPEN]
            self.starts.append(after)
        return out


def place(sources, counts, part_of):
    """The indices that are drawn from ``sources``, uint16 array (n,), as an int64 array (n,).

    ``counts``, int64 array (sources,), says how often each source was drawn before, and afterwards how often
    after. ``part_of(source, start, count)`` gives the indices of these draws of a source.
    """
    drawn = np.bincount(sources, minlength=len(counts))
    parts = [part_of(source, int(counts[source]), int(drawn[source]))
             for source in np.flatnonzero(drawn).tolist()]
    counts += drawn
    # The places of each source's slots, in order, have its indices.
    out = np.empty(len(sources), dtype=np.int64)
    out[np.argsort(sources, kind="stable")] = np.concatenate(parts)
    return out


# ---- batches of like lengths ---------------------------------------------------------------------


def plan_buckets(lengths, rows, words, *, most_rows, most_tokens, num_ranks, window, drop_last):
    """Batches of like lengths (csrc/order/fi_buckets.h).

    Parameters
    ----------
    lengths : int32 or int64 array, contiguous, of all rows, none negative or above 2**32 - 1
    rows : int64 array (n,), or None for all
    words : the seed
    most_rows, most_tokens : int or None; with both limits of a batch

    Returns
    -------
    order : uint32 array (k,), k <= n
    cuts : int64 array (batches + 1,)

    Takes 8 bytes for each row besides the result's cuts, most of them until it returns.
    """
    cdef Py_ssize_t n = len(lengths if rows is None else rows), first = 0, count, whole, windows, k
    cdef fi_buckets buckets
    cdef uint64_t carried = 0
    cdef const int64_t *order
    cdef uint32_t *starts
    cdef int64_t *places
    cdef fi_seed seed
    cdef bint last

    if n == 0:
        return np.empty(0, dtype=np.uint32), np.zeros(1, dtype=np.int64)
    buckets.lengths = start_of(lengths)
    buckets.wide = lengths.dtype.itemsize == 8
    buckets.most_rows = UINT64_MAX if most_rows is None else most_rows
    buckets.most_tokens = UINT64_MAX if most_tokens is None else most_tokens
    buckets.num_ranks = num_ranks
    buckets.drops = drop_last
    buckets.room = buckets.carried = buckets.written = buckets.batches = 0
    buffer = np.empty(2 * n, dtype=np.uint32)
    shuffled = buffer.view(np.int64)
    fast_permutation(n, words, ROWS, out=shuffled)
    if rows is not None:
        shuffled[:] = rows[shuffled]
    marks = np.zeros(n // 8 + 1, dtype=np.uint8)
    order = data_of(shuffled)
    buckets.out, buckets.marks = <uint32_t *>start_of(buffer), <uint8_t *>start_of(marks)
    windows = max(1, n // window)
    keys = spare = kept = np.empty(0, dtype=np.uint64)
    for k in range(windows):
        last = k == windows - 1
        count = whole = n * (k + 1) // windows - first
        if buckets.carried + count + buckets.num_ranks > buckets.room:
            kept = as_keys(&buckets)
            buckets.room = buckets.carried + count + buckets.num_ranks
            keys, spare = np.empty((2, buckets.room), dtype=np.uint64)
            keys[:len(kept)] = kept
            point(&buckets, keys, spare)
        if last and drop_last:
            # Of the rows that make no step now, the last in random order are left out.
            kept, carried = as_keys(&buckets), buckets.carried
            left = fi_buckets_window(&buckets, order + first, count, True)
            count -= min(<Py_ssize_t>left, count)
            keys[:len(kept)] = kept
            point(&buckets, keys, spare)
            buckets.carried = carried
        with nogil:
            fi_buckets_window(&buckets, order + first, count, False)
        if count < whole and buckets.batches == 0:  # those left out were needed for a batch
            keys[:len(kept)] = kept
            point(&buckets, keys, spare)
            buckets.carried = carried
            fi_buckets_window(&buckets, order + first, whole, False)
        first += count
        PyErr_CheckSignals()
    if not drop_last:
        with nogil:
            fi_buckets_finish(&buckets)
    del keys, spare, kept
    steps = buckets.batches // num_ranks
    cuts = np.empty(buckets.batches + 1, dtype=np.int64)
    fast_permutation(steps, words, STEPS, out=cuts[len(cuts) - steps:])
    begins = np.empty(steps + 1, dtype=np.uint32)
    places, starts = data_of(cuts), <uint32_t *>start_of(begins)
    seed.words[0], seed.words[1] = words
    seed = fi_seed_mixed(&seed, TURNS)
    if buckets.batches:
        with nogil:
            fi_buckets_arrange(&buckets, &seed, starts, buckets.out + n, places)
    else:
        cuts[0] = 0
    buffer[:buckets.written] = buffer[n:n + buckets.written]
    del shuffled
    buffer.resize(buckets.written, refcheck=False)
    return buffer, cuts


cdef object as_keys(const fi_buckets *buckets):
    """A copy of the rows that are carried."""
    kept = np.empty(buckets.carried, dtype=np.uint64)
    if buckets.carried:
        memcpy(start_of(kept), buckets.keys, buckets.carried * sizeof(uint64_t))
    return kept


cdef void point(fi_buckets *buckets, object keys, object spare) noexcept:
    buckets.keys, buckets.spare = <uint64_t *>start_of(keys), <uint64_t *>start_of(spare)


cdef inline char *start_of(object array) noexcept:
    return bytes_of(<cnp.PyArrayObject *>array)
