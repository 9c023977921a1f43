"""Settings that follow what is measured: how many workers there are, and how far they fetch ahead.

What is done is what `fastiter._stats.bottleneck` advises from the counters of the last moments,
within the limits of CPUs and memory, and taken back where it did not help.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from fastiter._clib import system as _system
from fastiter._stats import bottleneck, timer

if TYPE_CHECKING:
    from fastiter._stats.stats import IteratorStats

FIRST_PREFETCH = 2
MOST_PREFETCH = 16
_MOST_WORKERS = 64
_WORKERS_PER_CPU = 4  # for datasets that wait for files or a network
_FIRST_WORKERS = 4
_LOOK_NS = 250_000_000
_LEAST_GAIN = 0.05  # of the throughput: what a change has to bring to stay
_WINDOWS = 3  # whose median is the throughput: an example that takes long may fill one of them
_PATIENCE = 40  # looks before something is tried again that did not help, for each time it did not
_MOST_REFUSALS = 5  # that count
_VERY_BUSY = 0.85  # workers that are busier want others so much that ...
_EAGERNESS = 5  # ... a look counts as so many
_CALM_LOOKS = 4  # one after the other before workers are sent away
_MEMORY_SHARE = 0.5  # of what is available, for what is added


def most_workers(cpus: float) -> int:
    """How many workers ``n_processes='auto'`` has at most."""
    return max(math.ceil(cpus), min(_MOST_WORKERS, max(8, math.ceil(_WORKERS_PER_CPU * cpus))))


def first_workers(cpus: float) -> int:
    """With how many it begins."""
    return max(1, min(_FIRST_WORKERS, round(cpus)))


class Setting(NamedTuple):
    """How one setting is changed, and what that takes."""

    set: Callable[[int], None]
    bytes_each: Callable[[], int]  #: memory that one more takes, about


class Adjustable(Protocol):
    """What fetches ahead: a pool of workers, or threads."""

    def is_steady(self) -> bool:
        """Whether all workers that are wanted have loaded the dataset."""

    def settings(self) -> dict[str, Setting]:
        """What may change while it runs: ``n_processes``, ``n_prefetch``."""

    def memory_available(self) -> int: ...


class _Trial:
    """A change whose effect is not known yet."""

    def __init__(self, name: str, before: int, rate: float) -> None:
        self.name = name
        self.before = before
        self.rate = rate


class Tuner:
    """Watches one iterator, from within its ``next()``.

    Parameters
    ----------
    most : dict
        The settings that may change, and how far.
    """

    def __init__(self, most: dict[str, int]) -> None:
        self.changes: list[str] = []
        self.most = most
        self._due = 0
        self._before: IteratorStats | None = None
        self._trial: _Trial | None = None
        self._rates: list[float] = []  # of the last windows since something was changed
        self._futile: dict[str, int] = {}  # looks until a setting is tried again
        self._refusals: dict[str, int] = {}  # how often it did not help, one after the other
        self._calm = 0

    def look(self, pool: Adjustable, ask: Callable[[], IteratorStats]) -> None:
        """Adjust the pool, if it is time to. Called before each batch is waited for; `ask` gives
        the iterator's statistics."""
        now = timer.now()
        if now < self._due:
            return
        self._due = now + _LOOK_NS
        stats = ask()
        if stats.batches == 0 or not pool.is_steady():
            self._before = None  # what workers that start take belongs to no measurement
            return
        if self._before is None:
            self._before = stats
            return
        window = stats - self._before
        diagnosis = bottleneck.diagnose(window)
        if diagnosis.verdict == "unknown":
            return  # go on with a longer one
        self._before = None if self._act(pool, window, diagnosis, stats.seconds) else stats

    def _act(
        self,
        pool: Adjustable,
        window: IteratorStats,
        diagnosis: bottleneck.Diagnosis,
        seconds: float,
    ) -> bool:
        """Whether something was changed."""
        for name in list(self._futile):
            self._futile[name] -= _EAGERNESS if window.busy > _VERY_BUSY else 1
            if self._futile[name] <= 0:
                del self._futile[name]
        self._calm = self._calm + 1 if diagnosis.verdict == "consumer-bound" else 0
        self._rates = [*self._rates, window.batches_per_second][-_WINDOWS:]
        if len(self._rates) < _WINDOWS:
            return False
        rate = statistics.median(self._rates)
        trial, self._trial = self._trial, None
        if trial is not None:
            if rate < trial.rate * (1 + _LEAST_GAIN):
                refusals = min(self._refusals.get(trial.name, 0) + 1, _MOST_REFUSALS)
                self._refusals[trial.name] = refusals
                self._futile[trial.name] = refusals * _PATIENCE
                self._set(pool, trial.name, trial.before, window, seconds, "that did not help")
                return True
            self._refusals.pop(trial.name, None)
        for name, wanted in diagnosis.change.items():
            current = window.n_workers if name == "n_processes" else window.n_prefetch
            count = self._allowed(pool, name, current, wanted)
            if count > current:
                self._trial = _Trial(name, current, rate)
                why = f"waiting {window.wait_share:.0%}, workers {window.busy:.0%} busy"
                self._set(pool, name, count, window, seconds, why)
                return True
        if self._calm >= _CALM_LOOKS and "n_processes" in self.most:
            enough = max(1, math.ceil(1.5 * window.busy * window.n_workers))
            if 2 * enough <= window.n_workers:
                self._calm = 0
                why = f"workers {window.busy:.0%} busy"
                self._set(pool, "n_processes", enough, window, seconds, why)
                return True
        return False

    def _allowed(self, pool: Adjustable, name: str, current: int, wanted: int) -> int:
        """How many there may be next: at most twice as many, and as memory lasts."""
        if name in self._futile or name not in self.most:
            return current
        count = min(wanted, 2 * current, self.most[name])
        room = _MEMORY_SHARE * pool.memory_available()
        return min(count, current + int(room / max(pool.settings()[name].bytes_each(), 1)))

    def _set(
        self,
        pool: Adjustable,
        name: str,
        count: int,
        window: IteratorStats,
        seconds: float,
        why: str,
    ) -> None:
        current = window.n_workers if name == "n_processes" else window.n_prefetch
        if count == current:
            return
        self._rates = []
        self.changes.append(f"{name} from {current} to {count} after {seconds:.1f} s: {why}")
        pool.settings()[name].set(count)


