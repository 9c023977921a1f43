"""Generators of single examples."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import PCG64DXSM, Generator
from numpy.random.bit_generator import ISeedSequence

from fastiter._order import seed_words
from fastiter._virtual import example_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


class _ReadyState(ISeedSequence):
    """Gives a bit generator the words that it would otherwise hash from entropy, at ten times the
    cost."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[np.uint64]:
        if n_words != len(self._words) or np.dtype(dtype) != np.uint64:
            raise ValueError(f"there are {len(self._words)} words of 64 bits, not {n_words}")
        return self._words


def example_rng(
    seed: int | Sequence[int] | np.random.SeedSequence, epoch: int, index: int
) -> Generator:
    epoch, index = operator.index(epoch), operator.index(index)
    if not (0 <= epoch < 2**64 and 0 <= index < 2**64):
        raise ValueError(
            f"epoch and index must be from 0 to 2**64 - 1, but are {epoch} and {index}"
        )
    return of_key(seed_words(seed), epoch, index)


def of_key(words: tuple[int, int], epoch: int, index: int) -> Generator:
    state: Any = _ReadyState(example_words(words, epoch, index))
    return Generator(PCG64DXSM(state))
