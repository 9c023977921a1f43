"""Devices: the meaning of a ``device`` argument, and copies of batches to a GPU.

``cupy`` is the only importer of CuPy. ``transfer`` and ``pinned`` (slots that the GPU reads itself)
are imported with the first batch for a GPU.
"""

from fastiter._device.cupy import (
    array_module,
    import_cupy_for,
    is_cupy_array,
    leak_after_fork,
    synchronize,
)
from fastiter._device.devices import CpuDevice, Device, GpuDevice, resolve, send_batch

__all__ = [
    "CpuDevice",
    "Device",
    "GpuDevice",
    "array_module",
    "import_cupy_for",
    "is_cupy_array",
    "leak_after_fork",
    "resolve",
    "send_batch",
    "synchronize",
]
