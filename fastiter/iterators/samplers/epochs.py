"""Orders of datasets that have other rows in each epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from fastiter._fetch.dataset_access import epochs_of
from fastiter.iterators.samplers._batches import SeededBatchSampler
from fastiter.iterators.samplers._seeded import SeededSampler, is_seeded

if TYPE_CHECKING:
    from fastiter._fetch.epoch_rows import EpochRows
    from fastiter.iterators.samplers._batches import Indices


class RowsOfEpochs(SeededSampler):
    """The rows of a dataset whose epochs differ, as they come, or in the order of another sampler.

    The indices tell their epoch, so that whoever fetches rows ahead needs no other word.
    """

    _KIND: ClassVar[int] = 7
    _sizes_vary: ClassVar[bool] = True

    def __init__(self, dataset: Any, words: tuple[int, int], inner: SeededSampler | None) -> None:
        self._dataset, self._inner = dataset, inner
        self._words = words if inner is None else inner._words
        self._next_number = 0

    def size_within(self, number: int, stop: int) -> int:
        """Rows in the epoch of that number if they are at most ``stop``, else ``stop`` or more."""
        return EpochOrder(self._dataset, number).size_within(stop)

    def _draw(self, n_examples: int, number: int) -> EpochOrder:
        order = EpochOrder(self._dataset, number)
        if self._inner is not None:
            order.inner = self._inner._draw(len(order), number)
        return order

    def _population(self, order_size: int, dataset_size: int) -> int:
        return 0  # not what the orders depend on

    def _arguments(self) -> tuple[Any, ...]:
        epochs = epochs_of(self._dataset)
        assert epochs is not None
        inner = None if self._inner is None else (self._inner._KIND, self._inner._arguments())
        return epochs.words, epochs.arguments, inner


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
        """Which share of the epoch comes before a position."""
        return self._rows.share(position)

    def place(self, position: int) -> tuple[int, int] | None:
        """What `begin` needs to go on from a position; None if rows come in another order."""
        return self._rows.place(position) if self.inner is None else None

    def begin(self, window: int, before: int) -> None:
        """Note the rows before a window, so that none of these windows has to be counted."""
        self._rows.begin(window, before)

    def __getitem__(self, part: slice) -> Indices:
        rows = self._rows
        if self.inner is None:
            return rows.indices(part.start, part.stop)
        return rows.named(self.inner[part])


def sampler_of_epochs(dataset: Any, sampler: Any, shuffle: bool | None) -> Any:
    """The order sampler for a dataset: `sampler` itself; or one that tells epochs, if the dataset
    has other rows in each, and the orders of `sampler` suit any number of rows."""
    epochs = None if shuffle or isinstance(sampler, SeededBatchSampler) else epochs_of(dataset)
    if epochs is None:
        return sampler
    if sampler is None or (
        is_seeded(sampler) and type(sampler)._population is SeededSampler._population
    ):
        return RowsOfEpochs(dataset, epochs.words, sampler)
    return sampler
