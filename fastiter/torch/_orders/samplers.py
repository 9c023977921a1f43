"""`Order` and `Batches`: fastiter's samplers as samplers of torch.

The planner of the iterators plans, cuts and resumes the epochs, one at a time.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import DistributedSampler, Sampler

from fastiter._fetch.dataset_access import epochs_of, keeps_rows
from fastiter._order.permutation import example_words
from fastiter._order.plan import TAILS
from fastiter._plan.epoch_sampler import Cutting, EpochSampler, is_epoch_sampler
from fastiter._plan.epochs import Planner, StillPlanner, dataset_length, initial_state
from fastiter._plan.record import packed, record_of
from fastiter._plan.seed import seed_of
from fastiter._plan.state import State
from fastiter._util.arguments import checked_choice, checked_flag, checked_int
from fastiter._util.ranks import iterator_ranks
from fastiter.iterators._addresses import Address, Preview, address_of
from fastiter.iterators._arguments import MOST_ROWS, Rank, Tail
from fastiter.iterators.samplers._batches import CallableBatches
from fastiter.iterators.samplers.epochs import RowsOfEpochs, sampler_of_epochs
from fastiter.iterators.samplers.shuffle import OrderSampler
from fastiter.torch._orders.places import DrawnRows, LoadedRecord

_CHUNK = 256  # rows that an `Order` without a batch size plans at a time
_WORKERS = 2**64 - 2  # in the place of an epoch, for the seeds of workers


def ranks_of(rank: Rank, num_replicas: Rank) -> tuple[int, int]:
    """The rank and the number of ranks that the arguments tell; 'auto': those of torch.distributed,
    or of the launcher."""
    is_initialized = dist.is_available() and dist.is_initialized()
    found = (dist.get_rank(), dist.get_world_size()) if is_initialized else None
    return iterator_ranks(rank, num_replicas, "num_replicas", found)


class EpochOwner(Sampler[Any]):
    """Base of `Order` and `Batches`: the epochs of a sampler, and which of them comes next."""

    _cuts = False  # whether the sampler gives batches
    is_moved = False  # whether `set_epoch` has chosen another epoch than the one that came next

    def __init__(
        self,
        sampler: EpochSampler,
        source: Any,
        batch_size: int | None,
        rank: Rank,
        num_replicas: Rank,
        tail: Tail,
        drop_last: bool,
    ) -> None:
        self.rank, self.num_replicas = ranks_of(rank, num_replicas)
        if batch_size is None and (self.num_replicas > 1 or drop_last) and not self._cuts:
            raise ValueError(
                f"with num_replicas={self.num_replicas} and {drop_last=} an Order needs the "
                "batch_size of its loader, since ranks share each global batch, and the last one "
                "may be left out: pass batch_size="
            )
        self.batch_size = batch_size
        if batch_size is not None:
            self.batch_size = checked_int("batch_size", batch_size, maximum=MOST_ROWS)
        self.tail = checked_choice("tail", tail, TAILS)
        self.drop_last = checked_flag("drop_last", drop_last)
        self._epochs, counted = sampler, source
        self._named: Any = None  # the dataset whose indices tell their epoch
        is_one = getattr(source, "ndim", None) == 0 or not hasattr(source, "__getitem__")
        if is_one and hasattr(source, "__index__"):  # which tensors of all shapes have
            counted = range(checked_int("dataset_or_length", source))
        elif not self._cuts:
            self._epochs = sampler_of_epochs(source, sampler, None)
        if isinstance(self._epochs, RowsOfEpochs):
            self._named, counted = source, ()  # rows are counted as they are read
        elif epochs_of(source) is not None and getattr(sampler, "tells_epochs", False):
            self._named = source
        self._length = functools.partial(dataset_length, counted)
        self._may_grow = keeps_rows(source)
        self._seed = seed_of(self._epochs, 2)
        self.epoch = 0  # that the next iterator has
        self._loaded: LoadedRecord | None = None  # from which it goes on
        self._begun: tuple[Any, State] | None = None
        self._drawn: DrawnRows | None = None  # of the iterator of another loader
        self._running: weakref.ref[Any] | None = None
        if not self.n_batches:
            size, cause = self._state(0).whole_size, "drop_last=True" if drop_last else f"{tail=}"
            raise ValueError(
                f"an epoch of {size} examples has no batch: {cause} leaves all of them out with "
                f"batch_size={batch_size} for {self.num_replicas} rank(s)"
            )

    @property
    def rows(self) -> Any:
        """The numbers of the indices, where they tell their epoch; else None."""
        return None if self._named is None else epochs_of(self._named)

    def set_epoch(self, epoch: int) -> None:
        """Have the next iterator begin with the start of an epoch.

        If a state was loaded that is in this epoch, its position stays.
        """
        epoch = checked_int("epoch", epoch, minimum=0)
        if self._loaded is None or epoch != self.epoch:
            self.is_moved |= epoch != self.epoch
            self.epoch, self._loaded, self._drawn = epoch, None, None

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and the position in it after the indices that were drawn.

        Returns
        -------
        dict
            State of types that JSON takes, equal on all ranks.

        Raises
        ------
        ValueError
            With several ranks in the middle of a batch.
        """
        loaded, drawn = self._loaded, self._drawn
        if loaded is not None:
            return dict(loaded.record)
        return drawn.record() if drawn else packed(record_of(self.planner(self.epoch)))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Have the next iterator go on from a state, also with other ranks or another batch size.

        Parameters
        ----------
        state_dict : dict
            State that `state_dict` has returned, of any rank.
        strict : bool
            False: the dataset may have grown since, as in `MultiprocessIterator.load_state_dict`.

        Raises
        ------
        ValueError
            If it is no such state, or that of another sampler.
        """
        self.load(LoadedRecord(state_dict, strict))

    # ---- for loaders

    def load(self, loaded: LoadedRecord, batch_size: int | None = None) -> None:
        """Have the next iterator go on from a record, of a loader with this batch size."""
        snapshot = loaded.go_to(self.planner(self.epoch, batch_size))
        if snapshot.former_size is not None and not self._may_grow:
            raise ValueError(
                f"the state is of {snapshot.former_size} rows, and the dataset has "
                f"{self._length()}, packed anew: load the state before the dataset grows, or pack "
                "by packing='concat'"
            )
        self.epoch, self._loaded, self._drawn, self.is_moved = loaded.number, loaded, None, False
        if loaded.is_finished:
            self.take(loaded.number)

    def take(self, number: int) -> None:
        """Note that an iterator has begun with that epoch."""
        self.epoch, self._loaded, self._drawn, self.is_moved = number + 1, None, None, False

    def run(self, iteration: Any) -> None:
        """Note the iteration through an epoch whose length is that of `len` meanwhile."""
        self._running = weakref.ref(iteration)

    def end(self, iteration: Any) -> None:
        """Note that an iteration, which may persist, has come to the end of its epoch."""
        if (found := self._running) and found() is iteration:
            self._running = None

    def planner(self, number: int, batch_size: int | None = None, seeded: bool = False) -> Planner:
        """A planner at the start of an epoch."""
        return StillPlanner(
            self._state(number),
            batch_size=batch_size or self.batch_size or (1 if self._cuts else _CHUNK),
            repeat=False,
            order_sampler=self._epochs,
            dataset_len=self._length,
            seed=self._seed,
            seeds_examples=seeded,
            rank=self.rank,
            num_ranks=self.num_replicas,
            tail=self.tail,
            drop_last=self.drop_last,
            last_epoch=number,
        )

    def _state(self, number: int) -> State:
        """The state at the start of an epoch, whose order is drawn once."""
        key, begun = (number, self._length()), self._begun
        if begun is None or begun[0] != key:
            cuttings = (Cutting(0, self.num_replicas, self._epochs.limits()),) if self._cuts else ()
            state = initial_state(self._epochs, self._length, cuttings, number)
            self._begun = begun = key, state._replace(epoch=number)
        return begun[1]

    def base_seed(self, number: int) -> int:
        """Seed of the workers that begin with this epoch."""
        first, second = example_words(self._seed, _WORKERS, 0)[:2].tolist()
        return int(example_words((first, second), number, self.rank)[0]) >> 1

    def _of_epoch(self) -> tuple[Planner, int]:
        """The planner of the epoch that runs, or of the next one; and its number of batches."""
        running: Any = (found := self._running) and found()
        number = self.epoch if running is None or running.number is None else running.number
        planner = self.planner(number)
        return planner, planner.n_steps(planner.state.cuts, 0, planner.state.whole_size)

    @property
    def n_batches(self) -> int:
        """Batches of this rank in an epoch."""
        return self._of_epoch()[1]

    @property
    def n_examples(self) -> int:
        """Examples in an epoch, of all ranks."""
        return self._of_epoch()[0].state.whole_size

    def address(self, loader: Any, iteration: Any, number: int, rank: int | None) -> Address:
        """The address of a batch of a loader's iteration that is under way, or of the next one."""
        number = checked_int("number", number, minimum=0)
        rank = self.rank if rank is None else checked_int("rank", rank, minimum=0)
        if rank >= self.num_replicas:
            raise ValueError(f"rank must be below num_replicas={self.num_replicas}, not {rank}")
        epoch, loaded = self.epoch, self._loaded
        if iteration is not None and iteration.has_begun:
            epoch, loaded = iteration.number, iteration.loaded
        size = None if self._cuts else loader.batch_size or 1
        planner = self.planner(epoch, size, loader._own_arguments.seed_examples)
        if loaded is not None:
            loaded.go_to(planner)
        state = planner.state
        end = state.step + planner.n_steps(state.cuts, state.position, state.whole_size)
        plan: Any = None
        if number < end:
            preview = Preview(planner, rank)
            plan = preview.advance(preview.before(number))
        if plan is None or (size and loader.drop_last and len(plan.indices) < size):
            raise LookupError(f"epoch {epoch} has {len(loader)} batches, none of number {number}")
        return address_of(plan, rank, self._seed, epochs_of(loader.dataset))

    def _batches(self) -> Iterator[tuple[DrawnRows, list[int]]]:
        """The batches of the next epoch, whose number is taken with the first of them."""
        planner = self.planner(self.epoch)
        if self._loaded is not None:
            self._loaded.go_to(planner)
        self.take(planner.last_epoch)
        drawn = self._drawn = DrawnRows(planner)
        self.run(drawn)
        while (plan := drawn.advance()).indices is not None:
            yield drawn, plan.indices.tolist()
        drawn.number = None
        if self._drawn is drawn:
            self._drawn = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None, "_drawn": None, "_running": None}


