"""The ring by itself: what a batch costs beside fetching its examples, and how workers share one.

The datasets are W2's (ready tuples of float32[16] and an index), an array of numbers that costs
nothing to read, and one that works for a microsecond per row. Everything goes through
`MultiprocessIterator`, as a user would run it.

``next()`` in the parent is measured with the workers stopped by a signal while every batch that is
asked for is ready: what is left is the parent's own part, without a wait and without anybody
beside it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Measured, WrongResult

NAME = "ring"
TITLE = "one batch of 256 through the ring"

ROWS = 256
PERIOD = 40 * ROWS
DEPTH = 16
SETTLED = 0.01  # seconds, in which the workers fill the ring


class Tuples:
    """W2's: ready tuples, in a list."""

    def __init__(self) -> None:
        rows = np.random.RandomState(0).rand(PERIOD, 16).astype("f4")
        self.items = [(row, number) for number, row in enumerate(rows)]

    def __len__(self) -> int:
        return PERIOD

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return self.items[i]


class Working(Tuples):
    """The same after a microsecond of work."""

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        end = time.perf_counter_ns() + 1000
        while time.perf_counter_ns() < end:
            pass
        return self.items[i]


def _numbers() -> Any:
    """A dataset whose rows of 8 bytes are gathered in C: only the protocol is seen."""
    from fastiter.datasets import TupleDataset

    return TupleDataset(np.arange(PERIOD, dtype=np.int64))


@contextlib.contextmanager
def _iterating(
    make: Callable[[], Any], workers: int, depth: int = 4, as_list: bool = False, spin: bool = True
) -> Iterator[Any]:
    from fastiter import MultiprocessIterator, concat_examples
    from fastiter._workers import pool

    before, pool._SPIN = pool._SPIN, pool._SPIN if spin else 0
    with MultiprocessIterator(
        make(),
        ROWS,
        shuffle=False,
        n_processes=workers,
        n_prefetch=depth,
        converter=None if as_list else concat_examples,
        context="fork",
    ) as batches:
        for _ in range(4 * depth):  # slots have their size, and their pages
            next(batches)
        pool._SPIN = before
        yield batches


@contextlib.contextmanager
def _steady(
    make: Callable[[], Any], workers: int, count: int = 50, **options: Any
) -> Iterator[Callable[[Any], Measured]]:
    """Seconds of a batch while parent and workers run side by side."""
    with _iterating(make, workers, **options) as batches:

        def run(_: Any) -> Measured:
            for _ in range(4):  # what was prefetched while others ran
                next(batches)
            usage = resource.getrusage(resource.RUSAGE_SELF)
            begin = time.perf_counter()
            for _ in range(count):
                batch = next(batches)
            seconds = (time.perf_counter() - begin) / count
            sleeps = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - usage.ru_nvcsw
            return Measured(seconds, batch, {"sleeps": sleeps / count})

        yield run


@contextlib.contextmanager
def _parent(as_list: bool = False, concat: bool = False) -> Iterator[Callable[[Any], Measured]]:
    """Seconds of ``next()`` when the batch is there; or of what is done to its examples."""
    from fastiter import concat_examples

    with _iterating(Tuples, 2, DEPTH, as_list) as batches:
        pool = batches._executor.pool
        ring = pool.ring
        workers = [worker.pid for worker in pool._group.workers.values()]

        def run(_: Any) -> Measured:
            spent: list[float] = []
            while len(spent) < DEPTH // 2:
                batch = next(batches)
                time.sleep(SETTLED)
                with _stopped(workers):
                    while ring.ready():  # else it would wait for workers who do not come
                        begin = time.perf_counter()
                        batch = next(batches)
                        middle = time.perf_counter()
                        if concat:
                            batch = concat_examples(batch)
                            begin, middle = middle, time.perf_counter()
                        spent.append(middle - begin)
            return Measured(sorted(spent)[len(spent) // 2], batch)

        yield run


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        for pid in pids:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def _examples() -> Iterator[Callable[[Any], Any]]:
    """The examples of one batch, made again and again."""
    from fastiter._ring import row_reader

    with _iterating(Tuples, 1, 2, as_list=True) as batches:
        lease = next(batches)[0][0].base
        yield lambda _: row_reader.read(lease, False, None)


def _loop() -> Callable[[Any], Any]:
    """The work of a batch in this process, row by row."""
    dataset = Working()

    def run(_: Any) -> Any:
        rows, numbers = zip(*[dataset[i] for i in range(ROWS)], strict=True)
        return np.stack(rows), np.array(numbers)

    return run


def _check(result: Any, source: Any) -> None:
    if isinstance(result, list):
        result = tuple(np.stack(column) for column in zip(*result, strict=True))
    numbers = result[-1]
    if len(numbers) != ROWS or (np.diff(numbers) != 1).any() or numbers[0] % ROWS:
        raise WrongResult(f"the batch holds the indices {numbers}")
    if len(result) == 2 and not np.array_equal(result[0], _rows()[numbers]):
        raise WrongResult("the rows are not those of the indices beside them")


@functools.cache
def _rows() -> np.ndarray:
    return np.stack([row for row, _ in Tuples().items])


def _case(name: str, candidates: dict[str, Any], goals: list[Goal | AtMost], item: str) -> Case:
    return Case(
        name=name,
        sources=lambda: [None],
        candidates=candidates,
        check=_check,
        items=1 if item == "batch" else ROWS,
        item=item,
        goals=goals,
    )


def cases(quick: bool) -> Iterator[Case]:
    bind = functools.partial
    yield _case(
        "next() in the parent",
        {
            "fastiter": bind(_parent),
            "fastiter.list": bind(_parent, as_list=True),
            "fastiter.concat": bind(_parent, as_list=True, concat=True),
        },
        [AtMost("seconds", 11e-6), AtMost("seconds", 45e-6, "fastiter.list")],
        "batch",
    )
    yield _case("examples", {"fastiter": _examples}, [AtMost("ns_per_item", 150)], "example")
    yield _case(
        "rows that cost nothing",
        {f"fastiter.{n}-workers": bind(_steady, _numbers, n) for n in (1, 2)},
        [AtMost("ns_per_item", 45, "fastiter.2-workers")],
        "row",
    )
    if quick:
        return
    yield _case(
        "4 workers, with and without spinning",
        {
            "fastiter": bind(_steady, Tuples, 4),
            "fastiter.never-spinning": bind(_steady, Tuples, 4, spin=False),
        },
        [Goal("fastiter.never-spinning", 0.9)],
        "row",
    )
    yield _case(
        "1 us of work a row",
        {"fastiter": bind(_steady, Working, 2), "python.loop": _loop},
        [Goal("python.loop", 1.8)],
        "row",
    )
