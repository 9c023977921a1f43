"""Decoded pixels to an image of another size, in one pass of C."""

cimport numpy as cnp
from libc.stdint cimport uint8_t

from fastiter._clib.csrc cimport FI_E_RANGE, FI_RESIZE_MOST, fi_isa, fi_resize, fi_resize_task
from fastiter._clib.numpy_api cimport bytes_of

import numpy

cnp.import_array()

ISA = fi_isa()  # the best instruction set of this processor, numbered as in csrc/base/fi_isa.h


cdef bint fits(value, dtype, tuple shape, bint is_written=False) except -1:
    """Whether a value is an array of a dtype and a shape, with its items as in C."""
    if type(value) is not numpy.ndarray or (value.dtype, value.shape) != (dtype, shape):
        return False
    return value.flags.c_contiguous and value.flags.aligned and (value.flags.writeable or not is_written)


def resized(pixels, window, out=None, table=None, *, bint planes, int isa=ISA):
    """Resize a box of an image, uint8 (h, w, 3), and get a window of the result, as a `CropWindow` says.

    The filter is that of Pillow's ``crop(box).resize(size, BILINEAR)`` and of torchvision's
    ``resized_crop(antialias=True)``: at most 1 from both, the same bits on each processor. Releases
    the GIL. Where an edge of the box lies within a pixel, that pixel counts; none beyond it does. The
    window is (3, H, W) if `planes`, else (H, W, 3): uint8, or
    float32 with a `table`, float32 (3, 256), of what becomes of each value of a channel. It is
    written into `out`, which does not overlap `pixels`, if that is such an array, else into a new one.
    `isa` is another instruction set, for tests.

    Raises ValueError if pixels or table are no such arrays, or box or window do not lie within;
    MemoryError if there is no memory for the weights and some rows.
    """
    cdef fi_resize_task task
    cdef int status
    box, size, corner, shape, flip = window
    dtype = numpy.uint8 if table is None else numpy.float32
    of_window = (3, *shape) if planes else (*shape, 3)
    if not fits(pixels, numpy.uint8, (*numpy.shape(pixels)[:2], 3)) or not (
            table is None or fits(table, numpy.float32, (3, 256))):
        raise ValueError("pixels must be uint8 (h, w, 3), and a table float32 (3, 256), C-contiguous")
    if not fits(out, dtype, of_window, True):
        out = numpy.empty(of_window, dtype)
    task.pixels = <const uint8_t *>bytes_of(<cnp.PyArrayObject *>pixels)
    task.height, task.width = pixels.shape[:2]
    task.table = NULL
    if table is not None:
        task.table = <const float *>bytes_of(<cnp.PyArrayObject *>table)
    task.out = bytes_of(<cnp.PyArrayObject *>out)
    task.window[0], task.window[1] = shape
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
    return out
