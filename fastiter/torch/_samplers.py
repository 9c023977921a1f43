"""fastiter's samplers in loaders of torch: `Order` and `Batches`, and the keys of their epochs.

The epochs are planned, cut and resumed by the planner of the iterators, one epoch at a time.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist
from torch.utils.data import BatchSampler, IterableDataset, Sampler

from fastiter._fetch.dataset_access import epochs_of
from fastiter._fetch.token_rows import EPOCH_SHIFT
from fastiter._order.plan import TAILS
from fastiter._plan.epoch_sampler import Cutting, EpochSampler, SamplerRecord, is_epoch_sampler
from fastiter._plan.epoch_store import EpochStore
from fastiter._plan.epochs import Planner, dataset_length, initial_state
from fastiter._plan.missing import ReplayPlanner, snapshot_of_records
from fastiter._plan.record import filled_record, loaded_cut, packed, record_of, snapshot_of
from fastiter._plan.seed import seed_of
from fastiter._plan.state import Snapshot, State
from fastiter._util.arguments import checked_choice, checked_flag, checked_int
from fastiter._util.ranks import iterator_ranks
from fastiter.iterators._addresses import Preview
from fastiter.iterators._arguments import MOST_ROWS
from fastiter.iterators.samplers._batches import CallableBatches
from fastiter.iterators.samplers.epochs import RowsOfEpochs, sampler_of_epochs
from fastiter.iterators.samplers.shuffle import OrderSampler
from fastiter.torch._state import Resume

if TYPE_CHECKING:
    from fastiter._order.plan import Plan
    from fastiter.iterators._arguments import Rank, Tail

_CHUNK = 256  # rows that an `Order` without a batch size plans at a time
_MOST_STATES = 4096  # that are kept: more than batches are planned ahead
_WORKERS = 2**64 - 2  # in the place of an epoch, for the seeds of workers


class EpochOwner(Sampler[Any]):
    """Base of `Order` and `Batches`: the epochs of a sampler, and which of them comes next."""

    _cuts = False  # whether the sampler gives batches

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
        initialised = dist.is_available() and dist.is_initialized()
        found = (dist.get_rank(), dist.get_world_size()) if initialised else None
        self.rank, self.num_replicas = iterator_ranks(rank, num_replicas, "num_replicas", found)
        if batch_size is None and self.num_replicas > 1 and not self._cuts:
            raise ValueError(
                f"with num_replicas={self.num_replicas} an Order needs the batch_size of its "
                "loader, since ranks share each global batch: pass batch_size="
            )
        self.batch_size = batch_size
        if batch_size is not None:
            self.batch_size = checked_int("batch_size", batch_size, maximum=MOST_ROWS)
        self.tail = checked_choice("tail", tail, TAILS)
        self.drop_last = checked_flag("drop_last", drop_last)
        is_number = hasattr(source, "__index__")
        counted = range(checked_int("dataset_or_length", source)) if is_number else source
        self._epochs = sampler
        if not is_number and not self._cuts:
            self._epochs = sampler_of_epochs(source, sampler, None)
            counted = counted if self._epochs is sampler else ()
        self._length = functools.partial(dataset_length, counted)
        self.rows: Any = None  #: names of indices that tell their epoch
        if isinstance(self._epochs, RowsOfEpochs):
            self.rows = _NamedRows(source)
        self._epoch = 0
        self._pending: Loaded | None = None  # to go on from
        self._begun: tuple[Any, State] | None = None
        self._place: _Place | None = None  # of the iterator of torch's loaders
        self._running: weakref.ref[Any] | None = None
        if not self.n_batches:
            raise ValueError(
                f"an epoch of {self._state(0).whole_size} examples has no batch: drop_last=True, "
                f"or tail={tail!r}, leaves all of them out with batch_size={batch_size} for "
                f"{self.num_replicas} rank(s)"
            )

    @property
    def epoch(self) -> int:
        """Number of the epoch that the next iterator has."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Have the next iterator begin with the start of an epoch.

        If a state was loaded that is in this epoch, its position stays.
        """
        epoch = checked_int("epoch", epoch, minimum=0)
        if self._pending is None or epoch != self._epoch:
            self._epoch, self._pending, self._place = epoch, None, None

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and the position in it after the indices that were drawn, as JSON takes it.

        Raises
        ------
        ValueError
            With several ranks in the middle of a batch.
        """
        if self._pending is not None:
            return dict(self._pending.record)
        place = self._place
        if place is None or place.state is None:
            return packed(record_of(self.planner(self._epoch)))
        return recorded(place.planner, place.now(self))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Have the next iterator go on from a state, also with other ranks or another batch size.

        Parameters
        ----------
        state_dict : dict
            Result of `state_dict`, of any rank.
        strict : bool
            False: the dataset may have grown since, as in `MultiprocessIterator.load_state_dict`.

        Raises
        ------
        ValueError
            If it is no such state, or that of another sampler.
        """
        self.load(Loaded(dict(state_dict), None, strict))

    def own_of(self, states: Any) -> tuple[Any, list[Any] | None]:
        """This rank's of the states of loaders of all ranks, and the records of all; of one state
        this itself, and None."""
        if isinstance(states, Mapping):
            return states, None
        states = list(states)
        own = states[min(self.rank, len(states) - 1)]
        mains = [Resume.of(state).main for state in states]
        return own, None if len(states) == 1 else [_record_in(main) for main in mains]

    def load_main(
        self,
        main: Mapping[str, Any],
        is_finished: bool,
        batch_size: int,
        strict: bool,
        records: Sequence[Any] | None,
    ) -> Loaded:
        """Have the next iterator go on from a state of a loader, checked."""
        loaded = Loaded(_record_in(main), main["_sampler_iter_yielded"], strict, records)
        self.load(loaded, batch_size)
        if is_finished:
            self.take(loaded, self._epoch)
            loaded.is_finished = True
        return loaded

    def goes_on_from(self, loaded: Loaded) -> bool:
        """Whether the next iterator does, or goes through the next epoch after it."""
        return loaded.is_finished or self._pending is loaded

    def load(self, loaded: Loaded, batch_size: int | None = None) -> None:
        """Have the next iterator go on from a record, for a loader with this batch size."""
        planner, _ = self.resumed(loaded, batch_size)
        self._epoch, self._pending, self._place = planner.last_epoch, loaded, None

    def resumed(
        self, loaded: Loaded, batch_size: int | None = None, seeded: bool = False
    ) -> tuple[Planner, Snapshot]:
        """The planner at a loaded place, and the snapshot of it. Changes nothing here."""
        planner = self.planner(self._epoch, batch_size, seeded)
        words = loaded.record.get("order")
        of_sampler = None if not isinstance(words, list) else SamplerRecord.of(words)
        if of_sampler is None or of_sampler.n_drawn < 1:
            raise ValueError(
                "the state is not that of one of fastiter's samplers with a seed, as Order and "
                "Batches have it"
            )
        planner.last_epoch = of_sampler.n_drawn - 1
        snapshot = loaded.snapshot(planner)
        planner.go_on_from(snapshot)
        planner.restart(snapshot.state)  # without those that were missing
        return planner, snapshot

    def take(self, loaded: Loaded | None, number: int) -> None:
        """An iterator has begun with that epoch."""
        if loaded is self._pending:
            self._epoch, self._pending, self._place = number + 1, None, None

    def planner(self, number: int, batch_size: int | None = None, seeded: bool = False) -> Planner:
        """A planner at the start of an epoch."""
        return _EpochPlanner(
            self._state(number),
            batch_size=batch_size or self.batch_size or (1 if self._cuts else _CHUNK),
            repeat=False,
            order_sampler=self._epochs,
            dataset_len=self._length,
            seed=seed_of(self._epochs, 2),
            seeds_examples=seeded,
            rank=self.rank,
            num_ranks=self.num_replicas,
            tail=self.tail,
            drop_last=self.drop_last,
            last_epoch=number,
        )

    def _state(self, number: int) -> State:
        """The state at the start of an epoch, whose order is drawn once."""
        key = number, self._length()
        if self._begun is None or self._begun[0] != key:
            cuttings = (Cutting(0, self.num_replicas, self._epochs.limits()),) if self._cuts else ()
            state = initial_state(self._epochs, self._length, cuttings, number)
            self._begun = key, state._replace(epoch=number)
        return self._begun[1]

    def base_seed(self, number: int) -> int:
        """Seed of the workers that begin with this epoch."""
        from fastiter._order import permutation

        first, second = permutation.example_words(seed_of(self._epochs, 2), _WORKERS, 0)[
            :2
        ].tolist()
        return int(permutation.example_words((first, second), number, self.rank)[0]) >> 1

    def run(self, place: Any) -> None:
        """Note the iteration of an epoch, whose length `len` is meanwhile."""
        self._running = weakref.ref(place)

    @property
    def n_batches(self) -> int:
        """Batches of this rank in an epoch."""
        running = None if self._running is None else self._running()
        number = self._epoch if running is None or running.number is None else running.number
        planner = self.planner(number)
        state = planner.state
        return planner.n_steps(state.cuts, 0, state.whole_size)

    @property
    def n_rows(self) -> int:
        """Examples of this rank in an epoch; with batches, about as many."""
        n_ranks, n_batches = self.num_replicas, self.n_batches
        assert self._begun is not None
        state = self._begun[1]
        if self._cuts:
            return -(-state.whole_size // n_ranks)
        # The last step of a dataset in the order of indices.
        size = self.batch_size or _CHUNK
        plain = State((n_batches - 1) * size * n_ranks, 0, False, None, state.whole_size, None)
        cutting = {"num_ranks": n_ranks, "tail": self.tail, "drop_last": self.drop_last}
        planner = Planner(
            plain,
            batch_size=size,
            repeat=False,
            order_sampler=None,
            dataset_len=lambda: state.whole_size,
            **cutting,
        )
        return (n_batches - 1) * size + len(planner.advance(plain).indices)

    def _plans(self) -> Iterator[Plan]:
        """The plans of the next epoch, whose number is taken with the first of them."""
        loaded = self._pending
        if loaded is None:
            planner = self.planner(self._epoch)
        else:
            planner, _ = self.resumed(loaded)
        self.take(loaded, planner.last_epoch)
        place = self._place = _Place(planner)
        self.run(place)
        while (plan := place.advance()).indices is not None:
            yield plan
        place.state = place.number = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None, "_place": None, "_running": None}


class Order(EpochOwner):
    """A sampler of fastiter's as one of torch's: the indices of this rank, epoch after epoch.

    `fastiter.torch.DataLoader` makes it of ``sampler=ShuffleOrderSampler(seed)`` and others. Other
    loaders take it, too, with the same ``batch_size`` and ``drop_last``. Each iterator has the next
    epoch, whose number it takes with its first index.

    Parameters
    ----------
    sampler : EpochSampler
        An order sampler with a seed.
    dataset_or_length : dataset, or int
    batch_size : int, optional
        Of the loader. Needed with several ranks, which get contiguous parts of each global batch.
    rank, num_replicas : int, or 'auto', optional
        Of this process. 'auto': as torch.distributed has them, where it is initialised now; else of
        the launcher's environment; else 0 of 1, as by default.
    tail : {'pad', 'mask', 'drop'}, optional
        Treatment of an epoch's last examples, too few for a step of full batches; see
        `SerialIterator`.
    drop_last : bool, optional
        Whether to leave them out.

    Raises
    ------
    ValueError
        If the sampler has no seed, if several ranks have no ``batch_size``, or an epoch no batch.
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

    def __iter__(self) -> Iterator[int]:
        for plan in self._plans():
            place, rows = self._place, plan.indices.tolist()
            assert place is not None
            for place.n, row in enumerate(rows, 1):
                yield row

    def __len__(self) -> int:
        return self.n_rows


