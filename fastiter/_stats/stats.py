"""Counters of an iterator and of its workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from fastiter._ring.parent import Report

WorkerKind = Literal["processes", "threads", "none"]
Verdict = Literal["loader-bound", "consumer-bound", "balanced", "unknown"]


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """Counters of one worker, a process or a thread.

    Attributes
    ----------
    number : int
        The worker's number, from 0. A worker that replaces another has its number and continues
        its counters.
    pid : int
        Process number; 0 for threads, and if no process has that worker number now.
    rows : int
        Examples fetched and written.
    bytes_written : int
        Bytes written into shared memory. Threads count none.
    spills : int
        Examples that fitted no column and were pickled, including the first ones, before columns
        were known.
    seconds : float
        The time that these statistics cover: after the start, or since the worker was added.
        Shares refer to it.
    busy_seconds : float
        Time in which the worker was making examples or finishing a batch.
    fetch_seconds, write_seconds : float
        Time in the dataset, and in copying its examples. Estimated from a sample if examples are
        cheap. A thread's writing is part of its fetching; columns that are gathered directly from
        a dataset's arrays count as writing.
    finish_seconds : float
        Time in padding and converters: the worker that completes a batch runs them for the whole
        batch.
    cpu_seconds : float
        CPU time of the worker.
    cpu_wait_seconds : float
        Time in which it was ready to run but had no CPU; 0 if the system does not report it.
    """

    number: int
    pid: int
    rows: int
    bytes_written: int
    spills: int
    seconds: float
    busy_seconds: float
    fetch_seconds: float
    write_seconds: float
    finish_seconds: float
    cpu_seconds: float
    cpu_wait_seconds: float

    @property
    def busy(self) -> float:
        """Share of the time spent working, 0 to 1."""
        return _share(self.busy_seconds, self.seconds)

    @property
    def idle(self) -> float:
        """Share of the time without work."""
        return 1.0 - self.busy

    @property
    def fetch(self) -> float:
        """Share of the time spent in the dataset."""
        return self._of_rows(self.fetch_seconds)

    @property
    def write(self) -> float:
        """Share of the time spent copying examples."""
        return self._of_rows(self.write_seconds)

    @property
    def finish(self) -> float:
        """Share of the time spent in padding and converters."""
        return min(_share(self.finish_seconds, self.seconds), self.busy)

    def _of_rows(self, part: float) -> float:
        return (self.busy - self.finish) * _share(part, self.fetch_seconds + self.write_seconds)

    def __sub__(self, earlier: WorkerStats) -> WorkerStats:
        return difference(self, earlier)


class NodeStats(NamedTuple):
    """Counters of the workers on one node of a cluster."""

    node: str  #: the first digits of Ray's name for it
    address: str
    workers: int  #: that it has now
    rows: int  #: examples fetched there, and written here
    bytes: int  #: that came from there

    def __sub__(self, earlier: NodeStats) -> NodeStats:
        return self._replace(rows=self.rows - earlier.rows, bytes=self.bytes - earlier.bytes)


@dataclasses.dataclass(frozen=True)
class LoaderStats:
    """The workers' part of the `IteratorStats` of an iterator."""

    workers_are: WorkerKind = "none"
    n_workers: int = 0
    n_prefetch: int = 0
    bytes_written: int = 0
    ready: int = 0
    slots: int = 0
    calls: int = 0
    ready_sum: int = 0
    spills: int = 0
    copied_out: int = 0
    retired: int = 0
    deaths: int = 0
    replacements: int = 0
    timeouts: int = 0
    abandoned: int = 0
    hedged: int = 0
    won: int = 0
    changes: tuple[str, ...] = ()
    workers: tuple[WorkerStats, ...] = ()
    gathered_here: int = 0
    nodes: tuple[NodeStats, ...] = ()


