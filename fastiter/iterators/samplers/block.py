"""Orders for data on disk: shuffled blocks, and shuffling among the few that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastiter._util.arguments import checked_int
from fastiter.iterators.samplers._seeded import SeededSampler
from fastiter.iterators.samplers.shuffle import OrderSampler

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter.iterators.samplers._seeded import Seed

__all__ = ["BlockShuffleOrderSampler"]

_BLOCKS, _WINDOWS = range(2)  # what a stream of an epoch's seed shuffles


class BlockShuffleOrderSampler(SeededSampler, OrderSampler):
    """Shuffles blocks of neighbouring examples, and then the examples of a few blocks at a time.

    For data that is read best in runs: files of many examples, compressed chunks, slow disks. The
    dataset is cut into blocks of ``block_size`` successive indices, the last of which may be
    shorter. Every epoch shuffles the blocks, takes ``window`` of them after the other, and
    shuffles the examples of those. While an epoch goes through a window, it touches no other
    blocks.

    The order is computed as it is read. It takes 8 bytes per block and 8 per example of a window.

    Parameters
    ----------
    seed : int, sequence of int, or numpy.random.SeedSequence
        Ints of any size, none negative. Each epoch has another order of the seed.
    block_size : int
        Examples in a block, at least 1: what is read together, such as the examples of a file.
    window : int
        Blocks in a window, at least 1: the more, the better the examples are mixed, and the more
        blocks have to be at hand.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong.
    """

    _KIND: ClassVar[int] = 3

    def __init__(self, seed: Seed, block_size: int, window: int) -> None:
        self._block_size = checked_int("block_size", block_size)
        self._window = checked_int("window", window)
        super().__init__(seed)

    def _arguments(self) -> tuple[int, int]:
        return self._block_size, self._window

    def _draw(self, n_examples: int, number: int) -> BlockOrder:
        assert self._words is not None
        return BlockOrder(n_examples, self._block_size, self._window, self._words, number)


class BlockOrder:
    """One epoch's order: measured, sliced, pickled and compared, never stored as a whole. It is
    that of ``number`` among those of the seed of ``words``."""

    def __init__(
        self, n: int, block_size: int, window: int, words: tuple[int, int], number: int
    ) -> None:
        from fastiter._order import permutation

        self._arguments = (n, block_size, window, words, number)
        n_blocks = -(-n // block_size)
        self._seed = permutation.seed_words([*words, number])
        self._blocks = permutation.fast_permutation(n_blocks, self._seed, _BLOCKS)
        # The block that may be shorter moves the windows behind it.
        place = int(np.flatnonzero(self._blocks == n_blocks - 1)[0]) if n_blocks else 0
        self._short_window = place // window
        self._missing = n_blocks * block_size - n
        self._kept: tuple[int, npt.NDArray[np.int64]] | None = None

    @property
    def index_bound(self) -> int:
        """The number of examples: all indices are below it."""
        return self._arguments[0]

    def __len__(self) -> int:
        return self._arguments[0]

    def __getitem__(self, part: slice) -> npt.NDArray[np.int64]:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a block order has slices of step 1 only, not {step}")
        pieces = []
        while start < stop:
            number = self._window_at(start)
            first = self._window_start(number)
            pieces.append(self._window_order(number)[start - first : stop - first])
            start += len(pieces[-1])
        if len(pieces) == 1:
            return pieces[0].copy()
        return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)

    def __reduce__(self) -> tuple[type[BlockOrder], tuple[Any, ...]]:
        return BlockOrder, self._arguments

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockOrder):
            return NotImplemented
        return self._arguments == other._arguments

    def __hash__(self) -> int:
        return hash(self._arguments)

    def _window_start(self, number: int) -> int:
        _, block_size, window, _, _ = self._arguments
        start = number * window * block_size
        return start - self._missing if number > self._short_window else start

    def _window_at(self, position: int) -> int:
        _, block_size, window, _, _ = self._arguments
        number = position // (window * block_size)
        # Behind the short block windows begin earlier than their numbers tell.
        return number + 1 if position >= self._window_start(number + 1) else number

    def _window_order(self, number: int) -> npt.NDArray[np.int64]:
        kept = self._kept
        if kept is not None and kept[0] == number:
            return kept[1]
        from fastiter._order import permutation

        n, block_size, window, _, _ = self._arguments
        blocks = self._blocks[number * window : (number + 1) * window]
        size = min(block_size, n)  # a block larger than the dataset is the only one
        indices = (blocks[:, None] * size + np.arange(size)).ravel()
        if number == self._short_window and self._missing:
            indices = indices[indices < n]
        order = indices[permutation.fast_permutation(len(indices), self._seed, _WINDOWS + number)]
        self._kept = number, order
        return order
