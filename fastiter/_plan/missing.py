"""Records with missing batches: of runs with ``in_order=False``, some of whose batches have
overtaken others.

Such a record has the entry ``missing``, with ``delivered``: a bit for each step from that of the
state on; if ``of_all_ranks``, one for each rank of each step.

What is missing comes first after the record was loaded, as it was cut, also where the iterator
has another batch size, other limits or ranks. So the steps that the record tells of are planned
once more by the arguments of that time; from the step behind them on, the iterator's own hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastiter._order.plan import Plan
from fastiter._plan.epoch_sampler import Cutting
from fastiter._plan.epochs import Planner, StillPlanner
from fastiter._plan.record import (
    CUT_DEFAULTS,
    loaded_cut,
    record_of,
    snapshot_of,
    unreadable,
)
from fastiter._plan.state import Missing, Snapshot, State

_MOST_BITS = 1 << 16


class ReplayPlanner(StillPlanner):
    """Plans for all ranks by the arguments that a state was saved with.

    `rank` is that of the plans, to be set. ``num_ranks`` may be given instead of that of the state.
    """

    def __init__(
        self, planner: Planner, cut: Mapping[str, Any], *, num_ranks: int | None = None
    ) -> None:
        given = {name: cut.get(name, default) for name, default in CUT_DEFAULTS.items()}
        given["batch_size"] = given["batch_size"] or 1
        given["num_ranks"] = num_ranks or given["num_ranks"]
        self._of = planner, cut
        self._limits = planner.limits
        if cut.get("cuttings"):
            self._limits = tuple(cut["cuttings"][-1][2])
        arguments = {**planner.arguments(), **given}
        super().__init__(planner.state, progress=planner.progress, **arguments)

    @property
    def limits(self) -> tuple[Any, ...]:
        """The arguments of a batch sampler that the state was saved with."""
        return self._limits

    def plans_of(self, state: State, ranks: range) -> list[Plan]:
        """The plans of these ranks for the step behind a state."""
        plans = []
        for self.rank in ranks:
            plans.append(self.advance(state))
        return plans

    def behind_first(self, state: State, plans: Sequence[Plan]) -> State | None:
        """The state behind the batches of the first ranks at a step. None if there is none: in the
        last step of an epoch batches depend on the number of ranks."""
        fewer = ReplayPlanner(*self._of, num_ranks=len(plans))
        fewer.former_size = self.former_size
        behind, stop = state, state.position
        for own, plan in zip(fewer.plans_of(state, range(len(plans))), plans, strict=True):
            if not np.array_equal(own.indices, plan.indices):
                return None
            behind, stop = own.state, stop + len(plan.indices)
        leaves_out = behind.epoch > state.epoch and stop < state.epoch_size
        return None if leaves_out else behind


def snapshot_of_records(
    records: Mapping[str, Any] | list[dict[str, Any]], planner: Planner, *, strict: bool
) -> Snapshot:
    """The snapshot of a record, or of those of all ranks, in their order; see `snapshot_of`."""
    record = record_of_all(records, planner.rank) if isinstance(records, list) else records
    if not record.get("missing") or record.get("kind") != planner.kind:
        return snapshot_of(record, planner, strict=strict)
    bits, is_of_all = _delivered(record)
    try:
        replay = ReplayPlanner(planner, loaded_cut(record))
    except (IndexError, TypeError, ValueError) as error:
        raise unreadable("cut", error) from error
    loaded = snapshot_of({**record, "missing": None}, replay, strict=strict)
    replay.go_on_from(loaded)
    if is_of_all or replay.num_ranks == 1:
        is_of_all = True
        ranks, first, stride = range(replay.num_ranks), planner.rank, planner.num_ranks
    elif all(getattr(planner, name) == getattr(replay, name) for name in (*CUT_DEFAULTS, "limits")):
        ranks, first, stride = range(planner.rank, planner.rank + 1), 0, 1
    else:
        raise ValueError(
            "the state was saved with in_order=False by one of "
            f"{replay.num_ranks} ranks, while batches had overtaken others: with another batch "
            "size, other limits or ranks, load the states of all ranks, "
            "load_state_dict([state of rank 0, state of rank 1, ...])"
        )
    missing, last, is_whole = _missing(replay, loaded.state, bits, ranks, stride, planner)
    replay.go_on_from(loaded._replace(state=last))
    behind = record_of(replay)
    if not is_whole:  # the rest of that step is cut as all that follows
        behind["cut"]["anchor"] = last.anchor
        if "cuttings" in behind["cut"]:
            anew = Cutting(last.position, planner.num_ranks, planner.limits)
            behind["cut"]["cuttings"] += (anew,)
    snapshot = snapshot_of(behind, planner, strict=strict)
    if not missing:  # they are left out now
        return snapshot
    # The state stays as it is until none is missing, so that those of all ranks are equal.
    plans = []
    for _, plan in missing[first::stride]:
        (indices, _), places = plan.values()
        plans.append(Plan(indices, loaded.state, **places))
    plans[-1] = Plan(indices, snapshot.state, **places)
    numbers = tuple(number for number, _ in missing)
    n_ranks, begin = replay.num_ranks if is_of_all else None, loaded.state.step
    of_record = Missing(dict(record), numbers, first, stride, n_ranks, begin, last.step)
    return snapshot._replace(missing=of_record, ahead=(loaded.state, plans))


def _delivered(record: Mapping[str, Any]) -> tuple[int, bool]:
    """The bits of ``missing``, and whether they are those of all ranks."""
    try:
        bits = record["missing"]["delivered"]
        is_of_all = record["missing"].get("of_all_ranks", False)
        if type(bits) is not int or not 0 < bits < 1 << _MOST_BITS or type(is_of_all) is not bool:
            raise ValueError(f"delivered {bits!r:.80}, of_all_ranks {is_of_all!r:.80}")
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise unreadable("missing", error) from error
    return bits, is_of_all


def _missing(
    replay: ReplayPlanner, state: State, bits: int, ranks: range, stride: int, planner: Planner
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
        plans, n_more = replay.plans_of(state, ranks), -len(missing) % stride
        if plans[0].indices is None and n_before < n_steps:
            raise ValueError(f"there is no step {state.step} that was delivered")
        if plans[0].indices is None or n_before == n_steps + stride:
            raise ValueError(
                f"{len(missing)} batches are missing at the end, which {stride} ranks cannot share "
                f"evenly: load the state on {math.gcd(len(missing), stride)} rank(s)"
            )
        behind = plans[0].state
        if n_before >= n_steps and n_more < len(ranks) and not planner.is_left_out(state.step):
            within = replay.behind_first(state, plans[:n_more])
            if within is not None:
                plans, behind, is_whole = plans[:n_more], within, False
        for number, plan in enumerate(plans, n_before * len(ranks)):
            if not (bits >> number & 1 or planner.is_left_out(state.step)):
                missing.append((number, plan))
        state, n_before = behind, n_before + 1
        is_new_epoch |= state.is_new_epoch
    state = state._replace(is_new_epoch=is_new_epoch, previous_epoch_detail=detail)
    return missing, state, is_whole


def record_of_all(records: Sequence[Mapping[str, Any]], rank: int) -> Mapping[str, Any]:
    """One record that tells what all ranks have delivered, of theirs; for this one of them."""
    own = records[min(rank, len(records) - 1)]
    told = [_delivered(record) if record.get("missing") else (0, False) for record in records]
    steps: list[Any] = [record.get("step") for record in records]
    if not any(bits for bits, _ in told) and steps.count(steps[0]) == len(steps):
        return own
    # The window is that of the record's own position, the anchor is where that rank went on from.
    cuts = [{**loaded_cut(record), "window": None, "anchor": None} for record in records]
    n = cuts[0].get("num_ranks", 1)
    tell_of_all = n == 1 or any(is_of_all for _, is_of_all in told)
    facts = [(cut, record.get("seed")) for cut, record in zip(cuts, records, strict=True)]
    are_alike = all(each == facts[0] for each in facts) and all(type(each) is int for each in steps)
    if tell_of_all and are_alike and len({*told}) == len({*steps}) == 1:
        return own
    if tell_of_all or not are_alike or len(records) != n:
        raise ValueError(
            f"a list must have the states of all {n} ranks, saved at the same time, but these "
            f"{len(records)} differ in more than what was delivered"
        )
    begin, all_bits = min(steps), 0
    for place, (step, (bits, _)) in enumerate(zip(steps, told, strict=True)):
        bits = ((bits + 1) << step - begin) - 1
        all_bits |= sum(1 << (i * n + place) for i in range(bits.bit_length()) if bits >> i & 1)
    of_rank = {"skipped": own["skipped"]} if "skipped" in own else {}
    joined = {**records[steps.index(begin)], **of_rank}
    return {**joined, "missing": {"delivered": all_bits, "of_all_ranks": True}}
