"""Samplers whose epochs have numbers, and how a state names such an epoch.

The number is part of an iteration's state: however much is planned ahead, reset, copied or loaded,
the next epoch is that of the number after the one of the batch delivered last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, ForwardRef, NamedTuple, TypeAlias, Union

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    Seed: TypeAlias = int | Sequence[int] | np.random.SeedSequence
else:  # numpy.random, which NumPy imports on first use, takes long; 3.10: no ForwardRef | None
    Seed = Union[int, Sequence[int], ForwardRef("np.random.SeedSequence", module=__name__)]  # noqa: UP007


#: A scalar argument of a batch sampler that decides about cuts.
Limit = int | float | None
Key: TypeAlias = tuple[int, int]

_TAG = int.from_bytes(b"fastiter", "big")  # no index of any dataset is as large
_VERSION = 1
# Samplers of whose epochs this package knows nothing: functions, and users' classes. Those of
# fastiter/iterators/samplers have 1 to 7, and TokenBatchSampler 8; the next one has 11.
_KIND_OF_FUNCTIONS, _KIND_OF_USERS = 9, 10
RECORD_SIZE = 7


class Cutting(NamedTuple):
    """The rule that cuts rows of an epoch into batches, from a position on."""

    start: int  #: position in the epoch, 0 for its beginning
    num_ranks: int
    limits: tuple[Limit, ...]  #: `EpochSampler.limits`


class Epoch(NamedTuple):
    """An epoch's order and, from a batch sampler, its cuts."""

    order: Any  #: indices, int[n]; or an object with ``len()`` whose slices are such arrays
    #: positions, int[m + 1], that ascend from 0 to n: batch k is ``order[cuts[k]:cuts[k + 1]]``.
    #: None of an order sampler
    cuts: Any = None


class SamplerRecord(NamedTuple):
    """The entries of a snapshot for a sampler and the epoch that it gave last."""

    kind: int  #: of sampler
    key: Key  #: 128 bits that depend on its seed and its other arguments
    n_drawn: int  #: epochs drawn, the current one included
    n_examples: int  #: length of the dataset

    def words(self) -> list[int]:
        """As integers of 64 bits: tag, version, kind, key (2), n_drawn, n_examples."""
        key = (word - (word >> 63 << 64) for word in self.key)
        return [_TAG, _VERSION, self.kind, *key, self.n_drawn, self.n_examples]

    @staticmethod
    def of(stored: Any) -> SamplerRecord | None:
        """The record with these `words`; None if it does not look like one."""
        array = np.asarray(stored)
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu" or array[0] != _TAG:
            return None
        if array.size < 2 or array[1] != _VERSION:
            raise ValueError(
                "the snapshot's order sampler is of a version that this release does not know"
            )
        least = [1, 0]  # n_drawn, n_examples
        if array.size != RECORD_SIZE or array.dtype != np.int64 or (array[5:] < least).any():
            raise ValueError("the snapshot's order sampler is damaged")
        first, second = (int(word) for word in array[3:5].view(np.uint64))
        return SamplerRecord(int(array[2]), (first, second), *array[5:].tolist())


