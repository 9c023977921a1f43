"""Statistics made by hand, for the tests of what is concluded from them."""

from __future__ import annotations

import dataclasses

import fastiter


def figures(**changes):
    """A loader-bound iterator of two processes on four CPUs, which wait for files."""
    worker = fastiter.WorkerStats(
        number=0,
        pid=1,
        rows=500,
        bytes_written=0,
        spills=0,
        seconds=10.0,
        busy_seconds=changes.pop("busy", 9.8),
        fetch_seconds=9.0,
        write_seconds=0.8,
        finish_seconds=0.0,
        cpu_seconds=changes.pop("cpu", 0.5),
        cpu_wait_seconds=changes.pop("in_line", 0.0),
    )
    values = {
        "iterator": "MultiprocessIterator",
        "batches": 100,
        "examples": 1000,
        "errors": 0,
        "skipped": 0,
        "bytes_written": 0,
        "start_seconds": 0.0,
        "next_seconds": 5.2,
        "wait_seconds": 5.0,
        "consumer_seconds": 4.8,
        "cpu_seconds": 1.0,
        "workers_are": "processes",
        "batch_size": 10,
        "n_workers": 2,
        "n_prefetch": 1,
        "has_converter": True,
        "cpus": 4.0,
        "ready": 0,
        "slots": 6,
        "calls": 100,
        "ready_sum": 10,
        "spills": 0,
        "copied_out": 0,
        "retired": 0,
        "deaths": 0,
        "replacements": 0,
        "changes": (),
        "workers": (worker, dataclasses.replace(worker, number=1)),
    }
    return fastiter.IteratorStats(**(values | changes))
