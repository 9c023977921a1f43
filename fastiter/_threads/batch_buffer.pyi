from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

from fastiter._ring.schema import ColumnWriter, Schema

@disjoint_base
class RangeWriter(ColumnWriter): ...

@disjoint_base
class Position:
    """How far a thread has come."""

    @property
    def row(self) -> int:
        """The row that it fetches."""

@disjoint_base
class CallCost:
    """What a call costs that fetches several rows; used by any number of threads."""

    def note(self, rows: int, nanoseconds: int) -> None:
        """Learn from a call that has fetched so many rows."""

    def claim(self, n: int, left: int, share: int, even: int) -> int:
        """How many of the ``left`` unclaimed rows of a batch of ``n`` the next call should fetch.

        ``share`` would be right if calls had no fixed cost; ``even`` rows leave as many for each
        thread that has no other batch to work on.
        """

@disjoint_base
class BatchBuffer:
    """The rows of one batch, in memory of this process.

    Several threads may fill different rows at a time; what comes out is asked for when all are
    through. Arrays are copied without the GIL where that is more than 64 KiB in one go.

    Parameters
    ----------
    rows : int
        Examples in the batch.
    schema : Schema, optional
        What is known of them; None keeps all rows as examples.
    in_place : sequence of bool
        For each field of the schema, whether its rows are copied into an array; the values of the
        others are kept.
    n_batches : int
        How many such batches are filled ahead of their use. If the caches do not hold so many,
        arrays are written past them.
    """

    def __new__(
        cls,
        rows: int,
        schema: Schema | None = None,
        in_place: Sequence[bool] = (),
        n_batches: int = 1,
    ) -> Self: ...
    stopped: bool
    """Set by any thread, it ends `fetch` before its next row."""

    def fetch(
        self, dataset: Any, indices: NDArray[np.int64], first: int, stop: int, at: Position
    ) -> tuple[int, BaseException] | None:
        """Fill the rows first .. stop - 1 with ``dataset[indices[row]]``.

        Returns the first row that failed, and its exception; the rows after it are not filled.
        ``indices``: int64[rows], of the whole batch. ``at`` tells the row meanwhile.
        """

    def put(self, first: int, examples: list[Any]) -> None:
        """Fill rows, from ``first`` on, with examples."""

    @property
    def is_complete(self) -> bool:
        """Whether every row is in the fields."""

    @property
    def n_kept(self) -> int:
        """Rows that are kept as examples."""

    @property
    def fields(self) -> list[Any]:
        """For each field its array, or the list of the rows' values."""

    def examples(self) -> list[Any]:
        """The examples of all rows that were filled; those in the fields are made anew, with arrays
        that are views of the fields', and named tuples as plain ones."""
