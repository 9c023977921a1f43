"""Treatment of examples that fail: the decision, and its limit.

All of it runs in the thread that calls ``next()``, batch after batch in the order of delivery, and
row after row. So it does not depend on the number of workers and of batches fetched ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fastiter._plan.state import MOST_RECORDS, MOST_TEXT, Skipped, SkipState
from fastiter._util.arguments import checked_optional_int
from fastiter._util.failures import AllSkipped, Failure, summary_of
from fastiter.errors import SkipLimitError

if TYPE_CHECKING:
    from fastiter._order.plan import Plan

DEFAULT_LIMIT = 0.01  # of an epoch's examples


class Replacement(NamedTuple):
    """Result of an ``on_error`` callable: an example that replaces the failed one."""

    example: Any


#: 'raise', 'skip', or a callable that decides.
OnError = Literal["raise", "skip"] | Callable[[int, Exception], Any]


def checked(on_error: Any, limit: Any) -> tuple[Any, float | None]:
    """Check the arguments ``on_error`` and ``skip_limit``, and return them."""
    is_name = isinstance(on_error, str)
    if not (callable(on_error) or (is_name and on_error in ("raise", "skip"))):
        kind = ValueError if is_name else TypeError
        raise kind(f"on_error must be 'raise', 'skip' or a callable, not {on_error!r}")
    is_share = isinstance(limit, (float, np.floating))
    try:
        limit = float(limit) if is_share else checked_optional_int("skip_limit", limit, minimum=0)
    except TypeError:
        raise TypeError(
            "skip_limit must be a count (an int), a share from 0.0 to 1.0, or None, not "
            f"{limit!r} of type {type(limit).__qualname__}"
        ) from None
    if is_share and not 0 <= limit <= 1:
        raise ValueError(
            f"skip_limit must be a count (an int) or a share from 0.0 to 1.0, not {limit!r}"
        )
    if is_name and on_error == "raise" and limit != DEFAULT_LIMIT:
        raise ValueError(f"skip_limit={limit!r} limits nothing: set on_error='skip', or a callable")
    return on_error, limit


class SkipPolicy:
    """Decides about examples that fail: ``on_error`` and ``skip_limit``. It has no state."""

    _WHAT, _NUMBER, _OWNER = "examples", "dataset index", "iterator"

    def __init__(self, on_error: Any, limit: float | None) -> None:
        self._on_error = on_error
        self._limit = limit

    def resolve(self, plan: Plan, failures: Sequence[Failure]) -> dict[int, Any] | Failure:
        """Decide about the failed rows, in ascending order, of the batch that is delivered next.

        Returns examples that replace rows, while the other failed rows are dropped; or the failure
        of the batch: of a row that is not skipped, a SkipLimitError, or `AllSkipped`. The plan has
        the skip state before the batch, and gets the one after it. ``failures`` are empty
        afterwards. Raises what the ``on_error`` callable raises.
        """
        size, skips = self._size(plan), self._before(plan)
        skips, n_dropped = skips._replace(records=dict(skips.records)), 0
        replaced: dict[int, Any] = {}
        n_valid_dropped = 0
        try:
            for failure in failures:
                index, epoch = self._place(plan, failure.row)
                decision = self._decision(index, failure)
                if isinstance(decision, Replacement):
                    replaced[failure.row] = decision.example
                    continue
                if decision == "raise":
                    return Failure(failure.error)
                n_skipped = 1 + (skips.n_skipped if epoch == skips.epoch else 0)
                skips = skips._replace(epoch=epoch, n_skipped=n_skipped)
                if (excess := self._excess(skips, size, index, failure.error)) is not None:
                    return Failure(excess)
                n_dropped += 1
                n_valid_dropped += failure.row < plan.n_valid
                _record(skips, index, failure.error, self._NUMBER)
            if len(failures) == plan.n_rows and not replaced:
                return AllSkipped(failures[-1].error)
            return replaced
        finally:
            self._put(plan, skips)
            plan.n_dropped, plan.n_valid_dropped = n_dropped, n_valid_dropped
            for failure in failures:
                failure.clear()

    # A subclass may know these of its plans otherwise.

    def _size(self, plan: Plan) -> int:
        """Examples of the epoch, of a batch of several epochs those of the last."""
        order, size = plan.state.order, plan.epoch_size or plan.state.epoch_size
        return len(order) if hasattr(order, "size_within") else size

    def _place(self, plan: Plan, row: int) -> tuple[Any, int]:
        """Dataset index and epoch of a row."""
        return int(plan.indices[row]), plan.epoch_of(row)

    def _before(self, plan: Plan) -> SkipState:
        return plan.progress or SkipState()

    def _put(self, plan: Plan, skips: SkipState) -> None:
        plan.progress = skips

    def _decision(self, index: Any, failure: Failure) -> Replacement | str:
        if not failure.is_skippable:
            return "raise"
        if self._on_error == "skip":
            return "skip"
        decision = self._on_error(index, failure.error)
        if isinstance(decision, Replacement) or (
            isinstance(decision, str) and decision in ("skip", "raise")
        ):
            return decision
        raise TypeError(
            f"on_error returned {decision!r} for {self._NUMBER} {index}: return 'skip', 'raise' or "
            "fastiter.Replacement(example)"
        ) from failure.error

    def _excess(
        self, skips: SkipState, epoch_size: int, index: Any, error: Exception
    ) -> SkipLimitError | None:
        """The error of an example that is one too many; None while the limit allows it."""
        what, allowed = f"skip_limit={self._limit!r}", self._limit
        if isinstance(allowed, float):
            # A product that would be whole but for its rounding counts as whole.
            allowed = max(1, int(allowed * epoch_size + 1e-6)) if allowed else 0
            what += f", {allowed} of {epoch_size},"
        if allowed is None or skips.n_skipped <= allowed:
            return None
        excess = SkipLimitError(
            f"{skips.n_skipped} {self._WHAT} of epoch {skips.epoch} have failed, more than {what} "
            f"allows; the last one is {self._NUMBER} {index}: {_one_line(error)}. The "
            f"{self._OWNER}'s `skipped` lists them: repair the dataset, or raise skip_limit"
        )
        excess.__cause__ = error
        return excess


class ShardPolicy(SkipPolicy):
    """Decides about shards of a stream that fail, the rest of which is skipped."""

    _WHAT, _NUMBER = "shards", "shard number"


def _record(skips: SkipState, index: Any, error: Exception, what: str) -> None:
    records: Any = skips.records
    index = index if isinstance(index, int) else repr(index)[:MOST_TEXT]
    known = records.get(index)
    if known is not None:
        records[index] = Skipped(index, skips.epoch, known.times + 1, _one_line(error))
    elif len(records) < MOST_RECORDS:
        records[index] = Skipped(index, skips.epoch, 1, _one_line(error))
        _warn("skipped %s %s in epoch %d: %s", what, index, skips.epoch, _one_line(error))
        if len(records) == MOST_RECORDS:
            _warn("%d indices were skipped; no more are listed", MOST_RECORDS)


def batch_of_none(last: AllSkipped, has_converter: bool) -> list[Any] | Failure:
    """The batch of a rank all of whose examples were skipped, which the other ranks' batches wait
    for; its failure if there is a converter, which would have no examples."""
    if not has_converter:
        last.clear()
        return []
    return _failure_after(
        last,
        "all examples of this rank's batch have failed: the converter has no examples, "
        "and the other ranks' batches have to go on",
    )


def nothing_left(n_examples: int, last: AllSkipped) -> Failure:
    """The failure of an iteration of which a whole epoch was skipped, up to the batch ``last``."""
    return _failure_after(
        last,
        f"all of the last {n_examples} examples, which are as many as an epoch has, have "
        "failed: there is nothing to deliver",
    )


def _failure_after(last: AllSkipped, text: str) -> Failure:
    error = SkipLimitError(text)
    error.__cause__ = last.error
    last.clear()
    return Failure(error)


def _warn(text: str, *facts: Any) -> None:
    import logging  # here, like json, so that importing fastiter stays fast

    logging.getLogger("fastiter").warning(text, *facts)


def _one_line(error: Exception) -> str:
    text = " ".join(summary_of(error).split())
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "..."
