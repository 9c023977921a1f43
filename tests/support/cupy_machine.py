"""Streams, events, devices and memory of `cupy_standin`. It is no GPU, and tests none.

Nothing that is put on a stream happens until `Machine.step` picks it, at random among the heads of
all streams that no event holds up: so copies are late, and streams overtake each other, as far
as CUDA allows it. Copies read the host's memory when they happen, and that has to be pinned, or
registered all the while as one range. Device memory comes from a pool with CuPy's rule, and its
least friendly choice: a stream gets at once the memory that was freed last, whoever still uses it.
Pinned memory that is freed is overwritten, and handed out again likewise. As in CuPy, leaving a
``with`` of a device or stream goes back to that of the ``with`` around it, and forgets a ``use()``.
Forked children do not have what is registered.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Self

GARBAGE = 0xA5
PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)


class CUDARuntimeError(RuntimeError):
    pass


class Machine:
    """All GPUs, their streams, and what is to happen on them."""

    def __init__(self, seed: int = 0, n_devices: int = 2) -> None:
        self.random = random.Random(seed)
        self.n_devices = n_devices
        self.null = Stream(self, 0, -1)
        self.thread = _PerThread(self.null, n_devices)
        self.lock = threading.RLock()  # nothing happens while another thread asks for something
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
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
        """An operation of the stream after all before it: a call, or a wait."""
        with self.lock:
            self.queues[stream.queue].append(operation)

    def step(self) -> bool:
        """Let one thing happen; False if nothing can."""
        with self.lock:
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
        while True:
            with self.lock:
                if condition():
                    return
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

    def register(self, ptr: int, size: int, flags: int) -> None:
        self.fail("hostRegister")
        address, nbytes = ptr, size
        assert flags == 1
        assert address % PAGE == nbytes % PAGE == 0, "CUDA pins whole pages"
        for at, other in self.registered.items():
            if address < at + other and at < address + nbytes:
                raise CUDARuntimeError("cudaErrorHostMemoryAlreadyRegistered")
        advise(address, nbytes, mmap.MADV_DONTFORK)
        self.registered[address] = nbytes
        self.registrations.append((address, nbytes))

    def unregister(self, ptr: int) -> None:
        self.fail("hostUnregister")
        nbytes = self.registered.pop(ptr, None)
        if nbytes is None:
            raise CUDARuntimeError("cudaErrorHostMemoryNotRegistered")
        advise(ptr, nbytes, mmap.MADV_DOFORK)

    @property
    def current(self) -> Stream:
        """The current stream of the current device."""
        return self.thread.streams[self.thread.device_id]

    @property
    def device_id(self) -> int:
        """The current device."""
        return self.thread.device_id

    def count_devices(self) -> int:
        self.fail("getDeviceCount")
        return self.n_devices

    def set_device(self, device: int) -> None:
        self.fail("setDevice")
        if not 0 <= device < self.n_devices:
            raise CUDARuntimeError("cudaErrorInvalidDevice")
        self.thread.device_id = device

    def kernel(self, stream: Any, array: Any, note: Callable[[np.ndarray], None]) -> None:
        """Work on a stream that reads an array: ``note`` gets its content as it is then."""
        content = array.content
        self.put(stream, lambda: note(content.copy()))


def advise(address: int, nbytes: int, advice: int) -> None:
    """CUDA does not say whether forked children have what is registered; here they do not."""
    assert libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), advice) == 0


class _PerThread(threading.local):
    """The current device, its current stream, and the with-blocks of both."""

    def __init__(self, null: Stream, n_devices: int) -> None:
        self.device_id = 0
        self.device_stack = [0]
        self.streams = dict.fromkeys(range(n_devices), null)
        self.stream_stacks = {i: [null] for i in range(n_devices)}


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

    def __enter__(self) -> Self:
        self.use()
        self.machine.thread.stream_stacks[self.machine.device_id].append(self)
        return self

    def __exit__(self, *_: object) -> None:
        thread = self.machine.thread
        thread.stream_stacks[thread.device_id].pop()
        thread.streams[thread.device_id] = thread.stream_stacks[thread.device_id][-1]

    def use(self) -> Self:
        assert self.device_id in (-1, self.machine.device_id)
        self.machine.thread.streams[self.machine.device_id] = self
        return self

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

    def record(self, stream: Stream | None = None) -> None:
        self.machine.fail("record")
        self.ticket = Ticket()
        self.machine.put(self.machine.current if stream is None else stream, self.ticket.mark)

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
    attributes = {"ClockRate": 1}  # noqa: RUF012 - read only

    def __init__(self, machine: Machine, device_id: int | None) -> None:
        self.machine, self.id = machine, machine.device_id if device_id is None else device_id

    def __enter__(self) -> Self:
        self.use()
        self.machine.thread.device_stack.append(self.id)
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.thread.device_stack.pop()
        self.machine.set_device(self.machine.thread.device_stack[-1])

    def use(self) -> None:
        self.machine.set_device(self.id)

    def synchronize(self) -> None:
        self.machine.device_waits += 1
        self.machine.finish()


def _last_of(content: np.ndarray, function: Callable[[], None]) -> np.ndarray:
    """An array that calls a function when the last reference to it goes.

    The collector does not track plain arrays. What it tracks is finalized as soon as it is found to
    be garbage, also if another finalizer brings it back to life; CuPy's memory goes when it is
    deallocated, and no sooner.
    """
    last = content.view(np.ndarray)
    assert not gc.is_tracked(last)
    weakref.finalize(last, function).atexit = False
    return last


class PooledMemory:
    """Device memory that goes back to the stream that was current when it was allocated."""

    def __init__(self, machine: Machine, nbytes: int) -> None:
        nbytes += -nbytes % 512
        self.device_id = machine.device_id
        free = machine.free[self.device_id, machine.current.ptr, nbytes]
        if not free:
            machine.device_bytes += nbytes
            machine.blocks.append(np.full(nbytes, GARBAGE, np.uint8))
        content = self.content = free.pop() if free else machine.blocks[-1]
        self._last = _last_of(content, lambda: free.append(content))


class UnownedMemory:
    def __init__(self, ptr: Address, size: int, owner: Any, device_id: int) -> None:
        self.content, self.size, self.owner, self.device_id = ptr.content, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: PooledMemory | UnownedMemory, offset: int) -> None:
        assert offset == 0
        self.mem = mem

    @property
    def ptr(self) -> Address:
        return Address.of(self.mem.content)


class Address(int):
    """The address of memory, and its content."""

    content: np.ndarray

    @classmethod
    def of(cls, content: np.ndarray) -> Address:
        address = cls(content.ctypes.data)
        address.content = content
        return address


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
