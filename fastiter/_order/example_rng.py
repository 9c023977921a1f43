"""The random generator of one example in one epoch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import PCG64DXSM, Generator
from numpy.random.bit_generator import ISeedSequence

from fastiter._order import example_context
from fastiter._order.permutation import example_words
from fastiter._util.arguments import checked_int

if TYPE_CHECKING:
    import numpy.typing as npt


class _Words(ISeedSequence):
    """Gives a bit generator its state directly, at a tenth of the cost of hashing entropy."""

    def __init__(self, words: npt.NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> npt.NDArray[np.uint64]:
        if n_words != len(self._words) or np.dtype(dtype) != np.uint64:
            raise ValueError(f"there are {len(self._words)} words of 64 bits, not {n_words}")
        return self._words


def checked_word(name: str, value: Any) -> int:
    """``value`` as a number of 64 bits."""
    if type(value) is int and 0 <= value < 2**64:  # the usual case, fast
        return value
    return checked_int(name, value, minimum=0, maximum=2**64 - 1)


def generator_of(words: tuple[int, int], epoch: int, index: int) -> Generator:
    """The generator of the two words of a seed, an epoch and an index."""
    state: Any = _Words(example_words(words, epoch, index))
    return Generator(PCG64DXSM(state))


def current_generator() -> Generator:
    """The generator of the example that is fetched. Where none is, a new one, seeded by 128 bits of
    torch's default generator or, if torch is not loaded, of NumPy's global one."""
    key = example_context.current_key()
    if key is not None:
        return generator_of(*key)
    torch = sys.modules.get("torch")
    default = getattr(torch, "default_generator", None)
    if default is None:
        words = np.random.randint(0, 2**64, 2, np.uint64).tolist()
    else:
        bits = torch.empty(2, dtype=torch.int64, device="cpu")  # type: ignore[union-attr]
        words = bits.random_(-(2**63), None, generator=default).numpy().view(np.uint64).tolist()
    return generator_of((words[0], words[1]), 0, 0)
