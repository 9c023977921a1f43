"""Shared state attacked: whatever is written over the shared segment, the parent neither crashes
nor hangs nor reads wild. What comes is right, or an error of the library, and in time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_of import Blocks
from inside import planner_of, ring_of
from outside import HANG, HERE, environment, lies_in_dev_shm, wait_until
from scribbled import BOUND
from scribbler import DEEDS, Scribbler, memory_of, payload_start, regions

from fastiter import OverwrittenError
from fastiter._ring.serialization import packed_bytes, unpack

REGIONS = [*regions((1, 1, 1, 1, 4096)), "all", "payload"]
FILLS = {"zeros": 0, "ones": 0xFF, "flips": 0x55}


def attack(
    directory: Path,
    attacks: list[tuple[Any, ...]],
    deed: Callable[[list[Scribbler], threading.Event], None],
    *kind: str,
) -> list[dict[str, Any]]:
    """Runs one iterator for each (region, deed, seed) beside `deed`; gives what each has seen."""
    scribbled = [HERE / "scribbled.py", directory, str(len(attacks)), *kind]
    program = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *scribbled],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        start_new_session=True,
    )
    scribblers = []
    try:
        for number, (region, how, seed) in enumerate(attacks):
            place = directory / f"{number}.ready"
            wait_until(place.exists, f"the start of iterator {number}")
            pid, geometry = json.loads(place.read_text())
            scribblers.append(Scribbler(pid, tuple(geometry), region, how, seed))
        deed(scribblers, threading.Event())
        for number, scribbler in enumerate(scribblers):
            scribbler.close()
            (directory / f"{number}.stop").touch()
        out, err = program.communicate(timeout=4 * HANG)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    ends = json.loads(out.splitlines()[-1])
    crashed = [(attacks[number], end) for number, end in enumerate(ends) if end != 0]
    assert not crashed, f"{crashed}\n{err[-6000:]}"
    return [
        json.loads((directory / f"{number}.result").read_text()) for number in range(len(attacks))
    ]


def scribbling(times: int, pause: float) -> Callable[[list[Scribbler], threading.Event], None]:
    def deed(scribblers: list[Scribbler], clock: threading.Event) -> None:
        for _ in range(times):
            for scribbler in scribblers:
                scribbler.scribble()
            clock.wait(pause)

    return deed


def check(attacks: list[tuple[Any, ...]], results: list[dict[str, Any]]) -> None:
    for (region, how, seed), result in zip(attacks, results, strict=True):
        seen, told = result["seen"], f"{region}, {how}, seed {seed!r}: {result}"
        assert not [kind for kind in seen if kind.startswith("unexpected")], told
        if region != "payload":  # what lies in columns is the workers' word alone
            assert "wrong" not in seen, told
        assert [kind for kind in seen if "afterwards" in kind] == ["right afterwards"], told
        assert result["slowest"] < BOUND and result["finalize"] < BOUND, told


def test_scribbles_over_every_region(tmp_path):
    attacks = [(region, "any", 0) for region in REGIONS]
    check(attacks, attack(tmp_path, attacks, scribbling(times=12, pause=0.03)))


def test_scribbles_over_every_region_of_a_torch_loader(tmp_path):
    """Trees and texts in columns, and batches that are made by request."""
    pytest.importorskip("torch", reason="torch is not installed")
    places = ["slots", "entries", "schemas", "all", "payload"]
    attacks = [(region, "any", 0) for region in places for _ in range(2)]
    check(attacks, attack(tmp_path, attacks, scribbling(12, 0.03), "torch"))


def pages_of(batches: Any) -> list[mmap.mmap]:
    """The first page of each slot that is used first."""
    arena = ring_of(batches).arena
    starts = [payload_start(arena.geometry) + slot * arena.geometry[4] for slot in range(8)]
    return [mmap.mmap(arena.fd, 4096, offset=start) for start in starts]


TEXTS = {
    "a size beyond the slot": (0, 1 | 1 << 60),
    "a place beyond the slot": (1 << 62, 1 | 8 << 3),
    "a place before the slot": (-8, 1 | 8 << 3),
    "three bytes a character": (64, 3 | 6 << 3),
    "seven bytes a character": (64, 7 | 7 << 3),
    "half a character": (64, 2 | 7 << 3),
    "an odd place": (65, 2 | 8 << 3),
    "no character": (2048, 4 | 8 << 3),
}


@pytest.mark.parametrize("entry", TEXTS.values(), ids=TEXTS)
def test_a_damaged_text_is_an_error(entry):
    pytest.importorskip("torch", reason="torch is not installed")
    data = pytest.importorskip("fastiter.torch")
    texts = [f"text {i}" for i in range(64)]
    batches = iter(data.DataLoader(texts, 4, num_workers=1, multiprocessing_context="fork"))
    ring = ring_of(batches)
    for _ in range(4):
        next(batches)
    assert ring.schema is not None
    wait_until(lambda: ring.count_ready == len(ring.scheduled) > 0, "batches from columns")
    for slot in pages_of(batches):
        slot[16:32] = struct.pack("<qq", *entry)
        slot[2048:2056] = b"\xff" * 8
    for _ in range(len(ring.scheduled)):
        with pytest.raises(OverwrittenError):
            next(batches)
    rest = list(batches)
    assert rest[-1] == texts[60:]
    assert len(rest) >= 9


class Waiting:
    """Rows that come when there is a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        self.path.with_suffix(".begun").touch()
        wait_until(self.path.exists, "the file")
        return index


