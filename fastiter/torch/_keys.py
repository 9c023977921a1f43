"""The sampler's keys: one batch's at a time, drawn when torch would draw them, counted."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from fastiter._fetch.dataset_access import epochs_of, is_stateful
from fastiter._fetch.epoch_rows import EpochRows
from fastiter._order.permutation import example_seeds
from fastiter._order.plan import Plan
from fastiter.torch._state import drawn_from, is_own, is_permutation, state_if_any, states_of


class SoleKey(list[Any]):
    """The keys of a batch whose item of the batch sampler is no container, such as a slice, which
    the dataset's ``__getitems__`` gets as it is."""


class OrderKeys:
    """The keys of a sampler of torch's own over all examples, in order or shuffled, without a
    Python object for each: int64 arrays. A call that an interrupt cuts short can be repeated.
    """

    iterator, is_cut_off = None, False

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._has_ended = False
        self._n_examples, self._generator = 0, None  # as the first key was drawn
        self._before: dict[str, torch.Tensor] = {}
        #: Of all examples, once it has been drawn; their number, if they come in order.
        self.order: npt.NDArray[np.int64] | int | None = None

    @property
    def n_drawn(self) -> int:
        """Keys that were drawn, or begun with, as far as it matters: none, or some."""
        return 0 if self.order is None and not self._before else 1

    def draw(self, stop: int) -> npt.NDArray[np.int64] | int:
        """Draw the keys before ``stop``."""
        if self.order is None:  # now, when the sampler's iterator would draw its seed
            self.order = self._drawn_order()
        order, sampler = self.order, self._sampler
        if isinstance(order, int):
            return order
        if stop > len(order) and not self._has_ended:
            # torch's iterator draws another order at its end, of which it takes as many keys as are
            # left over: none, unless the dataset has another length by now.
            n_more = sampler.num_samples % self._n_examples
            if n_more or sampler.generator is not None:
                self._rewind("end", self._generator)
                more = torch.randperm(self._n_examples, generator=self._generator)[:n_more]
                if n_more:
                    order = np.concatenate([order, more.cpu().numpy()])
            self.order, self._has_ended = order, True
        return order

    skip = draw

    def take(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """The keys from ``first`` to before ``stop``; fewer at the end."""
        order = self.draw(stop)
        if isinstance(order, int):
            return np.arange(min(first, order), min(stop, order), dtype=np.int64)
        return order[first:stop]

    def _drawn_order(self) -> npt.NDArray[np.int64] | int:
        n = len(self._sampler.data_source)
        if type(self._sampler) is SequentialSampler:
            return n
        generator = self._sampler.generator
        self._rewind("order", torch.default_generator if generator is None else generator)
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        self._n_examples, self._generator = n, generator
        # One, unless the length has just changed; without examples torch's ZeroDivisionError.
        given = self._sampler._num_samples
        n_orders = range((n if given is None else given) // n)
        orders = [torch.randperm(n, generator=generator).cpu().numpy() for _ in n_orders]
        return orders[0] if len(orders) == 1 else np.concatenate([np.arange(0), *orders])

    def _rewind(self, step: str, generator: torch.Generator) -> None:
        """Set a generator back to where it was before this step, if that was interrupted."""
        if step in self._before:
            generator.set_state(self._before[step])
        else:
            self._before[step] = generator.get_state()


def is_over(iterator: Iterator[Any]) -> bool:
    """Whether an iterator is a generator that has ended."""
    return getattr(iterator, "gi_frame", iterator) is None


def is_cut_off(iterator: Iterator[Any], error: BaseException) -> bool:
    """Whether an interrupt has ended a generator."""
    return is_over(iterator) and not isinstance(error, Exception)


def cut_off(owner: Any, items: str) -> RuntimeError:
    """The error of each call that needs more of a generator which an interrupt has ended."""
    return RuntimeError(
        f"{type(owner).__name__} was interrupted, which has ended its generator: the rest of this "
        f"epoch's {items} is lost. state_dict() is right: load it, or begin another epoch"
    )


class IteratedKeys:
    """The keys of any sampler, an iterable. Those that were drawn are held until later ones are
    taken. ``iterator`` None: made for the first key, as by torch's `BatchSampler`."""

    order = None

    def __init__(self, sampler: Any, iterator: Iterator[Any] | None) -> None:
        self._sampler = sampler
        self._iterators = [] if iterator is None else [iterator]
        self._held: tuple[int, list[Any]] = 0, []  # from this one on
        self.has_ended = False
        self.is_cut_off = False

    @property
    def iterator(self) -> Iterator[Any] | None:
        """The sampler's, once it was made."""
        return self._iterators[0] if self._iterators else None

    @property
    def n_drawn(self) -> int:
        begin, keys = self._held
        return begin + len(keys)

    def open(self) -> Iterator[Any]:
        """Make the sampler's iterator, if there is none."""
        # In these steps no signal handler runs but in the sampler itself.
        self._iterators.extend(map(iter, [] if self._iterators else [self._sampler]))
        return self._iterators[0]

    def draw(self, stop: int) -> None:
        """Draw the keys before ``stop``, and hold them."""
        n = stop - self.n_drawn
        if n > 0 and not self.has_ended:
            if self.is_cut_off:
                raise cut_off(self._sampler, "keys")
            iterator, n_held = self.open(), len(self._held[1])
            try:
                self._held[1].extend(map(next, itertools.repeat(iterator, n)))
            except BaseException as error:
                self.is_cut_off = is_cut_off(iterator, error)
                if is_over(iterator) and not self.is_cut_off:
                    del self._held[1][n_held:]  # torch makes no batch of them
                raise
            self.has_ended = self.n_drawn < stop

    def begin(self, n: int) -> None:
        """Have the iterator go on after ``n`` keys."""
        self._held = n, []

    def finish(self, n: int) -> bool:
        """Have no key follow the first ``n``. Whether the sampler has given more."""
        self.draw(sys.maxsize)
        has_more = self.n_drawn > n
        self._held, self.has_ended = (n, []), True
        return has_more

    def skip(self, n: int) -> None:
        """Draw the first keys of an epoch, and leave them out; ValueError if there are fewer."""
        found = sum(1 for _ in map(next, itertools.repeat(self.open(), n)))
        if found < n:
            raise ValueError(
                f"state_dict counts {n} keys of the sampler in this epoch, but it gives {found}: "
                "pass the sampler of the loader that has saved it"
            )
        self.begin(n)

    def take(self, first: int, stop: int) -> list[Any]:
        """The keys from ``first`` to before ``stop``; fewer at the end."""
        self.draw(stop)
        begin, keys = self._held
        if begin < first:
            self._held = _, keys = first, keys[first - begin :]
        return keys[: stop - first]

    def list_first(self) -> list[Any]:
        """The keys that are held, the first of them, such as a generator, as a list from now on."""
        keys = self._held[1]
        try:
            items = iter(keys[0])
        except TypeError:
            keys[0] = SoleKey(keys[:1])
        else:
            keys[0] = list(items)
        return keys


class DealtKeys:
    """A rank's keys of an epoch in which the number of ranks has changed: what was left of torch's
    order of all ranks behind ``place``, in turns, padded or cut as the `DistributedSampler` says.
    Before them come ``own`` keys None, in place of those that count as this rank's earlier ones."""

    def __init__(self, sampler: Any, place: int, own: int) -> None:
        self._sampler, self._place, self._own = sampler, place, own

    def __iter__(self) -> Iterator[Any]:
        sampler = self._sampler
        n, ranks = len(sampler.dataset), sampler.num_replicas
        n_left = n - self._place
        size = n_left // ranks if sampler.drop_last else -(-n_left // ranks)
        order = np.arange(n)
        if sampler.shuffle:
            generator = torch.Generator()
            generator.manual_seed(sampler.seed + sampler.epoch)
            order = torch.randperm(n, generator=generator).numpy()
        places = self._place + sampler.rank + ranks * np.arange(size)
        keys = order[places % max(n, 1)].tolist()
        return itertools.chain(itertools.repeat(None, self._own), keys)


_STATES = ("_index_sampler_state", "_sampler_iter_state")
_CHANGES = ("_dealt", "_epoch_length", "_opens_first")


def _changed(
    sampler: Any, _dealt: list[int] | None = None, _epoch_length: int | None = None, **_: Any
) -> Any:
    """The sampler of an epoch that goes on with other ranks, or a dataset that has grown."""
    if _dealt is not None:
        return DealtKeys(sampler, *_dealt)
    if _epoch_length is not None and is_permutation(sampler):
        n = sampler._num_samples
        return RandomSampler(range(_epoch_length), False, n, sampler.generator)
    return sampler


@functools.cache
def _reads_size_once() -> bool:
    """Whether an iteration of torch's `BatchSampler` with drop_last has one size, as since 2.6."""
    batches = BatchSampler(range(3), 1, True)
    iterator = iter(batches)
    next(iterator)
    batches.batch_size = 2
    return len(next(iterator)) == 1


def _has_order(sampler: Any) -> bool:
    if not is_permutation(sampler):
        return is_own(sampler, SequentialSampler)
    n: int | None = sampler._num_samples  # None: all; counting them may take long
    return n is None or n == len(sampler.data_source)


def _named(keys: Any, rows: EpochRows) -> Any:
    if isinstance(keys, np.ndarray):
        return rows.named(keys)
    if isinstance(keys, (int, np.integer)):
        return int(rows.named(np.array(keys)))
    if type(keys) is list and all(type(key) is int for key in keys):
        return rows.named(np.array(keys, np.int64)).tolist()
    return [_named(key, rows) for key in keys] if type(keys) is list else keys


def _numbered(key: Any, rows: EpochRows) -> Any:
    """The inverse of `_named`."""
    if isinstance(key, (int, np.integer)):
        return int(rows.numbers(np.array([key], np.int64))[0])
    return [_numbered(one, rows) for one in key] if type(key) is list else key


def keys_of(
    plan: Plan,
    is_batch: bool,
    rows: EpochRows | None,
    dropped: tuple[int, ...] = (),
    as_tensor: bool = False,
) -> Any:
    """The keys of a planned batch, in the order of its rows: a list, or without batches one key.

    Those of the rows ``dropped`` are left out. ``as_tensor``: an int64 tensor instead, if they are
    integers.
    """
    if plan.request is not None:
        keys = [*plan.request.keys] if is_batch else [plan.request.keys]
    else:
        keys = plan.indices.tolist() if plan.keys is None else [*plan.keys]
    if rows is not None:
        keys = [_numbered(key, rows) for key in keys]
    if dropped and is_batch:
        keys = [key for row, key in enumerate(keys) if row not in dropped]
    if as_tensor and all(type(key) is int or isinstance(key, np.integer) for key in keys):
        with contextlib.suppress(OverflowError):
            return torch.tensor(keys if is_batch else keys[0], dtype=torch.int64)
    return keys if is_batch else keys[0]


def epoch_rows(dataset: Any) -> EpochRows | None:
    """The present rows of a dataset that has other rows in each epoch: workers may have a copy of
    an earlier epoch."""
    epochs = epochs_of(dataset)
    return None if epochs is None else epochs.rows_of(epochs.epoch)


class SamplerKeys:
    """Draws the keys of batches, and knows the sampler's state.

    A place in an epoch is a number of batches and the number of keys in them. Keys are those of
    the sampler that torch's `BatchSampler` cuts into batches. With another batch sampler, or
    without batches, each item that it gives is one key. Not all batches are delivered in order.
    ``main`` is a result of `state`: batches that were delivered before are left out.
    """

    _drops = False
    is_filling = False  # whether batches have to come in order
    counts_rows = True  # whether random numbers belong to places in the epoch

    def __init__(
        self,
        sampler: Any,  # of the loader
        iterator: Iterator[Any],  # of the sampler
        generators: list[torch.Generator],  # that the sampler may draw from
        main: dict[str, Any] | None = None,
        rows: EpochRows | None = None,  # source of the indices from which the epoch is known
        moved: int = 0,  # items that others have drawn from the iterator
        is_batched: bool = False,  # whether an item of another batch sampler has several keys
    ) -> None:
        self._batches, self.rows = sampler, rows
        #: of the generators at the first key, if not as at the start
        self.generator_states: list[str] | None = None if main is None else main["_key_states"]
        #: whether the keys are cut here; arrays of them are then made here, too
        self._cuts = self.makes_arrays = is_own(sampler, BatchSampler)
        self._lists = is_batched and not self._cuts  # items that have no length
        self._sampler: Any = drawn_from(sampler)
        self._ranks = 1, 0
        if type(self._sampler) is DistributedSampler:  # each rank takes every n-th key
            self._ranks = self._sampler.num_replicas, self._sampler.rank
        #: entries of a state that say what a change has left of the epoch
        self._changes = {name: main[name] for name in _CHANGES if name in main} if main else {}
        drawn = _changed(self._sampler, **self._changes)
        self.first = self._end = self._cut_since = 0, 0
        self._source: Any
        if moved:
            self.first = moved, moved * (self._batch_size() or 1)
            keys = itertools.chain.from_iterable(iterator) if self._cuts else iterator
            self._source = IteratedKeys(drawn, keys)
            self._source.begin(self.first[1])
        elif _has_order(drawn):
            self._source = OrderKeys(drawn)
        else:
            is_given = drawn is self._sampler and self._changes.get("_opens_first", not self._cuts)
            self._source = IteratedKeys(drawn, iterator if is_given else None)
        # A state has the program's generator anyway, and keys in order are not drawn from it.
        is_none = is_own(drawn, SequentialSampler) and generators == [torch.default_generator]
        self._generators = [] if is_none else generators
        self._former = states_of(self._generators)
        self._left: list[tuple[int, int, int]] = []
        if main is not None:
            self.first = main["_sampler_iter_yielded"], main["_keys_yielded"]
            self._end = tuple(main["_delivered_up_to"])
            self._left = [(number, key, size) for number, key, size in main["_not_delivered"]]
            has_size = main["_batch_size"] == self._batch_size()
            self._cut_since = tuple(main.get("_cuts", (0, 0))) if has_size else self._end
        self.n_states = 0  #: of the batches drawn last, how many have their states kept for `state`
        self._states: dict[int, dict[str, Any]] = {}  # by the number of keys before
        self.cutter: Any = None  #: has the size of the next batch: the batch sampler, as a rule

    def load(self, main: dict[str, Any], is_finished: bool, is_endless: bool) -> None:
        """Move on to the sampler's position, now: it draws its seed with its first key, and states
        that are loaded later, such as a dataset's, may set the generator."""
        n_keys, own = self.first[1], main["_index_sampler_state"]
        of_iterator = main["_sampler_iter_state"]
        if is_endless:
            self._source.begin(n_keys)
            return
        if own is not None or of_iterator is not None:
            if is_stateful(self._sampler):
                self._sampler.load_state_dict(copy.deepcopy(own))
            self._source = IteratedKeys(self._sampler, None)
            self._source.begin(n_keys)
            if of_iterator is not None:
                self._source.open().load_state_dict(copy.deepcopy(of_iterator))
            # What a sampler that is a generator tells before its first key may be of another time.
            self._states[n_keys] = {name: main[name] for name in _STATES}
            if not n_keys:
                self._source.draw(1)
                if not self._source.n_drawn:  # that of the end of the epoch before
                    self._source = IteratedKeys(self._sampler, None)
            # Its state may be that of the next epoch's start, from which keys have come now.
            has_more = bool(main.get("_has_ended")) and self._source.finish(n_keys)
            if has_more and is_stateful(self._sampler):
                self._sampler.load_state_dict(copy.deepcopy(own))
        elif main["_has_begun"]:
            self._source.skip(n_keys)
            self._source.draw(max(n_keys, main.get("_keys_drawn", 0), 1))  # workers are ahead
        if is_finished:  # at its end it may draw once more, of which nothing comes
            self._source.draw(sys.maxsize)

    def draw(self, n_planned: int, n_keys: int) -> tuple[int, int, int, Any]:
        """The batch that follows ``n_planned`` batches of ``n_keys`` keys together: its number, the
        number of keys before it, that of its own keys, and these. The same until it is planned."""
        left = next((one for one in self._left if one[0] >= n_planned), None)
        source = self._source
        if self.cutter is None and not self.has_begun:
            # Without workers the program may have drawn numbers between iter() and next().
            now = states_of(self._generators)
            if not all(map(torch.equal, self._former, now)):
                self.generator_states = now
        if left is None:
            number, first = max((n_planned, n_keys), self._end)
            size = self._size()
        else:
            number, first, size = left
        if self.n_states and isinstance(source, IteratedKeys):
            source.open()
            source.draw(first)
            if source.n_drawn == first and self.is_stateful and first not in self._states:
                self._states[first] = self._state()
                if len(self._states) > self.n_states:
                    del self._states[next(iter(self._states))]
        keys = source.take(first, first + size)
        if len(keys) < (size if self._drops else 1):
            raise StopIteration
        size = len(keys)
        if not self._cuts:
            if self._lists and not hasattr(keys[0], "__len__"):
                keys = source.list_first()
            keys = int(keys[0]) if type(keys) is np.ndarray else keys[0]
        return number, first, size, keys if self.rows is None else _named(keys, self.rows)

    def seeds(self, example_seed: tuple[int, int], number: int, first: int, keys: Any) -> bytes:
        """The seeds of a batch's examples: by seed and number of the epoch, number of an example's
        key in it, of all ranks together, and the example's number in that key. How the keys are cut
        into batches makes no difference."""
        n_ranks, rank = self._ranks
        rows = np.arange(len(keys) if self._cuts or self._lists else 1, dtype=np.int64)
        if self._cuts:
            places, within = (first + rows) * n_ranks + rank, np.zeros_like(rows)
        else:
            places, within = np.full_like(rows, first * n_ranks + rank), rows
        return example_seeds(example_seed, places, within).tobytes()

    def row_seed(self, example_seed: tuple[int, int]) -> tuple[int, int]:
        """The seed of the epoch's examples on this rank."""
        base, number = example_seed
        return base % 2**64, number + (self._ranks[1] << 32)

    def origin(self, number: int, first: int) -> tuple[int, int]:
        """An epoch, and the number to which the random numbers of a batch's first example belong,
        which has ``first`` keys before it; those that follow have the next numbers."""
        return 0, first << 32 if self._lists else first  # one key has many then

    def _size(self) -> int:
        """The keys of the next batch."""
        if self.cutter is None:
            # As torch's iterator, which reads drop_last with its first batch.
            batches = self._batches if self._cuts else SimpleNamespace(batch_size=1)
            self._drops = self._cuts and batches.drop_last
            self.cutter = batches
            if self._drops and _reads_size_once():
                self.cutter = SimpleNamespace(batch_size=batches.batch_size)
        size = int(self.cutter.batch_size)
        if size < 1:
            raise ValueError(f"batch_size of the batch sampler is {size}: it must be positive")
        return size

    def order_after(self, number: int) -> npt.NDArray[np.int64] | int | None:
        """The order that the keys of all batches after this one are parts of; None if they have to
        be drawn."""
        if self.rows is not None or number + 1 < self._end[0]:
            return None
        order: npt.NDArray[np.int64] | int | None = self._source.order
        return order

    @property
    def has_order(self) -> bool:
        """Whether the keys are parts of an order, as far as it does not change."""
        return isinstance(self._source, OrderKeys) and self.rows is None

    @property
    def has_begun(self) -> bool:
        """Whether the sampler has drawn its seed, or was interrupted in it."""
        return bool(self._source.n_drawn or self._source.is_cut_off)

    @property
    def is_stateful(self) -> bool:
        return is_stateful(self._sampler) or is_stateful(self._source.iterator)

    def _state(self) -> dict[str, Any]:
        owners = self._sampler, self._source.iterator
        return dict(zip(_STATES, map(state_if_any, owners), strict=True))

    def state(self, place: tuple[int, int], pending: list[tuple[int, int, int]]) -> dict[str, Any]:
        """The state from which to go on, if of the batches planned up to a place these were not
        delivered: number of each, keys before it, and its keys."""
        source = self._source
        left = sorted(pending) + [one for one in self._left if one[0] >= place[0]]
        end = max(self._end, place)
        while left and left[-1][0] == end[0] - 1:
            end = left.pop()[:2]
        number, key = min([*(one[:2] for one in left), end])
        if key not in self._states:  # the sampler is at the place, or draws its keys again
            number, key = min((number, key), place)
        self._states = {n: state for n, state in self._states.items() if n >= key}
        return {
            **(self._states[key] if key in self._states else self._state()),
            "_sampler_iter_yielded": number,
            "_keys_yielded": key,
            "_keys_drawn": source.n_drawn,
            "_delivered_up_to": list(end),
            "_not_delivered": [list(one) for one in left],
            "_batch_size": self._batch_size(),
            "_cuts": self._cuts_before(end),
            # whether a sampler with a state has given no key after these
            "_has_ended": self.is_stateful and source.has_ended and source.n_drawn <= key,
            **self._changes,
        }

    def _batch_size(self) -> int | None:
        return int(self._batches.batch_size) if self._cuts else None

    def _cuts_before(self, end: tuple[int, int]) -> list[int]:
        """The place after which all batches before ``end`` have the present size."""
        since, size = self._cut_since, self._batch_size() or 1
        n_short = (end[0] - since[0]) * size - (end[1] - since[1])  # of the last one
        return list(since if 0 <= n_short < size else end)