def private_bytes(pid: int) -> int:
    """Memory that a process shares with no other; 0 where the system does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) << 10
    return 0


class Lookahead:
    """How many batches are fetched ahead: what a `Tuner` adjusts of threads, whose number stays.

    Parameters
    ----------
    n_batches : int
        At first.
    """

    def __init__(self, n_batches: int) -> None:
        self.n_batches = n_batches
        self._bytes = 0

    def note(self, batch: Any) -> None:
        """A batch was fetched, of which the next ones may be about as large."""
        self._bytes = _size_of(batch)

    def is_steady(self) -> bool:
        return True

    def settings(self) -> dict[str, Setting]:
        return {"n_prefetch": Setting(self.set_prefetch, self.batch_bytes)}

    def set_prefetch(self, count: int) -> None:
        self.n_batches = count

    def batch_bytes(self) -> int:
        return self._bytes

    def memory_available(self) -> int:
        return _system.memory_available()


def _size_of(batch: Any) -> int:
    """About how many bytes a batch takes: of a list all examples are taken for the first one's."""
    if isinstance(batch, np.ndarray):
        return batch.nbytes
    if isinstance(batch, list):
        return len(batch) * _size_of(batch[0]) if batch else 0
    if isinstance(batch, (tuple, dict)):
        fields = batch.values() if isinstance(batch, dict) else batch
        return sum(map(_size_of, fields))
    return sys.getsizeof(batch)
