"""The interface of all iterators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastiter._util.context import Managed

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Iterator"]


class Iterator(Managed):
    """Base class of dataset iterators: Python's iterator protocol, giving one batch at a time.

    A subclass implements ``__next__`` and offers these attributes, which need not be writable.

    Attributes
    ----------
    batch_size : int
        Examples in a batch. A batch may be shorter, as the last one of a sweep.
    epoch : int
        Completed sweeps over the dataset.
    epoch_detail : float
        The same with the fraction of the sweep under way: 2.5 in the middle of the third.
    previous_epoch_detail : float or None
        ``epoch_detail`` one batch before; None before the first batch.
    is_new_epoch : bool
        Whether the last batch completed a sweep.
    """

    def __iter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch.

        Raises
        ------
        StopIteration
            At the end of the iteration.
        """
        raise NotImplementedError

    def next(self) -> Any:
        """Return the next batch; the same as ``next(iterator)``."""
        return self.__next__()

    def finalize(self) -> None:
        """Release what the iterator holds. Does nothing here; may be called any number of times."""

    def _let_go(self) -> None:
        self.finalize()

    def __del__(self) -> None:
        self.finalize()

    def serialize(self, serializer: Any) -> None:
        """Save the iteration's state to, or load it from, a serializer of Chainer's protocol.

        Does nothing here. What a user sets, as the batch size, is no part of the state.

        Parameters
        ----------
        serializer : callable
            Called as ``serializer(key, value)``; returns the value to go on with.
        """
