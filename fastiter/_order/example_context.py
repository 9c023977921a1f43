"""Which example is being fetched: what the random numbers of its own follow from.

Whoever fetches examples says so here, thread by thread, or once for a worker process; and
`fastiter.random.example_rng` asks. Nothing is noted per example: the row is read off the loop that
fetches, when somebody asks.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Sequence
from typing import Any

Seed = tuple[int, int]  # 128 bits

_here = threading.local()
_of_worker: Any = None


class Counter:
    """Values that are gone through once, and how far one has come.

    Parameters
    ----------
    values : list
    first : int
        Number of the first of them.
    """

    def __init__(self, values: list[Any], first: int = 0) -> None:
        self.values = iter(values)
        self._stop = first + len(values)

    @property
    def row(self) -> int:
        """Number of the value that was given last."""
        return self._stop - operator.length_hint(self.values) - 1


class ExampleContext:
    """Rows of one batch that this thread is context.

    Parameters
    ----------
    seed : two words of 64 bits, of the iteration.
    plan : Plan
        The batch.
    counter : object with ``row``, or None
        Tells the row at the moment; None where many are fetched in one call.
    rows : sequence of int, or None
        Those that are fetched in one call.
    """

    def __init__(
        self, seed: Seed, plan: Any, counter: Any, rows: Sequence[int] | None = None
    ) -> None:
        self._seed = seed
        self._plan = plan
        self.counter = counter
        self.rows = rows

    def key(self) -> tuple[Seed, int, int] | None:
        """Seed, epoch and dataset index of the example at the moment; None amid many."""
        if self.counter is None:
            return None
        row = self.counter.row if self.rows is None else self.rows[self.counter.row]
        indices, state = self._plan.indices, self._plan.state
        epoch = epoch_of(row, len(indices), state.epoch, state.position, state.epoch_size)
        return self._seed, epoch, int(indices[row])


def epoch_of(row: int, n_rows: int, epoch: int, position: int, epoch_size: int) -> int:
    """The epoch that a row of a batch belongs to.

    Parameters
    ----------
    epoch, position, epoch_size : int
        Those of the state after the batch: its last ``position`` rows are of that epoch, the
        ``epoch_size`` rows in front of them of the one before, and so on.
    """
    before = n_rows - row - position
    return epoch if before <= 0 else max(0, epoch - 1 - (before - 1) // epoch_size)


def begin(context: Any) -> Any:
    """Notes what this thread fetches from now on; returns what `end` takes."""
    before = getattr(_here, "context", None)
    _here.context = context
    return before


def end(before: Any) -> None:
    """Notes that this is over, and what was before goes on."""
    _here.context = before


def set_worker(writer: Any) -> None:
    """Makes this process one that fetches for an iterator in another; ``writer`` has ``key()``."""
    global _of_worker
    _of_worker = writer


def _current() -> Any:
    context = getattr(_here, "context", None)
    return _of_worker if context is None else context


def each(values: list[Any]) -> Iterable[Any]:
    """Goes through the examples of one call for many, so that each of them is the one at the
    moment while its turn lasts."""
    context = _current()
    if context is None or context.rows is None or len(context.rows) != len(values):
        return values
    context.counter = counter = Counter(values)
    return counter.values


def key() -> tuple[Seed, int, int]:
    """Seed, epoch and dataset index of the example that is being fetched here.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    context = _current()
    found = None if context is None else context.key()
    if found is None:
        raise RuntimeError(
            "example_rng() without arguments is for a dataset's __getitem__, while an iterator "
            "fetches that example; not for __getitems__, a converter, or elsewhere: pass seed, "
            "epoch and index there"
        )
    return found  # type: ignore[no-any-return]
