"""Common parts of both ways to fetch: the sampler, its random numbers, and the end."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function
from torch.utils.data import BatchSampler, _utils
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data.graph_settings import apply_random_seed

from fastiter._engine.executor import Executor
from fastiter._engine.loop import Loop
from fastiter._fetch.dataset_access import offered, tokens_of
from fastiter._order.plan import Plan
from fastiter._plan.state import Skipped, SkipState
from fastiter._util.concurrency import renew_in_child
from fastiter._util.failures import AllSkipped, Failure, capture
from fastiter.iterators._skips import batch_of_none
from fastiter.torch._batches.columns import fetched
from fastiter.torch._changes import facts_of
from fastiter.torch._device.copies import DeviceCopies
from fastiter.torch._examples import KeyPolicy
from fastiter.torch._keys import SamplerKeys, epoch_rows, keys_of
from fastiter.torch._orders.keys import EpochKeys
from fastiter.torch._plans import Delivered, PlanCounts, Plans, asks_state, index_array
from fastiter.torch._state import (
    DEFAULTS,
    Resume,
    drawn_from,
    epoch_of,
    generators_of,
    is_own,
    is_torchs,
    length_of,
    packed,
    program_state,
    set_states,
    states_of,
)

#: Parts of torch's iterators: functions, and classes of functions.
_PARTS: list[tuple[Any, str]] = [
    (torch_dataloader, "_SingleProcessDataLoaderIter"),
    (torch_dataloader, "_MultiProcessingDataLoaderIter"),
    (torch_dataloader._DatasetKind, "create_fetcher"),
    (torch_dataloader.DataLoader, "_get_iterator"),
    (_utils.fetch, "_MapDatasetFetcher"),
    (_utils.fetch, "_IterableDatasetFetcher"),
    (_utils.worker, "_worker_loop"),
]
_torchs_own: list[Any] = []  # these parts and what the classes hold, once all were torch's


class LoaderIterator(Loop, torch_dataloader._BaseDataLoaderIter):
    """One iteration over a `DataLoader`, from a state if there is one: draws the sampler's keys in
    torch's order, and delivers the batches that a subclass makes.

    ``next()`` changes nothing before the batch is delivered, and all at once then, so that a call
    which is interrupted can be made again, or the state be saved.
    """

    _planner: Plans  # made by the subclass, as the executor is
    _executor: Executor
    _sampler_iter: Any
    _shared_seed: int | None
    _dataset: Any
    _is_closed = False  # whether `close` was called

    _next_data: Any = Loop.__next__  # as torch's `__next__` calls it

    def __init__(self, loader: Any, resume: Resume | None) -> None:
        self._prepare(is_serial=loader.num_workers == 0)
        _follow_torchs_next()
        renew_in_child(self)
        self._take_settings(loader)
        main = None if resume is None else resume.main
        programs = [torch.default_generator] if (resume or self._owner) is not None else []
        of_program = states_of(programs)
        if main is not None:  # so that what is drawn now is what was drawn then
            set_states(self._generators, main["_generator_states"])
        self._generator_states = states_of(self._generators)
        self._sampler_epoch = self._epoch_of(loader)
        self._open(loader, main)
        self._take_dataset(loader)
        if self._owner is not None and loader.generator is None:
            set_states(programs, of_program)
            self._base_epoch = self._owner.epoch if main is None else main["_base_epoch"]
            self._base_seed = self._owner.base_seed(self._base_epoch)
        self._example_seed = self._base_seed, 0
        self._sampler_iter = self._keys_of(main)
        self._begin_count(resume)
        if resume is None:
            return
        set_states(self._generators, resume.main["_key_states"] or [])
        self._sampler_iter.load(resume.main, resume.is_finished, self._is_iterable)
        self._IterableDataset_len_called = resume.main["_IterableDataset_len_called"]
        self._shared_seed = resume.main["_shared_seed"]
        if resume.main["_example_seed"] is not None:
            self._example_seed = tuple(resume.main["_example_seed"])
        if self._draws_globally:  # so does the program
            set_states(programs, of_program)

    def _take_settings(self, loader: Any) -> None:
        self._iterations = loader._iterations
        self._last_iteration = loader._last_iteration
        self._counted = self._iterations.begin(self)
        own = loader._own_arguments
        self._returns_indices = own.return_indices
        self._seeds_examples = own.seed_examples
        self._copies = DeviceCopies.of(own)
        decides = own.on_error != "raise"
        self._policy = KeyPolicy(own.on_error, own.skip_limit) if decides else None
        self._owner = loader._owner
        self._generators = generators_of(loader)
        self._draws_globally = torch.default_generator in self._generators
        self._facts = self._facts_of(loader)

    def _take_dataset(self, loader: Any) -> None:
        """Note what is known of the dataset, which torch's class may have replaced."""
        self._is_iterable = self._dataset_kind == torch_dataloader._DatasetKind.Iterable
        self._dataset = fetched(loader) if self._dataset is loader.dataset else self._dataset
        if (tokens := tokens_of(self._dataset)) is not None:
            self._count_tokens = functools.partial(_tokens_in, tokens, self._auto_collation)

    def _open(self, loader: Any, main: dict[str, Any] | None) -> None:
        """Open the sampler, and draw the base seed, in the order in which torch's iterators do it,
        or did it when the state was saved."""
        moved, opened = self._move_opening(loader, main)
        super().__init__(loader)
        kind = "MultiProcessing" if loader.num_workers else "SingleProcess"
        self._profile_name = f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"  # as torch's
        is_early = moved and opened is None  # torch's class has opened it
        if is_early:
            set_states(self._generators, self._generator_states)
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        # Workers that persist have the base seed of their first epoch.
        self._is_reset = main is not None and main["_is_reset"]
        if main is not None and self._is_reset:
            self._base_seed = main["_base_seed"]
            set_states(self._generators, self._generator_states)
        is_again = loader.num_workers > 0 if main is None else main["_opens_again"]
        self._opens_again = is_again and self._owner is None
        keeps_reset = is_unchanged(torch_dataloader._BaseDataLoaderIter._reset)
        if main is None and self._opens_again and self._shared_seed is None and keeps_reset:
            # The sampler is opened again for the first key, when the workers have been started.
            self._sampler_iter, self._num_yielded = None, 0
        elif (self._opens_again or self._is_reset) and not is_early:
            seed = self._shared_seed  # which workers have, as torch's, that start before
            super()._reset(loader, True)
            self._shared_seed = seed
            if seed is not None:
                generator = torch.Generator().manual_seed(seed)
                self._dataset = apply_random_seed(self._dataset, generator)
            opened = None if opened is None else iter(drawn_from(self._index_sampler))
        if opened is not None:
            self._sampler_iter = opened

    def _move_opening(self, loader: Any, main: dict[str, Any] | None) -> tuple[bool, Any]:
        """Whether the resumed iteration made the sampler's iterator at another step than this one:
        without batches before the base seed is drawn, with batches for the first key. A sampler may
        draw as its iterator is made. And this iterator, if it has to be made now; else None."""
        index_sampler = loader._index_sampler
        sampler, is_first = drawn_from(index_sampler), type(index_sampler) is not BatchSampler
        if main is None or self._owner is not None or is_torchs(sampler):
            return False, None
        main.setdefault("_opens_first", main["_batch_size"] is None)
        moved = main["_opens_first"] is not is_first and main["_index_sampler_state"] is None
        return moved, iter(sampler) if moved and not is_first else None

    def _epoch_of(self, loader: Any) -> int | None:
        return None if self._owner is not None else epoch_of(drawn_from(loader._index_sampler))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        _follow_torchs_next()
        self._owner = loader._owner
        self._generator_states = states_of(self._generators)
        self._sampler_epoch = self._epoch_of(loader)
        super()._reset(loader, first_iter)
        self._is_reset, self._opens_again = True, False
        self._facts = self._facts_of(loader)
        self._sampler_iter = self._keys_of(None)
        self._last_iteration.skips = self._planner.progress.skips
        self._begin_count(None)
        self._example_seed = self._example_seed[0], self._example_seed[1] + 1

    def _begin_count(self, resume: Resume | None) -> None:
        """Begin to count the examples of an epoch, and those that are skipped."""
        self.epoch = self._iterations.count(None if resume is None else resume.epoch)
        n_counted = self._timer.examples + self._timer.skipped
        self._position_before = self._sampler_iter.first[1] - n_counted
        self._skips: SkipState | None = None
        if (policy := self._policy) is not None:
            self._skips = self._last_iteration.skips or SkipState()
            sampler = drawn_from(self._index_sampler)
            size = length_of(sampler) if self._owner is None else self._owner.n_examples
            if sampler is self._index_sampler and self._owner is None and self._auto_collation:
                # A batch sampler of the program's is not asked for its batches.
                each = offered(sampler, "batch_size")
                size = size * each if size and type(each) is int else length_of(self._dataset)
            policy.epoch, policy.size = self.epoch, size or 0
            policy.is_batch, policy.rows = self._auto_collation, self._sampler_iter.rows
            self._stays_in_step = getattr(sampler, "num_replicas", 1) > 1

    def _keys_of(self, main: dict[str, Any] | None) -> Any:
        sampler, generators, batched = self._index_sampler, self._generators, self._auto_collation
        iterator, rows = self._sampler_iter, epoch_rows(self._dataset)
        if self._owner is not None:
            if self._first_yielded:
                raise RuntimeError(
                    f"{self._first_yielded} batches were drawn from this iterator by other code, "
                    "of which fastiter's samplers know nothing: load a state_dict() of the loader"
                )
            return EpochKeys(self._owner, sampler, batched, self._seeds_examples, rows)
        moved = 0 if main is not None or self._is_iterable else self._first_yielded
        return SamplerKeys(sampler, iterator, generators, main, rows, moved, batched)

    def _set_seeds(self) -> None:
        """Tell the plans the seeds of the epoch's examples."""
        plans, keys = self._planner, self._sampler_iter
        plans.example_seed = self._example_seed if self._seeds_examples else None
        plans.row_seed = self._executor.seed = keys.row_seed(self._example_seed)
        plans.is_stream = self._is_iterable

    def _facts_of(self, loader: Any) -> dict[str, Any] | None:
        """Facts known about the epoch when it begins. Samplers that are not torch's may take long
        to count their keys: their length is taken with the state."""
        known = is_torchs(drawn_from(loader._index_sampler))
        return facts_of(loader, generators=self._generators) if known else None

    @property
    def _num_yielded(self) -> int:
        return self._planner.progress.n_yielded

    @_num_yielded.setter
    def _num_yielded(self, value: int) -> None:
        """Set by torch's class where an epoch begins, to 0. A library may have changed that class:
        SpeechBrain's draws batches from `_sampler_iter` first, and sets their number."""
        self._first_yielded = value

    @property
    def _finished(self) -> bool:
        return self._planner.state.is_finished

    def _planned(self, resume: Resume | None) -> PlanCounts:
        """The place where the plans of an epoch begin."""
        n_workers = self._planner.n_workers
        position, n_keys = self._sampler_iter.first
        place = PlanCounts(position, n_made=(0,) * n_workers, n_keys=n_keys)
        if resume is None:
            return place
        place = place._replace(is_finished=resume.is_finished)
        if not self._is_iterable and resume.n_workers != n_workers:
            return place
        n_made = tuple(resume.keys_by_worker(n_workers))
        return place._replace(last_worker=resume.last_worker, n_made=n_made)

    # ---- batches

    def _make(self) -> Any:
        if _profiler_enabled():
            with record_function(self._profile_name):
                return self._next_batch()
        return self._next_batch()

    def _next_batch(self) -> Any:
        """The batch of the first plan, or its `Failure`, with which the plan can be delivered."""
        plans = self._planner
        if self._owner is not None and not self._sampler_iter.has_begun:
            self._take_epoch()
        while True:
            plan = plans.peek()
            if plan.indices is None:
                if plan.error is None and self._owner is not None:
                    self._owner.end(self._sampler_iter)
                if plan.error is None and not self._persistent_workers:
                    self.close()
                return None
            if self._is_closed:
                raise StopIteration
            if plan.outcome is None:
                plan = self._fetch(plan)
            if self._copies is not None:
                self._copy_ahead()
            before = plans.progress
            if self._policy is not None:
                plan = self._decide(plan)
                if plan.outcome is None:
                    continue
                dropped = plan.progress.dropped if plan.n_dropped else ()
                skips = plan.progress.skips
                if skips is not before.skips or dropped != before.dropped:
                    before = before._replace(skips=skips, dropped=dropped)
            if (found := self._read(plan, before)) is None:
                plans.deliver()
                continue
            plan.progress, batch = found
            if self._policy is not None and type(batch) is AllSkipped:
                if not self._stays_in_step:
                    self._pass_over()
                    batch.clear()
                    continue
                batch = plan.outcome = batch_of_none(batch, True)
            if self._is_iterable and plan.progress is not before:
                told = capture(self._compare_length, plan.progress.n_yielded)
                batch = batch if told is None else told
            if self._copies is not None and type(batch) is not Failure:
                batch = capture(self._copies.hand_out, batch)
            if self._returns_indices and type(batch) is not Failure:
                batch = batch, self._keys_of_rows(plan, True)
            return batch

    def _take_epoch(self) -> None:
        """Take the number of an epoch of fastiter's sampler. If the sampler has gone on since
        batches were planned, they are planned again. An interrupted call can be made again."""
        while True:
            keys: Any = self._sampler_iter
            is_planned = self._planner.keys is keys
            if is_planned and keys.take():
                return
            self._sampler_iter = self._keys_of(None)
            self._planner.epoch += 1
            self._executor.drop([])
            self._begin(None)

    def _begin(self, resume: Resume | None) -> None:
        """Begin an epoch, or continue a loaded one."""
        raise NotImplementedError

    def _fetch(self, plan: Plan) -> Plan:
        """Return this first plan, or a plan that has become the first, with its outcome."""
        return self._executor.make(self._planner, plan)

    def _copy_ahead(self) -> None:
        """Have batches copied to the device that are complete before their turn."""

    def _decide(self, plan: Plan) -> Plan:
        """Have the policy decide about keys that workers could not fetch. Returns the plan, or one
        in its place that has to be made."""
        return plan

    def _read(self, plan: Plan, before: Delivered) -> tuple[Delivered, Any] | None:
        """The batch of a plan's outcome, or a `Failure`, and the progress with it; None if it has
        no batch. Calling it again gives the same."""
        raise NotImplementedError

    @property
    def indices(self) -> Any:
        """Keys of the batch delivered last; None before it, and for iterable datasets."""
        plan = self._planner.delivered
        if plan is None or self._is_iterable or asks_state(plan):
            return None
        return self._keys_of_rows(plan)

    @property
    def valid(self) -> torch.Tensor | None:
        """For each row of the batch delivered last, whether it is to be counted."""
        plan, owner = self._planner.delivered, self._owner
        if plan is None or owner is None or asks_state(plan):
            return None
        valid, dropped = self._sampler_iter.valid(plan.number), plan.progress.dropped
        return torch.tensor([one for row, one in enumerate(valid) if row not in dropped])

    def _keys_of_rows(self, plan: Plan, as_tensor: bool = False) -> Any:
        rows, dropped = self._sampler_iter.rows, plan.progress.dropped
        return keys_of(plan, self._auto_collation, rows, dropped, as_tensor)

    def skip_state(self) -> SkipState | None:
        """The examples that were skipped, in all iterations."""
        return self._planner.progress.skips

    @property
    def skipped(self) -> list[Skipped]:
        """The keys that were skipped; see `DataLoader.skipped`."""
        skips = self._planner.progress.skips
        return [] if skips is None else [*skips.records.values()]

    # ---- what `fastiter.progress` shows

    @property
    def current_position(self) -> int:
        """Examples of this iteration that were delivered or skipped."""
        return int(self._position_before + self._timer.examples + self._timer.skipped)

    @property
    def _epoch_size(self) -> int | None:
        """Examples of this iteration, if it is known."""
        sampler = self._index_sampler
        is_counted = is_own(sampler, BatchSampler) or not self._auto_collation
        if not self._is_iterable and not is_counted:
            return None
        n = length_of(self._dataset if self._is_iterable else drawn_from(sampler))
        if n is not None and getattr(sampler, "drop_last", False):
            n -= n % sampler.batch_size
        return n

    @property
    def is_new_epoch(self) -> bool:
        return self.current_position == self._epoch_size

    def _compare_length(self, n_yielded: int) -> None:
        """Warn, as torch does, of a dataset that gives more examples than its length."""
        if (length := self._IterableDataset_len_called) is None or n_yielded <= length:
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
        with self._lock:
            return {**packed(self._own_state()), **program_state(self._draws_globally)}

    def _own_state(self) -> dict[str, Any]:
        """The state without that of the program."""
        raise NotImplementedError

    def close(self) -> None:
        """End what works for the iteration."""

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():  # globals of this module may be None then
            with contextlib.suppress(Exception):  # not even begun
                # The program's would wait for ever for the lock of torch's generator, if it is
                # within a call of that one that a garbage collection has come to here.
                self._last_iteration.skips = self._planner.progress.skips
                self._last_iteration.state = self._own_state()
                self._last_iteration.indices = self.indices
                self._last_iteration.valid = self.valid
            self.close()

    # ---- state

    def _sampler_state(self, n_yielded: int, delivered: Plan | None = None) -> dict[str, Any]:
        """Position of the sampler after the delivered batches, ``delivered`` among them."""
        keys, plans, planned = self._sampler_iter, self._planner, self._planner.planned
        place = keys.state((planned.position, planned.n_keys), plans.pending(delivered))
        state = {
            **place,
            "_counted": [n_yielded, place["_sampler_iter_yielded"]],  # a client may change both
            "_IterableDataset_len_called": self._IterableDataset_len_called,
            "_shared_seed": self._shared_seed,
            "_generator_states": self._generator_states,
            "_key_states": keys.generator_states,
            "_has_begun": keys.has_begun,
            "_sampler_epoch": self._sampler_epoch,
            "_base_seed": self._base_seed,
            "_is_reset": self._is_reset,
            "_opens_again": self._opens_again,
            "_example_seed": list(self._example_seed),
        }
        if self._owner is None:
            return state
        if not self._generators:
            state |= {"_base_epoch": self._base_epoch, "_base_seed": None}
        state |= {"_example_seed": None, "_has_begun": True}
        return {k: value for k, value in state.items() if DEFAULTS.get(k, self) != value}

    def _skips_state(self) -> dict[str, Any]:
        """Entry of a state: number of the iteration, and the examples that were skipped."""
        skips = self._planner.progress.skips
        found = {} if skips is None else {"_skipped": skips.saved()}
        return {"_epoch": self.epoch, **found}

    def _fetch_again(self, resume: Resume | None) -> None:
        """Fetch the batches again that were delivered after the datasets' state was taken."""
        if resume is None or not resume.n_more:
            return
        plans = self._planner
        skips = plans.progress.skips  # those of these batches are in it already
        plans.progress = plans.progress._replace(skips=skips and SkipState())
        for _ in range(resume.n_more):
            self._next_data()
        plans.progress = plans.progress._replace(skips=skips)


