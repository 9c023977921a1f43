"""Opens the shared segment of a living iterator from outside and scribbles over it."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from outside import OUR_FILES

_PAGE = 4096
_LINE = 64
_SCHEMA_BYTES = _START_ERROR_BYTES = 64 << 10
_TRACE_BYTES = 1 << 20
_HUGE = 2 << 20


class Region(NamedTuple):
    """A part of the segment, in bytes from its start, and the stride of what it holds."""

    start: int
    bytes: int
    stride: int


def regions(geometry: tuple[int, int, int, int, int]) -> dict[str, Region]:
    """The byte map of csrc/README.md: the control area's parts by name."""
    slots, workers, rows, schemas, _ = geometry
    areas = [
        ("board", 1, 64, _LINE),
        ("map", slots, 4, _LINE),
        ("pwait", 1, 8, _LINE),
        ("bells", workers, 4, _LINE),
        ("worker_stats", workers, 128, _LINE),
        ("slots", slots, 128, _LINE),
        ("words", slots * rows, 8, _LINE),
        ("indices", slots * rows, 8, _LINE),
        ("entries", slots * rows, 16, _LINE),
        ("schemas", schemas, _SCHEMA_BYTES, _PAGE),
        ("start_errors", workers, _START_ERROR_BYTES, _PAGE),
    ]
    found = {}
    end = 0
    for name, count, size, alignment in areas:
        start = -(-end // alignment) * alignment
        found[name] = Region(start, count * size, size)
        end = start + count * size
    return found


def payload_start(geometry: tuple[int, int, int, int, int]) -> int:
    """Offset of the first slot's payload."""
    last = regions(geometry)["start_errors"]
    traces = geometry[1] * _TRACE_BYTES
    return -(-(last.start + last.bytes + traces) // _HUGE) * _HUGE


def memory_of(pid: int) -> str:
    """Path of the segment's file, as another process finds it: the largest of fastiter's."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            link = os.readlink(entry)
            if any(name in link for name in OUR_FILES):
                found.append((os.stat(entry).st_size, str(entry)))
    return max(found)[1]


def _flip(rng: random.Random, size: int, old: bytes) -> bytes:
    number = int.from_bytes(old, "little")
    for _ in range(rng.choice([1, 1, 1, 2])):
        number ^= 1 << rng.randrange(8 * size)
    return number.to_bytes(size, "little")


def _near(rng: random.Random, size: int, old: bytes) -> bytes:
    number = int.from_bytes(old, "little") + rng.choice([-64, -8, -2, -1, 1, 2, 8, 64])
    return (number % (1 << 8 * size)).to_bytes(size, "little")


#: Changes of a word of `size` bytes.
DEEDS: dict[str, Callable[[random.Random, int, bytes], bytes]] = {
    "flip": _flip,
    "near": _near,
    "random": lambda rng, size, old: rng.randbytes(size),
    "small": lambda rng, size, old: rng.randrange(256).to_bytes(size, "little"),
    "ones": lambda rng, size, old: b"\xff" * size,
    "zeros": lambda rng, size, old: bytes(size),
}


class Scribbler:
    """Scribbles at random, by a seed, into one region or all of them.

    Parameters
    ----------
    pid : of the process that has the iterator.
    geometry : of the iterator's arena.
    region : a name of `regions`, "payload", or "all" for the whole control area.
    deed : a name of `DEEDS`, or "any".
    """

    def __init__(
        self,
        pid: int,
        geometry: tuple[int, int, int, int, int],
        region: str,
        deed: str,
        seed: int | str,
    ):
        self._rng = random.Random(seed)
        self._deed = deed
        known = regions(geometry)
        if region == "all":
            self._places = list(known.values())
        elif region == "payload":
            # Of the slots used first, as far as something is likely to lie there.
            start = payload_start(geometry)
            self._places = [Region(start + slot * geometry[4], 16 << 10, 8) for slot in range(3)]
        else:
            self._places = [known[region]]
        size = max(place.start + place.bytes for place in self._places)
        with open(memory_of(pid), "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), -(-size // _PAGE) * _PAGE)

    def scribble(self, times: int = 1) -> None:
        """Overwrites this many words, or runs of words."""
        rng = self._rng
        for _ in range(times):
            place = rng.choice(self._places)
            deed = DEEDS[rng.choice(sorted(DEEDS)) if self._deed == "any" else self._deed]
            size = rng.choice([1, 4, 8, 8, 8])
            # Of large records mostly the beginning, where something is.
            within = place.bytes if rng.random() < 0.3 else min(place.bytes, 16 * place.stride)
            if place.stride > 128:
                record = rng.randrange(place.bytes // place.stride) * place.stride
                offset = record + rng.randrange(0, 512, size)
            else:
                offset = rng.randrange(0, max(size, within - size + 1), size)
            words = rng.choice([1, 1, 1, 16])
            for word in range(words):
                at = place.start + offset + word * size
                if at + size <= place.start + place.bytes:
                    self._memory[at : at + size] = deed(rng, size, self._memory[at : at + size])

    def fill(self, byte: int) -> None:
        """Fills the whole of it."""
        for place in self._places:
            self._memory[place.start : place.start + place.bytes] = bytes([byte]) * place.bytes

    def close(self) -> None:
        self._memory.close()
