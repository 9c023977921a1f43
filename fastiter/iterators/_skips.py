"""Examples that fail: the decision about each, the limit of skips, and the list of those skipped.

All of it runs in the thread that calls ``next()``, batch by batch in the order of delivery, and row
by row. So it does not depend on the number of workers, or on what is fetched ahead.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fastiter._order.example_context import epoch_of
from fastiter._util.failures import AllSkipped, Failure, summary_of
from fastiter.errors import SkipLimitError
from fastiter.iterators._arguments import checked_on_error, checked_share

if TYPE_CHECKING:
    from fastiter.iterators._state import Plan

KEY = "skipped"
DEFAULT_LIMIT = 0.01  # of an epoch's examples
_MOST_RECORDS = 10_000
_MOST_TEXT = 200  # characters of an exception


class Skipped(NamedTuple):
    """A dataset index whose example was skipped."""

    index: int  # type: ignore[assignment]  # hides a method of tuples
    epoch: int  #: in which it was skipped last
    times: int  #: how often it was skipped
    error: str  #: type and text of its last exception, at most 200 characters


class Replacement(NamedTuple):
    """What an ``on_error`` callable returns to have another example stand in for a failed one."""

    example: Any


#: 'raise', 'skip', or a callable that decides.
OnError = Literal["raise", "skip"] | Callable[[int, Exception], Any]


def checked(on_error: Any, skip_limit: Any) -> tuple[Any, float | None]:
    """The arguments ``on_error`` and ``skip_limit``.

    Raises
    ------
    TypeError, ValueError
        If one of them is not valid, or there is a limit but nothing is skipped.
    """
    on_error, limit = checked_on_error(on_error), checked_share("skip_limit", skip_limit)
    if on_error == "raise" and limit != DEFAULT_LIMIT:
        raise ValueError(
            f"skip_limit={skip_limit!r} has no effect with on_error='raise': set on_error='skip' "
            "or a callable, too"
        )
    return on_error, limit


class Skips:
    """The `FailurePolicy` of an iterator; counts and lists the examples that it skips.

    Parameters
    ----------
    on_error : 'skip' or callable
        As in `SerialIterator`.
    limit : int, float or None
        Examples that may be skipped in one epoch, or which share of them.
    """

    # The batch resolved last, and epoch, count and records before it: if Ctrl-C comes before it is
    # delivered, it is resolved again. (Here, since pickles of earlier versions lack it.)
    _resolved: tuple[int, int] | None = None
    _before: tuple[int, int, dict[int, Skipped]]

    def __init__(self, on_error: Any, limit: float | None) -> None:
        self._decide: Callable[[int, Exception], Any] | None = (
            None if on_error == "skip" else on_error
        )
        self._limit = limit
        self._records: dict[int, Skipped] = {}
        self._epoch = 0
        self._count = 0  # of examples skipped in that epoch
        self.n_dropped = 0  #: rows of the batch resolved last that are left out

    @property
    def records(self) -> list[Skipped]:
        """The indices skipped, in the order in which they were skipped first."""
        return list(self._records.copy().values())

    # ---- decide

    def resolve(self, plan: Plan, failures: Sequence[Failure]) -> dict[int, Any] | Failure:
        """Decide about the failed rows of the batch that is delivered next.

        Parameters
        ----------
        plan : Plan
        failures : sequence of Failure
            By ascending rows; empty afterwards.

        Returns
        -------
        dict of int to object, or Failure
            Examples that replace rows, while the other failed rows are dropped. Or the failure of
            the batch: of a row that is not skipped, a SkipLimitError, or `AllSkipped`.

        Raises
        ------
        Exception
            What the ``on_error`` callable raises; TypeError if its result is not a decision.
        """
        assert plan.indices is not None
        state, n_rows = plan.state, len(plan.indices)
        self._begin((state.epoch, state.position))
        replaced: dict[int, Any] = {}
        try:
            for failure in failures:
                index = int(plan.indices[failure.row])
                decision = self._decision(index, failure)
                if isinstance(decision, Replacement):
                    replaced[failure.row] = decision.example
                    continue
                if decision == "raise":
                    return Failure(failure.error)
                size = state.epoch_size
                epoch = epoch_of(failure.row, n_rows, state.epoch, state.position, size)
                excess = self._note(index, epoch, size, failure)
                if excess is not None:
                    return excess
            if len(failures) == n_rows and not replaced:
                return AllSkipped(failures[-1].error)
            return replaced
        finally:
            for failure in failures:
                failure.clear()

    def _decision(self, index: int, failure: Failure) -> Replacement | str:
        if not failure.is_skippable:
            return "raise"
        decision = "skip" if self._decide is None else self._decide(index, failure.error)
        if isinstance(decision, Replacement) or (
            isinstance(decision, str) and decision in ("skip", "raise")
        ):
            return decision
        raise TypeError(
            f"on_error returned {decision!r} for dataset index {index}: return 'skip', 'raise' or "
            "fastiter.Replacement(example)"
        ) from failure.error

    def _note(self, index: int, epoch: int, epoch_size: int, failure: Failure) -> Failure | None:
        """Count a skipped example; return the batch's failure if that is one too many."""
        if epoch != self._epoch:
            self._epoch, self._count = epoch, 0
        self._count += 1
        allowed = self._allowed(epoch_size)
        text = _one_line(failure.error)
        if allowed is not None and self._count > allowed:
            what = f"skip_limit={self._limit!r}"
            if isinstance(self._limit, float):
                what += f", {allowed} of {epoch_size},"
            excess = SkipLimitError(
                f"{self._count} examples of epoch {epoch} have failed, more than {what} allows; "
                f"the last one is dataset index {index}: {text}. The iterator's `skipped` lists "
                "them: repair the dataset, or raise skip_limit"
            )
            excess.__cause__ = failure.error
            return Failure(excess)
        self.n_dropped += 1
        known = self._records.get(index)
        if known is None and len(self._records) >= _MOST_RECORDS:
            return None
        times = 1 if known is None else known.times + 1
        self._records[index] = Skipped(index, epoch, times, text)
        if known is None:
            _warn("skipped dataset index %d in epoch %d: %s", index, epoch, text)
            if len(self._records) == _MOST_RECORDS:
                _warn("%d indices were skipped; no more are listed", _MOST_RECORDS)
        return None

    def _allowed(self, epoch_size: int) -> int | None:
        if not isinstance(self._limit, float):
            return self._limit
        # A product that would be whole but for its rounding counts as whole.
        return max(1, int(self._limit * epoch_size + 1e-6)) if self._limit else 0

    def _begin(self, batch: tuple[int, int]) -> None:
        if batch == self._resolved:
            self._epoch, self._count, self._records = self._before
        self._resolved = batch
        self.n_dropped = 0
        self._before = self._epoch, self._count, self._records.copy()

    # ---- resets, copies, snapshots

    def reset(self) -> None:
        """Start over with the first epoch: the limit counts anew, the records stay."""
        self._resolved = None
        self._epoch = self._count = 0

    def copy(self) -> Skips:
        other = Skips("skip" if self._decide is None else self._decide, self._limit)
        other._records = self._records.copy()
        other._epoch, other._count = self._epoch, self._count
        return other

    def saved(self) -> dict[str, Any]:
        """Return what a snapshot stores: numbers and texts that JSON can hold."""
        return {
            "epoch": self._epoch,
            "count": self._count,
            "records": [list(record) for record in self._records.values()],
        }

    def install(self, stored: SkipState) -> None:
        """Continue from what a snapshot stores."""
        self.reset()
        self._epoch, self._count, records = stored
        self._records = dict(records)


