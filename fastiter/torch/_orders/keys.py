"""The keys of `Order` and `Batches` in fastiter's own loader."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, IterableDataset

from fastiter._plan.epochs import Planner
from fastiter._plan.missing import record_of_all
from fastiter._plan.record import filled_record, loaded_cut, packed
from fastiter._plan.state import State
from fastiter.iterators._addresses import Preview
from fastiter.torch._orders.places import LoadedRecord, recorded, shortened
from fastiter.torch._orders.samplers import Batches, EpochOwner, Order, is_of_fastiter, ranks_of
from fastiter.torch._state import Resume, check_missing

_MOST_KEPT = 256  # plans: as many as batches are planned ahead, as a rule


def adopted(
    dataset: Any,
    batch_size: int | None,
    sampler: Any,
    batch_sampler: Any,
    drop_last: bool,
    ranks: Mapping[str, Any],
) -> tuple[Any, Any]:
    """The arguments ``sampler`` and ``batch_sampler`` of a loader; those of fastiter as `Order` and
    `Batches`. ``ranks`` has rank, num_replicas and tail."""
    size = 1 if batch_size is None else batch_size
    is_stream = isinstance(dataset, IterableDataset)  # which torch refuses
    if _is_bare(sampler) and batch_sampler is None and not is_stream:
        sampler = Order(sampler, dataset, batch_size=size, drop_last=drop_last, **ranks)
    elif _is_bare(batch_sampler) and sampler is None and not is_stream:
        batch_sampler = Batches(batch_sampler, dataset, **ranks)
    else:
        given = sampler if batch_sampler is None else batch_sampler
        for name, default in (("rank", None), ("num_replicas", None), ("tail", "pad")):
            if ranks[name] != default and not _has_ranks(getattr(given, "sampler", given), ranks):
                raise ValueError(
                    f"{name}={ranks[name]!r} is for a sampler of fastiter's, such as sampler="
                    "ShuffleOrderSampler(seed): with torch's use DistributedSampler; an Order or "
                    "Batches has its own"
                )
    order = sampler
    if type(batch_sampler) is BatchSampler:
        order, size = batch_sampler.sampler, batch_sampler.batch_size
    # with other batches the rows that it gives to this rank, or leaves out, would be others
    is_cut = isinstance(order, Order) and (order.num_replicas > 1 or order.drop_last)
    if is_cut and order.batch_size != size:
        raise ValueError(
            f"the Order was made for batch_size={order.batch_size} and drop_last={order.drop_last} "
            f"on each of {order.num_replicas} rank(s), but the loader has batch_size={size}: give "
            "both the same"
        )
    return sampler, batch_sampler


def _has_ranks(sampler: Any, ranks: Mapping[str, Any]) -> bool:
    """Whether it is an `Order` or `Batches` of these ranks, as where a client makes a loader anew
    of another one's sampler and arguments."""
    if not isinstance(sampler, EpochOwner):
        return False
    given = ranks_of(ranks["rank"], ranks["num_replicas"])
    return given == (sampler.rank, sampler.num_replicas) and ranks["tail"] in ("pad", sampler.tail)


def _is_bare(sampler: Any) -> bool:
    """Whether it is a sampler of fastiter's, or a function in the place of one."""
    if hasattr(sampler, "__iter__") or hasattr(sampler, "__getitem__"):
        return False
    return is_of_fastiter(sampler) or (callable(sampler) and not isinstance(sampler, type))


def joined(owner: EpochOwner, states: Any, strict: bool) -> Any:
    """This rank's state of those of all ranks' loaders, with the batches that all have had."""
    states = copy.deepcopy([*states])
    if not states:
        raise ValueError("state_dict is an empty list: pass the states of all ranks")
    own = states[min(owner.rank, len(states) - 1)]
    if len(states) > 1 and isinstance(own, dict) and "_unbegun_states" not in own:
        mains = [Resume.of(state).main for state in states]
        loaded = [LoadedRecord(main.get("_order"), strict) for main in mains]
        if len(epochs := {one.number for one in loaded}) > 1:
            raise ValueError(f"the states of all ranks must be of one epoch, not of {epochs}")
        record = record_of_all([one.record for one in loaded], owner.rank)
        if record.get("missing"):
            main = own["_snapshot"]["_main_snapshot"] if "_snapshot" in own else own
            n_back = main["_order"]["step"] - record["step"]
            main["_order"], main["_keys_yielded"] = shortened(dict(record)), record.get("position")
            main["_sampler_iter_yielded"] -= n_back
            main.get("_counted", [0, 0])[1] -= n_back
    return own


