"""The only module that imports CuPy, and only when a GPU is asked for."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from fastiter._util.loaded import loaded

_INSTALL = "pip install cupy-cuda12x (or cupy-cuda13x), or use device=-1"

CUT_OFF = (
    "this process was forked from one that uses CUDA, and cannot use it: start it by spawn or "
    "forkserver, or send batches to the GPU in the parent"
)

_UVM = "/dev/nvidia-uvm"  # opened by CUDA, but not by programs that only look at the GPUs

_is_cut_off = False
_leaked: list[Any] = []


def import_cupy(purpose: str) -> Any:
    """Import CuPy; if it is not installed, raise a RuntimeError that says how to install it."""
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"{purpose} needs CuPy, which cannot be imported ({error}): install it with {_INSTALL}"
        ) from error
    return cupy


def _asked(name: str, question: str) -> tuple[Any, int]:
    """CuPy, and what CUDA's runtime answers to a question, for a device of this name.

    RuntimeError if CuPy or any GPU is missing, or this process was forked from one that uses CUDA:
    CUDA is not asked about that, since CUDA 13 counts the GPUs there, and fails in the next call.
    """
    cupy = import_cupy(name)
    if _is_cut_off:
        raise RuntimeError(CUT_OFF)
    runtime = cupy.cuda.runtime
    try:
        return cupy, int(getattr(runtime, question)())
    except runtime.CUDARuntimeError as error:
        raise RuntimeError(
            f"{name} needs a GPU, and CuPy finds none ({error}): install NVIDIA's driver, and CuPy "
            f"for a CUDA that the driver supports with {_INSTALL}"
        ) from error


def import_cupy_for(device_id: int) -> Any:
    """Import CuPy, and make sure that it finds the GPU ``device_id``; raise as `_asked`."""
    cupy, count = _asked(f"device {device_id}", "getDeviceCount")
    if device_id >= count:
        raise RuntimeError(
            f"device {device_id} is not there: CuPy finds {count} GPU(s), numbered from 0 (those "
            "that CUDA_VISIBLE_DEVICES names, if it is set)"
        )
    return cupy


def current_device_id() -> int:
    """Return the number of CuPy's current GPU; raise as `_asked`."""
    return _asked("device 'cuda'", "getDevice")[1]


def is_cupy_array(x: Any) -> bool:
    """Whether ``x`` is a CuPy array. Does not import CuPy."""
    return isinstance(x, loaded("cupy", "ndarray"))


def is_cupy_device(x: Any) -> bool:
    """Whether ``x`` is a ``cupy.cuda.Device``. Does not import CuPy."""
    return isinstance(x, loaded("cupy.cuda", "Device"))


def array_module(x: Any) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """Return the module of ``x``, numpy or cupy, and a context in which its device is current."""
    if is_cupy_array(x):
        cupy = sys.modules["cupy"]
        return cupy, on_device(cupy, x.device.id)
    return np, contextlib.nullcontext()


# ---- current devices and streams, streams and events ---------------------------------------------


@contextlib.contextmanager
def on_device(cupy: Any, device_id: int) -> Iterator[None]:
    """Make a GPU the current one, and afterwards the one that was current before.

    CuPy's ``with Device(...)`` restores the device of the ``with`` around it instead, and so
    forgets what a program has set by ``Device.use()``.
    """
    runtime = cupy.cuda.runtime
    before = runtime.getDevice()
    if before == device_id:
        yield
        return
    try:
        runtime.setDevice(device_id)
        yield
    finally:
        runtime.setDevice(before)


def allocate(cupy: Any, nbytes: int, stream: Any) -> Any:
    """Allocate memory of the current GPU that goes back to ``stream`` in CuPy's pool.

    The pool asks for the current stream. CuPy's ``with stream`` would forget what a program has set
    by ``Stream.use()``, and the program's later work would run on another stream.
    """
    before = cupy.cuda.get_current_stream()
    try:
        stream.use()
        return cupy.cuda.alloc(nbytes)
    finally:
        before.use()


def synchronize(batch: Any) -> None:
    """Wait for this thread's current streams on the GPUs that a batch lies on.

    For the loader's own threads, whose streams the program does not wait for. Of a list only the
    first entry is looked at, since examples are alike.
    """
    if not loaded("cupy", "ndarray"):
        return
    cupy = sys.modules["cupy"]
    for device_id in _gpus_of(batch):
        with on_device(cupy, device_id):
            cupy.cuda.get_current_stream().synchronize()


def _gpus_of(x: Any) -> set[int]:
    if is_cupy_array(x):
        return {x.device.id}
    if isinstance(x, dict):
        x = tuple(x.values())
    parts = x if isinstance(x, tuple) else x[:1] if isinstance(x, list) else ()
    return set().union(*map(_gpus_of, parts))


# ---- forked children, which cannot use the CUDA of their parent --------------------------------


def leak_after_fork(*objects: Any) -> None:
    """In a forked child: never run the destructors of objects of the parent's CUDA."""
    _leaked.extend(objects)


def _after_fork_in_child() -> None:
    global _is_cut_off
    if os.path.exists(_UVM):
        for entry in os.scandir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of this loop itself
                _is_cut_off = _is_cut_off or os.readlink(entry.path) == _UVM


os.register_at_fork(after_in_child=_after_fork_in_child)
