"""What both ways to fetch have in common: the sampler, its random numbers, and the end."""

from __future__ import annotations

import collections
import itertools
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import _profiler_enabled
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import dataloader as torch_dataloader

from fastiter.torch._state import (
    Resume,
    epoch_of,
    generators_of,
    is_stateful,
    set_states,
    state_if_any,
    states_of,
)

if TYPE_CHECKING:
    from fastiter.torch._loader import DataLoader


MOST_ROWS = 1 << 16  # of a batch that is made from columns


def index_array(keys: Any, most: int) -> npt.NDArray[np.int64] | None:
    """The keys of a batch as dataset indices; None if they are no list of Python's integers."""
    if type(keys) is np.ndarray:
        return keys
    if type(keys) is not list or not 0 < len(keys) <= most or set(map(type, keys)) != {int}:
        return None
    try:
        return np.array(keys, np.int64)
    except OverflowError:
        return None


class Kept:
    """What a loader keeps of its last iteration."""

    def __init__(self) -> None:
        self.iterator: weakref.ref[LoaderIterator] | None = None
        self.state: dict[str, Any] | None = None  # where the iteration was left


class IndexBatches:
    """The keys of torch's own batch sampler over all examples, in order or shuffled, without a
    Python object for each: int64 arrays, with the order that its iterator would give."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._order: npt.NDArray[np.int64] | None = None
        self._start = 0
        self._has_ended = False

    def __iter__(self) -> IndexBatches:
        return self

    def __next__(self) -> npt.NDArray[np.int64]:
        if self._order is None:  # now, when the sampler's iterator would draw its seed
            self._order = self._draw(self._sampler.sampler)
        keys = self._order[self._start : self._start + self._sampler.batch_size]
        self._start += self._sampler.batch_size
        if len(keys) < self._sampler.batch_size and not self._has_ended:
            self._has_ended = True
            inner: Any = self._sampler.sampler
            if type(inner) is RandomSampler and inner.generator is not None:
                # torch's iterator draws another order at its end, of which it takes nothing.
                torch.randperm(len(inner.data_source), generator=inner.generator)
        if len(keys) < (self._sampler.batch_size if self._sampler.drop_last else 1):
            raise StopIteration
        return keys

    @staticmethod
    def _draw(sampler: Any) -> npt.NDArray[np.int64]:
        n = len(sampler.data_source)
        if type(sampler) is SequentialSampler:
            return np.arange(n, dtype=np.int64)
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order: npt.NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
        return order


def _faster(keys: Any, sampler: Any) -> Any:
    """The sampler's iterator, which has given nothing yet, or one that gives the same keys faster,
    as arrays in place of lists."""
    if type(sampler) is BatchSampler:
        inner: Any = sampler.sampler
        if type(inner) is SequentialSampler or (
            type(inner) is RandomSampler
            and not inner.replacement
            and inner.num_samples == len(inner.data_source)
        ):
            return IndexBatches(sampler)
    return keys


class Keys:
    """Draws the sampler's keys, one batch's at a time, and knows the sampler's state.

    Batches have numbers, in the order of the sampler; not all are delivered in this order.

    Parameters
    ----------
    sampler, keys : the sampler, and its iterator.
    main : dict, optional
        What `state` has returned, if the iterator goes on from there. Keys of batches that were
        delivered before are left out.
    """

    def __init__(self, sampler: Any, keys: Any, main: dict[str, Any] | None = None) -> None:
        self._sampler, self._keys = sampler, keys
        self.n_drawn = 0 if main is None else main["_sampler_iter_yielded"]
        self._end = 0 if main is None else main["_delivered_up_to"]
        self._left = [] if main is None else main["_not_delivered"]
        self.keeps_states = False  # whether `state` will be called with batches that were drawn
        self._states: dict[int, dict[str, Any]] = {}  # by the number of batches drawn

    def __next__(self) -> Any:
        while True:
            if self.keeps_states:
                self._states[self.n_drawn] = self._state()
            keys = next(self._keys)
            self.n_drawn += 1
            if self.n_drawn > self._end or self.n_drawn - 1 in self._left:
                return keys

    @property
    def is_stateful(self) -> bool:
        return is_stateful(self._sampler) or is_stateful(self._keys)

    def _state(self) -> dict[str, Any]:
        return {
            "_index_sampler_state": state_if_any(self._sampler),
            "_sampler_iter_state": state_if_any(self._keys),
        }

    def state(self, pending: list[int]) -> dict[str, Any]:
        """Where to go on, if these batches were not delivered, whose keys were drawn."""
        left = sorted(pending) + [number for number in self._left if number >= self.n_drawn]
        end = max(self._end, self.n_drawn)
        while left and left[-1] == end - 1:
            end = left.pop()
        start = min([*left, end, self.n_drawn])
        self._states = {n: state for n, state in self._states.items() if n >= start}
        return {
            **(self._states[start] if start in self._states else self._state()),
            "_sampler_iter_yielded": start,
            "_delivered_up_to": end,
            "_not_delivered": left,
        }


class LoaderIterator(torch_dataloader._BaseDataLoaderIter):
    """One iteration over a `DataLoader`: draws the sampler's keys in torch's order.

    Parameters
    ----------
    loader : DataLoader
    resume : Resume or None
        The state to continue from.
    """

    _sampler_iter: Any

    def __init__(self, loader: DataLoader[Any], resume: Resume | None) -> None:
        self._generators = generators_of(loader)
        self._draws_globally = loader.generator is None
        former = torch.get_rng_state()
        if resume is not None:  # so that what is drawn now is what was drawn then
            set_states(self._generators, resume.main["_generator_states"])
        self._generator_states = states_of(self._generators)
        self._sampler_epoch = epoch_of(loader.sampler)
        super().__init__(loader)
        # Workers that persist have the base seed of their first epoch.
        self._is_reset = resume is not None and resume.main["_is_reset"]
        if resume is not None and self._is_reset:
            self._base_seed = resume.main["_base_seed"]
            set_states(self._generators, self._generator_states)
        keys = _faster(self._sampler_iter, self._index_sampler)
        if resume is not None:
            keys = self._loaded_keys(keys, resume.main, resume.is_finished)
        self._sampler_iter = Keys(self._index_sampler, keys, resume and resume.main)
        self._kept = loader._kept
        self._is_iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        self._finished = False
        self._example_seed = (self._base_seed, 0) if loader.seed_examples else None
        if resume is not None:
            self._load(resume)
            if self._draws_globally:  # so does the program
                torch.set_rng_state(former)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._generator_states = states_of(self._generators)
        self._sampler_epoch = epoch_of(loader.sampler)
        super()._reset(loader, first_iter)
        self._is_reset = True
        keys = _faster(self._sampler_iter, self._index_sampler)
        self._sampler_iter = Keys(self._index_sampler, keys)
        self._finished = False
        if self._example_seed is not None:
            self._example_seed = self._example_seed[0], self._example_seed[1] + 1

    def __next__(self) -> Any:
        try:
            if self._is_iterable or _profiler_enabled():
                return super().__next__()
            data = self._next_data()
        except StopIteration:
            self._finished = True
            raise
        self._num_yielded += 1
        return data

    def _sampler_state(self, pending: list[int]) -> dict[str, Any]:
        """Where the sampler is, if these batches were not delivered."""
        return {
            **self._sampler_iter.state(pending),
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_generator_states": self._generator_states,
            "_has_begun": self._sampler_iter.n_drawn > 0,  # so the sampler has drawn its seed
            "_sampler_epoch": self._sampler_epoch,
            "_base_seed": self._base_seed,
            "_is_reset": self._is_reset,
            "_example_seed": self._example_seed,
        }

    def _loaded_keys(self, keys: Any, main: dict[str, Any], is_finished: bool) -> Any:
        """The sampler's iterator, gone on to where it was saved."""
        sampler: Any = self._index_sampler
        n_drawn = main["_sampler_iter_yielded"]
        if is_stateful(sampler) or is_stateful(keys):
            if is_stateful(sampler):
                sampler.load_state_dict(main["_index_sampler_state"])
            keys = iter(sampler)
            if main["_sampler_iter_state"] is not None:
                keys.load_state_dict(main["_sampler_iter_state"])
        elif self._dataset_kind != torch_dataloader._DatasetKind.Iterable:
            # Now, since a sampler draws its seed with its first key, and what is loaded later, such
            # as a dataset's state, may set the generator.
            collections.deque(itertools.islice(keys, n_drawn), maxlen=0)
            if is_finished:  # at its end it may draw once more, of which nothing comes
                keys = iter([*keys])
            if main["_has_begun"] and n_drawn == 0:
                first = list(itertools.islice(keys, 1))
                keys = itertools.chain(first, keys)
        return keys

    def _load(self, resume: Resume) -> None:
        main = resume.main
        self._finished = resume.is_finished
        self._num_yielded = resume.n_yielded
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        self._shared_seed = main["_shared_seed"]
        if self._example_seed is not None and main["_example_seed"] is not None:
            self._example_seed = tuple(main["_example_seed"])
