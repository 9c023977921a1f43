"""What a dataset costs by itself, without any iterator."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastiter._cli.doctor.machine import text_of
from fastiter._cli.profile.hang_report import Waiting
from fastiter._cli.profile.loading import RAISED, UsageError
from fastiter._fetch.dataset_access import plain_columns, rows_getter
from fastiter._ring.serialization import summary_of
from fastiter.iterators._fetch import fetch_examples

_GROUP_SECONDS = 100e-6  # examples that take less are timed in groups
_MOST_BATCH = 4  # times the time, for one call of __getitems__
_THREADS = 2


class DatasetCost(NamedTuple):
    """What was found."""

    length: int
    layout: str  # of the first example: ``(uint8[32,32,3], int)``
    is_ragged: bool  # whether the shapes of arrays differ between examples
    nbytes: float  # mean of an example's fields
    first: float  # seconds for the first example
    seconds: float  # per example: mean
    median: float
    high: float  # 95 of 100 take no longer
    n_timed: int
    group: int  # examples that were timed together
    cpu: float  # CPUs that were busy meanwhile, all threads of the process
    gain: float | None  # times as fast as one thread that two are; None if not measured
    trouble: str  # what two threads raised
    is_repeatable: bool  # whether an example asked for twice is the same
    by_columns: bool  # whether its columns are gathered without a call for each example
    by_many: bool  # whether it gives many examples at once

    @property
    def gil(self) -> float | None:
        """Share of the time with the GIL held: at least this, if it is over one half."""
        return None if self.gain is None else min(1.0, 1 / max(self.gain, 1e-9))

    @property
    def waits(self) -> bool:
        """Whether it waits (for files, the network, a lock) rather than computes."""
        return self.cpu < 0.7


class Fetcher:
    """Fetches examples as an iterator would, and tells which one failed."""

    def __init__(self, dataset: Any, length: int) -> None:
        self._dataset = dataset
        self._length = length
        self.waiting = Waiting(_fetching)

    def __call__(self, indices: NDArray[np.int64]) -> list[Any]:
        """The examples at ``indices``.

        Raises
        ------
        UsageError
            If the dataset raises; the text names the index.
        """
        try:
            return self._fetch(indices)
        except RAISED as error:
            index = self._culprit(indices)
            where = f"one of the indices {indices.tolist()}" if index is None else f"index {index}"
            raise UsageError(f"the dataset raised at {where}: {summary_of(error)}") from error

    def _fetch(self, indices: NDArray[np.int64]) -> list[Any]:
        n = len(indices)
        state = SimpleNamespace(epoch=0, position=n, epoch_size=self._length)
        plan: Any = SimpleNamespace(indices=indices, state=state)
        self.waiting.begin(indices)
        try:
            return fetch_examples(self._dataset, indices.tolist(), ((0, 0), plan), 0)
        finally:
            self.waiting.end()

    def _culprit(self, indices: NDArray[np.int64]) -> int | None:
        for k in range(len(indices)):
            try:
                self._fetch(indices[k : k + 1])
            except RAISED:
                return int(indices[k])
        return None


def _fetching(indices: NDArray[np.int64]) -> str:
    if len(indices) == 1:
        return f"the dataset has been fetching index {indices[0]}"
    some = ", ".join(map(str, indices[:4]))
    return f"the dataset has been fetching the {len(indices)} indices {some}, ..."


def measure(
    dataset: Any, order: Any, batch_size: int, seconds: float, warn: Callable[[str], None]
) -> tuple[DatasetCost, list[Any]]:
    """Time a dataset; what is found, and two of its examples.

    Parameters
    ----------
    dataset
        Has a length.
    order : sequence of int
        Indices in the order in which they are asked for; the beginning is used, again and again.
    batch_size : int
        Examples asked for at a time, where the dataset gives many.
    seconds : float
        What this may take, about; an example is fetched five times at least.
    warn
        Is told of an example that takes very long, by another thread.

    Raises
    ------
    UsageError
        If the dataset raises.
    """
    fetch = Fetcher(dataset, len(dataset))
    with fetch.waiting.told(warn):
        return _measure(fetch, dataset, order, batch_size, seconds)


def _measure(
    fetch: Fetcher, dataset: Any, order: Any, batch_size: int, seconds: float
) -> tuple[DatasetCost, list[Any]]:
    by_many = rows_getter(dataset) is not None
    begin = time.perf_counter()
    (example,) = fetch(part_of(order, 0, 1))
    first = time.perf_counter() - begin
    begin = time.perf_counter()
    (again,) = fetch(part_of(order, 0, 1))
    once = time.perf_counter() - begin
    if by_many:
        group = min(batch_size, max(1, int(_MOST_BATCH * seconds / once)))
    else:
        group = _group(fetch, order, once)
    timed, samples, cpu = _time(fetch, order, group, 0.6 * seconds)
    gain, trouble = _gain_of_threads(fetch, order, group, len(timed) / sum(timed), 0.3 * seconds)
    per_example = sorted(t / group for t in timed)
    found = DatasetCost(
        length=len(dataset),
        layout=layout_of(example),
        is_ragged=len({layout_of(e) for e in (example, *samples)}) > 1,
        nbytes=statistics.fmean(nbytes_of(e) for e in (example, *samples)),
        first=first,
        seconds=statistics.fmean(per_example),
        median=statistics.median(per_example),
        high=per_example[int(0.95 * (len(per_example) - 1) + 0.5)],
        n_timed=len(timed) * group,
        group=group,
        cpu=cpu,
        gain=gain,
        trouble=trouble,
        is_repeatable=are_equal(example, again),
        by_columns=plain_columns(dataset) is not None,
        by_many=by_many,
    )
    return found, [example, samples[0]]


def part_of(order: Any, start: int, count: int) -> NDArray[np.int64]:
    """``count`` indices of the order from ``start`` on, beginning anew at its end."""
    parts = []
    while count > 0:
        start %= len(order)
        parts.append(np.asarray(order[start : start + count], np.int64))
        start, count = start + len(parts[-1]), count - len(parts[-1])
    return np.concatenate(parts)


def _group(fetch: Fetcher, order: Any, once: float) -> int:
    """How many examples to time together; one took ``once`` seconds."""
    if once > 10 * _GROUP_SECONDS:
        return 1
    begin = time.perf_counter()
    fetch(part_of(order, 2, 4))
    each = (time.perf_counter() - begin) / 4
    return max(1, min(1000, int(_GROUP_SECONDS / each)))


def _time(
    fetch: Fetcher, order: Any, group: int, seconds: float
) -> tuple[list[float], list[Any], float]:
    """Seconds for each group, some of the examples, and how many CPUs were busy while they were to
    be had: standing in line for one is no waiting of the dataset's."""
    timed: list[float] = []
    samples: list[Any] = []
    cpu = 0.0
    delay = 0.0
    end = time.perf_counter() + seconds
    start = 1
    while not timed or time.perf_counter() < end:
        indices = part_of(order, start, group)
        start += group
        stood = -_delay()
        busy, begin = time.process_time(), time.perf_counter()
        examples = fetch(indices)
        elapsed = time.perf_counter() - begin
        used = time.process_time() - busy
        stood += _delay()
        timed.append(elapsed)
        cpu += used
        delay += min(stood, max(0.0, elapsed - used))  # it may have stood before it began
        if len(samples) < 32:
            samples.append(examples[-1])
    return timed, samples, cpu / max(sum(timed) - delay, 1e-9)