class Batches(EpochOwner):
    """A batch sampler of fastiter's as one of torch's: lists of indices, those of this rank.

    As `Order`, for ``batch_sampler=``.

    Parameters
    ----------
    batch_sampler : EpochSampler or callable
        `LengthBucketBatchSampler`, or a pure function ``f(epoch)`` that gives the index arrays of
        all batches.
    dataset_or_length : dataset, or int
    rank, num_replicas, tail
        As in `Order`.
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
            if not callable(batch_sampler) or isinstance(
                batch_sampler, OrderSampler | EpochSampler
            ):
                raise _without_number(batch_sampler)
            batch_sampler = CallableBatches(batch_sampler)
        super().__init__(batch_sampler, dataset_or_length, None, rank, num_replicas, tail, False)

    def __iter__(self) -> Iterator[list[int]]:
        for plan in self._plans():
            place = self._place
            assert place is not None
            place.n = len(plan.indices)
            yield plan.indices.tolist()

    def __len__(self) -> int:
        return self.n_batches


def _without_number(sampler: Any) -> ValueError:
    use = "use ShuffleOrderSampler(seed), another sampler of fastiter.iterators with a seed, or a "
    use += "subclass of EpochSampler"
    if isinstance(sampler, OrderSampler | EpochSampler):
        return ValueError(f"this {type(sampler).__qualname__} has no seed: {use}")
    return ValueError(
        f"{sampler!r:.80} has no orders with numbers, as a function f(order, position) has not: "
        f"{use}; as batch_sampler= a pure function f(epoch)"
    )


class _EpochPlanner(Planner):
    """Plans one epoch, without moving the sampler."""

    def _note(self, state: State) -> None:
        """Nothing is drawn."""


class _Place:
    """Where an iterator is: the state before its present batch, and the rows drawn of that."""

    def __init__(self, planner: Planner) -> None:
        self.planner, self.number = planner, planner.last_epoch
        self.state: Any = planner.state  #: None: at the end
        self.n = 0
        self._plan: Plan | None = None

    def advance(self) -> Plan:
        if self._plan is not None:
            self.state, self.n = self._plan.state, 0
        self._plan = self.planner.advance(self.state)
        return self._plan

    def now(self, owner: EpochOwner) -> State:
        """The state after the rows that were drawn."""
        plan, state = self._plan, self.state
        if plan is None or plan.indices is None or self.n == 0:
            return state  # type: ignore[no-any-return]
        if self.n == len(plan.indices):
            return plan.state  # type: ignore[no-any-return]
        if owner.num_replicas > 1:
            raise ValueError(
                f"{self.n} of {len(plan.indices)} rows of a batch were drawn: with several ranks "
                "an Order has a state between two batches"
            )
        return state._replace(position=state.position + self.n)  # type: ignore[no-any-return]


class Loaded:
    """The record of a place that was loaded, or those of all ranks.

    ``step``: the batches of the epoch that count as delivered, if other than the record says.
    """

    def __init__(
        self, record: Any, step: int | None, strict: bool, records: Sequence[Any] | None = None
    ) -> None:
        self.record, self.step, self.strict = record, step, strict
        self._records = None if records is None else [*records]
        self.is_finished = False  # whether its iteration has ended

    def snapshot(self, planner: Planner) -> Snapshot:
        record: Any = self._records or self.record
        if self.step not in (None, self.record.get("step")):
            record = self._moved(planner)
        return snapshot_of_records(record, planner, strict=self.strict)

    def _moved(self, planner: Planner) -> dict[str, Any]:
        """The record at another step of its epoch, as it was cut then."""
        step, record = self.step, self.record
        cut = loaded_cut(record)
        if step is None or record.get("missing") or not cut:
            raise ValueError(f"the state has missing batches: it cannot be moved to batch {step}")
        replay = ReplayPlanner(planner, cut)
        loaded = snapshot_of(record, replay, strict=self.strict)
        replay.go_on_from(loaded)
        first = loaded.anchor.step if loaded.anchor.epoch == replay.last_epoch else 0
        if not first <= step < loaded.state.step:
            raise ValueError(
                f"state_dict counts {step} batches of the epoch, but tells of those from {first} "
                f"to {loaded.state.step} only: before them, others were cut"
            )
        state = Preview(replay, replay.rank, EpochStore()).before(step)
        replay.go_on_from(loaded._replace(state=state))
        return record_of(replay)


def _record_in(main: Mapping[str, Any]) -> Any:
    record = main.get("_order")
    if not isinstance(record, Mapping):
        raise ValueError(
            "state_dict is not that of a loader with one of fastiter's samplers: it has no '_order'"
        )
    return record


def recorded(planner: Planner, state: State, early: Sequence[int] = ()) -> dict[str, Any]:
    """The record of a planner at a state of its epoch, if of the steps behind it these were
    delivered."""
    preview = Preview(planner, planner.rank, EpochStore())
    preview.restart(state)
    record = packed(record_of(preview))
    if early:
        record["missing"] = {"delivered": sum(1 << (step - state.step) for step in early)}
    return record


class _NamedRows:
    """The rows of a dataset that has other rows in each epoch, whose indices tell the epoch."""

    def __init__(self, dataset: Any) -> None:
        self._epochs: Any = epochs_of(dataset)

    def numbers(self, indices: Any) -> Any:
        found = [
            self._epochs.rows_of((int(index) >> EPOCH_SHIFT) - 1).numbers(np.array([index]))
            for index in indices
        ]
        return np.concatenate(found)


# ---- in fastiter's own loader --------------------------------------------------------------------


def owner_of(index_sampler: Any) -> EpochOwner | None:
    """The `Order` or `Batches` whose keys a loader's index sampler gives; else None."""
    inner = index_sampler.sampler if type(index_sampler) is BatchSampler else index_sampler
    return inner if isinstance(inner, EpochOwner) else None


