"""Devices, and the meaning of a ``device`` argument."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from fastiter._device.cupy import (
    array_module,
    current_device_id,
    import_cupy,
    import_cupy_for,
    is_cupy_array,
    is_cupy_device,
    on_device,
)

_WHAT_IS_A_DEVICE = (
    "None, an integer (negative: the host; 0 and above: that GPU), 'cpu', '@numpy', 'cuda', "
    "'cuda:<id>', '@cupy:<id>' or a cupy.cuda.Device"
)


class Device:
    """A place for arrays. `CpuDevice` and `GpuDevice` are the two kinds."""

    name: str  #: '@numpy' or '@cupy:<id>'
    xp: Any  #: module of the arrays that live here: numpy or cupy

    def send(self, arrays: Any) -> Any:
        """Move an array, or a list or tuple of arrays (None among them), to this device.

        Arrays that are there already are returned as they are. TypeError if something is neither an
        array nor a number or string.
        """
        if not isinstance(arrays, (list, tuple)):
            return self._send_one(arrays)
        sent: dict[int, Any] = {}  # an array that occurs twice is moved once
        for array in arrays:
            if id(array) not in sent:
                sent[id(array)] = self._send_one(array)
        return type(arrays)([sent[id(array)] for array in arrays])

    def _send_one(self, array: Any) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class CpuDevice(Device):
    """The host: NumPy arrays."""

    name = "@numpy"
    xp = np

    def _send_one(self, array: Any) -> Any:
        if array is None or isinstance(array, np.ndarray):
            return array
        if is_cupy_array(array):
            with array_module(array)[1]:
                return array.get()
        return _scalar_array(array)


class GpuDevice(Device):
    """The GPU of CUDA's number ``device_id``: CuPy arrays. RuntimeError if CuPy is missing."""

    def __init__(self, device_id: int) -> None:
        self.xp = import_cupy(f"device {device_id}")
        self.id = device_id
        self.name = f"@cupy:{device_id}"

    def _send_one(self, array: Any) -> Any:
        if array is None:
            return None
        if is_cupy_array(array) and array.device.id == self.id:
            return array
        if not is_cupy_array(array) and not isinstance(array, np.ndarray):
            array = _scalar_array(array)
        try:
            with on_device(self.xp, self.id):
                return self.xp.array(array)
        except self.xp.cuda.runtime.CUDARuntimeError:
            import_cupy_for(self.id)  # raises a plain message if there is no such GPU
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return GpuDevice, (self.id,)


def resolve(device: Any) -> Any:
    """Return the device that an argument names.

    None means to leave arrays where they are. Objects with ``xp`` and ``send``, such as Chainer's
    devices, are taken as they are. TypeError or ValueError if ``device`` names no device,
    RuntimeError if it names a GPU and CuPy is not installed.
    """
    if device is None or isinstance(device, Device):
        return device
    if isinstance(device, numbers.Integral) and not isinstance(device, bool):
        return CpuDevice() if device < 0 else GpuDevice(int(device))
    if isinstance(device, str):
        return _from_string(device)
    if is_cupy_device(device):
        return GpuDevice(int(device.id))
    if hasattr(device, "xp") and callable(getattr(device, "send", None)):
        return device
    raise TypeError(
        f"device must be {_WHAT_IS_A_DEVICE}, not {device!r} of type {type(device).__qualname__}"
    )


def _from_string(text: str) -> Device:
    if text in ("cpu", "@numpy"):
        return CpuDevice()
    if text == "cuda":
        return GpuDevice(current_device_id())
    for prefix in ("cuda:", "@cupy:", "-", ""):
        number = text[len(prefix) :]
        if text.startswith(prefix) and number.isascii() and number.isdigit():
            return CpuDevice() if prefix == "-" else GpuDevice(int(number))
    raise ValueError(f"device must be {_WHAT_IS_A_DEVICE}, not {text!r}")


def send_batch(device: Any, batch: Any) -> Any:
    """Send a batch, which may be a dict, to a device that `resolve` returned, or None."""
    if device is None:
        return batch
    if isinstance(batch, dict):
        return {key: device.send(array) for key, array in batch.items()}
    return device.send(batch)


def _scalar_array(value: Any) -> np.ndarray[Any, Any]:
    if np.isscalar(value):
        return np.asarray(value)
    raise TypeError(
        f"cannot send an object of type {type(value).__qualname__} to a device: only arrays, "
        "numbers and strings"
    )
