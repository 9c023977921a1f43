"""The only module that imports CuPy, and only when a GPU is asked for."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

INSTALL_CUPY = "pip install 'fastiter[cuda12]' (or 'fastiter[cuda13]'), or use device=-1"

CUT_OFF = (
    "this process was forked from one that uses CUDA, and cannot use it: start it by spawn or "
    "forkserver, or send batches to the GPU in the parent"
)

_UVM = "/dev/nvidia-uvm"  # opened by CUDA, and by nothing that only looks at the GPUs

_is_cut_off = False
_kept_for_ever: list[Any] = []


def import_cupy(purpose: str) -> Any:
    """Import CuPy.

    Raises
    ------
    RuntimeError
        If it is not installed; the text names ``purpose`` and what to install.
    """
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"{purpose} needs CuPy, which cannot be imported ({error}): install it with "
            f"{INSTALL_CUPY}"
        ) from error
    return cupy


def import_cupy_for(device_id: int) -> Any:
    """Import CuPy, and make sure that it finds the GPU ``device_id``.

    Raises
    ------
    RuntimeError
        If CuPy or the GPU is missing; the text names what to install. In a process forked from one
        that uses CUDA.
    """
    cupy = import_cupy(f"device {device_id}")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _without_gpu(f"device {device_id}", error) from error
    if device_id >= count:
        raise RuntimeError(
            f"device {device_id} is not there: CuPy finds {count} GPU(s), numbered from 0 (those "
            "that CUDA_VISIBLE_DEVICES names, if it is set)"
        )
    return cupy


def current_device_id() -> int:
    """The GPU that is CuPy's current one.

    Raises
    ------
    RuntimeError
        As `import_cupy_for`.
    """
    cupy = import_cupy("device 'cuda'")
    try:
        return int(cupy.cuda.runtime.getDevice())
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise _without_gpu("device 'cuda'", error) from error


def _without_gpu(name: str, error: Exception) -> RuntimeError:
    """What to raise where CUDA's ``error`` says that there is no GPU to use."""
    check_not_cut_off(error)
    return RuntimeError(
        f"{name} needs a GPU, and CuPy finds none ({error}): install NVIDIA's driver, and CuPy for "
        f"a CUDA that the driver supports with {INSTALL_CUPY}"
    )


def is_cupy_array(x: Any) -> bool:
    """Whether ``x`` is a CuPy array. Does not import CuPy: without it there is none."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.ndarray)


def is_cupy_device(x: Any) -> bool:
    """Whether ``x`` is a ``cupy.cuda.Device``. Does not import CuPy either."""
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(x, cupy.cuda.Device)


def array_module(x: Any) -> tuple[Any, contextlib.AbstractContextManager[Any]]:
    """Module for work on ``x`` and its like, and a context in which to do it.

    Returns
    -------
    tuple of module and context manager
        numpy with a context that does nothing, or cupy with the array's device.
    """
    if is_cupy_array(x):
        cupy = sys.modules["cupy"]
        return cupy, on_device(cupy, x.device.id)
    return np, contextlib.nullcontext()


# ---- current devices and streams, streams and events ---------------------------------------------


@contextlib.contextmanager
def on_device(cupy: Any, device_id: int) -> Iterator[None]:
    """Makes a GPU the current one, and afterwards the one of before.

    CuPy's ``with Device(...)`` ends with that of the ``with`` around it instead, and so forgets
    what a program has set by ``Device.use()``.
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
    """Memory of the current GPU that goes back to ``stream`` in CuPy's pool.

    The pool asks for the current stream. CuPy's ``with stream`` would forget what a program has set
    by ``Stream.use()``, and all that follows would run on another stream.
    """
    before = cupy.cuda.get_current_stream()
    try:
        stream.use()
        return cupy.cuda.alloc(nbytes)
    finally:
        before.use()


def new_event(cupy: Any) -> Any:
    """An event without times; a host that waits for it sleeps instead of asking again and again."""
    return cupy.cuda.Event(block=True, disable_timing=True)


def settle(batch: Any) -> None:
    """Wait until what this thread has made on a GPU of a batch is there.

    For threads of the loader: nobody else waits for the streams that are current in them. Of a list
    only the first entry is looked at, since examples are alike.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return
    for device_id in _gpus_of(cupy, batch):
        with on_device(cupy, device_id):
            cupy.cuda.get_current_stream().synchronize()


def _gpus_of(cupy: Any, x: Any) -> set[int]:
    if isinstance(x, cupy.ndarray):
        return {x.device.id}
    if isinstance(x, dict):
        x = tuple(x.values())
    parts = x if isinstance(x, tuple) else x[:1] if isinstance(x, list) else ()
    return set().union(*(_gpus_of(cupy, part) for part in parts))


# ---- forked children, which cannot use the CUDA of their parent --------------------------------


def check_not_cut_off(error: Exception) -> None:
    """Say so if CUDA's ``error`` comes of a fork.

    Raises
    ------
    RuntimeError
        In a process that was forked while its parent used CUDA.
    """
    if _is_cut_off:
        raise RuntimeError(CUT_OFF) from error


def leak_after_fork(*things: Any) -> None:
    """In a forked child: have no destructor run of what belongs to the parent's CUDA."""
    _kept_for_ever.extend(things)


def _after_fork_in_child() -> None:
    global _is_cut_off
    _is_cut_off = _is_cut_off or _has_open(_UVM)


def _has_open(path: str) -> bool:
    if not os.path.exists(path):
        return False
    for entry in os.scandir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of this very loop
            if os.readlink(entry.path) == path:
                return True
    return False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