def adopted(
    dataset: Any,
    batch_size: int | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
    ranks: Mapping[str, Any],
) -> tuple[Any, Any]:
    """The arguments ``sampler`` and ``batch_sampler``, as samplers of torch if they are fastiter's.

    ``ranks`` has rank, num_replicas and tail.
    """
    is_stream = isinstance(dataset, IterableDataset)  # which torch refuses
    is_sampler, is_batches = (_is_bare(one) and not is_stream for one in (sampler, batch_sampler))
    if is_sampler and batch_sampler is None:
        size = 1 if batch_size is None else batch_size
        sampler = Order(sampler, dataset, batch_size=size, drop_last=drop_last, **ranks)
    elif is_batches and sampler is None:
        batch_sampler = Batches(batch_sampler, dataset, **ranks)
    else:
        for name, default in (("rank", None), ("num_replicas", None), ("tail", "pad")):
            if ranks[name] != default:
                raise ValueError(
                    f"{name}={ranks[name]!r} is for a sampler of fastiter's, such as sampler="
                    "ShuffleOrderSampler(seed): with torch's use DistributedSampler, and an Order "
                    "or Batches has its own"
                )
    if isinstance(sampler, Order) and sampler.num_replicas > 1:
        size = 1 if batch_size is None else batch_size
        if sampler.batch_size != size:
            raise ValueError(
                f"the Order was made for batch_size={sampler.batch_size} on each of "
                f"{sampler.num_replicas} ranks, but the loader has batch_size={batch_size}: give "
                "both the same"
            )
    return sampler, batch_sampler


