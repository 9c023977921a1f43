"""Binding of images: shared memory that is written once and read by many processes."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport ENOMEM, errno
from libc.stdint cimport uint64_t
from posix.types cimport off_t
from posix.mman cimport (
    MAP_FAILED,
    MAP_PRIVATE,
    MAP_SHARED,
    PROT_READ,
    PROT_WRITE,
    mmap,
    munmap,
)

from fastiter._clib.csrc cimport FI_E_MEMORY, FI_OK, fi_image_close, fi_image_open, fi_shm_map

import os


cdef class Image:
    """A descriptor of an image. The memory ends with the last descriptor and mapping of it."""

    cdef readonly int fd
    cdef readonly uint64_t nbytes

    def __cinit__(self):
        self.fd = -1

    @staticmethod
    def create(uint64_t nbytes, str what, str remedy):
        """Fresh memory. `what` names it in errors, `remedy` says what to do if it does not fit."""
        cdef uint64_t need = 0, have = 0
        cdef int fd = -1, rc
        with nogil:
            rc = fi_image_open(nbytes, &fd, &need, &have)
        if rc == FI_E_MEMORY:
            raise MemoryError(
                f"{what} needs {need} bytes of shared memory, and {have} are available within the "
                f"machine's and the control group's limits; {remedy}"
            )
        if rc != FI_OK:
            raise OSError(rc, f"{what}: {os.strerror(rc)}")
        return Image.adopt(fd, nbytes)

    @staticmethod
    def adopt(int fd, uint64_t nbytes):
        """Takes over an open descriptor; not if its file is smaller, which is a ValueError."""
        cdef uint64_t size = os.fstat(fd).st_size
        if size < nbytes:
            raise ValueError(f"an image of {nbytes} bytes has {size}")
        cdef Image image = Image.__new__(Image)
        image.fd = fd
        image.nbytes = nbytes
        return image

    def map(self):
        """A writable memoryview of a `Mapping` of it."""
        cdef Mapping mapping = Mapping.__new__(Mapping)
        cdef int rc = fi_shm_map(self.fd, 0, self.nbytes, True, &mapping.base)
        if rc == ENOMEM:
            raise MemoryError(
                f"no address space left to map an image of {self.nbytes} bytes; raise RLIMIT_AS"
            )
        if rc != FI_OK:
            raise OSError(rc, f"mapping an image: {os.strerror(rc)}")
        mapping.nbytes = self.nbytes
        return memoryview(mapping)

    def close(self):
        """Closes the descriptor. Mappings stay."""
        cdef int fd
        with cython.critical_section(self):  # once, whichever threads close it
            fd, self.fd = self.fd, -1
        if fd >= 0:
            with nogil:
                fi_image_close(fd, self.nbytes)

    def __dealloc__(self):
        if self.fd >= 0:
            fi_image_close(self.fd, self.nbytes)


def map_file(object file):
    """A memoryview of a `Mapping` of a `fastiter._ring.file_mappings.MappedFile`, of the same kind
    as the first one. It claims to be writable, even if it is read-only: that is a flag of arrays."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    cdef int protection = PROT_READ | PROT_WRITE if file.is_writable else PROT_READ
    cdef int flags = MAP_SHARED if file.is_shared else MAP_PRIVATE
    cdef uint64_t nbytes = file.nbytes, offset = file.offset
    cdef int fd = file.open()
    cdef void *base
    try:
        with nogil:
            base = mmap(NULL, nbytes, protection, flags, fd, <off_t>offset)
        if base == MAP_FAILED:
            raise OSError(errno, os.strerror(errno), file.path)
    finally:
        os.close(fd)
    mapping.base = base
    mapping.nbytes = nbytes
    return memoryview(mapping)


cdef class Mapping:
    """View of an image, private and writable: what is written stays in this process. Or of a file
    that is mapped. Exports a buffer, and lives as long as an array in it."""

    cdef void *base  # NULL until it is mapped
    cdef uint64_t nbytes

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.base, <Py_ssize_t>self.nbytes, 0, flags)

    def __dealloc__(self):
        if self.base != NULL:
            with nogil:
                munmap(self.base, self.nbytes)
