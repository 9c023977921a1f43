from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

class _Permutes(Protocol):
    def permutation(self, n: int, /) -> Any: ...

MOST_THREADS: int

def permutation(random_state: _Permutes | None, n: int) -> Any:
    """Return the order that ``random_state.permutation(n)`` gives, and leave the same state behind.

    Parameters
    ----------
    random_state
        `None` is NumPy's global state. For a `numpy.random.RandomState` (exactly that class) the
        order is drawn in C, with the bit generator's lock held and the GIL released. Of any other
        object the method ``permutation`` is called.
    n
        Length of the order.

    Returns
    -------
    order
        int64 array (n,), the caller's own; of other objects what their ``permutation`` returns.
    """

def seed_words(seed: Any) -> tuple[int, int]:
    """Return 128 bits of a seed as two 64-bit words.

    Parameters
    ----------
    seed
        An int of any size that is not negative, a sequence of such ints (at least one), or a
        `numpy.random.SeedSequence`.

    Returns
    -------
    words
        What ``SeedSequence(seed).generate_state(2, uint64)`` gives; an int of 64 bits takes a
        twentieth of the time.

    Raises
    ------
    TypeError, ValueError
        ``seed`` is something else, negative or empty.
    """

def fast_permutation(
    n: int,
    words: tuple[int, int],
    stream: int = 0,
    threads: int | None = None,
    out: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the order of the fast shuffle (csrc/order/fi_shuffle.h) for (n, words, stream).

    Parameters
    ----------
    n
        Length of the order, up to 2**32 - 1.
    words
        The seed, from `seed_words`.
    stream
        Which of the seed's orders, 0 to 2**64 - 1: the number of an epoch. They are independent.
    threads
        At most this many threads; by default as many as are of use, the processors that this
        process may run on, and 8. The order does not depend on it. Threads end with the call.
    out
        int64 array (n,), contiguous and writeable, that the order is written into.

    Returns
    -------
    order
        int64 array (n,): ``out``, or a new one. The GIL is released for long ones.

    Raises
    ------
    TypeError, ValueError, MemoryError
        An argument is out of its range; there is no memory for the piles. What ``out`` holds then
        is undefined.
    """

def entropy_of(seed: Any) -> npt.NDArray[np.uint32]: ...
def isa_levels() -> list[int]:
    """Instruction sets that this processor has, numbered as in csrc/order/fi_shuffle.h."""

def fast_permutation_by(
    n: int,
    words: tuple[int, int],
    stream: int,
    threads: int,
    isa: int,
    method: int,
    pile_bits: int,
    block_bits: int,
    cells32: bool,
) -> npt.NDArray[np.int64]:
    """Make an order by a chosen instruction set and method: for tests and benchmarks."""