class EpochSampler(ABC):
    """Base class of samplers that compute each epoch from its number.

    A subclass defines `epoch`. Iterators then resume exactly, divide the epochs among ranks, and
    know the examples of any step. Pass a sampler of orders as ``order_sampler=``, and a sampler of
    orders and cuts as ``batch_sampler=``.

    Parameters
    ----------
    seed : int, sequence of int, or numpy.random.SeedSequence, optional
        Ints of any size, none negative.

    Attributes
    ----------
    seed : (int, int) or None
        Two integers of 64 bits, derived from the argument. Use them for a generator of each epoch:
        ``numpy.random.default_rng([*self.seed, number])``. ``seed_examples=True`` uses them, too.
    number : int
        Number of the epoch with which a new iterator begins. A delivered batch moves it on.
    varies : bool
        True if orders have different lengths. By default that is an error.
    permutes : bool
        True if each epoch has every example once, whatever the dataset's length. States then load
        with ``strict=False`` after the dataset has grown.
    draws_ahead : bool
        True if a thread calls `epoch` in the second half of the epoch before. For epochs that take
        long to compute; the code must not take locks.
    """

    seed: Key | None = None
    number: int = 0
    varies: bool = False
    permutes: bool = False
    draws_ahead: bool = False
    kind: ClassVar[int] = _KIND_OF_USERS  # which sampler, in a state
    _source_sizes: tuple[int, ...] = ()  # of a mixture, which a state tells
    is_numbered: bool = True  # False: the sampler is called, like any other callable
    _dataset_length: int | None = None  # of the dataset, where the sampler is called

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # A class with a `__call__` of its own, but the `epoch` of a base class, is called. One with
        # another `epoch` than a class of this package is not what that class's states tell of.
        names = {"epoch", "__call__"}
        decides = next(vars(base) for base in cls.__mro__ if names & {*vars(base)})
        cls.is_numbered = "epoch" in decides
        cls.kind = decides.get("kind", _KIND_OF_USERS)

    def __init__(self, seed: Seed | None = None) -> None:
        self.seed = None if seed is None else words_of(seed)

    @abstractmethod
    def epoch(self, number: int, n_examples: int, cuttings: Sequence[Any] = ()) -> Epoch:
        """Compute an epoch from the arguments and the constructor's, and from nothing else.

        Parameters
        ----------
        number : int
            Number of the epoch, from 0. Iterators ask for any number at any time.
        n_examples : int
            Length of the dataset.
        cuttings : sequence
            Ranks and limits for a batch sampler; empty for an order sampler. ``cuttings[0]`` has
            ``num_ranks`` and `limits`; later entries hold from position ``start`` on, after a state
            was loaded with other values. A sampler may ignore them: each step takes the next
            ``num_ranks`` batches, and the last step of an epoch divides its rows evenly.

        Returns
        -------
        Epoch
            ``Epoch(order)``, or ``Epoch(order, cuts)``.
        """

    def arguments(self) -> tuple[Any, ...] | None:
        """The arguments that decide the epochs, without the seed, as a tuple of plain values.

        Optional. Without it a state has a digest of the current epoch, and loads only if the digest
        is the same. The digest takes 15 to 20 ms for a million examples, once an epoch.
        """
        return None if type(self).kind in (_KIND_OF_FUNCTIONS, _KIND_OF_USERS) else ()

    def limits(self) -> tuple[Limit, ...]:
        """The arguments that decide the cuts and may change within an epoch.

        Optional. They change when a state is loaded that was saved with other values. Define
        `arguments`, too, without these.
        """
        return ()

    def size(self, number: int, n_examples: int, within: int) -> int:
        """The length of an epoch if it is at most ``within``, else any number from ``within`` on.

        Optional. With ``varies`` it finds far steps without the epochs before them.
        """
        return len(self.epoch(number, n_examples).order)

    def n_batches(self, number: int | None, n_examples: int, num_ranks: int) -> int | None:
        """The number of batches of an epoch, or of each epoch if ``number`` is None.

        Optional. None: the number is unknown, or differs. It finds far steps without the epochs
        before them.
        """
        return None

    def record(
        self, n_drawn: int, n_examples: int, position: int | None, digest: Callable[[], Key]
    ) -> SamplerRecord:
        # The entry in a state. `digest` computes that of the epoch drawn last.
        kind, facts = type(self).kind, self.arguments()
        if facts is None:
            facts = digest()
        elif is_of_users(self) and (type(facts) is not tuple or not _is_plain(facts)):
            raise TypeError(
                f"{type(self).__qualname__}.arguments() must give a tuple of int, float, str, "
                f"bytes, bool, None and tuples, not {facts!r:.80}: of an array take a digest"
            )
        name = (type(self).__qualname__,) if kind == _KIND_OF_USERS else ()
        key = facts if kind == _KIND_OF_FUNCTIONS else key_of(*name, self.seed, facts)
        return SamplerRecord(kind, key, n_drawn, n_examples)

    def label(self, number: int) -> str:
        # The call that gives an epoch, for messages.
        return f"{type(self).__qualname__}.epoch({number})"

    def __call__(self, current_order: Any, current_position: int) -> Any:
        """Give the next order, to programs that call the sampler themselves."""
        # Later on the current order may be longer or shorter than the dataset.
        if self.permutes or self._dataset_length is None:
            self._dataset_length = len(current_order)
        order, cuts = self.epoch(self.number, self._dataset_length)
        if cuts is not None:
            raise TypeError(gives_batches(self))
        self.number += 1
        return order


def words_of(seed: Any, name: str = "seed") -> Key:
    """The two numbers that stand for a seed, the argument ``name`` of a caller."""
    # Here, since it imports numpy.random, which takes a while.
    from fastiter._order import permutation

    return permutation.seed_words(seed, name)


def gives_batches(sampler: EpochSampler) -> str:
    """The message that says so where an order is needed."""
    return f"{type(sampler).__qualname__} gives batches: pass it as batch_sampler="


def is_epoch_sampler(sampler: Any) -> TypeIs[EpochSampler]:
    """Whether an iteration draws this sampler's epochs by number instead of calling it."""
    return isinstance(sampler, EpochSampler) and sampler.is_numbered


def is_of_users(sampler: EpochSampler) -> bool:
    """Whether its epochs are made by code outside this package."""
    return type(sampler).kind == _KIND_OF_USERS


def _is_plain(value: Any) -> bool:
    """Whether its ``repr`` tells it from all others, and never changes."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, str, bytes, bool)


def key_of(*facts: Any) -> Key:
    """128 bits that tell facts apart."""
    return words_of_digest(repr(facts).encode())


def digest_of(order: Any, cuts: Any) -> Key:
    """128 bits that tell epochs apart."""
    arrays = [order[:]] if cuts is None else [cuts, order[:]]
    return words_of_digest(*(np.ascontiguousarray(array, dtype="<i8") for array in arrays))


def words_of_digest(*parts: Any, person: bytes = b"") -> Key:
    """128 bits of buffers, and of the purpose that a ``person`` is."""
    from hashlib import blake2b

    digest = blake2b(digest_size=16, person=person)
    for part in parts:
        digest.update(part)
    first, second = np.frombuffer(digest.digest(), "<u8")
    return int(first), int(second)
