"""Signal handlers that raise at any moment of `next()`: no batch is lost, none comes twice."""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import random
import signal
import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from interrupts import Interrupts, interrupted_by_timer

from fastiter import MultiprocessIterator, MultithreadIterator, SerialIterator, concat_examples
from fastiter.datasets import StreamDataset

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
# An interrupt may come between the opening of a file of /proc, and the `with` that closes it.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
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
    batch: Any = None  # what the loop has bound last

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

    def check() -> None:
        """The loop has each batch that was delivered, and no other. May itself be interrupted."""
        nonlocal before, n_batches, batch
        if batch is None:
            assert position() == before
            return
        found = [int(row[0]) for row in batch]
        rows = [row % SIZE for row in range(before, before + BATCH)]
        assert position() == before + BATCH
        assert found == [row for row in rows if not (broken and row % 9 == 4)]
        # No handler runs between these.
        before, n_batches, batch = before + BATCH, n_batches + 1, None

    def iterate() -> None:
        nonlocal batch
        # Again every 0.1 s: what a handler raises inside a weak reference's callback is lost.
        signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, generator.choice(delays)), 0.1)
        for batch in iterator:  # noqa: B007 - `check` reads it
            check()
            if is_enough():
                break

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
                check()
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


def stream_of(rows: Rows) -> StreamDataset:
    return StreamDataset([0, 1, 2], lambda shard: (rows[i] for i in range(shard, SIZE, 3)))


LOOPS: dict[str, Any] = {
    **{kind: (kind, Rows, {}) for kind in KINDS},
    **{f"{kind}, converter": (kind, Rows, {"converter": concat_examples}) for kind in KINDS},
    **{f"{kind}, ranks": (kind, Rows, {"rank": 1, "num_ranks": 2}) for kind in KINDS},
    **{
        f"{kind}, skips": (kind, Broken, {"on_error": "skip", "skip_limit": None}) for kind in KINDS
    },
    **{f"{kind}, seeded": (kind, Rows, {"seed_examples": 5}) for kind in KINDS},
    **{f"{kind}, stream": (kind, lambda: stream_of(Rows()), {}) for kind in KINDS},
    "processes, any order": ("processes", Rows, {"in_order": False}),
}


def starts() -> Iterator[Any]:
    """Kinds of loop, and which thirds of the lines of a start are interrupted, too. Workers are
    started by the same lines in each kind of loop over them, hundreds that fork again: a third of
    them in one kind, the others nightly."""
    nightly = [pytest.mark.stress]
    for kind, (make, *_) in LOOPS.items():
        if make != "processes":
            yield kind, None, (0, 1, 2)
        elif kind == "processes":
            for third in range(3):
                yield pytest.param(kind, None, (third,), marks=nightly if third else [])
        else:
            yield pytest.param(kind, None, (0, 1, 2), marks=nightly)
            yield kind, None, ()
        is_like_others = make == "processes" and kind not in ("processes", "processes, stream")
        yield pytest.param(kind, 1, (), marks=nightly if is_like_others else [])


@pytest.mark.filterwarnings("ignore:worker processes are forked:RuntimeWarning")
@pytest.mark.parametrize(("kind", "seed", "starts"), list(starts()), ids=str)
def test_interrupts_at_each_line(kind: str, seed: int | None, starts: tuple[int, ...]) -> None:
    """A `for` loop, interrupted at each line of the package, has each batch once, in order; and
    states saved at interrupts go on where the loop was."""
    make, dataset, arguments = LOOPS[kind]
    shuffle = {} if "stream" in kind else {"shuffle": False}
    n_batches = 2 * SIZE // BATCH

    def iterator_of() -> Any:
        return KINDS[make](dataset(), BATCH, **shuffle, **arguments)

    with iterator_of() as iterator:
        expected = [rows_of(next(iterator)) for _ in range(n_batches)]
    with iterator_of() as iterator:
        # The start has too many lines to be left alone by chance; so have, several times in a row,
        # the hundreds of lines of a stream's batch, all of which run again after an interrupt.
        found = [] if starts else [rows_of(next(iterator))]
        interrupts = Interrupts(seed, 0.004, starts or (0, 1, 2))
        states = interrupted(iterator, found, n_batches, interrupts)
        while (
            kind == "processes, any order" and iterator.epoch < 2
        ):  # until all of both are delivered
            found.append(rows_of(next(iterator)))
    assert interrupts.count > 20 or seed is not None
    if kind == "processes, any order":
        counts = collections.Counter(map(tuple, found))  # some may be of a third epoch
        assert all(counts[tuple(rows)] in (2, 3) for rows in expected)
        return
    assert found == expected
    for n_before, state in states:
        with iterator_of() as again:
            again.load_state_dict(state)
            following = [rows_of(next(again)) for _ in range(3)]
        assert following == (expected * 2)[n_before : n_before + 3]


def rows_of(batch: Any) -> list[int]:
    return [int(row[0]) for row in batch]


def interrupted(
    iterator: Any, found: list[list[int]], count: int, interrupts: Interrupts
) -> list[tuple[int, dict[str, Any]]]:
    """Have a loop find this number of batches; return states that were saved at interrupts, with
    the number of batches before them."""
    states, n_seen = [], 0

    def loop() -> None:
        with interrupts:
            for batch in iterator:
                found.append(rows_of(batch))
                if len(found) == count:
                    return

    while len(found) < count:
        try:
            loop()
        except KeyboardInterrupt:
            n_seen += 1
            if n_seen % 40 == 5:
                states.append((len(found), iterator.state_dict()))
    return states


def test_an_interrupt_while_a_seed_is_read_is_raised_as_it_is() -> None:
    """The check of a list against an abstract class runs Python code, and with it the handler."""
    from fastiter.random import permutation

    interrupts = interrupted_by_timer(lambda: permutation(1, [1, 2, 3]), 500, 2e-4)
    assert sum(1 for _ in interrupts) == 500  # any other error leaves the loop


def test_a_handlers_exception_as_a_thread_begins_is_raised_as_it_is() -> None:
    """`threading` raises a KeyError in its place, where the thread has left its list before."""

    class Raised(Exception):
        pass

    def begin_first(frame: types.FrameType, event: str, function: Any) -> None:
        if event == "c_return" and "start" in function.__name__ and "thread" in function.__name__:
            sys.setprofile(None)
            while threading._limbo:  # type: ignore[attr-defined]
                time.sleep(0)
            raise Raised

    iterator = MultithreadIterator(range(12), 4, shuffle=False, n_threads=2)
    sys.setprofile(begin_first)
    try:
        with pytest.raises(Raised):
            next(iterator)
    finally:
        sys.setprofile(None)
    assert [next(iterator) for _ in range(3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    iterator.close()


def test_what_a_handler_raises_while_a_shard_is_read_ends_no_shard() -> None:
    sent: list[int] = []

    def handler(*_: object) -> None:
        raise TimeoutError

    def examples(shard: int) -> Iterator[int]:
        for n in range(5):
            if (shard, n) == (1, 3) and not sent:
                sent.append(n)
                signal.raise_signal(signal.SIGUSR1)
            yield 10 * shard + n

    stream = StreamDataset(range(3), examples)
    iterator = SerialIterator(stream, 4, repeat=False)
    former = signal.signal(signal.SIGUSR1, handler)
    try:
        found = [next(iterator)]
        with pytest.raises(TimeoutError):
            next(iterator)
        found += iterator
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert [*itertools.chain(*found)] == [10 * shard + n for shard in range(3) for n in range(5)]
