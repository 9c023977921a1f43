"""Places in an epoch of one of fastiter's samplers: while indices are drawn, and as loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastiter._plan.epoch_sampler import SamplerRecord
from fastiter._plan.epochs import Planner
from fastiter._plan.missing import ReplayPlanner, snapshot_of_records
from fastiter._plan.record import VERSION, loaded_cut, packed, record_of, snapshot_of
from fastiter._plan.state import Snapshot, State
from fastiter.iterators._addresses import Preview

_USUAL = {
    "version": VERSION,
    "kind": "epochs",
    "is_new_epoch": False,
    "previous_epoch_detail": None,
}
_MOST_SIZES = 8  # of a mixture's sources that are in a state of a loader


class DrawnRows:
    """The rows that an iterator of `Order` or `Batches` has drawn."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.number: int | None = planner.last_epoch
        self.state: Any = planner.state  #: before the present batch; None: at the end
        self.n = 0  #: rows drawn of that batch
        self._plan: Any = None

    def advance(self) -> Any:
        """The plan of the next batch; without indices at the end."""
        if self._plan is not None:
            self.state, self.n = self._plan.state, 0
        self._plan = self.planner.advance(self.state)
        return self._plan

    def record(self) -> dict[str, Any]:
        """The record of the state after the rows that were drawn."""
        state: Any = self.state
        indices: Any = None if self._plan is None else self._plan.indices
        if indices is not None and self.n == len(indices):
            state = self._plan.state
        elif self.n:
            if self.planner.num_ranks > 1:
                raise ValueError(
                    f"{self.n} of {len(indices)} rows of a batch were drawn: with several ranks an "
                    "Order has a state between two batches"
                )
            state = state._replace(position=state.position + self.n)
        return recorded(self.planner, state)


def recorded(planner: Planner, state: State, early: Sequence[int] = ()) -> dict[str, Any]:
    """The record of a state in a planner's epoch, if of the steps behind it these were
    delivered."""
    preview = Preview(planner, planner.rank)
    preview.restart(state)
    record = packed(record_of(preview))
    if early:
        record["missing"] = {"delivered": sum(1 << (step - state.step) for step in early)}
    return record


def shortened(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its usual entries, and without those that loaders do not read."""
    cut = record["cut"]
    if len(cut.get("sizes", ())) > _MOST_SIZES:
        cut = {name: value for name, value in cut.items() if name != "sizes"}
    record = {**record, "cut": cut, "previous_epoch_detail": None}
    return {
        name: value for name, value in record.items() if name not in _USUAL or _USUAL[name] != value
    }


class LoadedRecord:
    """A record to go on from, ``strict`` as in `load_state_dict`. ``step``: number of the epoch's
    batches that count as delivered, if other than in the record."""

    is_finished = False  # whether the iteration had ended

    def __init__(self, record: Any, strict: bool, step: int | None = None) -> None:
        words = record.get("order") if isinstance(record, Mapping) else None
        of_sampler = SamplerRecord.of(words) if isinstance(words, list) else None
        if of_sampler is None:
            raise ValueError(
                "the state is not that of one of fastiter's samplers with a seed, as Order and "
                "Batches have it"
            )
        self.record: dict[str, Any] = {**_USUAL, **record}
        self.number = of_sampler.n_drawn - 1  #: of the epoch
        self._strict, self._step = strict, step

    def go_to(self, planner: Planner) -> Snapshot:
        """Have a planner go on from the record."""
        planner.last_epoch = self.number
        record = self.record
        if self._step not in (None, record.get("step")):
            record = self._moved(planner, self._step)
        snapshot = snapshot_of_records(record, planner, strict=self._strict)
        planner.go_on_from(snapshot)
        planner.restart(snapshot.state)  # without those that were missing
        return snapshot

    def _moved(self, planner: Planner, step: Any) -> dict[str, Any]:
        """The record before another step of its epoch, which is cut as it was."""
        if self.record.get("missing"):
            raise ValueError(
                f"batches are missing in state_dict: it cannot go back to batch {step}"
            )
        replay = ReplayPlanner(planner, loaded_cut(self.record))
        loaded = snapshot_of(self.record, replay, strict=self._strict)
        replay.go_on_from(loaded)
        first, state = loaded.anchor.step, loaded.state
        end = state.step + replay.n_steps(state.cuts, state.position, state.whole_size)
        if not first <= step < end or not replay.has_epoch(state.epoch):
            raise ValueError(
                f"state_dict counts {step} batches of the epoch, but tells of its cuts from batch "
                f"{first} to {end} only"
            )
        state = Preview(replay, replay.rank).before(step)
        replay.go_on_from(loaded._replace(state=state))
        return record_of(replay)
