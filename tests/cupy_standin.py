"""A stand-in for the few parts of CuPy that transfers use. It is no GPU, and tests none.

Nothing that is put on a stream happens until `Machine.step` picks it, at random among the heads of
all streams that no event holds up: so copies are late, and streams overtake each other, as far
as CUDA allows it. Copies read the host's memory when they happen, and that has to be pinned, or
registered all the while as one range. Device memory comes from a pool with CuPy's rule, and its
least friendly choice: a stream gets at once the memory that was freed last, whoever still uses it.
Pinned memory that is freed is overwritten, and handed out again likewise.
"""

from __future__ import annotations

import ctypes
import random
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

GARBAGE = 0xA5


class CUDARuntimeError(RuntimeError):
    pass


class Machine:
    """All GPUs, their streams, and what is to happen on them."""

    def __init__(self, seed: int = 0, n_devices: int = 2) -> None:
        self.random = random.Random(seed)
        self.n_devices = n_devices
        self.device_id = 0
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.current = {i: [Stream(self, 0, -1)] for i in range(n_devices)}
        self.n_streams = 0
        self.blocks: list[np.ndarray] = []  # all memory there is; as CUDA's it is valid to the end
        self.free: dict[tuple[int, int, int], list[np.ndarray]] = defaultdict(list)
        self.free_pinned: dict[int, list[np.ndarray]] = defaultdict(list)
        self.device_bytes = 0  #: ever allocated, not counting what is used again
        self.pinned_bytes = 0
        self.registered: dict[int, int] = {}  # bytes, by address
        self.registrations: list[tuple[int, int]] = []  #: all that there ever were
        self.device_waits = self.stream_waits = self.event_waits = 0  #: times that the host waited
        self.fail: Callable[[str], None] = lambda operation: None  #: may raise; called before each

    def put(self, stream: Stream, operation: Callable[[], None] | Ticket) -> None:
        """What the stream is to do after all else that was put on it: call, or wait."""
        self.queues[stream.queue].append(operation)

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        ready = [q for q in self.queues.values() if q and (callable(q[0]) or q[0].is_done)]
        if not ready:
            return False
        operation = self.random.choice(ready).popleft()
        if callable(operation):
            operation()
        return True

    def some_steps(self, most: int) -> None:
        for _ in range(self.random.randrange(most + 1)):
            self.step()

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.step()

    def go_on(self) -> None:
        """Let all happen that can."""
        while self.step():
            pass

    def finish(self) -> None:
        self.go_on()
        assert not any(self.queues.values()), "streams wait for each other"

    def is_pinned(self, address: int, nbytes: int) -> bool:
        """Whether a copy may read there: from one block of ours, or one registered range."""
        ranges = [*self.registered.items(), *((b.ctypes.data, b.nbytes) for b in self.blocks)]
        return any(at <= address and address + nbytes <= at + size for at, size in ranges)

    def register(self, address: int, nbytes: int, flags: int) -> None:
        self.fail("hostRegister")
        assert flags == 1
        for at, size in self.registered.items():
            assert address + nbytes <= at or at + size <= address, "registered already"
        self.registered[address] = nbytes
        self.registrations.append((address, nbytes))

    def unregister(self, address: int) -> None:
        self.fail("hostUnregister")
        del self.registered[address]

    def kernel(self, stream: Any, array: Array, note: Callable[[np.ndarray], None]) -> None:
        """Work on a stream that reads an array: ``note`` gets its content as it is then."""
        content = array.content
        self.put(stream, lambda: note(content.copy()))


class Ticket:
    """One record of an event; streams wait for the record that was the last when they were told."""

    is_done = False

    def mark(self) -> None:
        self.is_done = True


class Stream:
    def __init__(self, machine: Machine, ptr: int, device_id: int) -> None:
        self.machine, self.ptr, self.device_id = machine, ptr, device_id

    @property
    def queue(self) -> tuple[int, int]:
        device_id = self.machine.device_id if self.device_id == -1 else self.device_id
        return device_id, self.ptr

    def __enter__(self) -> None:
        assert self.device_id in (-1, self.machine.device_id)
        self.machine.current[self.machine.device_id].append(self)

    def __exit__(self, *_: object) -> None:
        self.machine.current[self.machine.device_id].pop()

    def wait_event(self, event: Event) -> None:
        self.machine.fail("wait_event")
        self.machine.put(self, event.ticket)

    def synchronize(self) -> None:
        self.machine.stream_waits += 1
        self.machine.run_until(lambda: not self.machine.queues[self.queue])


class Event:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.ticket = machine, Ticket()
        self.ticket.mark()  # an event that was never recorded counts as done

    def record(self, stream: Stream) -> None:
        self.machine.fail("record")
        self.ticket = Ticket()
        self.machine.put(stream, self.ticket.mark)

    @property
    def done(self) -> bool:
        return self.ticket.is_done

    def __del__(self) -> None:
        self.machine.fail("eventDestroy")

    def synchronize(self) -> None:
        ticket = self.ticket
        self.machine.event_waits += not ticket.is_done
        self.machine.run_until(lambda: ticket.is_done)


