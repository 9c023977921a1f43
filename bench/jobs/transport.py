"""Handing 1 GiB of data to spawned processes: all of the way, and its two halves alone."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Goal, Measured, WrongResult
from bench.harness.procs import process_tree, pss_bytes

NAME = "transport"
TITLE = "1 GiB to spawned processes: until all are ready; writing it, and mapping it"

ROW = 8192  # bytes; of each one value is read
N_PROCESSES = 4
QUICK_PROCESSES = 2
NBYTES = 2**30
QUICK_NBYTES = 2**26

Run = Callable[[np.ndarray], Any]


def _array(nbytes: int) -> np.ndarray:
    values = np.arange(nbytes // 8, dtype=np.float64)
    return values.reshape(-1, ROW // 8)


def _total(array: np.ndarray) -> float:
    return float(array[:, 0].sum())


# ---- to processes --------------------------------------------------------------------------------


def _read(data: Any, pipe: Connection) -> None:
    """Main function of each process."""
    array = data if isinstance(data, np.ndarray) else data.value
    pipe.send(_total(array))
    pipe.recv()


def _ready(place: Callable[[np.ndarray], Any], count: int) -> Run:
    """Until `count` spawned processes have read the array; memory added by them then."""
    context = multiprocessing.get_context("spawn")

    def run(array: np.ndarray) -> Measured:
        before = pss_bytes(process_tree(os.getpid()))
        begin = time.perf_counter()
        data = place(array)
        pairs = [context.Pipe() for _ in range(count)]
        processes = [context.Process(target=_read, args=(data, end)) for _, end in pairs]
        for process in processes:
            process.start()
        totals = [ours.recv() for ours, _ in pairs]
        seconds = time.perf_counter() - begin
        added = pss_bytes(process_tree(os.getpid())) - before
        for ours, _ in pairs:
            ours.send(None)
        for process in processes:
            process.join()
        return Measured(seconds, totals, {"added_mb": added / 1e6})

    return run


def _fastiter_ready(count: int) -> Callable[[], Run]:
    def open_() -> Run:
        from fastiter.kernels import share

        return _ready(share, count)

    return open_


def _pickle_ready(count: int) -> Callable[[], Run]:
    return lambda: _ready(lambda array: array, count)


def _check_totals(totals: list[float], array: np.ndarray) -> None:
    if not totals or set(totals) != {_total(array)}:
        raise WrongResult(f"{totals} came, {_total(array)} was due")


# ---- halves --------------------------------------------------------------------------------------


def _fastiter_placing() -> Run:
    from fastiter.kernels import share

    def run(array: np.ndarray) -> Measured:
        begin = time.perf_counter()
        handle = share(array)
        seconds = time.perf_counter() - begin
        return Measured(seconds, _total(handle.value))

    return run


def _python_placing() -> Run:
    from multiprocessing.shared_memory import SharedMemory

    def run(array: np.ndarray) -> Measured:
        begin = time.perf_counter()
        memory = SharedMemory(create=True, size=array.nbytes)
        shared = np.frombuffer(memory.buf, array.dtype).reshape(array.shape)
        shared[:] = array
        seconds = time.perf_counter() - begin
        total = _total(shared)
        del shared
        memory.close()
        memory.unlink()
        return Measured(seconds, total)

    return run


def _write(fd: int, array: np.ndarray) -> None:
    data = memoryview(array).cast("B")
    while data:
        data = data[os.pwrite(fd, data[: 2**24], array.nbytes - len(data)) :]


def _limit_placing() -> Run:
    """write(2) into fresh memory: the kernel's work alone."""

    def run(array: np.ndarray) -> Measured:
        begin = time.perf_counter()
        fd = os.memfd_create("limit")
        try:
            _write(fd, array)
            return Measured(time.perf_counter() - begin)
        finally:
            os.close(fd)

    return run


def _fastiter_mapping() -> Run:
    from fastiter.kernels import share

    def run(array: np.ndarray) -> Measured:
        handle = share(array)
        begin = time.perf_counter()
        total = _total(handle.value)
        return Measured(time.perf_counter() - begin, total)

    return run


def _limit_mapping() -> Run:
    """A private mapping, read as the candidates' is."""

    def run(array: np.ndarray) -> Measured:
        fd = os.memfd_create("limit")
        try:
            _write(fd, array)
            begin = time.perf_counter()
            flags, protection = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
            memory = mmap.mmap(fd, array.nbytes, flags=flags, prot=protection)
            _total(np.frombuffer(memory, array.dtype).reshape(array.shape))
            return Measured(time.perf_counter() - begin)
        finally:
            os.close(fd)

    return run


def _check_total(total: float, array: np.ndarray) -> None:
    if total != _total(array):
        raise WrongResult(f"{total} came, {_total(array)} was due")


def cases(quick: bool) -> Iterator[Case]:
    nbytes = QUICK_NBYTES if quick else NBYTES
    count = QUICK_PROCESSES if quick else N_PROCESSES
    size = f"{nbytes / 2**30:.2g} GiB"

    def sources() -> list[np.ndarray]:
        return [_array(nbytes)]

    yield Case(
        name=f"{size} placed in shared memory",
        sources=sources,
        candidates={
            "fastiter": _fastiter_placing,
            "python.shared_memory": _python_placing,
            "limit": _limit_placing,
        },
        check=_check_total,
        nbytes=nbytes,
        goals=[] if quick else [Goal("limit", 0.9)],
    )
    yield Case(
        name=f"{size} mapped, one value of each {ROW} bytes read",
        sources=sources,
        candidates={"fastiter": _fastiter_mapping, "limit": _limit_mapping},
        check=_check_total,
        nbytes=nbytes,
        goals=[] if quick else [Goal("limit", 0.9)],
    )
    yield Case(
        name=f"{size}, {count} spawned processes have read it",
        sources=sources,
        candidates={
            "fastiter": _fastiter_ready(count),
            "python.pickle": _pickle_ready(count),
        },
        check=_check_totals,
        nbytes=nbytes,
        goals=[]
        if quick
        else [
            AtMost("seconds", 1.5),
            Goal("python.pickle", 5),
            AtMost("added_mb", 1.15 * nbytes / 1e6),
        ],
        processes=True,
    )
