"""States with holes: of runs with ``in_order=False``, some of whose batches have overtaken others.

What is missing comes first after such a state was loaded, as it was cut, also where the iterator
has another batch size, other limits or ranks. So the steps that the state tells of are planned
once more by the arguments of that time; from the step behind them on, the iterator's own hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastiter._order.plan import Plan
from fastiter.iterators._skips import KEY as SKIPS_KEY
from fastiter.iterators._snapshot import (
    CUTS_KEY,
    DEFAULTS,
    DELIVERED_KEY,
    SEED_KEY,
    Snapshot,
    as_dict,
    from_dict,
    loaded_cuts,
    unreadable,
)
from fastiter.iterators._state import Holes, Planner, State
from fastiter.iterators.samplers.epoch_sampler import Cutting

_OF_ALL_KEY = "of_all_ranks"  # whether DELIVERED_KEY has a bit for each rank of each step
_MOST_BITS = 1 << 16


class Former(Planner):
    """Plans for all ranks by the arguments that a state was saved with, without moving a sampler.

    `rank` is that of the plans, to be set. ``num_ranks`` may be given instead of that of the state.
    """

    def __init__(
        self, planner: Planner, saved: Mapping[str, Any], *, num_ranks: int | None = None
    ) -> None:
        given = {name: saved.get(name, default) for name, default in DEFAULTS.items()}
        given["batch_size"] = given["batch_size"] or 1
        given["num_ranks"] = num_ranks or given["num_ranks"]
        self._of = planner, saved
        self._limits = planner.limits
        if saved.get("cuttings"):
            self._limits = tuple(saved["cuttings"][-1][2])
        super().__init__(
            planner.state,
            order_sampler=planner._order_sampler,
            dataset_len=planner._dataset_len,
            **given,
        )

    @property
    def limits(self) -> tuple[Any, ...]:
        """The arguments of a batch sampler that the state was saved with."""
        return self._limits

    def _note(self, state: State) -> None:
        """Nothing is drawn."""

    def plans_of(self, state: State, ranks: range) -> list[Plan]:
        """The plans of these ranks for the step behind a state."""
        plans = []
        for self.rank in ranks:
            plans.append(self.advance(state))
        return plans

    def behind_first(self, state: State, plans: Sequence[Plan]) -> State | None:
        """The state behind the batches of the first ranks at a step. None if there is none: in the
        last step of an epoch batches depend on the number of ranks."""
        fewer = Former(*self._of, num_ranks=len(plans))
        fewer.former_size = self.former_size
        behind, stop = state, state.position
        for own, plan in zip(fewer.plans_of(state, range(len(plans))), plans, strict=True):
            assert own.indices is not None and plan.indices is not None
            if not np.array_equal(own.indices, plan.indices):
                return None
            behind, stop = own.state, stop + len(plan.indices)
        leaves_out = behind.epoch > state.epoch and stop < state.epoch_size
        return None if leaves_out else behind


def holes_as_dict(current: Snapshot, planner: Planner) -> dict[str, Any]:
    """The state while batches of ``planner.holes`` are missing: the one that was loaded, and what
    was delivered since."""
    holes = planner.holes
    assert holes is not None
    cuts = dict(holes.saved[CUTS_KEY])
    n_filled = len(planner.filled()) * holes.stride  # by all ranks
    cuts[DELIVERED_KEY] |= sum(1 << number for number in holes.numbers[:n_filled])
    saved = {**holes.saved, CUTS_KEY: cuts}
    return saved if current.skips is None else {**saved, SKIPS_KEY: current.skips.saved()}


def from_states(stored: Any, current: Snapshot, planner: Planner, *, strict: bool) -> Snapshot:
    """The snapshot of a state, or of all ranks' states, in the order of ranks."""
    if isinstance(stored, (list, tuple)):
        stored = _of_all(stored, planner)
    saved = _cuts_of(stored)
    bits = saved.get(DELIVERED_KEY, 0)
    if not bits:
        return from_dict(stored, current, planner, strict=strict)
    if type(bits) is not int or not 0 < bits < 1 << _MOST_BITS:
        raise unreadable(CUTS_KEY, ValueError(f"{DELIVERED_KEY} {bits!r:.80}"))
    try:
        former = Former(planner, saved)
    except (IndexError, TypeError, ValueError) as error:
        raise unreadable(CUTS_KEY, error) from error
    arguments = {k: v for k, v in saved.items() if k not in (DELIVERED_KEY, _OF_ALL_KEY)}
    loaded = from_dict({**stored, CUTS_KEY: arguments}, current, former, strict=strict)
    example_seed = None if planner.example_seed is None else loaded.seed
    former.go_on_from(loaded, example_seed)
    is_of_all = bool(saved.get(_OF_ALL_KEY)) or former.num_ranks == 1
    if is_of_all:
        ranks, first, stride = range(former.num_ranks), planner.rank, planner.num_ranks
    elif _are_equal(planner, former):
        ranks, first, stride = range(planner.rank, planner.rank + 1), 0, 1
    else:
        raise ValueError(
            "the state was saved with in_order=False by one of "
            f"{former.num_ranks} ranks, while batches had overtaken others: with another batch "
            "size, other limits or ranks, load the states of all ranks, "
            "load_state_dict([state of rank 0, state of rank 1, ...])"
        )
    missing, last, is_whole = _missing(former, loaded.state, bits, ranks, stride, planner)
    behind = as_dict(loaded._replace(state=last), former)
    if not is_whole:  # the rest of that step is cut as all that follows
        behind[CUTS_KEY]["anchor"] = last.anchor
        if "cuttings" in behind[CUTS_KEY]:
            anew = Cutting(last.position, planner.num_ranks, planner.limits)
            behind[CUTS_KEY]["cuttings"] += (anew,)
    snapshot = from_dict(behind, current, planner, strict=strict)
    if not missing:  # they are left out now
        return snapshot
    # The state stays as it is until none is missing, so that those of all ranks are equal.
    plans = []
    for _, plan in missing[first::stride]:
        (indices, _), places = plan.values()
        plans.append(Plan(indices, loaded.state, **places))
    plans[-1] = Plan(indices, snapshot.state, **places)
    numbers = tuple(number for number, _ in missing)
    n_ranks, begin = former.num_ranks if is_of_all else None, loaded.state.step
    holes = Holes(dict(stored), numbers, first, stride, n_ranks, begin, last.step)
    return snapshot._replace(holes=holes, ahead=(loaded.state, plans))


