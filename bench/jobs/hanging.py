"""Rows that hang for ever at their first touch, one in a hundred: the waits of ``next()``.

They sleep; they wait in C with the GIL; their worker is stopped (SIGSTOP), or frozen by a control
group, so that not even SIGKILL ends it. The last needs cgroups v1 and root, and is left out
elsewhere.

``on_timeout='retry'`` has other workers fetch them. Each call is an epoch, and its duration is the
99th percentile of the waits, in units of ``dataset_timeout``: from 1 on a row that hangs shows, and
more than that is what ending and replacing a worker adds, and rows that hang one after the other.
Peers are given up after ten such units without a batch: what they do not deliver is `missing`.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from bench.harness.micro import AtMost, Case, Measured, WrongResult

NAME = "hanging"
TITLE = "p99 of next(), in units of dataset_timeout, where 1 % of the rows hang once"

_HASH = 2654435761  # spreads the rows that hang
_PATIENCE = 10  # times dataset_timeout
_FREEZER = Path("/sys/fs/cgroup/freezer")


class Hanging:
    """Its own indices."""

    def __init__(self, rows: int, how: str, folder: str) -> None:
        self._rows, self._how, self._folder = rows, how, folder

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, i: int) -> int:
        if (i + 50) * _HASH % 2**32 < 2**32 // 100:
            try:
                os.close(os.open(f"{self._folder}/{i}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return i
            self._hang()
        return i

    def _hang(self) -> None:
        if self._how == "read":
            ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)
        elif self._how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self._how == "freeze":
            _group(self._folder).joinpath("cgroup.procs").write_text(str(os.getpid()))
        threading.Event().wait()


class HangingCalls(Hanging):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[i] for i in indices]


def _group(folder: str) -> Path:
    return _FREEZER / f"bench-{Path(folder).name}"


class _Frozen(AbstractContextManager[None]):
    """A control group whose processes are frozen until the end."""

    def __init__(self, folder: str) -> None:
        self._path = _group(folder)
        self._path.mkdir()
        self._path.joinpath("freezer.state").write_text("FROZEN")

    def __exit__(self, *_: object) -> None:
        self._path.joinpath("freezer.state").write_text("THAWED")
        _kill_children()  # of a peer: those of fastiter have got SIGKILL
        while self._path.joinpath("cgroup.procs").read_text():
            time.sleep(0.01)
        self._path.rmdir()


def _kill_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises
    for child in multiprocessing.active_children():
        child.kill()


Open = Callable[[Hanging, int, int, float], AbstractContextManager[Iterator[Any]]]


def _fastiter(hedge: float | None = None) -> Open:
    from fastiter import MultiprocessIterator

    logging.getLogger("fastiter").setLevel("ERROR")

    def loader(dataset: Hanging, batch_size: int, workers: int, seconds: float) -> Any:
        return MultiprocessIterator(
            dataset,
            batch_size,
            repeat=False,
            shuffle=False,
            n_processes=workers,
            context="fork",
            dataset_timeout=seconds,
            on_timeout="retry",
            hedge=hedge,
        )

    return loader


def _torch() -> Open:
    from torch.utils.data import DataLoader

    def loader(dataset: Hanging, batch_size: int, workers: int, seconds: float) -> Any:
        batches = DataLoader(
            dataset,  # type: ignore[arg-type]
            batch_size,
            num_workers=workers,
            timeout=seconds,
            collate_fn=list,
            multiprocessing_context="fork",
        )
        return nullcontext(iter(batches))

    return loader


def _grain() -> Open:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # its worker processes ask for flags

    def loader(dataset: Hanging, batch_size: int, workers: int, seconds: float) -> Any:
        options = grain.multiprocessing.MultiprocessingOptions(workers, 1)
        batches = grain.MapDataset.source(dataset).batch(batch_size)
        return nullcontext(
            iter(batches.to_iter_dataset(grain.ReadOptions(1, 1)).mp_prefetch(options))
        )

    return loader


class _GivenUp(Exception):
    pass


def _give_up(*_: object) -> None:
    raise _GivenUp


def _next(iterator: Iterator[Any], seconds: float) -> Any:
    """The next batch, if it comes in time, however often ``next()`` raises until then."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        while True:
            try:
                return next(iterator)
            except (RuntimeError, TimeoutError):  # torch's, at each call
                time.sleep(0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _epoch(
    make: Callable[[], Open],
    kind: type[Hanging],
    how: str,
    batch_size: int,
    workers: int,
    batches: int,
    seconds: float,
) -> Callable[[Any], Measured]:
    loader = make()

    def run(_: Any) -> Measured:
        waits: list[float] = []
        found: list[int] = []
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            dataset = kind(batch_size * batches, how, folder)
            iterator = stack.enter_context(loader(dataset, batch_size, workers, seconds))
            stack.callback(_kill_children)
            if how == "freeze":
                stack.enter_context(_Frozen(folder))
            try:
                while len(waits) < batches:
                    begin = time.perf_counter()
                    # The first wait has the start of the workers, too.
                    batch = _next(iterator, _PATIENCE * seconds + (0 if waits else 20))
                    waits.append((time.perf_counter() - begin) / seconds)
                    found += map(int, batch)
            except _GivenUp:
                waits.append(float(_PATIENCE))
        if found != list(range(len(found))):
            raise WrongResult("the batches are not those of the dataset")
        missing = 1 - len(found) / (batch_size * batches)
        waits = waits[1:] or waits  # the first one is the start
        p99 = max(waits) if missing else float(np.quantile(waits, 0.99))
        return Measured(p99, None, {"longest": max(waits), "missing": missing})

    return run


def _can_freeze() -> bool:
    return os.access(_FREEZER, os.W_OK) and (_FREEZER / "cgroup.procs").exists()


def cases(quick: bool) -> Iterator[Case]:
    configurations = [
        (Hanging, "sleep", 32, 4, 100, 1.4),
        (Hanging, "read", 32, 4, 100, 1.4),
        (Hanging, "stop", 32, 4, 100, 1.4),
        (Hanging, "freeze", 32, 4, 12, 1.4),  # each costs a process until the end
        (Hanging, "sleep", 128, 2, 50, 2.5),
        (HangingCalls, "sleep", 32, 4, 100, 3.3),
    ]
    for kind, how, batch_size, workers, batches, most in configurations[: 1 if quick else None]:
        if how == "freeze" and not _can_freeze():
            continue
        calls = "by __getitems__, " if kind is HangingCalls else ""
        epoch = kind, how, batch_size, workers, 12 if quick else batches, 0.1 if quick else 0.5
        makers: dict[str, Callable[[], Open]] = {
            "fastiter": _fastiter,
            "fastiter.hedge": functools.partial(_fastiter, 0.05),
            "torch": _torch,
            "grain": _grain,
        }
        yield Case(
            name=f"{how}, {calls}batches of {batch_size}, {workers} workers",
            sources=lambda: [None],
            candidates={
                name: functools.partial(_epoch, make, *epoch) for name, make in makers.items()
            },
            check=lambda result, source: None,
            items=1,
            item="wait",
            goals=[AtMost("seconds", most, "fastiter")],
        )
