"""Loaders of torch over a `StreamDataset`: shards that workers read, in the order of the stream."""

from __future__ import annotations

import contextlib
import copy
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import _utils

from fastiter._plan.state import SkipState
from fastiter.iterators.multiprocess import MultiprocessIterator
from fastiter.torch._device.copies import DeviceCopies
from fastiter.torch._state import LastIteration


def check_order(**given: Any) -> None:
    """Refuse the arguments shuffle, sampler and batch_sampler: a stream has an order."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise ValueError(
                f"{name} needs a dataset with indices: a StreamDataset shuffles by its own seed= "
                "and window="
            )


def check_arguments(loader: Any) -> None:
    """Raise the ValueError or TypeError of arguments that have no effect on a stream."""
    if loader.timeout:
        raise ValueError(
            f"timeout={loader.timeout} limits the time of a batch, which workers of a "
            "StreamDataset do not make: limit that of an example by dataset_timeout="
        )
    if not loader._has_state():
        raise ValueError(
            f"multiprocessing_context={loader.multiprocessing_context!r} is none of "
            "multiprocessing's, whose workers a StreamDataset needs"
        )
    own = loader._own_arguments
    if own.return_indices:
        raise ValueError("return_indices=True needs indices, which a StreamDataset has not")
    StreamIteration(loader).finalize()
    if own.dataset_timeout is not None and not loader.num_workers:
        loader._check_shared_rows(f"dataset_timeout={own.dataset_timeout}")


def begin(loader: Any) -> StreamIteration:
    """The loop over the next epoch of a loader, or over the rest of a loaded one."""
    state, is_loaded = current_state(loader), loader._loaded is not None
    made = StreamIteration(loader)
    if state is not None:
        made.go_on_from(state)
        if not is_loaded:
            made.reset()
    loader._loaded = None
    loader._last_iteration = made.last
    made.last.iterator = weakref.ref(made)
    made.count(loader)
    return made


def current_state(loader: Any) -> dict[str, Any] | None:
    """The state of a loader, of the loop that was begun last; None before the first."""
    own = loader._own_iterator()
    found: dict[str, Any] | None = loader._last_iteration.state or loader._loaded
    return found if own is None else own.state_dict()


def state_of(loader: Any) -> dict[str, Any]:
    return current_state(loader) or StreamIteration(loader).state_dict()


def load(loader: Any, state: dict[str, Any] | Sequence[dict[str, Any]], strict: bool) -> None:
    """Have the next loop go on from a state; those of several ranks are equal. ValueError if it is
    of another stream, or of a loader without a stream; the loader stays as it is then."""
    loaded = StreamIteration(loader)
    if not isinstance(state, Mapping):
        if not state or any(other != state[0] for other in state):
            raise ValueError("states of the ranks of a StreamDataset differ, or are none: pass one")
        state = state[0]
    if state:
        loaded.go_on_from(state, strict)
    loader._iterator = None
    loader._last_iteration = LastIteration(loaded.skip_state() if state else None)
    loader._loaded = copy.deepcopy(state) or None


def length_of(loader: Any) -> int:
    """Number of this rank's batches in an epoch; TypeError without lengths of the shards."""
    stream: Any = loader.dataset
    lengths: list[int] | None = stream.lengths
    if lengths is None:
        raise TypeError(
            "a StreamDataset without lengths= has no length: its shards are read until they end"
        )
    return StreamIteration(loader)._planner.n_steps(None, 0, sum(lengths))


class Collation:
    """Makes a batch of a loader from examples."""

    def __init__(self, loader: Any) -> None:
        self._collate_fn = loader.collate_fn
        self._is_batch = loader.batch_size is not None
        self._pins = loader.pin_memory and torch.cuda.is_available()
        self._pin_memory_device = loader.pin_memory_device
        self._copies = DeviceCopies.of(loader._own_arguments)

    def __call__(self, examples: list[Any]) -> Any:
        batch = self._collate_fn(examples if self._is_batch else examples[0])
        if self._pins:
            batch = _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
        return batch if self._copies is None else self._copies.hand_out(batch)


class StreamIteration(MultiprocessIterator):
    """One loop over a `DataLoader` of a stream: an epoch of a `MultiprocessIterator`, or of a
    `SerialIterator` without workers, with the loader's arguments."""

    indices = None  #: examples have none

    def __init__(self, loader: Any) -> None:
        self.last = LastIteration()
        self._persists = loader.persistent_workers
        own = loader._own_arguments
        n_workers, factor = loader.num_workers, loader.prefetch_factor
        super().__init__(
            loader.dataset,
            loader.batch_size or 1,
            repeat=False,
            n_processes=n_workers,
            n_prefetch=n_workers * factor if n_workers and factor else None,
            converter=Collation(loader),  # type: ignore[arg-type] # takes no device
            on_error=own.on_error,
            skip_limit=own.skip_limit,
            dataset_timeout=own.dataset_timeout,
            on_timeout=own.on_timeout,
            n_retries=own.n_retries,
            hedge=own.hedge,
            drop_last=loader.drop_last,
            seed_examples=bool(own.seed_examples),
            worker_init=loader.worker_init_fn,
            context=loader.multiprocessing_context,
            rank=loader._ranks[0],
            num_ranks=loader._ranks[1],
            tail=loader._ranks[2],
        )

    def count(self, loader: Any) -> None:
        """Have the loader's statistics count this loop."""
        begun = loader._iterations.begin(self)
        if self._n_processes:
            begun.executor = self._executor

    def __iter__(self) -> StreamIteration:
        return self  # which ends once

    def __len__(self) -> int:
        raise TypeError("take the length of the loader")

    @property
    def _finished(self) -> bool:
        """Whether the loop was told of the end, by which nothing changes but this share."""
        state = self._planner.state
        return state.epoch > 0 and state.previous_epoch_detail == state.epoch_detail

    @property
    def valid(self) -> Any:
        """Whether each row of the last batch is to be counted: a bool tensor."""
        found = super().valid
        return None if found is None else torch.from_numpy(found)

    def skip_state(self) -> SkipState | None:
        return self._planner.progress  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was delivered last."""
        return {"_stream": super().state_dict()}

    def go_on_from(self, state: dict[str, Any], strict: bool = True) -> None:
        """Go on from what `state_dict` of a loader has returned."""
        if "_stream" not in state:
            raise ValueError(
                "state_dict was saved by a loader whose dataset is no StreamDataset: pass the "
                "dataset of the loader that has saved it"
            )
        self.load_state_dict(state["_stream"], strict)

    def _make(self, passes_over: bool = True) -> Any:
        batch = super()._make(passes_over)
        if batch is None and not self._persists:  # the end, by which torch's workers end, too
            self._executor.close()
        return batch

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self.reset()

    _shutdown_workers = MultiprocessIterator.finalize  # which programs call on torch's iterator

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _exits():
            with contextlib.suppress(Exception):  # not even begun
                self.last.skips, self.last.state = self.skip_state(), self.state_dict()
            self.finalize()
