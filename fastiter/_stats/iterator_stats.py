"""Statistics of an iterator, with what follows from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fastiter._stats import bottleneck
from fastiter._stats.stats import IteratorCounts, LoaderStats, Verdict, difference, total
from fastiter._stats.timer import Timer
from fastiter._util.cpus import usable_cpus


@dataclasses.dataclass(frozen=True)
class IteratorStats(IteratorCounts):
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
    interleave, n_shards : int
        Shards of a `StreamDataset` that are read at a time, at most, and all of them; else 0.
    hedged, won : int
        Examples that a second worker has begun to fetch, since they were slow, with ``hedge``; and
        examples of these whose second fetch ended first.
    gathered_here : int
        Batches that the caller of `MultiprocessIterator` itself gathered from arrays or columns,
        since that is faster than to have workers do it.
    nodes : tuple of NodeStats
        Statistics of each node of the cluster, of a `fastiter.ray.RayIterator`; else empty.
    """

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

    __str__ = summary

    @classmethod
    def of(
        cls,
        timer: Timer,
        stats_of: Callable[[float], LoaderStats],  # of the workers, as that of an `Executor`
        changes: Iterable[str] = (),  # made before those that the workers tell
        cpus: float | None = None,
        **facts: Any,
    ) -> IteratorStats:
        """Statistics of what a timer has measured and of the workers, with other ``facts``; by
        default ``cpus`` are counted now, from several files."""
        start, inside, waited, between, cpu = timer.read()
        loader = stats_of(inside + between)
        return cls(
            batches=timer.batches,
            examples=timer.examples,
            errors=timer.errors,
            skipped=timer.skipped,
            tokens_read=timer.tokens,
            start_seconds=start,
            next_seconds=inside,
            wait_seconds=waited,
            consumer_seconds=between,
            cpu_seconds=cpu,
            cpus=usable_cpus() if cpus is None else cpus,
            **facts,
            **{**vars(loader), "changes": (*changes, *loader.changes)},
        )

    def followed_by(self, later: IteratorStats) -> IteratorStats:
        """Statistics of this iteration and a later one together; settings are the later one's."""
        workers = {worker.number: worker for worker in self.workers}
        for worker in later.workers:
            before = workers.get(worker.number)
            workers[worker.number] = worker if before is None else total(worker, before)
        return dataclasses.replace(
            total(later, self),
            workers=tuple(workers[number] for number in sorted(workers)),
            changes=self.changes + later.changes,
        )

    def __sub__(self, earlier: IteratorStats) -> IteratorStats:
        """Counters of the time between two ``stats()`` of one iterator."""
        if self.iterator != earlier.iterator or self.batches < earlier.batches:
            raise ValueError(
                f"cannot subtract statistics of {earlier.iterator} after {earlier.batches} batches "
                f"from those of {self.iterator} after {self.batches}: take both from one iterator, "
                "and subtract the earlier one from the later one"
            )
        before = {worker.number: worker for worker in earlier.workers}
        workers = tuple(w - before[w.number] if w.number in before else w for w in self.workers)
        known = {node.node: node for node in earlier.nodes}
        nodes = tuple(n - known[n.node] if n.node in known else n for n in self.nodes)
        changes = self.changes[len(earlier.changes) :]
        found = difference(self, earlier)
        return dataclasses.replace(found, workers=workers, changes=changes, nodes=nodes)