class Order(EpochOwner):
    """Indices of this rank by a sampler of fastiter's, as a sampler of torch.

    `fastiter.torch.DataLoader` makes it of ``sampler=ShuffleOrderSampler(seed)`` and others. Other
    loaders take it, too, with the same ``batch_size`` and ``drop_last``. Each iterator has the next
    epoch, whose number it takes with its first index. With several ranks it is an instance of
    torch's `DistributedSampler`, too, so that trainers do not deal its indices once more.

    Parameters
    ----------
    sampler : EpochSampler
        An order sampler with a seed.
    dataset_or_length : dataset, or int
    batch_size : int, optional
        Examples in a batch of the loader. Needed with ``drop_last``, and with several ranks, which
        get contiguous parts of each global batch.
    rank, num_replicas : int, or 'auto', optional
        Number of this process, and of all. 'auto': as in torch.distributed, where it is initialised
        now; else as in the launcher's environment; else 0 of 1, as by default.
    tail : {'pad', 'mask', 'drop'}, optional
        Treatment of an epoch's last examples, too few for a step of full batches; see
        `SerialIterator`.
    drop_last : bool, optional
        Whether to leave them out.

    Attributes
    ----------
    epoch : int
        Number of the epoch that the next iterator has.

    Raises
    ------
    ValueError
        If the sampler has no seed, if ``drop_last`` or several ranks have no ``batch_size``, or an
        epoch no batch.
    """

    def __init__(
        self,
        sampler: Any,
        dataset_or_length: Any,
        *,
        batch_size: int | None = None,
        rank: Rank = None,
        num_replicas: Rank = None,
        tail: Tail = "pad",
        drop_last: bool = False,
    ) -> None:
        if not is_epoch_sampler(sampler):
            raise _without_number(sampler)
        super().__init__(
            sampler, dataset_or_length, batch_size, rank, num_replicas, tail, drop_last
        )
        if self.num_replicas > 1 and type(self) is Order:
            self.__class__ = RankOrder

    def __iter__(self) -> Iterator[int]:
        for drawn, rows in self._batches():
            for drawn.n, row in enumerate(rows, 1):
                yield row

    def __len__(self) -> int:
        planner, n_batches = self._of_epoch()
        last = Preview(planner, self.rank).before(n_batches - 1)
        plan: Any = planner.advance(last)
        return (n_batches - 1) * planner.batch_size + len(plan.indices)


