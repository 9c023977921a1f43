# Memory of Python's allocator, and how much of it is copied with the GIL.

from cpython.mem cimport PyMem_Calloc

cdef enum:
    # Releasing the GIL and taking it back costs more than copying less than this.
    NOGIL_BYTES = 65536


cdef inline void *zeroed(size_t count, size_t size) except NULL:
    """Room for `count` items of a size, of zeros."""
    cdef void *memory = PyMem_Calloc(count, size)
    if memory == NULL:
        raise MemoryError(f"no memory for {count} items of {size} bytes")
    return memory
