"""Orders: drawn in C from NumPy's bit generators, or by the fast shuffle from a seed."""

import operator
from collections.abc import Mapping

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t, uint32_t, uint64_t
cimport numpy as cnp

from fastiter._clib.csrc cimport (
    FI_E_MEMORY,
    FI_OK,
    FI_SHUFFLE_MAX,
    fi_bitgen,
    fi_order_permutation,
    fi_seed,
    fi_seed_from_entropy,
    fi_shuffle,
    fi_shuffle_by,
    fi_shuffle_isa,
    fi_shuffle_plan,
    fi_shuffle_threads,
)

import numpy as np
from numpy.random import RandomState, SeedSequence, mtrand

from fastiter._util.arguments import checked_int
from fastiter._util.cpus import whole_cpus

cnp.import_array()

# Below, the call is over sooner than another thread could use the interpreter.
cdef enum:
    RELEASE_FROM = 1 << 14

MOST_THREADS = 8  # by default: memory is the limit from there on


cdef cnp.ndarray empty_order(Py_ssize_t n):
    return cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&n, cnp.NPY_INT64, 0)


def permutation(random_state, n):
    if random_state is None:
        random_state = mtrand._rand
    # A subclass may draw differently, and NumPy has its own answer to a negative n.
    if type(random_state) is not RandomState or n < 0:
        return random_state.permutation(n)

    cdef Py_ssize_t length = n
    cdef cnp.ndarray order = empty_order(length)
    cdef int64_t *data = <int64_t *>cnp.PyArray_DATA(order)
    # Held here for the length of the call: the state's owner can be given another one meanwhile.
    bit_generator = random_state._bit_generator
    cdef const fi_bitgen *generator = <const fi_bitgen *>PyCapsule_GetPointer(
        bit_generator.capsule, "BitGenerator"
    )
    with bit_generator.lock:
        with nogil:
            fi_order_permutation(generator, data, length)
    return order


def entropy_of(seed):
    """32-bit words, lowest first, in one array: what SeedSequence makes of ints."""
    try:
        values = [operator.index(seed)]
    except TypeError:
        # What has places: a set, or the keys of a dict, has no order to rely upon.
        has_places = hasattr(seed, "__getitem__") and hasattr(seed, "__len__")
        if not has_places or isinstance(seed, (str, bytes, Mapping)):
            raise TypeError(
                "seed must be an int, a numpy.random.SeedSequence or a sequence of ints, not "
                f"{type(seed).__qualname__}"
            ) from None
        values = list(seed)
    if not values:
        raise ValueError("seed must hold at least one int, but is an empty sequence")
    words = bytearray()
    for value in values:
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(
                f"seed must be of ints, but holds a {type(value).__qualname__}: {value!r}"
            ) from None
        if value < 0:
            raise ValueError(f"seed must not be negative, but is or holds {value}")
        words += value.to_bytes(max(1, -(-value.bit_length() // 32)) * 4, "little")
    return np.frombuffer(words, "<u4").astype(np.uint32)


def seed_words(seed):
    cdef fi_seed made
    cdef uint32_t[2] low
    cdef uint32_t[::1] entropy
    cdef uint64_t value

    if type(seed) is int and 0 <= seed < 2**64:
        value = seed
        low[0], low[1] = <uint32_t>value, <uint32_t>(value >> 32)
        fi_seed_from_entropy(&made, low, 2)  # a missing word counts as 0
        return made.words[0], made.words[1]
    if isinstance(seed, SeedSequence):
        first, second = seed.generate_state(2, np.uint64)
        return int(first), int(second)
    entropy = entropy_of(seed)
    fi_seed_from_entropy(&made, &entropy[0], entropy.shape[0])
    return made.words[0], made.words[1]


cdef Py_ssize_t order_length(object n) except -1:
    n = checked_int("n", n, minimum=0)
    if n > FI_SHUFFLE_MAX:
        raise ValueError(
            f"n is {n}, but the fast shuffle makes orders of at most {FI_SHUFFLE_MAX}: for more, "
            "use an order that is computed where it is read, such as a virtual permutation"
        )
    return n


cdef cnp.ndarray output_order(object out, Py_ssize_t n):
    if out is None:
        return empty_order(n)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be an array, not {type(out).__qualname__}")
    if out.dtype != np.int64 or out.shape != (n,):
        raise ValueError(
            f"out must be int64 of shape ({n},), but is {out.dtype} of shape {out.shape}"
        )
    if not (out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
        raise ValueError("out must be contiguous, aligned and writeable")
    return out


cdef unsigned int thread_count(object threads, Py_ssize_t n) except 0:
    cdef unsigned int useful = fi_shuffle_threads(n)
    if threads is None:
        return 1 if useful == 1 else min(useful, MOST_THREADS, whole_cpus())
    return min(useful, checked_int("threads", threads))


def fast_permutation(n, words, stream=0, threads=None, out=None):
    cdef Py_ssize_t length = order_length(n)
    cdef cnp.ndarray order = output_order(out, length)
    cdef int64_t *data = <int64_t *>cnp.PyArray_DATA(order)
    cdef uint64_t number = stream
    cdef unsigned int count = thread_count(threads, length)
    cdef fi_seed seed
    cdef int rc

    seed.words[0], seed.words[1] = words
    if length < RELEASE_FROM:
        rc = fi_shuffle(data, length, &seed, number, count)
    else:
        with nogil:
            rc = fi_shuffle(data, length, &seed, number, count)
    if rc == FI_E_MEMORY:
        raise MemoryError(
            f"no memory to shuffle {length} indices: some {length // 8 + (8 << 20)} bytes more are "
            "needed for a moment"
        )
    return order


def isa_levels():
    return list(range(fi_shuffle_isa() + 1))


def fast_permutation_by(n, words, stream, threads, isa, method, pile_bits, block_bits, cells32):
    cdef Py_ssize_t length = order_length(n)
    cdef cnp.ndarray order = empty_order(length)
    cdef int64_t *data = <int64_t *>cnp.PyArray_DATA(order)
    cdef fi_shuffle_plan plan
    cdef uint64_t number = stream
    cdef unsigned int count = threads
    cdef int level = isa, rc
    cdef fi_seed seed

    plan.method, plan.cells32 = method, cells32
    plan.pile_bits, plan.block_bits = pile_bits, block_bits
    seed.words[0], seed.words[1] = words
    with nogil:
        rc = fi_shuffle_by(&plan, level, data, length, &seed, number, count)
    if rc != FI_OK:
        raise ValueError(f"fi_shuffle_by refuses: {rc}")
    return order
