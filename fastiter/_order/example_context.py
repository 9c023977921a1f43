"""Which example this thread is fetching: `fastiter.random.example_rng` asks for it.

The code that fetches examples sets a context, for its thread or once for a worker process. Nothing
is stored per example: when asked, the row is read off the loop that fetches.
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
    """Iterates once over ``values``, the first of which has the number ``first``."""

    def __init__(self, values: list[Any], first: int = 0) -> None:
        self.values = iter(values)
        self._stop = first + len(values)

    @property
    def row(self) -> int:
        """Number of the value that was given last."""
        return self._stop - operator.length_hint(self.values) - 1


class ExampleContext:
    """Rows of one batch that this thread is fetching.

    Parameters
    ----------
    seed : two words of 64 bits, of the iteration.
    plan : Plan
        The batch.
    counter : object with ``row``, or None
        Tells the current row; None if one call fetches many.
    rows : sequence of int, or None
        Those that one call fetches.
    """

    __slots__ = ("_before", "_plan", "_seed", "counter", "rows")

    def __init__(
        self, seed: Seed, plan: Any, counter: Any, rows: Sequence[int] | None = None
    ) -> None:
        self._seed = seed
        self._plan = plan
        self.counter = counter
        self.rows = rows

    def __enter__(self) -> None:
        self._before = getattr(_here, "context", None)
        _here.context = self

    def __exit__(self, *error: object) -> None:
        _here.context = self._before

    def key(self) -> tuple[Seed, int, int] | None:
        """Seed, epoch and dataset index of the current example; None within a call for many."""
        if self.counter is None:
            return None
        row = self.counter.row if self.rows is None else self.rows[self.counter.row]
        indices, state = self._plan.indices, self._plan.state
        epoch = epoch_of(row, len(indices), state.epoch, state.position, state.epoch_size)
        return self._seed, epoch, int(indices[row])


def epoch_of(row: int, n_rows: int, epoch: int, position: int, epoch_size: int) -> int:
    """The epoch that a row of a batch belongs to, from the state after the batch.

    The last ``position`` rows are of ``epoch``, the ``epoch_size`` rows before them of the epoch
    before, and so on.
    """
    before = n_rows - row - position
    return epoch if before <= 0 else max(0, epoch - 1 - (before - 1) // epoch_size)


def set_worker(writer: Any) -> None:
    """Set the context of a worker process; ``writer`` has ``key()``."""
    global _of_worker
    _of_worker = writer
    _here.context = None  # that of the thread that forked this process


def _current() -> Any:
    context = getattr(_here, "context", None)
    return _of_worker if context is None else context


def each(values: list[Any]) -> Iterable[Any]:
    """Iterate over the examples of one call for many; each is the current example in its turn."""
    context = _current()
    if context is None or context.rows is None or len(context.rows) != len(values):
        return values
    context.counter = counter = Counter(values)
    return counter.values


def key() -> tuple[Seed, int, int]:
    """Seed, epoch and dataset index of the current example; RuntimeError without one."""
    context = _current()
    found = None if context is None else context.key()
    if found is None:
        raise RuntimeError(
            "example_rng() without arguments works only in a dataset's __getitem__, while an "
            "iterator fetches that example; in __getitems__, in a converter and elsewhere pass "
            "seed, epoch and index"
        )
    return found  # type: ignore[no-any-return]
