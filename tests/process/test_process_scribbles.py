"""Shared state attacked: whatever is written over the shared segment, the parent neither crashes
nor hangs nor reads wild. What comes is right, or an error of the library, and in time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples_of import Blocks
from outside import HANG, HERE, environment, wait_until
from scribbled import BOUND
from scribbler import DEEDS, Scribbler, memory_of, regions

REGIONS = [*regions((1, 1, 1, 1, 4096)), "all", "payload"]
FILLS = {"zeros": 0, "ones": 0xFF, "flips": 0x55}


def attack(
    directory: Path,
    attacks: list[tuple[Any, ...]],
    deed: Callable[[list[Scribbler], threading.Event], None],
) -> list[dict[str, Any]]:
    """Runs one iterator for each (region, deed, seed) beside `deed`; gives what each has seen."""
    program = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", HERE / "scribbled.py", directory, str(len(attacks))],
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
    if "memfd:" not in os.readlink(path):
        pytest.skip("the portable path: what shm_open gives takes no seals")
    for size in (0, 4096, os.stat(path).st_size + 4096):
        with pytest.raises(OSError) as caught:
            os.truncate(path, size)
        assert caught.value.errno == errno.EPERM
    assert np.array_equal(np.stack(first), np.arange(8 * 64).reshape(8, 64))
    assert np.array_equal(next(iterator)[0], np.arange(64) + 8 * 64)
