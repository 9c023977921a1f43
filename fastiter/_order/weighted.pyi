from typing import final

import numpy as np
import numpy.typing as npt

WEIGHTS_MAX: int
ISA_AVX2: int

@final
class AliasTable:
    """Draws with replacement, by a table of 16 bytes per weight.

    Parameters
    ----------
    weights
        float64 array (n,), contiguous, positive and finite.
    """

    def __new__(cls, weights: npt.NDArray[np.float64]) -> AliasTable: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]:
        """Draw ``count`` items; the GIL is released.

        Returns
        -------
        items
            int64 array (count,).
        """

@final
class Race:
    """Draws without replacement, by exponential variates.

    Parameters
    ----------
    weights
        float64 array (n,), positive and finite; the largest at most 1e290 times the smallest.
    """

    weights: npt.NDArray[np.float64]
    def __init__(self, weights: npt.NDArray[np.float64]) -> None: ...
    def draw(self, words: tuple[int, int], stream: int, count: int) -> npt.NDArray[np.int64]:
        """Draw ``count`` different items, in the order in which they are drawn; releases the GIL.

        Returns
        -------
        items
            int64 array (count,).
        """

def arrivals_by(
    weights: npt.NDArray[np.float64],
    words: tuple[int, int],
    stream: int,
    horizon: float,
    isa: int,
) -> list[tuple[float, int]]:
    """(time, item) of the items that arrive before ``horizon``, by a given instruction set."""

def minus_log(x: float) -> float:
    """-log(x) as the race computes it, for 2**-53 <= x <= 1."""
