"""The address of a batch: which examples a step's batch has, found without touching data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastiter._order.plan import Plan, size_within
from fastiter._plan.epoch_sampler import is_epoch_sampler
from fastiter._plan.epoch_store import EpochStore
from fastiter._plan.epochs import Planner, StillPlanner
from fastiter._plan.state import State
from fastiter._util.arguments import checked_int, iterated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastiter._fetch.dataset_access import Epochs
    from fastiter._order.example_context import Seed
    from fastiter._plan.state import Anchor, Indices, Order


_MOST_EXAMPLES = 1 << 62


class Address(NamedTuple):
    """The examples of the batch of a step."""

    step: int  #: counted from 0, over all epochs
    rank: int
    indices: npt.NDArray[np.int64]  #: dataset index of each row
    epochs: npt.NDArray[np.int64]  #: epoch of each row
    #: uint64[n]: what ``seed_examples`` seeds the global generators with for each row; without it
    #: the first word of what `fastiter.random.example_rng` derives from seed, epoch and index
    seeds: npt.NDArray[np.uint64]


def address_of(plan: Plan, rank: int, seed: Seed, known: Epochs | None) -> Address:
    """The address of a planned batch. ``known``: of a dataset whose indices tell the epoch."""
    from fastiter._order import permutation

    indices = plan.indices
    if indices is None:
        raise LookupError(f"step {plan.state.step} is after the end, which leaves out the rest")
    epochs = plan.epochs()
    rows = indices.copy() if known is None else known.numbers(indices)
    if plan.seeds is None:
        seeds = permutation.example_seeds(seed, epochs, indices)
    else:
        seeds = np.frombuffer(plan.seeds, np.uint64)[:-1].copy()
    return Address(plan.state.step - 1, rank, rows, epochs, seeds)


class Preview(StillPlanner):
    """Plans steps anywhere by the rule and the arguments of another planner, without moving it.

    Orders of epochs beside the current one are kept: the last one that was asked for, and the one
    after it; in ``kept``, for other previews, too.
    """

    def __init__(self, planner: Planner, rank: int, kept: EpochStore | None = None) -> None:
        self._kept = EpochStore() if kept is None else kept
        super().__init__(planner.state, **{**planner.arguments(), "rank": rank})
        self.anchors, self.recut = planner.anchors, planner.recut
        self.former_size = planner.former_size
        sampler = self._order_sampler
        if sampler is not None and not is_epoch_sampler(sampler):
            raise ValueError(
                "the batches of other steps are known with a seed only: use order_sampler="
                "ShuffleOrderSampler(seed), another sampler with a seed, or shuffle=False"
            )

    def _next_epoch(
        self, order: Order | None, position: int, size: int, n_drawn: int
    ) -> tuple[Order | None, int, int, Indices | None]:
        if not self.repeat:
            return order, size, n_drawn, self.state.cuts
        if order is None:
            self._present += 1
            return None, self._size_of(self._present), n_drawn, None
        order, cuts = self._epoch(n_drawn)
        return order, self.counted(order, 0, size_within(order, 0)), n_drawn + 1, cuts

    def _epoch(self, number: int) -> tuple[Order, Indices | None]:
        state = self.state
        if number == state.n_drawn - 1:
            return state.order, state.cuts
        sampler = self._order_sampler
        assert is_epoch_sampler(sampler)
        size = self._size_of(self._base.epoch + number - (self._base.n_drawn - 1))
        return self._kept.epoch(sampler, *self.drawing(number, self._dataset_len(), size))

    def _begin_at(self, step: int) -> Anchor:
        """Find the anchor that tells of a step."""
        state, following = self.state, self._following_size()
        #: the sizes of epochs: the first one up to an epoch, behind it the second
        self._sizes, self._until = (state.epoch_size, following), state.epoch
        if step >= state.step and following != state.epoch_size:
            self._base = state.anchor
            return self._base
        self._until = sys.maxsize
        for anchor, size, until in reversed(self.anchors):
            self._base, self._sizes = anchor, (size, self._sizes[0])
            if anchor.step <= step:
                return anchor
            self._until = until
        raise LookupError(
            f"step {step} is before step {anchor.step}, from which on the present batch_size, "
            "ranks, seed or number of examples hold: load a state that was saved before then, with "
            "the arguments of that time"
        )

    def _size_of(self, epoch: int) -> int:
        """Examples of an epoch, of orders and fixed batch sizes."""
        return self._sizes[epoch > self._until]

    def before(self, step: int) -> State:
        """The state before a step, but for what it says of the one before that."""
        anchor = self._begin_at(step)
        whole = self.batch_size * self.num_ranks
        if (step - anchor.step) * whole >= _MOST_EXAMPLES:  # epochs are counted in 63 bits
            most = anchor.step + (_MOST_EXAMPLES - 1) // whole
            raise ValueError(f"step must be at most {most}")
        epoch, position, order, size, cuts = self._place(step - anchor.step)
        if not self.has_epoch(epoch):
            raise LookupError(f"step {step} is after the end: with repeat=False there is one epoch")
        self._present = epoch
        n_drawn = 0 if self._order_sampler is None else anchor.n_drawn + epoch - anchor.epoch
        return State(position, epoch, False, order, size, None, n_drawn, cuts, step)

    def _place(self, n_steps: int) -> tuple[int, int, Order | None, int, Indices | None]:
        """Epoch, position, order, size and cuts that number of steps after the anchor."""
        anchor, whole = self._base, self.batch_size * self.num_ranks
        if n_steps == 0:  # where a rest without a batch is still to come
            return self._anchor_place()
        if self.state.cuts is not None:
            return self._place_by_cuts(n_steps)
        epoch, position = anchor.epoch, anchor.position
        # Steps are left; or examples, where a batch may be of two epochs.
        spans = self.repeat and not self.drop_last
        left = position + n_steps * whole if spans else n_steps
        while True:
            number = anchor.n_drawn - 1 + epoch - anchor.epoch
            if self.varies:
                within = left + 2 * whole if spans else position + (left + 2) * whole
                size = self._counted(number, within)
            else:
                size = self._size_of(min(epoch, anchor.epoch + 1))
            here = size if spans else self.n_steps(None, position, size)
            if left < here:
                break
            # Behind the first epoch all are alike, unless they vary.
            n_passed = 1 if self.varies or epoch == anchor.epoch else left // here
            epoch, position, left = epoch + n_passed, 0, left - n_passed * here
        position = left if spans else position + left * whole
        order = None
        if self._order_sampler is not None and self.has_epoch(epoch):
            order, _ = self._epoch(number)
        return epoch, position, order, size, None

    def _anchor_place(self) -> tuple[int, int, Order | None, int, Indices | None]:
        anchor, sampler = self._base, self._order_sampler
        order = cuts = None
        size = self._size_of(anchor.epoch)
        if sampler is not None and self.has_epoch(anchor.epoch):
            order, cuts = self._epoch(anchor.n_drawn - 1)
            if cuts is not None:
                size = len(order)
            elif self.varies:
                size = self.counted(order, anchor.position, size_within(order, 0))
        return anchor.epoch, anchor.position, order, size, cuts

    def _counted(self, number: int, within: int) -> int:
        """`EpochSampler.size`, which must be above 0."""
        sampler = self._order_sampler
        assert is_epoch_sampler(sampler)
        size = int(sampler.size(number, self._dataset_len(), within))
        if size < 1:
            raise ValueError(f"{sampler.label(number)} has no examples: size() tells of {size}")
        return size

    def _place_by_cuts(self, n_steps: int) -> tuple[int, int, Order, int, Indices | None]:
        anchor, sampler = self._base, self._order_sampler
        assert is_epoch_sampler(sampler)
        number, position, n = anchor.n_drawn - 1, anchor.position, self._dataset_len()
        count = sampler.n_batches(None, n, self.num_ranks)
        while True:
            # Epochs passed over are planned once, however often their batches are counted.
            known = sampler.n_batches(number, n, self.num_ranks) if position == 0 else None
            if known is not None and known > 0 and known % self.num_ranks == 0:
                steps = int(known) // self.num_ranks
                if n_steps >= steps and number != (self.recut or (None,))[0]:
                    n_epochs = 1 if count is None else n_steps // steps
                    n_steps -= steps * n_epochs
                    number += n_epochs
                    continue
            order, cuts = self._epoch(number)
            here = self.n_steps(cuts, position, len(order))
            if n_steps < here:
                break
            n_steps -= here
            number, position = number + 1, 0
        assert cuts is not None
        place = int(np.searchsorted(cuts, position)) + n_steps * self.num_ranks
        epoch = anchor.epoch + number - (anchor.n_drawn - 1)
        return epoch, int(cuts[place]), order, len(order), cuts

    def after(self, step: int) -> State:
        """The state before a step, as that after the one before it; the anchor's has none."""
        if step == self.anchors[0][0].step:
            return self.before(step)
        self._begin_at(step)  # a LookupError names this step, not the one before
        return self.advance(self.before(step - 1)).state  # type: ignore[no-any-return]

    def anchors_of(self, state: State) -> tuple[tuple[Anchor, int, int], ...]:
        """`Planner.anchors` up to a state that `after` has found."""
        known = tuple(each for each in self.anchors if each[0].step <= self._base.step)
        if self.varies or state.epoch_size == self._sizes[0]:
            return known
        return (*known, (state.anchor, state.epoch_size, self._until))


