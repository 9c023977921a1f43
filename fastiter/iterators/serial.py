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
        Examples in a batch of this rank, at least 1; may exceed the dataset's length. Left out
        only with a ``batch_sampler``.
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
    drop_last : bool
        True: each epoch's batches are full and its own, and its last examples, too few for a batch
        on every rank, are left out. False: with ``repeat`` a batch goes on in the next epoch.
    batch_sampler : callable, optional
        ``batch_sampler(epoch)`` gives that epoch's batches: a list of arrays of dataset indices,
        of any lengths but 0. Epochs count from 0, over all resets. It must be pure: the same list
        for the same epoch, in every process. Excludes ``batch_size``, ``shuffle``,
        ``order_sampler`` and ``drop_last``.
    rank, num_ranks : int, 'auto' or None
        Which part of each step's batch this process takes: the process of this number, from 0, and
        how many there are. ``rank='auto'``: as torchrun, MPI or SLURM tell, and 0 of 1 without a
        launcher; it is the rank among all processes, also where the model is split among them.
        None for 0 of 1. `epoch`, `current_position` and ``len()`` are of all ranks together.
    tail : {'pad', 'mask', 'drop'}
        With ranks, where an epoch ends with its last batch (without ``repeat``, or with a
        ``batch_sampler``): what becomes of the last examples, too few for a step of full batches.
        They are shared out evenly. 'pad': the epoch's first examples are repeated until all ranks
        have as many. 'mask': so they are, and `valid` is False for those. 'drop': the examples
        that are left over are left out.
    skip_steps : sequence of (int, int)
        Steps that are left out, from the first to below the second number of each pair: batches
        that made the loss explode. The numbers of the others stay.
    seed_examples : bool, int or callable
        True: the global generators of `random`, NumPy and, where it is loaded, torch are seeded
        before each example is fetched, by the seed of the order, the epoch and the index, and
        before a converter other than `concat_examples` is called, by the seed, the step and the
        rank. Whatever draws from them is then the same with any iterator and any number of
        workers, and after a resume. An int is the seed where neither ``order_sampler`` nor
        ``batch_sampler`` has one. A callable, ``seed_examples(seed)``, is called as well, with 64
        bits, to seed what has generators of its own. Examples are then fetched one at a time, also
        of a dataset with ``__getitems__``. The generators of the program stay as they are.
    in_order : bool
        False allows `MultiprocessIterator` to give batches as they are complete; here it has no
        effect.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.
    """
