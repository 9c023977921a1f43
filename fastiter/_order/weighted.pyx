"""Draws of items with weights, in C."""

from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
cimport numpy as cnp

from fastiter._clib.csrc cimport (
    FI_E_FULL,
    FI_ISA_AVX2,
    FI_OK,
    FI_WEIGHTED_MAX,
    fi_alias,
    fi_alias_build,
    fi_alias_draw,
    fi_arrivals,
    fi_minus_log,
    fi_race_horizon,
    fi_race_rank,
    fi_race_run,
    fi_race_run_by,
    fi_seed,
)

import numpy as np

cnp.import_array()

WEIGHTS_MAX = FI_WEIGHTED_MAX
ISA_AVX2 = FI_ISA_AVX2

cdef enum:
    SPARE = 4096  # room for more arrivals than were estimated


cdef fi_seed seed_of(tuple words):
    cdef fi_seed seed
    seed.words[0], seed.words[1] = words
    return seed


cdef cnp.ndarray empty_order(Py_ssize_t n):
    return cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)


cdef class AliasTable:
    cdef fi_alias *cells
    cdef uint32_t n

    def __cinit__(self, const double[::1] weights):
        cdef double *shares
        cdef uint32_t *stack
        self.cells = NULL
        if not 1 <= weights.shape[0] <= FI_WEIGHTED_MAX:
            raise ValueError(f"there must be 1 to {FI_WEIGHTED_MAX} weights")
        self.n = <uint32_t>weights.shape[0]
        self.cells = <fi_alias *>malloc(self.n * sizeof(fi_alias))
        shares = <double *>malloc(self.n * sizeof(double))
        stack = <uint32_t *>malloc(self.n * sizeof(uint32_t))
        try:
            if self.cells == NULL or shares == NULL or stack == NULL:
                raise MemoryError(f"no memory for a table of {self.n} weights")
            with nogil:
                fi_alias_build(self.cells, &weights[0], self.n, shares, stack)
        finally:
            free(shares)
            free(stack)

    def __dealloc__(self):
        free(self.cells)

    def draw(self, words, stream, count):
        cdef fi_seed seed = seed_of(words)
        cdef uint64_t number = stream
        cdef Py_ssize_t size = count
        cdef cnp.ndarray out = empty_order(size)
        cdef int64_t *data = <int64_t *>cnp.PyArray_DATA(out)
        with nogil:
            fi_alias_draw(self.cells, self.n, &seed, number, data, size)
        return out


cdef class Race:
    cdef readonly object weights  # keeps what the view sees
    cdef const double[::1] view
    cdef uint32_t n

    def __init__(self, weights):
        if not 1 <= len(weights) <= FI_WEIGHTED_MAX:
            raise ValueError(f"there must be 1 to {FI_WEIGHTED_MAX} weights")
        # Times are as long as weights are small: of the largest weight they cannot overflow.
        self.weights = np.ascontiguousarray(weights / np.max(weights), dtype=np.float64)
        self.view = self.weights
        self.n = <uint32_t>len(weights)

    def draw(self, words, stream, count):
        cdef uint32_t k = count, n = self.n
        cdef double horizon
        cdef fi_seed seed = seed_of(words)
        cdef uint64_t number = stream
        cdef const double *weights = &self.view[0]
        cdef fi_arrivals arrivals = fi_arrivals(NULL, NULL, 0, 0)
        cdef uint64_t *keys = NULL
        cdef int64_t *data
        cdef int rc = FI_E_FULL
        if k > n:
            raise ValueError(f"{k} of {n} items cannot be drawn without replacement")
        cdef cnp.ndarray out = empty_order(k)
        data = <int64_t *>cnp.PyArray_DATA(out)
        try:
            with nogil:
                horizon = fi_race_horizon(weights, n, k)
            room = n if horizon == INFINITY else min(n, 2 * <uint64_t>k + SPARE)
            while rc != FI_OK or arrivals.count < k:
                arrivals_open(&arrivals, room)
                with nogil:
                    rc = fi_race_run(weights, n, &seed, number, horizon, &arrivals)
                # Where this is done again, the estimate was of a sample that tells little.
                if rc == FI_E_FULL:
                    room = min(n, 4 * <uint64_t>room)
                else:
                    horizon, room = INFINITY, n
            keys = <uint64_t *>malloc(2 * <size_t>arrivals.count * sizeof(uint64_t))
            if keys == NULL and arrivals.count != 0:
                raise MemoryError(f"no memory to draw {k} of {n} items")
            with nogil:
                fi_race_rank(&arrivals, k, keys, data)
        finally:
            arrivals_close(&arrivals)
            free(keys)
        return out


cdef int arrivals_open(fi_arrivals *arrivals, uint32_t room) except -1:
    """Makes room for so many, and forgets those who arrived before."""
    arrivals_close(arrivals)
    arrivals.times = <double *>malloc(room * sizeof(double))
    arrivals.items = <uint32_t *>malloc(room * sizeof(uint32_t))
    arrivals.room = room
    if arrivals.times == NULL or arrivals.items == NULL:
        raise MemoryError(f"no memory for {room} arrivals")
    return 0


cdef void arrivals_close(fi_arrivals *arrivals) noexcept:
    free(arrivals.times)
    free(arrivals.items)
    arrivals[0] = fi_arrivals(NULL, NULL, 0, 0)


def arrivals_by(const double[::1] weights, words, stream, horizon, isa):
    cdef uint32_t n = <uint32_t>weights.shape[0]
    cdef fi_seed seed = seed_of(words)
    cdef fi_arrivals arrivals = fi_arrivals(NULL, NULL, 0, 0)
    cdef uint32_t i
    try:
        arrivals_open(&arrivals, n)
        rc = fi_race_run_by(isa, &weights[0], n, &seed, stream, horizon, &arrivals)
        if rc != FI_OK:
            raise ValueError(f"fi_race_run_by refuses: {rc}")
        return [(arrivals.times[i], arrivals.items[i]) for i in range(arrivals.count)]
    finally:
        arrivals_close(&arrivals)


def minus_log(x):
    return fi_minus_log(x)
