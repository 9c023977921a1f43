"""Worker processes that fill a cache."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.connection
from typing import Any

import numpy as np

from fastiter._util.arguments import checked_flag, checked_optional_int
from fastiter._util.cpus import whole_cpus
from fastiter._util.start_default import default_method_kept
from fastiter._workers import start_method

logger = logging.getLogger("fastiter")

_CALLER = start_method.Caller("", "cache.fill()", instead="read each row in a loop")
_PART_ROWS = 64  # rows that a worker asks for at a time, where the dataset has __getitems__
_LOOK_SECONDS = 0.2  # between two looks at the counts


def fill(cache: Any, rows: Any, n_processes: int | None, progress: bool) -> None:
    """Have processes fetch these rows of a `CachedDataset`, int64 (n,), until it is full."""
    checked_optional_int("n_processes", n_processes)
    bar = _bar(cache, checked_flag("progress", progress))
    try:
        if len(rows):
            _run(cache, rows, n_processes or whole_cpus(), bar)
    finally:
        if bar is not None:
            _show(bar, cache)
            bar.close()


def _run(cache: Any, rows: Any, n_processes: int, bar: Any) -> None:
    start = start_method.choose(None, _CALLER)
    start_method.refuse_daemons(_CALLER)
    start_method.require_guard(start)
    count = min(n_processes, len(rows))
    workers = [
        # No worker waits for another: one that is killed holds no lock.
        start.context.Process(target=_fill_rows, args=(cache, part), daemon=True)
        for part in np.array_split(_in_parts(rows, count), count)
    ]
    try:
        for worker in workers:
            worker.start()
        # Not by exit codes, which come a little later, and never where SIGCHLD is ignored.
        waiting = {worker.sentinel: worker for worker in workers}
        while waiting:
            seconds = None if bar is None else _LOOK_SECONDS
            for ended in multiprocessing.connection.wait(list(waiting), seconds):
                waiting.pop(ended).join()
            if bar is not None:
                _show(bar, cache)
    finally:
        for worker in workers:
            if worker.pid is not None:
                worker.kill()  # no more than a row that is being stored is lost
                worker.join()
    if failed := [worker.exitcode for worker in workers if worker.exitcode]:
        raise RuntimeError(
            f"{len(failed)} of {len(workers)} processes that filled the cache ended with exit code "
            f"{failed[0]}; rows that they have stored stay, and fill() may be called again"
        )


def _in_parts(rows: Any, count: int) -> Any:
    """The rows in another order, part by part: of several calls at once, few fetch the same row at
    the same time, and each finds what the others have fetched."""
    size = max(1, min(_PART_ROWS, len(rows) // (_PART_ROWS * count)))
    parts = np.random.default_rng().permutation(-(-len(rows) // size))
    places = (parts[:, None] * size + np.arange(size)).ravel()
    return rows[places[places < len(rows)]]


def _fill_rows(cache: Any, rows: Any) -> None:
    """In a worker: fetches rows, unless they are there by then, or the cache is full."""
    many = getattr(cache, "__getitems__", None)
    step = 1 if many is None else _PART_ROWS
    for first in range(0, len(rows), step):
        part = cache.missing(rows[first : first + step])
        if cache.is_full:
            return
        with contextlib.suppress(Exception):  # which rows fail is found one by one
            if many is not None and len(part) > 1:
                cache._fetched(cache._opened(), part, is_trial=True)
                continue
        for row in part:
            try:
                cache.get_example(row)
            except Exception as error:
                logger.warning("row %d is not cached, since the dataset failed: %r", row, error)


def _bar(cache: Any, wanted: bool) -> Any:
    if not wanted:
        return None
    from tqdm import tqdm

    with default_method_kept():  # the first bar makes a lock of multiprocessing's
        return tqdm(total=len(cache), unit=" rows", desc="fill")


def _show(bar: Any, cache: Any) -> None:
    stats = cache.stats()
    bar.n = stats.rows
    bar.set_postfix_str(f"{stats.bytes / 1e9:.1f} GB")
