"""What both ways to fetch have in common: the sampler, its random numbers, and the end."""

from __future__ import annotations

import collections
import contextlib
import itertools
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import dataloader as torch_dataloader

from fastiter._fetch.dataset_access import epochs_of
from fastiter._order.plan import DeliveringIterator, Plan
from fastiter._util.failures import capture
from fastiter.torch._plans import Delivered, Planned, Plans
from fastiter.torch._sources import fetched
from fastiter.torch._state import (
    Resume,
    draws_globally,
    epoch_of,
    generators_of,
    is_stateful,
    set_states,
    state_if_any,
    states_of,
)

if TYPE_CHECKING:
    from fastiter._fetch.epoch_rows import EpochRows
    from fastiter.torch._loader import DataLoader


class Kept:
    """What a loader keeps of its last iteration."""

    def __init__(self) -> None:
        self.iterator: weakref.ref[LoaderIterator] | None = None
        self.state: dict[str, Any] | None = None  # where the iteration was left


class IndexBatches:
    """The keys of torch's own batch sampler over all examples, in order or shuffled, without a
    Python object for each: int64 arrays, by the number of the batch, in the order that the
    sampler's iterator would give. What an interrupt cuts short can be asked for again.
    """

    order: npt.NDArray[np.int64] | None = None  #: of all examples, once it has been drawn

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._has_ended = False
        self._before: dict[str, torch.Tensor] = {}

    def __getitem__(self, number: int) -> npt.NDArray[np.int64]:
        if self.order is None:  # now, when the sampler's iterator would draw its seed
            self.order = self._draw(self._sampler.sampler)
        size = self._sampler.batch_size
        keys = self.order[number * size : (number + 1) * size]
        if len(keys) < size and not self._has_ended:
            inner: Any = self._sampler.sampler
            if type(inner) is RandomSampler and inner.generator is not None:
                # torch's iterator draws another order at its end, of which it takes nothing.
                self._rewind("end", inner.generator)
                torch.randperm(len(inner.data_source), generator=inner.generator)
            self._has_ended = True
        if len(keys) < (size if self._sampler.drop_last else 1):
            raise IndexError(number)
        return keys

    def _draw(self, sampler: Any) -> npt.NDArray[np.int64]:
        n = len(sampler.data_source)
        if type(sampler) is SequentialSampler:
            return np.arange(n, dtype=np.int64)
        generator = sampler.generator
        self._rewind("order", torch.default_generator if generator is None else generator)
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
        order: npt.NDArray[np.int64] = torch.randperm(n, generator=generator).numpy()
        return order

    def _rewind(self, step: str, generator: torch.Generator) -> None:
        """Set a generator back to where it was before this step, if that was interrupted."""
        generator.set_state(self._before.setdefault(step, generator.get_state()))


def _faster(keys: Iterator[Any], sampler: Any) -> Iterator[Any] | IndexBatches:
    """The sampler's iterator, which has given nothing yet, or what has the same keys faster, as
    arrays in place of lists."""
    if type(sampler) is BatchSampler:
        inner: Any = sampler.sampler
        if type(inner) is SequentialSampler or (
            type(inner) is RandomSampler
            and not inner.replacement
            and inner.num_samples == len(inner.data_source)
        ):
            return IndexBatches(sampler)
    return keys


def _named(keys: Any, rows: EpochRows) -> Any:
    if isinstance(keys, np.ndarray):
        return rows.named(keys)
    if isinstance(keys, (int, np.integer)):
        return int(rows.named(np.array(keys)))
    if type(keys) is not list:
        return keys
    if all(type(key) is int for key in keys):
        return rows.named(np.array(keys, np.int64)).tolist()
    return [_named(key, rows) for key in keys]


def _epoch_rows(dataset: Any) -> EpochRows | None:
    """The rows that a dataset has now, of one that has others in each epoch: workers may have a
    copy from before."""
    epochs = epochs_of(dataset)
    return None if epochs is None else epochs.rows_of(epochs.epoch)


