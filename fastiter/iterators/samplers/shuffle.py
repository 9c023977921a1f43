"""Order samplers: callables that give each epoch its order."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastiter._plan.epoch_sampler import Epoch, EpochSampler, words_of

__all__ = ["OrderSampler", "ShuffleOrderSampler"]


class OrderSampler(ABC):
    """Base class of order samplers.

    An iterator asks its sampler when it is made or reset, and whenever an epoch ends, in the
    thread that calls the iterator. Any callable with this signature will do; it need not
    derive from this class.
    """

    @abstractmethod
    def __call__(self, current_order: npt.NDArray[np.int64], current_position: int) -> Any:
        """Give the order of the next epoch.

        Parameters
        ----------
        current_order : int64[n]
            The order of the epoch that ends; 0, 1, 2, ... up to the dataset's length at the
            start. A copy: it may be changed in place and returned.
        current_position : int
            The position in that epoch at which the batch that completes it began; 0 at the
            start.

        Returns
        -------
        array-like of int, one-dimensional
            Dataset indices, none of them negative. The first order may be of any length (an
            epoch can be shorter or longer than the dataset, and repeat examples); later ones
            must be as long as the first.
        """


class ShuffleOrderSampler(EpochSampler, OrderSampler):
    """Shuffles the whole dataset at the start of every epoch.

    Of a generator it gives exactly the orders of ``random_state.permutation(n)``, and leaves it in
    the state which that call leaves it in. Of a seed it gives the orders of the fast shuffle (see
    `fastiter.random.permutation`), another one each time; an iteration resumed from a snapshot
    continues with exactly the orders that would have come.

    Parameters
    ----------
    random_state : RandomState, Generator or alike, int, or SeedSequence, optional
        Anything with a method ``permutation(n)``, or a seed: also several ints, in a list or array.
        By default NumPy's global generator, the one that ``numpy.random.seed`` seeds.

    Raises
    ------
    TypeError
        If ``random_state`` is neither a seed nor has a method ``permutation``.
    ValueError
        If the seed is negative.
    """

    kind: ClassVar[int] = 1
    permutes = True
    _gives_fresh_orders = True

    def __init__(self, random_state: Any = None) -> None:
        self._random_state: Any = None
        if _is_seed(random_state):
            self.seed = words_of(random_state, "random_state")
            self._buffers = OrderBuffers()
            return
        if random_state is None:
            # The object itself, so that a pickled sampler carries the generator's state and
            # goes on with the same orders.
            random_state = np.random.mtrand._rand
        if not callable(getattr(random_state, "permutation", None)):
            raise TypeError(
                "random_state must be an int, ints, a numpy.random.SeedSequence, or have a method "
                "permutation(n), like numpy.random.RandomState or numpy.random.Generator; "
                f"{type(random_state).__qualname__} has none"
            )
        self._random_state = random_state
        self.is_numbered = False

    def __call__(self, current_order: Any, current_position: int) -> Any:
        """Give a permutation of ``len(current_order)`` indices as an array of its own."""
        if self.is_numbered:
            return super().__call__(current_order, current_position)
        # Here, since it imports numpy.random, which takes a while.
        from fastiter._order import permutation

        order = permutation.permutation(self._random_state, len(current_order))
        if isinstance(self._random_state, (np.random.RandomState, np.random.Generator)):
            return order
        return np.array(order)  # of a foreign generator we do not know whether it keeps it

    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        from fastiter._order import permutation

        assert self.seed is not None
        out = self._buffers.take(n_examples)
        return Epoch(permutation.fast_permutation(n_examples, self.seed, number, out=out))


class OrderBuffers:
    """Memory for orders, used again when the order in it is dead.

    Memory that a process has already is filled several times as fast as new memory. Orders are
    views of the buffers, so a buffer without views has a single reference, that of this object.
    """

    def __init__(self) -> None:
        # Two: the current epoch's order is in use while the next one is drawn.
        self._buffers: deque[npt.NDArray[np.int64]] = deque(maxlen=2)

    def take(self, n: int) -> npt.NDArray[np.int64]:
        """A writable array (n,) with arbitrary content. Threads may share the buffers."""
        for _ in range(len(self._buffers)):
            try:  # out of the queue, so that no other thread takes it, too
                taken = [self._buffers.popleft()]
            except IndexError:
                break
            is_idle = taken[0].size == n and _references(taken) == _references([object()])
            order = taken[0].view() if is_idle else None
            self._buffers.append(taken[0])
            if order is not None:
                return order
        buffer = np.empty(n, dtype=np.int64)
        order = buffer.view()
        self._buffers.append(buffer)
        return order

    def __reduce__(self) -> tuple[type[OrderBuffers], tuple[()]]:
        return OrderBuffers, ()


def _references(items: list[Any]) -> int:
    return sys.getrefcount(items[0])


def gives_process_orders(sampler: Any) -> bool:
    """Whether orders come from NumPy's global generator, whose state is each process's own."""
    if not isinstance(sampler, ShuffleOrderSampler):
        return False
    return sampler._random_state is np.random.mtrand._rand


def _is_seed(random_state: Any) -> bool:
    if hasattr(random_state, "__index__") or isinstance(random_state, (list, tuple, range)):
        return True
    # A SeedSequence, without importing numpy.random for those who have none.
    return callable(getattr(random_state, "generate_state", None))