def _cuts_of(stored: Any) -> dict[str, Any]:
    cuts = stored.get(CUTS_KEY) if isinstance(stored, Mapping) else None
    return loaded_cuts(cuts) if isinstance(cuts, Mapping) else {}


def _are_equal(planner: Planner, former: Planner) -> bool:
    names = (*DEFAULTS, "limits")
    return [getattr(planner, name) for name in names] == [getattr(former, name) for name in names]


def _missing(
    former: Former, state: State, bits: int, ranks: range, stride: int, planner: Planner
) -> tuple[list[tuple[int, Plan]], State, bool]:
    """The batches that were not delivered, by the number of their bit, the state behind them, and
    whether that is behind a whole step.

    They go up to the first step of which no rank has had a batch; and further, until ``stride``
    ranks get equally many.
    """
    n_steps, n_before = -(-bits.bit_length() // len(ranks)), 0
    missing: list[tuple[int, Plan]] = []
    detail, is_new_epoch, is_whole = state.epoch_detail, False, True
    while n_before < n_steps or len(missing) % stride:
        plans, n_more = former.plans_of(state, ranks), -len(missing) % stride
        if plans[0].indices is None and n_before < n_steps:
            raise ValueError(f"there is no step {state.step} that was delivered")
        if plans[0].indices is None or n_before == n_steps + stride:
            raise ValueError(
                f"{len(missing)} batches are missing at the end, which {stride} ranks cannot share "
                f"evenly: load the state with num_ranks={math.gcd(len(missing), stride)}"
            )
        behind = plans[0].state
        if n_before >= n_steps and n_more < len(ranks) and not planner.is_left_out(state.step):
            within = former.behind_first(state, plans[:n_more])
            if within is not None:
                plans, behind, is_whole = plans[:n_more], within, False
        for number, plan in enumerate(plans, n_before * len(ranks)):
            if not (bits >> number & 1 or planner.is_left_out(state.step)):
                missing.append((number, plan))
        state, n_before = behind, n_before + 1
        is_new_epoch |= state.is_new_epoch
    state = state._replace(is_new_epoch=is_new_epoch, previous_epoch_detail=detail)
    return missing, state, is_whole


def _of_all(states: Sequence[Any], planner: Planner) -> Any:
    """One state that tells what all ranks have delivered."""
    if not states or not all(isinstance(state, Mapping) for state in states):
        raise TypeError(
            "state_dict must be a dict, as state_dict() returns it, or a list of one for each "
            f"rank, not {states!r:.80}"
        )
    cuts = [_cuts_of(state) for state in states]
    if not any(DELIVERED_KEY in each for each in cuts):
        return states[min(planner.rank, len(states) - 1)]
    facts = [
        ({**each, "step": 0, DELIVERED_KEY: 0}, state.get(SEED_KEY))
        for each, state in zip(cuts, states, strict=True)
    ]
    n = cuts[0].get("num_ranks", 1)
    if any(each != facts[0] for each in facts) or len(states) != n:
        raise ValueError(
            f"a list must have the states of all {n} ranks, saved at the same time, but these "
            f"{len(states)} differ in more than what was delivered"
        )
    oldest = min(range(n), key=lambda rank: cuts[rank]["step"])
    begin, bits = cuts[oldest]["step"], 0
    for rank, each in enumerate(cuts):
        ahead = each["step"] - begin
        delivered = (1 << ahead) - 1 | each.get(DELIVERED_KEY, 0) << ahead
        bits |= sum(
            1 << (i * n + rank) for i in range(delivered.bit_length()) if delivered >> i & 1
        )
    merged = {**states[oldest][CUTS_KEY], DELIVERED_KEY: bits}
    return {**states[oldest], CUTS_KEY: {**merged, _OF_ALL_KEY: True} if n > 1 else merged}
