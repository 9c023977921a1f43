"""Batches of examples of like lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastiter._plan.epoch_sampler import Cutting, Epoch, EpochSampler, Limit, Seed, words_of
from fastiter._util.arguments import checked_flag, checked_optional_int
from fastiter.iterators.samplers._batches import epoch_by_cuttings
from fastiter.iterators.samplers._orders import CompactOrder

if TYPE_CHECKING:
    Lengths = npt.NDArray[Any]
    Indices = npt.NDArray[np.int64]

__all__ = ["LengthBucketBatchSampler"]

_LENGTH_MAX = 2**32 - 1
_WINDOW_STEPS, _WINDOW_LEAST = 128, 1 << 14
_LEAST_AHEAD = 1 << 18  # rows that take some 10 ms to plan


class LengthBucketBatchSampler(EpochSampler):
    """Puts examples of like lengths into a batch, so that little of it is padding.

    With several ranks all of them plan the same epoch: in each step the ranks' batches have like
    costs, and all ranks have equally many batches. The cost of a batch is its padded size, rows
    times greatest length. A plan takes 4 bytes per example and 8 per batch, and 4 per example more
    while it is made. That of the next epoch is made in the second half of an epoch, by a thread, if
    there are 2**18 examples or more.

    Parameters
    ----------
    lengths : array of int, (n,)
        The length of each example of the dataset, from 0 to 2**32 - 1. Arrays of 32 or 64 bits are
        not copied: do not change them.
    batch_size : int, optional
        Most rows of a batch.
    max_tokens : int, optional
        Greatest cost of a batch. With both, both hold; at least one has to be given.
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each epoch has other batches of the seed.
    window : int, optional
        Examples that are sorted together: more make the lengths of a batch more alike, fewer change
        its examples more from epoch to epoch. By default as many as make about 128 steps of all
        ranks, at least 16,384.
    drop_last : bool
        Whether to leave out examples that fill no batches for all ranks: others in each epoch.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong. A length above ``max_tokens`` is, and with ``drop_last`` so few
        examples that they do not fill a batch.

    Notes
    -----
    The dataset is shuffled and cut into windows. In each window examples are sorted by length,
    those of one length being in random order. From the longest on they are cut into batches, and
    these into steps of one batch for each rank. If the costs of a step are unlike, and its batches
    have equally many rows, the rows of the step are dealt to them in turn. Examples that make no
    whole step go into the next window, the shortest ones, or with ``batch_size`` alone the longest;
    those that the last window leaves make a step of smaller batches. Then the steps of the epoch
    are shuffled, and the batches of each are given to the ranks in random rotation.
    """

    kind: ClassVar[int] = 6

    def __init__(
        self,
        lengths: Any,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        seed: Seed,
        window: int | None = None,
        drop_last: bool = False,
    ) -> None:
        self._batch_size = checked_optional_int("batch_size", batch_size)
        self._max_tokens = checked_optional_int("max_tokens", max_tokens)
        if self._batch_size is None and self._max_tokens is None:
            raise ValueError("give batch_size, max_tokens, or both: nothing limits a batch")
        self._window = checked_optional_int("window", window)
        self._drop_last = checked_flag("drop_last", drop_last)
        self._lengths = _checked_lengths(lengths)
        longest = self._longest = int(self._lengths.max())
        if self._max_tokens is not None and longest > self._max_tokens:
            raise ValueError(
                f"lengths[{int(self._lengths.argmax())}] is {longest}, which max_tokens="
                f"{self._max_tokens} has no room for: raise max_tokens, or leave such examples out "
                "of the dataset"
            )
        n = self._lengths.size
        is_full = n >= (self._batch_size or n + 1)
        is_full |= self._max_tokens is not None and (n + 1) * longest > self._max_tokens
        if self._drop_last and not is_full:
            raise ValueError(
                f"{n} examples do not fill a batch of batch_size={self._batch_size} and max_tokens="
                f"{self._max_tokens}, and drop_last=True leaves out what is not full"
            )
        self._mean = max(1, int(self._lengths.sum(dtype=np.uint64)) // n)
        self._digest: str | None = None
        self.draws_ahead = n >= _LEAST_AHEAD
        self._counts: dict[tuple[int | None, int, tuple[Limit, ...]], int] = {}  # of epochs planned
        self.seed = words_of(seed)

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Cutting] = ()) -> Epoch:
        return epoch_by_cuttings(self, number, n_examples, cuttings)

    def _plan_batches(
        self, rows: Indices | None, n_examples: int, number: int, cutting: Cutting
    ) -> tuple[CompactOrder, Indices]:
        from fastiter._order import permutation, sampling

        if n_examples != self._lengths.size:
            raise ValueError(
                f"there are {self._lengths.size} lengths for a dataset of {n_examples} examples"
            )
        assert self.seed is not None
        batch_size, max_tokens = (None if limit is None else int(limit) for limit in cutting.limits)
        if max_tokens is not None and max_tokens < self._longest:
            raise ValueError(
                f"the state has max_tokens={max_tokens}, and there are lengths of {self._longest}: "
                "it is damaged"
            )
        likely = n_examples if max_tokens is None else max_tokens // self._mean
        likely = min(likely, batch_size or n_examples)
        window = max(_WINDOW_LEAST, _WINDOW_STEPS * cutting.num_ranks * likely)
        order, cuts = sampling.plan_buckets(
            self._lengths,
            rows,
            permutation.seed_words([*self.seed, number]),
            most_rows=batch_size,
            most_tokens=max_tokens,
            num_ranks=cutting.num_ranks,
            window=self._window or window,
            drop_last=self._drop_last,
        )
        if rows is None and order.size == 0:
            raise ValueError(
                f"{n_examples} examples do not fill a batch for each of {cutting.num_ranks} ranks, "
                "and drop_last=True leaves out what is not full"
            )
        if rows is None:
            self._counts[number, cutting.num_ranks, cutting.limits] = len(cuts) - 1
        return CompactOrder(order, n_examples), cuts

    def limits(self) -> tuple[Limit, ...]:
        return self._batch_size, self._max_tokens

    def n_batches(self, number: int | None, n_examples: int, num_ranks: int) -> int | None:
        """Known with ``batch_size`` alone, and of epochs that were planned."""
        if self._batch_size is None or self._max_tokens is not None:
            return self._counts.get((number, num_ranks, self.limits()))
        steps, rest = divmod(n_examples, self._batch_size * num_ranks)
        return min(n_examples, (steps + (rest > 0 and not self._drop_last)) * num_ranks)

    def arguments(self) -> tuple[Any, ...]:
        if self._digest is None:
            from hashlib import blake2b

            digest = blake2b(digest_size=16)
            for start in range(0, self._lengths.size, 1 << 20):
                digest.update(self._lengths[start : start + (1 << 20)].astype("<u4").tobytes())
            self._digest = digest.hexdigest()
        return self._digest, self._window, self._drop_last


def _checked_lengths(lengths: Any) -> Lengths:
    from fastiter._order import permutation

    array = np.asarray(lengths)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            "lengths must be a one-dimensional array of integers, not of dtype "
            f"{array.dtype} and shape {array.shape}"
        )
    if not 1 <= array.size <= permutation.SHUFFLE_MAX:
        raise ValueError(
            f"lengths must be of 1 to {permutation.SHUFFLE_MAX} examples, not {array.size}"
        )
    for extreme in (array.argmin(), array.argmax()):
        if not 0 <= array[extreme] <= _LENGTH_MAX:
            raise ValueError(
                f"lengths must be from 0 to {_LENGTH_MAX}, but lengths[{extreme}] is "
                f"{array[extreme]}"
            )
    size = 4 if array.dtype.itemsize <= 4 else 8
    return np.require(array, f"=i{size}" if array.dtype.kind == "i" else f"=u{size}", ["C", "A"])
