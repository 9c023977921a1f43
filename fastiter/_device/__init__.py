"""Devices: what a ``device`` argument means, and how arrays get there.

``devices`` says what an argument means, ``cupy`` imports CuPy, alone and only when a GPU is asked
for. Copies that the host does not wait for: ``transfer`` (to one GPU, through pinned memory),
``pinned`` (slots that the GPU reads itself), ``batches`` (an iterator's). These three are
imported when they are first used.
"""

from __future__ import annotations

from fastiter._device.cupy import (
    array_module,
    import_cupy_for,
    is_cupy_array,
    leak_after_fork,
    settle,
)
from fastiter._device.devices import CpuDevice, Device, GpuDevice, resolve, send

__all__ = [
    "CpuDevice",
    "Device",
    "GpuDevice",
    "array_module",
    "import_cupy_for",
    "is_cupy_array",
    "leak_after_fork",
    "resolve",
    "send",
    "settle",
]