def nothing_left(n_examples: int, last: AllSkipped) -> Failure:
    """The failure of an iteration of which a whole epoch was skipped, up to the batch ``last``."""
    error = SkipLimitError(
        f"all of the last {n_examples} examples, which are as many as an epoch has, have "
        "failed: there is nothing to deliver"
    )
    error.__cause__ = last.error
    last.clear()
    return Failure(error)


class SkipState(NamedTuple):
    """What a snapshot stores of skipped examples."""

    epoch: int = 0
    n_skipped: int = 0
    records: Mapping[int, Skipped] = {}


def exchange(
    serializer: Callable[[str, Any], Any], skips: Skips | None, is_saving: bool
) -> SkipState | None:
    """Save what was skipped to a serializer, or load it: JSON in an array of bytes.

    Returns
    -------
    SkipState or None
        None if there is nothing to install.

    Raises
    ------
    ValueError
        If what is loaded is damaged.
    """
    if skips is None:
        return None
    if is_saving:
        import json

        text = json.dumps(skips.saved(), separators=(",", ":"))
        serializer(KEY, np.frombuffer(text.encode(), dtype=np.uint8))
        return None
    try:
        stored = serializer(KEY, None)
    except KeyError:
        return SkipState()
    return loaded(stored)


def loaded(stored: Any) -> SkipState:
    """Read what `Skips.saved` returned, or `exchange` saved; None makes an empty state.

    Raises
    ------
    ValueError
        If it is damaged.
    """
    if stored is None:
        return SkipState()
    try:
        if not isinstance(stored, Mapping):
            stored = _decoded(stored)
        records = {}
        for index, epoch, times, text in stored["records"]:
            number = _natural(index)
            records[number] = Skipped(number, _natural(epoch), _natural(times), _text(text))
        if len(records) > _MOST_RECORDS:
            raise ValueError(f"{len(records)} records")
        return SkipState(_natural(stored["epoch"]), _natural(stored["count"]), records)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the snapshot's {KEY!r} is damaged: {error!r}") from error


def _decoded(stored: Any) -> Any:
    array = np.asarray(stored)
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ValueError(f"an array of shape {array.shape} and dtype {array.dtype}")
    import json

    return json.loads(array.tobytes())


def _natural(value: Any) -> int:
    number = operator.index(value)
    if isinstance(value, bool) or number < 0:
        raise ValueError(f"{value!r} is no count")
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value[:_MOST_TEXT]


def _warn(text: str, *facts: Any) -> None:
    import logging  # here, like json, so that importing fastiter stays fast

    logging.getLogger("fastiter").warning(text, *facts)


def _one_line(error: Exception) -> str:
    text = " ".join(summary_of(error).split())
    return text if len(text) <= _MOST_TEXT else text[: _MOST_TEXT - 3] + "..."
