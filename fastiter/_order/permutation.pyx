"""Orders of a seed: permutations, virtual orders, and draws of items with weights; in C."""

import operator
from collections.abc import Mapping

from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.slice cimport PySlice_AdjustIndices, PySlice_Unpack
from libc.math cimport INFINITY
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
cimport numpy as cnp

from fastiter._clib.csrc cimport *
from fastiter._clib.numpy_api cimport data_of, int64_items, new_indices
from fastiter._clib.status cimport check

import numpy as np  # numpy.random, which NumPy imports on first use, takes long

from fastiter._util.arguments import checked_int
from fastiter._util.cpus import whole_cpus

cnp.import_array()

cdef enum:
    # Shorter calls are over sooner than another thread could use the interpreter.
    RELEASE_SHUFFLE_FROM = 1 << 14
    RELEASE_VIRTUAL_FROM = 1 << 12
    SPARE = 4096  # room for more arrivals than were estimated

    # Up to this length a virtual order is a table, exactly uniform. It determines the orders of
    # seeds.
    TABLE_MAX = 1 << 16

cdef unsigned int MOST_THREADS = 8  # by default: with more, memory is the limit
ROUNDS = FI_VIRTUAL_ROUNDS
WEIGHTS_MAX = FI_WEIGHTED_MAX
SHUFFLE_MAX = FI_SHUFFLE_MAX
ISA = fi_isa()  # the best instruction set of this processor, numbered as in csrc/base/fi_isa.h


cdef fi_seed seed_of(tuple words):
    cdef fi_seed seed
    seed.words[0], seed.words[1] = words
    return seed


# ---- permutations --------------------------------------------------------------------------------


def permutation(random_state, n):
    """The order that ``random_state.permutation(n)`` gives; leaves the same state behind.

    For exactly a `numpy.random.RandomState` the order is drawn in C, with the bit generator's lock
    held and the GIL released.
    """
    # A subclass may draw differently, and NumPy rejects a negative n.
    if type(random_state) is not np.random.RandomState or n < 0:
        return random_state.permutation(n)

    cdef Py_ssize_t length = n
    cdef cnp.ndarray order = new_indices(length)
    cdef int64_t *data = data_of(order)
    # Kept alive during the call: another thread may replace the state's bit generator.
    bit_generator = random_state._bit_generator
    cdef const fi_bitgen *generator = <const fi_bitgen *>PyCapsule_GetPointer(
        bit_generator.capsule, "BitGenerator"
    )
    with bit_generator.lock:
        with nogil:
            fi_order_permutation(generator, data, length)
    return order


