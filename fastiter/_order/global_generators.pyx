"""The global generators of `random` and NumPy, set to a state without what seeding them costs.

Both are Mersenne Twisters. To seed one takes thousands of steps, one after the other; here its 624
words are written where they lie. Where they are not found, the generators' own functions set the
same state.
"""

import random
import struct

import numpy

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fastiter._clib.csrc cimport fi_mixed, fi_seed, fi_seed_mixed, fi_splitmix64

cdef enum:
    WORDS = 624
    BYTES = 4 * WORDS

cdef struct Twister:
    uint32_t *words  # of the generator; NULL if they were not found
    int32_t *place  # number of words that were given since they were made anew

cdef object python = random.random.__self__  # that the functions of `random` are methods of
cdef object known = None  # NumPy's bit generator that `in_numpy` is of
cdef Twister in_python
cdef Twister in_numpy


cdef void find(Twister *found, char *start, Py_ssize_t size, words, place) except *:
    """Looks for the words of a generator in the `size` bytes from `start` on, with the place before
    or after them."""
    cdef bytes memory = PyBytes_FromStringAndSize(start, size)
    cdef bytes place_bytes = struct.pack("=i", place)
    cdef Py_ssize_t at = memory.find(struct.pack(f"={WORDS}I", *words)), number
    found.words = NULL
    if at < 0:
        return
    for number in (at - 4, at + BYTES):
        if number >= 0 and memory[number:number + 4] == place_bytes:
            found.words = <uint32_t *>(start + at)
            found.place = <int32_t *>(start + number)


def find_python():
    """Looks for the words of `random`'s generator; returns whether they were found."""
    *words, place = python.getstate()[1]
    find(&in_python, <char *><PyObject *>python, type(python).__base__.__basicsize__, words, place)
    return in_python.words != NULL


def find_numpy():
    """The same for NumPy's generator of now."""
    global known
    generator = numpy.random.get_bit_generator()
    in_numpy.words = NULL
    if type(generator) is numpy.random.MT19937:
        state = generator.state["state"]
        find(&in_numpy, <char *><size_t>generator.ctypes.state_address, BYTES + 4, state["key"],
             state["pos"])
    known = generator
    return in_numpy.words != NULL


cdef void fill(uint32_t *words, uint64_t state) noexcept:
    cdef int i
    cdef uint64_t pair
    for i in range(0, WORDS, 2):
        pair = fi_splitmix64(&state)
        words[i], words[i + 1] = <uint32_t>pair, <uint32_t>(pair >> 32)
    words[0] |= 0x80000000  # a generator of zeros would give zeros


cdef tuple as_tuple(uint32_t *words):
    return struct.unpack(f"={WORDS}I", (<char *>words)[:BYTES])


def seed_generators(uint64_t seed, uint64_t epoch, uint64_t batch, uint64_t row):
    """Set both generators to the state of these numbers; returns a seed for a third generator, at
    most 2**63 - 1."""
    cdef fi_seed key
    cdef uint32_t words[2][WORDS]
    key.words[0], key.words[1] = seed, 0
    for number in (epoch, batch, row):
        key = fi_seed_mixed(&key, number)
    fill(words[0], key.words[0])
    fill(words[1], key.words[1])
    if in_python.words != NULL:
        with cython.critical_section(python):
            memcpy(in_python.words, words[0], BYTES)
            in_python.place[0] = WORDS
        python.gauss_next = None
    else:
        python.setstate((3, (*as_tuple(words[0]), WORDS), None))
    generator = numpy.random.get_bit_generator()
    if generator is not known:
        find_numpy()
    if in_numpy.words != NULL:
        with generator.lock:
            memcpy(in_numpy.words, words[1], BYTES)
            in_numpy.place[0] = WORDS
        numpy.random.set_bit_generator(generator)  # forgets the number that normal() has kept
    else:
        numpy.random.set_state(("MT19937", as_tuple(words[1]), WORDS))
    return fi_mixed(key.words[0] ^ key.words[1]) >> 1


find_python()
