"""Datasets that worker processes under spawn and forkserver can import."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Pair(NamedTuple):
    x: Any
    y: Any


class Named(Pair):
    """Still nothing but its items."""

    __slots__ = ()

    @property
    def total(self) -> Any:
        return self.x + self.y


class Marked(Pair):
    """Has attributes of its own beside its items."""


class Pickled(Pair):
    """Comes out of a pickle as another object."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Pair, (self.y, self.x)


WIDE = 256  # elements of a block that stays in the slot; fewer may be copied out of it


class Blocks:
    """Arrays whose every element tells index and position."""

    def __init__(self, size: int, elements: int = 64, dtype: str = "f8"):
        self.size, self.elements, self.dtype = size, elements, dtype

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> np.ndarray:
        return (np.arange(self.elements) + index * self.elements).astype(self.dtype)


class Numbered(Blocks):
    """A block and its index."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return super().__getitem__(index), index


class Hanging:
    """Indices; those in `held` hang at their first touches, `times` each, in the way `how`, and
    leave a file for each touch."""

    def __init__(self, size: int, held: set[int], how: str, folder: Path, times: int = 1):
        self.size, self.held, self.how = size, held, how
        self.folder, self.times = folder, times

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index in self.held:
            touches = len(list(self.folder.glob(f"{index}.*")))
            Path(self.folder, f"{index}.{touches}").touch()
            if touches < self.times:
                hang(self.how)
        return np.full(16, index, np.float32), index


class Loading(Hanging):
    """Each load leaves a file. Once there is a file `shut`, loads hang, and those in `held`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        if Path(self.folder, "shut").exists():
            hang("sleep")
        Path(self.folder, f"load.{os.getpid()}").touch()

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if Path(self.folder, "shut").exists():
            return super().__getitem__(index)
        return np.full(16, index, np.float32), index


class HangingCalls(Hanging):
    """The same for many indices in one call."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def hang(how: str) -> None:
    """Never returns."""
    if how == "read":  # in C, with the GIL
        ends = os.pipe()
        ctypes.PyDLL(None).read(ends[0], ctypes.create_string_buffer(1), 1)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "freeze":
        Path(os.environ["FREEZER"], "cgroup.procs").write_text(str(os.getpid()))
    threading.Event().wait()


class Gated:
    """Indices; those in `held` wait until the file `gate` exists, in short sleeps."""

    def __init__(self, size: int, held: set[int], gate: Path):
        self.size, self.held, self.gate = size, held, gate

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index in self.held:
            Path(f"{self.gate}.{index}").touch()
            while not self.gate.exists():
                time.sleep(0.005)
        return index


class Misfits:
    """Indices, except that `deed` is done at those in `at`, where `once` only the first time.

    `once` is a directory: a file in it tells that the deed was done.
    """

    def __init__(self, size: int, at: set[int], deed: str, once: Path | None = None):
        self.size, self.at, self.deed, self.once = size, at, deed, once

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> np.ndarray:
        if index in self.at and self._may(index):
            do(self.deed)
        return np.full(5, index)

    def _may(self, index: int) -> bool:
        if self.once is None:
            return True
        mark = self.once / str(index)
        if mark.exists():
            return False
        mark.touch()
        return True


def do(deed: str) -> Any:
    """Ends this process, in one way or another."""
    faulthandler.disable()  # where it ends is of no interest
    if deed.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, deed))
        time.sleep(60)
    if deed == "fault":
        import ctypes

        ctypes.string_at(0)
    if deed.startswith("_exit"):
        os._exit(int(deed[5:]))
    raise ValueError(deed)


def killing_converter(batch: Any, device: Any) -> Any:
    """A converter that does not survive the batch with example 7."""
    if any(int(example[0]) == 7 for example in batch):
        os.kill(os.getpid(), signal.SIGKILL)
    return np.stack(batch)


class Spawning(Blocks):
    """Forks a process that outlives the worker until the file `end` is there; at index 5, the first
    time, the worker is killed."""

    def __init__(self, size: int, marks: Path):
        super().__init__(size)
        self.marks = marks

    def __getitem__(self, index: int) -> np.ndarray:
        if index == 5 and not (self.marks / "killed").exists():
            fork_one_that_stays(self.marks)
            (self.marks / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def fork_one_that_stays(marks: Path) -> None:
    """A child of this process that ends when the file `end` is there, or after two minutes."""
    pid = os.fork()
    if pid:
        (marks / f"child.{pid}").touch()
        return
    end = time.monotonic() + 120
    while not (marks / "end").exists() and time.monotonic() < end:
        time.sleep(0.01)
    os._exit(0)


class Unloadable(Blocks):
    """Pickles, and raises on load, or kills the loader."""

    def __init__(self, size: int, deed: str = "raise"):
        super().__init__(size)
        self.deed = deed

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["deed"] == "raise":
            raise LookupError("the file is not on this machine")
        do(state["deed"])


class SlowToLoad(Blocks):
    """Loads once the file `gate` is there; makes another, `gate.loading`, when it begins."""

    def __init__(self, size: int, gate: Path):
        super().__init__(size)
        self.gate = gate

    def __setstate__(self, state: dict[str, Any]) -> None:
        Path(f"{state['gate']}.loading").touch()
        while not state["gate"].exists():
            time.sleep(0.005)
        self.__dict__.update(state)


class Farewell(Blocks):
    """Says goodbye when its worker's interpreter ends, without a flush."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        atexit.register(print, "goodbye")