cdef object entropy_of(object seed, str name):
    """The 32-bit words, lowest first, that SeedSequence makes of ints."""
    try:
        values = [operator.index(seed)]
    except TypeError:
        # A set or the keys of a dict have no order to rely upon.
        ordered = hasattr(seed, "__getitem__") and getattr(seed, "ndim", hasattr(seed, "__len__"))
        # Not in one tuple: Cython goes on, an exception set, if the check of a base class raises.
        if not ordered or isinstance(seed, (str, bytes)) or isinstance(seed, Mapping):
            raise TypeError(
                f"{name} must be an int, a numpy.random.SeedSequence or a sequence of ints, not "
                f"{type(seed).__qualname__}"
            ) from None
        values = list(seed)
    if not values:
        raise ValueError(f"{name} must hold at least one int, but is an empty sequence")
    words = bytearray()
    for value in values:
        try:
            value = operator.index(value)
        except TypeError:
            raise TypeError(
                f"{name} must be of ints, but holds a {type(value).__qualname__}: {value!r}"
            ) from None
        if value < 0:
            raise ValueError(f"{name} must not be negative, but is or holds {value}")
        words += value.to_bytes(max(1, -(-value.bit_length() // 32)) * 4, "little")
    return np.frombuffer(words, "<u4").astype(np.uint32)


def seed_words(seed, name="seed"):
    """128 bits of a seed as two 64-bit words: ``SeedSequence(seed).generate_state(2, uint64)``.

    ``seed`` is an int of any size that is not negative, a sequence of such ints (at least one), or
    a `numpy.random.SeedSequence`; anything else raises TypeError or ValueError, which give ``name``.
    """
    cdef fi_seed made
    cdef uint32_t[2] low
    cdef cnp.ndarray entropy
    cdef uint64_t value

    if type(seed) is int and 0 <= seed < 2**64:
        value = seed
        low[0], low[1] = <uint32_t>value, <uint32_t>(value >> 32)
        fi_seed_from_entropy(&made, low, 2)  # a missing word counts as 0
        return made.words[0], made.words[1]
    if isinstance(seed, np.random.SeedSequence):
        first, second = seed.generate_state(2, np.uint64)
        return int(first), int(second)
    entropy = np.ascontiguousarray(entropy_of(seed, name), dtype=np.uint32)
    fi_seed_from_entropy(
        &made, <uint32_t *>cnp.PyArray_DATA(entropy), cnp.PyArray_SIZE(entropy))
    return made.words[0], made.words[1]


cdef cnp.ndarray output_order(object out, Py_ssize_t n):
    if out is None:
        return new_indices(n)
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
    """The order of the fast shuffle (csrc/order/fi_shuffle.h) for (n, words, stream).

    ``stream`` is the number of the order among those of this seed, from 0 to 2**64 - 1; they are
    independent. The order does not depend on ``threads``, which end with the call. The GIL is
    released for long orders. If memory runs out, what ``out`` holds is undefined.
    """
    n = checked_int("n", n, minimum=0)
    if n > FI_SHUFFLE_MAX:
        raise ValueError(
            f"n is {n}, but the fast shuffle makes orders of at most {FI_SHUFFLE_MAX}: for more, "
            "use fastiter.random.virtual_permutation or VirtualShuffleOrderSampler"
        )
    cdef Py_ssize_t length = n
    cdef cnp.ndarray order = output_order(out, length)
    cdef int64_t *data = data_of(order)
    cdef uint64_t number = stream
    cdef unsigned int count = thread_count(threads, length)
    cdef fi_seed seed = seed_of(words)
    cdef int rc

    if length < RELEASE_SHUFFLE_FROM:
        rc = fi_shuffle(data, length, &seed, number, count)
    else:
        with nogil:
            rc = fi_shuffle(data, length, &seed, number, count)
    if rc == FI_E_MEMORY:
        raise MemoryError(
            f"no memory to shuffle {length} indices: this takes about {length // 8 + (8 << 20)} "
            "bytes besides the order itself"
        )
    return order


# ---- virtual orders ------------------------------------------------------------------------------


cdef class VirtualOrder:
    """A random order of 0, 1, ..., n - 1 whose parts are computed when they are read.

    Up to ``TABLE_MAX`` indices it is the order of the fast shuffle, kept as a table; above, a keyed
    bijection (csrc/order/fi_virtual.h), which takes no memory. ``stream`` is its number among the
    orders of the seed. Compares and pickles by its arguments.
    """

    cdef fi_virtual order
    cdef Py_ssize_t size
    cdef tuple words
    cdef uint64_t stream
    cdef object table  # int64[size], or None if the order is computed

    def __init__(self, n, words, stream):
        cdef fi_seed seed = seed_of(words)
        n = checked_int("n", n, minimum=0, maximum=FI_VIRTUAL_MAX)
        self.size = n
        self.words = words
        self.stream = stream
        self.table = None
        if n <= TABLE_MAX:
            self.table = fast_permutation(n, words, stream)
            return
        fi_virtual_init(&self.order, n, &seed, stream, FI_VIRTUAL_ROUNDS)

    def __len__(self):
        return self.size

    @property
    def index_bound(self):
        """The length: all indices are below it."""
        return self.size

    def __getitem__(self, key):
        cdef Py_ssize_t start, stop, step, count
        if not isinstance(key, slice):
            start = operator.index(key)
            if not -self.size <= start < self.size:
                raise IndexError(f"position {start} is outside an order of {self.size}")
            return int(self.part(start + self.size if start < 0 else start, 1)[0])
        PySlice_Unpack(key, &start, &stop, &step)
        if step != 1:
            raise ValueError(f"a virtual order has slices of step 1 only, not {step}")
        count = PySlice_AdjustIndices(self.size, &start, &stop, step)
        return self.part(start, count)

    def checked_part(self, start, count):
        """Indices at ``count`` positions from ``start`` on; None: all that follow."""
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
        cdef cnp.ndarray out = new_indices(count)
        cdef int64_t *data = data_of(out)
        if count < RELEASE_VIRTUAL_FROM:
            fi_virtual_fill(&self.order, fi_isa(), start, count, data)
        else:
            with nogil:
                fi_virtual_fill(&self.order, fi_isa(), start, count, data)
        return out

    def __reduce__(self):
        return VirtualOrder, (self.size, self.words, self.stream)

    def __eq__(self, other):
        if type(other) is not VirtualOrder:
            return NotImplemented
        return self.__reduce__() == other.__reduce__()

    def __hash__(self):
        return hash((self.size, self.words, self.stream))


def whole_by(n, words, rounds):
    """The keyed bijection by a chosen number of half-rounds, for tests: also for ``n`` below
    ``TABLE_MAX``, and for orders made weak on purpose."""
    cdef fi_seed seed = seed_of(words)
    cdef fi_virtual order
    cdef cnp.ndarray out = new_indices(n)
    check(fi_virtual_init(&order, n, &seed, 0, rounds), f"an order of {n} by {rounds} rounds")
    fi_virtual_fill(&order, fi_isa(), 0, n, data_of(out))
    return out


def example_words(words, epoch, index):
    """Hash a seed, an epoch and an index to 256 bits: uint64 array (4,)."""
    cdef fi_seed seed = seed_of(words)
    cdef cnp.npy_intp four = 4
    cdef cnp.ndarray made = cnp.PyArray_EMPTY(1, &four, cnp.NPY_UINT64, 0)

    fi_example_words(&seed, epoch, index, <uint64_t *>cnp.PyArray_DATA(made))
    return made


def example_seeds(words, epochs, indices, repeats=None):
    """The first word of `example_words` for each of some examples: uint64 array (n,). Where
    ``repeats`` is not 0, the words are hashed with it once more. All are int64 arrays (n,)."""
    cdef fi_seed seed = seed_of(words), again
    cdef uint64_t[4] made
    cdef Py_ssize_t n = 0, n_epochs = 0, n_repeats = 0, i
    cdef const int64_t *index_items = int64_items(indices, &n)
    cdef const int64_t *epoch_items = int64_items(epochs, &n_epochs)
    cdef const int64_t *repeat_items = NULL
    if repeats is None:
        n_repeats = n
    else:
        repeat_items = int64_items(repeats, &n_repeats)
    if index_items == NULL or epoch_items == NULL or not n == n_epochs == n_repeats:
        raise TypeError("epochs, indices and repeats must be int64 arrays of one length")
    cdef cnp.ndarray seeds = np.empty(n, dtype=np.uint64)
    cdef uint64_t *out = <uint64_t *>cnp.PyArray_DATA(seeds)
    for i in range(n):
        fi_example_words(&seed, epoch_items[i], index_items[i], made)
        if repeat_items != NULL and repeat_items[i] != 0:
            again.words[0], again.words[1] = made[0], made[1]
            fi_example_words(&again, repeat_items[i], 0, made)
        out[i] = made[0]
    return seeds


# ---- draws with weights --------------------------------------------------------------------------


cdef class AliasTable:
    """Draws with replacement, by a table of 16 bytes per weight; there are 1 to WEIGHTS_MAX, all
    positive and finite."""

    cdef fi_alias *cells
    cdef uint32_t n

    def __cinit__(self, weights):
        cdef double *shares
        cdef uint32_t *stack
        cdef cnp.ndarray array = np.ascontiguousarray(weights, dtype=np.float64)
        cdef const double *data = <const double *>cnp.PyArray_DATA(array)
        self.n = <uint32_t>cnp.PyArray_SIZE(array)
        self.cells = <fi_alias *>malloc(self.n * sizeof(fi_alias))
        shares = <double *>malloc(self.n * sizeof(double))
        stack = <uint32_t *>malloc(self.n * sizeof(uint32_t))
        try:
            if self.cells == NULL or shares == NULL or stack == NULL:
                raise MemoryError(f"no memory for a table of {self.n} weights")
            with nogil:
                fi_alias_build(self.cells, data, self.n, shares, stack)
        finally:
            free(shares)
            free(stack)

    def __dealloc__(self):
        free(self.cells)

    def draw(self, words, stream, count):
        """Draw ``count`` items; releases the GIL."""
        cdef fi_seed seed = seed_of(words)
        cdef uint64_t number = stream
        cdef Py_ssize_t size = count
        cdef cnp.ndarray out = new_indices(size)
        cdef int64_t *data = data_of(out)
        with nogil:
            fi_alias_draw(self.cells, self.n, &seed, number, data, size)
        return out


cdef class Race:
    """Draws without replacement, by exponential variates.

    There are 1 to WEIGHTS_MAX weights, positive and finite, the largest at most 1e290 times the
    smallest.
    """

    cdef cnp.ndarray weights  # float64 (n,)

    def __init__(self, weights):
        # Times are as long as weights are small: of the largest weight they cannot overflow.
        self.weights = np.ascontiguousarray(weights / np.max(weights), dtype=np.float64)

    def draw(self, words, stream, count):
        """Draw ``count`` items, at most as many as there are weights; releases the GIL."""
        cdef uint32_t k = count, n = <uint32_t>cnp.PyArray_SIZE(self.weights)
        cdef double horizon
        cdef fi_seed seed = seed_of(words)
        cdef uint64_t number = stream
        cdef const double *weights = <const double *>cnp.PyArray_DATA(self.weights)
        cdef fi_arrivals arrivals = fi_arrivals(NULL, NULL, 0, 0)
        cdef uint64_t *keys = NULL
        cdef int64_t *data
        cdef int rc = FI_E_FULL
        cdef cnp.ndarray out = new_indices(k)
        data = data_of(out)
        try:
            with nogil:
                horizon = fi_race_horizon(weights, n, k)
            room = n if horizon == INFINITY else min(n, 2 * <uint64_t>k + SPARE)
            while rc != FI_OK or arrivals.count < k:
                arrivals_open(&arrivals, room)
                with nogil:
                    rc = fi_race_run(fi_isa(), weights, n, &seed, number, horizon, &arrivals)
                # A second run is needed if the estimate came from an unlucky sample.
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
    """Make room for this many arrivals, and drop the earlier ones."""
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
