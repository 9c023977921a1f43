"""The sampler for distributed programs: each process iterates over its share of one order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastiter._util.arguments import checked_callable, checked_choice
from fastiter._util.ranks import sampler_ranks
from fastiter.iterators.samplers._seeded import (
    ComputedOrder,
    Record,
    SeededSampler,
    Share,
    is_seeded,
)
from fastiter.iterators.samplers.shuffle import OrderSampler, gives_process_orders

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["ShardedOrderSampler"]

TAILS = ("pad", "drop", "uneven")


class ShardedOrderSampler(SeededSampler, OrderSampler):
    """Gives each of several processes its share of the order that another sampler draws.

    All processes draw the same global order and take a contiguous part of it each, so that together
    they go through the dataset once an epoch. With 'pad' and 'drop' all shares are equally long,
    and all processes make the same number of batches.

    Parameters
    ----------
    sampler : callable
        Draws the global order: any order sampler that draws the same one in all processes. A
        sampler with a seed does, and is resumed exactly. ``ShuffleOrderSampler()`` of NumPy's
        global generator does not, and is refused.
    rank, size : int, optional
        Number of this process, from 0, and of all processes. Without them, from the environment
        variables of torchrun, Open MPI, MPICH or Intel MPI, or SLURM. Give both or neither.
        ``num_ranks`` is another name of ``size``.
    tail : {'pad', 'drop', 'uneven'}
        If ``size`` does not divide the order's length: 'pad' has the order begin anew for the last
        share, so that some examples come twice; 'drop' leaves the end of the order out, other
        examples each epoch; 'uneven' makes the first shares one example longer than the last.

    Raises
    ------
    TypeError, ValueError
        If an argument is wrong, or no launcher's variables are set.

    Notes
    -----
    One process cannot see whether all of them draw the same order. `fingerprint` is a number that
    has to be equal in all of them: compare it once if in doubt. With a seeded sampler, a snapshot
    of one process loads into the iterators of the others, and each continues with its own share.
    """

    _KIND: ClassVar[int] = 0  # that of the sampler is told
    _follows_numbers: ClassVar[bool] = True

    def __init__(
        self,
        sampler: Callable[[Any, int], Any],
        rank: int | None = None,
        size: int | None = None,
        tail: str = "pad",
        *,
        num_ranks: int | None = None,
    ) -> None:
        if sampler is None:
            raise TypeError("sampler must be an order sampler, such as ShuffleOrderSampler(seed)")
        checked_callable("sampler", sampler)
        if isinstance(sampler, ShardedOrderSampler):
            raise TypeError("sampler must draw global orders, but is a ShardedOrderSampler itself")
        if gives_process_orders(sampler):
            raise ValueError(
                "sampler must draw the same orders in all processes, but this ShuffleOrderSampler "
                "draws from NumPy's global generator, whose state is each process's own: give it a "
                "seed, ShuffleOrderSampler(0)"
            )
        self._sampler = sampler
        if num_ranks is not None and size is not None:
            raise ValueError("size and num_ranks are the same: leave one of them out")
        self._rank, self._size = sampler_ranks(rank, size if num_ranks is None else num_ranks)
        self._tail: str = checked_choice("tail", tail, TAILS)
        self._repeats = getattr(sampler, "_repeats", True)
        self._words = sampler._words if is_seeded(sampler) else None
        self._global: Any = None  # what the sampler drew last, if it is called
        self._n_examples = 0  # of the dataset, where only a share's length is told

    @property
    def sampler(self) -> Callable[[Any, int], Any]:
        """What draws the global orders."""
        return self._sampler

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of all processes."""
        return self._size

    @property
    def tail(self) -> str:
        """The argument ``tail``."""
        return self._tail

    def fingerprint(self) -> int:
        """A number of 63 bits that is equal in processes that draw the same global orders.

        Raises
        ------
        ValueError
            If the sampler has no seed, so that nothing can be told of its orders.
        """
        if not is_seeded(self._sampler):
            raise ValueError(
                "fingerprint() needs a sampler with a seed, such as ShuffleOrderSampler(0)"
            )
        from hashlib import blake2b

        record = self._sampler._record(0, 0)
        told = repr((record.kind, record.key, self._size, self._tail)).encode()
        return int.from_bytes(blake2b(told, digest_size=8).digest(), "big") >> 1

    def __call__(self, current_order: Any, current_position: int) -> Any:
        """Give this process's share of the next global order."""
        n = len(current_order)
        if self._global is None or self._is_start(current_order, current_position):
            self._global, self._n_examples = np.arange(n, dtype=np.int64), n
            start = 0
        else:
            start, _ = self._share(len(self._global))
        if is_seeded(self._sampler):
            self._global = self._sampler(range(self._n_examples), 0)
        else:
            current = np.array(self._global[:], dtype=np.int64)
            self._global = self._sampler(current, start + current_position)
        return self._share_of(self._global)

    def _is_start(self, current_order: Any, current_position: int) -> bool:
        """Whether an iteration begins with this order: it is not a share of the last one."""
        n = len(current_order)
        if n != self._share(len(self._global))[1]:
            return True
        # A share of everything looks like the start after a reset, and only then.
        is_whole = n == self._n_examples and current_position == 0
        return is_whole and bool(np.array_equal(current_order, np.arange(n)))

    def _draw(self, n_examples: int, number: int) -> Any:
        assert is_seeded(self._sampler)
        return self._share_of(self._sampler._draw(n_examples, number))

    def _population(self, order_size: int, dataset_size: int) -> int:
        return dataset_size

    def _upcoming(self) -> int:
        assert is_seeded(self._sampler)
        return self._sampler._upcoming()

    def _note(self, n_drawn: int) -> None:
        assert is_seeded(self._sampler)
        self._sampler._note(n_drawn)

    def _record(self, n_drawn: int, n_examples: int, position: int | None = None) -> Record:
        assert is_seeded(self._sampler)
        share = Share(self._rank, self._size, TAILS.index(self._tail))
        return self._sampler._record(n_drawn, n_examples)._replace(share=share)

    def _share(self, n: int) -> tuple[int, int]:
        """Position in an order of ``n`` indices at which this share begins, and its length."""
        even, rest = divmod(n, self._size)
        if self._tail == "uneven":
            return self._rank * even + min(self._rank, rest), even + (self._rank < rest)
        length = even + (self._tail == "pad" and rest > 0)
        return self._rank * length, length

    def _share_of(self, order: Any) -> Any:
        n = len(order)
        start, length = self._share(n)
        if length == 0:
            raise ValueError(
                f"an order of {n} indices leaves nothing for rank {self._rank} of {self._size} "
                f"with tail={self._tail!r}: use fewer processes, or tail='pad'"
            )
        if hasattr(order, "index_bound"):
            return ShareOrder(order, start, length)
        return np.take(order, np.arange(start, start + length), mode="wrap")


@dataclass(frozen=True)
class ShareOrder(ComputedOrder):
    """A part of a computed order; behind the order's end it continues at the start."""

    _order: Any
    _start: int
    _length: int

    @property
    def index_bound(self) -> int:
        """All indices are below it."""
        return self._order.index_bound  # type: ignore[no-any-return]

    def repeats(self) -> ShareOrder | None:
        """As of the whole order."""
        repeats = self._order.repeats() if hasattr(self._order, "repeats") else None
        return None if repeats is None else ShareOrder(repeats, self._start, self._length)

    def __len__(self) -> int:
        return self._length

    def _piece(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        place = (start + self._start) % len(self._order)
        return self._order[place : place + stop - start]  # type: ignore[no-any-return]
