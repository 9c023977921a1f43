"""The memory of large results: buffers that are used again when their last view is deleted.

Each process has one pool. Buffers are taken and given back with or without the GIL, during a
garbage collection, and at the interpreter's exit: nothing here runs Python code, and the pool
itself is never freed.
"""

import os
import warnings

cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport uint32_t

from fastiter._clib.csrc cimport (
    FI_OK, fi_buffers, fi_buffers_count, fi_buffers_give, fi_buffers_init, fi_buffers_take,
    fi_buffers_trim, fi_coarse_ns)
from fastiter._clib.numpy_api cimport PyArray_Type, new_array, new_empty, set_base

cnp.import_array()

cdef fi_buffers pool
cdef bint enabled
# A buffer that was idle for longer is unmapped when the pool is used next.
cdef long long MOST_IDLE_NS = 10_000_000_000


cdef class Buffer:
    """The owner of one buffer of the pool.

    It ends the ``base`` chain of every array in the buffer. When the last of them is deleted, the
    pool has the buffer again, for the next result of about that size.
    """

    cdef void *data
    cdef size_t capacity

    def __dealloc__(self):
        if self.data != NULL:
            fi_buffers_give(&pool, self.data, self.capacity, fi_coarse_ns())

    @property
    def nbytes(self):
        """Size of the buffer, at least that of the result that it was made for."""
        return self.capacity


cdef object empty_array(int ndim, const cnp.npy_intp *shape, cnp.PyArray_Descr *dtype,
                        size_t nbytes):
    """A new C-contiguous array of `nbytes` bytes and undefined content, or NumPy's error."""
    cdef Buffer owner
    Py_INCREF(<object>dtype)  # either constructor takes it over
    if not enabled or nbytes < POOLED_BYTES:
        return new_empty(ndim, shape, dtype, 0)
    owner = Buffer.__new__(Buffer)
    if fi_buffers_take(&pool, nbytes, fi_coarse_ns(), &owner.data, &owner.capacity) != FI_OK:
        owner.data = NULL
        return new_empty(ndim, shape, dtype, 0)
    array = new_array(
        &PyArray_Type, dtype, ndim, shape, NULL, owner.data, cnp.NPY_ARRAY_CARRAY, NULL)
    Py_INCREF(owner)  # the base takes it over
    set_base(<cnp.PyArrayObject *>array, <PyObject *>owner)
    return array


def empty_bytes(size_t nbytes):
    """A new uint8 array of undefined content, in a buffer of the pool if it is large."""
    cdef cnp.npy_intp[1] shape
    cdef object dtype = cnp.PyArray_DescrFromType(cnp.NPY_UINT8)
    shape[0] = nbytes
    return empty_array(1, shape, <cnp.PyArray_Descr *>dtype, nbytes)


def trim_buffers():
    """Give the memory of all idle buffers back to the system."""
    fi_buffers_trim(&pool)


def idle():
    """Number of idle buffers, and their bytes."""
    cdef uint32_t count
    cdef size_t nbytes
    fi_buffers_count(&pool, &count, &nbytes)
    return count, nbytes


def complaint():
    """The fault of the environment variable that limits the pool; empty if there is none."""
    value = os.environ.get("FASTITER_BUFFER_POOL", "").strip()
    if not value or (value.isascii() and value.isdigit() and len(value) <= 9):
        return ""
    return (
        f"the environment variable FASTITER_BUFFER_POOL is {value!r}, which is ignored: set it to "
        "the MiB that may be kept for the next batches, to 0 to keep none, or not at all"
    )


def _limit():
    """Most bytes that may be idle: from the environment, else a sixteenth of the machine's memory,
    at most 1 GiB."""
    value, wrong = os.environ.get("FASTITER_BUFFER_POOL", "").strip(), complaint()
    if wrong:  # no error, which would leave no way to run the doctor
        warnings.warn(wrong, stacklevel=1)
    if wrong or not value:
        return min(1 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16)
    return int(value) << 20


fi_buffers_init(&pool, _limit(), MOST_IDLE_NS)
enabled = pool.limit > 0
# A child would keep a copy of each idle page that the parent writes to again.
os.register_at_fork(before=trim_buffers)