class Keys:
    """Draws the sampler's keys, one batch's at a time, and knows the sampler's state.

    Batches have numbers, in the order of the sampler; not all are delivered in this order.

    Parameters
    ----------
    sampler, keys : the sampler, and its iterator or `IndexBatches`.
    main : dict, optional
        What `state` has returned, if the iterator goes on from there. Keys of batches that were
        delivered before are left out.
    rows : EpochRows, optional
        What gives the indices that tell the epoch.
    """

    def __init__(
        self,
        sampler: Any,
        keys: Any,
        main: dict[str, Any] | None = None,
        rows: EpochRows | None = None,
    ) -> None:
        self._sampler, self._keys, self._rows = sampler, keys, rows
        self.first = 0 if main is None else main["_sampler_iter_yielded"]
        self._end = 0 if main is None else main["_delivered_up_to"]
        self._left = [] if main is None else main["_not_delivered"]
        self.keeps_states = False  # whether `state` will be called with batches that were drawn
        self._states: dict[int, dict[str, Any]] = {}  # by the number of batches drawn
        nothing: tuple[int, Any] = (self.first - 1, None)
        self._drawn = collections.deque([nothing], 1)  # the last one

    def draw(self, n_planned: int) -> tuple[int, Any]:
        """Number and keys of the batch that follows when `n_planned` are planned. The same ones
        again, until that batch is planned."""
        while True:
            number, keys = self._drawn[0]
            if number >= n_planned and (number >= self._end or number in self._left):
                return number, keys if self._rows is None else _named(keys, self._rows)
            if isinstance(self._keys, IndexBatches):
                number = max(number + 1, n_planned)  # those before may be planned by `order_after`
                try:
                    self._drawn.append((number, self._keys[number]))
                except IndexError:
                    raise StopIteration from None
                continue
            if self.keeps_states:
                self._states[number + 1] = self._state()
            # One step, in which no signal handler runs but in the sampler itself.
            self._drawn.extend(zip([number + 1], map(next, [self._keys]), strict=False))
            if self._drawn[0][0] == number:
                raise StopIteration

    def order_after(self, number: int) -> npt.NDArray[np.int64] | None:
        """The order that has the keys of all batches after this one, as its parts; None if they
        have to be drawn."""
        keys = self._keys
        if not isinstance(keys, IndexBatches) or self._rows is not None or number + 1 < self._end:
            return None
        return keys.order

    @property
    def has_begun(self) -> bool:
        """Whether the sampler has drawn its seed."""
        return self._drawn[0][0] >= 0

    @property
    def is_stateful(self) -> bool:
        return is_stateful(self._sampler) or is_stateful(self._keys)

    def _state(self) -> dict[str, Any]:
        return {
            "_index_sampler_state": state_if_any(self._sampler),
            "_sampler_iter_state": state_if_any(self._keys),
        }

    def state(self, n_planned: int, pending: list[int]) -> dict[str, Any]:
        """Where to go on, if these batches of those that were planned were not delivered."""
        left = sorted(pending) + [number for number in self._left if number >= n_planned]
        end = max(self._end, n_planned)
        while left and left[-1] == end - 1:
            end = left.pop()
        start = min([*left, end, n_planned])
        self._states = {n: state for n, state in self._states.items() if n >= start}
        return {
            **(self._states[start] if start in self._states else self._state()),
            "_sampler_iter_yielded": start,
            "_delivered_up_to": end,
            "_not_delivered": left,
        }


