"""Statistics of an iterator and of its workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from fastiter._stats import bottleneck

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
        return _difference(self, earlier)


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
class IteratorStats:
    """Counters of an iterator, and the time that the loop waited for it.

    ``iterator.stats()`` counts since the first ``next()``; the difference ``later - earlier`` of
    two such statistics covers the time between. Counters are never reset. ``str()``, or `summary`,
    formats them for reading.

    Attributes
    ----------
    iterator : str
        The iterator's class.
    batches, examples : int
        Numbers of delivered batches and examples.
    errors : int
        Calls of ``next()`` that raised an exception of the dataset or the converter.
    skipped : int
        Examples left out because the dataset raised: see ``on_error``.
    bytes_written : int
        Bytes that worker processes wrote into shared memory: the copy that an example costs.
    start_seconds : float
        Time in ``next()`` until the first batch, while workers started and loaded the dataset.
    next_seconds : float
        Time in ``next()`` since the first batch.
    wait_seconds : float
        Part of `next_seconds` in which the caller was blocked, since the batch was not complete;
        all of `next_seconds` if the caller itself fetches.
    consumer_seconds : float
        Time between calls of ``next()``, in the loop's body. After the end of an iteration,
        a reset or a loaded snapshot, time counts again from the next call.
    cpu_seconds : float
        CPU time of the caller's process since the first call: of all its threads, but not of worker
        processes.
    workers_are : str
        'processes' or 'threads'; 'none' if the caller fetches.
    batch_size, n_workers, n_prefetch : int
        Present settings; with 0 workers the caller fetches. ``batch_size`` is None with a batch
        sampler.
    has_converter : bool
        Whether ``next()`` returns the result of a converter.
    cpus : float
        CPUs that this process may use, by its affinity and the quota of its control group.
    ready : int
        Batches that are complete at this moment and wait for the caller.
    slots : int
        Batches that the ring has room for: prefetched, held by the caller, and spare.
    calls, ready_sum : int
        Number of measurements of `mean_ready`, and their sum.
    spills : int
        Examples that fitted no column and were pickled, after columns were known.
    copied_out : int
        Batches that were copied out of the ring, since the caller held too many of them.
    deaths, replacements : int
        Workers that were replaced after a death, and after ``maxtasksperchild`` batches.
    changes : tuple of str
        Changes made by automatic settings so far, with their reasons, in order; and the batches
        from which on the caller gathers rows instead of the workers, or the workers again.
    workers : tuple of WorkerStats
        Statistics of each worker, by number; workers beyond ``n_workers`` have left.
    retired : int
        Slots that are never used again, each with the memory of a batch: the program forked while
        it held their batches, and the child may still hold them.
    timeouts : int
        Workers that were replaced since they took longer than ``dataset_timeout``, with
        ``on_timeout='retry'``.
    abandoned : int
        Workers of these that have not ended yet, since SIGKILL does not end them; or threads that
        hang.
    tokens_read : int
        Tokens of the rows that were delivered, padding not counted, of a `fastiter.tokens` dataset;
        else 0.
    row_groups_decoded : int
        Row groups of Parquet files that were decoded, by all processes.
    hedged, won : int
        Examples that a second worker has begun to fetch, since they were slow, with ``hedge``; and
        examples of these whose second fetch ended first.
    gathered_here : int
        Batches that the caller of `MultiprocessIterator` itself gathered from arrays or columns,
        since that is faster than to have workers do it.
    nodes : tuple of NodeStats
        Statistics of each node of the cluster, of a `fastiter.ray.RayIterator`; else empty.
    """

    iterator: str
    batches: int
    examples: int
    errors: int
    skipped: int
    bytes_written: int
    start_seconds: float
    next_seconds: float
    wait_seconds: float
    consumer_seconds: float
    cpu_seconds: float
    workers_are: WorkerKind
    batch_size: int | None
    n_workers: int
    n_prefetch: int
    has_converter: bool
    cpus: float
    ready: int
    slots: int
    calls: int
    ready_sum: int
    spills: int
    copied_out: int
    deaths: int
    replacements: int
    changes: tuple[str, ...]
    workers: tuple[WorkerStats, ...]
    retired: int = 0
    timeouts: int = 0
    abandoned: int = 0
    tokens_read: int = 0
    row_groups_decoded: int = 0
    hedged: int = 0
    won: int = 0
    gathered_here: int = 0
    nodes: tuple[NodeStats, ...] = ()

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

    @property
    def verdict(self) -> Verdict:
        """The bottleneck: 'loader-bound' (the loop waits for batches), 'consumer-bound' (workers
        wait for the loop), 'balanced' (both are busy), or 'unknown' (not enough data yet)."""
        return bottleneck.diagnose(self).verdict

    @property
    def advice(self) -> str:
        """Advice, in a sentence or two."""
        return bottleneck.diagnose(self).advice

    @property
    def change(self) -> Mapping[str, int]:
        """Arguments of the iterator to change, and their values; empty if none would help."""
        return bottleneck.diagnose(self).change

    def summary(self) -> str:
        """One line that says how fast it is and what limits it, and a table below it."""
        return bottleneck.summary(self)

    def __str__(self) -> str:
        return self.summary()

    def __sub__(self, earlier: IteratorStats) -> IteratorStats:
        """Counters of the time between two ``stats()`` of one iterator."""
        if self.iterator != earlier.iterator or self.batches < earlier.batches:
            raise ValueError(
                f"cannot subtract statistics of {earlier.iterator} after {earlier.batches} batches "
                f"from those of {self.iterator} after {self.batches}: take both from one iterator, "
                "and subtract the earlier one from the later one"
            )
        before = {worker.number: worker for worker in earlier.workers}
        workers = tuple(
            worker - before[worker.number] if worker.number in before else worker
            for worker in self.workers
        )
        known = {node.node: node for node in earlier.nodes}
        nodes = tuple(n - known[n.node] if n.node in known else n for n in self.nodes)
        difference = _difference(self, earlier)
        changes = self.changes[len(earlier.changes) :]
        return dataclasses.replace(difference, workers=workers, changes=changes, nodes=nodes)


# Numbers that a difference keeps as they are.
_SETTINGS = {
    "batch_size",
    "n_workers",
    "n_prefetch",
    "cpus",
    "ready",
    "slots",
    "number",
    "pid",
    "abandoned",
}
_Counters = TypeVar("_Counters", IteratorStats, WorkerStats)


def _difference(later: _Counters, earlier: _Counters) -> _Counters:
    """``later`` with the counters of ``earlier`` subtracted; none gets below 0, since counters are
    read one after the other while workers continue."""
    counters: dict[str, Any] = {}
    for field in dataclasses.fields(later):
        value = getattr(later, field.name)
        if type(value) in (int, float) and field.name not in _SETTINGS:
            counters[field.name] = max(value - getattr(earlier, field.name), type(value)(0))
    return dataclasses.replace(later, **counters)


def _share(part: float, whole: float, most: float = 1.0) -> float:
    return min(part / whole, most) if whole > 0 else 0.0


class LoaderStats(NamedTuple):
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
