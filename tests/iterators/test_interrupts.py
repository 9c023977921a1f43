"""Signal handlers that raise at any moment of `next()`: no batch is lost, none comes twice."""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, concat_examples

HANG = 60
KINDS: dict[str, Any] = {
    "serial": SerialIterator,
    "threads": lambda *args, **kwargs: MultithreadIterator(
        *args, n_threads=3, n_prefetch=3, **kwargs
    ),
    "processes": lambda *args, **kwargs: MultiprocessIterator(
        *args, n_processes=2, n_prefetch=3, context="fork", **kwargs
    ),
}
SIZE, BATCH = 60, 4


class Rows:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> np.ndarray:
        return np.full(3, index)


class Broken(Rows):
    def __getitem__(self, index: int) -> np.ndarray:
        if index % 9 == 4:
            raise ValueError(index)
        return super().__getitem__(index)


def stacked(examples: list[Any], device: Any) -> np.ndarray:
    return np.stack(examples)


@pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")
@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("converter", [None, concat_examples, stacked])
@pytest.mark.parametrize("kind", KINDS)
def test_interrupts_at_any_moment(kind, converter, broken, request, monkeypatch):
    arguments = {"on_error": "skip", "skip_limit": None} if broken else {}
    iterator = KINDS[kind](
        Broken() if broken else Rows(), BATCH, shuffle=False, converter=converter, **arguments
    )
    next(iterator)  # imports of compiled modules swallow what a handler raises
    generator = random.Random(2)
    # A row that hangs is fetched again within the second, and that is to be interrupted, too.
    delays = [2e-3, 2e-3, 0.6] if request.config.getoption("--stuck-rows") else [2e-3]
    n_interrupts = n_batches = 0
    end = time.monotonic() + HANG

    def handler(number: int, frame: Any) -> None:
        # The next one may come when what the last one has raised has just left `iterate`.
        while frame is not None and frame.f_code is not iterate.__code__:
            frame = frame.f_back
        if frame is not None:
            raise KeyboardInterrupt

    def position() -> int:
        return iterator.epoch * SIZE + iterator.current_position

    def is_enough() -> bool:
        assert time.monotonic() < end, f"{n_interrupts} interrupts, {n_batches} batches"
        return n_interrupts > 60 and n_batches > 60

    def iterate() -> None:
        nonlocal n_batches, before
        # Again every 0.1 s: what a handler raises inside a weak reference's callback is lost.
        signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, generator.choice(delays)), 0.1)
        while not is_enough():
            batch = next(iterator)
            found = [int(row[0]) for row in batch]
            batch = None
            after = position()
            rows = [row % SIZE for row in range(before, after)]
            assert after == before + BATCH
            assert found == [row for row in rows if not (broken and row % 9 == 4)]
            before = after
            n_batches += 1

    # pytest's own would take an interrupt amid its work for an error of the test.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    former = signal.signal(signal.SIGALRM, handler)
    before = position()
    try:
        while not is_enough():
            try:
                # CPython 3.13 leaves the jump back of a loop that ends a try outside of the try.
                iterate()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_interrupts += 1
                # It may have come when the batch was delivered, but not yet bound to its name.
                assert position() - before in (0, BATCH)
                before = position()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
        # CPython drops what is raised within a hook of a fork. That of logging may then have kept
        # its lock, for which forks of other threads would wait for ever.
        with contextlib.suppress(RuntimeError):
            while True:
                logging._lock.release()
    assert sum(record.times for record in iterator.skipped) == (
        sum(row % SIZE % 9 == 4 for row in range(before)) if broken else 0
    )
    iterator.close()


def test_an_interrupt_while_a_seed_is_read_is_raised_as_it_is() -> None:
    """The check of a list against an abstract class runs Python code, and with it the handler."""
    from fastiter.random import permutation

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    rng, count = random.Random(0), 0
    try:
        for _ in range(500):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 2e-4))
                while True:
                    permutation(1, [1, 2, 3])
            count += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert count == 500