class LoaderIterator(DeliveringIterator, torch_dataloader._BaseDataLoaderIter):
    """One iteration over a `DataLoader`: draws the sampler's keys in torch's order, and delivers
    the batches that a subclass makes.

    ``next()`` changes nothing before the batch is delivered, and all at once then, so that a call
    which is interrupted can be made again, or the state be saved.

    Parameters
    ----------
    loader : DataLoader
    resume : Resume or None
        The state to continue from.
    """

    _plans: Plans  # made by the subclass
    _sampler_iter: Any
    _dataset: Any

    def __init__(self, loader: DataLoader[Any], resume: Resume | None) -> None:
        self._generators = generators_of(loader)
        self._draws_globally = draws_globally(loader)
        former = torch.get_rng_state()
        if resume is not None:  # so that what is drawn now is what was drawn then
            set_states(self._generators, resume.main["_generator_states"])
        self._generator_states = states_of(self._generators)
        self._sampler_epoch = epoch_of(loader.sampler)
        super().__init__(loader)
        self._dataset = fetched(loader) if self._dataset is loader.dataset else self._dataset
        # Workers that persist have the base seed of their first epoch.
        self._is_reset = resume is not None and resume.main["_is_reset"]
        if resume is not None and self._is_reset:
            self._base_seed = resume.main["_base_seed"]
            set_states(self._generators, self._generator_states)
        keys = _faster(self._sampler_iter, self._index_sampler)
        if resume is not None:
            keys = self._loaded_keys(keys, resume.main, resume.is_finished)
        self._sampler_iter = Keys(
            self._index_sampler, keys, resume and resume.main, _epoch_rows(self._dataset)
        )
        self._kept = loader._kept
        self._is_iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
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
        self._sampler_iter = Keys(self._index_sampler, keys, None, _epoch_rows(self._dataset))
        if self._example_seed is not None:
            self._example_seed = self._example_seed[0], self._example_seed[1] + 1

    @property
    def _num_yielded(self) -> int:
        return self._plans.progress.n_yielded

    @_num_yielded.setter
    def _num_yielded(self, value: int) -> None:
        """Set by torch's class where an epoch begins, as `Plans.begin` does."""

    @property
    def _finished(self) -> bool:
        return self._plans.state.is_finished

    def _planned(self, resume: Resume | None) -> Planned:
        """Where the plans of an epoch begin."""
        n_workers = self._plans.n_workers
        place = Planned(self._sampler_iter.first, n_made=(0,) * n_workers)
        if resume is None:
            return place
        place = place._replace(is_finished=resume.is_finished)
        if resume.n_workers != n_workers:
            return place
        n_made = tuple(resume.batches_by_worker(n_workers))
        return place._replace(last_worker=resume.last_worker, n_made=n_made)

    # ---- batches

    def _made(self) -> tuple[Plans, Any]:
        if _profiler_enabled():
            with record_function(self._profile_name):
                return self._plans, self._next_batch()
        return self._plans, self._next_batch()

    def _next_batch(self) -> Any:
        """The batch of the first plan, or its `Failure`, with which the plan can be delivered."""
        plans = self._plans
        while True:
            plan = plans.peek()
            if plan.indices is None:
                if plan.error is None and not self._persistent_workers:
                    self.close()
                return None
            if self._is_closed:
                raise StopIteration
            if plan.outcome is None:
                plan = self._fetch(plan)
            before = plans.progress
            found = self._read(plan, before)
            if found is None:
                plans.deliver()
                continue
            plan.progress, batch = found
            if plan.progress is not before and self._is_iterable:
                told = capture(self._compare_length, plan.progress.n_yielded)
                batch = batch if told is None else told
            return batch

    def _fetch(self, plan: Plan) -> Plan:
        """Return this plan, the first one, or one that has become the first, with its outcome."""
        raise NotImplementedError

    def _read(self, plan: Plan, before: Delivered) -> tuple[Delivered, Any] | None:
        """The batch of a plan's outcome, or a `Failure`, and the progress with it; None if it has
        no batch. Calling it again gives the same."""
        raise NotImplementedError

    def _compare_length(self, n_yielded: int) -> None:
        """Warn, as torch does, of a dataset that gives more than it has said."""
        length = self._IterableDataset_len_called
        if length is None or n_yielded <= length:
            return
        text = (
            f"Length of IterableDataset {self._dataset} was reported to be {length}"
            f"(when accessing len(dataloader)), but {n_yielded} samples have been fetched. "
        )
        if self._num_workers > 0:
            text += (
                "For multiprocessing data-loading, this could be caused by not properly "
                "configuring the IterableDataset replica at each worker. Please see "
                "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset "
                "for examples."
            )
        warnings.warn(text, stacklevel=5)  # the line of the loop

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was delivered last."""
        raise NotImplementedError

    def close(self) -> None:
        """End what works for the iteration."""

    @property
    def _is_closed(self) -> bool:
        """Whether `close` was called."""
        return False

    def __del__(self) -> None:
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):  # not even begun
                self._kept.state = self.state_dict()
            self.close()

    # ---- state

    def _sampler_state(self, delivered: Plan | None = None) -> dict[str, Any]:
        """Where the sampler is after what was delivered, and ``delivered``."""
        keys, plans = self._sampler_iter, self._plans
        return {
            **keys.state(plans.planned.position, plans.pending(delivered)),
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_generator_states": self._generator_states,
            "_has_begun": keys.has_begun,
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
            rest: list[Any] = []
            if is_finished:  # at its end it may draw once more, of which nothing comes
                rest = [*keys]
            elif main["_has_begun"] and n_drawn == 0:
                rest = list(itertools.islice(keys, 1))
            if not isinstance(keys, IndexBatches):  # else all are still there
                keys = itertools.chain(rest, keys)
        return keys

    def _load(self, resume: Resume) -> None:
        main = resume.main
        self._IterableDataset_len_called = main["_IterableDataset_len_called"]
        self._shared_seed = main["_shared_seed"]
        if self._example_seed is not None and main["_example_seed"] is not None:
            self._example_seed = tuple(main["_example_seed"])
