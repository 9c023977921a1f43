"""`DataLoader`, the class of torch with fastiter's workers and a state."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import context as contexts
from types import SimpleNamespace
from typing import Any, Literal, TypeVar, cast

import torch.utils.data
from torch.utils.data import BatchSampler, _DatasetKind
from torch.utils.data.dataloader import _InfiniteConstantSampler

from fastiter._fetch.dataset_access import is_stateful, row_groups_of
from fastiter._plan.epoch_sampler import EpochSampler
from fastiter._plan.state import SkipState
from fastiter._stats.autotune import MOST_PREFETCH, first_workers
from fastiter._util.arguments import (
    checked_flag,
    checked_int,
    checked_optional_int,
    checked_seconds,
)
from fastiter._util.cpus import usable_cpus
from fastiter._workers.start_method import SAFE
from fastiter.datasets.stream_dataset import StreamDataset
from fastiter.iterators._arguments import (
    DEFAULT_RETRIES,
    OnTimeout,
    Rank,
    Tail,
    checked_retries,
    checked_share,
)
from fastiter.iterators._skips import DEFAULT_LIMIT, OnError, checked
from fastiter.iterators._tables import table_source
from fastiter.iterators.samplers.block import BlockShuffleOrderSampler
from fastiter.iterators.samplers.shuffle import OrderSampler
from fastiter.torch import _streams
from fastiter.torch._changes import (
    converted,
    cut_size,
    digest_of,
    facts_of,
    facts_of_none,
    values_of,
)
from fastiter.torch._device.copies import checked_device
from fastiter.torch._in_process import InProcessIterator
from fastiter.torch._in_workers import WorkersIterator
from fastiter.torch._iterator import LoaderIterator, is_unchanged, replaced_part
from fastiter.torch._orders.keys import adopted, joined, load_of_loader
from fastiter.torch._orders.places import LoadedRecord
from fastiter.torch._orders.samplers import ranks_of
from fastiter.torch._state import (
    LastIteration,
    Resume,
    copied,
    drawn_from,
    draws_globally,
    epoch_of,
    is_own,
    length_of,
    load_program_state,
    packed,
    program_state,
    unbegun_state,
)
from fastiter.torch._statistics import LoaderReports, shown

#: Arguments for which torch's iterators do nothing, and their defaults.
_NOT_TORCHS = {"on_error": "raise", "seed_examples": False, "return_indices": False} | (
    dict.fromkeys(("dataset_timeout", "hedge", "device"))
)
_T_co = TypeVar("_T_co", covariant=True)
_Function = TypeVar("_Function", bound=Any)
_torchs: Any = torch.utils.data.DataLoader  # whatever its name means later
_torch_context: Any = _torchs.multiprocessing_context


def untraced(function: _Function) -> _Function:
    """Have `torch.compile` leave a function, and what it calls, to Python.

    `torch.compiler.disable` does the same, but imports the tracer, which takes a second.
    """
    function._torchdynamo_disable = True  # as a call in a function that is traced
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "_FrameExecStrategy"):  # not in early versions of torch
        skip = frames._FrameAction.SKIP
        strategy = frames._FrameExecStrategy(skip, skip)
        frames.set_code_exec_strategy(function.__code__, strategy)
    return function


def _leave_files_to_python() -> None:
    """Have the tracer, once it is imported, skip the files of this package, as it does torch's:
    iterators call them from C."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    if hasattr(rules, "add") and not hasattr(rules, "_skips_fastiter"):
        rules.add("fastiter")
        rules._skips_fastiter = True


