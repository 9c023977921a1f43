"""The orders of epochs, and `Planner`.

`Planner` plans batches ahead of the one delivered last, by the rule in
`fastiter._order.epoch_plans`. The state that users see, and that a snapshot saves, is that of the
batch delivered last, however many were planned after it. All of this runs in the thread that calls
the iterator, also the user's order sampler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastiter._order.epoch_plans import EpochPlanQueue
from fastiter._order.plan import Plan, size_within
from fastiter._plan.drawing import checked_indices, checked_order, draw_epoch, gives_fresh_orders
from fastiter._plan.epoch_sampler import Cutting, digest_of, is_epoch_sampler
from fastiter._plan.repeats import repeats_of
from fastiter._plan.seed import derived_seed
from fastiter._plan.state import Anchor, Indices, Missing, Order, Snapshot, State

if TYPE_CHECKING:
    from fastiter._fetch.seeded import Seeding
    from fastiter._order.example_context import Seed
    from fastiter._plan.epoch_sampler import Epoch, Key, Limit

_CONVERTERS = 2**64 - 1  # in the place of an epoch
_MOST_ANCHORS = 64  # of a dataset that grows all the time
OrderSamplerFunction = Callable[[Order, int], Any]


def dataset_length(dataset: Any) -> int:
    """Length of ``dataset``. What else its ``__len__`` raises passes through."""
    try:
        return len(dataset)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"dataset must have a length from 0 to {sys.maxsize}, but len() of this "
            f"{type(dataset).__qualname__} raised {type(error).__name__}: {error}"
        ) from error


def converter_seed(seed: Seed, step: int, rank: int) -> bytes:
    """Seed of the generators for the converter of a batch, as bytes of a uint64."""
    from fastiter._order import permutation

    first, second = permutation.example_words(seed, _CONVERTERS, 0)[:2].tolist()
    return permutation.example_words((first, second), step, rank)[:1].tobytes()


def initial_state(
    order_sampler: OrderSamplerFunction | None,
    dataset_len: Callable[[], int],
    cuttings: Sequence[Cutting] = (),
    number: int | None = None,
    step: int = 0,
    draw: Callable[..., Epoch] = draw_epoch,
) -> State:
    """State before the first batch. The sampler gives the first epoch's order: that of ``number``,
    if its orders have numbers, or that whose turn it is. A batch sampler has ``cuttings``. ``draw``
    is `draw_epoch`, or does the same."""
    dataset_size = dataset_len()
    order, n_drawn, cuts = None, 0, None
    if is_epoch_sampler(order_sampler):
        number = order_sampler.number if number is None else number
        order, cuts = draw(order_sampler, number, dataset_size, None, cuttings)
        n_drawn = number + 1
    elif order_sampler is not None:
        fresh = gives_fresh_orders(order_sampler)
        start = range(dataset_size) if fresh else np.arange(dataset_size, dtype=np.int64)
        order = checked_order(order_sampler(start, 0), dataset_size, copy=not fresh)
    size = dataset_size if order is None else size_within(order, 1)
    if size == 0:
        raise ValueError(
            "an epoch must have at least one example: "
            + ("order_sampler returned an empty order" if dataset_size else "dataset is empty")
        )
    return State(0, 0, False, order, size, None, n_drawn, cuts, step)


class Planner(EpochPlanQueue):
    """Plans batches ahead of the one delivered last; asks for an order and the dataset's length
    whenever an epoch ends."""

    def __init__(
        self,
        state: State,
        *,
        batch_size: int,
        repeat: bool,
        order_sampler: OrderSamplerFunction | None,
        dataset_len: Callable[[], int],
        seed: Seed = (0, 0),
        seeds_examples: bool = False,
        last_epoch: int = 0,
        **cutting: Any,
    ) -> None:
        super().__init__(state, batch_size, repeat, **cutting)
        self.seed = seed  #: from which the random numbers of examples follow
        self.example_seed = seed if seeds_examples else None
        self.last_epoch = last_epoch  #: without ``repeat`` the number of the only epoch
        self._order_sampler = order_sampler
        self._dataset_len = dataset_len
        #: where arguments or size of epochs changed: that step, that size, the last epoch before
        self.anchors: tuple[tuple[Anchor, int, int], ...] = ((state.anchor, state.epoch_size, -1),)
        #: the number of an epoch that was begun with other cuts, and all its cuttings
        self.recut: tuple[int, tuple[Cutting, ...]] | None = None
        self.missing: Missing | None = None  #: in the state that was loaded
        # Each of the order that it was asked for last.
        self._repeats: tuple[Order, Indices | None] = None, None
        self._digest: tuple[Order, Key] = None, (0, 0)
        self._note(state)

    def has_epoch(self, epoch: int) -> bool:
        return self.repeat or epoch <= self.last_epoch

    def __setstate__(self, given: dict[str, Any]) -> None:
        super().__setstate__({**given, "_repeats": (None, None), "_digest": (None, (0, 0))})

    def arguments(self) -> dict[str, Any]:
        """Those of the constructor for another planner of the same batches, besides the state."""
        of_cuts = "batch_size", "repeat", "rank", "num_ranks", "drop_last", "tail"
        return {
            **{name: getattr(self, name) for name in (*of_cuts, "seed", "last_epoch")},
            "order_sampler": self._order_sampler,
            "dataset_len": self._dataset_len,
            "seeds_examples": self.example_seed is not None,
        }

    # ---- overridden by the planner of streams

    kind: ClassVar[str] = "epochs"  #: of the records of its states
    #: whether batches have addresses: then a batch may come before those that precede it
    has_addresses: ClassVar[bool] = True

    def n_examples(self) -> int:  # of an epoch
        return self.state.whole_size

    def parts_for(self, seeding: Seeding | None) -> Any:
        """A new `PartStore` to read examples before batches are planned; None: none is needed."""
        return None

    def attach(self, store: Any) -> None:
        """Plan batches of the examples that ``store`` reads. Needed where `parts_for` gives one."""
        raise NotImplementedError

    def examples_of(self, plan: Plan) -> list[Any]:
        """The examples of a plan by its `Plan.request`. Needed where `parts_for` gives a store."""
        raise NotImplementedError

    def close(self) -> None:
        """End what reads for the planner."""

    def after_reset(self) -> State:
        """The state to go on from after a reset: at the start of the first epoch, with a new order.

        The new order has the next number after the delivered ones, whatever was drawn ahead. Where
        epochs vary, none is left out: an epoch of which nothing was delivered comes again.
        """
        state, sampler = self.state, self._order_sampler
        if self.varies and state.position == 0 and self.has_epoch(state.epoch):
            return state._replace(epoch=0, is_new_epoch=False, previous_epoch_detail=None)
        cuttings = self.cuttings_of(state.n_drawn)
        draw = draw_epoch if self.epochs is None else self.epochs.next_epoch
        return initial_state(sampler, self._dataset_len, cuttings, state.n_drawn, state.step, draw)

    def seed_after_reset(self) -> Seed:
        """The seed of examples after a reset: another one, for the epochs count from 0 again."""
        return derived_seed("reset", {"seed": list(self.seed)})

    def saved_place(self) -> dict[str, Any]:
        """The place of the state in a record, where that has neither order nor cut."""
        raise NotImplementedError

    def loaded_place(self, record: Mapping[str, Any]) -> tuple[State, Any]:
        """The state at the place that `saved_place` has given, and `Snapshot.sources`, checked."""
        raise NotImplementedError

    @property
    def anchor(self) -> Anchor:
        """The step from which on the present arguments and the present size of epochs hold."""
        step, oldest = self.state.step, self.anchors[0][0]
        return next((each for each, _, _ in reversed(self.anchors) if each.step <= step), oldest)

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

    def _next_epoch(
        self, order: Order | None, position: int, size: int, n_drawn: int
    ) -> tuple[Order | None, int, int, Indices | None]:
        sampler = self._order_sampler
        if not self.repeat and (order is None or is_epoch_sampler(sampler)):
            return order, size, n_drawn, self.state.cuts  # the next one is drawn if it is wanted
        dataset_size = self._dataset_len()
        if order is None:
            if dataset_size == 0:
                raise ValueError("dataset has become empty: no example for the next epoch")
            return None, dataset_size, n_drawn, None
        assert sampler is not None  # it has given the order
        has_grown = size == self.former_size
        if has_grown:
            size = dataset_size
        if is_epoch_sampler(sampler):
            draw = draw_epoch if self.epochs is None else self.epochs.next_epoch
            order, cuts = draw(sampler, *self.drawing(n_drawn, dataset_size, size))
            return order, self.counted(order, 0, size_within(order, 0)), n_drawn + 1, cuts
        if has_grown:
            order, position = np.arange(dataset_size, dtype=np.int64), 0
        fresh = gives_fresh_orders(sampler)
        # A sampler of the user's may shuffle what it is given in place, or keep what it returns:
        # the order of the batch delivered last must survive both.
        current = order if fresh or not isinstance(order, np.ndarray) else order.copy()
        drawn = sampler(current, position)
        return checked_order(drawn, dataset_size, size=size, copy=not fresh), size, n_drawn, None

    def _draw_ahead(self, number: int) -> None:
        drawing = self.drawing(number, self._dataset_len(), self._following_size())
        self.epochs.begin(self._order_sampler, *drawing)

    def snapshot(self) -> Snapshot:
        """The snapshot from which an iteration like this one continues."""
        cut = self.anchor, self.recut, self.former_size
        return Snapshot(self.state, self.seed, self.progress, *cut)

    def go_on_from(self, snapshot: Snapshot) -> None:
        """Restart from a snapshot; after an error all is as it was."""
        names = "anchors", "recut", "former_size", "seed", "example_seed", "missing"
        before = [getattr(self, name) for name in names]
        try:
            self.recut, self.missing = snapshot.recut, snapshot.missing
            self.former_size, self.seed = snapshot.former_size, snapshot.seed
            if self.example_seed is not None:
                self.example_seed = snapshot.seed
            self.restart(snapshot.state, snapshot.skips, *snapshot.ahead)
            self.anchors = ((snapshot.anchor, snapshot.state.epoch_size, -1),)
        except BaseException:
            for name, value in zip(names, before, strict=True):
                setattr(self, name, value)
            raise

    @property
    def limits(self) -> tuple[Limit, ...]:
        """The arguments of a batch sampler that may change within an epoch."""
        sampler = self._order_sampler
        return sampler.limits() if is_epoch_sampler(sampler) else ()

    @property
    def varies(self) -> bool:
        """Whether epochs may differ in length though the dataset stays as it is."""
        sampler = self._order_sampler
        return self.state.cuts is not None or (is_epoch_sampler(sampler) and sampler.varies)

    def digest_of(self, state: State) -> Key:
        """Digest of a state's order and cuts."""
        if self._digest[0] is not state.order:
            self._digest = state.order, digest_of(state.order, state.cuts)
        return self._digest[1]

    def is_left_out(self, step: int) -> bool:
        """Whether that step is planned and dropped."""
        return False

    @property
    def is_filling(self) -> bool:
        """Whether batches of `missing` are to be delivered."""
        return self.missing is not None and self.state.step < self.missing.stop

    def filled(self) -> list[int]:
        """The numbers of the batches of `missing` that were delivered here."""
        missing = self.missing
        assert missing is not None
        own, stop = missing.numbers[missing.first :: missing.stride], missing.stop
        left = [plan for plan in self.plans if plan.indices is not None and plan.state.step <= stop]
        return list(own[: len(own) - len(left)])

    def place_of(self, plan: Plan) -> tuple[int, int]:
        """Step and rank of the batch that was delivered last."""
        missing = self.missing
        if missing is None or plan.state.step > missing.stop:
            return plan.state.step - 1, self.rank
        n_steps, rank = divmod(self.filled()[-1], missing.n_ranks or 1)
        return missing.begin + n_steps, rank if missing.n_ranks else self.rank

    def cuttings_of(self, number: int) -> tuple[Cutting, ...]:
        """The cutting of that epoch by a batch sampler; empty without one."""
        if self.state.cuts is None:
            return ()
        if self.recut is not None and self.recut[0] == number:
            return self.recut[1]
        return (Cutting(0, self.num_ranks, self.limits),)

    def drawing(self, number: int, dataset_size: int, size: int) -> tuple[Any, ...]:
        """The arguments of `draw_epoch` for the epoch of that number; ``size`` is as others'."""
        return number, dataset_size, None if self.varies else size, self.cuttings_of(number)

    def _slice(self, order: Order, start: int, stop: int) -> Indices:
        piece = order[start:stop]
        if hasattr(order, "index_bound"):
            return np.ascontiguousarray(piece, dtype=np.int64)
        return checked_indices(piece, self._dataset_len(), "a slice of the order")

    def _seeds(self, plan: Plan, parts: Sequence[tuple[Order, int, int, int]], step: int) -> bytes:
        from fastiter._order import permutation

        assert self.example_seed is not None
        repeats = [
            self._repeats_in(order, start, stop) + (rounds << 32)
            for order, start, stop, rounds in parts
        ]
        examples = permutation.example_seeds(
            self.example_seed, plan.epochs(), plan.indices, np.concatenate(repeats)
        )
        return examples.tobytes() + converter_seed(self.example_seed, step, self.rank)

    def _repeats_in(self, order: Order, start: int, stop: int) -> Indices:
        """Number of earlier draws in the epoch of the index at each position of an order; in a
        mixture the pass through its source."""
        if self._repeats[0] is not order:
            self._repeats = order, repeats_of(self._order_sampler, order)
        repeats = self._repeats[1]
        if repeats is None:
            return np.zeros(stop - start, dtype=np.int64)
        return np.asarray(repeats[start:stop], dtype=np.int64)

    def _following_size(self) -> int:
        """Examples of the next epoch, of orders and fixed batch sizes."""
        size = self.state.epoch_size
        is_asked = self._order_sampler is None or size == self.former_size
        return (self._dataset_len() if is_asked else 0) or size

    def _note(self, state: State) -> None:
        sampler = self._order_sampler
        if is_epoch_sampler(sampler):
            sampler.number = max(sampler.number, state.n_drawn)
        if state.epoch_size != self.anchors[-1][1] and not self.varies:  # the dataset has grown
            grown = state.anchor, state.epoch_size, self.state.epoch
            self.anchors = (*self.anchors[-_MOST_ANCHORS:], grown)


class StillPlanner(Planner):
    """Plans without moving the sampler."""

    def _note(self, state: State) -> None:
        """Nothing is drawn."""
