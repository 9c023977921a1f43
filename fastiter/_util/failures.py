"""Examples that could not be fetched: what is kept of them until their batch's turn has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fastiter.errors import DatasetError

#: What a dataset raises to have its program stop, not to say that an example is broken.
STOPS = (GeneratorExit, KeyboardInterrupt, SystemExit)


class RowCountError(ValueError):
    """A dataset was asked for some examples and gave more, or fewer."""


class RowFailure(NamedTuple):
    """A row of a batch that could not be fetched."""

    row: int
    error: Exception  #: what ``next()`` raises for it
    is_skippable: bool  #: False: it is no matter of this example alone


class NothingLeft(Exception):
    """Every example of a batch was skipped. Never leaves ``next()``; its cause is the last one's
    exception."""


class FailurePolicy(Protocol):
    """Who decides what becomes of a batch with failed rows; see `fastiter.iterators._skips`."""

    def resolve(self, plan: Any, failures: Sequence[RowFailure]) -> dict[int, Any]:
        """What stands in for failed rows; the others are dropped. Raises what ``next()`` shall."""


def is_skippable(error: BaseException) -> bool:
    """Whether an exception of a dataset is that of one example, which might be skipped."""
    return not isinstance(error, (*STOPS, RowCountError))


def stopped_text(error: StopIteration) -> str:
    """What users are told of a StopIteration that is not the iterator's own."""
    return (
        f"{error!r} was raised by the dataset or the converter while a batch was made, most likely "
        "by a next() on an iterator that has ended; to end an epoch, say so by the dataset's length"
    )


def raisable(error: BaseException, facts: str, where: str) -> Exception:
    """The exception to raise in ``next()``: `error` itself where that may be raised there."""
    raised: Exception
    if isinstance(error, StopIteration):
        # As PEP 479 has it: one that leaves a generator must not end somebody else's loop.
        raised = RuntimeError(stopped_text(error))
    elif isinstance(error, Exception):
        return error
    else:
        # SystemExit and its like would end the caller's program for an example's sake.
        raised = DatasetError(f"{error!r} was raised {where} ({facts})")
    raised.__cause__ = error
    return raised


def survivors(
    examples: dict[int, Any], failures: Sequence[RowFailure], stand_ins: dict[int, Any]
) -> list[Any]:
    """The examples of a batch in order, those that stand in for others too.

    Raises
    ------
    NothingLeft
        If there are none.
    """
    examples = {**examples, **stand_ins}
    if not examples:
        raise NothingLeft from failures[-1].error
    return [examples[row] for row in sorted(examples)]
