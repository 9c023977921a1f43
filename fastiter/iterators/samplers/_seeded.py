"""Order samplers with a seed, and how a snapshot names their orders.

Such a sampler gives the orders number 0, 1, 2, ... of its seed. The number is part of an
iteration's state: however much is planned ahead, reset, copied or loaded, the next order is that
of the number after the one of the batch delivered last. A program that calls the sampler itself
gets one number after the other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt
    from typing_extensions import TypeIs

    Seed = int | Sequence[int] | np.random.SeedSequence

_TAG = int.from_bytes(b"fastiter", "big")  # no index of any dataset is as large
_VERSION = 1
RECORD_SIZE = 7


class Record(NamedTuple):
    """What a snapshot holds of a sampler and of the order that it drew last."""

    kind: int  #: which sampler
    key: tuple[int, int]  #: 128 bits that depend on its seed and its other arguments
    n_drawn: int  #: orders drawn, the current one included
    n_examples: int  #: length of the dataset

    def array(self) -> npt.NDArray[np.int64]:
        """As int64[7]: tag, version, kind, key (2), n_drawn, n_examples."""
        key = np.array(self.key, dtype=np.uint64).view(np.int64)
        words = [_TAG, _VERSION, self.kind, *key, self.n_drawn, self.n_examples]
        return np.array(words, dtype=np.int64)

    @staticmethod
    def of(stored: Any) -> Record | None:
        """The record that an array holds; None if it does not look like one."""
        array = np.asarray(stored)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array[0] != _TAG:
            return None
        if array.size < 2 or array[1] != _VERSION:
            raise ValueError(
                "the snapshot's order sampler is of a version that this release does not know"
            )
        if array.size != RECORD_SIZE or array.dtype != np.int64 or (array[5:] < 0).any():
            raise ValueError("the snapshot's order sampler is damaged")
        first, second = (int(word) for word in array[3:5].view(np.uint64))
        return Record(int(array[2]), (first, second), *array[5:].tolist())


class SeededSampler:
    """Base of the samplers whose orders are derived from a seed and a number.

    A subclass defines ``_KIND``, ``_draw`` and, if need be, ``_arguments`` and ``_population``.
    """

    _KIND: ClassVar[int]
    #: Set by classes whose own ``__call__`` does nothing but give the next number's order.
    _follows_numbers: ClassVar[bool] = True
    #: Whether orders are of different lengths.
    _sizes_vary: ClassVar[bool] = False
    #: Whether an order may have an index twice.
    _repeats: bool = False

    def __init__(self, seed: Seed) -> None:
        # Here, since it imports numpy.random, which takes a while.
        from fastiter._order import permutation

        self._words: tuple[int, int] | None = permutation.seed_words(seed)
        self._next_number = 0

    def __call__(self, current_order: Any, current_position: int) -> Any:
        """Give the next order."""
        return self._draw_next(len(current_order))

    def _draw_next(self, n_examples: int) -> Any:
        order = self._draw(n_examples, self._next_number)
        self._next_number += 1
        return order

    def _draw(self, n_examples: int, number: int) -> Any:
        """The order of that number: an array of its own, or a computed order."""
        raise NotImplementedError

    def _arguments(self) -> tuple[Any, ...]:
        """What decides the orders besides the seed; of a fixed ``repr``."""
        return ()

    def _population(self, order_size: int, dataset_size: int) -> int:
        """How many examples the next order is drawn from."""
        return order_size

    def _arguments_until(self, n_drawn: int, position: int | None) -> tuple[Any, ...]:
        """Those of `_arguments` that decide what comes before a position of the order drawn last;
        None is its end."""
        return self._arguments()

    def _record(self, n_drawn: int, n_examples: int, position: int | None = None) -> Record:
        told = repr((self._words, self._arguments_until(n_drawn, position))).encode()
        return Record(self._KIND, digest_words(told), n_drawn, n_examples)

    def _upcoming(self) -> int:
        """Number of the first order of an iteration that is made now."""
        return self._next_number

    def _note(self, n_drawn: int) -> None:
        """Note how many orders an iteration has drawn: one that is made later continues there."""
        self._next_number = max(self._next_number, n_drawn)


def digest_words(*parts: bytes) -> tuple[int, int]:
    """128 bits that tell bytes apart."""
    from hashlib import blake2b

    first, second = np.frombuffer(blake2b(b"".join(parts), digest_size=16).digest(), "<u8")
    return int(first), int(second)


def is_seeded(sampler: Any) -> TypeIs[SeededSampler]:
    """Whether an iteration may draw this sampler's orders by number instead of calling it.

    A subclass with a ``__call__`` of its own is called.
    """
    if not isinstance(sampler, SeededSampler) or sampler._words is None:
        return False
    caller = next(kind for kind in type(sampler).__mro__ if "__call__" in vars(kind))
    return bool(vars(caller).get("_follows_numbers", False))


class OrderBuffers:
    """Memory for orders, used again when the order in it is dead.

    Memory that a process has already is filled several times as fast as new memory. Orders are
    views of the buffers, so a buffer without views has a single reference, that of this object.
    """

    _MOST = 2  # the current epoch's order is in use while the next one is drawn

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[np.int64]] = []

    def take(self, n: int) -> npt.NDArray[np.int64]:
        """A writable array (n,) with arbitrary content."""
        idle = _references([object()], 0)
        for i in range(len(self._buffers)):
            if self._buffers[i].size == n and _references(self._buffers, i) == idle:
                return self._buffers[i].view()
        buffer = np.empty(n, dtype=np.int64)
        self._buffers = [*self._buffers[-self._MOST + 1 :], buffer]
        return buffer.view()

    def __reduce__(self) -> tuple[type[OrderBuffers], tuple[()]]:
        return OrderBuffers, ()


def _references(items: Sequence[object], i: int) -> int:
    return sys.getrefcount(items[i])


class ComputedOrder:
    """An epoch's order that is measured, sliced and compared, and never stored as a whole.

    A subclass defines ``__len__``, ``_key()``, which decides about the order, and ``_piece(start,
    stop)``: indices from a position on, at least one and none behind ``stop``; not to be changed.
    """

    def __getitem__(self: Any, part: slice) -> npt.NDArray[np.int64]:
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a computed order has slices of step 1 only, not {step}")
        return joined(start, stop, self._piece)

    def _key(self) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return bool(self._key() == other._key())

    def __hash__(self) -> int:
        return hash(self._key())


def joined(start: int, stop: int, piece: Callable[[int, int], Any]) -> npt.NDArray[np.int64]:
    """A new array of the pieces from ``start`` to ``stop``; see `ComputedOrder`."""
    pieces = []
    while start < stop:
        pieces.append(piece(start, stop))
        start += len(pieces[-1])
    if len(pieces) == 1:
        return pieces[0].copy()  # type: ignore[no-any-return]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int64)
