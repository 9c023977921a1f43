from collections.abc import Callable

from typing_extensions import Self, disjoint_base

ENDED: int

@disjoint_base
class Timer:
    """What becomes of the time of the thread that iterates, in ``next()`` and between its calls.

    ``enter`` and ``leave`` surround each call, under the iterator's lock. The rest may be asked at
    any time, by any thread; none of it blocks.

    Parameters
    ----------
    is_serial : bool
        Whether the caller itself fetches, so that a whole call is time that it waits.

    Attributes
    ----------
    batches, examples : int
        Delivered.
    errors : int
        Calls that raised what belongs to a batch.
    skipped : int
        Examples left out since they could not be fetched.
    trace : callable or None
        Called at the end of each call as ``trace(began, took, blocked, waited, rows)``: when it
        began, how long it took, when it began to wait (the last time), and how long it waited for
        others, all in ns; what `leave` got.
    """

    errors: int
    skipped: int
    trace: Callable[[int, int, int, int, int], None] | None

    def __new__(cls, is_serial: bool = False) -> Self: ...
    @property
    def batches(self) -> int: ...
    @property
    def examples(self) -> int: ...
    @property
    def is_serial(self) -> bool: ...
    def open(self, opened: Callable[[], None]) -> None:
        """Workers are started: calls count as the start until one delivers a batch, at whose end
        ``opened()`` is called."""

    def forget_start(self) -> None:
        """Nobody wants to hear of the first batch any more."""

    def enter(self) -> None:
        """``next()`` begins."""

    def leave(self, rows: int) -> None:
        """``next()`` ends: with a batch of so many examples, 0 with none, ENDED at the end."""

    def block(self) -> None:
        """The call under way begins to wait for a batch."""

    def unblock(self) -> None: ...
    def abandon(self) -> None:
        """Nobody will ever end the call under way, if there is one."""

    def pause(self) -> None:
        """What follows, until the next call, is no part of a loop over batches."""

    def read(self) -> tuple[float, float, float, float, float]:
        """Seconds of the start, in ``next()`` after it, waiting therein, between the calls; and CPU
        seconds of this process since the first call."""

def now() -> int:
    """The monotonic clock that all these times belong to, in ns."""
