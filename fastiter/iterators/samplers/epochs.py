"""Orders of datasets that have other rows in each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fastiter._fetch.dataset_access import epochs_of
from fastiter._plan.drawing import draw_epoch
from fastiter._plan.epoch_sampler import Epoch, EpochSampler, is_epoch_sampler, is_of_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from fastiter._fetch.epoch_rows import EpochRows


class RowsOfEpochs(EpochSampler):
    """The rows of a dataset whose epochs differ, as they come, or in the order of another sampler.

    An index includes its epoch, so that workers that fetch ahead need no other message.
    """

    kind: ClassVar[int] = 7
    varies = True

    def __init__(self, dataset: Any, words: tuple[int, int], inner: EpochSampler | None) -> None:
        self._dataset, self._inner = dataset, inner
        self.seed = words if inner is None else inner.seed

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        order = EpochOrder(self._dataset, number)
        if self._inner is not None:
            n_rows = len(order)
            order.inner = draw_epoch(self._inner, number, n_rows, n_rows, ()).order
        return Epoch(order)

    def size(self, number: int, n_examples: int, within: int) -> int:
        """Rows in the epoch of that number if they are at most ``within``, else that or more."""
        return EpochOrder(self._dataset, number).size_within(within)

    def arguments(self) -> tuple[Any, ...] | None:
        epochs, inner = epochs_of(self._dataset), self._inner
        assert epochs is not None
        if inner is not None and is_of_users(inner):
            return None
        identity = None if inner is None else (inner.kind, inner.arguments())
        return epochs.words, epochs.arguments, identity


class EpochOrder:
    """An order whose indices tell their epoch, and whose rows are counted as it is read."""

    index_bound = 0  # all indices are right

    def __init__(self, dataset: Any, number: int) -> None:
        self._dataset, self._number = dataset, number
        self.inner: Any = None  #: another order, of the rows

    @property
    def _rows(self) -> EpochRows:
        epochs = epochs_of(self._dataset)
        assert epochs is not None
        return epochs.rows_of(self._number)

    def __len__(self) -> int:
        return len(self._rows)

    def size_within(self, stop: int) -> int:
        """The length if it is at most ``stop``, else ``stop`` or more."""
        return self._rows.within(stop)

    def share(self, position: int) -> float:
        """The share of the epoch that comes before a position."""
        return self._rows.share(position)

    def place(self, position: int) -> tuple[int, int] | None:
        """The argument of `begin` at a position; None if rows come in another order."""
        return self._rows.place(position) if self.inner is None else None

    def begin(self, window: int, before: int) -> None:
        """Note the rows before a window, so that none of these windows has to be counted."""
        self._rows.begin(window, before)

    def __getitem__(self, part: slice) -> npt.NDArray[np.int64]:
        rows = self._rows
        if self.inner is None:
            return rows.indices(part.start, part.stop)
        return rows.named(self.inner[part])


def sampler_of_epochs(dataset: Any, sampler: Any, shuffle: bool | None) -> Any:
    """The order sampler for a dataset: `sampler` itself; or one that tells epochs, if the dataset
    has other rows in each, and the orders of `sampler` suit any number of rows."""
    epochs = None if shuffle else epochs_of(dataset)
    if epochs is None:
        return sampler
    if sampler is None or (is_epoch_sampler(sampler) and sampler.permutes):
        return RowsOfEpochs(dataset, epochs.words, sampler)
    return sampler
