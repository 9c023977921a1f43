"""The iterator that fetches in the calling thread."""

from __future__ import annotations

from fastiter.iterators._base import PlannedIterator

__all__ = ["SerialIterator"]


class SerialIterator(PlannedIterator):
    """Iterates over a dataset in the calling thread, one batch at a time.

    Parameters
    ----------
    dataset : sequence
        Object with ``__len__``, and ``__getitem__(int)`` or ``__getitems__(list of int)``.
    batch_size : int
        Examples in a batch of this rank, at least 1; may exceed the dataset's length. Left out
        only with a ``batch_sampler``.
    repeat : bool
        True: epochs follow each other without end. False: the iteration ends with the first
        epoch, whose last batch may be short; the next ``for`` begins anew, as after `reset`.
    shuffle : bool, optional
        True, and None without an ``order_sampler``: a new order for each epoch, from NumPy's
        global generator. False: in the order of indices.
    order_sampler : callable, optional
        ``order_sampler(current_order, current_position)`` gives the next epoch's order; see
        `OrderSampler`. Excludes ``shuffle``.
    converter : callable, optional
        ``next()`` returns ``converter(examples, device)`` instead of the list of examples. A
        converter with a single parameter gets the examples, and its result is sent to the device.
    device : device, optional
        Device that ``converter`` gets; see `to_device`.
    on_error : 'raise', 'skip' or callable
        Action when the dataset raises an exception for an example. 'raise': ``next()`` raises it,
        and the batch is lost. 'skip': the batch comes without that example; empty batches are
        passed over. A callable decides: ``on_error(index, exception)`` returns 'raise', 'skip', or
        a `Replacement` with an example to take its place. The thread that iterates calls it.
    skip_limit : int or float, optional
        Number of examples that may be skipped in one epoch, or (a float) share of an epoch's
        examples, at least one if not 0.0; beyond it `SkipLimitError` is raised. None for no limit.
    drop_last : bool
        True: every batch is full and has examples of one epoch; an epoch's last examples, too few
        for a batch on every rank, are left out. False: with ``repeat`` a batch may span two epochs.
    batch_sampler : callable, optional
        ``batch_sampler(epoch)`` gives that epoch's batches: a list of arrays of dataset indices,
        of any lengths but 0. Epochs count from 0, over all resets. It must be pure: the same list
        for the same epoch, in every process. Excludes ``batch_size``, ``shuffle``,
        ``order_sampler`` and ``drop_last``.
    rank, num_ranks : int, 'auto' or None
        Number of this process, from 0, and number of processes that share each step's batch.
        ``rank='auto'``: as torchrun, MPI or SLURM set them, and 0 of 1 without a launcher; the rank
        is the one among all processes, also if the model is split among them. None: 0 of 1.
        `epoch`, `current_position` and ``len()`` count the examples of all ranks.
    tail : {'pad', 'mask', 'drop'}
        Treatment of an epoch's last examples, too few for a step of full batches, with ranks and
        where batches end with the epoch (without ``repeat``, or with a ``batch_sampler``). They
        are divided evenly. 'pad': the epoch's first examples are repeated until all ranks have
        equally many. 'mask': as 'pad', and `valid` is False for the repeated examples. 'drop':
        the remaining examples are left out.
    skip_steps : sequence of (int, int)
        Steps to leave out, from the first to below the second number of each pair: for example
        batches that made the loss explode. The other steps keep their numbers.
    seed_examples : bool, int or callable
        True: the global generators of `random`, NumPy and, where it is loaded, torch are seeded
        before each example is fetched, by the seed of the order, the epoch and the index, and
        before a converter other than `concat_examples` is called, by the seed, the step and the
        rank. Random transforms then give the same results with any iterator and any number of
        workers, and after a resume. An int is the seed if neither ``order_sampler`` nor
        ``batch_sampler`` has a seed. A callable, ``seed_examples(seed)``, is called as well, with
        an int of 64 bits, to seed other generators. Examples are then fetched one at a time, also
        from a dataset with ``__getitems__``. The program's own generators keep their states.
    in_order : bool
        False allows `MultiprocessIterator` to give batches as they are complete; here it has no
        effect.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or the dataset is empty.
    """
