"""A stand-in for the parts of CuPy that transfers use, and that loops over them need.

It is no GPU, and tests none: what is asked of it happens late, in any order that CUDA allows, and
fails where a test wants that (`cupy_machine`). `test_cupy_surface` compares its names and
parameters with CuPy's own, where that is installed.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from cupy_machine import (
    CUDARuntimeError,
    Device,
    Event,
    Machine,
    MemoryPointer,
    PooledMemory,
    Stream,
    Ticket,
    UnownedMemory,
    alloc_pinned,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["CUDARuntimeError", "Machine", "Ticket", "make_cupy"]


class Array:
    """As cupy.ndarray: a shape and a dtype over device memory, which its views keep alive.

    What is computed with it is work for the current stream.
    """

    bound_to: Machine
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any, memptr: MemoryPointer) -> None:
        self.dtype, self.data = np.dtype(dtype), memptr
        assert self.dtype.isnative
        n = int(np.prod(shape))
        self.content = memptr.mem.content[: n * self.dtype.itemsize].view(self.dtype).reshape(shape)

    # -- places --------------------------------------------------------------------------------

    @property
    def device(self) -> Device:
        return Device(self.bound_to, self.data.mem.device_id)

    def set(self, arr: np.ndarray, stream: Stream) -> None:
        machine = self.bound_to
        machine.fail("set")
        assert (arr.dtype, arr.shape) == (self.dtype, self.shape)
        assert arr.flags.c_contiguous
        there, here, n = self.content.ctypes.data, arr.ctypes.data, arr.nbytes

        def copy() -> None:  # keeps nothing alive
            assert machine.is_pinned(here, n), "copied from memory that is not pinned any more"
            ctypes.memmove(there, here, n)

        assert machine.is_pinned(here, n), "to be copied from memory that is not pinned"
        machine.put(stream, copy)

    def get(self) -> np.ndarray:
        self.bound_to.current.synchronize()
        return self.content.copy()

    @classmethod
    def of(cls, obj: Any) -> Array:
        """A copy as cupy.array makes it, on the current stream."""
        if isinstance(obj, Array):
            return cls.work(np.copy, obj)
        array = np.asarray(obj)
        made = cls.empty(array.shape, array.dtype.newbyteorder("="))
        cls.bound_to.blocks.append(array.astype(made.dtype, order="C"))
        made.set(cls.bound_to.blocks[-1], cls.bound_to.current)
        return made

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory as CuPy allocates it, for the current stream."""
        nbytes = max(int(np.prod(shape)) * dtype.itemsize, 1)
        return cls(shape, dtype, MemoryPointer(PooledMemory(cls.bound_to, nbytes), 0))

    # -- work ----------------------------------------------------------------------------------

    @classmethod
    def work(cls, function: Callable[..., Any], *inputs: Any) -> Array:
        """The function's result of the arrays' contents, when it is the stream's turn."""
        contents = [x.content if isinstance(x, Array) else x for x in inputs]
        like = [np.ones_like(x) if isinstance(x, np.ndarray) else x for x in contents]
        example = np.asarray(function(*like))
        made = cls.empty(example.shape, example.dtype)
        there = made.content
        cls.bound_to.put(cls.bound_to.current, lambda: there.__setitem__(..., function(*contents)))
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return self.content.shape

    @property
    def ndim(self) -> int:
        return self.content.ndim

    def __len__(self) -> int:
        return len(self.content)

    def __iter__(self) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Array:
        view = object.__new__(type(self))
        view.dtype, view.data = self.dtype, self.data
        view.content = self.content[(*key, ...) if isinstance(key, tuple) else (key, ...)]
        return view

    def __setitem__(self, key: Any, value: Any) -> None:
        there, what = self.content, value.content if isinstance(value, Array) else value
        self.bound_to.put(self.bound_to.current, lambda: there.__setitem__(key, what))

    def __iadd__(self, value: Any) -> Self:
        there, what = self.content, value.content if isinstance(value, Array) else value
        self.bound_to.put(self.bound_to.current, lambda: np.add(there, what, out=there))
        return self

    def __add__(self, value: Any) -> Array:
        return self.work(np.add, self, value)

    def __eq__(self, value: object) -> Array:  # type: ignore[override]
        return self.work(np.equal, self, value)

    def all(self) -> Array:
        return self.work(np.all, self)

    def sum(self, axis: Any = None, dtype: Any = None) -> Array:
        return self.work(lambda x: x.sum(axis, dtype), self)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())


class Kernel:
    """As cupy.RawKernel: work for the current stream, and this one does nothing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __call__(self, grid: Any, block: Any, args: Any) -> None:
        self._machine.put(self._machine.current, lambda: None)


def make_cupy(machine: Machine) -> types.ModuleType:
    """A module to put in the place of CuPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__doc__ = __doc__

    class BoundArray(Array):
        bound_to = machine

    work = BoundArray.work
    cupy.ndarray = BoundArray
    cupy.array = BoundArray.of
    cupy.asarray = lambda a: a if isinstance(a, Array) else BoundArray.of(a)
    cupy.arange = lambda start, stop=None: work(lambda: np.arange(start, stop))
    cupy.empty = lambda shape, dtype: BoundArray.empty(shape, np.dtype(dtype))
    cupy.ones = lambda shape: work(lambda: np.ones(shape))
    cupy.zeros = lambda shape: work(lambda: np.zeros(shape))
    cupy.concatenate = lambda tup: work(lambda *arrays: np.concatenate(arrays), *tup)
    cupy.full = lambda shape, fill_value, dtype: work(
        lambda fill: np.full(shape, fill, dtype), fill_value
    )
    cupy.RawKernel = lambda code, name: Kernel(machine)
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(
        total_bytes=lambda: machine.device_bytes
    )
    cupy.get_default_pinned_memory_pool = lambda: types.SimpleNamespace(
        n_free_blocks=lambda: sum(map(len, machine.free_pinned.values()))
    )
    cupy.cuda = _make_cuda(machine)
    return cupy


def _make_cuda(machine: Machine) -> types.SimpleNamespace:
    class BoundStream(Stream):
        null = machine.null

        def __init__(self, non_blocking: bool) -> None:
            assert non_blocking
            machine.n_streams += 1
            super().__init__(machine, machine.n_streams, machine.device_id)

    def event(block: bool = False, disable_timing: bool = False) -> Event:
        return Event(machine)

    class BoundDevice(Device):
        def __init__(self, device: int | None = None) -> None:
            super().__init__(machine, device)

    def alloc(size: int) -> MemoryPointer:
        machine.fail("alloc")
        return MemoryPointer(PooledMemory(machine, size), 0)

    def alloc_pinned_memory(size: int) -> Any:
        machine.fail("alloc_pinned_memory")
        return alloc_pinned(machine, size)

    return types.SimpleNamespace(
        Device=BoundDevice,
        Event=event,
        MemoryPointer=MemoryPointer,
        Stream=BoundStream,
        UnownedMemory=UnownedMemory,
        alloc=alloc,
        alloc_pinned_memory=alloc_pinned_memory,
        get_current_stream=lambda: machine.current,
        runtime=types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            getDevice=lambda: machine.device_id,
            getDeviceCount=machine.count_devices,
            hostRegister=machine.register,
            hostUnregister=machine.unregister,
            setDevice=machine.set_device,
        ),
    )
