"""Random orders that follow from a seed alone, the same on every machine and in every release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["permutation"]


def permutation(
    n: int,
    seed: int | Sequence[int] | np.random.SeedSequence,
    *,
    threads: int | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Give a uniformly random order of 0, 1, ..., n - 1.

    Every order is equally likely, up to the 2**128 that a seed can tell apart. The same ``n`` and
    seed give the same order on every processor, with any number of threads, and in every release.
    It is not the order that NumPy gives for this seed.

    Parameters
    ----------
    n : int
        Length of the order, from 0 to 2**32 - 1.
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. An int, a sequence and a SeedSequence of the same entropy
        give the same order. For one that differs every time pass ``numpy.random.SeedSequence()``.
    threads : int, optional
        Most threads to use, this one included. Only orders of more than 1,048,576 are made by
        several; by default by as many as this process may use processors, at most 8.
    out : int64[n], optional
        Array to write the order into, contiguous and writeable. Memory that is already in use is
        filled several times as fast as new memory: keep the array of the epoch before.

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
        If there is no memory for the order, or for the 2 to 4 bytes per index that orders of more
        than 1,048,576 need while they are made.

    Notes
    -----
    Up to 65,536 and up to 1,048,576 indices by Fisher and Yates's shuffle (Durstenfeld, CACM
    7(7), 1964) of 16-bit and 32-bit cells. Above by a deal: blocks of positions take random numbers
    of values from shuffled piles and are shuffled themselves, which gives the law of the scatter
    shuffle of Rao (1961) and Sandelius (1962), and all of which fits into the cache. Random words
    are of xoshiro256++ in eight lanes (Blackman and Vigna, 2021), bounded as Lemire (2019) does.

    Examples
    --------
    >>> sorted(permutation(5, seed=0).tolist())
    [0, 1, 2, 3, 4]
    """
    from fastiter import _order  # here, since it imports numpy.random, which takes a while

    return _order.fast_permutation(n, _order.seed_words(seed), 0, threads, out)