def test_a_damaged_request_is_an_error(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    data = pytest.importorskip("fastiter.torch")
    place = tmp_path / "go"
    loader = data.DataLoader(
        Waiting(place), 2, num_workers=1, collate_fn=list, multiprocessing_context="fork"
    )
    batches = iter(loader)
    ring = ring_of(batches)
    ring.top_up(planner_of(batches))
    wait_until(place.with_suffix(".begun").exists, "the first row")
    n_damaged = len(ring.scheduled) - 1  # the first one's was read
    for slot in pages_of(batches):
        slot[20] ^= 1
    place.touch()
    found = []
    for _ in range(8):
        try:
            found.append(next(batches))
        except OverwrittenError:
            found.append(None)
    assert n_damaged > 0
    whole = ([i, i + 1] for i in range(2 + 2 * n_damaged, 16, 2))
    assert found == [[0, 1], *([None] * n_damaged), *whole]


def test_the_control_area_overwritten_as_a_whole(tmp_path):
    attacks = [("all", "any", name) for name in FILLS]

    def fill(scribblers: list[Scribbler], clock: threading.Event) -> None:
        for scribbler, byte in zip(scribblers, FILLS.values(), strict=True):
            scribbler.fill(byte)

    check(attacks, attack(tmp_path, attacks, fill))


@pytest.mark.stress
@pytest.mark.parametrize("how", DEEDS)
def test_many_scribbles(tmp_path, how):
    attacks = list(itertools.product(REGIONS, [how], [os.urandom(8).hex() for _ in range(3)]))
    check(attacks, attack(tmp_path, attacks, scribbling(times=300, pause=0.05)))


def test_the_segment_cannot_be_truncated(make):
    iterator = make(Blocks(64), 8)
    first = next(iterator)
    path = memory_of(os.getpid())
    if lies_in_dev_shm():
        pytest.skip("the portable path: what shm_open gives takes no seals")
    for size in (0, 4096, os.stat(path).st_size + 4096):
        with pytest.raises(OSError) as caught:
            os.truncate(path, size)
        assert caught.value.errno == errno.EPERM
    assert np.array_equal(np.stack(first), np.arange(8 * 64).reshape(8, 64))
    assert np.array_equal(next(iterator)[0], np.arange(64) + 8 * 64)


def test_a_place_at_the_end_of_a_slot_holds_no_object():
    memory = bytes(packed_bytes([1]))
    assert unpack(memoryview(memory)) == [1]
    for at in (len(memory) - 8, len(memory)):
        with pytest.raises(OverwrittenError, match="claims"):
            unpack(memoryview(memory), 1, at)