class RankOrder(Order, DistributedSampler[Any]):
    """An `Order` of one of several ranks.

    By its base class clients that deal a sampler's indices to ranks, such as Lightning, ignite and
    MONAI, know that these are dealt.
    """

    @property
    def num_samples(self) -> int:
        return len(self)

    @property
    def total_size(self) -> int:
        return len(self) * self.num_replicas


class Batches(EpochOwner):
    """Lists of this rank's indices by a batch sampler of fastiter's, as a batch sampler of torch.

    As `Order`, for ``batch_sampler=``.

    Parameters
    ----------
    batch_sampler : EpochSampler or callable
        `LengthBucketBatchSampler`, `TokenBatchSampler`, or a pure function ``f(epoch)`` that gives
        the index arrays of all batches.
    dataset_or_length : dataset, or int
    rank, num_replicas, tail : optional
        As in `Order`.

    Attributes
    ----------
    epoch : int
        Number of the epoch that the next iterator has.
    """

    _cuts = True

    def __init__(
        self,
        batch_sampler: Any,
        dataset_or_length: Any,
        *,
        rank: Rank = None,
        num_replicas: Rank = None,
        tail: Tail = "pad",
    ) -> None:
        if not is_epoch_sampler(batch_sampler):
            if not callable(batch_sampler) or is_of_fastiter(batch_sampler):
                raise _without_number(batch_sampler)
            batch_sampler = CallableBatches(batch_sampler)
        super().__init__(batch_sampler, dataset_or_length, None, rank, num_replicas, tail, False)

    def __iter__(self) -> Iterator[list[int]]:
        for drawn, rows in self._batches():
            drawn.n = len(rows)
            yield rows

    def __len__(self) -> int:
        return self.n_batches


def is_of_fastiter(sampler: Any) -> bool:
    """Whether it is an order sampler or a batch sampler, with a seed or without."""
    return isinstance(sampler, OrderSampler | EpochSampler)


def _without_number(sampler: Any) -> ValueError:
    use = (
        "use ShuffleOrderSampler(seed), another sampler of fastiter.iterators with a seed, or a "
        "subclass of EpochSampler"
    )
    if is_of_fastiter(sampler):
        return ValueError(f"this {type(sampler).__qualname__} has no seed: {use}")
    return ValueError(
        f"{sampler!r:.80} gives no orders by number, as no function f(order, position) does: "
        f"{use}; batch_sampler= also takes a pure function f(epoch)"
    )
