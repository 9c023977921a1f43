"""What the words of the ring say: codes of rows, flags of slots, kinds of packed objects, and the
checksum of these."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

from fastiter._clib.csrc cimport (
    FI_CONVERTED_FIELDS, FI_CONVERTED_OBJECT, FI_CONVERTER_ERROR, FI_ERROR, FI_FINISH_POISON,
    FI_START_ERROR_BYTES, FI_POISON, fi_checksum)

START_ERROR_BYTES = FI_START_ERROR_BYTES

# In the place of the index in hand.
LOADING = -1
FINISHING = -2
STARTING = -3

# Kinds of packed objects, and the row of those that belong to the batch as a whole.
PACKED_EXAMPLE, PACKED_ERROR, PACKED_FIELD, PACKED_RESULT, PACKED_FAILURE = range(5)
WHOLE_BATCH = 0xFFFFFFFF

# Codes of rows that have failed, and flags of a finished slot.
ROW_ERROR = FI_ERROR
ROW_POISON = FI_POISON
CONVERTED_FIELDS = FI_CONVERTED_FIELDS
CONVERTED_OBJECT = FI_CONVERTED_OBJECT
CONVERTER_ERROR = FI_CONVERTER_ERROR
FINISH_POISON = FI_FINISH_POISON


def checksum(data, uint64_t start, uint64_t stop, uint64_t seed):
    """Of bytes `start` to `stop` of a buffer: an int in 1 .. 2**64 - 1."""
    cdef Py_buffer buffer
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    try:
        if start > stop or stop > <uint64_t>buffer.len:
            raise ValueError(f"bytes {start} to {stop} of {buffer.len}")
        return fi_checksum(<char *>buffer.buf + start, stop - start, seed)
    finally:
        PyBuffer_Release(&buffer)