def _is_bare(sampler: Any) -> bool:
    """Whether it is a sampler of fastiter's, or a function in the place of one."""
    if isinstance(sampler, OrderSampler | EpochSampler):
        return not hasattr(sampler, "__iter__")
    return callable(sampler) and not (
        isinstance(sampler, type) or hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__")
    )


class EpochKeys:
    """The keys of an `Order` or `Batches`, as `SamplerKeys` gives those of other samplers.

    Parameters
    ----------
    index_sampler : BatchSampler, Order or Batches
    is_batched : whether a batch has several keys
    is_seeded : whether examples have seeds
    rows : source of indices from which the epoch is known, if they are not those of the sampler.
    """

    generator_states: list[str] | None = None
    is_stateful = False
    n_states = 0

    def __init__(self, index_sampler: Any, is_batched: bool, is_seeded: bool, rows: Any) -> None:
        owner = owner_of(index_sampler)
        assert owner is not None
        self._owner, self._is_batched, self._is_seeded = owner, is_batched, is_seeded
        self._size, self._drops = None, False
        if type(index_sampler) is BatchSampler:
            self._size, self._drops = int(index_sampler.batch_size), index_sampler.drop_last
        elif isinstance(owner, Order):
            self._size = 1
        self.rows = owner.rows or rows
        self._names = rows if owner.rows is None else None
        self.number: int | None = None  #: of the epoch, once it was taken
        self.has_begun = False  #: whether it was
        self.first = 0, 0
        self._planner: Planner | None = None
        self._ahead: Sequence[Plan] = ()
        self._loaded = owner._pending
        if self._loaded is not None:
            self._go_to(*owner.resumed(self._loaded, self._size, self._is_seeded))
            n_ahead = sum(len(plan.indices) for plan in self._ahead)
            position = self._base.position // owner.num_replicas
            self.first = max(0, self._base.step - len(self._ahead)), max(0, position - n_ahead)

    def _go_to(self, planner: Planner, snapshot: Snapshot) -> None:
        self._planner, self._base = planner, snapshot.state
        self._ahead = snapshot.ahead[1] if snapshot.ahead else ()
        self._plans: dict[int, tuple[State, Plan]] = {}  # with the states before them
        self.cutter = SimpleNamespace(batch_size=planner.batch_size)

    @property
    def is_filling(self) -> bool:
        """Whether batches come first that were missing in a loaded state."""
        return self._loaded is not None and bool(self._ahead)

    def load(self, main: dict[str, Any], is_finished: bool, is_endless: bool) -> None:
        """All is known from the owner."""

    def take(self) -> bool:
        """Take the number of the epoch, with its first batch. False: it was planned ahead, and the
        sampler has gone on to another one since."""
        owner, loaded = self._owner, self._loaded
        planner = self._planner
        if planner is None:
            planner = self._begin()
        elif owner._pending is not loaded or (loaded is None and owner.epoch != planner.last_epoch):
            return False
        owner.take(loaded, planner.last_epoch)
        owner.run(self)
        self.number, self.has_begun = planner.last_epoch, True
        return True

    def _begin(self) -> Planner:
        planner = self._owner.planner(self._owner.epoch, self._size, self._is_seeded)
        self._go_to(planner, planner.snapshot())
        return planner

    def draw(self, n_planned: int, n_keys: int) -> tuple[int, int, int, Any]:
        """The batch that follows ``n_planned`` batches of ``n_keys`` keys together: its number, the
        number of keys before it, that of its own keys, and these. The same until it is planned."""
        if self._planner is None:
            self._begin()
        rows = self.plan(n_planned).indices
        if rows is None or (self._drops and self._size and len(rows) < self._size):
            raise StopIteration
        size = len(rows)
        if self._names is not None:
            rows = self._names.named(rows)
        return n_planned, n_keys, size, rows if self._is_batched else int(rows[0])

    def plan(self, number: int) -> Plan:
        """The plan of the batch of that number."""
        place = number - self.first[0] - len(self._ahead)
        if place < 0:
            return self._ahead[place]
        assert self._planner is not None
        if number not in self._plans:
            before = self._state_before(number)
            self._plans[number] = before, self._planner.advance(before)
            if len(self._plans) > _MOST_STATES:
                del self._plans[next(iter(self._plans))]
        return self._plans[number][1]

    def _state_before(self, number: int) -> State:
        """The state before a batch that is none of the missing ones."""
        if number in self._plans:
            return self._plans[number][0]
        if number - 1 in self._plans:
            return self._plans[number - 1][1].state  # type: ignore[no-any-return]
        base, planner = self._base, self._planner
        assert planner is not None
        place = number - self.first[0] - len(self._ahead)
        if place == 0:
            return base
        n_left = 0
        if planner.has_epoch(base.epoch):
            n_left = planner.n_steps(base.cuts, base.position, base.whole_size)
        if place < n_left:
            return Preview(planner, planner.rank, EpochStore()).before(base.step + place)
        epoch = planner.last_epoch + 1
        return base._replace(position=0, epoch=epoch, is_new_epoch=True, step=base.step + n_left)

    def order_after(self, number: int) -> Any:
        """The order that the keys of all batches after this one are parts of, on a single rank;
        None if they have to be planned."""
        order, base = self._base.order, self._base
        n_ranks = self._owner.num_replicas
        is_plain = type(order) is np.ndarray and base.cuts is None and n_ranks == 1
        place = number + 1 - self.first[0] - len(self._ahead)
        n_ahead = sum(len(plan.indices) for plan in self._ahead)
        if is_plain and self.rows is None and place >= 0:
            return order if self.first[1] + n_ahead == base.position else None
        return None

    def seeds(self, example_seed: Any, number: int, first: int, keys: Any) -> bytes:
        """Seeds of the examples of a batch."""
        seeds: bytes = self.plan(number).seeds
        return seeds[:-8]  # behind them is that of a converter

    def valid(self, number: int) -> Any:
        """For each row of a batch, whether it is no repetition to fill an epoch up."""
        plan = self.plan(number)
        return np.arange(len(plan.indices)) < plan.n_valid

    def state(self, place: tuple[int, int], pending: list[tuple[int, int, int]]) -> dict[str, Any]:
        """The state from which to go on, if of the batches planned up to a place these were not
        delivered: number of each, keys before it, and its keys."""
        record = self._record(place[0], {number for number, _, _ in pending})
        return {
            "_sampler_iter_yielded": record["step"],
            "_keys_yielded": record["position"],
            "_order": record,
        }

    def _record(self, end: int, pending: set[int]) -> dict[str, Any]:
        owner, loaded, planner = self._owner, self._loaded, self._planner
        if planner is None or not (self.has_begun or (loaded and owner.goes_on_from(loaded))):
            return owner.state_dict()
        oldest = min([*pending, end])
        n_filled = oldest - self.first[0]
        missing = planner.missing
        if missing is not None and n_filled < len(self._ahead):
            return packed(filled_record(missing, n_filled))
        state = self._state_before(oldest)
        early = [n - oldest for n in range(oldest, end) if n not in pending]
        return recorded(planner, state, [state.step + n for n in early])
