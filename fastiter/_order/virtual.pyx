"""What is computed where it is read, from a seed and a place: orders, and the seeds of examples."""

import operator

from cpython.slice cimport PySlice_AdjustIndices, PySlice_Unpack
from libc.stdint cimport int64_t, uint32_t, uint64_t
cimport numpy as cnp

from fastiter._clib.csrc cimport (
    FI_OK,
    FI_VIRTUAL_MAX,
    FI_VIRTUAL_ROUNDS,
    fi_example_words,
    fi_seed,
    fi_virtual,
    fi_virtual_fill,
    fi_virtual_fill_by,
    fi_virtual_init,
)

from fastiter._util.arguments import checked_int

cnp.import_array()

cdef enum:
    # Below, the call is over sooner than another thread could use the interpreter.
    RELEASE_FROM = 1 << 12

# Up to here an order is drawn, exactly uniform, and kept; part of what a seed gives.
TABLE_MAX = 1 << 16
LENGTH_MAX = FI_VIRTUAL_MAX
ROUNDS = FI_VIRTUAL_ROUNDS


cdef cnp.ndarray empty_order(Py_ssize_t n):
    return cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)


cdef class VirtualOrder:
    cdef fi_virtual order
    cdef Py_ssize_t size
    cdef readonly tuple words
    cdef readonly uint64_t stream
    cdef object table  # int64[size], or None if the order is computed

    def __init__(self, n, words, stream):
        cdef fi_seed seed
        n = checked_int("n", n, minimum=0, maximum=LENGTH_MAX)
        self.size = n
        self.words = words
        self.stream = stream
        self.table = None
        if n <= TABLE_MAX:
            from fastiter._order import permutation  # here, since it imports numpy.random

            self.table = permutation.fast_permutation(n, words, stream)
            return
        seed.words[0], seed.words[1] = words
        fi_virtual_init(&self.order, n, &seed, stream, FI_VIRTUAL_ROUNDS)

    def __len__(self):
        return self.size

    @property
    def index_bound(self):
        return self.size

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop, step, count
        cdef int64_t index
        if not isinstance(key, slice):
            start = operator.index(key)
            if not -self.size <= start < self.size:
                raise IndexError(f"position {start} is outside an order of {self.size}")
            start += self.size if start < 0 else 0
            if self.table is not None:
                return int(self.table[start])
            fi_virtual_fill(&self.order, start, 1, &index)
            return index
        PySlice_Unpack(key, &start, &stop, &step)
        if step != 1:
            raise ValueError(f"a virtual order has slices of step 1 only, not {step}")
        count = PySlice_AdjustIndices(self.size, &start, &stop, step)
        return self.part(start, count)

    def checked_part(self, start, count):
        start = checked_int("start", start, minimum=0)
        count = self.size - start if count is None else checked_int("count", count, minimum=0)
        if not 0 <= count <= self.size - start:
            raise ValueError(
                f"the part must lie in the order of {self.size} indices, but start is {start} and "
                f"count {count}"
            )
        return self.part(start, count)

    cdef cnp.ndarray part(self, Py_ssize_t start, Py_ssize_t count):
        if self.table is not None:
            return self.table[start:start + count].copy()
        cdef cnp.ndarray out = empty_order(count)
        cdef int64_t *data = <int64_t *>cnp.PyArray_DATA(out)
        if count < RELEASE_FROM:
            fi_virtual_fill(&self.order, start, count, data)
        else:
            with nogil:
                fi_virtual_fill(&self.order, start, count, data)
        return out

    def __reduce__(self):
        return VirtualOrder, (self.size, self.words, self.stream)

    def __eq__(self, other):
        if type(other) is not VirtualOrder:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.size, self.words, self.stream))

    def __repr__(self):
        return f"VirtualOrder({self.size}, {self.words}, {self.stream})"


def fill_by(n, words, stream, start, count, isa, rounds):
    cdef fi_seed seed
    cdef fi_virtual order
    cdef uint64_t first = start
    cdef Py_ssize_t size = count
    cdef int level = isa, rc

    seed.words[0], seed.words[1] = words
    rc = fi_virtual_init(&order, n, &seed, stream, rounds)
    if rc != FI_OK:
        raise ValueError(f"fi_virtual_init refuses: {rc}")
    cdef cnp.ndarray out = empty_order(size)
    rc = fi_virtual_fill_by(&order, level, first, size, <int64_t *>cnp.PyArray_DATA(out))
    if rc != FI_OK:
        raise ValueError(f"fi_virtual_fill_by refuses: {rc}")
    return out


def example_words(words, epoch, index):
    cdef fi_seed seed
    cdef cnp.npy_intp four = 4
    cdef cnp.ndarray made = cnp.PyArray_EMPTY(1, &four, cnp.NPY_UINT64, 0)

    seed.words[0], seed.words[1] = words
    fi_example_words(&seed, epoch, index, <uint64_t *>cnp.PyArray_DATA(made))
    return made
