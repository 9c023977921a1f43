"""Generators of single examples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import PCG64DXSM, Generator
from numpy.random.bit_generator import ISeedSequence

from fastiter._order.permutation import seed_words
from fastiter._order.virtual import example_words
from fastiter._util.arguments import checked_int

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
    return of_key(seed_words(seed), _word("epoch", epoch), _word("index", index))


def _word(name: str, value: Any) -> int:
    # All else is asked slowly, in a function that is called for each example.
    if type(value) is int and 0 <= value < 2**64:
        return value
    return checked_int(name, value, minimum=0, maximum=2**64 - 1)


def of_key(words: tuple[int, int], epoch: int, index: int) -> Generator:
    state: Any = _ReadyState(example_words(words, epoch, index))
    return Generator(PCG64DXSM(state))
