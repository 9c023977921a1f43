"""The list of examples that were skipped."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_RECORDS = 10_000
MOST_TEXT = 200  # characters of an exception


class Skipped(NamedTuple):
    """A dataset index whose example was skipped."""

    index: int  # type: ignore[assignment]  # hides a method of tuples
    epoch: int  #: in which it was skipped last
    times: int  #: how often it was skipped
    error: str  #: type and text of its last exception, at most 200 characters


class SkipState(NamedTuple):
    """The examples skipped up to a batch."""

    epoch: int = 0  #: in which the last one was skipped
    n_skipped: int = 0  #: in that epoch
    records: Mapping[int, Skipped] = {}  #: by dataset index, in the order of the first skip

    def saved(self) -> dict[str, Any]:
        """Entry of a record: numbers and texts that JSON takes."""
        records = [list(record) for record in self.records.values()]
        return {"epoch": self.epoch, "count": self.n_skipped, "records": records}

    @staticmethod
    def loaded(stored: Any) -> SkipState:
        """Load what `saved` returned; None: an empty state."""
        if stored is None:
            return SkipState()
        try:
            records = {}
            for index, epoch, times, text in stored["records"]:
                number = natural(index)
                if not isinstance(text, str):
                    raise TypeError(f"{text!r} is not a text")
                record = number, natural(epoch), natural(times), text[:MOST_TEXT]
                records[number] = Skipped(*record)
            if len(records) > MOST_RECORDS:
                raise ValueError(f"{len(records)} records")
            return SkipState(natural(stored["epoch"]), natural(stored["count"]), records)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the snapshot's 'skipped' cannot be read: {error!r}") from error


def natural(value: Any) -> int:
    """``value``, an integer from 0 on, as an int."""
    number = operator.index(value)
    if isinstance(value, bool) or number < 0:
        raise ValueError(f"{value!r} is not a count")
    return number