class SkippingPlanner(Planner):
    """Leaves out some steps, and plans the one after them in their place."""

    def skip(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Leave out steps from each range's first to below its second number; before a plan."""
        self._ranges = ranges

    def is_left_out(self, step: int) -> bool:
        return any(start <= step < stop for start, stop in self._ranges)

    def advance(self, state: State) -> Plan:
        """The plan of the next step that is not left out. Its state also tells of those that are:
        one of them may have ended an epoch."""
        before = state
        while self.is_left_out(state.step):
            skipped = super().advance(self._further(state))
            if skipped.indices is None:
                return skipped
            state = skipped.state
        plan = super().advance(state)
        if plan.indices is None or state is before:
            return plan
        is_new, detail = plan.state.epoch != before.epoch, before.epoch_detail
        after = plan.state._replace(is_new_epoch=is_new, previous_epoch_detail=detail)
        (indices, _), places = plan.values()
        return Plan(indices, after, **places)

    def _further(self, state: State) -> State:
        """The state before the last step of its epoch to leave out, or an earlier one."""
        end = max(stop for start, stop in self._ranges if start <= state.step < stop)
        n_left = self.n_steps(state.cuts, state.position, state.epoch_size)
        n_steps = max(0, min(end - state.step, n_left) - 1) if self.has_epoch(state.epoch) else 0
        position = state.position + n_steps * self.batch_size * self.num_ranks
        if state.cuts is not None:
            place = int(np.searchsorted(state.cuts, state.position)) + n_steps * self.num_ranks
            position = int(state.cuts[place])
        return state._replace(position=position, step=state.step + n_steps)


def checked_ranges(skip_steps: Any) -> list[tuple[int, int]]:
    """The argument ``skip_steps``, ascending."""
    ranges = []
    for pair in iterated("skip_steps", "pairs (start, stop) of steps", skip_steps):
        try:
            start, stop = pair
        except (TypeError, ValueError):
            raise ValueError(
                f"skip_steps must be pairs (start, stop) of steps, not {pair!r}"
            ) from None
        start = checked_int("skip_steps: start", start, minimum=0)
        ranges.append((start, checked_int("skip_steps: stop", stop, minimum=start)))
    return sorted(ranges)
