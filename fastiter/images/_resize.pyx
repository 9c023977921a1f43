"""Decoded pixels to an image of another size, in one pass of C."""

cimport numpy as cnp
from libc.stdint cimport uint8_t, uint64_t

from fastiter._clib.csrc cimport FI_E_RANGE, FI_RESIZE_MOST, fi_has_isa, fi_isa, fi_resize, fi_resize_task
from fastiter._clib.numpy_api cimport (
    bytes_of, dims_of, is_contiguous, is_native, itemsize_of, ndim_of, type_num_of)

import numpy

cnp.import_array()

ISA = fi_isa()  # the best instruction set of this processor, numbered as in csrc/base/fi_isa.h


cdef str seen(value):
    if not isinstance(value, numpy.ndarray):
        return f"a {type(value).__name__}"
    flags = {"not contiguous": value.flags.c_contiguous, "not aligned": value.flags.aligned,
             "read-only": value.flags.writeable}
    return ", ".join([f"{value.dtype} {value.shape}", *(name for name, absent in flags.items() if not absent)])


cdef bint is_plain(value, int type_num, int ndim) except -1:
    cdef cnp.PyArrayObject *array = <cnp.PyArrayObject *>value
    return isinstance(value, numpy.ndarray) and type_num_of(array) == type_num and is_native(array) and (
        ndim_of(array) == ndim and is_contiguous(array) and <size_t>bytes_of(array) % itemsize_of(array) == 0)


cdef int read_pair(str name, values, uint64_t *pair) except -1:
    cdef Py_ssize_t first, second
    try:
        first, second = values
    except (TypeError, ValueError, OverflowError):
        first = second = -1
    if first < 0 or second < 0:
        raise ValueError(f"{name} must be two integers, pixels from 0 on, not {values!r}") from None
    pair[0], pair[1] = first, second


def resize_into(pixels, box, size, corner, out, flip=False, table=None, *, bint planes, int isa=ISA):
    """Resize a box of an image, and write a window of the result.

    The filter is that of Pillow's ``crop(box).resize(size, BILINEAR)`` and of torchvision's
    ``resized_crop(antialias=True)``: at most 1 from both, the same bits on each processor. Releases
    the GIL. Safe in several threads as long as each has an `out` of its own.

    Parameters
    ----------
    pixels : numpy.ndarray
        uint8 (h, w, 3), C-contiguous; may be read-only.
    box : tuple of float
        Left, top, right and bottom edge, in pixels; within the image. Where an edge lies within a
        pixel, that pixel counts; none beyond it does.
    size : tuple of int
        Height and width of the result of the whole box.
    corner : tuple of int
        Top and left of the window of that result which `out` holds; of the size of `out`.
    out : numpy.ndarray
        uint8 or float32, writable and C-contiguous: (3, H, W) if `planes`, else (H, W, 3). It must
        not overlap `pixels`.
    flip : bool
        Exchange left and right of the window.
    table : numpy.ndarray, optional
        float32 (3, 256), C-contiguous: what becomes of each value of a channel. For a float32 `out`.
    isa : int, optional
        Instruction set, for tests.

    Raises
    ------
    ValueError
        If an array is of another shape or dtype, or box or window do not lie within.
    MemoryError
        If there is no memory for the weights and some rows.
    """
    cdef fi_resize_task task
    cdef cnp.PyArrayObject *image
    cdef int status, rows = 1 if planes else 0
    if not is_plain(pixels, cnp.NPY_UINT8, 3) or pixels.shape[2] != 3:
        raise ValueError(f"pixels must be uint8 (h, w, 3), C-contiguous, not {seen(pixels)}")
    if not (is_plain(out, cnp.NPY_UINT8, 3) or is_plain(out, cnp.NPY_FLOAT32, 3)) or (
            out.shape[0 if planes else 2] != 3 or not out.flags.writeable):
        wanted = "(3, H, W)" if planes else "(H, W, 3)"
        raise ValueError(
            f"out must be uint8 or float32 {wanted}, C-contiguous and writable, not {seen(out)}")
    task.table = NULL
    if table is not None:
        if not is_plain(table, cnp.NPY_FLOAT32, 2) or table.shape != (3, 256):
            raise ValueError(f"table must be float32 (3, 256), C-contiguous, not {seen(table)}")
        task.table = <const float *>bytes_of(<cnp.PyArrayObject *>table)
    if (table is None) != (type_num_of(<cnp.PyArrayObject *>out) == cnp.NPY_UINT8):
        raise ValueError(f"a float32 out needs a table, and uint8 has none: out is {out.dtype}")
    image = <cnp.PyArrayObject *>pixels
    task.pixels = <const uint8_t *>bytes_of(image)
    task.height, task.width = dims_of(image)[0], dims_of(image)[1]
    try:
        task.left, task.top, task.right, task.bottom = box
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"box must be four numbers: left, top, right, bottom; not {box!r}") from None
    read_pair("size", size, task.size)
    read_pair("corner", corner, task.corner)
    image = <cnp.PyArrayObject *>out
    task.out = bytes_of(image)
    task.window[0], task.window[1] = dims_of(image)[rows], dims_of(image)[rows + 1]
    task.planes, task.mirror = planes, flip
    if not fi_has_isa(isa):
        raise ValueError(f"isa must be a number below {ISA + 1}, which this processor has, not {isa}")
    with nogil:
        status = fi_resize(&task, isa)
    if status == FI_E_RANGE:
        edges, place = (task.left, task.top, task.right, task.bottom), (task.corner[0], task.corner[1])
        raise ValueError(
            f"box {edges} must be an area within the {task.height} x {task.width} pixels, and the "
            f"window of {task.window[0]} x {task.window[1]} at {place} within the result of "
            f"{task.size[0]} x {task.size[1]}; sides are 1 to {FI_RESIZE_MOST} pixels")
    if status:
        raise MemoryError(
            f"no memory for the weights and rows that resize {task.height} x {task.width} pixels to "
            f"{task.size[0]} x {task.size[1]}")
