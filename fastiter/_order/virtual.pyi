from typing import SupportsIndex, final, overload

import numpy as np
import numpy.typing as npt

TABLE_MAX: int
LENGTH_MAX: int
ROUNDS: int

@final
class VirtualOrder:
    """A random order of 0, 1, ..., n - 1 whose parts are computed when they are read.

    Up to ``TABLE_MAX`` indices it is the order that the fast shuffle gives, kept as a table; above
    a keyed bijection (csrc/order/fi_virtual.h), which takes no memory. Compares and pickles by its
    arguments.

    Parameters
    ----------
    n
        Length, from 0 to 2**62.
    words
        The two 64-bit words of a seed.
    stream
        Number of the order among those of this seed.
    """

    words: tuple[int, int]
    stream: int
    def __init__(self, n: SupportsIndex, words: tuple[int, int], stream: int) -> None: ...
    @property
    def index_bound(self) -> int:
        """The length: all indices are below it."""
    def __len__(self) -> int: ...
    def checked_part(
        self, start: SupportsIndex, count: SupportsIndex | None
    ) -> npt.NDArray[np.int64]:
        """Indices at ``count`` positions from ``start`` on, by default all that are left.

        Raises
        ------
        ValueError
            If the order does not have them all.
        """
    @overload
    def __getitem__(self, key: slice, /) -> npt.NDArray[np.int64]: ...
    @overload
    def __getitem__(self, key: SupportsIndex, /) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[VirtualOrder], tuple[int, tuple[int, int], int]]: ...

def fill_by(
    n: int,
    words: tuple[int, int],
    stream: int,
    start: int,
    count: int,
    isa: int,
    rounds: int,
) -> npt.NDArray[np.int64]:
    """Compute a part of the keyed bijection by a given instruction set and number of half-rounds.

    For tests: also for n below ``TABLE_MAX``, and of orders made weak on purpose.

    Raises
    ------
    ValueError
        If C refuses: n below 4 or above 2**62, rounds odd or above ``ROUNDS``, an instruction set
        that this processor lacks.
    """

def example_words(words: tuple[int, int], epoch: int, index: int) -> npt.NDArray[np.uint64]:
    """Hash a seed, an epoch and an index to 256 bits.

    Returns
    -------
    words
        uint64 array (4,).
    """
