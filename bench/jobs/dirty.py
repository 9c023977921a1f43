"""Private memory of each process while a mapped Arrow file of 2 GB is read: Private_Dirty.

``python -m bench.jobs.dirty [MEGABYTES]`` measures no speed. A process that ends writes the file;
then each iterator, in a process of its own, gathers a tenth of a shuffled epoch. Printed is by how
much Private_Dirty has grown: of the caller until each worker has made a row (less than nothing
where a fork shares what it had) and from then on, and of each worker from then on. The kernel
counts a mapped page of a file as dirty until it is on the disk: the writer waits for that, unless
``--unsynced`` is given.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

CHUNK, MEGABYTE = 1000, 1_000_000
MEAN_BYTES = 4 * 260 + 4 + 8 + 4 * 64  # of a row: tokens and their offset, a number, floats


def write(path: str, megabytes: int, synced: bool) -> None:
    """Rows of 8 to 512 tokens, 64 floats and a number, in chunks of 1,000."""
    import pyarrow as pa

    rng = np.random.default_rng(0)
    schema = pa.schema(
        {"ids": pa.list_(pa.int32()), "values": pa.list_(pa.float32(), 64), "number": pa.int64()}
    )
    with Path(path).open("wb") as file, pa.ipc.new_file(file, schema) as writer:
        for first in range(0, megabytes * MEGABYTE // MEAN_BYTES, CHUNK):
            offsets = np.append(0, np.cumsum(rng.integers(8, 513, CHUNK)))
            ids = pa.ListArray.from_arrays(
                pa.array(offsets, pa.int32()), pa.array(np.arange(offsets[-1]), pa.int32())
            )
            floats = rng.random(64 * CHUNK, np.float32)
            values = pa.FixedSizeListArray.from_arrays(pa.array(floats), 64)
            numbers = pa.array(np.arange(first, first + CHUNK))
            writer.write_batch(pa.record_batch([ids, values, numbers], schema=schema))
        writer.close()
        file.flush()
        if synced:
            os.fsync(file.fileno())


def private_dirty(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    line = next(line for line in rollup.splitlines() if line.startswith("Private_Dirty:"))
    return int(line.split()[1]) * 1024


def measure(path: str, kind: str, options: dict[str, Any]) -> None:
    """Reads a tenth of the file and prints what each process has then."""
    import fastiter
    from fastiter.datasets import ArrowDataset

    dataset = ArrowDataset(path, padding=0)
    with getattr(fastiter, kind)(
        dataset,
        64,
        order_sampler=fastiter.ShuffleOrderSampler(0),
        converter=fastiter.concat_examples,
        **options,
    ) as batches:
        begin = private_dirty(os.getpid())
        next(batches)
        while "n_processes" in options and not all(w.rows for w in batches.stats().workers):
            next(batches)  # a worker that is spawned imports what it needs meanwhile
        pids = [os.getpid(), *(w.pid for w in batches.stats().workers if w.pid > 0)]
        before = [private_dirty(pid) for pid in pids]
        n_batches = len(dataset) // 640
        for _ in range(n_batches):
            next(batches)
        grown = [private_dirty(pid) - was for pid, was in zip(pids, before, strict=True)]
    start, caller, *workers = (f"{n / MEGABYTE:+.2f}" for n in (before[0] - begin, *grown))
    label = f"{kind} {options.get('context', '')}"
    print(
        f"{label:29} {n_batches:,} batches of 64, MB: caller {start} at first, {caller} then; "
        f"workers {', '.join(workers) or 'none'}",
        flush=True,
    )


def main() -> None:
    """Writes the file, measures each iterator, and removes the file."""
    synced = "--unsynced" not in sys.argv
    sizes = [int(text) for text in sys.argv[1:] if text.isdigit()]
    fresh = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="fastiter-bench-") as folder:
        path = str(Path(folder, "large.arrow"))

        def run(function: Any, *arguments: Any) -> None:
            process = fresh.Process(target=function, args=arguments)
            process.start()
            process.join()
            if process.exitcode:
                sys.exit(process.exitcode)

        run(write, path, sizes[0] if sizes else 2000, synced)
        print(f"{Path(path).stat().st_size / MEGABYTE:,.0f} MB", flush=True)
        run(measure, path, "SerialIterator", {})
        run(measure, path, "MultithreadIterator", {"n_threads": 2})
        for context in ("forkserver", "fork", "spawn"):
            run(measure, path, "MultiprocessIterator", {"n_processes": 2, "context": context})


if __name__ == "__main__":
    main()
