"""The state of an iteration, as a value."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastiter._order.plan import epoch_detail

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._order.example_context import Seed
    from fastiter._plan.epoch_sampler import Cutting

MOST_RECORDS = 10_000
MOST_TEXT = 200  # characters of an exception

Indices: TypeAlias = "npt.NDArray[np.int64]"
#: int64[n], or an object with ``len()`` whose slices are one-dimensional integer arrays.
Order = Any


class Anchor(NamedTuple):
    """A step from which on the present arguments hold."""

    step: int = 0
    epoch: int = 0  #: in which the step begins
    position: int = 0  #: at which it begins there
    n_drawn: int = 0  #: orders drawn by number up to that epoch's; 0: none are

    def n_drawn_at(self, epoch: int) -> int:
        """Orders drawn by number up to a later epoch's."""
        return self.n_drawn and self.n_drawn + epoch - self.epoch


class State(NamedTuple):
    """The state of an iteration, without its seed and the examples that were skipped."""

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


class Missing(NamedTuple):
    """Batches missing in a loaded state, which others have overtaken."""

    record: dict[str, Any]  #: of that state
    numbers: tuple[int, ...]  #: of the bits of these batches, in the order of their delivery
    first: int  #: place in `numbers` of the batch that comes first here
    stride: int  #: and how many ranks take them in turn
    n_ranks: int | None  #: bits of a step, one for each rank; None: it is a state of this rank
    begin: int  #: the step of the first bit
    stop: int  #: the step behind them


class Skipped(NamedTuple):
    """A dataset index whose example was skipped."""

    #: of `fastiter.torch.DataLoader`, a key that is no int is its `repr`
    index: int | str  # type: ignore[assignment]  # hides a method of tuples
    epoch: int  #: in which it was skipped last
    times: int  #: how often it was skipped
    error: str  #: type and text of its last exception, at most 200 characters


class SkipState(NamedTuple):
    """The examples skipped up to a batch."""

    epoch: int = 0  #: in which the last one was skipped
    n_skipped: int = 0  #: in that epoch
    records: Mapping[int | str, Skipped] = {}  #: by dataset index, in the order of the first skip

    def saved(self) -> dict[str, Any]:
        """Entry of a record: numbers and texts that JSON takes."""
        records = [list(record) for record in self.records.values()]
        return {"epoch": self.epoch, "count": self.n_skipped, "records": records}

    @staticmethod
    def loaded(stored: Any, takes_texts: bool = False) -> SkipState:
        """Load what `saved` returned; None: an empty state. Indices that are texts are those of
        keys."""
        if stored is None:
            return SkipState()
        try:
            records = {}
            for index, epoch, times, text in stored["records"]:
                number = index if takes_texts and isinstance(index, str) else natural(index)
                if not isinstance(text, str):
                    raise TypeError(f"{text!r} is not a text")
                record = number, natural(epoch), natural(times), text[:MOST_TEXT]
                records[number] = Skipped(*record)
            if len(records) > MOST_RECORDS:
                raise ValueError(f"{len(records)} records")
            return SkipState(natural(stored["epoch"]), natural(stored["count"]), records)
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the snapshot's 'skipped' cannot be read: {error!r}") from error


class Snapshot(NamedTuple):
    """All that an iteration goes on from."""

    state: State
    seed: Seed
    skips: SkipState | None  #: None if examples are not skipped
    anchor: Anchor
    recut: tuple[int, tuple[Cutting, ...]] | None = None  #: `Planner.recut`
    former_size: int | None = None  #: `PlanQueue.former_size`
    missing: Missing | None = None
    sources: Any = None  #: of a stream: states of the sources that its shards are read from
    ahead: tuple[Any, ...] = ()  #: plans before ``state``, as `PlanQueue.restart` takes them


def natural(value: Any) -> int:
    """``value``, an integer from 0 on, as an int."""
    number = operator.index(value)
    if isinstance(value, bool) or number < 0:
        raise ValueError(f"{value!r} is not a count")
    return number
