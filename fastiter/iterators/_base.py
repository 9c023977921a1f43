"""The base class of the iterators.

The way of ``next()``: `PlannedIterator._make` takes the plan of the next batch, and has an executor
make the batch; then `Loop` delivers it.
"""

from __future__ import annotations

import copy
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from fastiter._device.cupy import leak_after_fork
from fastiter._engine.caller import CallerExecutor, StreamExecutor
from fastiter._engine.chainer_state import as_records, exchange
from fastiter._engine.executor import Executor
from fastiter._engine.loop import Loop
from fastiter._fetch.dataset_access import keeps_rows, row_groups_of, tokens_of
from fastiter._fetch.seeded import seed_generators
from fastiter._order.plan import TAILS
from fastiter._plan.epoch_sampler import Cutting, EpochSampler, is_epoch_sampler, words_of
from fastiter._plan.epoch_store import EpochStore
from fastiter._plan.epochs import Planner, dataset_length, initial_state
from fastiter._plan.missing import snapshot_of_records
from fastiter._plan.record import packed, record_of, snapshot_of
from fastiter._plan.seed import seed_of
from fastiter._plan.state import SkipState, Snapshot
from fastiter._stats.autotune import Tuner
from fastiter._util.arguments import checked_choice, checked_flag, checked_int
from fastiter._util.concurrency import renew_in_child
from fastiter._util.context import Self
from fastiter._util.failures import AllSkipped, Failure
from fastiter._util.ranks import iterator_ranks
from fastiter.iterators import _arguments, _skips
from fastiter.iterators._addresses import Preview, SkippingPlanner, checked_ranges
from fastiter.iterators._arguments import Rank, SeedExamples, Tail
from fastiter.iterators._batch_maker import BatchMaker, concat_of
from fastiter.iterators._properties import IteratorProperties
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError, SkipPolicy
from fastiter.iterators._stream import StreamPlanner
from fastiter.iterators._tables import arrow_source, is_stream
from fastiter.iterators.samplers.block import BlockShuffleOrderSampler
from fastiter.iterators.samplers.epochs import sampler_of_epochs
from fastiter.iterators.samplers.shuffle import ShuffleOrderSampler

if TYPE_CHECKING:
    from fastiter._engine.device_stage import DeviceStage
    from fastiter.iterators._stream_parts import PartStore


