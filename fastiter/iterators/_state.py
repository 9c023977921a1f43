"""The state of an iteration as a value, the orders of its epochs, and `Planner`.

`Planner` plans batches ahead of the one delivered last, by the rule in
`fastiter._order.epoch_plans`. The state that users see, and that a snapshot saves, is that of the
batch delivered last, however many were planned after it. All of this runs in the thread that calls
the iterator, also the user's order sampler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from fastiter._order.epoch_plans import EpochPlanQueue
from fastiter._order.plan import Plan, epoch_detail, size_within
from fastiter.iterators._seed import seed_after_reset
from fastiter.iterators.samplers._drawing import checked_indices, checked_order, draw_epoch
from fastiter.iterators.samplers._repeats import repeats_of
from fastiter.iterators.samplers.epoch_sampler import Cutting, digest_of, is_epoch_sampler
from fastiter.iterators.samplers.shuffle import ShuffleOrderSampler

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._fetch.seeded import Seeding
    from fastiter._order.example_context import Seed
    from fastiter.iterators._snapshot import Snapshot
    from fastiter.iterators.samplers.epoch_sampler import Key, Limit

__all__ = ["Plan", "Planner", "State", "initial_state"]

_CONVERTERS = 2**64 - 1  # in the place of an epoch
_MOST_ANCHORS = 64  # of a dataset that grows all the time
Indices: TypeAlias = "npt.NDArray[np.int64]"
#: int64[n], or an object with ``len()`` whose slices are one-dimensional integer arrays.
Order = Any
OrderSamplerFunction = Callable[[Order, int], Any]


class Anchor(NamedTuple):
    """A step from which on the present arguments hold."""

    step: int = 0
    epoch: int = 0  #: in which the step begins
    position: int = 0  #: at which it begins there
    n_drawn: int = 0  #: orders drawn by number up to that epoch's


class Holes(NamedTuple):
    """Batches missing in a loaded state, which others have overtaken."""

    saved: dict[str, Any]  #: the state
    numbers: tuple[int, ...]  #: of the bits of these batches, in the order of their delivery
    first: int  #: which of them comes first here
    stride: int  #: and how many ranks take them in turn
    n_ranks: int | None  #: bits of a step, one for each rank; None: it is a state of this rank
    begin: int  #: the step of the first bit
    stop: int  #: the step behind them


class State(NamedTuple):
    """Where an iteration stands: everything that a snapshot has to hold."""

    position: int  #: examples of the current epoch already delivered, 0 <= position < epoch_size
    epoch: int  #: completed epochs
    is_new_epoch: bool  #: whether the last batch completed an epoch
    order: Order | None  #: the current epoch's order; None: 0, 1, 2, ... epoch_size - 1
    epoch_size: int  #: examples in the current epoch, as far as they were counted
    previous_epoch_detail: float | None  #: epoch_detail one batch before; None before the first
    n_drawn: int = 0  #: orders drawn by number so far, ``order`` included; 0: none are
    cuts: Indices | None = None  #: int64[m + 1]: where batches are cut; None: by ``batch_size``
    step: int = 0  #: steps made since the start, of all epochs

    @property
    def anchor(self) -> Anchor:
        """This state as the one from which arguments hold."""
        return Anchor(self.step, self.epoch, self.position, self.n_drawn)

    @property
    def whole_size(self) -> int:
        """Examples in the current epoch, all of which are counted."""
        order = self.order
        counts = order is not None and hasattr(order, "size_within")
        return len(order) if counts else self.epoch_size  # type: ignore[arg-type]

    @property
    def epoch_detail(self) -> float:
        """Epochs delivered so far, with the fraction of the current one."""
        return epoch_detail(self)


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


def row_epochs(plan: Plan) -> Indices:
    """The epoch of each row of a batch."""
    assert plan.indices is not None
    before = np.arange(len(plan.indices) - plan.position, -plan.position, -1, dtype=np.int64)
    earlier = 1 + (before - 1) // plan.epoch_size
    return np.where(before <= 0, plan.epoch, np.maximum(0, plan.epoch - earlier))


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
) -> State:
    """State before the first batch. The sampler gives the first epoch's order: that of ``number``,
    if its orders have numbers, or that whose turn it is. A batch sampler has ``cuttings``."""
    dataset_size = dataset_len()
    order, n_drawn, cuts = None, 0, None
    if is_epoch_sampler(order_sampler):
        number = order_sampler.number if number is None else number
        order, cuts = draw_epoch(order_sampler, number, dataset_size, None, cuttings)
        n_drawn = number + 1
    elif order_sampler is not None:
        fresh = _gives_fresh_orders(order_sampler)
        start = range(dataset_size) if fresh else np.arange(dataset_size, dtype=np.int64)
        order = checked_order(order_sampler(start, 0), dataset_size, copy=not fresh)
    size = dataset_size if order is None else size_within(order, 1)
    if size == 0:
        raise ValueError(
            "an epoch must have at least one example: "
            + ("order_sampler returned an empty order" if dataset_size else "dataset is empty")
        )
    return State(0, 0, False, order, size, None, n_drawn, cuts, step)


def _gives_fresh_orders(order_sampler: OrderSamplerFunction) -> bool:
    """Whether it only measures its argument and keeps no result; a subclass may do otherwise."""
    return type(order_sampler) is ShuffleOrderSampler


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
        **cutting: Any,
    ) -> None:
        super().__init__(state, batch_size, repeat, **cutting)
        self._order_sampler = order_sampler
        self._dataset_len = dataset_len
        #: steps from which on arguments and size of epochs were others, and that size
        self.anchors: tuple[tuple[Anchor, int], ...] = ((state.anchor, state.epoch_size),)
        #: the number of an epoch that was begun with other cuts, and all its cuttings
        self.recut: tuple[int, tuple[Cutting, ...]] | None = None
        self.holes: Holes | None = None  #: in the state that was loaded
        # Each of the order that it was asked for last.
        self._repeats: tuple[Order, Indices | None] = None, None
        self._digest: tuple[Order, Key] = None, (0, 0)
        self._note(state)

    def __setstate__(self, given: dict[str, Any]) -> None:
        super().__setstate__({**given, "_repeats": (None, None), "_digest": (None, (0, 0))})

    # ---- overridden by the planner of streams

    #: whether batches have addresses: then a batch may come before those that precede it
    has_addresses: ClassVar[bool] = True

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
        if self.varies and state.position == 0:
            return state._replace(epoch=0, is_new_epoch=False, previous_epoch_detail=None)
        cuttings = self.cuttings_of(state.n_drawn)
        return initial_state(sampler, self._dataset_len, cuttings, state.n_drawn, state.step)

    def seed_after_reset(self, seed: Seed) -> Seed:
        """The seed of examples after a reset: another one, for the epochs count from 0 again."""
        return seed_after_reset(seed)

    def saved_stream(self, state: State) -> dict[str, Any] | None:
        """Entries of a snapshot in place of order, seed and cuts; None if it has these three."""
        return None

    def loaded_stream(self, stored: Any) -> State | None:
        """The state that `saved_stream` has told of, checked. ``stored`` is None where a snapshot
        has nothing of it."""
        if stored is not None:
            raise ValueError("the snapshot was saved with a StreamDataset, but this one reads none")
        return None

    @property
    def anchor(self) -> Anchor:
        """The step from which on the present arguments and the present size of epochs hold."""
        step, oldest = self.state.step, self.anchors[0][0]
        return next((each for each, _ in reversed(self.anchors) if each.step <= step), oldest)

    if TYPE_CHECKING:

        @property
        def state(self) -> State: ...

    def _next_epoch(
        self, order: Order | None, position: int, size: int, n_drawn: int
    ) -> tuple[Order | None, int, int, Indices | None]:
        if order is None and not self.repeat:
            return None, size, n_drawn, None
        dataset_size = self._dataset_len()
        if order is None:
            if dataset_size == 0:
                raise ValueError("dataset has become empty: no example for the next epoch")
            return None, dataset_size, n_drawn, None
        sampler = self._order_sampler
        if sampler is None:
            raise ValueError(
                "the state has an order, but there is no order_sampler for the next one"
            )
        has_grown = size == self.former_size
        if has_grown:
            size = dataset_size
        if is_epoch_sampler(sampler):
            draw = draw_epoch if self.epochs is None else self.epochs.next_epoch
            order, cuts = draw(sampler, *self.drawing(n_drawn, dataset_size, size))
            return order, self.counted(order, 0, size_within(order, 0)), n_drawn + 1, cuts
        if has_grown:
            order, position = np.arange(dataset_size, dtype=np.int64), 0
        fresh = _gives_fresh_orders(sampler)
        # A sampler of the user's may shuffle what it is given in place, or keep what it returns:
        # the order of the batch delivered last must survive both.
        current = order if fresh or not isinstance(order, np.ndarray) else order.copy()
        drawn = sampler(current, position)
        return checked_order(drawn, dataset_size, size=size, copy=not fresh), size, n_drawn, None

    def _draw_ahead(self, number: int) -> None:
        drawing = self.drawing(number, self._dataset_len(), self._following_size())
        self.epochs.begin(self._order_sampler, *drawing)

    def go_on_from(self, snapshot: Snapshot, example_seed: Seed | None) -> None:
        """Restart from a snapshot; after an error all is as it was."""
        before = self.anchors, self.recut, self.former_size, self.example_seed, self.holes
        try:
            self.recut, self.holes = snapshot.recut, snapshot.holes
            self.former_size, self.example_seed = snapshot.former_size, example_seed
            self.restart(snapshot.state, snapshot.skips, *snapshot.ahead)
            self.anchors = ((snapshot.anchor, snapshot.state.epoch_size),)
        except BaseException:
            self.anchors, self.recut, self.former_size, self.example_seed, self.holes = before
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
    def has_holes(self) -> bool:
        """Whether batches of `holes` are to be delivered."""
        return self.holes is not None and self.state.step < self.holes.stop

    def filled(self) -> list[int]:
        """The numbers of the batches of `holes` that were delivered here."""
        assert self.holes is not None
        own, stop = self.holes.numbers[self.holes.first :: self.holes.stride], self.holes.stop
        left = [plan for plan in self.plans if plan.indices is not None and plan.state.step <= stop]
        return list(own[: len(own) - len(left)])

    def place_of(self, plan: Plan) -> tuple[int, int]:
        """Step and rank of the batch that was delivered last."""
        holes = self.holes
        if holes is None or plan.state.step > holes.stop:
            return plan.state.step - 1, self.rank
        n_steps, rank = divmod(self.filled()[-1], holes.n_ranks or 1)
        return holes.begin + n_steps, rank if holes.n_ranks else self.rank

    def cuttings_of(self, number: int) -> tuple[Cutting, ...]:
        """How the epoch of that number is cut into batches by a batch sampler; empty without."""
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
        assert plan.indices is not None
        repeats = [
            self._repeats_in(order, start, stop) + (rounds << 32)
            for order, start, stop, rounds in parts
        ]
        examples = permutation.example_seeds(
            self.example_seed, row_epochs(plan), plan.indices, np.concatenate(repeats)
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
            self.anchors = (*self.anchors[-_MOST_ANCHORS:], (state.anchor, state.epoch_size))
