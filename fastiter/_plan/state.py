"""Where an iteration stands, as a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from fastiter._order.plan import epoch_detail

if TYPE_CHECKING:
    import numpy.typing as npt

    from fastiter._order.example_context import Seed
    from fastiter._plan.epoch_sampler import Cutting
    from fastiter._plan.skips import SkipState

Indices: TypeAlias = "npt.NDArray[np.int64]"
#: int64[n], or an object with ``len()`` whose slices are one-dimensional integer arrays.
Order = Any


class Anchor(NamedTuple):
    """A step from which on the present arguments hold."""

    step: int = 0
    epoch: int = 0  #: in which the step begins
    position: int = 0  #: at which it begins there
    n_drawn: int = 0  #: orders drawn by number up to that epoch's


class State(NamedTuple):
    """Where an iteration stands, without its seed and the examples that were skipped."""

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
    first: int  #: which of them comes first here
    stride: int  #: and how many ranks take them in turn
    n_ranks: int | None  #: bits of a step, one for each rank; None: it is a state of this rank
    begin: int  #: the step of the first bit
    stop: int  #: the step behind them


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
    ahead: tuple[Any, ...] = ()  #: what comes before ``state``, as `PlanQueue.restart` takes it
