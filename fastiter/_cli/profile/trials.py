"""Trials: an iterator with one choice of settings is created, measured and traced."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

import fastiter
from fastiter._cli.profile.loading import RAISED
from fastiter._ring.serialization import are_same
from fastiter._stats.trace import Trace
from fastiter._util.failures import summary_of
from fastiter.interop._wrapped import map_leaves

Kind = Literal["serial", "threads", "processes", "torch", "fastiter"]  # the last two: DataLoader
ENOUGH_GAIN = 1.05  # what more workers have to bring
_PAGE = 4096
_TRACED_BATCHES = 8  # at least
_TRACED_EXAMPLES = 15_000  # at most: two events each, of the 32,765 that a worker keeps
_CLASSES: dict[Kind, str] = {
    "serial": "SerialIterator",
    "threads": "MultithreadIterator",
    "processes": "MultiprocessIterator",
}


class Settings(NamedTuple):
    kind: Kind
    workers: int = 0
    prefetch: int = 0
    method: str | None = None  # None: the program's default

    @property
    def name(self) -> str:
        """The iterator's class."""
        return _CLASSES[self.kind]

    @property
    def has_method(self) -> bool:
        """Whether there are processes to start."""
        return self.kind not in ("serial", "threads")

    def arguments(self) -> dict[str, Any]:
        """Keywords of the iterator's constructor."""
        if self.kind == "serial":
            return {}
        workers = "n_threads" if self.kind == "threads" else "n_processes"
        context = {} if self.method is None else {"context": self.method}
        return {workers: self.workers, "n_prefetch": self.prefetch, **context}

    def code(self, batch_size: int, converter: str) -> str:
        """A line of Python that creates the iterator of ``dataset``."""
        arguments = [f"{name}={value!r}" for name, value in self.arguments().items()]
        if converter:
            arguments.append(f"converter={converter}")
        return f"fastiter.{self.name}({', '.join(['dataset', str(batch_size), *arguments])})"


class Subject(NamedTuple):
    """Facts that all trials have in common."""

    dataset: Any
    batch_size: int
    converter: Callable[..., Any] | None
    seed: int  # of the order
    step: float  # seconds that the loop takes for a batch
    expected: Any  # the first batch, made without an iterator; None if it is not checked

    def iterator(self, settings: Settings) -> Any:
        """A new iterator. Settings do not change its order."""
        return getattr(fastiter, settings.name)(
            self.dataset,
            self.batch_size,
            order_sampler=fastiter.VirtualShuffleOrderSampler(self.seed),
            converter=self.converter,
            **settings.arguments(),
        )

    def run(self, trials: Trials, window: float) -> None:
        """Add a trial: the first batch of a new iterator is compared with the expected one, others
        warm it up, and then batches are counted for at least ``window`` seconds.

        With a window of 0 the trial ends after the first batch. An exception of the
        dataset or the iterator becomes the ``error``.
        """
        with trials.noting_errors():
            begin = time.perf_counter()
            with self.iterator(trials.settings) as iterator:
                batch = next(iterator)
                first = time.perf_counter() - begin
                if self.expected is not None and not are_same(batch, self.expected):
                    trials.error = "its first batch differs from the dataset's own results"
                    return
                if window:
                    del batch
                    _warm_up(self, iterator, trials.settings, window, most=window)
                    before = iterator.stats()
                    trials.count(lambda: _consume(self, next(iterator)), self.batch_size, window)
                    trials.stats = iterator.stats() - before
            trials.firsts.append(first)


@dataclass
class Trials:
    """Measurements with one choice of settings."""

    settings: Settings
    rates: list[float] = field(default_factory=list)  # examples a second, of each trial
    firsts: list[float] = field(default_factory=list)  # seconds to the first batch
    error: str = ""
    stats: fastiter.IteratorStats | None = None  # of the last trial, while batches were counted

    @property
    def rate(self) -> float:
        """Examples a second: the median of the trials; 0 without any."""
        return statistics.median(self.rates) if self.rates else 0.0

    @property
    def first(self) -> float:
        """Seconds to the first batch: the median."""
        return statistics.median(self.firsts) if self.firsts else 0.0

    def count(self, take: Callable[[], Any], batch_size: int, window: float) -> None:
        """Add the rate at which ``take`` takes batches for at least ``window`` seconds."""
        begin, counted, least = time.perf_counter(), 0, least_batches(batch_size, self.settings)
        while counted < least or time.perf_counter() - begin < window:
            take()
            counted += 1
        self.rates.append(counted * batch_size / (time.perf_counter() - begin))

    @contextlib.contextmanager
    def noting_errors(self) -> Iterator[None]:
        """Make an exception of the dataset or the iterator in the block the `error`."""
        try:
            yield
        except RAISED as error:
            self.error = summary_of(error).splitlines()[0]


def least_batches(batch_size: int, settings: Settings) -> int:
    """Number of batches that a rate needs: workers that began together end together, at first."""
    return max(2, math.ceil(2 * settings.workers / batch_size))


def seconds_to_record(subject: Subject, trials: Trials) -> float:
    """About how long `record` takes at least with the settings of ``trials``."""
    batches = trials.settings.prefetch + 2 + _TRACED_BATCHES
    return trials.first + batches * subject.batch_size / trials.rate


def record(subject: Subject, settings: Settings, seconds: float) -> Trace:
    """Trace some batches, taken for ``seconds``, and eight at least.

    They come after those that warm up: a start of workers, much longer than a batch, would hide
    what follows it.
    """
    with subject.iterator(settings) as iterator:
        _warm_up(subject, iterator, settings, seconds)
        begin, taken = time.perf_counter(), 0
        trace: Trace
        with iterator.trace() as trace:
            while taken < _TRACED_BATCHES or (
                time.perf_counter() - begin < seconds
                and taken * subject.batch_size < _TRACED_EXAMPLES
            ):
                _consume(subject, next(iterator))
                taken += 1
    return trace


def _warm_up(
    subject: Subject, iterator: Any, settings: Settings, seconds: float, most: float = math.inf
) -> None:
    """Take some batches, so that all slots have been used; then the rest of the epoch, if it takes
    less than ``seconds``: forked workers copy each page that they touch, once. No batch begins
    after ``most`` seconds."""
    batches = settings.prefetch + 2 if settings.workers else 1
    begin, taken = time.perf_counter(), 0
    while taken < batches and (not taken or time.perf_counter() - begin < most):
        _consume(subject, next(iterator))
        taken += 1
    left = len(subject.dataset) / (taken * subject.batch_size) - 1
    if left * (time.perf_counter() - begin) <= seconds:
        while iterator.epoch == 0:
            _consume(subject, next(iterator))


def _consume(subject: Subject, batch: Any) -> None:
    """The least that a training loop does: it reads a converted batch, and takes its time."""
    if subject.converter is not None:
        map_leaves(_read, batch)
    elif len(batch) != subject.batch_size:
        raise ValueError(f"a batch has {len(batch)} examples, not {subject.batch_size}")
    if subject.step:
        time.sleep(subject.step)


def _read(value: Any) -> None:
    """Read a byte of each page."""
    if isinstance(value, np.ndarray) and value.flags.c_contiguous:
        value.reshape(-1).view(np.uint8)[::_PAGE].max(initial=0)
