"""Orders drawn in C from NumPy's bit generators."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int64_t
cimport numpy as cnp

from fastiter._csrc cimport fi_bitgen, fi_order_permutation

from numpy.random import RandomState, mtrand

cnp.import_array()


def permutation(random_state, n):
    if random_state is None:
        random_state = mtrand._rand
    # A subclass may draw differently, and NumPy has its own answer to a negative n.
    if type(random_state) is not RandomState or n < 0:
        return random_state.permutation(n)

    cdef Py_ssize_t length = n
    cdef cnp.ndarray order = cnp.PyArray_EMPTY(1, <cnp.npy_intp *>&length, cnp.NPY_INT64, 0)
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