class Locked(Blocks):
    """Travels only with a process that starts: holds a lock and a shared number."""

    def __init__(self, size: int, method: str):
        super().__init__(size)
        context = multiprocessing.get_context(method)
        self.lock = context.Lock()
        self.count = context.Value("i", 0)

    def __getitem__(self, index: int) -> np.ndarray:
        with self.lock, self.count.get_lock():
            self.count.value += 1
        return super().__getitem__(index)


class Forwarding(Blocks):
    """Its other attributes are those of ``inner``, which loading a pickle sets last."""

    def __init__(self, n):
        super().__init__(n)
        self.inner = []

    def __getattr__(self, name):
        return getattr(self.inner, name)


class Opened(Blocks):
    """Holds what does not pickle, two attributes deep."""

    def __init__(self, size: int):
        super().__init__(size)
        self.source = Source()


class Source:
    def __init__(self) -> None:
        self.name = "a name"
        self.handle = sys.stderr


class Big:
    """Large arrays, of which examples are small."""

    def __init__(self, nbytes: int):
        self.table = np.ones(nbytes // 8)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> np.ndarray:
        part = len(self.table) // 64
        return np.array([index, self.table[index * part : (index + 1) * part].sum()])


class OneArgument(Exception):
    """Does not load: its pickle calls the constructor with one argument."""

    def __init__(self, path: str, line: int):
        super().__init__(f"{path}:{line}")


class Unpicklable(Exception):
    """Refuses to be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle of this")


class NoText(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text of this")


class OwnBase(BaseException):
    """No Exception."""


class ForeignText(Exception):
    """Loads as another type."""

    def __reduce__(self) -> Any:
        return dict, ()


class Sealed(Exception):
    """Takes no attributes, as frozen data classes do, and loads as it was."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field {name!r}")


class Liar(Exception):
    """Loads as itself in the process that raised it, as `kind` says in any other."""

    def __init__(self, kind: str):
        super().__init__(kind)

    def __reduce__(self) -> Any:
        return _load_liar, (os.getpid(), self.args[0])


def _load_liar(pid: int, kind: str) -> Any:
    if os.getpid() == pid:
        return Liar(kind)
    if kind == "raises":
        raise LookupError("not here")
    return {"a class": Liar, "no exception": kind, "an end": StopIteration(3)}[kind]


class Mute(Exception):
    """Tells nothing of itself, not even its class."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name} of this")


class LoadsNot:
    """An example that pickles, but cannot be loaded in any process."""

    def __init__(self, number: int):
        self.number = number

    def __setstate__(self, state: Any) -> None:
        raise KeyError("loads nowhere")


class MyDict(dict):
    pass


class MyTuple(tuple):
    pass


class MyList(list):
    pass


class MyArray(np.ndarray):
    """A subclass with an attribute of its own."""

    unit = "m"


def an_ordered_dict(index: int) -> OrderedDict[str, Any]:
    return OrderedDict([("b", np.arange(3) + index), ("a", index)])


class Collected:
    """An example is the private memory that a garbage collection takes, in bytes."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        before = private_memory()
        gc.collect()
        return private_memory() - before


def private_memory() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private"))
