"""The cost of a dataset by itself, without an iterator."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastiter._cli.profile.loading import RAISED, UsageError
from fastiter._fetch.dataset_access import plain_columns, rows_getter
from fastiter._fetch.reader import DatasetReader, ManyReader
from fastiter._order.plan import Plan
from fastiter._ring.serialization import are_same
from fastiter._threads.pool import thread_times
from fastiter._util.failures import summary_of
from fastiter._util.units import nbytes_of
from fastiter.iterators.samplers._orders import joined

_GROUP_SECONDS = 100e-6  # examples that take less are timed in groups
_MOST_GROUP = 1024
_MOST_BATCH = 4  # of the time for all: what one call of __getitems__ may take
_SAMPLES = 32
_THREADS = 2


class DatasetCost(NamedTuple):
    """Cost of an example, and behaviour of the dataset."""

    length: int
    layout: str  # of the first example: ``(uint8[32,32,3], int)``
    is_ragged: bool  # whether the shapes of arrays differ between examples
    nbytes: float  # mean of an example's fields
    first: float  # seconds for the first example
    seconds: float  # per example: mean
    median: float
    high: float  # 95 % take no longer
    n_timed: int
    group: int  # examples that were timed together
    cpu: float  # CPUs that all threads of the process kept busy meanwhile
    gain: float | None  # rate of two threads / rate of one; None if not measured
    trouble: str  # what two threads raised
    is_repeatable: bool  # whether an example that is fetched twice is the same
    by_columns: bool  # whether its columns are gathered without a call for each example
    by_many: bool  # whether one call fetches many examples

    @property
    def gil(self) -> float | None:
        """Share of the time with the GIL held: at least this, if it is over one half."""
        return None if self.gain is None else min(1.0, 1 / max(self.gain, 1e-9))

    @property
    def waits(self) -> bool:
        """Whether it waits (for files, the network, a lock) rather than computes."""
        return self.cpu < 0.7


class Fetcher:
    """Fetches examples as an iterator does, and names the index that fails or hangs."""

    patience = 10.0  # seconds

    def __init__(self, dataset: Any, warn: Callable[[str], None]) -> None:
        self._dataset, getter = dataset, rows_getter(dataset)
        is_single = getter is None
        self._reader = DatasetReader(dataset) if is_single else ManyReader(dataset, getter)
        self._warn = warn
        self._calls: dict[int, tuple[float, NDArray[np.int64]]] = {}  # beginning, by thread

    def __call__(self, indices: NDArray[np.int64]) -> list[Any]:
        """The examples at ``indices``; UsageError names the index at which the dataset raised."""
        try:
            return self._fetch(indices)
        except RAISED as error:
            index = self._culprit(indices)
            where = f"one of the indices {indices.tolist()}" if index is None else f"index {index}"
            raise UsageError(f"the dataset raised at {where}: {summary_of(error)}") from error

    def _fetch(self, indices: NDArray[np.int64]) -> list[Any]:
        plan = Plan(indices, None, origin=(0, len(indices), len(self._dataset)))
        thread = threading.get_ident()
        self._calls[thread] = (time.perf_counter(), indices)
        try:
            return self._reader.examples(indices, ((0, 0), plan))[0]
        finally:
            del self._calls[thread]

    def _culprit(self, indices: NDArray[np.int64]) -> int | None:
        for k in range(len(indices)):
            try:
                self._fetch(indices[k : k + 1])
            except RAISED:
                return int(indices[k])
        return None

    @contextmanager
    def watched(self) -> Iterator[Fetcher]:
        """While the block runs, warn of each call that takes long, and again whenever its time has
        doubled."""
        done = threading.Event()
        thread = threading.Thread(target=self._watch, args=(done,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()

    def _watch(self, done: threading.Event) -> None:
        warned: dict[float, float] = {}  # seconds, by the time at which the call began
        while not done.wait(self.patience / 10):
            for begin, indices in list(self._calls.values()):
                elapsed = time.perf_counter() - begin
                if elapsed >= max(self.patience, 2 * warned.get(begin, 0.0)):
                    warned[begin] = elapsed
                    which = f"index {indices[0]}"
                    if len(indices) > 1:
                        which = f"{len(indices)} indices ({', '.join(map(str, indices[:4]))}, ...)"
                    self._warn(f"fetching {which} has taken {elapsed:.1f} s")


def measure(
    dataset: Any, order: Any, batch_size: int, seconds: float, warn: Callable[[str], None]
) -> tuple[DatasetCost, list[Any]]:
    """Time a dataset for about ``seconds``; return its cost and two of its examples.

    The beginning of ``order`` is used, repeatedly. ``batch_size`` is that of calls of
    ``__getitems__``. ``warn`` gets a text if a call takes very long. Raises UsageError if the
    dataset raises.
    """
    with Fetcher(dataset, warn).watched() as fetch:

        def fetched(start: int, count: int) -> tuple[list[Any], float]:
            begin = time.perf_counter()
            return fetch(part_of(order, start, count)), time.perf_counter() - begin

        ((example,), first), ((again,), once) = fetched(0, 1), fetched(0, 1)
        by_many = rows_getter(dataset) is not None
        group = min(batch_size, max(1, int(_MOST_BATCH * seconds / once))) if by_many else 1
        while not by_many and once < _GROUP_SECONDS and group < _MOST_GROUP:
            group *= 2
            once = fetched(2, group)[1]
        timed, samples, cpu = _time(fetch, order, group, 0.6 * seconds)
        rate = len(timed) / sum(timed)
        gain, trouble = _gain_of_threads(fetch, order, group, rate, 0.3 * seconds)
    per_example = sorted(t / group for t in timed)
    found = DatasetCost(
        length=len(dataset),
        layout=layout_of(example),
        is_ragged=len(set(map(layout_of, (example, *samples)))) > 1,
        nbytes=statistics.fmean(map(nbytes_of, (example, *samples))),
        first=first,
        seconds=statistics.fmean(per_example),
        median=statistics.median(per_example),
        high=per_example[int(0.95 * (len(per_example) - 1) + 0.5)],
        n_timed=len(timed) * group,
        group=group,
        cpu=cpu,
        gain=gain,
        trouble=trouble,
        is_repeatable=are_same(example, again),
        by_columns=plain_columns(dataset) is not None,
        by_many=by_many,
    )
    return found, [example, samples[0]]


def part_of(order: Any, start: int, count: int) -> NDArray[np.int64]:
    """``count`` indices of the order from ``start`` on; after its end it starts again."""
    n = len(order)
    return joined(start, start + count, lambda at, stop: order[at % n : at % n + stop - at])


def _time(
    fetch: Fetcher, order: Any, group: int, seconds: float
) -> tuple[list[float], list[Any], float]:
    """Seconds of each group, some of the examples, and how many CPUs were busy meanwhile, not
    counting the time in which this thread waited for a CPU."""
    timed: list[float] = []
    samples: list[Any] = []
    cpu = delay = 0.0
    end = time.perf_counter() + seconds
    start, thread = 1, threading.get_native_id()
    while not timed or time.perf_counter() < end:
        indices = part_of(order, start, group)
        start += group
        waited = -thread_times(thread)[1]
        busy, begin = time.process_time(), time.perf_counter()
        examples = fetch(indices)
        elapsed = time.perf_counter() - begin
        used = time.process_time() - busy
        waited += thread_times(thread)[1]
        timed.append(elapsed)
        cpu += used
        delay += min(waited, max(0.0, elapsed - used))  # some may have passed before it began
        samples += examples[: _SAMPLES - len(samples)]
    return timed, samples, cpu / max(sum(timed) - delay, 1e-9)


def _gain_of_threads(
    fetch: Fetcher, order: Any, group: int, rate: float, seconds: float
) -> tuple[float | None, str]:
    """The rate of two threads divided by ``rate``, that of one, and what they raised."""
    counts, raised = [0] * _THREADS, [""] * _THREADS
    started = threading.Barrier(_THREADS + 1)
    stop = threading.Event()

    def run(number: int) -> None:
        start = number * len(order) // _THREADS
        started.wait()
        try:
            while not stop.is_set():
                fetch(part_of(order, start, group))
                start += group
                counts[number] += 1
        except UsageError as error:
            raised[number] = str(error)

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(_THREADS)]
    for thread in threads:
        thread.start()
    started.wait()
    begin = time.perf_counter()
    stop.wait(max(seconds, 1 / rate))
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    trouble = next(filter(None, raised), "")
    return (None if trouble else sum(counts) / elapsed / rate), trouble


def layout_of(example: Any) -> str:
    """An example's types, dtypes and shapes: ``(uint8[32,32,3], int)``."""
    if isinstance(example, np.ndarray):
        return f"{example.dtype}[{','.join(map(str, example.shape))}]"
    if isinstance(example, np.generic):
        return str(example.dtype)
    if isinstance(example, tuple):
        return f"({', '.join(map(layout_of, example))}{',' if len(example) == 1 else ''})"
    if isinstance(example, dict):
        return f"{{{', '.join(f'{key!r}: {layout_of(value)}' for key, value in example.items())}}}"
    return type(example).__name__


def copy_rate(nbytes: int = 64 << 20) -> float:
    """Bytes that two threads copy in a second."""
    to, source = (np.ones((_THREADS, nbytes // _THREADS), np.uint8) for _ in range(2))
    seconds = []
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in range(5):
            begin = time.perf_counter()
            list(pool.map(np.copyto, to, source))
            seconds.append(time.perf_counter() - begin)
    return nbytes / min(seconds)
