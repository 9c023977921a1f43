"""The interface of all iterators."""

from __future__ import annotations

from typing import Any

from fastiter._util.context import Self

__all__ = ["Iterator"]


class Iterator:
    """Base class of dataset iterators, which return one batch at a time.

    A subclass defines ``__next__`` and these attributes, which need not be writable.

    Attributes
    ----------
    batch_size : int
        Examples in a batch. A batch may be shorter, such as the last batch of an epoch.
    epoch : int
        Number of completed epochs.
    epoch_detail : float
        The same with a fraction: 2.5 in the middle of the third epoch.
    previous_epoch_detail : float or None
        ``epoch_detail`` one batch before; None before the first batch.
    is_new_epoch : bool
        Whether the last batch completed an epoch.
    """

    def __iter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __next__(self) -> Any:
        """Return the next batch; StopIteration at the end."""
        raise NotImplementedError

    def next(self) -> Any:
        """Return the next batch; the same as ``next(iterator)``."""
        return self.__next__()

    def finalize(self) -> None:
        """Release resources; may be called any number of times. Does nothing here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.finalize()

    def __del__(self) -> None:
        self.finalize()

    def serialize(self, serializer: Any) -> None:
        """Save or load the state of the iteration by Chainer's protocol. Does nothing here.

        ``serializer(key, value)`` returns the value to use. Settings such as the batch size are not
        part of the state.
        """
