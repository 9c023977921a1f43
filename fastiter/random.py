"""Random orders and numbers of a seed, the same on every machine and in every release."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastiter._order import example_context
from fastiter._order.example_rng import checked_word, generator_of
from fastiter._order.permutation import VirtualOrder, fast_permutation, seed_words

__all__ = ["example_rng", "permutation", "virtual_permutation"]


def permutation(
    n: int,
    seed: int | Sequence[int] | np.random.SeedSequence,
    *,
    threads: int | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Give a uniformly random order of 0, 1, ..., n - 1.

    Every order is equally likely, as far as the 2**128 different seeds allow. The same ``n`` and
    seed give the same order on every processor, with any number of threads, and in every release.
    It is not the order that NumPy gives for this seed.

    Parameters
    ----------
    n : int
        Length of the order, from 0 to 2**32 - 1.
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. An int, a sequence and a SeedSequence of the same entropy
        give the same order. ``numpy.random.SeedSequence()`` gives a different one every time.
    threads : int, optional
        Most threads to use, this one included; by default as many as CPUs that this process may
        use, at most 8. Only orders of more than 1,048,576 indices use several threads.
    out : int64[n], optional
        Array to write the order into, contiguous and writeable. Memory that has been used before is
        filled several times as fast as new memory: reuse the array of the epoch before.

    Returns
    -------
    int64[n]
        ``out``, or a new array.

    Raises
    ------
    TypeError
        If an argument is of a wrong type.
    ValueError
        If ``n``, ``seed``, ``threads``, or the shape or dtype of ``out`` is out of range.
    MemoryError
        If there is no memory for the order, or for the work space of an order of more than
        1,048,576 indices (a few MiB, plus at most an eighth of a byte per index). ``out`` may have
        been partly written then.

    Notes
    -----
    Up to 65,536 and up to 1,048,576 indices by Fisher and Yates's shuffle (Durstenfeld, CACM
    7(7), 1964) of 16-bit and 32-bit cells. Above by a scatter: blocks of positions take random
    numbers of values from shuffled buckets and are shuffled themselves, which gives the law of the
    scatter shuffle of Rao (1961) and Sandelius (1962); all of it fits into the cache. Random words
    are of xoshiro256++ in eight lanes (Blackman and Vigna, 2021), bounded as Lemire (2019) does.

    Examples
    --------
    >>> sorted(permutation(5, seed=0).tolist())
    [0, 1, 2, 3, 4]
    """
    return fast_permutation(n, seed_words(seed), 0, threads, out)


def virtual_permutation(
    n: int,
    seed: int | Sequence[int] | np.random.SeedSequence,
    start: int = 0,
    count: int | None = None,
) -> npt.NDArray[np.int64]:
    """Give a part of a random order of 0, 1, ..., n - 1 without making the whole.

    A part takes time for its own indices only, and no other memory. Up to 65,536 indices the order
    is that of `permutation`, exactly uniform. Above, it is pseudo-random: every index comes once,
    and in our tests orders of many seeds differ from uniform ones in parity only (for some n all
    are even permutations), but not every order can occur. The same arguments give the same indices
    on every processor and in every release.

    Parameters
    ----------
    n : int
        Length of the order, from 0 to 2**62.
    seed : int, sequence of int, or numpy.random.SeedSequence
        As in `permutation`.
    start : int
        Position of the part's first index, from 0 to ``n``.
    count : int, optional
        Length of the part; by default all that follows ``start``.

    Returns
    -------
    int64[count]
        A new array.

    Raises
    ------
    TypeError
        If an argument is of a wrong type.
    ValueError
        If ``n`` or ``seed`` is out of range, or the part does not lie in the order.
    MemoryError
        If there is no memory for the part.

    Notes
    -----
    Above 65,536 a Feistel network of twelve half-rounds on two unequal halves, with cycle walking
    (Luby and Rackoff, 1988; Black and Rogaway, 2002).

    Examples
    --------
    >>> virtual_permutation(10**12, seed=0, start=5 * 10**11, count=3).shape
    (3,)
    """
    order_of = _kept_order if type(n) is int and type(seed) is int else _virtual_order
    return order_of(n, seed).checked_part(start, count)


def example_rng(
    seed: int | Sequence[int] | np.random.SeedSequence | None = None,
    epoch: int | None = None,
    index: int | None = None,
) -> np.random.Generator:
    """Make the generator of one example in one epoch: same arguments, same numbers.

    For augmentations that repeat exactly, in any worker and after a restart. Generators of
    different arguments are independent for all practical purposes: their states and streams are
    256 bits hashed from the arguments.

    Without arguments, in a dataset's ``__getitem__``, it is the generator of the example that an
    iterator or `fastiter.torch.DataLoader` is fetching, made from the iterator's seed, the epoch,
    and the index that the iterator passes. In the loader it follows from the seed of the pass,
    which torch's generator gives, and the example's place in it; with a sampler of fastiter's it is
    that of the iterators. In an ``IterableDataset`` the worker's number counts, and the place in
    its part. The seed is that of the order sampler. If the sampler has no seed, the iterator
    derives one, when it is created, from the state of the generator that shuffles (or NumPy's
    global generator). The seed is kept in snapshots, copies and pickles, and `reset` changes it.
    Each call for an example gives the same numbers again, so create one generator and pass it on.

    Parameters
    ----------
    seed : int, sequence of int, or numpy.random.SeedSequence, optional
        As in `permutation`.
    epoch, index : int, optional
        Numbers from 0 to 2**64 - 1.

    Returns
    -------
    numpy.random.Generator
        A new generator, over `numpy.random.PCG64DXSM`. It has no ``spawn``.

    Raises
    ------
    TypeError
        If an argument is of a wrong type, or some are left out and others not.
    ValueError
        If ``seed``, ``epoch`` or ``index`` is out of range.
    RuntimeError
        Without arguments, where no iterator is fetching one example: in ``__getitems__`` (a
        `TransformDataset` is fine, over what has it, and ``decode=`` of an `ArrowDataset`), in a
        converter or collate function, or outside.

    Examples
    --------
    >>> example_rng(7, epoch=0, index=3).random() == example_rng(7, epoch=0, index=3).random()
    True
    """
    if seed is None and epoch is None and index is None:
        return generator_of(*example_context.key())
    words = seed_words(seed)
    return generator_of(words, checked_word("epoch", epoch), checked_word("index", index))


def _virtual_order(n: int, seed: int | Sequence[int] | np.random.SeedSequence) -> VirtualOrder:
    return VirtualOrder(n, seed_words(seed), 0)


#: The last ones used: an order of up to 65,536 indices keeps a table of 8 bytes for each.
_kept_order = functools.lru_cache(maxsize=8)(_virtual_order)