class PlannedIterator(Loop, IteratorProperties):
    """Base of the iterators: arguments, epochs, snapshots, copies and pickles.

    The methods before ``__iter__`` are what a subclass overrides; the parameters are those of
    `SerialIterator`.
    """

    #: False if an iterator stays closed after `finalize`, so that it cannot be reset or loaded.
    _REOPENABLE: ClassVar[bool] = True
    #: Whether the caller makes the batches, without workers.
    _is_serial = True

    @_arguments.names_counterparts
    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        repeat: bool = True,
        shuffle: bool | None = None,
        order_sampler: Callable[[Any, int], Any] | None = None,
        *,
        converter: Callable[[Any, Any], Any] | None = None,
        device: Any = None,
        on_error: OnError = "raise",
        skip_limit: float | None = DEFAULT_LIMIT,
        drop_last: bool = False,
        batch_sampler: EpochSampler | Callable[[int], Any] | None = None,
        rank: Rank = None,
        num_ranks: Rank = None,
        tail: Tail = "pad",
        skip_steps: Sequence[tuple[int, int]] = (),
        seed_examples: SeedExamples = False,
        in_order: bool = True,
    ) -> None:
        has_shards = is_stream(dataset)
        if has_shards:
            _arguments.check_of_stream(shuffle, order_sampler, batch_sampler, skip_steps)
            shuffle = False
        else:
            sees_examples = converter is not None and concat_of(converter) is None
            dataset = _arguments.checked_dataset(arrow_source(dataset, sees_examples, frames=True))
        self._dataset = dataset
        self._in_order = checked_flag("in_order", in_order)
        self._repeat = checked_flag("repeat", repeat)
        self._batch_sampler = batch_sampler
        self._batch_size, drop_last, batches = _arguments.checked_cuts(
            batch_size, batch_sampler, drop_last, shuffle, order_sampler
        )
        self._shuffle, self._order_sampler = _arguments.checked_order(shuffle, order_sampler)
        # What gives each epoch: an order sampler, or the batch sampler. None: the dataset's order.
        self._sampler, counted = batches, dataset
        if batches is None:
            self._sampler = sampler_of_epochs(dataset, self._order_sampler, self._shuffle)
            if self._sampler is not self._order_sampler:
                counted = ()  # rows of epochs are counted as they are read
        if self._sampler is None and self._shuffle is not False:
            self._sampler = self._order_sampler = ShuffleOrderSampler()
        rank, num_ranks = iterator_ranks(rank, num_ranks)
        if num_ranks > 1:
            _arguments.check_same_on_ranks(self._sampler)
        self._converter = _arguments.checked_converter(converter, device)
        self._device = device
        self._on_error, self._skip_limit = _skips.checked(on_error, skip_limit)
        self._policy = None if on_error == "raise" else SkipPolicy(on_error, self._skip_limit)
        self._seed_examples = seed_examples
        self._dataset_len = functools.partial(dataset_length, counted)
        cutting: dict[str, Any] = {
            "batch_size": self._batch_size or 1,
            "repeat": self._repeat,
            "rank": rank,
            "num_ranks": num_ranks,
            "drop_last": drop_last,
            "tail": checked_choice("tail", tail, TAILS),
            "seeds_examples": seed_examples is not False,
            "progress": None if self._policy is None else SkipState(),
        }
        if has_shards:
            seed = _arguments.seed_of_stream(dataset, seed_examples)
            self._planner: Planner = StreamPlanner(dataset, seed=seed, **cutting)
            if self._policy is not None:
                self._planner.policy = _skips.ShardPolicy(on_error, self._skip_limit)
            self._open()
            return
        seed = seed_of(self._sampler, num_ranks)
        if _arguments.checked_seed_examples(seed_examples, self._sampler):
            seed = words_of(seed_examples)
        ranges = checked_ranges(skip_steps)
        cuttings = () if batches is None else (Cutting(0, num_ranks, batches.limits()),)
        self._planner = (SkippingPlanner if ranges else Planner)(
            initial_state(self._sampler, self._dataset_len, cuttings),
            order_sampler=self._sampler,
            dataset_len=self._dataset_len,
            seed=seed,
            **cutting,
        )
        if isinstance(self._planner, SkippingPlanner):
            self._planner.skip(ranges)
        if not self._planner.n_steps(self._planner.state.cuts, 0, self._first_rows()):
            cause = "drop_last=True" if drop_last else f"tail={tail!r}"
            raise ValueError(
                f"an epoch of {self._epoch_size} examples has no batch: {cause} leaves all of them "
                f"out with batch_size={batch_size} for {num_ranks} rank(s)"
            )
        self._open()

    def _open(self) -> None:
        kept = {*self.__dict__}
        self._init_runtime()
        store = self._planner.parts_for(self._seeding)
        if store is None:
            self._stage = None if self._is_serial else self._new_stage()
            self._executor = self._caller_executor() if self._is_serial else self._new_executor()
        else:
            self._stage = self._tuner = None
            inner = self._caller_executor() if self._is_serial else self._part_executor(store)
            is_seeded = self._seeding is not None
            stream = StreamExecutor(inner, store.queue, self._batch_maker, is_seeded)
            self._executor = cast(Executor, stream)
            self._planner.attach(store)
        self._runtime = self.__dict__.keys() - kept  # names that copies and pickles leave out
        renew_in_child(self)

    def _init_runtime(self) -> None:
        """Set the attributes that belong to this object and process alone: pools, locks, clocks.

        Called by the constructor, in copies and in unpickled objects. All other attributes go into
        copies and pickles.
        """
        self._prepare(self._is_serial)
        self._epochs = EpochStore()
        sampler = self._sampler
        if is_epoch_sampler(sampler) and sampler.draws_ahead:
            self._planner.epochs = self._epochs
        also = self._seed_examples if callable(self._seed_examples) else None
        seeding = functools.partial(seed_generators, also=also)
        self._seeding = None if self._seed_examples is False else seeding
        self._batch_maker = BatchMaker(self._dataset, self._converter, self._device, self._seeding)
        most = self._auto_settings()
        self._tuner = Tuner(most) if most else None
        tokens = tokens_of(self._dataset)
        self._count_tokens = None if tokens is None else lambda plan: tokens(plan.indices)
        self._row_groups = row_groups_of(self._dataset)
        if self._row_groups is not None:
            self._n_decoded = self._row_groups.n_decoded  # before this iterator
            self._row_groups.keep_for(self._block_window(), self)
        self._pid = os.getpid()
        self._finalized = False
        # The threads that began a loop since the start, a reset or a load.
        self._loops: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def _auto_settings(self) -> dict[str, int]:
        """The settings that are 'auto', and the most of each."""
        return {}

    def _caller_executor(self) -> CallerExecutor:
        is_seeded = self._seeding is not None
        return CallerExecutor(self._batch_maker, self._policy, is_seeded, self._seed)

    def _new_executor(self) -> Executor:
        """Make the executor whose workers make the batches."""
        raise NotImplementedError

    def _new_stage(self) -> DeviceStage | None:
        """Make the stage that copies batches to a GPU; None if the executor sends them itself."""
        raise NotImplementedError

    def _part_executor(self, store: PartStore) -> Executor:
        """Make the executor whose workers read the parts of a `StreamDataset`."""
        raise NotImplementedError

    def _block_window(self) -> int | None:
        """Blocks of rows that the order goes through at a time; None if it has no blocks."""
        if self._sampler is None:
            return 1
        is_by_block = isinstance(self._sampler, BlockShuffleOrderSampler)
        return self._sampler.window if is_by_block else None

    def _after_fork(self) -> None:
        self._pid = os.getpid()
        super()._after_fork()
        self._executor.after_fork(self._lock)
        if self._batch_maker.is_on_gpu:
            self._leak_copies()
        self._planner.rewind()  # threads, processes and copies are the parent's

    def _leak_copies(self) -> None:
        leak_after_fork(*(plan.outcome for plan in list(self._planner.plans)))

    # -- iteration ---------------------------------------------------------------------------

    def __iter__(self) -> Self:
        """Return the iterator itself, `reset` if its iteration has ended (``repeat=False``).

        So each ``for`` is an epoch, and a ``for`` after a ``break`` continues. The first ``for`` in
        a thread, and after a state was loaded, takes the rest, even an empty one: threads may share
        an epoch. `list`, `zip` and `itertools.islice` count as a ``for``.
        """
        self._begin_loop()
        return self

    def _begin_loop(self, *, each_is_an_epoch: bool = False) -> None:
        """Reset the iteration if the ``for`` that begins now has to begin an epoch.

        ``each_is_an_epoch`` is the rule of `as_torch`: any batch delivered since the start, a reset
        or a load is enough for that, also if the loop that took it was left early.
        """
        if self._repeat or self._finalized:
            return
        thread = threading.current_thread()  # an ident would be used again by a later thread
        if each_is_an_epoch or thread in self._loops:
            with self._lock:
                if self._planner.state.epoch > 0 or (each_is_an_epoch and self._planner.is_begun):
                    self.reset()
        self._loops.add(thread)

    def next(self) -> Any:
        """Return the next batch; the same as ``next(iterator)``, and as each turn of a ``for``.

        Ctrl-C in a ``for`` loop loses no batch: it comes before the batch is delivered, and the
        next call returns the same one, or when the loop has it.

        Returns
        -------
        list or object
            The examples, an exact list; with a converter, what the converter returns.

        Raises
        ------
        StopIteration
            At the end of the iteration, without ``repeat``.
        RuntimeError
            After `finalize`; and where this thread is in ``next()`` already, as a callable that
            the iterator calls is, and a signal handler may be. There `reset`, `seek` and loading a
            state raise it, too.
        Exception
            Exceptions of the dataset, the order sampler or the converter. After a dataset's or
            converter's error the next call continues with the following batch, after an order
            sampler's it tries the same batch again. With ``on_error`` examples that fail may be
            skipped instead; more failures than ``skip_limit`` are a `SkipLimitError`.
        """
        return self.__next__()

    def _make(self, passes_over: bool = True) -> Any:
        if self._finalized:
            raise RuntimeError(
                f"this {type(self).__name__} is closed (finalized) and gives no more batches: "
                + ("call reset(), or " if self._REOPENABLE else "")
                + "make a new one, or a copy, which continues from here: copy.copy(iterator)"
            )
        planner = self._planner
        plan, n_passed = planner.peek(), 0
        while (indices := plan.indices) is not None:
            if self._tuner is not None:
                self._tuner.tune(self._executor, self.stats)
            if self._stage is not None:
                batch = self._stage.batch_of(self._executor, planner, plan)
            else:
                if plan.outcome is None:
                    plan = self._executor.make(planner, plan)
                batch = plan.outcome
            if type(batch) is not AllSkipped or not passes_over:
                return batch
            if planner.num_ranks > 1:  # which stay in step
                batch = plan.outcome = _skips.batch_of_none(batch, self._converter is not None)
                return batch
            n_passed += len(indices)
            if n_passed >= planner.n_examples():
                return _skips.nothing_left(n_passed, batch)
            self._pass_over()
            batch.clear()
            plan = planner.peek()
        return None

    def _peek(self) -> Any:
        """Make the batch that the next call of ``next()`` returns, and return it; None if it fails,
        or at the end. Runs under the lock."""
        batch = None if self._finalized else self._make_ahead()
        return None if isinstance(batch, Failure) else batch

    def _most_rows(self) -> int:
        """Examples that a batch of the current epoch has at most, and later ones if all are cut
        by one size."""
        cuts, size = self._planner.state.cuts, self._batch_size
        if cuts is not None:
            return int(np.diff(cuts).max())
        assert size is not None
        is_endless = self._repeat and not self._planner.drop_last
        return size if is_endless else min(size, self._first_rows())

    def _first_rows(self) -> int:
        """Examples of the current epoch, or at least those of two steps."""
        state = self._planner.state
        return self._planner.counted(state.order, 0, state.epoch_size)

    def __len__(self) -> int:
        """Batches of this rank in the current epoch, the short one at its end included."""
        self._refuse_of_stream("len()")
        state = self._planner.state
        return self._planner.n_steps(state.cuts, 0, state.whole_size)

    def reset(self) -> None:
        """Go back to the start of the first epoch, with a new order."""
        self._refuse_inside_next("reset()")
        with self._lock:
            self._check_reopenable("reset")
            state = self._planner.after_reset()
            skips = self._planner.progress
            if skips is not None:  # the limit counts anew, the list stays
                skips = skips._replace(epoch=0, n_skipped=0)
            seed = self._planner.seed_after_reset()
            self._go_on_from(Snapshot(state, seed, skips, state.anchor))

    def finalize(self) -> None:
        """End the iteration and release threads, processes and memory, in bounded time.

        Batches already delivered stay valid. May be called in any state and any number of times.
        ``close`` is the same. `reset`, `seek` and a loaded state open the iterator again; of a kind
        that cannot be reopened they raise NotImplementedError.
        """
        if "_executor" not in self.__dict__:
            return  # the constructor failed before there was anything to release
        self._finalized = True
        if self._pid != os.getpid():
            # A forked child that still has its parent's locks, whose holders do not exist there. A
            # thread's locals, and garbage, are deleted before any handler of the fork has run.
            if self._batch_maker.is_on_gpu:
                self._leak_copies()
            return
        self._executor.interrupt()
        self._executor.close()
        self._planner.close()
        self._planner.rewind()
        self._epochs.clear()
        self._batch_maker.close()
        if self._row_groups is not None:
            self._row_groups.leave(self)

    def close(self) -> None:
        """End the iteration; the same as `finalize`."""
        self.finalize()

    def __del__(self, _exits: Callable[[], bool] = sys.is_finalizing) -> None:
        # When the interpreter is taken down its exit handlers have ended all workers and threads,
        # and the globals of modules may be None.
        if not _exits():
            self.finalize()

    # -- snapshots, copies, pickles ----------------------------------------------------------

    def serialize(self, serializer: Callable[[str, Any], Any]) -> None:
        """Save the iteration's state to, or load it from, a serializer of Chainer's protocol.

        The state is the one after the batch delivered last, whatever was fetched ahead. Snapshots
        of all kinds of iterators, Chainer's included, load into each other.

        Parameters
        ----------
        serializer : callable
            Callable, called as ``serializer(key, value)`` with the keys current_position, epoch,
            is_new_epoch, order, previous_epoch_detail, example_seed and cuts; -1 stands where
            None would. With a sampler that has a seed also order_sampler, with ``on_error``
            also skipped.

        Raises
        ------
        ValueError
            On loading, if the values cannot be a state of this iterator, which then stays as it
            is; on saving, if batches have overtaken others (``in_order=False``): use `state_dict`.
        """
        with self._lock:
            record = exchange(serializer, self._planner)
            if record is not None:
                loaded = snapshot_of(record, self._planner, strict=True)
                self._refuse_inside_next("loading a snapshot")
                self._check_reopenable("loading a snapshot")
                self._go_on_from(loaded)

    def state_dict(self) -> dict[str, Any]:
        """Return the iteration's state as a dict, for `load_state_dict`.

        It has the values that `serialize` saves, in plain types, which JSON and ``torch.load``
        take. With a sampler that has a seed, or without an order, they are a few numbers whatever
        the dataset's size; otherwise they include the order, as a text.
        """
        with self._lock:
            return packed(record_of(self._planner))

    def load_state_dict(
        self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True
    ) -> None:
        """Go back to a state that `state_dict` has returned, or `serialize` saved.

        Parameters
        ----------
        state_dict : dict, or list of dict
            The state. With ranks, the state of any rank; with ``in_order=False`` the state of the
            same rank, or the list of all ranks' states, for another batch size or other ranks.
        strict : bool
            False: the dataset may have grown since. The current epoch ends with the examples it
            began with, later epochs have all. Weights, mixtures and batch samplers are made for
            the examples that there were, and raise; so does a `TokenDataset` that fits documents
            into rows, whose rows are others then.

        Raises
        ------
        ValueError
            If it cannot be a state of this iterator, which then stays as it is.
        """
        self._refuse_inside_next("load_state_dict()")
        with self._lock:
            loaded = snapshot_of_records(as_records(state_dict), self._planner, strict=strict)
            if loaded.former_size is not None and not keeps_rows(self._dataset):
                raise ValueError(
                    f"the state is of {loaded.former_size} rows, and this "
                    f"{type(self._dataset).__qualname__} has {self._dataset_len()}, packed anew: "
                    "those behind the position would have other tokens. Load the state before the "
                    "dataset grows, or pack by packing='concat'"
                )
            self._check_reopenable("loading a snapshot")
            self._go_on_from(loaded)

    def seek(self, step: int) -> None:
        """Go to a step, so that the next batch is the one that `batch_at` describes.

        Raises
        ------
        LookupError, ValueError
            As `batch_at`.
        """
        self._refuse_inside_next("seek()")
        self._refuse_of_stream("seek()")
        step = checked_int("step", step, minimum=0)
        with self._lock:
            self._check_reopenable("seek()")
            preview = Preview(self._planner, self.rank, self._epochs)
            state = preview.after(step)
            anchors = preview.anchors_of(state)
            self._go_on_from(self._planner.snapshot()._replace(state=state, anchor=anchors[-1][0]))
            self._planner.anchors = anchors

    def _go_on_from(self, snapshot: Snapshot) -> None:
        begun = self._planner.begun_work()
        self._planner.go_on_from(snapshot)
        self._executor.seed = self._planner.seed
        self._epochs.clear()
        self._executor.drop(begun)
        self._loops.clear()
        self._timer.pause()
        self._finalized = False

    def __copy__(self) -> Self:
        """Copy the iterator: same dataset and sampler, same batches to come, on its own."""
        other = type(self).__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            left_out = {*self._runtime, "_runtime"}
            state = {k: v for k, v in self.__dict__.items() if k not in left_out}
            # Taken now: what is pickled later must not see batches delivered in between.
            state["_planner"] = copy.copy(self._planner)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._planner = state["_planner"]
        self.__dict__.update({k: v for k, v in state.items() if k != "_planner"})
        self._open()

    def _check_reopenable(self, action: str) -> None:
        if self._finalized and not self._REOPENABLE:
            raise NotImplementedError(
                f"{action} is not supported after finalize() of a {type(self).__name__}; "
                "make a new iterator or a copy"
            )