def load_of_loader(
    owner: EpochOwner, state: Any, batch_size: int | None, strict: bool
) -> LoadedRecord:
    """Have a sampler go on from the state of a loader. Returns what the next iterator goes on from,
    unless `EpochOwner.set_epoch` is called."""
    own = Resume.of(state)
    record, number = own.main.get("_order"), own.main["_sampler_iter_yielded"]
    n_yielded, before = own.main.get("_counted", (own.n_yielded, number))
    step = before + (number - before or own.n_yielded - n_yielded)  # as a client has changed it
    if step != before and own.has_worker_state:
        raise ValueError(
            f"state_dict counts {step} batches, but {before} when it was saved: where it goes on "
            "cannot be told, since the dataset has a state of its own"
        )
    loaded = LoadedRecord(record, strict, step)
    loaded.is_finished = own.is_finished
    if loaded.record.get("missing") and not owner._cuts:
        check_missing(loaded_cut(loaded.record).get("batch_size"), batch_size)
    owner.load(loaded, batch_size or 1)
    return loaded


class EpochKeys:
    """The keys of an `Order` or `Batches`, as `SamplerKeys` gives those of other samplers.

    Batches have numbers from ``first[0]`` on: first those that were missing in a loaded state, then
    the steps of the epoch from there. ``is_batched``: a batch has several keys; ``is_seeded``:
    examples have seeds. ``rows``, or None, is the source of the indices from which the epoch is
    known, if those of the sampler do not tell.
    """

    generator_states: list[str] | None = None
    is_stateful = False
    has_order = False
    makes_arrays = True
    counts_rows = False
    n_states = 0
    has_begun = False  #: whether the number of the epoch was taken
    number: int | None = None  #: of the epoch
    _planner: Planner | None = None  # once batches were planned

    def __init__(
        self, owner: EpochOwner, index_sampler: Any, is_batched: bool, is_seeded: bool, rows: Any
    ) -> None:
        self._owner, self._is_batched, self._is_seeded = owner, is_batched, is_seeded
        self._size: int | None = None
        self._drops = False
        if type(index_sampler) is BatchSampler:
            self._size, self._drops = int(index_sampler.batch_size), index_sampler.drop_last
        elif isinstance(owner, Order):
            self._size = 1
        self.rows = owner.rows or rows
        self._names = rows if owner.rows is None else None
        self.first = 0, 0  #: number of the first batch, and keys before it
        self._ahead: list[Any] = []  # plans of batches that were missing
        self._plans: dict[int, tuple[State, Any]] = {}  # with the states before them
        self.loaded = owner._loaded  #: record that the iteration goes on from
        if self.loaded is not None:
            self._begin()
            before = self._base.position // owner.num_replicas - self._n_ahead()
            self.first = max(0, self._base.step - len(self._ahead)), max(0, before)

    def _begin(self) -> Planner:
        planner = self._owner.planner(self._owner.epoch, self._size, self._is_seeded)
        if self.loaded is not None:
            snapshot = self.loaded.go_to(planner)
            self._ahead = [*snapshot.ahead[1]] if snapshot.ahead else []
        self._planner, self._base = planner, planner.state
        self.cutter = SimpleNamespace(batch_size=planner.batch_size)
        return planner

    def _n_ahead(self) -> int:
        return sum(plan.n_rows for plan in self._ahead)

    @property
    def is_filling(self) -> bool:
        """Whether batches have to come in order."""
        return bool(self._ahead)

    def load(self, main: dict[str, Any], is_finished: bool, is_endless: bool) -> None:
        """The sampler has loaded its place."""

    def take(self) -> bool:
        """Take the number of the epoch, with the first batch. False: batches were planned, and the
        sampler has gone on to another epoch since."""
        owner, loaded, planner = self._owner, self.loaded, self._planner
        if self.number is None:
            if planner is None:
                planner = self._begin()
            elif owner._loaded is not loaded or (not loaded and owner.epoch != planner.last_epoch):
                return False
            self.number = planner.last_epoch
        if owner.epoch == self.number:  # else an interrupt came behind this
            owner.take(self.number)
        owner.run(self)
        self.has_begun = True
        return True

    def draw(self, n_planned: int, n_keys: int) -> tuple[int, int, int, Any]:
        """The batch that follows ``n_planned`` batches of ``n_keys`` keys together: its number, the
        number of keys before it, that of its own keys, and these. The same until it is planned."""
        rows = self.plan(n_planned).indices
        if rows is None or (self._drops and self._size and len(rows) < self._size):
            raise StopIteration
        size = len(rows)
        if self._names is not None:
            rows = self._names.named(rows)
        return n_planned, n_keys, size, rows if self._is_batched else int(rows[0])

    def plan(self, number: int) -> Any:
        planner = self._planner or self._begin()
        place = number - self.first[0] - len(self._ahead)
        if place < 0:
            return self._ahead[place]
        if number not in self._plans:
            before = self._state_before(number, planner)
            self._plans[number] = before, planner.advance(before)
            if len(self._plans) > _MOST_KEPT:
                del self._plans[next(iter(self._plans))]
        return self._plans[number][1]

    def _state_before(self, number: int, planner: Planner) -> State:
        """The state before a batch that is none of the missing ones."""
        if number in self._plans:
            return self._plans[number][0]
        if number - 1 in self._plans:
            return self._plans[number - 1][1].state  # type: ignore[no-any-return]
        base, place = self._base, number - self.first[0] - len(self._ahead)
        if place == 0:
            return base
        n_left = 0
        if planner.has_epoch(base.epoch):
            n_left = planner.n_steps(base.cuts, base.position, base.whole_size)
        if place < n_left:
            return Preview(planner, planner.rank).before(base.step + place)
        epoch = planner.last_epoch + 1
        return base._replace(position=0, epoch=epoch, is_new_epoch=True, step=base.step + n_left)

    def order_after(self, number: int) -> Any:
        """The order that the keys of all batches after this one are parts of, on a single rank;
        None if they have to be planned."""
        order, base, n_ahead = self._base.order, self._base, len(self._ahead)
        is_plain = type(order) is np.ndarray and base.cuts is None and self.rows is None
        if not is_plain or self._owner.num_replicas > 1 or number + 1 < self.first[0] + n_ahead:
            return None
        return order if base.position - self._n_ahead() == self.first[1] else None

    def seeds(self, example_seed: Any, number: int, first: int, keys: Any) -> bytes:
        return self.plan(number).seeds[:-8]  # type: ignore[no-any-return]  # then: a converter's

    def row_seed(self, example_seed: Any) -> tuple[int, int]:
        """The seed of the sampler, on all ranks."""
        return self._owner._seed

    def origin(self, number: int, first: int) -> tuple[int, int]:
        """The epoch that the random numbers of a batch's examples belong to."""
        return self.plan(number).epoch, -1

    def valid(self, number: int) -> list[bool]:
        """For each row of a batch, whether it is no repetition to fill an epoch up."""
        plan = self.plan(number)
        return [row < plan.n_valid for row in range(len(plan.indices))]

    def state(self, place: tuple[int, int], pending: list[tuple[int, int, int]]) -> dict[str, Any]:
        """The state from which to go on, if of the batches planned up to a place these were not
        delivered: number of each, keys before it, and its keys."""
        record = self._record(place[0], {number for number, _, _ in pending})
        return {
            "_sampler_iter_yielded": record["step"],
            "_keys_yielded": record["position"],
            "_order": shortened(record),
        }

    def _record(self, end: int, pending: set[int]) -> dict[str, Any]:
        owner, loaded, planner = self._owner, self.loaded, self._planner
        goes_on = loaded is not None and owner._loaded is loaded
        if planner is None or not (self.has_begun or goes_on):
            return owner.state_dict()
        oldest = min([*pending, end])
        n_filled = oldest - self.first[0]
        if planner.missing is not None and n_filled < len(self._ahead):
            return packed(filled_record(planner.missing, n_filled))
        state = self._state_before(oldest, planner)
        early = [state.step + n - oldest for n in range(oldest, end) if n not in pending]
        return recorded(planner, state, early)