# Its methods would only cost time: `IteratorStats` has some of its own.
@dataclasses.dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class IteratorCounts(LoaderStats):
    """Counters of an iterator, and shares that follow from them; `IteratorStats` explains them."""

    iterator: str
    batches: int
    examples: int
    errors: int
    skipped: int
    start_seconds: float
    next_seconds: float
    wait_seconds: float
    consumer_seconds: float
    cpu_seconds: float
    batch_size: int | None
    has_converter: bool
    cpus: float
    tokens_read: int = 0
    row_groups_decoded: int = 0
    interleave: int = 0
    n_shards: int = 0

    @property
    def seconds(self) -> float:
        """The time that these statistics cover: in ``next()`` and between its calls."""
        return self.start_seconds + self.next_seconds + self.consumer_seconds

    @property
    def batches_per_second(self) -> float:
        """Batches delivered in a second, the start included."""
        return _share(self.batches, self.seconds, most=float("inf"))

    @property
    def examples_per_second(self) -> float:
        """Examples delivered in a second, the start included."""
        return _share(self.examples, self.seconds, most=float("inf"))

    @property
    def wait_share(self) -> float:
        """Share of the time, after the start, in which the caller was blocked in ``next()``."""
        return _share(self.wait_seconds, self.next_seconds + self.consumer_seconds)

    @property
    def mean_ready(self) -> float:
        """Complete batches in the ring when ``next()`` is called, on average."""
        return _share(self.ready_sum, self.calls, most=float("inf"))

    @property
    def busy(self) -> float:
        """Share of the time that workers spent working, 0 to 1: their mean."""
        active = self.workers[: self.n_workers]
        return sum(worker.busy for worker in active) / max(len(active), 1)


# Numbers that a difference keeps as they are.
_SETTINGS = {"batch_size", "n_workers", "n_prefetch", "cpus", "ready", "slots"}
_SETTINGS |= {"number", "pid", "abandoned", "interleave", "n_shards"}
_Counted = TypeVar("_Counted", bound=IteratorCounts | WorkerStats)


def difference(later: _Counted, earlier: _Counted) -> _Counted:
    """``later`` with the counters of ``earlier`` subtracted; none gets below 0, since counters are
    read one after the other while workers continue."""
    counters = {name: max(b - a, type(b)(0)) for name, a, b in _counters(earlier, later)}
    return dataclasses.replace(later, **counters)


def total(later: _Counted, earlier: _Counted) -> _Counted:
    """``later`` with the counters of ``earlier`` added."""
    return dataclasses.replace(later, **{name: a + b for name, a, b in _counters(earlier, later)})


def _counters(earlier: _Counted, later: _Counted) -> Iterator[tuple[str, Any, Any]]:
    """The name of each counter, and both values."""
    for field in dataclasses.fields(later):
        value = getattr(later, field.name)
        if type(value) in (int, float) and field.name not in _SETTINGS:
            yield field.name, getattr(earlier, field.name), value


def _share(part: float, whole: float, most: float = 1.0) -> float:
    return min(part / whole, most) if whole > 0 else 0.0


_Spent = Literal["busy_ns", "fetch_ns", "write_ns", "finish_ns", "cpu_ns", "delay_ns"]


def worker_stats(
    number: int, pid: int, report: Report, before: Report | None, seconds: float, now: float
) -> WorkerStats:
    """Statistics of a worker process (pid 0: none) from its counters in shared memory.

    ``before`` are the counters at the end of the start, ``seconds`` the time that shares refer to,
    ``now`` the time on the clock of the counters.
    """

    def spent(name: _Spent) -> float:
        return (report[name] - (before[name] if before else 0)) / 1e9

    since = report["range_since"] / 1e9
    busy = spent("busy_ns")
    if pid and 0 < since < now:
        busy += now - since
    return WorkerStats(
        number=number,
        pid=pid,
        rows=report["rows"],
        bytes_written=report["bytes"],
        spills=report["spills"],
        seconds=seconds,
        busy_seconds=busy,
        fetch_seconds=spent("fetch_ns"),
        write_seconds=spent("write_ns"),
        finish_seconds=spent("finish_ns"),
        cpu_seconds=spent("cpu_ns"),
        cpu_wait_seconds=spent("delay_ns"),
    )
