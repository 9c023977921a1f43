"""One iterator with one choice of settings: how it is made, measured, and written down."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

import fastiter
from fastiter._cli.profile import dataset_cost
from fastiter._cli.profile.loading import RAISED
from fastiter._ring.serialization import summary_of

Kind = Literal["serial", "threads", "processes"]
ENOUGH_GAIN = 1.05  # what more workers have to bring
_PAGE = 4096
_CLASSES: dict[Kind, str] = {
    "serial": "SerialIterator",
    "threads": "MultithreadIterator",
    "processes": "MultiprocessIterator",
}


class Settings(NamedTuple):
    """What is tried."""

    kind: Kind
    workers: int = 0
    prefetch: int = 0
    method: str | None = None  # None: as the program has it

    @property
    def name(self) -> str:
        """The iterator's class."""
        return _CLASSES[self.kind]

    def arguments(self) -> dict[str, Any]:
        """Keywords of the iterator's constructor."""
        if self.kind == "serial":
            return {}
        workers = "n_threads" if self.kind == "threads" else "n_processes"
        arguments: dict[str, Any] = {workers: self.workers, "n_prefetch": self.prefetch}
        if self.method is not None:
            arguments["context"] = self.method
        return arguments

    def code(self, batch_size: int, converter: str) -> str:
        """A line of Python that makes the iterator of `dataset`."""
        arguments = [f"{name}={value!r}" for name, value in self.arguments().items()]
        if converter:
            arguments.append(f"converter={converter}")
        return f"fastiter.{self.name}({', '.join(['dataset', str(batch_size), *arguments])})"


class Task(NamedTuple):
    """What is the same for all settings."""

    dataset: Any
    batch_size: int
    converter: Callable[..., Any] | None
    seed: int  # of the order
    step: float  # seconds that the consumer takes for a batch
    expected: Any  # the first batch, made without an iterator; None if it cannot be told
    is_repeatable: bool  # whether the first batch has to be the same each time

    def iterator(self, settings: Settings) -> Any:
        """A fresh iterator. Settings do not change its order."""
        return getattr(fastiter, settings.name)(
            self.dataset,
            self.batch_size,
            order_sampler=fastiter.VirtualShuffleOrderSampler(self.seed),
            converter=self.converter,
            **settings.arguments(),
        )


@dataclass
class Trials:
    """What was measured with one choice of settings."""

    settings: Settings
    rates: list[float] = field(default_factory=list)  # examples a second, of each run
    firsts: list[float] = field(default_factory=list)  # seconds to the first batch
    error: str = ""
    stats: fastiter.IteratorStats | None = None  # of the last run, while batches were counted

    @property
    def rate(self) -> float:
        """Examples a second: median of the runs; 0 without any."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def first(self) -> float:
        """Seconds to the first batch: median."""
        return statistics.median(self.firsts) if self.firsts else 0.0


def run_once(task: Task, runs: Trials, window: float) -> None:
    """Measure the settings of ``runs`` once, and add what comes of it there.

    An iterator is made, its first batch compared with what is expected, a few batches more are
    taken to warm up, and then batches are counted for at least ``window`` seconds, and at least as
    many as `least_batches` says. With a window of 0, all is over after the first batch. What the
    dataset or the iterator raises becomes the ``error``.
    """
    settings = runs.settings
    try:
        begin = time.perf_counter()
        with task.iterator(settings) as iterator:
            batch = next(iterator)
            first = time.perf_counter() - begin
            runs.error = _difference(task, batch)
            if runs.error:
                return
            if window:
                del batch
                warm_up(task, iterator, settings, window, most=window)
                before = iterator.stats()
                runs.rates.append(_rate(task, iterator, settings, window))
                runs.stats = iterator.stats() - before
    except RAISED as error:
        runs.error = summary_of(error).splitlines()[0]
        return
    runs.firsts.append(first)


def warm_up(
    task: Task, iterator: Any, settings: Settings, seconds: float, most: float = math.inf
) -> None:
    """Takes some batches, so that all slots have been used; and the rest of the epoch, if that is a
    matter of so many seconds: forked workers copy each page that they touch, once. No batch begins
    after ``most`` seconds."""
    batches = settings.prefetch + 2 if settings.workers else 1
    begin, taken = time.perf_counter(), 0
    while taken < batches and (not taken or time.perf_counter() - begin < most):
        consume(task, next(iterator))
        taken += 1
    left = len(task.dataset) / (taken * task.batch_size) - 1
    if left * (time.perf_counter() - begin) <= seconds:
        while iterator.epoch == 0:
            consume(task, next(iterator))


def least_batches(task: Task, settings: Settings) -> int:
    """How many batches tell a rate: workers that began together end together, at first."""
    return max(2, math.ceil(2 * settings.workers / task.batch_size))


def _rate(task: Task, iterator: Any, settings: Settings, window: float) -> float:
    least = least_batches(task, settings)
    counted, begin = 0, time.perf_counter()
    while counted < least or time.perf_counter() - begin < window:
        batch = next(iterator)
        consume(task, batch)
        counted += 1
    return counted * task.batch_size / (time.perf_counter() - begin)


def _difference(task: Task, batch: Any) -> str:
    if task.expected is None:
        return ""
    if task.is_repeatable and not dataset_cost.are_equal(batch, task.expected):
        return "its first batch differs from what the dataset gives by itself"
    if not dataset_cost.are_alike(batch, task.expected):
        return "the types of its first batch differ from what the dataset gives by itself"
    return ""


def consume(task: Task, batch: Any) -> None:
    """What a training loop does at least: it looks at the arrays of a converted batch, and takes
    its time."""
    if task.converter is not None:
        _look(batch)
    elif len(batch) != task.batch_size:
        raise ValueError(f"a batch has {len(batch)} examples, not {task.batch_size}")
    if task.step:
        time.sleep(task.step)


def _look(batch: Any) -> None:
    if isinstance(batch, np.ndarray) and batch.flags.c_contiguous:
        batch.reshape(-1).view(np.uint8)[::_PAGE].max(initial=0)
    elif isinstance(batch, (tuple, list)):
        for part in batch:
            _look(part)
    elif isinstance(batch, dict):
        for part in batch.values():
            _look(part)