def is_unchanged(function: Any, module: Any = torch_dataloader) -> bool:
    """Whether no program has replaced a function of torch's iterators, or of another module."""
    return getattr(function, "__globals__", None) is vars(module)


def replaced_part() -> str | None:
    """Change that a program has made to torch's iterators, as Axolotl's fetcher; None: none."""
    global _torchs_own
    parts = [getattr(owner, name) for owner, name in _PARTS]
    found = [*parts, *(one for part in parts if type(part) is type for one in vars(part).values())]
    if found == _torchs_own:
        return None
    for (owner, name), part in zip(_PARTS, parts, strict=True):
        module = sys.modules[getattr(owner, "__module__", owner.__name__)]
        functions = [getattr(part, one) for one in vars(part)] if type(part) is type else [part]
        if not all(is_unchanged(one, module) for one in functions if callable(one)):
            return f"the program has replaced {owner.__name__}.{name}, or a part of it"
    _torchs_own = found
    return None


def _follow_torchs_next() -> None:
    """Have all iterators' ``next()`` be the function that a program has put in the place of that of
    torch's iterators, as InfoBatch and profilers do; fastiter's own, if there is none."""
    found: Any = torch_dataloader._BaseDataLoaderIter.__next__
    wanted: Any = Loop.__next__ if is_unchanged(found) else found
    if LoaderIterator.__next__ is not wanted:
        LoaderIterator.__next__ = wanted  # type: ignore[method-assign]


def _tokens_in(tokens: Callable[[Any], int], is_batch: bool, plan: Plan) -> int:
    """The tokens of a batch's rows; 0 if its keys are no integers."""
    keys = keys_of(plan, is_batch, None)
    rows = index_array(keys if is_batch else [keys], sys.maxsize)
    return 0 if rows is None else tokens(rows)