class Device:
    def __init__(self, machine: Machine, device_id: int) -> None:
        self.machine, self.id = machine, device_id
        self.before: list[int] = []

    def __enter__(self) -> None:
        self.before.append(self.machine.device_id)
        self.machine.device_id = self.id

    def __exit__(self, *_: object) -> None:
        self.machine.device_id = self.before.pop()


class PooledMemory:
    """Device memory that goes back to the stream that was current when it was allocated."""

    def __init__(self, machine: Machine, nbytes: int) -> None:
        nbytes += -nbytes % 512
        device_id = machine.device_id
        self.free = machine.free[device_id, machine.current[device_id][-1].ptr, nbytes]
        if not self.free:
            machine.device_bytes += nbytes
            machine.blocks.append(np.full(nbytes, GARBAGE, np.uint8))
        self.content = self.free.pop() if self.free else machine.blocks[-1]

    @property
    def ptr(self) -> PooledMemory:
        return self  # for UnownedMemory; nobody looks at the number

    def __del__(self) -> None:
        self.free.append(self.content)


class UnownedMemory:
    def __init__(self, ptr: PooledMemory, size: int, owner: Any, device_id: int) -> None:
        self.content, self.size, self.owner, self.device_id = ptr.content, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int) -> None:
        assert offset == 0
        self.mem = mem


class Pinned(np.ndarray):
    """Pinned memory; what is queued to read it does not keep it."""


def alloc_pinned(machine: Machine, nbytes: int) -> Pinned:
    free = machine.free_pinned[nbytes]
    if not free:
        machine.pinned_bytes += nbytes
        machine.blocks.append(np.empty(nbytes, np.uint8))
    content = free.pop() if free else machine.blocks[-1]

    def take_back() -> None:
        content[...] = GARBAGE
        free.append(content)

    pinned = content.view(Pinned)
    weakref.finalize(pinned, take_back)
    return pinned


def make_cupy(machine: Machine) -> types.ModuleType:
    """A module to put in the place of CuPy."""
    cupy: Any = types.ModuleType("cupy")
    cupy.__doc__ = __doc__

    class BoundArray(Array):
        bound_to = machine

    def stream(non_blocking: bool) -> Stream:
        assert non_blocking
        machine.n_streams += 1
        return Stream(machine, machine.n_streams, machine.device_id)

    def event(block: bool, disable_timing: bool) -> Event:
        assert block
        assert disable_timing
        return Event(machine)

    def alloc(nbytes: int) -> PooledMemory:
        machine.fail("alloc")
        return PooledMemory(machine, nbytes)

    def alloc_pinned_memory(nbytes: int) -> Any:
        machine.fail("alloc_pinned_memory")
        return alloc_pinned(machine, nbytes)

    def device_count() -> int:
        machine.fail("getDeviceCount")
        return machine.n_devices

    def synchronize() -> None:
        machine.device_waits += 1
        machine.finish()

    cupy.ndarray = BoundArray
    cupy.array = BoundArray.of
    cupy.cuda = types.SimpleNamespace(
        Device=lambda i: Device(machine, i),
        Event=event,
        MemoryPointer=MemoryPointer,
        Stream=stream,
        UnownedMemory=UnownedMemory,
        alloc=alloc,
        alloc_pinned_memory=alloc_pinned_memory,
        get_current_stream=lambda: machine.current[machine.device_id][-1],
        runtime=types.SimpleNamespace(
            CUDARuntimeError=CUDARuntimeError,
            deviceSynchronize=synchronize,
            getDeviceCount=device_count,
            hostRegister=machine.register,
            hostUnregister=machine.unregister,
        ),
    )
    return cupy


class Array:
    """As cupy.ndarray: a shape and a dtype over device memory, which its views keep alive."""

    bound_to: Machine

    def __init__(self, shape: tuple[int, ...], dtype: Any, memptr: MemoryPointer) -> None:
        self.shape, self.dtype, self.data = shape, np.dtype(dtype), memptr
        assert self.dtype.isnative
        n = int(np.prod(shape))
        self.content = memptr.mem.content[: n * self.dtype.itemsize].view(self.dtype).reshape(shape)

    @property
    def device(self) -> Device:
        return Device(self.bound_to, self.data.mem.device_id)

    def set(self, arr: np.ndarray, stream: Stream) -> None:
        self.bound_to.fail("set")
        assert arr.dtype == self.dtype
        assert arr.shape == self.shape
        assert arr.flags.c_contiguous
        machine, there, here, n = (
            self.bound_to,
            self.content.ctypes.data,
            arr.ctypes.data,
            arr.nbytes,
        )

        def copy() -> None:  # keeps nothing alive
            assert machine.is_pinned(here, n), "copied from memory that is not pinned any more"
            ctypes.memmove(there, here, n)

        assert machine.is_pinned(here, n), "to be copied from memory that is not pinned"
        machine.put(stream, copy)

    @classmethod
    def of(cls, array: np.ndarray) -> Array:
        """A copy as cupy.array makes it, on the current stream."""
        machine = cls.bound_to
        memory = PooledMemory(machine, max(array.nbytes, 1))
        borrowed = UnownedMemory(memory, array.nbytes, memory, machine.device_id)
        made = cls(array.shape, array.dtype, MemoryPointer(borrowed, 0))
        machine.blocks.append(array.copy())
        made.set(machine.blocks[-1], machine.current[machine.device_id][-1])
        return made