class DataLoader(LoaderReports, torch.utils.data.DataLoader[_T_co]):
    """torch's `DataLoader`: the same batches, from faster workers, and with a state.

    Arguments, attributes, errors and the shuffle order of a seed are the same as torch's; see
    `torch.utils.data.DataLoader`. A batch's tensors lie in shared memory, where the workers have
    written them: the memory is used again when the last tensor of a batch is gone. A worker that
    dies is replaced, and its batches are made again.

    `state_dict` and `load_state_dict` have the protocol of torchdata's ``StatefulDataLoader``: a
    dataset, sampler or their iterator that has these two methods itself is saved and loaded with
    the loader. Over other map-style datasets a state also loads with another ``num_workers``.

    Attributes of arguments that torch has not, such as ``device``, tell what was given, unless a
    subclass has its own of that name. Setting them changes no batch.

    Parameters
    ----------
    dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, \
drop_last, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, \
persistent_workers, pin_memory_device, in_order
        As in torch; ``dataset`` may also be a `StreamDataset`, which has an order of its own.
        ``multiprocessing_context`` may also be ``'safe'``: a fork server in place of a fork that
        may be unsafe. With ``in_order=False`` and workers, batches come as they are
        complete; a state then records the batches still missing, and after loading those come
        first. ``num_workers='auto'``, for datasets with ``__getitem__`` and no state: begin with
        few, and add or remove workers as `stats` advises; the attribute is the present number, with
        which the next iteration begins. Workers then share the examples of a batch.
    snapshot_every_n_steps : int, optional
        Number of batches between saved states of dataset and sampler; resuming fetches the batches
        since the last save again. 1 by default, and with ``in_order=False``.
    seed_examples : bool, optional
        Whether `random`, NumPy's and torch's global generators are seeded for each example, by the
        epoch and the place of the example in it. A dataset with random transforms then gives the
        same examples with any number of workers, and after resuming, also with another batch size.
        A dataset that fetches batches by ``__getitems__`` is asked for one example at a time.
    on_error : {'raise', 'skip'} or callable, optional
        Treatment of an example that fails, as in `MultiprocessIterator`: its batch comes without
        it. ``on_error(key, exception)`` is called by the loop's thread, and returns 'raise', 'skip'
        or a `Replacement`. Batches of which nothing is left are passed over; with a sampler that
        has ``num_replicas`` above 1, they are a `SkipLimitError`. Errors of ``collate_fn``,
        samplers and ``worker_init_fn`` are raised. See `skipped`.
    skip_limit : int, float or None, optional
        Most examples that an epoch may skip: a number, or a share of the sampler's keys, of one of
        fastiter's those of all ranks, of another batch sampler its length times ``batch_size``, or
        the dataset's examples; more are a `SkipLimitError`.
    dataset_timeout : float, optional
        Seconds that the dataset may take for one example; ``timeout`` limits ``next()``. See
        `MultiprocessIterator` for this and the three after it. With it, or ``hedge``, all workers
        fetch examples of a batch, and the one that completes it calls ``collate_fn``. So
        ``dataset[i]`` must give equal examples in every worker; its ``get_worker_info()`` is that
        of the worker that fetches.
    on_timeout : {'warn', 'retry'}, optional
        Treatment of an example that takes longer: a `TimeoutWarning`; or another worker fetches
        it.
    n_retries : int, optional
        Further attempts with ``on_timeout='retry'``; then the example fails with a
        `DatasetTimeoutError`, which ``on_error`` may skip.
    hedge : float, optional
        Share of the examples that may be fetched a second time, where they are slow.
    device : torch.device, str or int, optional
        Device on which batches are given: their tensors, in dicts, lists and tuples of any depth,
        and objects with ``to()``; other values stay. Of a GPU of CUDA, copies run on a stream of
        the loader's, from pinned memory (``pin_memory=True``): the stream that is current in
        ``next()`` waits for them, and the host does not. None and 'cpu' leave batches on the host.
    n_device_prefetch : int
        Batches that are copied to a GPU ahead of the one that is given, where there are workers.
    rank, num_replicas, tail : optional
        Arguments of `Order`, for a `StreamDataset` or a sampler of fastiter's: ``sampler=`` takes
        an order sampler with a seed, ``batch_sampler=`` one that `Batches` takes. Each loop has the
        next epoch, cut as `SerialIterator` cuts it with ``repeat=False``. The loader's `sampler` or
        `batch_sampler` is an `Order` or `Batches` then. torch's global generator is not drawn from,
        and states are equal on all ranks.
    return_indices : bool, optional
        Whether the loader gives ``(batch, indices)``, for wrappers that read ahead: an int64 tensor
        on the host, or a list of keys that are no integers; without batches one key. See `indices`.

    Raises
    ------
    ValueError, TypeError
        As torch; or if ``seed_examples``, ``return_indices`` or ``on_error`` is set for an
        `IterableDataset`, whose examples have no place and no index, or ``skip_limit`` is a share
        of a sampler without length. If ``dataset_timeout`` or ``hedge`` is set without workers, or
        with a dataset that has a state. If ``shuffle``, ``sampler``, ``batch_sampler``,
        ``timeout``, ``hedge`` or ``return_indices`` is set for a `StreamDataset`.
    RuntimeError
        By the first ``next()`` at the latest, if ``device`` is a GPU and torch finds none.
    """

    _iterator: Any  # of the loop, where it is kept
    _starts_safely = False  # by ``multiprocessing_context='safe'``, which torch does not know
    _is_stream = False  # also where a subclass, as torchdata's, does not call `__init__`

    @untraced
    def __init__(
        self,
        dataset: torch.utils.data.Dataset[_T_co] | StreamDataset,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | OrderSampler | EpochSampler | None = None,
        batch_sampler: Iterable[Any] | EpochSampler | Callable[[int], Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed_examples: bool = False,
        on_error: OnError = "raise",
        skip_limit: float | None = DEFAULT_LIMIT,
        dataset_timeout: float | None = None,
        on_timeout: OnTimeout = "warn",
        n_retries: int = DEFAULT_RETRIES,
        hedge: float | None = None,
        device: Any = None,
        n_device_prefetch: int = 1,
        rank: Rank = None,
        num_replicas: Rank = None,
        tail: Tail = "pad",
        return_indices: bool = False,
    ) -> None:
        # Read from here alone: a subclass may have attributes of these names for other things.
        own = self._own_arguments = SimpleNamespace()
        own.device = checked_device(device)
        own.n_device_prefetch = checked_int(
            "n_device_prefetch", n_device_prefetch, minimum=0, maximum=MOST_PREFETCH
        )
        has_copies = own.device is not None and own.device.type == "cuda"
        if n_device_prefetch != 1 and not has_copies:
            raise ValueError(
                f"n_device_prefetch={n_device_prefetch} counts batches that are copied to a GPU: "
                "set device="
            )
        if has_copies:
            pin_memory = pin_memory or torch.cuda.is_available()
        self._adjusts_workers = isinstance(num_workers, str)
        if isinstance(num_workers, str):
            if num_workers != "auto":
                raise ValueError(f"num_workers must be a number or 'auto', not {num_workers!r:.80}")
            num_workers = first_workers(usable_cpus())
        self._is_stream = isinstance(dataset, StreamDataset)
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if not self._is_stream and not is_iterable:
            dataset = table_source(dataset)
            groups = row_groups_of(dataset)
            if groups is not None and sampler is None and batch_sampler is None:
                groups.keep_for(None if shuffle else 1, self)
            elif groups is not None and isinstance(sampler, BlockShuffleOrderSampler):
                groups.keep_for(sampler.window, self)
        ranks = {"rank": rank, "num_replicas": num_replicas, "tail": tail}
        if self._is_stream:
            self._ranks = (*ranks_of(rank, num_replicas), tail)
            _streams.check_order(shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler)
        else:
            sampler, batch_sampler = adopted(
                dataset, batch_size, sampler, batch_sampler, drop_last, ranks
            )
        # By keyword, and no defaults: the `__init__` of torch's class may be one of the program's.
        given, kept = locals(), _TORCHS_DEFAULTS
        super().__init__(dataset, **{n: given[n] for n in kept if given[n] is not kept[n]})
        self.in_order = in_order
        own.snapshot_every_n_steps = checked_optional_int(
            "snapshot_every_n_steps", snapshot_every_n_steps, minimum=0
        )
        own.seed_examples = checked_flag("seed_examples", seed_examples)
        if own.seed_examples and is_iterable:
            raise ValueError(
                "seed_examples=True needs a dataset with __getitem__, not an IterableDataset: seed "
                "the generators in its __iter__"
            )
        own.on_error, own.skip_limit = checked(on_error, skip_limit)
        if on_error != "raise" and not self._is_stream:
            self._check_skips(is_iterable)
        own.dataset_timeout = checked_seconds("dataset_timeout", dataset_timeout)
        own.on_timeout, own.n_retries = checked_retries(on_timeout, n_retries, own.dataset_timeout)
        own.hedge = checked_share("hedge", hedge)
        for name in ("dataset_timeout", "hedge"):
            if getattr(own, name) is not None and not self._is_stream:
                self._check_shared_rows(f"{name}={getattr(own, name)}")
        if self._adjusts_workers:
            self._check_shared_rows("num_workers='auto'")
        # Whether all workers fetch examples of a batch.
        limits = own.dataset_timeout, own.hedge
        self._shares_rows = self._adjusts_workers or limits != (None, None)
        own.return_indices = checked_flag("return_indices", return_indices)
        if own.return_indices and is_iterable:
            raise ValueError(
                "return_indices=True needs a dataset with __getitem__: the examples of an "
                "IterableDataset have no index"
            )
        for name, value in vars(own).items():
            if name not in vars(self) and not hasattr(type(self), name):
                setattr(self, name, value)
        self._digest: tuple[Any, int, str] | None = None
        self._loaded: dict[str, Any] | None = None  # a state from which the next iteration goes on
        self._loaded_record: LoadedRecord | None = None  # in it, of a sampler of fastiter's
        self._last_iteration = LastIteration()
        if self._is_stream:
            _streams.check_arguments(self)

    def _check_shared_rows(self, what: str) -> None:
        """Refuse an argument that has other workers fetch an example, where they cannot."""
        if not self.num_workers:
            raise ValueError(f"{what} limits the time of workers: set num_workers=1 or more")
        if not self._has_state():
            raise ValueError(f"{what} needs fastiter's workers: leave multiprocessing_context out")
        is_iterable = self._is_stream or self._dataset_kind == _DatasetKind.Iterable
        if is_iterable or is_stateful(self.dataset):
            raise ValueError(
                f"{what} needs a dataset whose examples any worker can fetch, not an "
                "IterableDataset and none with a state_dict()"
            )

    def _check_skips(self, is_iterable: bool) -> None:
        own = self._own_arguments
        if is_iterable:
            raise ValueError(
                f"on_error={own.on_error!r} needs a dataset with __getitem__: an IterableDataset "
                "cannot go on after an exception. Of a fastiter.datasets.StreamDataset, the rest "
                "of a shard that fails is left out"
            )
        sampler = drawn_from(self._index_sampler)
        if isinstance(own.skip_limit, float) and length_of(sampler) is None:
            raise ValueError(
                f"skip_limit={own.skip_limit} is a share of an epoch, but the sampler "
                f"{type(sampler).__name__} has no length: pass a number of examples (an int), or "
                "None for no limit"
            )

    @property
    def multiprocessing_context(self) -> Any:
        """As torch's, or 'safe'."""
        return SAFE if self._starts_safely else _torch_context.__get__(self)

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        is_safe = isinstance(context, str) and context == SAFE
        # torch asks for workers, whatever the context is.
        _torch_context.__set__(self, "spawn" if is_safe else context)
        self._starts_safely = is_safe
        if is_safe:
            _torch_context.__set__(self, None)

    def _get_iterator(self) -> Any:
        """Make an iterator. A subclass may put it into one of its own."""
        made = self._made_iterator()
        if (own := self._own_iterator()) is None or not own._finished:  # by the loaded state
            return made
        if not self.persistent_workers or self.num_workers == 0:
            return self._made_iterator()
        made._reset(self)
        return made

    def _made_iterator(self) -> Any:
        """Make an iterator, from the loaded state if there is one, even of a whole epoch."""
        if self._is_stream:
            return _streams.begin(self)
        self._last_iteration = LastIteration(self._skips())
        if not self._has_state():
            return super()._get_iterator()
        self._refuse_moved()
        resume = None
        if self._loaded is not None:  # the dataset may have changed since
            resume = Resume.of(converted(self._loaded, self, self._is_strict, is_again=True))
        if self.num_workers == 0:
            made: LoaderIterator = InProcessIterator(self, resume)
        else:
            if not self._adjusts_workers:
                self.check_worker_number_rationality()
            made = WorkersIterator(self, resume)
        if (record := self._loaded_record) is None or record.is_finished:  # else until it has begun
            self._loaded = None  # not if it was refused
        self._last_iteration.iterator = weakref.ref(made)
        return made

    def _refuse_moved(self) -> None:
        """Drop a loaded state, if the sampler has gone on to another epoch since."""
        owner, record = self._owner, self._loaded_record
        is_open = record is not None and not record.is_finished
        if is_open and (owner is None or owner._loaded is not record):
            self._loaded = self._loaded_record = None

    @shown
    def set_epoch(self) -> Callable[[int], None]:
        """As `Order.set_epoch`; only with a sampler of fastiter's."""
        if (owner := self._owner) is None:
            raise AttributeError("set_epoch() needs a sampler of fastiter's: call the sampler's")
        return owner.set_epoch

    def _has_state(self) -> bool:
        """Whether the iterators are fastiter's."""
        return self._why_torchs() is None

    def _why_torchs(self) -> str | None:
        """Why torch's own iterators make the batches, if they do. Other contexts than those of
        multiprocessing may start workers that are no processes, or no children of this one, and a
        sampler of a subclass may cut an `IterableDataset` in any way. What a program has put into
        torch's iterators counts, unless arguments need fastiter's."""
        context, own = self.multiprocessing_context, vars(self._own_arguments)
        is_known = context is None or type(context).__module__ == contexts.__name__
        if not is_known and context is not SAFE:
            return (
                f"multiprocessing_context={context!r} is not one of multiprocessing's. Pass "
                "'fork', 'spawn' or 'forkserver', or no context"
            )
        if self._dataset_kind == _DatasetKind.Iterable:
            sampler = self._index_sampler
            is_plain = not self._auto_collation or is_own(sampler, BatchSampler)
            if not is_plain or type(drawn_from(sampler)) is not _InfiniteConstantSampler:
                return (
                    "its sampler or batch_sampler for an IterableDataset is not torch's: keep the "
                    "one that batch_size makes"
                )
        needs = self._is_stream or self._adjusts_workers or self._owner is not None
        needs = needs or any(own.get(name, value) != value for name, value in _NOT_TORCHS.items())
        return None if needs else replaced_part()

    def _require_state(self) -> None:
        if (why := self._why_torchs()) is not None:
            raise RuntimeError(
                f"{type(self).__name__} has no state: torch's own iterator makes its batches, "
                f"because {why}"
            )

    def __len__(self) -> int:
        return _streams.length_of(self) if self._is_stream else super().__len__()

    @untraced
    def __iter__(self) -> Any:
        _leave_files_to_python()
        if not is_unchanged(_torchs.__iter__):  # as profilers change it
            return super().__iter__()
        iterator: Any = self._iterator
        keeps = self.persistent_workers and self.num_workers > 0  # which a program may change
        if keeps and iterator is not None:
            iterator._reset(self)
        else:
            iterator = self._get_iterator()
        if keeps:  # else, as of torch's, a loop that is left early leaves nothing behind
            self._iterator = iterator
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch that was delivered last, or that the iteration starts from.

        Before the first iteration it starts no worker, and asks no dataset for a state.

        Returns
        -------
        dict
            State for `load_state_dict` of this class. It holds the states of datasets that have
            one, as they are; the rest is small, and `torch.save` takes it.

        Raises
        ------
        RuntimeError
            If ``multiprocessing_context`` is of a class that is not multiprocessing's: torch's own
            workers then make the batches. Or if ``state_dict()`` of the dataset, the sampler or
            their iterator has failed.
        """
        self._require_state()
        if self._is_stream:
            return _streams.state_of(self)
        self._refuse_moved()
        own, last, loaded = self._own_iterator(), self._last_iteration.state, self._loaded
        if (own is None or own._finished) and self._owner is not None and self._owner.is_moved:
            own = last = loaded = None
        state: dict[str, Any]
        if own is not None:
            state = own.state_dict()
        elif last is not None:
            state = {**packed(last), **program_state(draws_globally(self))}
        elif loaded is not None:
            return cast("dict[str, Any]", copied(loaded))
        else:
            return {**unbegun_state(self), "_facts": facts_of_none(self)}
        state["_facts"] = state["_facts"] or facts_of(self)
        Resume.of(state).check()
        return cast("dict[str, Any]", copied(state))

    def _digest_of_values(self) -> dict[str, str]:
        """The weights or indices that the sampler draws from, read once for each object."""
        if (found := values_of(drawn_from(self._index_sampler))) is None:
            return {}
        name, values = found
        known = values, getattr(values, "_version", len(values))
        if self._digest is None or self._digest[0] is not values or self._digest[1] != known[1]:
            self._digest = *known, digest_of(values)
        return {f"sampler.{name}": self._digest[2]}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy begins anew, or where a state was loaded. As of torch's class, there is none once
        there are persistent workers."""
        made: Any = super().__reduce_ex__(protocol)
        if not isinstance(made, tuple) or len(made) < 3 or not isinstance(made[2], dict):
            return made
        fresh = self._fresh()  # also where a subclass has a __getstate__() of its own
        kept = {name: fresh.get(name, value) for name, value in made[2].items()}
        kept.pop("_iterations", None)
        return *made[:2], kept, *made[3:]

    def _fresh(self) -> dict[str, Any]:
        """Attributes that a copy has in place of these."""
        return {"_last_iteration": LastIteration()}

    def load_state_dict(
        self, state_dict: dict[str, Any] | Sequence[dict[str, Any]], strict: bool = True
    ) -> None:
        """Have the next iteration begin after the batch at which `state_dict` was called.

        The rest of the epoch is the same with another batch size, ``drop_last``, or number of
        workers; with another number of ranks of torch's `DistributedSampler` it is dealt anew.

        A loader without a ``generator`` of its own, or with a sampler that is not torch's and has
        none, also sets torch's global generator back, at once: set your own random numbers after
        this call.

        Parameters
        ----------
        state_dict : dict, or list of dict
            State that `state_dict` has returned. With a sampler of fastiter's, that of any rank; or
            of all ranks, with ``in_order=False`` and other ranks or another batch size.
        strict : bool, optional
            Whether changes are refused that only later epochs depend on: a dataset that has grown,
            in order or shuffled without replacement, and another ``persistent_workers``. States of
            earlier versions, which cannot be compared, are then a `UserWarning`.

        Raises
        ------
        ValueError
            If it is no such state, or it cannot be told which examples are left: the sampler is of
            another class, length or arguments; the dataset has another length; one of both loaders
            has a ``generator`` and the other has none, or their ``seed_examples`` differ. The
            loader has not changed then. Also an AssertionError, as in torchdata, if the number of
            workers has changed, and each of them had a state of the dataset's, or a part of an
            `IterableDataset`. The next iteration raises it if the dataset changes in between.
        RuntimeError
            As `state_dict`.
        """
        self._require_state()
        if self._is_stream:
            _streams.load(self, state_dict, strict)
            return
        if "_stream" in state_dict:
            raise ValueError(
                "state_dict was saved by a loader over a StreamDataset: pass the dataset of the "
                "loader that has saved it"
            )
        owner, record = self._owner, None
        if owner is not None and not isinstance(state_dict, dict):
            state_dict = joined(owner, state_dict, strict)
        state = converted(state_dict, self, strict) if state_dict != {} else {}
        skips = SkipState.loaded(state.get("_skipped"), takes_texts=True)
        is_begun = bool(state) and "_unbegun_states" not in state
        if owner is not None and is_begun:
            record = load_of_loader(owner, state, cut_size(self), strict)
        if state:
            load_program_state(self, state)
        self._iterator = self._loaded = None
        self._loaded_record = record
        self._last_iteration = LastIteration(skips if is_begun else None)
        if is_begun:
            self._loaded, self._is_strict = state, strict
            main, sampler = Resume.of(state).main, drawn_from(self._index_sampler)
            epoch = main["_sampler_epoch"]
            if epoch is not None and epoch_of(sampler) is not None:
                sampler.set_epoch(epoch)  # as in the loop that was left; a later call counts


_parameters = inspect.signature(DataLoader.__init__).parameters
#: Defaults of the arguments, after the dataset, that all versions of torch's class have.
_TORCHS_DEFAULTS = {
    name: _parameters[name].default for name in [*_parameters][2 : [*_parameters].index("in_order")]
}
