from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, disjoint_base

@disjoint_base
class ColumnReader:
    """Gathers rows of a dataset's columns, as its examples joined by concat_examples would be.

    Safe to use in several threads at a time. Releases the GIL for what is large.

    Parameters
    ----------
    mode : tuple, dict or None
        What an example is; None for the value of the first column.
    keys : tuple of str
        The columns' names.
    columns : list of (array, rows)
        ``array``: a numpy.ndarray whose first axis counts rows. ``rows``: int64 array that says
        for each row of the dataset where it is in the array, or None if they are the same.
    views : bool
        Whether examples are views of the arrays, or copies.
    """

    def __new__(
        cls,
        mode: Any,
        keys: tuple[str, ...],
        columns: list[Any],
        views: bool,
    ) -> Self: ...
    @property
    def mode(self) -> Any: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def array_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtypes that the columns had at first."""

    def gather(self, indices: NDArray[np.int64]) -> Any:
        """Gather a batch: an array for each column, in a tuple or a dict as the mode says.

        Returns None if a column holds no plain numbers in contiguous rows, or lacks an index.
        """

    def outputs(self, n: int) -> list[NDArray[Any]] | None:
        """Make room for n rows of each column; None if a column cannot be gathered."""

    def gather_part(
        self,
        outputs: list[NDArray[Any]],
        start: int,
        indices: NDArray[np.int64],
        n_batches: int = 1,
    ) -> bool:
        """Gather rows into ``outputs``, from row ``start`` on; False if a column lacks an index.

        ``n_batches``: how many such outputs are filled ahead of their use. If the caches do not
        hold so many, rows are written past them.
        """

    def assembled(self, outputs: list[NDArray[Any]]) -> Any:
        """Make the batch of outputs that are complete."""

    def examples(self, indices: NDArray[np.int64]) -> list[Any] | None:
        """Make the examples themselves; None if a column lacks an index."""
