"""Memory of this process that is a mapping of a file, which another process can map, too.

The system's table of mappings lists such memory, whether NumPy, torch, Arrow or a library in
another language has mapped it. Linux has this table; elsewhere no mapping is found.
"""

from __future__ import annotations

import bisect
import contextlib
import operator
import os
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# start, end, writable, shared or private, offset, inode, path
_LINE = re.compile(rb"^(\w+)-(\w+) r([w-])-([sp]) (\w+) \S+ (\d+) +(/.*)$", re.MULTILINE)
_PRIVATE_BYTES = re.compile(rb"^(?:Anonymous|Swap): +(\d+) kB$", re.MULTILINE)
_GONE = b" (deleted)"
_OF_TORCH = b"/dev/shm/torch_"  # tensors in shared memory: torch's own handles keep them


class MappedFile(NamedTuple):
    """A part of a file that is mapped, for a process that maps it again."""

    path: str
    device: int
    inode: int
    offset: int
    nbytes: int
    is_writable: bool
    is_shared: bool  # what is written goes to the file, and to the other processes

    def open(self) -> int:
        """A descriptor of the file. OSError if it cannot be opened, or has become another one."""
        is_written = self.is_writable and self.is_shared
        fd = os.open(self.path, (os.O_RDWR if is_written else os.O_RDONLY) | os.O_CLOEXEC)
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == (self.device, self.inode):
            return fd
        os.close(fd)
        raise OSError(
            f"{self.path} is another file than the one that the dataset has mapped: it was replaced"
            " since. Make the dataset again, or give the new file another name"
        )


class _Region(NamedTuple):
    start: int
    end: int
    path: bytes
    offset: int
    inode: int
    is_writable: bool
    is_shared: bool

    def continues(self, other: _Region) -> bool:
        """Whether it is the rest of a mapping that the system lists in parts."""
        return self[2:3] + self[4:] == other[2:3] + other[4:] and (self.start, self.offset) == (
            other.end,
            other.offset + other.end - other.start,
        )


class FileMappings:
    """The mappings of files as this process has them at the first call."""

    def __init__(self, least: int) -> None:
        self._least = least  # bytes of memory that is worth a mapping
        self._regions: list[_Region] | None = None
        self._numbers: dict[_Region, int] = {}  # of those in `used`; -1: cannot be mapped again
        self.used: list[MappedFile] = []  # what `find` has found

    def find(self, start: int, nbytes: int) -> tuple[int, int] | None:
        """The number of the mapping in `used`, and the offset in it, of some memory. None if that
        has to be copied.

        Little memory is, too, unless writes to it are shared.
        """
        region = self._region(start, nbytes)
        if region is None or not nbytes:
            return None
        if nbytes < self._least and not (region.is_shared and region.is_writable):
            return None
        if region not in self._numbers:
            self._numbers[region] = self._use(region)
        number = self._numbers[region]
        return None if number < 0 else (number, start - region.start)

    def is_of_file(self, address: int) -> bool:
        """Whether an address lies in a mapping of a file that has a name."""
        return self._region(address, 1) is not None

    def whole(self, array: npt.NDArray[Any]) -> npt.NDArray[np.uint8] | None:
        """All bytes between the first and the last one of an array, if `find` finds these."""
        if not array.size:
            return None
        steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        start = _address(array) + sum(step for step in steps if step < 0)
        nbytes = sum(map(abs, steps)) + array.itemsize
        if self.find(start, nbytes) is None:
            return None
        return np.asarray(_Bytes(start, nbytes, not array.flags.writeable))

    def _region(self, start: int, nbytes: int) -> _Region | None:
        if self._regions is None:
            self._regions = _regions()
        at = bisect.bisect_right(self._regions, start, key=operator.attrgetter("start")) - 1
        if at < 0 or start + nbytes > self._regions[at].end:
            return None
        return self._regions[at]

    def _use(self, region: _Region) -> int:
        unescaped = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), region.path)
        path = os.fsdecode(unescaped)
        with contextlib.suppress(OSError):
            found = os.stat(path)
            file = MappedFile(
                path,
                found.st_dev,
                found.st_ino,
                region.offset,
                region.end - region.start,
                region.is_writable,
                region.is_shared,
            )
            if found.st_ino == region.inode and (region.is_shared or _is_unchanged(region)):
                os.close(file.open())
                self.used.append(file)
                return len(self.used) - 1
        return -1


class _Bytes:
    """Memory as NumPy takes it."""

    def __init__(self, start: int, nbytes: int, is_readonly: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (nbytes,),
            "data": (start, is_readonly),
        }


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def address_of(buffer: memoryview) -> int:
    return _address(np.frombuffer(buffer, np.uint8)) if buffer.nbytes else 0


def _regions() -> list[_Region]:
    """Mappings of files that have a name, by address, without torch's shared memory."""
    found: list[_Region] = []
    for line in _LINE.findall(_table("maps")):
        start, end, writable, shared, offset, inode, path = line
        if path.endswith(_GONE) or path.startswith(_OF_TORCH):
            continue
        region = _Region(
            int(start, 16),
            int(end, 16),
            path,
            int(offset, 16),
            int(inode),
            writable == b"w",
            shared == b"s",
        )
        if found and region.continues(found[-1]):
            region = region._replace(start=found[-1].start, offset=found[-1].offset)
            found[-1] = region
        else:
            found.append(region)
    return found


def _is_unchanged(region: _Region) -> bool:
    """Whether a private mapping has no page that this process has written, which no other process
    would see."""
    inside = False
    for part in re.split(rb"^(?=[0-9a-f]+-[0-9a-f]+ )", _table("smaps"), flags=re.MULTILINE):
        start = int(part.partition(b"-")[0] or b"0", 16)
        if region.start <= start < region.end:
            inside = True
            if any(int(kilobytes) for kilobytes in _PRIVATE_BYTES.findall(part)):
                return False
    return inside


def _table(name: str) -> bytes:
    with contextlib.suppress(OSError), open(f"/proc/self/{name}", "rb") as file:
        return file.read()
    return b""
