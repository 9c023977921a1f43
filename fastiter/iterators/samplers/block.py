"""Orders for data on disk: shuffled blocks, and shuffling among the few that are open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastiter._plan.epoch_sampler import Epoch, EpochSampler, Seed, words_of
from fastiter._util.arguments import checked_int
from fastiter.iterators.samplers._orders import ComputedOrder
from fastiter.iterators.samplers.shuffle import OrderSampler

__all__ = ["BlockShuffleOrderSampler"]

_BLOCKS, _WINDOWS = range(2)  # what a stream of an epoch's seed shuffles


class BlockShuffleOrderSampler(EpochSampler, OrderSampler):
    """Shuffles blocks of neighbouring examples, and then the examples of a few blocks at a time.

    For data that is read best in runs: files of many examples, compressed chunks, slow disks. The
    dataset is cut into blocks of ``block_size`` successive indices, the last of which may be
    shorter. Every epoch shuffles the blocks, takes ``window`` of them after the other, and
    shuffles the examples of those. While an epoch goes through a window, it touches no other
    blocks.

    The order is computed as it is read. It takes 24 bytes per block and 8 per example of a window.

    Parameters
    ----------
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each epoch has another order of the seed.
    block_size : int or array of int
        Examples in a block, at least 1: what is read together, such as the examples of a file. Or,
        where blocks differ, for each block the number of the example behind it, ascending, such as
        ``row_group_ends`` of an `ArrowDataset`; the last one is the dataset's length.
    window : int
        Blocks in a window, at least 1: the more, the better the examples are mixed, and the more
        blocks have to be at hand.
    """

    kind: ClassVar[int] = 3
    permutes = True
    _ends: npt.NDArray[np.int64] | None = None  # of blocks of different sizes

    def __init__(self, seed: Seed, block_size: int | npt.ArrayLike, window: int) -> None:
        if isinstance(block_size, (list, tuple, np.ndarray)) and np.ndim(block_size):
            self._ends = _checked_ends(block_size)
            self._block_size = 0
        else:
            self._block_size = checked_int("block_size", block_size)
        self._window = checked_int("window", window)
        self.seed = words_of(seed)

    @property
    def window(self) -> int:
        """Blocks in a window."""
        return self._window

    def arguments(self) -> tuple[Any, ...]:
        if self._ends is None:
            return self._block_size, self._window
        from hashlib import blake2b  # loads OpenSSL

        return blake2b(self._ends.astype("<i8").data, digest_size=16).hexdigest(), self._window

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        assert self.seed is not None
        blocks: int | npt.NDArray[np.int64] = self._block_size
        if self._ends is not None:
            blocks = self._ends
            if n_examples != self._ends[-1]:
                raise ValueError(
                    f"the blocks of this BlockShuffleOrderSampler end at {self._ends[-1]}, and the "
                    f"dataset has {n_examples} examples: pass block_size=dataset.row_group_ends"
                )
        return Epoch(BlockOrder(n_examples, blocks, self._window, self.seed, number))


def _checked_ends(ends: Any) -> npt.NDArray[np.int64]:
    found = np.asarray(ends)
    if found.ndim != 1 or not found.size or found.dtype.kind not in "iu":
        raise TypeError(
            "block_size must be an int, or a one-dimensional array of the ends of all blocks, not "
            f"{ends!r:.100}"
        )
    if (np.diff(found, prepend=0) < 1).any():
        raise ValueError(
            f"block_size has the ends of blocks, which must ascend from above 0, not {ends!r:.100}"
        )
    return found.astype(np.int64)


class BlockOrder(ComputedOrder):
    """One epoch's order: that of ``number`` among those of the seed of ``words``."""

    def __init__(
        self,
        n: int,
        blocks: int | npt.NDArray[np.int64],
        window: int,
        words: tuple[int, int],
        number: int,
    ) -> None:
        from fastiter._order import permutation

        self.index_bound = n  #: all indices are below it
        self._arguments = (n, blocks, window, words, number)
        self._seed = permutation.seed_words([*words, number])
        if isinstance(blocks, int):
            size = min(blocks, n)  # a block larger than the dataset is the only one
            blocks = np.arange(size, n + size, size, dtype=np.int64) if n else np.zeros(0, np.int64)
            blocks[-1:] = n
        self._ends = blocks
        self._sizes = np.diff(blocks, prepend=0)
        self._blocks = permutation.fast_permutation(len(blocks), self._seed, _BLOCKS)
        #: how many examples come before each window, and in all
        counted = np.cumsum(self._sizes[self._blocks])[window - 1 : -1 : window]
        self._starts = np.concatenate([[0], counted, [n]]) if n else np.zeros(1, np.int64)
        self._kept: tuple[int, npt.NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return self._arguments[0]

    def _piece(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        first = int(self._starts[number])
        return self._window_order(number)[start - first : stop - first]

    def __reduce__(self) -> tuple[type[BlockOrder], tuple[Any, ...]]:
        return BlockOrder, self._arguments

    def _key(self) -> tuple[Any, ...]:
        n, blocks, *others = self._arguments
        return n, blocks if isinstance(blocks, int) else blocks.tobytes(), *others

    def _window_order(self, number: int) -> npt.NDArray[np.int64]:
        kept = self._kept
        if kept is not None and kept[0] == number:
            return kept[1]
        from fastiter._order import permutation

        window = self._arguments[2]
        blocks = self._blocks[number * window : (number + 1) * window]
        sizes = self._sizes[blocks]
        # Each block's first index, less how many indices of the window come before it.
        shifts = self._ends[blocks] - np.cumsum(sizes)
        indices = np.arange(sizes.sum()) + np.repeat(shifts, sizes)
        order: npt.NDArray[np.int64]
        order = indices[permutation.fast_permutation(len(indices), self._seed, _WINDOWS + number)]
        self._kept = number, order
        return order
