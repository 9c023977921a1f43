"""Decoded pixels to an image of another size, in one pass of C."""

cimport numpy as cnp
from libc.stdint cimport uint8_t

from fastiter._clib.csrc cimport FI_E_RANGE, FI_RESIZE_MOST, fi_isa, fi_resize, fi_resize_task
from fastiter._clib.numpy_api cimport bytes_of, dims_of

import numpy

cnp.import_array()

ISA = fi_isa()  # the best instruction set of this processor, numbered as in csrc/base/fi_isa.h


cdef cnp.PyArrayObject *checked(str name, value, dtype, tuple shape, bint is_written=False) except NULL:
    """An array that has a dtype, a shape, in which None is any length, and its items as in C."""
    if isinstance(value, numpy.ndarray):
        flags, seen = value.flags, f"{value.dtype} {value.shape} with flags\n{value.flags}"
        lengths = [n if wanted is not None else None for n, wanted in zip(value.shape, shape)]
        if value.dtype == dtype and value.ndim == len(shape) and tuple(lengths) == shape and (
                flags.c_contiguous and flags.aligned and (flags.writeable or not is_written)):
            return <cnp.PyArrayObject *>value
    else:
        seen = f"a {type(value).__name__}"
    raise ValueError(f"{name} must be {dtype.__name__} {shape}, C-contiguous, not {seen}")


def resize_into(pixels, box, size, corner, out, flip=False, table=None, *, bint planes, int isa=ISA):
    """Resize a box of an image, uint8 (h, w, 3), and write a window of the result into `out`: the one
    of its size at `corner`, top and left, of a result of `size`, height and width.

    The filter is that of Pillow's ``crop(box).resize(size, BILINEAR)`` and of torchvision's
    ``resized_crop(antialias=True)``: at most 1 from both, the same bits on each processor. Releases
    the GIL. `box` is left, top, right and bottom, in pixels: where an edge lies within a pixel, that
    pixel counts; none beyond it does. `out` is (3, H, W) if `planes`, else (H, W, 3), and does not
    overlap `pixels`: uint8, or float32 with a `table`, float32 (3, 256), of what becomes of each
    value of a channel. `flip` exchanges left and right. `isa` is another instruction set, for tests.

    Raises ValueError if an array is of another shape or dtype, or box or window do not lie within;
    MemoryError if there is no memory for the weights and some rows.
    """
    cdef fi_resize_task task
    cdef cnp.PyArrayObject *array = checked("pixels", pixels, numpy.uint8, (None, None, 3))
    cdef int status, rows = 1 if planes else 0
    task.pixels = <const uint8_t *>bytes_of(array)
    task.height, task.width = dims_of(array)[0], dims_of(array)[1]
    task.table = NULL
    if table is not None:
        task.table = <const float *>bytes_of(checked("table", table, numpy.float32, (3, 256)))
    array = checked("out", out, numpy.uint8 if table is None else numpy.float32,
                    (3, None, None) if planes else (None, None, 3), True)
    task.out = bytes_of(array)
    task.window[0], task.window[1] = dims_of(array)[rows], dims_of(array)[rows + 1]
    task.left, task.top, task.right, task.bottom = box
    task.size[0], task.size[1] = size
    task.corner[0], task.corner[1] = corner
    task.planes, task.mirror = planes, flip
    with nogil:
        status = fi_resize(&task, isa)
    if status == FI_E_RANGE:
        raise ValueError(
            f"box {box} must be an area within the {task.height} x {task.width} pixels, and the "
            f"window of {task.window[0]} x {task.window[1]} at {corner} within the result of "
            f"{task.size[0]} x {task.size[1]}; sides are 1 to {FI_RESIZE_MOST} pixels")
    if status:
        raise MemoryError(
            f"no memory for the weights and rows that resize {task.height} x {task.width} pixels to "
            f"{task.size[0]} x {task.size[1]}")
