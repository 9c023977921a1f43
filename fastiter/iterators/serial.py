"""The iterator that fetches in the calling thread."""

from __future__ import annotations

from fastiter.iterators._base import PlannedIterator

__all__ = ["SerialIterator"]


class SerialIterator(PlannedIterator):
    """Iterates over a dataset in the calling thread, one batch at a time.

    Parameters
    ----------
    dataset : sequence
        Has ``__len__``, and ``__getitem__(int)`` or ``__getitems__(list of int)``.
    batch_size : int
        Examples in a batch, at least 1; may exceed the dataset's length.
    repeat : bool
        Whether to go on, epoch after epoch, for ever. Otherwise the iteration ends with the
        first epoch, whose last batch may be short; a ``for`` after that begins anew, as `reset`.
    shuffle : bool, optional
        True, and None without an ``order_sampler``: a new order for each epoch, from NumPy's
        global generator. False: in the order of indices.
    order_sampler : callable, optional
        ``order_sampler(current_order, current_position)`` gives the next epoch's order; see
        `OrderSampler`. Excludes ``shuffle``.
    converter : callable, optional
        ``next()`` returns ``converter(examples, device)`` instead of the list of examples. One
        with a single parameter is called with the examples, and its result sent to the device.
    device : device, optional
        What ``converter`` gets; see `to_device`.
    on_error : 'raise', 'skip' or callable
        What becomes of an example that the dataset raises for. 'raise': ``next()`` raises it, and
        the batch is lost. 'skip': the batch comes without that example; a batch of which nothing
        is left is passed over. A callable decides: ``on_error(index, exception)`` returns
        'raise', 'skip', or a `Replacement` with an example to take its place. It is called in the
        thread that iterates.
    skip_limit : int or float, optional
        How many examples may be skipped in one epoch, or (a float) which share of an epoch's
        examples, one at least; beyond it ``next()`` raises `SkipLimitError`. None for no limit.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.
    """