def _delay() -> float:
    """Seconds that this thread has stood in line for a CPU; 0 where the system does not tell."""
    words = text_of(Path("/proc/thread-self/schedstat")).split()
    return int(words[1]) / 1e9 if len(words) == 3 else 0.0


def _gain_of_threads(
    fetch: Fetcher, order: Any, group: int, alone: float, seconds: float
) -> tuple[float | None, str]:
    """How many times as many groups a second two threads fetch as one, and what they raised."""
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
    stop.wait(max(seconds, 1 / alone))
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    trouble = next(filter(None, raised), "")
    return (None if trouble else sum(counts) / elapsed / alone), trouble


def layout_of(example: Any) -> str:
    """An example's kind: ``(uint8[32,32,3], int)``."""
    if isinstance(example, np.ndarray):
        return f"{example.dtype}[{','.join(map(str, example.shape))}]"
    if isinstance(example, np.generic):
        return str(example.dtype)
    if isinstance(example, tuple):
        return f"({', '.join(map(layout_of, example))}{',' if len(example) == 1 else ''})"
    if isinstance(example, dict):
        return f"{{{', '.join(f'{key!r}: {layout_of(value)}' for key, value in example.items())}}}"
    return type(example).__name__


def nbytes_of(example: Any) -> int:
    """Bytes of an example's arrays, numbers, texts, and of the items of its containers."""
    if isinstance(example, (np.ndarray, np.generic)):
        return example.nbytes
    if isinstance(example, (tuple, list)):
        return sum(map(nbytes_of, example))
    if isinstance(example, dict):
        return sum(map(nbytes_of, example.values()))
    if isinstance(example, (str, bytes)):
        return len(example)
    return int(getattr(example, "nbytes", 8))


def are_equal(one: Any, other: Any) -> bool:
    """Whether two examples, or batches, are the same: types, shapes and values, NaN included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    try:
        if hasattr(one, "numpy") and hasattr(other, "numpy"):
            return are_equal(_array_of(one), _array_of(other))
        return bool(one == other or (one != one and other != other))
    except Exception:
        return False


def _array_of(tensor: Any) -> Any:
    """A tensor as an array; one of a dtype that NumPy lacks, such as bfloat16, as doubles."""
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):
        return tensor.detach().double().numpy()


def are_alike(one: Any, other: Any) -> bool:
    """Whether two batches have the same containers, dtypes and, of arrays, dimensions."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.ndim == other.ndim)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_alike(one[key], other[key]) for key in one)
    return True


def copy_rate(nbytes: int = 64 << 20) -> float:
    """Bytes a second that two threads copy from memory to memory."""
    half = nbytes // _THREADS
    sources = [np.ones(half, np.uint8) for _ in range(_THREADS)]
    targets = [np.ones(half, np.uint8) for _ in range(_THREADS)]
    rates: list[float] = []
    for _ in range(5):
        threads = [
            threading.Thread(target=np.copyto, args=pair)
            for pair in zip(targets, sources, strict=True)
        ]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rates.append(nbytes / (time.perf_counter() - begin))
    return max(rates)
